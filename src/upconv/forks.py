"""Locks held across a fork, so that the child inherits no lock held by another thread."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, ExitStack
from typing import Any

importing = threading.RLock()
"""Lock held during lazy imports: a child forked in the middle of an import would wait forever.

The lock is also held while the tuning file is open, since a fork must wait until SQLite has closed
it. It is acquired before all others, since imported modules may register locks of their own."""

_locks: list[AbstractContextManager[Any]] = []
_forking = threading.Lock()
_held = ExitStack()


def hold(lock: AbstractContextManager[Any]) -> None:
    """Hold a lock across every later fork; of nested locks, register the inner one first."""
    _locks.append(lock)


def _before() -> None:
    _forking.acquire()
    _held.enter_context(importing)
    for lock in reversed(_locks):
        _held.enter_context(lock)


def _after() -> None:
    _held.close()
    _forking.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
