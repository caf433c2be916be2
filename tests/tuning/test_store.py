"""The file of measurements: whatever is wrong with it costs a warning and a new measurement."""

import os
import sqlite3
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.processes import printed
from upconv.tuning import store
from upconv.tuning.store import TuningStore

GOOD = {"engine": "jit", "variant": "channels", "seconds": 0.5}
CEILINGS = {"flops": 1e11, "bandwidth": 2e10}

posix = pytest.mark.skipif(os.name != "posix", reason="links and pipes of POSIX")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuning.sqlite"


@contextmanager
def complaints() -> Iterator[list[str]]:
    """The warnings of a block, in order, once it has ended."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield found
    found += [str(warning.message) for warning in said]


def sql(path: Path, statement: str, *values: object) -> None:
    """A change to the file by somebody who is not the store."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement, values)


def test_what_is_remembered_is_found_by_another(path: Path) -> None:
    kept = TuningStore(path)
    kept.remember("winners", "a", GOOD)
    kept.remember("ceilings", "a", CEILINGS)
    for found in (kept, TuningStore(path)):
        assert found.find("winners", "a") == GOOD
        assert found.find("ceilings", "a") == CEILINGS
        assert found.find("winners", "b") is None
        assert [found.count(section) for section in ("winners", "ceilings", "others")] == [1, 1, 0]
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


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


# Damaged, or somebody else's: left alone ----------------------------------------------------------


@pytest.mark.parametrize("text", ["3", "[1]", "{", "null", None, b"\xff"])
def test_a_record_that_is_none_is_left_out(path: Path, text: str | bytes | None) -> None:
    TuningStore(path).remember("winners", "a", GOOD)
    TuningStore(path).remember("ceilings", "c", CEILINGS)
    sql(path, "UPDATE records SET record = ? WHERE key = 'a'", text)
    kept = TuningStore(path)
    with pytest.warns(RuntimeWarning, match="such records are ignored"):
        assert kept.find("winners", "a") is None
    assert kept.find("ceilings", "c") == CEILINGS  # what is right stays
    kept.remember("winners", "a", GOOD)
    assert TuningStore(path).find("winners", "a") == GOOD


def test_an_empty_file_is_an_empty_store(path: Path) -> None:
    path.write_bytes(b"")
    kept = TuningStore(path)
    assert kept.find("winners", "a") is None
    kept.remember("winners", "a", GOOD)
    assert TuningStore(path).find("winners", "a") == GOOD


def half_a_store(path: Path) -> None:
    TuningStore(path).remember("winners", "a", GOOD)
    path.write_bytes(path.read_bytes()[:1500])


FOREIGN = {
    "JSON": lambda path: path.write_bytes(b'{"name": "thesis"}'),
    "zeros": lambda path: path.write_bytes(b"\0" * 4096),
    "another database": lambda path: sql(path, "CREATE TABLE records (section, key, record)"),
    "half a store": half_a_store,
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_foreign_or_damaged_file_is_never_written(path: Path, kind: str) -> None:
    FOREIGN[kind](path)
    content, kept = path.read_bytes(), TuningStore(path)
    with complaints() as said:
        assert kept.find("winners", "a") is None
        kept.remember("winners", "a", GOOD)
        assert kept.find("winners", "a") == GOOD  # in this process
        kept.clear()
    assert path.read_bytes() == content
    assert [words.split("cannot be ")[1].split()[0] for words in said] == [
        "read", "written", "cleared",
    ]  # fmt: skip
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


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


# Not to be written --------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = TuningStore(tmp_path / "file" / "deeper" / "tuning.sqlite")
    with complaints() as said:
        kept.remember("winners", "a", GOOD)
        kept.remember("winners", "b", GOOD)
    assert ["lost when this process ends" in words for words in said] == [True]
    assert kept.find("winners", "a") == GOOD


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may do anything")
def test_without_permissions(path: Path) -> None:
    TuningStore(path).remember("winners", "a", GOOD)
    path.chmod(0)
    path.parent.chmod(0o500)
    try:
        kept = TuningStore(path)
        with complaints() as said:
            assert kept.find("winners", "a") is None
            kept.remember("winners", "a", GOOD)
    finally:
        path.parent.chmod(0o700)
    assert ["unable to open" in words for words in said] == [True, True]


def test_a_lock_that_is_held_for_long_is_not_waited_for_longer(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = TuningStore(path)
    kept.remember("winners", "a", GOOD)
    monkeypatch.setattr(store, "_LOCK_SECONDS", 0.05)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM records")  # not committed yet
        with pytest.warns(RuntimeWarning, match="cannot be written .*locked"):
            kept.remember("winners", "b", GOOD)
        database.rollback()
    assert kept.find("winners", "b") == GOOD
    assert TuningStore(path).count("winners") == 1


# Bounds and company -------------------------------------------------------------------------------


def test_the_oldest_go_beyond_the_bound(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_MAX_RECORDS", 3)
    kept = TuningStore(path)
    for key in "abcad":  # a is measured again, so b is the oldest
        kept.remember("winners", key, GOOD)
    found = TuningStore(path)
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


FORK = """
import os, signal, sqlite3, sys, threading, time
from pathlib import Path
from upconv.tuning.store import TuningStore
begun = threading.Event()
class Slow(sqlite3.Connection):
    def __exit__(self, *error):
        begun.set()
        time.sleep(0.3)
        return super().__exit__(*error)
connect = sqlite3.connect
sqlite3.connect = lambda *given, **more: connect(*given, factory=Slow, **more)
kept = TuningStore(Path(sys.argv[1]))
thread = threading.Thread(target=lambda: kept.remember("winners", "a", {}))
thread.start()
assert begun.wait(30)
child = os.fork()
if child == 0:
    signal.alarm(45)
    kept.remember("winners", "b", {})
    os._exit(0)
thread.join()
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_another_thread_writes_can_write(path: Path) -> None:
    """The child would inherit the lock of the file, and wait ten seconds at each use for nobody."""
    assert printed(FORK, path, flags=["error"]) == "0"
    assert TuningStore(path).count("winners") == 2


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import platformdirs

    monkeypatch.setenv("UPCONV_TUNING_FILE", str(tmp_path / "mine.sqlite"))
    monkeypatch.setenv("UPCONV_CACHE_DIR", str(tmp_path))
    assert store.tuning_file() == tmp_path / "mine.sqlite"
    monkeypatch.setenv("UPCONV_TUNING_FILE", " ")
    assert store.tuning_file() == tmp_path / "tuning.sqlite"
    monkeypatch.delenv("UPCONV_CACHE_DIR")
    assert store.tuning_file() == Path(platformdirs.user_cache_dir("upconv")) / "tuning.sqlite"
