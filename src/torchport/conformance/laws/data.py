"""Data: what goes to the device comes back, nothing is shared with the host, and a value never changes."""

from __future__ import annotations

import gc
import weakref

import torch

from torchport.backend import BackendData, Shape
from torchport.conformance.case import Laws, NotApplicable, require
from torchport.conformance.comparison import check_values
from torchport.conformance.subject import Subject

LAWS = Laws("data")

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
BY_NAME = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES}
NUMBERS = {"bool": True, "int": 3, "float": 0.5, "complex": 2 + 1j}


@LAWS.add_each(BY_NAME)
def a_tensor_comes_back(subject: Subject, dtype: torch.dtype) -> None:
    """A host tensor that went to the device comes back with its values, dtype and sizes."""
    tensor = torch.tensor([[0, 1, 2], [3, 0, 5]]).to(dtype)
    data = subject.upload(tensor)
    require(data.has_value, "make_computation_data_from_tensor() returned data without a value")
    require(data.shape.dtype is dtype, f"data of a {dtype} tensor says {data.shape.dtype}")
    require(data.shape.sizes == (2, 3), f"data of a (2, 3) tensor says {data.shape.sizes}")
    require(data.device == subject.device, f"data for {subject.device} says {data.device}")
    check_values(tensor, subject.download(data), what="the tensor that came back")


@LAWS.add_each({"scalar": (), "empty": (0, 3), "one": (1,), "large": (300, 70)})
def any_sizes_come_back(subject: Subject, sizes: tuple[int, ...]) -> None:
    """Tensors of no dimension, without elements, and of many come back."""
    tensor = torch.rand(sizes, generator=torch.Generator().manual_seed(0))
    check_values(tensor, subject.download(subject.upload(tensor)), what="the tensor that came back")


@LAWS.add()
def the_layout_comes_back(subject: Subject) -> None:
    """The data of a transposed tensor says its strides, and its values come back in their places."""
    tensor = torch.arange(6.0).reshape(3, 2).t()
    data = subject.upload(tensor)
    require(data.shape.strides == (1, 2), f"data of a tensor with strides (1, 2) says {data.shape.strides}")
    check_values(tensor, subject.download(data), what="the tensor that came back")


@LAWS.add_each(NUMBERS)
def a_number_comes_back(subject: Subject, number: complex) -> None:
    """A Python number becomes data without dimensions, and comes back."""
    data = subject.backend.make_computation_data_from_scalar(number, subject.device)
    require(data.has_value, "make_computation_data_from_scalar() returned data without a value")
    require(data.shape.sizes == (), f"data of a number has sizes {data.shape.sizes}")
    back = subject.download(data).item()
    require(back == number, f"{number!r} went to the device, {back!r} came back")


@LAWS.add()
def the_host_tensor_is_copied(subject: Subject) -> None:
    """What becomes of the host tensor afterwards does not change the data."""
    tensor = torch.ones(64, 3)
    data = subject.upload(tensor)
    tensor.zero_()
    check_values(torch.ones(64, 3), subject.download(data), what="data, after the host tensor was written to")


@LAWS.add()
def the_host_tensor_is_not_kept(subject: Subject) -> None:
    """No reference to the host tensor stays behind."""
    tensor = torch.ones(64, 3)
    data = subject.upload(tensor)
    alive = weakref.ref(tensor)
    del tensor
    gc.collect()
    require(alive() is None, "the host tensor is alive after its last reference outside of the backend is gone")
    require(data.has_value, "the data lost its value with the host tensor")


@LAWS.add()
def what_comes_back_is_the_callers(subject: Subject) -> None:
    """The caller may write to the host tensor that comes back; the data keeps its value."""
    data = subject.upload(torch.ones(64, 3))
    subject.download(data).zero_()
    check_values(torch.ones(64, 3), subject.download(data), what="data, after the tensor that came back was written to")


