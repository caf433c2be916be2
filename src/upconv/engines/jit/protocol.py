"""Fork and join in native code: how helpers join a run, leave it, and sleep.

The thread that requests a run leads it. The control block has these words; hot words are in
separate cache lines:

    OWNER   1 while some thread leads; next to it EXPECTED, the total members of all runs so far
    STATE   generation << 16 | F; next to it WORK, ARGUMENT and the LEADER's processor
    EPOCH   the latest generation opened; helpers poll it
    DONE    number of members, in all runs so far, that have returned from their work
    SLEEP   awake << 48 | asleep << 32 | wake tokens: the number of helpers that poll or work, of
            helpers that sleep, and of awake helpers that were called but are not up yet

F is the number of the next slot. A run with `limit` slots opens at FULL - limit. A thread that
takes a number below FULL is a member.

    lead    own OWNER, or work alone                     serve   poll until EPOCH > heard
            write WORK, ARGUMENT                                 heard, F = STATE++
            STATE = generation + 1, FULL - limit                 if F < FULL:
            EPOCH = generation + 1                                    call WORK
            call sleepers; work                                      DONE++
            F = STATE, STATE += FULL: closed                     poll again for a while, then sleep
            members = min(limit, F - (FULL - limit))
            wait until DONE = EXPECTED += members
            release OWNER

Why this is correct. All changes of STATE, DONE and SLEEP are read-modify-writes: all threads agree
on one order of changes to each word, and a change sees all changes before it.

1.  STATE alone decides, atomically, which threads are members. The F that the leader reads counts
    every helper whose change precedes the leader's closing change. A later helper takes a number
    from FULL on, and leaves. The leader waits only for members, not for a helper that sleeps, is
    about to check, or was refused.
2.  A member reads WORK and ARGUMENT after its change of STATE, which saw the leader's opening one.
    The leader writes both before that, and not again until it has seen the member's DONE++. A
    refused helper reads neither. That is why the limit is part of F: if it were a separate word, a
    refused helper could read a later run's limit and think that it is a member.
3.  The leader sees all writes of members: DONE++ releases, later changes of DONE continue
    its release sequence, and the leader's last read acquires. OWNER passes on EXPECTED likewise.
4.  A late helper, woken by generation g when STATE has g + k, joins g + k like any other if there
    is a slot, and has then heard g + k. EPOCH may briefly lag behind. A helper reads STATE only if
    EPOCH > heard, so it joins no generation twice. Each helper takes at most one number per
    generation, open or closed: F < FULL + FULL + MOST < 2**16 never overflows into the generation.
    Opening rewrites F; if a helper takes a number at the same moment, opening tries again.
5.  A generation has 47 bits, which last for four years at one run per microsecond.
6.  To fall asleep, a helper counts itself asleep, then reads EPOCH; a leader sets EPOCH, then
    reads the number asleep. These four are sequentially consistent, so one sees the other: a leader
    never counts a helper as awake that sleeps through its run. (That would only lose time.)
7.  Asleep + wake tokens is the number of sleepers. A call moves n from asleep to awake and adds n
    wake tokens. A sleeper gets up by taking a wake token or, if EPOCH is new and there is none, by
    moving itself from asleep to awake. Each is one change to one word, so the counts never drift.
    A called helper counts as awake at once, so a run one microsecond later does not call another
    in its place. Wake tokens are anonymous: a helper that has finished and falls asleep again may
    take the token meant for another that is about to sleep. The other misses a run; this loses
    time, not results.
8.  The futex is the lower half of SLEEP: a thread falls asleep only while it is 0, so that no
    wake token arrives unnoticed. A spurious wake-up only repeats the check. Without a futex,
    `serve` returns, counted asleep, and counts itself awake when it is called again.
9.  No leader waits for a thread that was never a member. No helper survives in a forked child
    process. A leader there could hang only on a state copied in the middle of its own run, and the
    forking thread is not in a run.
"""

from __future__ import annotations

from typing import NamedTuple

from .affinity import Affinity, current, emit_keep_away, new_state
from .emit import Function, Module, signature
from .values import I64, PTR, Value

MOST = 4095  # helpers
FULL = 1 << 14
GENERATION = 1 << 16
AWAKE, ASLEEP, WAKE_TOKEN = 1 << 48, 1 << 32, 1

