"""Ranks sentences by a saved encoder, on a machine that may have no PyTorch: needs numpy and torchport-runtime.

lower_sentences.py makes the file and the tokens, and calls this program in new processes.

Run:  python examples/rank_sentences.py sentences.tport tokens.npz embeddings.npz [--with torchport]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Encoder = Callable[[Array, Array], Array]


def encoder_of(path: str, library: str) -> Encoder:
    """The encoder of a saved file: token ids and mask, both ``(batch, length)``, to embeddings ``(batch, width)``."""
    # Imported here, since one of the two cannot be imported where there is no PyTorch.
    if library == "torchport_runtime":
        encode: Encoder = import_module("torchport_runtime").load(path).forward
        return encode
    torch, lowered = import_module("torch"), import_module("torchport").load(path)
    torch.set_num_threads(1)
    return lambda ids, mask: lowered(torch.from_numpy(ids), torch.from_numpy(mask)).numpy()


def main() -> None:
    """Loads the encoder, embeds each batch of the tokens, and writes embeddings and ranking."""
    parser = argparse.ArgumentParser(description="Ranks sentences by a saved encoder.")
    parser.add_argument("encoder", help="the .tport file")
    parser.add_argument("tokens", help=".npz: for each batch NAME.ids and NAME.mask; 'queries' rank 'sentences'")
    parser.add_argument("embeddings", help=".npz to write: for each batch its embeddings, and the ranking")
    parser.add_argument(
        "--with", dest="library", choices=("torchport_runtime", "torchport"), default="torchport_runtime"
    )
    arguments = parser.parse_args()
    missing = [name for name in (arguments.encoder, arguments.tokens) if not Path(name).is_file()]
    if missing:
        parser.error(f"there is no file {' and no '.join(missing)}; lower_sentences.py makes them")

    start = time.perf_counter()
    encode = encoder_of(arguments.encoder, arguments.library)
    loaded_s = time.perf_counter() - start
    tokens = np.load(arguments.tokens)
    names = [name.removesuffix(".ids") for name in tokens if name.endswith(".ids")]
    embeddings = {name: encode(tokens[f"{name}.ids"], tokens[f"{name}.mask"]) for name in names}
    similarity = embeddings["queries"] @ embeddings["sentences"].T  # of vectors of length one: the cosine
    np.savez(arguments.embeddings, ranking=np.argsort(-similarity, axis=1), similarity=similarity, **embeddings)

    has_torch = "torch" in sys.modules
    assert has_torch is (arguments.library == "torchport"), "torchport_runtime needs no PyTorch"
    print(
        f"with {arguments.library} (PyTorch is {'' if has_torch else 'not '}imported): "
        f"imported and loaded in {loaded_s:.2f} s, {len(names)} batches embedded"
    )


if __name__ == "__main__":
    main()
