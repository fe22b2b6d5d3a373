"""``torchport-runtime`` and torchport's own ``lower``, ``run`` and ``inspect``: files, names of inputs, mistakes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import torchport
from torchport.cli import main as torchport_main
from torchport_runtime.command.app import main as runtime_main
from torchport_runtime.command.layout import Box, place

Main = Callable[[list[str]], int]
MAINS = {"torchport": torchport_main, "torchport-runtime": runtime_main}


class Mixed(nn.Module):
    """Nested inputs and results, a default, a state, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor, pair: tuple[torch.Tensor, torch.Tensor], scale: float = 2.0) -> object:
        self.count += 1
        y = self.second(torch.relu(self.first(x))) * scale + pair[0] - pair[1]
        return {"y": y, "count": self.count.clone(), "more": (y.sum(), None)}

    def halved(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


@pytest.fixture(scope="module")
def module() -> Mixed:
    torch.manual_seed(0)
    return Mixed().eval()


@pytest.fixture(scope="module")
def saved(module: Mixed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("commands") / "mixed <b>.tport"
    batch = torch.export.Dim("batch", min=1, max=64)
    x = torch.randn(3, 4)
    spec = torchport.CompileSpec((x, (x, x)), dynamic_shapes={"x": {0: batch}, "pair": ({0: batch}, {0: batch})})
    halved = torchport.CompileSpec((x,))
    lowered = torchport.to_backend("interpreter", module, {"forward": spec, "halved": halved}, fallback="interpreter")
    lowered.save(path)
    return path


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    generator = numpy.random.default_rng(0)
    x, a, b = (generator.standard_normal((5, 4), dtype=numpy.float32) for _ in range(3))
    numpy.save(tmp_path / "x.npy", x)
    numpy.savez(tmp_path / "pair.npz", a=a, b=b)
    numpy.savez(tmp_path / "all.npz", **{"x": x, "pair.0": a, "pair.1": b})
    return tmp_path


@pytest.mark.parametrize("command", MAINS)
@pytest.mark.parametrize("inputs", [["x={}/x.npy", "pair.0={}/pair.npz:a", "pair.1={}/pair.npz:b"], ["{}/all.npz"]])
def test_a_method_is_called_with_arrays_from_files(
    command: str, inputs: list[str], module: Mixed, saved: Path, arrays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = arrays / "out.npz"
    given = [text for i in inputs for text in ("--input", i.format(arrays))]
    assert MAINS[command](["run", str(saved), *given, "--output", str(output)]) == 0
    found, all_inputs = numpy.load(output), numpy.load(arrays / "all.npz")
    x, a, b = (torch.from_numpy(all_inputs[n]) for n in ("x", "pair.0", "pair.1"))
    y = module.second(torch.relu(module.first(x))) * 2 + a - b
    assert set(found.files) == {"y", "count", "more.0"}
    torch.testing.assert_close(torch.from_numpy(found["y"]), y.detach())
    assert found["count"] == 1
    text = capsys.readouterr().out
    assert "y: float32[5, 4] from " in text
    assert "more.1: None" in text


@pytest.mark.parametrize("command", MAINS)
def test_small_inputs_are_written_as_json_and_results_read_as_json(
    command: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = [[1, 2, 3, 4]] * 3
    run = ["run", str(saved), "--method", "halved", "--input", f"x={x}", "--output", str(tmp_path / "o.npy"), "--json"]
    assert MAINS[command](run) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["results"] == {"result": {"dtype": "float32", "sizes": [3, 4], "min": 0.5, "max": 2.0}}
    assert numpy.load(tmp_path / "o.npy").tolist() == [[0.5, 1.0, 1.5, 2.0]] * 3


MISTAKES = {
    "an input that is missing": (["--input", "x={}/x.npy"], "pair.0 is missing; pair.1 is missing. The inputs are x: "),
    "a name like another": (["--input", "pair0={}/x.npy"], "there is no input 'pair0'; did you mean 'pair.0'?"),
    "no file": (["--input", "x=nope.npy"], "nope.npy cannot be read: "),
    "no value": (["--input", "x"], "NAME=array.npy, NAME=JSON or arrays.npz is wanted"),
    "no JSON": (["--input", "x=[1,"], "neither JSON nor a file"),
    "a ragged list": (["--input", "x=[[1],[1,2]]"], "--input x=[[1],[1,2]]"),
    "no member": (["--input", "x={}/pair.npz:c"], "MEMBER is wanted, of a, b"),
    "no method": (["--method", "forwrd"], "there is no method 'forwrd': --method is one of forward, halved"),
    "sizes that do not fit": (["--input", "{}/all.npz", "--input", "x=[1,2]"], "the method was captured for"),
    "an output that is no archive": (["--input", "{}/all.npz", "--output", "{}/o.txt"], "ends with .npz"),
    "an output for one result": (["--input", "{}/all.npz", "--output", "{}/o.npy"], "it has to end with .npz"),
    "an output nowhere": (["--input", "{}/all.npz", "--output", "{}/no/o.npz"], "cannot be written"),
}


@pytest.mark.parametrize("command", MAINS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_said_in_one_line_and_ends_with_2(
    command: str, mistake: str, saved: Path, arrays: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, message = MISTAKES[mistake]
    before = set(arrays.iterdir())
    assert MAINS[command](["run", str(saved), *[text.format(arrays) for text in given]]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert before == set(arrays.iterdir())


@pytest.mark.parametrize("command", MAINS)
@pytest.mark.parametrize("what", ["nowhere", "another file", "cut short"])
def test_a_file_that_is_none_is_said_in_one_line(
    command: str, what: str, saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.tport"
    if what != "nowhere":
        path.write_bytes(b"hello" if what == "another file" else saved.read_bytes()[:-30])
    for asked in (["inspect", str(path)], ["run", str(path)]):
        assert MAINS[command](asked) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"{command} {asked[0]}: ")
        assert str(path) in said


@pytest.mark.parametrize("command", MAINS)
def test_inspect_says_what_is_in_a_file(command: str, saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert MAINS[command](["inspect", str(saved)]) == 0
    text = capsys.readouterr().out
    assert "forward(x: f32[batch, 4], pair.0: f32[batch, 4], pair.1: f32[batch, 4]) -> y, count, more.0, more.1" in text
    assert "batch from 1 to 64" in text
    assert "changes count" in text
    assert "p0 on interpreter: " in text
    assert "\n4 weights, " in text  # of a tied one the method uses one name
    assert MAINS[command](["inspect", str(saved), "--json"]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["methods"]["halved"]["inputs"] == {"x": "f32[3, 4]"}
    assert set(about["versions"]) == {"torchport", "torch", "interpreter"}
    assert len(about["members"]["weights.safetensors"]["blake2b"]) == 64


class Page(HTMLParser):
    """The tags of a page, and the texts of its drawings."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1][0] == "text":
            self.texts.append(data)


def test_the_page_draws_methods_parts_and_sizes_and_asks_for_nothing_from_outside(saved: Path, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    assert torchport_main(["inspect", str(saved), "--html", str(path)]) == 0
    page = Page()
    page.feed(path.read_text(encoding="utf-8"))
    drawn = [t for t in page.texts if t.strip()]
    for text in ("x", "pair.0", "pair.1", "y", "count", "f32[batch, 4]", "addmm", "relu"):
        assert text in drawn
    assert any(text.startswith("p0 on interpreter, ") for text in drawn)
    tags = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert tags.count("b") == 1  # ours; that of the file's name is text
    assert not any({"src", "href", "onload"} & set(attributes) for _, attributes in page.tags)


BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), None)


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")
def test_a_browser_shows_the_page(saved: Path, tmp_path: Path) -> None:
    path, picture = tmp_path / "page.html", tmp_path / "page.png"
    assert torchport_main(["inspect", str(saved), "--html", str(path)]) == 0
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--window-size=900,900", f"--user-data-dir={tmp_path}/u"]
    shot = [str(BROWSER), *flags, f"--screenshot={picture}", path.as_uri()]
    subprocess.run(shot, check=True, capture_output=True, timeout=120)
    dom = subprocess.run([str(BROWSER), *flags, "--dump-dom", path.as_uri()], capture_output=True, timeout=120)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 20_000  # an empty page has some four thousand
    assert dom.stdout.decode().count("<rect") == path.read_text(encoding="utf-8").count("<rect") > 20


def test_boxes_stand_below_their_sources_and_beside_each_other() -> None:
    generator = numpy.random.default_rng(0)
    boxes = [
        Box((f"operator {i}",), "operator", "", tuple({int(j) for j in generator.integers(0, i, 2)} if i else ()))
        for i in range(200)
    ]
    width, height = place(boxes)
    for box in boxes:
        assert all(boxes[j].y < box.y for j in box.sources)
        assert 0 <= box.x - box.width / 2 <= box.x + box.width / 2 <= width
        assert 0 < box.y < height
    for a in boxes:
        for b in boxes:
            assert a is b or a.y != b.y or abs(a.x - b.x) >= (a.width + b.width) / 2


def test_the_runtime_runs_and_inspects_without_torch(saved: Path, arrays: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from torchport_runtime.command.app import main\n"
        f"code = main(['run', {str(saved)!r}, '--input', {str(arrays / 'all.npz')!r}])\n"
        f"sys.exit(code or main(['inspect', {str(saved)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert (done.returncode, done.stderr) == (0, "")
    assert "y: float32[5, 4]" in done.stdout


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("exported") / "m.pt2"
    torch.export.save(torch.export.export(nn.Sequential(nn.Linear(4, 2)).eval(), (torch.ones(3, 4),)), path)
    return path


def test_an_exported_program_is_lowered_by_a_command(
    exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "m.tport"
    assert torchport_main(["lower", str(exported), "--backend", "interpreter", "-o", str(target)]) == 0
    said = capsys.readouterr()
    assert "forward: 2 of 2 nodes in 1 parts run on interpreter" in said.out
    assert [line.split(" …")[0] for line in said.err.splitlines()] == [
        "reading",
        "lowering to interpreter",
        f"saving {target}",
    ]
    assert runtime_main(["run", str(target), "--input", "input=[[1,1,1,1],[0,0,0,0],[2,2,2,2]]"]) == 0
    assert "result: float32[3, 2]" in capsys.readouterr().out
    options = ["--options", '{"threads": 2}', "--fallback", "interpreter", "--json"]
    assert torchport_main(["lower", str(exported), "--backend", "interpreter", "-o", str(target), *options]) == 0
    about = json.loads(capsys.readouterr().out)
    assert about["methods"]["forward"]["options"] == {"threads": 2}
    assert about["fallback"] == "interpreter"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["{exported}.no", "--backend", "interpreter", "-o", "{tmp}/m.tport"], "there is no file"),
        (["{tmp}/text.pt2", "--backend", "interpreter", "-o", "{tmp}/m.tport"], "is no exported program"),
        (["{exported}", "--backend", "interpeter", "-o", "{tmp}/m.tport"], "Did you mean 'interpreter'?"),
        (["{exported}", "--backend", "interpreter", "-o", "{tmp}/no/m.tport"], "there is no folder"),
        (["{exported}", "--backend", "interpreter", "-o", "{tmp}/m.tport", "--options", "{{"], "no JSON"),
        (["{exported}", "--backend", "interpreter", "-o", "{tmp}/m.tport", "--options", "[]"], "an object is wanted"),
    ],
)
def test_what_cannot_be_lowered_is_said_and_nothing_is_written(
    given: list[str], message: str, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.pt2").write_text("hello", encoding="utf-8")
    assert torchport_main(["lower", *[g.format(exported=exported, tmp=tmp_path) for g in given]]) == 2
    assert message in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["text.pt2"]