# Processors fetch cache lines of 64 bytes in pairs, and some have lines of 128.
OWNER, EXPECTED = 0, 8
STATE, WORK, ARGUMENT, LEADER = 128, 136, 144, 152
EPOCH, DONE, SLEEP = 256, 384, 512
NBYTES = 640
FIRST = {STATE: GENERATION + FULL, EPOCH: 1, LEADER: -1}  # initial words; the others are 0

_ITERATIONS_PER_LOOK = 64  # polls between a helper's checks of which processor it runs on
_PYTHON_IS_SLOWER = 10
_PATIENCE = 4096  # iterations of a leader's wait, after which it yields in each iteration
_WAIT, _WAKE = 128, 129  # FUTEX_WAIT and FUTEX_WAKE within one process


class Futex(NamedTuple):
    """The name by which compiled code calls `syscall`, and futex's system call number."""

    syscall: str
    number: int


class System(NamedTuple):
    """The system functions to call; `switch` names sched_yield or its equivalent."""

    triple: str
    switch: str
    futex: Futex | None
    affinity: Affinity | None


def emit(module: Module, system: System) -> None:
    """Emit `lead`, `serve`, and `iteration`, which measures the duration of a poll."""
    parameters = signature("control* work* argument* limit")
    with module.function("lead", parameters) as f:
        free = f.compare("eq", f.exchange("xchg", _word(f, OWNER), 1), 0)
        with f.when(free):
            _lead(f, system)
            f.publish(0, _word(f, OWNER))
        with f.unless(free):
            f.call(f["work"], f["argument"])
    if system.affinity:
        emit_keep_away(module, system.affinity)
    with module.function("serve", signature("control* memory* iterations")) as f:
        _serve(f, system)
    parameters = signature("control* iterations")
    with module.function("iteration", parameters) as f, f.loop(0, f["iterations"]):
        f.observe(_word(f, EPOCH))
        f.relax(system.triple)


def _word(f: Function, offset: int) -> Value:
    return f["control"] + offset


def _count_down(f: Function, iterations: Value) -> Value:
    left = f.load(I64, iterations) - 1
    f.store(left, iterations)
    return left


# Leading ------------------------------------------------------------------------------------------


def _lead(f: Function, system: System) -> None:
    f.store(f["work"], _word(f, WORK))
    f.store(f["argument"], _word(f, ARGUMENT))
    if system.affinity:
        f.publish(current(f, system.affinity), _word(f, LEADER))
    f.publish(_open(f), _word(f, EPOCH), "seq_cst")
    if system.futex:
        _call_sleepers(f, system.futex)
    f.call(f["work"], f["argument"])
    slot = f.exchange("add", _word(f, STATE), FULL) % GENERATION
    members = f.min(f["limit"], slot + f["limit"] - FULL)
    expected = f.load(I64, _word(f, EXPECTED)) + members
    f.store(expected, _word(f, EXPECTED))
    _wait(f, system, expected)


def _open(f: Function) -> Value:
    """Open a generation, and return its number."""
    opened = f.scratch(8)
    open_slots = FULL - f["limit"]
    with f.forever() as done:
        state = f.observe(_word(f, STATE))
        generation = state // GENERATION + 1
        f.store(generation, opened)
        new = generation * GENERATION + open_slots
        f.leave(done, f.replace(_word(f, STATE), state, new))
    return f.load(I64, opened)


