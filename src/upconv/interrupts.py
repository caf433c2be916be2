"""Threads that work while their caller waits, which Ctrl-C may end at any time.

Python raises `KeyboardInterrupt` in the main thread, between two instructions. A lock that is taken
by a function of Python's own can be left taken there, and all of `threading` and
`concurrent.futures` but `Lock` and `RLock` take theirs so: the next one to ask waits for ever. So
jobs and answers go through `SimpleQueue`, which is written in C, and what a signal can still do is
leave a thread idle. At the interpreter's end the work under way is waited for.
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
_idle = deque[None]()  # one entry for each thread that nobody counts on
_busy = deque[Lock]()  # each thread holds one while it works
_ended = False


def call(function: Callable[..., T], *arguments: Any) -> T:
    """Call `function` on another thread, and return its result or raise what it raises.

    Ctrl-C ends the waiting, not the call. Raises `EngineError` where there is no thread to be had.
    """
    if _ended:
        raise EngineError("The interpreter is ending: nothing runs on other threads any more.")
    answer = SimpleQueue[_Answer]()
    try:
        _idle.pop()
    except IndexError:
        _start()
    _jobs.put((function, arguments, answer))
    reply = answer.get()
    result, error = reply
    reply.clear()  # the other thread may hold it for a while yet
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
    """Do one job, of which nothing is kept from the moment on when its caller has the answer."""
    function, arguments, answer = job
    del job
    reply: _Answer = [None, None]
    with busy:
        if _ended:
            return  # its caller is a thread that ends with the interpreter
        try:
            reply[0] = function(*arguments)
        except BaseException as raised:
            reply[1] = raised
    del function, arguments
    idle.append(None)  # first, so that the caller's next job finds this thread
    answer.put(reply)


def _end() -> None:
    """Wait for the work under way: a thread that is ended in foreign code ends the process."""
    global _ended
    _ended = True
    for busy in list(_busy):
        busy.acquire()


def _begin_in_child() -> None:
    """No thread comes along into the child of a fork."""
    global _jobs, _idle, _busy
    _jobs, _idle, _busy = SimpleQueue(), deque(), deque()


atexit.register(_end)
if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_begin_in_child)
