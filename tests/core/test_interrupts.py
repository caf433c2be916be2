"""Work on threads for which a caller waits: answers, errors, Ctrl-C, forks and the end."""

import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue

import pytest

from tests.support.processes import python
from upconv import interrupts
from upconv.errors import EngineError


def test_results_and_errors_come_back_from_another_thread() -> None:
    assert interrupts.call(divmod, 7, 2) == (3, 1)
    assert interrupts.call(threading.get_ident) != threading.get_ident()
    with pytest.raises(ZeroDivisionError, match="division"):
        interrupts.call(divmod, 7, 0)
    assert interrupts.call(interrupts.call, divmod, 7, 2) == (3, 1)


def test_a_thread_does_one_job_after_another() -> None:
    interrupts.call(int)
    assert len({interrupts.call(threading.get_ident) for _ in range(20)}) <= len(interrupts._busy)
    before = len(interrupts._busy)
    for _ in range(50):
        interrupts.call(int)
    assert len(interrupts._busy) == before


def test_many_callers_get_their_own_answers() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: interrupts.call(int, n), range(500))) == list(range(500))


class Kept:
    """An argument, or a result, that can be watched."""


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_is_kept_once_an_answer_has_come(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The other thread is held right after its answer, where a busy machine may leave it."""
    go_on = threading.Event()

    class Held(SimpleQueue):  # type: ignore[type-arg]
        def put(self, item: object, *_: object) -> None:
            super().put(item)
            del item
            go_on.wait(60)

    def job(argument: Kept) -> Kept:
        watched.append(weakref.ref(result := Kept()))
        if fails:
            raise ValueError(argument, result)
        return result

    watched = [weakref.ref(argument := Kept())]
    monkeypatch.setattr(interrupts, "SimpleQueue", Held)
    try:
        with suppress(ValueError):
            interrupts.call(job, argument)
        del argument
        gc.collect()
        assert [reference() for reference in watched] == [None, None]
    finally:
        go_on.set()


def test_no_thread_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(interrupts, "_idle", type(interrupts._idle)())
    monkeypatch.setattr(interrupts._thread, "start_new_thread", refuse)
    with pytest.raises(EngineError, match="No thread could be started: can't start new thread"):
        interrupts.call(int)


INTERRUPTED = """
from tests.support.interrupts import interrupted_everywhere
from upconv import interrupts
from upconv.engines.onednn import openmp

class Runtime:
    def get_threads(): return 1
    def set_threads(n): pass

def run():
    openmp.run(Runtime, 2, int)

openmp.processors = lambda: 8
for call in (lambda: interrupts.call(divmod, 7, 2), run):
    assert interrupted_everywhere(call) > 5
    for _ in range(3):
        call()
        assert interrupts.call(divmod, 7, 2) == (3, 1)
        interrupts.call(call)
"""


ENDING = """
import atexit, threading, time

@atexit.register
def last():
    try:
        interrupts.call(int)
    except errors.EngineError as error:
        print(error)

from upconv import errors, interrupts
interrupts.call(int)
threading.Thread(target=interrupts.call, args=(time.sleep, 0.2), daemon=True).start()
time.sleep(0.05)
interrupts.call(int)  # so that another thread is idle: Python 3.12 starts none at its end
atexit.register(lambda: print(interrupts.call(int)))
"""


@pytest.mark.parametrize(
    ("script", "printed"),
    [(INTERRUPTED, ""), (ENDING, "0\nThe interpreter is shutting down: no more work")],
    ids=["interrupted", "ending"],
)
def test_interrupts_and_the_end(script: str, printed: str) -> None:
    done = python(script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(printed)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_fork_has_threads_of_its_own() -> None:
    interrupts.call(int)
    child = os.fork()
    if not child:
        os._exit(interrupts.call(int, 7))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