def _call_sleepers(f: Function, futex: Futex) -> None:
    """Call one sleeper for each slot that no awake helper can take."""
    with f.forever() as enough:
        sleep = f.observe(_word(f, SLEEP), "seq_cst")
        asleep = sleep // ASLEEP % (AWAKE // ASLEEP)
        count = f.min(f["limit"] - sleep // AWAKE, asleep)
        f.leave(enough, count <= 0)
        called = sleep + count * (AWAKE - ASLEEP + WAKE_TOKEN)
        with f.when(f.replace(_word(f, SLEEP), sleep, called)):
            _futex(f, futex, _WAKE, count)


def _futex(f: Function, futex: Futex, operation: int, number: Value) -> None:
    none = f.integer(0)
    f.call_foreign(
        futex.syscall, futex.number, _word(f, SLEEP), operation, number, none, none, none
    )


def _wait(f: Function, system: System, expected: Value) -> None:
    """Wait until all members are done."""
    iterations = f.scratch(8)
    f.store(f.integer(_PATIENCE), iterations)
    with f.forever() as joined:
        f.leave(joined, f.compare("eq", f.observe(_word(f, DONE)), expected))
        f.relax(system.triple)
        left = _count_down(f, iterations)
        if system.switch:
            with f.when(left < 0):
                f.call_foreign(system.switch)


# Helping ------------------------------------------------------------------------------------------


class _Helper(NamedTuple):
    """A helper's state: the generation it has heard, polls left, and affinity."""

    heard: Value
    iterations: Value
    affinity: Value


def _serve(f: Function, system: System) -> None:
    """Help until shutdown. Without a futex, return when idle and keep `heard` in `memory`."""
    me = _Helper(f.scratch(8), f.scratch(8), new_state(f))
    heard = f.load(I64, f["memory"])
    f.store(heard, me.heard)
    # EPOCH starts at 1, so a helper that has heard nothing is new; others return from sleep.
    new = f.compare("eq", heard, 0)
    f.exchange("add", _word(f, SLEEP), f.select(new, f.integer(AWAKE), AWAKE - ASLEEP))
    # A token arrives before its run, and the interpreter may run other code in between.
    first = f["iterations"] if system.futex else f["iterations"] * _PYTHON_IS_SLOWER
    with f.forever() as asleep:
        f.store(first, me.iterations)
        with f.forever() as idle:
            _poll(f, system, me)
            f.leave(idle, f.observe(_word(f, EPOCH)) <= f.load(I64, me.heard))
            _join(f, me)
        _keep_away(f, system, me)
        f.exchange("add", _word(f, SLEEP), ASLEEP - AWAKE)
        if system.futex:
            _sleep(f, system.futex, me)
            _make_way(f, system, me)
        else:
            f.store(f.load(I64, me.heard), f["memory"])
            f.leave(asleep, Value("i1", "true"))


def _poll(f: Function, system: System, me: _Helper) -> None:
    """Wait for a new epoch while there are polls left."""
    with f.forever() as done:
        f.leave(done, f.observe(_word(f, EPOCH)) > f.load(I64, me.heard))
        left = _count_down(f, me.iterations)
        f.leave(done, left < 0)
        f.relax(system.triple)
        with f.when(f.compare("eq", left % _ITERATIONS_PER_LOOK, 0)):
            _make_way(f, system, me)


def _make_way(f: Function, system: System, me: _Helper) -> None:
    """Move away from the leader's processor, and yield in case there is no other one."""
    if system.affinity:
        leader, here = f.observe(_word(f, LEADER)), current(f, system.affinity)
        with f.when(f.compare("eq", leader, here)):
            _keep_away(f, system, me)
            f.call_foreign(system.switch)


def _join(f: Function, me: _Helper) -> None:
    """Take a number, and work if it is below FULL."""
    state = f.exchange("add", _word(f, STATE), 1)
    f.store(state // GENERATION, me.heard)
    with f.when(state % GENERATION < FULL):
        f.call(f.load(PTR, _word(f, WORK)), f.load(PTR, _word(f, ARGUMENT)))
        f.exchange("add", _word(f, DONE), 1)
        f.store(f["iterations"], me.iterations)


def _keep_away(f: Function, system: System, me: _Helper) -> None:
    if system.affinity:
        f.call("keep_away", me.affinity, f.observe(_word(f, LEADER)))


def _sleep(f: Function, futex: Futex, me: _Helper) -> None:
    """Sleep until called, or until there is a new epoch."""
    with f.forever() as up:
        sleep = f.observe(_word(f, SLEEP))
        called = f.compare("ne", sleep % ASLEEP, 0)
        news = f.observe(_word(f, EPOCH), "seq_cst") > f.load(I64, me.heard)
        awake = called | news
        with f.when(awake):
            change = f.select(called, f.integer(-WAKE_TOKEN), AWAKE - ASLEEP)
            f.leave(up, f.replace(_word(f, SLEEP), sleep, sleep + change))
        with f.unless(awake):
            _futex(f, futex, _WAIT, f.integer(0))
