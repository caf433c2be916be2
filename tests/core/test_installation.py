"""The command that installs an extra, by where upconv came from; front ends on first use."""

import json
import re
from importlib import metadata

import pytest

import upconv
from tests.support.paths import ROOT
from tests.support.processes import printed, python
from upconv.installation import install_command

COMMIT = "0123456789abcdef0123456789abcdef01234567"

COMMANDS = {
    "a release": (None, "pip install 'upconv[onnx]'"),
    "an editable checkout": (
        {"url": "file:///home/me/up%20conv", "dir_info": {"editable": True}},
        "pip install -e '/home/me/up conv[onnx]'",
    ),
    "a checkout": (
        {"url": "file:///home/me/upconv", "dir_info": {}},
        "pip install '/home/me/upconv[onnx]'",
    ),
    "a repository": (
        {
            "url": "https://example.org/upconv.git",
            "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": COMMIT},
        },
        f"pip install 'upconv[onnx] @ git+https://example.org/upconv.git@{COMMIT}'",
    ),
    "a wheel": (
        {"url": "file:///tmp/upconv-0.1-py3-none-any.whl", "archive_info": {}},
        "pip install 'upconv[onnx] @ file:///tmp/upconv-0.1-py3-none-any.whl'",
    ),
}


@pytest.mark.parametrize("origin", COMMANDS)
def test_the_command_is_for_where_upconv_came_from(origin, tmp_path, monkeypatch):
    record, command = COMMANDS[origin]
    if record is not None:
        (tmp_path / "direct_url.json").write_text(json.dumps(record))
    installed = metadata.Distribution.at(tmp_path)
    monkeypatch.setattr(metadata, "distribution", lambda name: installed)
    assert install_command("onnx") == command


def test_the_command_where_pip_knows_no_upconv(monkeypatch):
    def nothing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", nothing)
    assert install_command("onnx") == "pip install 'upconv[onnx]'"


def test_nothing_names_a_release_that_there_is_none_of():
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*")]
    for file in (*files, ROOT / "README.md"):
        if file.is_file() and file.name != "installation.py":
            assert not re.search(r"pip install ['\"]?upconv", file.read_text()), file


FRONT_ENDS = {
    "dask": ("dask", "conv_transpose"),
    "linear": ("scipy", "deconvolve"),
    "mxnet": ("", "load"),
    "onednn_graph": ("", "convtranspose"),
    "onnx": ("onnx_ir", "optimize"),
    "torch": ("torch", "accelerate"),
}


@pytest.mark.peers
@pytest.mark.parametrize("name", FRONT_ENDS)
def test_a_front_end_is_there_after_import_upconv(name):
    library, function = FRONT_ENDS[name]
    if library:
        pytest.importorskip(library)
    code = (
        f"import upconv; assert {name!r} in dir(upconv); print(upconv.{name}.{function}.__name__)"
    )
    assert printed(code) == function


@pytest.mark.parametrize("name", [name for name, (library, _) in FRONT_ENDS.items() if library])
@pytest.mark.parametrize("use", ["upconv.{0}", "from upconv import {0}", "import upconv.{0}"])
def test_a_front_end_without_its_library_names_the_command(name, use):
    library, _ = FRONT_ENDS[name]
    code = f"import sys; sys.modules[{library!r}] = None\nimport upconv\n{use.format(name)}"
    done = python(code)
    extra = {"linear": "science"}.get(name, name)
    assert re.search(rf"EngineMissing: upconv.{name} needs .*: ", done.stderr)
    assert done.stderr.rstrip().endswith(install_command(extra))


def test_help_and_dir_without_the_optional_libraries():
    """`inspect.getmembers`, which help() asks, lets no error but an AttributeError pass."""
    hidden = [library for library, _ in FRONT_ENDS.values() if library]
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden}))\n"
        "import inspect, upconv; print(*(name for name, _ in inspect.getmembers(upconv)))"
    )
    names = printed(code).split()
    assert not {*names} & {"dask", "linear", "onnx", "torch"}
    assert {"conv_transpose", "mxnet", "onednn_graph", "testing"} < {*names}


@pytest.mark.peers
def test_dir_shows_what_is_public_and_nothing_else():
    assert {*upconv.__all__} <= {*dir(upconv)} <= {*upconv.__all__, "geometry", *FRONT_ENDS}
    packages = [upconv.dialects, upconv.mxnet, upconv.onednn_graph, upconv.streaming]
    packages += [getattr(upconv, name) for name in dir(upconv) if name in FRONT_ENDS]
    for package in (*packages, upconv.testing):
        assert dir(package) == sorted(package.__all__), package.__name__
