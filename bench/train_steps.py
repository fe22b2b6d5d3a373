"""Training steps side by side: eager PyTorch, its lazy core, ``torch.compile``, ``port``, and captured steps on it.

Everything is measured in one run. Each contender lives in a process of its own; the rounds go through all of them in
turn, so that a change of the machine's speed meets all alike. Trust the ratios, not the milliseconds.

    python bench/train_steps.py
    python bench/train_steps.py --models mlp cnn --rounds 20 --threads 2 --json result.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import machine
from contender import CONTENDERS
from workloads import WORKLOADS

NAMES = {
    "eager": "eager",
    "lazy_core": "torch._lazy",
    "torch_compile": "compile(model)",
    "torch_compile_step": "compile(step)",
    "port": "port",
    "captured_interpreter": "capt. interp.",
    "captured_inductor": "capt. inductor",
    "captured_xla": "capt. xla",
    "captured_iree": "capt. iree",
}
ANSWER_LIMIT_S = 900.0
COLUMNS = "{:<14} {:>8} {:>8} {:>7} {:>7} {:>9} {:>9} {:>7} {:>8} {:>9} {:>9}"


class ContenderGoneError(Exception):
    """A contender's process ended, or does not answer: the end of what it wrote."""


class Process:
    """A contender's process, asked one thing at a time."""

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - close() closes it
        script = Path(__file__).with_name("contender.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), name, "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; the answer says how
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._reader.join()  # it ends with the process's output; a pipe must not be closed under a reader
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # a request that it never read
            self._process.stdin.close()
        with self._process, self._log:  # closes the other pipe, waits
            pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def _answer(self) -> dict[str, Any]:
        try:
            line = self._answers.get(timeout=ANSWER_LIMIT_S)
        except queue.Empty:
            raise ContenderGoneError(f"no answer in {ANSWER_LIMIT_S:.0f} s") from None
        if not line:
            self._log.seek(0)
            last = [text for text in self._log.read().splitlines() if text.strip()][-1:]
            raise ContenderGoneError(f"ended with code {self._process.wait()}: {' '.join(last) or 'it wrote nothing'}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def measure(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The figures of every contender on one model: ``{contender: figures}``, or ``{contender: {"problem": text}}``."""
    result: dict[str, Any] = {}
    processes: dict[str, Process] = {}
    steps: dict[str, int] = {}
    samples: dict[str, dict[str, list[float]]] = {}

    def ask(name: str, do: str, **more: Any) -> dict[str, Any] | None:
        try:
            if name not in processes:
                processes[name] = Process(name, arguments.threads)
            return processes[name].ask(do, **more)
        except ContenderGoneError as problem:
            result[name] = {"problem": str(problem)}
            alive.remove(name)
            return None

    alive = list(arguments.contenders)
    try:
        for name in list(alive):
            print(f"  {NAMES[name]}: preparing", file=sys.stderr, flush=True)
            if answer := ask(name, "prepare", model=model):
                steps[name] = max(2, min(200, round(arguments.round_s / answer["step_s"])))
                result[name] = {"losses": answer["losses"]}
                samples[name] = {}
        for index in range(arguments.rounds):
            for do in ("time", "trace"):
                # Another one starts each round: what the one before leaves in the caches does not always hit the same.
                turn = index % max(1, len(alive))
                for name in alive[turn:] + alive[:turn]:
                    for key, value in (ask(name, do, steps=steps[name]) or {}).items():
                        samples[name].setdefault(key, []).append(value)
            print(f"  round {index + 1} of {arguments.rounds}", file=sys.stderr, end="\r", flush=True)
        print(file=sys.stderr)
    finally:
        for process in processes.values():
            process.close()
    for name in alive:
        for key, values in samples[name].items():
            if key.endswith("_s"):
                result[name][f"{key[:-2]}_ms"] = {"min": min(values) * 1e3, "median": statistics.median(values) * 1e3}
            else:
                result[name][key] = statistics.median(values)
    return derive(result)


def derive(result: dict[str, Any]) -> dict[str, Any]:
    """Adds what is computed from several figures: ratios to eager, tracing per op, differences of the losses."""
    eager = result.get("eager", {})
    for figures in result.values():
        if "step_ms" in figures and "step_ms" in eager:
            figures["ratio"] = {key: figures["step_ms"][key] / eager["step_ms"][key] for key in ("min", "median")}
            pairs = zip(figures["losses"], eager["losses"], strict=True)
            figures["loss_difference"] = max(abs(loss - expected) for loss, expected in pairs)
        if figures.get("ops"):
            figures["trace_us_per_op"] = figures["trace_ms"]["min"] * 1e3 / figures["ops"]
    if all("trace_ms" in result.get(name, {}) for name in ("port", "lazy_core")):
        port, core = result["port"]["trace_ms"], result["lazy_core"]["trace_ms"]
        result["port"]["trace_ratio"] = {key: port[key] / core[key] for key in ("min", "median")}
    return result


def show(model: str, result: dict[str, Any]) -> None:
    """Print one model's table."""
    print(f"\n{model}: {WORKLOADS[model].description}")
    print(COLUMNS.format("", "step ms", "", "/ eager", "", "trace ms", "us / op", "ops", "fall-", "barrier", "loss"))
    print(COLUMNS.format("", "min", "median", "min", "median", "min", "", "", "backs", "ms min", "differs"))
    for name, figures in result.items():
        if "problem" in figures:
            print(f"{NAMES[name]:<14} not measured: {figures['problem']}")
            continue
        step, ratio = figures["step_ms"], figures.get("ratio", {})
        cells = [f"{step['min']:.3f}", f"{step['median']:.3f}"]
        cells += [f"{ratio[key]:.2f}" if ratio else "" for key in ("min", "median")]
        if "trace_ms" in figures:
            cells += [f"{figures['trace_ms']['min']:.3f}", f"{figures.get('trace_us_per_op', float('nan')):.1f}"]
            cells += [f"{figures['ops']:.0f}", f"{figures['fallbacks']:.0f}", f"{figures['barrier_ms']['min']:.3f}"]
        else:
            cells += [""] * 5
        cells.append(f"{figures['loss_difference']:.0e}" if "loss_difference" in figures else "")
        print(COLUMNS.format(NAMES[name], *cells))
        if figures.get("compiles"):
            print(f"{'':<14} not steady: it compiled {figures['compiles']:.0f} graphs in a round of tracing")
    if "trace_ratio" in result.get("port", {}):
        ratio = result["port"]["trace_ratio"]
        print(f"tracing, port / torch._lazy: {ratio['min']:.2f} (min), {ratio['median']:.2f} (median)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--round-s", type=float, default=0.2, help="aimed-at length of a round; default: %(default)s")
    parser.add_argument("--threads", type=int, choices=(1, 2), default=1, help="default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures there")
    arguments = parser.parse_args()
    print(f"{machine.text()}\n{'threads':>10}  {arguments.threads}")
    print(f"{'rounds':>10}  {arguments.rounds}, of about {arguments.round_s} s for each contender, interleaved")
    results = {}
    for model in arguments.models:
        results[model] = measure(model, arguments)
        show(model, results[model])
    if arguments.json:
        settings = {"threads": arguments.threads, "rounds": arguments.rounds}
        content = {"machine": machine.describe(), "settings": settings, "models": results}
        arguments.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        sys.exit(130)
