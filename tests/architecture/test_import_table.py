"""Who imports whom: the table of ARCHITECTURE.md, held over every module of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

from architecture.import_table import Import, cycles, imports_of, layer_of, layer_violations, modules_of
from architecture.violations import none_of

ROOT = Path(__file__).parents[2]
PACKAGE = "torchport"
MODULES = {name: file.relative_to(ROOT) for name, file in modules_of(ROOT / "src").items()}
IMPORTS = imports_of({name: ROOT / file for name, file in MODULES.items()})

_GROUND = frozenset({"errors", "config", "metrics"})
_BELOW_RUNTIME = _GROUND | {"ir", "backend"}
_BELOW_DOORS = _BELOW_RUNTIME | {"runtime"}
_BELOW_DISTRIBUTED = _BELOW_DOORS | {"lazy", "aot"}
_BELOW_CONFORMANCE = _BELOW_DISTRIBUTED | {"distributed"}
_BELOW_DEBUG = _BELOW_CONFORMANCE | {"conformance"}
_BELOW_API = _BELOW_DEBUG | {"debug"}

ALLOWED = {
    "errors": frozenset[str](),
    "config": frozenset({"errors"}),
    "metrics": frozenset({"errors", "config"}),
    "ir": _GROUND,
    "backend": _GROUND | {"ir"},
    "runtime": _BELOW_RUNTIME,
    "lazy": _BELOW_DOORS,
    "aot": _BELOW_DOORS,
    "distributed": _BELOW_DISTRIBUTED,
    "conformance": _BELOW_CONFORMANCE,
    "debug": _BELOW_DEBUG,
    # The public API, above all but the command; it loads the (empty) package of the backends before a function of
    # its name.
    "": _BELOW_API | {"backends"},
    "cli": _BELOW_API | {""},
    "__main__": frozenset({"cli"}),
    "integrations": _BELOW_API | {""},
    "backends": _BELOW_RUNTIME,
    "backends.*": _BELOW_RUNTIME,  # found by entry point, as a stranger's; nothing of ours imports one
}
"""Layer → the layers it may import, besides itself."""

TYPE_CHECKING_EXCEPTIONS: dict[tuple[str, str], str] = {}
"""(importer, imported) → why a name that only the type checker sees may come from a higher layer."""

HOMES = {
    "jax": "backends.xla",
    "jaxlib": "backends.xla",
    "openvino": "backends.openvino",
    "onnx": "backends.onnxruntime",
    "onnxruntime": "backends.onnxruntime",
    "lightning": "integrations",
    "transformers": "integrations",
}
"""Package of somebody else → the one folder that may import it."""


def foreign_violations(imports: list[Import]) -> list[str]:
    """Imports of a backend's own package outside its folder, or as soon as the folder itself is imported."""
    found = []
    for i in imports:
        home = HOMES.get(i.imported.partition(".")[0])
        if home is None or i.type_checking:
            continue
        if layer_of(i.importer, PACKAGE) != home:
            found.append(f"{i}: only {home} may")
        elif i.importer == f"{PACKAGE}.{home}" and not i.in_function:
            found.append(f"{i}: on import of the folder, which happens before anybody has asked for this backend")
    return found


def test_every_module_is_read() -> None:
    assert {"torchport", "torchport.errors", "torchport.backend.interface"} <= MODULES.keys()


def test_no_layer_imports_a_higher_one() -> None:
    judged = [i for i in IMPORTS if not (i.type_checking and (i.importer, i.imported) in TYPE_CHECKING_EXCEPTIONS)]
    none_of(layer_violations(judged, PACKAGE, ALLOWED))


def test_every_listed_exception_is_needed() -> None:
    forbidden = {
        (i.importer, i.imported) for i in IMPORTS if i.type_checking and layer_violations([i], PACKAGE, ALLOWED)
    }
    assert set() == TYPE_CHECKING_EXCEPTIONS.keys() - forbidden


def test_there_is_no_import_cycle() -> None:
    none_of(cycles(IMPORTS, MODULES))


def test_a_backends_package_is_imported_in_its_folder_only() -> None:
    none_of(foreign_violations(IMPORTS))


