"""Keeping helper threads off the leader's processor.

Linux tends to wake a thread on its waker's processor, which is about to be busy. Virtual machines
make it worse: a processor that the host has put to sleep does not look idle there, or the kernel
deliberately packs threads that have little to do. Such a helper is too late for any run shorter
than a scheduler tick (4 ms). Measured with 2 processors under KVM (Linux 6.18, November 2026,
benchmarks/fork_join.py), for runs of 240 us after 1 ms of sleep: without this file a helper joined
17 % of the runs, which took 241 us; with it, a helper joined all runs, which took 138 us.

So a helper removes the latest leader's processor from the set that it may run on. It does so before
it sleeps, because Linux chooses a processor when it wakes the helper, and when it polls on the
leader's processor. That takes one or two system calls if the leader has moved, and none otherwise.

    NOW         the processors that this thread may run on
    ASSIGNED    the processors that this file has set
    PERMITTED   the processors that other code permits: NOW, if other code has changed it since

If no processor would be left, the system refuses and the set does not change.
"""

from __future__ import annotations

from typing import NamedTuple

from .emit import Function, Module, signature
from .values import I64, Value

_SET = 128  # bytes of a processor set; a kernel with more than 1024 processors refuses
_NOW, _ASSIGNED, _PERMITTED, _AVOIDED = 0, _SET, 2 * _SET, 3 * _SET
_NBYTES = 3 * _SET + 8
_NOBODY = -1


class Affinity(NamedTuple):
    """The names by which compiled code calls sched_getcpu, sched_getaffinity, sched_setaffinity."""

    current: str
    read: str
    write: str


def current(f: Function, affinity: Affinity) -> Value:
    """Emit code that returns the number of the processor on which it runs."""
    return f.convert("sext", f.call_foreign(affinity.current), I64)


def new_state(f: Function) -> Value:
    """Return the state of a new helper, which avoids no processor and has changed no set."""
    state = f.scratch(_NBYTES)
    with f.loop(0, _AVOIDED // 8) as loop:
        f.store(f.integer(0), f.at(state, loop.index, I64))
    f.store(f.integer(_NOBODY), state + _AVOIDED)
    return state


def emit_keep_away(module: Module, affinity: Affinity) -> None:
    """Emit `keep_away`, which moves this thread off a processor if there is another."""
    with module.function("keep_away", signature("place* processor"), exported=False) as f:
        avoided = f["place"] + _AVOIDED
        moved = f.compare("ne", f["processor"], f.load(I64, avoided))
        # An unsigned comparison also rejects -1, the value before any thread has led.
        known = f.compare("ult", f["processor"], 8 * _SET)
        with f.when(moved & known):
            f.store(f["processor"], avoided)
            _set(f, affinity)


def _set(f: Function, affinity: Affinity) -> None:
    """Let this thread run on every permitted processor but one."""
    offsets = _NOW, _ASSIGNED, _PERMITTED
    now, assigned, permitted = (f["place"] + offset for offset in offsets)
    f.call_foreign(affinity.read, 0, _SET, now)
    with f.when(f.compare("ne", _difference(f, now, assigned), 0)):
        _copy(f, now, permitted)
    _copy(f, permitted, assigned)
    word = f.at(assigned, f["processor"] // 64, I64)
    bit = 1 << f["processor"] % 64
    f.store(f.load(I64, word) & (bit ^ -1), word)
    f.call_foreign(affinity.write, 0, _SET, assigned)


def _difference(f: Function, a: Value, b: Value) -> Value:
    """Return a number that is nonzero if two sets differ."""
    with f.loop(0, _SET // 8, carried=[f.integer(0)]) as loop:
        x, y = (f.word(s, loop.index) for s in (a, b))
        loop.next([loop.carried[0] | (x ^ y)])
    return loop.results[0]


def _copy(f: Function, source: Value, target: Value) -> None:
    with f.loop(0, _SET // 8) as loop:
        f.store(f.word(source, loop.index), f.at(target, loop.index, I64))
