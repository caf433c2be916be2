"""Locks held across a fork, so that the child inherits none that another thread had taken."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, ExitStack
from typing import Any

importing = threading.RLock()
"""Held over imports on first use: a child whose parent was importing would wait for it for ever.

The tuning file is open under it too, as a fork must wait until SQLite has closed it. It is taken
before all others, as modules that are being imported bring locks of their own."""

_locks: list[AbstractContextManager[Any]] = []
_forking = threading.Lock()
_held = ExitStack()


def hold(lock: AbstractContextManager[Any]) -> None:
    """Hold a lock across every fork from now on; of nested locks, pass the inner one first."""
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
