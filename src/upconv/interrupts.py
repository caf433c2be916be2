"""Worker threads whose caller waits for them, and may stop waiting on Ctrl-C at any time.

Python raises `KeyboardInterrupt` in the main thread, between two instructions. A lock that Python
code acquires may then never be released, and the next thread would wait for it forever. Everything
in `threading` and `concurrent.futures` except `Lock` and `RLock` acquires locks in Python code.
Jobs and answers therefore use `SimpleQueue`, which is written in C: at worst, a signal leaves a
thread idle. At exit the interpreter waits for running jobs.
"""

from __future__ import annotations

import _thread
import atexit
import os
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock
from typing import Any, TypeVar, cast

from .errors import EngineError

T = TypeVar("T")
_Answer = list[Any]  # the result, and the error or None; emptied by the caller
_Job = tuple[Callable[..., Any], tuple[Any, ...], SimpleQueue[_Answer]]
_jobs = SimpleQueue[_Job]()
_idle = deque[None]()  # one entry for each thread without a job
_busy = deque[Lock]()  # each thread holds one while it works
_ended = False


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` on another thread, and return its result or raise its error.

    Ctrl-C ends the waiting, not the call. Raises `EngineError` if no thread can be started.
    """
    if _ended:
        raise EngineError("The interpreter is shutting down: no more work runs on other threads.")
    answer = SimpleQueue[_Answer]()
    try:
        _idle.pop()
    except IndexError:
        _start()
    _jobs.put((function, arguments, answer))
    reply = answer.get()
    result, error = reply
    reply.clear()  # the other thread may keep the list alive for a while
    if error is not None:
        raise error
    return cast(T, result)


def _start() -> None:
    try:
        _thread.start_new_thread(_work, (_jobs, _idle))
    except RuntimeError as error:
        raise EngineError(f"No thread could be started: {error}.") from None


def _work(jobs: SimpleQueue[_Job], idle: deque[None]) -> None:
    busy = Lock()
    _busy.append(busy)
    while True:
        _do(jobs.get(), busy, idle)


def _do(job: _Job, busy: Lock, idle: deque[None]) -> None:
    """Do one job; drop all references to it before answering its caller."""
    function, arguments, answer = job
    del job
    reply: _Answer = [None, None]
    with busy:
        if _ended:
            return  # the waiting caller is a thread that ends with the interpreter
        try:
            reply[0] = function(*arguments)
        except BaseException as raised:
            reply[1] = raised
    del function, arguments
    idle.append(None)  # first, so that the caller's next job finds this thread
    answer.put(reply)


def _end() -> None:
    """Wait for running jobs: a thread stopped inside native code aborts the process."""
    global _ended
    _ended = True
    for busy in list(_busy):
        busy.acquire()


def _begin_in_child() -> None:
    """Start afresh in the child of a fork, which has none of these threads."""
    global _jobs, _idle, _busy
    _jobs, _idle, _busy = SimpleQueue(), deque(), deque()


atexit.register(_end)
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_begin_in_child)
