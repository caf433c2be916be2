"""Finding libdnnl: the order of places, what is said where there is none, and what it is asked."""

import sys
from pathlib import Path

import pytest

from tests.support import processes
from upconv.engines.onednn import library
from upconv.engines.onednn.abi import Handle
from upconv.errors import EngineError, EngineMissing
from upconv.installation import install_command


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch):
    """Whatever was found is looked for anew, and what is found is forgotten again."""
    library._found.cache_clear()
    yield monkeypatch
    library._found.cache_clear()


class Wheel:
    def __init__(self, *files: str) -> None:
        self.files = [File(name) for name in files]


class File:
    def __init__(self, path: str) -> None:
        self.name, self._path = Path(path).name, path

    def locate(self) -> str:
        return self._path


def test_the_variable_decides_alone(forgetful: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forgetful.setenv("UPCONV_ONEDNN_PATH", str(tmp_path / "libdnnl.so.3"))
    with pytest.raises(EngineMissing) as caught:
        library.runtime()
    said = str(caught.value)
    assert "UPCONV_ONEDNN_PATH names no libdnnl" in said
    assert str(tmp_path) in said
    assert said.endswith(install_command("onednn"))
    assert "the wheel" not in said


def test_a_variable_of_spaces_is_none(forgetful: pytest.MonkeyPatch) -> None:
    forgetful.delenv("UPCONV_ONEDNN_PATH", raising=False)
    usual = library.runtime()
    library._found.cache_clear()
    forgetful.setenv("UPCONV_ONEDNN_PATH", "  ")
    assert library.runtime().version == usual.version


def test_what_is_no_library_of_this_kind_is_told(
    forgetful: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = tmp_path / "libdnnl.so.3"
    text.write_text("not a library")
    for path in (text, tmp_path, "libm.so.6"):
        forgetful.setenv("UPCONV_ONEDNN_PATH", str(path))
        with pytest.raises(EngineMissing):
            library.runtime()


@pytest.mark.parametrize("version", [(2, 7, 3), (4, 0, 0)])
def test_another_version_is_not_taken(forgetful: pytest.MonkeyPatch, version) -> None:
    class Other:
        def __init__(self, path: str) -> None:
            self.path, self.version = path, version

    forgetful.setattr(library, "Library", Other)
    with pytest.raises(EngineMissing, match=rf"is version {version[0]}\.\d\.\d, not version 3"):
        library.runtime()


def test_places_are_looked_at_in_order(forgetful: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wheels = {"onednn-cpu-gomp": Wheel("/w/libdnnl.so", "/w/libdnnl.so.3")}

    def distribution(name: str) -> Wheel:
        if name not in wheels:
            raise library.metadata.PackageNotFoundError(name)
        return wheels[name]

    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libdnnl.so.3").touch()
    forgetful.setattr(library.metadata, "distribution", distribution)
    forgetful.setattr(library.sys, "prefix", str(tmp_path))
    places = list(library._places())
    assert [source for source, _ in places[:2]] == ["the wheel onednn-cpu-gomp", "this environment"]
    assert [path for _, path in places[:2]] == ["/w/libdnnl.so.3", f"{tmp_path}/lib/libdnnl.so.3"]
    assert places[-1] == ("the system", "libdnnl.so.3")


def test_without_any_the_message_says_how_to_get_one(forgetful: pytest.MonkeyPatch) -> None:
    forgetful.setattr(library, "_places", lambda: iter([("the system", "/nowhere/libdnnl.so.3")]))
    with pytest.raises(EngineMissing) as caught:
        library.runtime()
    assert "upconv finds no usable libdnnl.so.3. the system: " in str(caught.value)
    assert str(caught.value).endswith(install_command("onednn"))


def test_importing_the_package_loads_no_library() -> None:
    code = (
        "import upconv, sys; from pathlib import Path;"
        "print('libdnnl' in Path('/proc/self/maps').read_text())"
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("loaded libraries are read from /proc")
    assert processes.printed(code) == "False"


def test_doctor_says_which_was_found() -> None:
    pytest.importorskip("typer")
    done = processes.ran("doctor")
    line = next(line for line in done.stdout.decode().splitlines() if line.startswith("libdnnl"))
    try:
        found = library.runtime()
    except EngineMissing:
        assert install_command("onednn") in line
    else:
        assert found.library.path in line
        assert found.version in line
        assert "self-test: " in line


def test_doctor_says_how_to_get_one(tmp_path: Path) -> None:
    pytest.importorskip("typer")
    done = processes.ran("doctor", env={"UPCONV_ONEDNN_PATH": str(tmp_path / "none.so")})
    line = next(line for line in done.stdout.decode().splitlines() if line.startswith("libdnnl"))
    assert line.endswith(install_command("onednn"))


class TestHandles:
    def test_are_destroyed_once(self) -> None:
        gone: list[int] = []
        handle = Handle(64, gone.append)
        assert handle.address == 64
        handle.close()
        handle.close()
        del handle
        assert gone == [64]

    def test_are_destroyed_when_forgotten(self) -> None:
        gone: list[int] = []
        Handle(64, gone.append)
        assert gone == [64]

    def test_raise_once_closed(self) -> None:
        handle = Handle(64, lambda address: None)
        handle.close()
        with pytest.raises(EngineError, match="closed"):
            _ = handle.address
