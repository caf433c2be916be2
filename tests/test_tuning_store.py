"""The file of measurements: whatever is wrong with it costs a warning and a new measurement."""

from __future__ import annotations

import json
import os
import re
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from processes import printed
from upconv.tuning import store
from upconv.tuning.store import TuningStore

GOOD = {"engine": "jit", "variant": "channels", "seconds": 0.5}
CEILINGS = {"flops": 1e11, "bandwidth": 2e10}

posix = pytest.mark.skipif(os.name != "posix", reason="links, pipes and locks of POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.json"


@contextmanager
def complaints() -> Iterator[list[str]]:
    """The warnings of a block, in order, once it has ended."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield found
    found += [str(warning.message) for warning in said]


def document(winners: object, **more: object) -> str:
    return json.dumps({"upconv tuning": 1, "winners": winners, **more})


def test_what_is_remembered_is_found_by_another(path: Path) -> None:
    kept = TuningStore(path)
    kept.remember("winners", "a", GOOD)
    kept.remember("ceilings", "a", CEILINGS)
    for found in (kept, TuningStore(path)):
        assert found.find("winners", "a") == GOOD
        assert found.find("ceilings", "a") == CEILINGS
        assert found.find("winners", "b") is None
        assert [found.count(section) for section in ("winners", "ceilings", "others")] == [1, 1, 0]
    assert {entry.name for entry in path.parent.iterdir()} <= {path.name, f".{path.name}.lock"}


def test_the_last_measurement_counts_and_other_processes_are_seen(path: Path) -> None:
    first, second = TuningStore(path), TuningStore(path)
    first.remember("winners", "a", GOOD)
    second.remember("winners", "b", GOOD)
    second.remember("winners", "b", {**GOOD, "seconds": 0.25})
    assert first.find("winners", "b") == {**GOOD, "seconds": 0.25}
    first.remember("winners", "c", GOOD)
    assert TuningStore(path).count("winners") == 3


def test_clearing_forgets_here_and_there(path: Path) -> None:
    kept = TuningStore(path)
    kept.remember("winners", "a", GOOD)
    kept.clear()
    assert kept.find("winners", "a") is None
    assert TuningStore(path).find("winners", "a") is None
    kept.clear()


# Damaged: started anew ----------------------------------------------------------------------------

WHOLE = document({"a": GOOD})

DAMAGED = {
    "truncated": WHOLE[:40],
    "no JSON": '{"upconv tuning": 1, "winners": {]',
    "NaN": WHOLE.replace("0.5", "NaN"),
    "infinite": WHOLE.replace("0.5", "-Infinity"),
    "deep": '{"upconv tuning": 1, "winners": ' + "[" * 200_000,
    "a long number": '{"upconv tuning": 1, "winners": ' + "9" * 5000 + "}",
    "no text": b'{"upconv tuning": 1, "winners": {"\xff\xfe": 3}}',
    "another schema": WHOLE.replace('ing": 1', 'ing": 2'),
    "a schema of another type": WHOLE.replace('ing": 1', 'ing": [1]'),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_started_anew(path: Path, name: str) -> None:
    content = DAMAGED[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    kept = TuningStore(path)
    with complaints() as said:
        assert kept.find("winners", "a") is None
        assert kept.find("winners", "a") is None
    (complaint,) = said
    assert re.search(r"tuning\.json' is .*; it is started anew", complaint)
    kept.remember("winners", "b", GOOD)
    assert TuningStore(path).find("winners", "b") == GOOD


RECORDS = {
    "a list": [GOOD],
    "a number": 3,
    "null": None,
    "a record that is none": {"a": 3},
    "an engine that is a list": {"a": {**GOOD, "engine": ["jit"]}},
    "a variant that is null": {"a": {**GOOD, "variant": None}},
    "true seconds": {"a": {**GOOD, "seconds": True}},
    "more seconds than a float has": {"a": {**GOOD, "seconds": 10**400}},
    "seconds that overflow": {"a": {**GOOD, "seconds": 1e308 * 10}},
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_that_is_none_is_left_out(path: Path, name: str) -> None:
    text = document(RECORDS[name], ceilings={"c": CEILINGS})
    path.write_text(text.replace("Infinity", "1e999"))
    kept = TuningStore(path)
    with pytest.warns(RuntimeWarning, match="such are left out"):
        assert kept.find("winners", "a") is None
    assert kept.find("ceilings", "c") == CEILINGS  # what is right stays


@pytest.mark.parametrize("content", [b"", b"\n", b"\0" * 4096])
def test_an_empty_file_is_an_empty_store(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    kept = TuningStore(path)
    assert kept.find("winners", "a") is None
    kept.remember("winners", "a", GOOD)
    assert TuningStore(path).find("winners", "a") == GOOD


# Somebody else's: left alone ----------------------------------------------------------------------


@pytest.mark.parametrize("content", [b'{"name": "thesis"}', b"\x89PNG", b"[1]", b"x" * (17 << 20)])
def test_a_foreign_file_is_never_written_over(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    kept = TuningStore(path)
    with complaints() as said:
        assert kept.find("winners", "a") is None
        kept.remember("winners", "a", GOOD)
        assert kept.find("winners", "a") == GOOD  # in this process
        kept.clear()
    assert path.read_bytes() == content
    assert [re.findall("read|written|cleared", words)[0] for words in said] == [
        "read", "written", "cleared",
    ]  # fmt: skip
    assert {entry.name for entry in path.parent.iterdir()} <= {path.name, f".{path.name}.lock"}


def test_a_huge_file_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with path.open("wb") as file:
        file.write(WHOLE.encode())
        file.truncate(1 << 40)  # a hole: reading it whole would take a terabyte
    with pytest.warns(RuntimeWarning, match="1099511627776 bytes, and at most"):
        assert TuningStore(path).find("winners", "a") is None


IN_ITS_PLACE = {
    "a directory": Path.mkdir,
    "a pipe, which is not waited for": lambda path: os.mkfifo(path),
    "a link to itself": lambda path: path.symlink_to(path),
}


@posix
@pytest.mark.parametrize("kind", IN_ITS_PLACE)
def test_what_is_no_file_is_left_alone(path: Path, kind: str) -> None:
    IN_ITS_PLACE[kind](path)
    kept = TuningStore(path)
    with complaints() as said:
        assert kept.find("winners", "a") is None
        kept.remember("winners", "a", GOOD)
    assert ["cannot be" in words for words in said] == [True, True]
    assert not path.is_file()
    assert kept.find("winners", "a") == GOOD


@posix
def test_a_link_is_replaced_and_its_target_kept(path: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.json"
    target.write_text(WHOLE)
    path.symlink_to(target)
    kept = TuningStore(path)
    assert kept.find("winners", "a") == GOOD
    kept.remember("winners", "b", GOOD)
    assert not path.is_symlink()
    assert target.read_text() == WHOLE
    assert TuningStore(path).count("winners") == 2


@posix
def test_a_link_in_place_of_the_lock_is_not_followed(path: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    path.with_name(f".{path.name}.lock").symlink_to(precious)
    with pytest.warns(RuntimeWarning, match="cannot be written"):
        TuningStore(path).remember("winners", "a", GOOD)
    assert not precious.exists()


# Not to be written --------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = TuningStore(tmp_path / "file" / "deeper" / "tuning.json")
    with complaints() as said:
        kept.remember("winners", "a", GOOD)
        kept.remember("winners", "b", GOOD)
    assert ["end with this process" in words for words in said] == [True]
    assert kept.find("winners", "a") == GOOD


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may do anything")
def test_without_permissions(path: Path) -> None:
    path.write_text(WHOLE)
    path.chmod(0)
    path.parent.chmod(0o500)
    try:
        kept = TuningStore(path)
        with complaints() as said:
            assert kept.find("winners", "a") is None
            kept.remember("winners", "a", GOOD)
    finally:
        path.parent.chmod(0o700)
    assert ["Permission denied" in words for words in said] == [True, True]


@pytest.mark.parametrize("place", ["open", "replace"])
def test_a_write_that_fails_leaves_the_old_file(
    path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    TuningStore(path).remember("winners", "a", GOOD)
    before = path.read_bytes()
    kept = TuningStore(path)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, place, full)
        with pytest.warns(RuntimeWarning, match="No space left"):
            kept.remember("winners", "b", GOOD)
    assert path.read_bytes() == before
    assert kept.find("winners", "b") == GOOD
    assert not list(path.parent.glob("*.tmp"))


def test_an_interrupted_write_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        TuningStore(path).remember("winners", "a", GOOD)
    assert not path.exists()
    assert not list(path.parent.glob("*.tmp"))


@posix
def test_a_lock_that_is_held_for_long_is_not_waited_for_longer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    monkeypatch.setattr(store, "_LOCK_SECONDS", 0.05)
    with path.with_name(f".{path.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        TuningStore(path).remember("winners", "a", GOOD)
    assert TuningStore(path).find("winners", "a") == GOOD


# Bounds and company -------------------------------------------------------------------------------


def test_the_oldest_go_beyond_the_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MOST_RECORDS", 3)
    kept = TuningStore(path)
    for key in "abcad":  # a is measured again, so b is the oldest
        kept.remember("winners", key, GOOD)
    for found in (kept, TuningStore(path)):
        assert [key for key in "abcd" if found.find("winners", key)] == ["a", "c", "d"]


WRITER = """
import sys
from pathlib import Path
from upconv.tuning import store
from upconv.tuning.store import TuningStore
store._LOCK_SECONDS = 600.0  # however busy the machine is
for i in range(40):
    # A new one each time: what one remembers itself would heal a loss.
    kept = TuningStore(Path(sys.argv[1]))
    record = {"engine": sys.argv[2], "variant": "", "seconds": 1.0}
    kept.remember("winners", f"{sys.argv[2]} {i}", record)
"""


@posix
def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    reader = TuningStore(path)
    with ThreadPoolExecutor(3) as pool, warnings.catch_warnings():
        warnings.simplefilter("error")  # a reader never sees a half-written file
        writers = [pool.submit(printed, WRITER, path, name, flags=["error"]) for name in "xyz"]
        while not all(writer.done() for writer in writers):
            reader.count("winners")
            time.sleep(0.001)
    assert [writer.result() for writer in writers] == ["", "", ""]
    assert TuningStore(path).count("winners") == 120


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import platformdirs

    monkeypatch.setenv("UPCONV_TUNING_FILE", str(tmp_path / "mine.json"))
    monkeypatch.setenv("UPCONV_CACHE_DIR", str(tmp_path))
    assert store.tuning_file() == tmp_path / "mine.json"
    monkeypatch.setenv("UPCONV_TUNING_FILE", " ")
    assert store.tuning_file() == tmp_path / "tuning.json"
    monkeypatch.delenv("UPCONV_CACHE_DIR")
    assert store.tuning_file() == Path(platformdirs.user_cache_dir("upconv")) / "tuning.json"
