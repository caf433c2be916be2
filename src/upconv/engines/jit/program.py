"""A sequence of steps that all threads run together in one native call, without Python.

    for each step:  n = entered++                unless the step is over already
                    if n < threads: walk_as(block, member)
                    wait until over = jobs       and meanwhile prefetch the next step's weights

Why this is correct:

1.  The first thread that arrives enters, so every step begins. A thread that has entered takes jobs
    until none are left, so every step that begins also ends.
2.  No thread continues before all jobs are done, and a job changes `over` after its last write. So
    a step sees everything that the previous steps wrote.
3.  A late thread, when others are far ahead, finds that steps are over, skips them, and joins the
    others. If it enters while a step's last job is ending, it finds no job there and writes nothing
    (walk.py). So it disturbs no later step, even in the same scratch memory.
4.  At most `threads` threads enter, so each has a part of the scratch memory.

Two counters per step are enough; there is no list of members.

Steps are bound to addresses. For an array that changes from run to run, they are bound to a
stand-in. Each run replaces pointers into a stand-in by pointers into the real array. It replaces
only pointers in argument blocks. So no step may keep a stand-in's address anywhere else, nor the
distance from it to another array.

The 108 steps of HiFi-GAN V1 took 0.86 of the processor time of one call per step on two threads,
and 0.97 on one thread. That is the first decile of 20 runs on a busy Zen 4 (2026-11-23).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence

import numpy as np

from ..addresses import address_of
from . import pool
from .compile import compiled
from .cpu import Cpu, host
from .emit import Function, Module
from .kernel_arguments import ArgumentLayout, Record, filled, record, wait
from .steps import Step
from .values import I64, LINE, PTR, Value
from .walk import walk_code

_ARGUMENTS = ArgumentLayout("steps* count walk*", counters="members")
_STEP = record("block threads entered over jobs ahead ahead_bytes")
"""A step; waiting threads prefetch `ahead_bytes` of the next packed weight, at `ahead`."""
_APART = 128  # bytes from one counter to the next: processors fetch cache lines in pairs
_MANY = 20  # pointers
_LINES = 4  # lines that a wait iteration prefetches, in about 10 ns
AHEAD_BYTES = 256 << 10
"""Bytes of the next packed weight that threads prefetch while they wait: part of the second-level
cache, which also holds the operands. It is a guess: on a busy machine 0, 64 KiB, 256 KiB and 1 MiB
took equal times (HiFi-GAN V1, 108 steps, two threads of a Zen 4, 2026-11-23)."""


@compiled("sequence", kept=4, opt=0)
def _sequence_code(module: Module, cpu: Cpu) -> None:
    """Emit `sequence(args)`, which every thread runs."""
    with module.function("sequence", {"args": PTR}) as f:
        a, prefetched = _ARGUMENTS.reader(f), f.scratch(8)
        member = f.take(a.address("members"))
        with f.loop(0, a["count"]) as loop:
            step = Record.of(f, a["steps"], loop.index, _STEP)
            fields = {name: step[name] for name in _STEP.names or ()}
            block, entered, over, ahead = (
                f.convert("inttoptr", fields[name], PTR)
                for name in ("block", "entered", "over", "ahead")
            )
            with f.unless(f.observe(over) >= fields["jobs"]):
                with f.when(f.take(entered) < fields["threads"]):
                    f.call(a["walk"], block, member)
                f.store(f.integer(0), prefetched)

                def prefetch(left: Value = fields["ahead_bytes"], ahead: Value = ahead) -> None:
                    _prefetch_ahead(f, cpu, prefetched, left, ahead)

                wait(f, over, fields["jobs"], cpu, prefetch)


def _prefetch_ahead(f: Function, cpu: Cpu, prefetched: Value, nbytes: Value, ahead: Value) -> None:
    """Prefetch some lines of the next weight, or pause if none are left."""
    offset = f.load(I64, prefetched)
    more = offset < nbytes
    with f.when(more):
        for line in range(_LINES):
            f.prefetch(ahead + (offset + line * LINE))
        f.store(offset + _LINES * LINE, prefetched)
    with f.unless(more):
        f.relax(cpu.triple)


class StepSequence:
    """Steps that run one after another in a single call of the thread pool.

    Only one thread may run it at a time: it has one set of argument blocks and scratch memory.
    """

    def __init__(
        self,
        steps: Iterable[Step],
        ahead_bytes: int = AHEAD_BYTES,
        stand_ins: Sequence[np.ndarray] = (),
    ) -> None:
        self.steps = tuple(steps)
        self._code, self._walk = _sequence_code(host()), walk_code(host())
        self._work = self._code.addresses["sequence"]
        self._threads = max((step.threads for step in self.steps), default=1)
        self._start, self._memory = _laid_out(self.steps)
        first = self._memory.ctypes.data
        blocks = first + _offsets(self.steps)
        moved = blocks[:-1] - [step.block.address for step in self.steps]
        ahead = _next_weights(self.steps)
        self._table = filled(
            _STEP, len(self.steps),
            block=blocks[:-1],
            threads=[step.threads for step in self.steps],
            entered=blocks[-1] + np.arange(len(self.steps)) * _APART,
            over=moved + [step.over for step in self.steps],
            jobs=[step.jobs for step in self.steps],
            ahead=[address for address, _ in ahead],
            ahead_bytes=[min(ahead_bytes, nbytes) for _, nbytes in ahead],
        )  # fmt: skip
        flags = [at + step.flag for at, step in zip(moved, self.steps, strict=True) if step.flag]
        self._flags = (np.array(flags, np.int64) - first) // 8
        self._numbers = memoryview(self._memory)  # type: ignore[arg-type]  # it is one
        moving = [_pointers_into(array, self.steps, self._start) for array in stand_ins]
        # A NumPy operation takes as long as 20 assignments of single numbers.
        self._moving = [pairs if len(pairs) < _MANY else np.array(pairs).T for pairs in moving]
        self._block = _ARGUMENTS.block(
            steps=self._table.ctypes.data, count=len(self.steps),
            walk=self._walk.addresses["walk_as"],
        )  # fmt: skip

    def run(self, threads: int, addresses: Sequence[int] = ()) -> bool:
        """Run all steps on at most `threads` threads; return whether the results are valid.

        addresses: the addresses of the contiguous arrays that replace the stand-ins, in order.
        """
        np.copyto(self._memory, self._start)
        numbers = self._numbers
        for address, pointers in zip(addresses, self._moving, strict=False):
            if isinstance(pointers, list):
                for index, offset in pointers:
                    numbers[index] = address + offset
            else:
                self._memory[pointers[0]] = pointers[1] + address
        self._block.restart()
        pool.run(self._work, self._block.address, min(threads, self._threads))
        return not (self._flags.size and np.count_nonzero(self._memory[self._flags]))


def _offsets(steps: Sequence[Step]) -> np.ndarray:
    """Return the byte offsets of the argument blocks, and of the counters after them."""
    nbytes = [-(-step.block.nbytes // _APART) * _APART for step in steps]
    return np.cumsum([0, *nbytes])


def _laid_out(steps: Sequence[Step]) -> tuple[np.ndarray, np.ndarray]:
    """Return the initial argument blocks and counters, and memory of the same size for a run."""
    offsets = _offsets(steps)
    count = (int(offsets[-1]) + len(steps) * _APART) // 8
    start = np.zeros(count, np.int64)
    for offset, step in zip(offsets, steps, strict=False):
        ctypes.memmove(start.ctypes.data + int(offset), step.block.address, step.block.nbytes)
    room = np.zeros(count + _APART // 8, np.int64)
    skipped = -room.ctypes.data % _APART // 8
    return start, room[skipped : skipped + count]


def _pointers_into(
    array: np.ndarray, steps: Sequence[Step], start: np.ndarray
) -> list[tuple[int, int]]:
    """Return the blocks' pointers into an array, as indices in `start` and byte offsets."""
    begin, offsets = address_of(array), _offsets(steps) // 8
    (indices,) = np.nonzero((start >= begin) & (start < begin + array.nbytes))
    blocks = np.searchsorted(offsets, indices, "right") - 1
    return [
        (index, int(start[index]) - begin)
        for index, block in zip(indices.tolist(), blocks.tolist(), strict=True)
        if block < len(steps) and steps[block].block.is_pointer(index - int(offsets[block]))
    ]


def _next_weights(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """Return for each step the address and bytes of the next packed weight after it."""
    ahead, following = [], (0, 0)
    for step in reversed(steps):
        ahead.append(following)
        following = step.weights if step.weights[1] else following
    return ahead[::-1]
