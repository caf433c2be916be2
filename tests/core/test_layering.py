"""The architecture holds: imports go down only, names are exported, files stay small."""

import ast
import gc
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import upconv
from tests.support.paths import ROOT
from tests.support.processes import printed

PACKAGE = ROOT / "src" / "upconv"
MODULES = sorted(PACKAGE.rglob("*.py"))

# The layers of docs/architecture.md: a module imports from lower layers only, never from its own.
# Files of one package may import each other, but not in a circle.
LAYERS = [
    {"errors", "_version", "signatures"},
    {"argument_checks", "installation", "documents"},
    {"geometry", "memory", "threads", "interrupts", "forks", "properties", "activations", "files"}
    | {"terminal"},
    {"problem", "subpixel", "stream_progress", "timing"},
    {"devices"},
    {"engines", "dialects", "keywords", "stream_bytes"},
    {"arrays", "engine_choice"},
    {"shape_checks", "primitives", "measuring"},
    {"tuning"},
    {"execution"},
    {"gradients", "roofline", "candidate_table", "front_end_reports"},
    {"network"},
    {"ops", "plans", "explanations", "normalization", "streaming"},
    {"testing", "torch", "onednn_graph", "onnx", "mxnet", "dask", "linear"},
    {"__init__"},
    {"cli"},
    {"__main__"},
]
LAYER = {name: layer for layer, names in enumerate(LAYERS) for name in names}

# What each engine's own third party is; nothing else outside the standard library but NumPy, except
# in the packages named here.
THIRD_PARTY = {
    "problem": {"ml_dtypes"},
    "engines": {"llvmlite", "platformdirs"},
    "files": {"platformdirs"},
    "cli": {"typer", "click", "threadpoolctl", "llvmlite", "torch", "onnx", "onnxruntime"}
    | {"openvino"},
    "torch": {"torch"},
    "dask": {"dask"},
    "linear": {"scipy"},
    "mxnet": {"onnx", "onnx_ir", "onnxruntime"},
    "onnx": {"onnx", "onnx_ir", "onnxruntime", "openvino", "jinja2", "ml_dtypes"} | {"google"},
    "__main__": {"typer"},
}


