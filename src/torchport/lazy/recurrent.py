"""Recurrent cells. For devices that are no CPU, PyTorch's LSTM and GRU call fused cells; here they are traced.

Formulas and the layout of the workspaces: aten/src/ATen/native/cuda/RNN.cu.
"""

from __future__ import annotations

import torch

Tensor = torch.Tensor


def _gates(input_gates: Tensor, hidden_gates: Tensor, input_bias: Tensor | None, hidden_bias: Tensor | None) -> Tensor:
    if input_bias is not None and hidden_bias is not None:
        return (input_gates + input_bias) + (hidden_gates + hidden_bias)
    return input_gates + hidden_gates


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """``aten::_thnn_fused_lstm_cell``: hidden state, cell state, and the activated gates ``(batch, 4 * hidden)``."""
    i, f, g, o = _gates(input_gates, hidden_gates, input_bias, hidden_bias).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat((i, f, g, o), 1)


def lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """``aten::_thnn_fused_lstm_cell_backward_impl``: gradients of the gates, of ``cx``, and of the bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    tanh_cy = cy.tanh()
    if grad_hy is None:
        assert grad_cy is not None
        grad_o, grad_c = torch.zeros_like(grad_cy), grad_cy
    else:
        grad_o = grad_hy * tanh_cy
        grad_c = grad_hy * o * (1 - tanh_cy * tanh_cy)
        if grad_cy is not None:
            grad_c = grad_c + grad_cy
    grad_gates = torch.cat(
        (
            grad_c * g * i * (1 - i),
            grad_c * cx * f * (1 - f),
            grad_c * i * (1 - g * g),
            grad_o * o * (1 - o),
        ),
        1,
    )
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """``aten::_thnn_fused_gru_cell``: hidden state, and a workspace ``(batch, 5 * hidden)``."""
    if input_bias is not None and hidden_bias is not None:
        input_gates, hidden_gates = input_gates + input_bias, hidden_gates + hidden_bias
    input_r, input_z, input_n = input_gates.chunk(3, 1)
    hidden_r, hidden_z, hidden_n = hidden_gates.chunk(3, 1)
    r, z = (input_r + hidden_r).sigmoid(), (input_z + hidden_z).sigmoid()
    n = (input_n + r * hidden_n).tanh()
    return n + z * (hx - n), torch.cat((r, z, n, hx, hidden_n), 1)


def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """``aten::_thnn_fused_gru_cell_backward``: gradients of both gates, of ``hx``, and of both biases."""
    r, z, n, hx, hidden_n = workspace.chunk(5, 1)
    grad_z = grad_hy * (hx - n) * (1 - z) * z
    grad_n = grad_hy * (1 - z) * (1 - n * n)
    grad_r = grad_n * hidden_n * (1 - r) * r
    grad_input = torch.cat((grad_r, grad_z, grad_n), 1)
    grad_hidden = torch.cat((grad_r, grad_z, grad_n * r), 1)
    biases = (grad_input.sum(0), grad_hidden.sum(0)) if has_bias else (None, None)
    return grad_input, grad_hidden, grad_hy * z, *biases


RECURRENT_KERNELS = {
    "_thnn_fused_lstm_cell": lstm_cell,
    "_thnn_fused_lstm_cell_backward_impl": lstm_cell_backward,
    "_thnn_fused_gru_cell": gru_cell,
    "_thnn_fused_gru_cell_backward": gru_cell_backward,
}
