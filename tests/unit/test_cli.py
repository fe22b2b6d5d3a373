"""The command line itself: commands, exit codes, and what a user reads when something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from torchport.backend.availability import Availability
from torchport.backend.capabilities import Capabilities
from torchport.cli import app, backends, bench, main
from torchport.cli.app import COMMANDS
from torchport.cli.problem import CommandError, require_packages
from torchport.errors import ExecutionError, UnknownBackendError


def test_help_has_one_line_for_each_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for name, command in COMMANDS.items():
        assert f"{name} {command.summary}" in text


def test_only_finished_commands_are_listed() -> None:
    assert ["demo", "backends", "lower", "run", "inspect", "conformance", "bench"] == list(COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"usage: torchport {name}" in capsys.readouterr().out


def test_version_names_torchport_torch_and_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    words = capsys.readouterr().out
    assert words.startswith("torchport ")
    assert "(torch 2." in words
    assert "Python 3." in words


def test_without_a_command_the_help_is_shown_and_the_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: torchport" in capsys.readouterr().out


@pytest.mark.parametrize(("typed", "meant"), [("dmeo", "demo"), ("backend", "backends"), ("bnech", "bench")])
def test_a_misspelt_command_gets_a_suggestion(typed: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([typed]) == 2
    assert capsys.readouterr().err == (
        f"torchport: there is no command {typed!r}. Did you mean {meant!r}? "
        "The commands are: demo, backends, lower, run, inspect, conformance, bench.\n"
    )


def test_a_command_like_no_other_gets_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zzz"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_a_wrong_option_gives_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--nonsense"]) == 2
    assert "unrecognized arguments: --nonsense" in capsys.readouterr().err


@pytest.mark.parametrize("epochs", ["0", "-1", "many", "1.5"])
def test_epochs_must_be_a_positive_whole_number(epochs: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", f"--epochs={epochs}"]) == 2
    assert f"{epochs!r} is not a whole number of at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "torchport backends: interrupted\n"),
        (CommandError("not here"), 2, "torchport backends: not here\n"),
        (UnknownBackendError("interpeter", ["interpreter"]), 2, "Did you mean 'interpreter'?"),
        (ExecutionError("it broke"), 1, "torchport backends: ExecutionError: it broke\n"),
    ],
)
def test_what_a_command_raises_becomes_a_message_and_a_code(
    raised: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(arguments: object) -> int:
        raise raised

    command = app.Command("", COMMANDS["backends"].add_arguments, fail)
    monkeypatch.setitem(COMMANDS, "backends", command)
    assert main(["backends"]) == code
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> int:
        raise KeyError("a bug")

    monkeypatch.setitem(COMMANDS, "backends", app.Command("", COMMANDS["backends"].add_arguments, fail))
    with pytest.raises(KeyError, match="a bug"):
        main(["backends"])


def test_missing_packages_are_all_named_with_the_pip_command() -> None:
    with pytest.raises(CommandError) as raised:
        require_packages("torchport demo", {"json": "json", "no_such_module_a": "dist-a", "no_such_module_b": "dist-b"})
    assert str(raised.value) == (
        "torchport demo needs dist-a, dist-b, not installed here. Install with:\n    pip install dist-a dist-b"
    )


@pytest.fixture
def three_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "zeta": Availability(True, "", "", Capabilities()),
        "alpha": Availability(True, "", "1.2", Capabilities(random=True, eager_random_stream=True)),
        "beta": Availability(False, "needs beta, not installed.\npip install beta"),
    }
    monkeypatch.setattr(backends, "known_backends", lambda: found)


@pytest.mark.usefixtures("three_backends")
def test_backends_shows_pass_and_version_or_the_reason_and_the_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "PASS  alpha  1.2",
        "             random, eager random stream",
        " --   beta   needs beta, not installed.",
        "             pip install beta",
        "PASS  zeta   no version stated",
        "             nothing beyond the minimum",
    ]


@pytest.mark.usefixtures("three_backends")
def test_backends_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["backends", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert ["alpha", "beta", "zeta"] == list(found)
    assert found["alpha"]["available"] is True
    assert found["alpha"]["capabilities"]["random"] is True
    assert found["beta"]["reason"] == "needs beta, not installed.\npip install beta"


def test_bench_passes_options_on_and_returns_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def record(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(subprocess, "run", record)
    assert main(["bench", "memory", "--steps", "10"]) == 7
    assert [[sys.executable, str(bench.checkout_folder() / "memory.py"), "--steps", "10"]] == calls


def test_bench_without_a_name_takes_options_of_the_training_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    def record(command: list[str], check: bool) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", record)
    assert main(["bench", "--models", "mlp", "--rounds", "3"]) == 0
    assert [
        [sys.executable, str(bench.checkout_folder() / "train_steps.py"), "--models", "mlp", "--rounds", "3"]
    ] == calls


def test_bench_without_a_checkout_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "checkout_folder", lambda: tmp_path / "bench")
    assert main(["bench"]) == 2
    assert "The benchmarks are part of the source checkout" in capsys.readouterr().err