def top(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def module(path: Path) -> str:
    """The dotted name a file is imported by."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(path: Path) -> ast.Module:
    gc.disable()  # collections would take twice as long as the parser
    try:
        return ast.parse(path.read_text())
    finally:
        gc.enable()


@cache
def imports(path: Path) -> set[str]:
    """Absolute names of all modules a file imports, wherever in it, type checking included."""
    package = ["upconv", *path.relative_to(PACKAGE).parts[:-1]]
    found = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{stem}.{alias.name}" for alias in node.names}
    return found


def test_no_file_imports_itself_in_a_circle() -> None:
    """Neither at its top, nor inside a function, nor for types alone."""
    files = {module(path): path for path in MODULES}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        met = {other if other in files else other.rpartition(".")[0] for other in imports(path)}
        graph[name] = met & files.keys() - {name}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def wrong(complaint: Callable[[Path], Iterable[str]]) -> list[str]:
    """What a rule has to say about all files of the package."""
    return [
        f"{path.relative_to(PACKAGE)}: {found}" for path in MODULES for found in complaint(path)
    ]


def test_imports_go_to_lower_layers_only() -> None:
    def upwards(path: Path) -> Iterator[str]:
        own = top(path)
        if own not in LAYER:
            yield "a new package needs a layer here and in docs/architecture.md"
            return
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "upconv" or len(parts) == 1:
                continue
            other = parts[1] if parts[1] in LAYER else "__init__"
            if own != "__init__" and other != own and LAYER[other] >= LAYER[own]:
                yield f"must not import {name}"

    assert not wrong(upwards)


def test_properties_computed_once_take_no_lock() -> None:
    """`functools.cached_property` takes one before Python 3.12; `upconv.properties` takes none."""
    assert not [module(path) for path in MODULES if "functools.cached_property" in imports(path)]


def test_third_parties_are_imported_only_where_they_belong() -> None:
    def elsewhere(path: Path) -> set[str]:
        allowed = {"numpy", "upconv", *THIRD_PARTY.get(top(path), ()), *sys.stdlib_module_names}
        return {name.split(".")[0] for name in imports(path)} - allowed

    assert not wrong(elsewhere)


def test_files_have_400_lines_and_function_bodies_50_at_most() -> None:
    def long(path: Path) -> Iterator[str]:
        if len(path.read_text().splitlines()) > 400:
            yield "more than 400 lines"
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and node.end_lineno - body[0].lineno + 1 > 50:
                    yield f"{node.name} has more than 50 lines"

    assert not wrong(long)


def test_files_are_named_by_what_they_hold() -> None:
    def nameless(path: Path) -> Iterator[str]:
        named_by_mxnet = path.parent.name == "mxnet" and path.stem == "test_utils"
        if not named_by_mxnet and re.search(r"util|helper|common|misc|\dd", path.stem):
            yield "a name that says nothing"

    assert not wrong(nameless)


@pytest.mark.peers
def test_the_public_names_are_all_there_and_no_more() -> None:
    visible = {
        name
        for name, value in vars(upconv).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("upconv")
    }
    assert visible <= set(upconv.__all__) | {"import_module"}
    for name in upconv.__all__:
        assert getattr(upconv, name) is not None
        assert name in dir(upconv)
    assert upconv.__all__ == sorted(upconv.__all__)
    with pytest.raises(AttributeError, match="'upconv' has no attribute 'deconv'"):
        _ = upconv.deconv


def test_importing_upconv_loads_numpy_and_the_standard_library_only() -> None:
    loaded = printed(
        "import numpy, sys; before = set(sys.modules); import upconv;"
        "print(*{name.split('.')[0] for name in set(sys.modules) - before})"
    ).split()
    assert set(loaded) <= {"numpy", "upconv", *sys.stdlib_module_names}
    assert "upconv" in loaded


def test_importing_upconv_adds_little_to_numpy(tmp_path: Path) -> None:
    """Under 60 ms of processor time, or nine tenths of NumPy's own on a slow machine; compiled
    already, as what is installed is."""
    code = (
        "import time; start = time.process_time(); import numpy; middle = time.process_time();"
        "import upconv; print(middle - start, time.process_time() - middle)"
    )
    compiled = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    bases, times = [], []
    for _ in range(6):  # the first one compiles, and a busy machine may disturb others
        base, own = map(float, printed(code, **compiled).split())
        bases.append(base)
        times.append(own)
        if min(times) < max(0.06, 0.9 * min(bases)):
            return
    pytest.fail(f"upconv took {times} s, NumPy {bases} s")


def test_calls_do_not_load_masked_arrays() -> None:
    """To ask whether `out` is one would load numpy.ma: 8 ms of the first call with an `out`."""
    loaded = printed(
        "import numpy as np, sys; before = set(sys.modules);"  # NumPy 1.26 has loaded it itself
        "import upconv; x, w = np.ones((1, 2, 5)), np.ones((2, 3, 3));"
        "y = upconv.conv_transpose(x, w); upconv.conv_transpose(x, w, out=y);"
        "upconv.plan(x.shape, w)(x, out=y); print({'numpy.ma'} & (set(sys.modules) - before))"
    )
    assert loaded == "set()"


def test_the_version_is_in_one_place() -> None:
    from importlib.metadata import version

    assert version("upconv") == upconv.__version__
    assert upconv.__version__ in (ROOT / "CHANGELOG.md").read_text()


def test_the_layers_are_the_ones_in_the_architecture_page() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    table = dict(re.findall(r"^\| (\d+) \| (.*?) \|", page, re.MULTILINE))
    layers = [names - {"_version", "__init__", "__main__"} for names in LAYERS]
    told = {int(number): set(re.findall(r"`(\w+)`", names)) for number, names in table.items()}
    assert told == dict(enumerate(names for names in layers if names))
