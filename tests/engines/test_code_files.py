"""Machine code on disk: what is read is what was written for the same module, or nothing is."""

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.processes import printed
from upconv.engines import code_files

pytest.importorskip("llvmlite")

NAME, OTHER = code_files.name_of("module"), code_files.name_of("other module")
CODE = b"machine code" * 40

SUMS = """
import hashlib, sys, numpy as np, upconv
from upconv.engines.jit import compile
if sys.argv[1] == "read":
    def emitted(*_):
        raise AssertionError("it is generated again")
    compile._emitted = emitted
x, w = np.arange(480, dtype=np.float32).reshape(1, 8, 60) / 7, np.ones((8, 4, 4), np.float32) / 3
y = upconv.conv_transpose(x, w, stride=2, padding=1, engine="jit")
print(hashlib.sha256(y.tobytes()).hexdigest())
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that is used, which is not there yet."""
    monkeypatch.setenv("UPCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("UPCONV_CODE_CACHE", raising=False)
    return tmp_path / "compiled-code"


def test_another_process_reads_the_code_and_has_the_same_bits(tmp_path):
    where = {"UPCONV_CACHE_DIR": str(tmp_path)}
    first = printed(SUMS, "write", **where)
    files = {file: file.read_bytes() for file in (tmp_path / "compiled-code").iterdir()}
    assert files
    assert printed(SUMS, "read", **where) == first
    for file, contents in files.items():
        file.write_bytes(contents[:-1])
    assert printed(SUMS, "write", **where) == first  # it is generated again, and written
    assert {file: file.read_bytes() for file in (tmp_path / "compiled-code").iterdir()} == files


def test_the_name_tells_all_that_code_depends_on_apart():
    texts = [("a", "b"), ("ab", ""), ("b", "a"), ("a", "b", ""), ("a", "c")]
    assert len({code_files.name_of(*each) for each in texts}) == len(texts)


DAMAGES = {
    "empty": lambda contents: b"",
    "shorter than a digest": lambda contents: contents[:20],
    "truncated": lambda contents: contents[:-1],
    "longer": lambda contents: contents + b"\0",
    "changed code": lambda contents: contents[:-1] + bytes([contents[-1] ^ 1]),
    "changed digest": lambda contents: bytes([contents[0] ^ 1]) + contents[1:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_not_read(folder, damage):
    code_files.write(NAME, CODE)
    assert code_files.read(NAME) == CODE
    contents = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(DAMAGES[damage](contents))
    assert code_files.read(NAME) is None
    code_files.write(NAME, CODE)
    assert code_files.read(NAME) == CODE


def test_the_file_of_another_module_is_not_read(folder):
    code_files.write(NAME, CODE)
    (folder / NAME).rename(folder / OTHER)
    assert code_files.read(NAME) is code_files.read(OTHER) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such permissions")
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_others_may_write_to_is_not_used(folder, mode):
    code_files.write(NAME, CODE)
    folder.chmod(mode)
    assert code_files.read(NAME) is None
    code_files.write(OTHER, CODE)
    assert [file.name for file in folder.iterdir()] == [NAME]
    assert f"{folder} is writable by others, or not a folder" in code_files.fault()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such permissions")
def test_a_file_that_others_may_have_written_is_not_read(folder):
    code_files.write(NAME, CODE)
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600
    (folder / NAME).chmod(0o620)
    assert code_files.read(NAME) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no users like these")
def test_a_folder_of_another_user_is_not_used(folder, monkeypatch):
    user = os.geteuid()
    folder.mkdir()
    if user == 0:
        os.chown(folder, 1000, -1)
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    code_files.write(NAME, CODE)
    assert list(folder.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no users like these")
def test_root_creates_nothing_in_the_home_of_another_user(folder, monkeypatch):
    owner = os.stat_result
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    true = Path.stat

    def others(path, **how):
        facts = list(true(path, **how))
        facts[4] = 1000
        return owner(facts)

    monkeypatch.setattr(Path, "stat", others)
    code_files.write(NAME, CODE)
    assert not os.path.lexists(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such permissions")
def test_the_folder_is_for_the_user_alone(folder):
    code_files.write(NAME, CODE)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert code_files.description() == f"{folder}: 1 files, 512 B"
    assert code_files.fault() == ""


def test_a_file_in_place_of_the_folder_changes_no_call(folder):
    folder.write_bytes(b"my thesis")
    code_files.write(NAME, CODE)
    assert code_files.read(NAME) is None
    assert folder.read_bytes() == b"my thesis"
    assert f"{folder} is writable by others, or not a folder" in code_files.fault()


def test_a_link_in_place_of_the_folder_is_not_followed(folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    code_files.write(NAME, CODE)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(folder):
    code_files.write(NAME, CODE)
    (folder / NAME).unlink()
    os.mkfifo(folder / NAME, 0o600)
    assert code_files.read(NAME) is None


def test_a_process_without_a_home_directory_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UPCONV_CACHE_DIR", "~/.cache")
    code_files.write(NAME, CODE)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_an_existing_parent_ends_no_call(folder, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda _: False)  # as on a Windows drive that is missing
    code_files.write(NAME, CODE)


def test_the_cache_can_be_switched_off(folder, monkeypatch):
    monkeypatch.setenv("UPCONV_CODE_CACHE", "0")
    code_files.write(NAME, CODE)
    assert code_files.read(NAME) is None
    assert code_files.description().startswith("not kept: UPCONV_CODE_CACHE is 0")
    assert not folder.exists()


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "no space left"), KeyboardInterrupt()])
def test_what_stops_a_write_leaves_nothing(folder, monkeypatch, error):
    def interrupted(path, target):
        assert path.exists()
        raise error

    monkeypatch.setattr(Path, "replace", interrupted)
    if isinstance(error, OSError):
        code_files.write(NAME, CODE)
    else:
        with pytest.raises(KeyboardInterrupt):
            code_files.write(NAME, CODE)
    assert list(folder.iterdir()) == []


def test_the_oldest_files_are_deleted(folder, monkeypatch):
    monkeypatch.setattr(code_files, "_MAX_BYTES", 10 * (len(CODE) + 32))
    names = [f"{number:064x}" for number in range(40)]  # all begin with 00
    code_files.write(names[0], CODE)
    (folder / "a folder").mkdir()
    (folder / "thesis").write_bytes(b"mine" * 1000)
    for number, name in enumerate(names):
        code_files.write(name, CODE)
        os.utime(folder / name, (number, number))
        assert len(list(folder.iterdir())) <= 13
    assert (folder / "a folder").is_dir()
    assert (folder / "thesis").exists()
    left = [name for name in names if code_files.read(name) is not None]
    assert 7 <= len(left) <= 11
    assert left == names[-len(left) :]


def test_threads_read_whole_files_or_none(folder):
    codes = {code_files.name_of(str(i)): bytes([i]) * (9000 + i) for i in range(4)}

    def both(name):
        code_files.write(name, codes[name])
        assert code_files.read(name) in {None, codes[name]}

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(both, [*codes] * 100))
    assert {name: code_files.read(name) for name in codes} == codes
    assert sorted(file.name for file in folder.iterdir()) == sorted(codes)
