"""The command that installs an extra, by where upconv came from; front ends on first use."""

import json
import re
from importlib import metadata
from importlib.util import find_spec
from itertools import product

import pytest

import upconv
from tests.support.paths import ROOT
from tests.support.processes import printed
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


LIBRARIES = {"dask": "dask", "linear": "scipy", "onnx": "onnx_ir", "torch": "torch"}
"""Of the front ends that need one."""


def test_a_front_end_without_its_library_names_the_command():
    uses = "upconv.{0}", "from upconv import {0}", "import upconv.{0}"
    code = f"""
import sys
sys.modules.update(dict.fromkeys({[*LIBRARIES.values()]}))
import upconv
for name in {[*LIBRARIES]}:
    for use in {uses}:
        try:
            exec(use.format(name))
        except upconv.EngineMissing as missing:
            print(missing)
"""
    told = [*product(LIBRARIES, uses)]
    for message, (name, _) in zip(printed(code).splitlines(), told, strict=True):
        command = install_command({"linear": "science"}.get(name, name))
        assert re.fullmatch(rf"upconv\.{name} needs .*: {re.escape(command)}", message)


def test_help_and_dir_without_the_optional_libraries():
    """`inspect.getmembers`, which help() asks, lets no error but an AttributeError pass."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({[*LIBRARIES.values()]}))\n"
        "import inspect, upconv; print(*(name for name, _ in inspect.getmembers(upconv)))"
    )
    names = printed(code).split()
    assert not {*names} & {*LIBRARIES}
    assert {"conv_transpose", "mxnet", "onednn_graph", "testing"} < {*names}


@pytest.mark.peers
def test_dir_shows_what_is_public_and_nothing_else():
    installed = {name for name, library in LIBRARIES.items() if find_spec(library)}
    front_ends = {"mxnet", "onednn_graph", *installed}
    assert {*dir(upconv)} == {*upconv.__all__, "geometry", *front_ends}
    for name in ("dialects", "streaming", "testing", *front_ends):
        package = getattr(upconv, name)
        assert dir(package) == sorted(package.__all__), name