class TestTheCheckItself:
    """Each kind of violation, in a small package made for it."""

    @staticmethod
    def read(folder: Path, files: dict[str, str]) -> tuple[list[Import], dict[str, Path]]:
        for name, text in files.items():
            file = folder / "torchport" / f"{name}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        modules = modules_of(folder)
        return imports_of(modules), modules

    @pytest.mark.parametrize(
        "line",
        [
            "import torchport.lazy.kernels",
            "from torchport.lazy import kernels",
            "from torchport.lazy.kernels import add",
            "from ..lazy import kernels",
            "def f():\n    from torchport.lazy import kernels",
            "if TYPE_CHECKING:\n    import torchport.lazy.kernels",
            "importlib.import_module('torchport.lazy.kernels')",
        ],
    )
    def test_finds_an_upward_import_however_it_is_written(self, tmp_path: Path, line: str) -> None:
        imports, _ = self.read(tmp_path, {"ir/node": "\n" + line, "lazy/kernels": ""})
        (violation,) = layer_violations(imports, PACKAGE, ALLOWED)
        place = line.count("\n") + 2
        assert f"{tmp_path}/torchport/ir/node.py:{place}: torchport.ir.node imports torchport.lazy.kernels" in violation
        assert "'ir' may import config, errors, metrics" in violation

    def test_finds_an_import_of_the_public_api_from_below(self, tmp_path: Path) -> None:
        imports, _ = self.read(tmp_path, {"lazy/kernels": "from torchport import sync"})
        assert 1 == len(layer_violations(imports, PACKAGE, ALLOWED))

    def test_finds_one_door_importing_the_other(self, tmp_path: Path) -> None:
        imports, _ = self.read(tmp_path, {"lazy/a": "import torchport.aot.b", "aot/b": "import torchport.lazy.a"})
        assert 2 == len(layer_violations(imports, PACKAGE, ALLOWED))

    def test_finds_one_backend_importing_another(self, tmp_path: Path) -> None:
        imports, _ = self.read(tmp_path, {"backends/xla/a": "import torchport.backends.iree.b", "backends/iree/b": ""})
        assert 1 == len(layer_violations(imports, PACKAGE, ALLOWED))

    def test_finds_a_layer_that_the_table_lacks(self, tmp_path: Path) -> None:
        imports, _ = self.read(tmp_path, {"extras/a": "import torchport.errors", "errors": ""})
        (violation,) = layer_violations(imports, PACKAGE, ALLOWED)
        assert "'extras' is not in the table" in violation

    def test_lets_a_downward_import_pass(self, tmp_path: Path) -> None:
        imports, _ = self.read(tmp_path, {"ir/node": "import torch\nfrom torchport import errors", "errors": ""})
        assert [] == layer_violations(imports, PACKAGE, ALLOWED)

    def test_finds_a_cycle_that_a_function_hides_and_shows_the_way_round(self, tmp_path: Path) -> None:
        imports, modules = self.read(
            tmp_path,
            {
                "ir/a": "from torchport.ir import b",
                "ir/b": "from torchport.ir.c import x",
                "ir/c": "def f():\n    import torchport.ir.a",
            },
        )
        (cycle,) = cycles(imports, modules)
        assert "c.py:2: torchport.ir.c imports torchport.ir.a" in cycle

    def test_an_import_for_the_type_checker_makes_no_cycle(self, tmp_path: Path) -> None:
        imports, modules = self.read(
            tmp_path, {"ir/a": "import torchport.ir.b", "ir/b": "if typing.TYPE_CHECKING:\n    import torchport.ir.a"}
        )
        assert [] == cycles(imports, modules)

    def test_finds_a_backends_package_outside_its_folder_or_too_early(self, tmp_path: Path) -> None:
        imports, _ = self.read(
            tmp_path,
            {
                "runtime/run": "import jax.numpy",
                "backends/xla/__init__": "from jax import jit",
                "backends/xla/compile": "import jax",
            },
        )
        outside, early = sorted(foreign_violations(imports), key=lambda text: "only" not in text)
        assert "torchport.runtime.run imports jax.numpy: only backends.xla may" in outside
        assert "before anybody has asked" in early