@LAWS.add()
def a_tensor_comes_back_in_the_logical_dtype(subject: Subject) -> None:
    """A logical dtype that differs from the stored one is converted to."""
    data = subject.upload(torch.tensor([0.0, 1.5]))
    made = subject.backend.make_tensor_from_computation_data(data, torch.float64)
    check_values(torch.tensor([0.0, 1.5], dtype=torch.float64), made, what="the tensor in the logical dtype")


@LAWS.add()
def a_placeholder_takes_its_value(subject: Subject) -> None:
    """A placeholder has a shape and no value, and takes one over by assign()."""
    shape = Shape(torch.float32, (2, 3))
    placeholder = subject.backend.create_data_placeholder(subject.device, shape)
    require(not placeholder.has_value, "create_data_placeholder() returned data that has a value")
    require(placeholder.shape == shape, f"a placeholder for {shape!r} says {placeholder.shape!r}")
    require(placeholder.device == subject.device, f"a placeholder for {subject.device} says {placeholder.device}")
    placeholder.assign(subject.upload(torch.ones(2, 3)))
    check_values(torch.ones(2, 3), subject.download(placeholder), what="the placeholder that took a value")


@LAWS.add()
def a_placeholder_has_its_own_value(subject: Subject) -> None:
    """Two placeholders are two data."""
    shape = Shape(torch.float32, (2,))
    one, other = (subject.backend.create_data_placeholder(subject.device, shape) for _ in range(2))
    require(one is not other, "create_data_placeholder() returned the same object twice")
    one.assign(subject.upload(torch.ones(2)))
    require(not other.has_value, "a value that one placeholder took is the other's as well")


@LAWS.add()
def only_a_leaf_has_data(subject: Subject) -> None:
    """The data of a device-data node is given back, and of every other node None."""
    data = subject.upload(torch.ones(2, 3))
    builder = subject.backend.get_ir_builder()
    leaf = builder.make_device_data(data)
    cast = builder.make_cast(leaf.value(), torch.float64)
    found = subject.backend.get_computation_data_from_node(leaf)
    require(found is data, f"the data of a leaf is {found!r}, not that which it was made with")
    require(subject.backend.get_computation_data_from_node(cast) is None, "a node that is no leaf has data")


@LAWS.add()
def dropped_data_is_freed(subject: Subject) -> None:
    """Data and its handle go when nobody refers to them any more: handles are not leaked."""
    data = [subject.upload(torch.full((16, 16), float(i))) for i in range(4)]
    alive = _references(data)
    del data
    _require_gone(alive, "uploaded")


def _references(data: list[BackendData]) -> list[weakref.ref[object]]:
    found: list[weakref.ref[object]] = [weakref.ref(d) for d in data]
    for d in data:
        try:
            found.append(weakref.ref(d.handle))
        except TypeError:  # a handle of this type cannot be referred to weakly; its data can
            continue
    return found


def _require_gone(alive: list[weakref.ref[object]], what: str) -> None:
    gc.collect()
    left = [type(o).__name__ for o in (r() for r in alive) if o is not None]
    require(not left, f"of what was {what} and dropped, {len(left)} objects are alive: {', '.join(sorted(set(left)))}")


@LAWS.add()
def the_bytes_held_are_those_of_live_data(subject: Subject) -> None:
    """The figure bytes_held, where the backend has it, grows with data and falls when data is dropped."""
    if "bytes_held" not in subject.backend.get_metrics():
        raise NotApplicable("its get_metrics() has no bytes_held")
    gc.collect()
    before = subject.backend.get_metrics()["bytes_held"]
    data = subject.upload(torch.ones(1 << 16))
    held = subject.backend.get_metrics()["bytes_held"] - before
    require(held >= 1 << 18, f"data of {1 << 18} bytes was made, and bytes_held grew by {held:.0f}")
    del data
    gc.collect()
    left = subject.backend.get_metrics()["bytes_held"] - before
    require(left < 1 << 18, f"data of {1 << 18} bytes was dropped, and bytes_held is still {left:.0f} larger")
