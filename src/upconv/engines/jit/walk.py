"""The walk over a kernel's tables, in which all threads take part: phases, one after another.

A phase is a function and a grid of jobs. A job reads one row from each of two tables, `inner` and
`outer`, and there is a job for each pair. So tables grow with the sum of both counts, not with
their product. No job of a phase begins before all jobs of the previous phase are over.

The rows of one table are divided into *ranges*, one for each of up to 16 threads, in which the rows
of `inner` change fastest. Each thread begins with its own range, and then helps with the next ones.
So a thread finds much of what it wrote in the last phase, or in the last layer, in its caches.

    job(args, mine, inner, outer)    `mine` is the thread's part of the scratch memory, whose first
                                     two numbers are 0 when a thread begins its first job

A thread writes nothing before it has taken a job: if it arrives when all jobs are over, another run
may already be using the same scratch memory.

A kernel's argument block begins with `NUMBERS` and has `COUNTERS`; `phases` returns the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module, signature
from .kernel_arguments import ArgumentLayout, jobs, wait
from .packing import Numbers
from .values import I64, LINE, PTR, Value, vector

MAX_PHASES = 4
NUMBERS = "phases* phase_count scratch* part pack* pack_args* "
"""The table of phases and its number of rows; all threads' scratch memory and the bytes of one
thread's part; and the code that packs a weight, with its argument block."""
COUNTERS = "next_thread " + " ".join(f"next_{i} over_{i}" for i in range(MAX_PHASES)) + " "
JOB = signature("args* mine* inner* outer*")
"""The parameters of a job's function."""
_MAX_RANGES = 16  # counters in a line

_ARGUMENTS = ArgumentLayout(NUMBERS, counters=COUNTERS)


class Phase(NamedTuple):
    """A function's address and the tables of its jobs. If a table is None, a job receives a row's
    number, below the count, instead of its address. `by_outer`: ranges divide the rows of `outer`,
    which is better if a row of `outer` stands for more memory than one of `inner`."""

    code: int
    inner: Numbers | None
    outer: Numbers | None = None
    inner_count: int = 1
    outer_count: int = 1
    by_outer: bool = False


def phases(threads: int, *listed: Phase) -> Numbers:
    """Return the table of phases for at most `threads` threads; the caller keeps the job tables
    alive."""
    rows, ranges = [], min(threads, _MAX_RANGES)
    for phase in listed:
        sides = []
        tables = (phase.inner, phase.inner_count), (phase.outer, phase.outer_count)
        for table, count in tables:
            address = 0 if table is None else table.ctypes.data
            nbytes = 1 if table is None else table.strides[0]
            sides.append((count if table is None else len(table), address, nbytes))
        (inner, *first), (outer, *second) = sides
        by_outer = outer > 1 and (phase.by_outer or inner == 1)
        rows.append((phase.code, inner * outer, inner, *first, *second, outer, by_outer, ranges))
    return np.array(rows, np.int64)


def part_bytes(nbytes: int) -> int:
    """Return the bytes to reserve for a thread's `nbytes` of scratch memory: if parts were
    multiples of a page, all would begin in the same cache sets."""
    return -(-nbytes // 4096) * 4096 + 3 * LINE


_ROW = 10
"""A phase's numbers: code, jobs, rows of `inner`, address and bytes of a row for both tables, rows
of `outer`, `by_outer`, ranges."""
_APART = 8 * (_ARGUMENTS.indices["next_1"] - _ARGUMENTS.indices["next_0"])


@compiled("walk", "walk_as", "pack", kept=4, opt=0)
def walk_code(module: Module, cpu: Cpu) -> None:
    """Emit the function `walk(args)`, which every thread runs, and the job `pack` for weights.

    `walk_as(args, member)` is the same for a thread with a number in a sequence of walks.
    """
    with module.function("pack", JOB) as f:
        a = _ARGUMENTS.reader(f)
        f.call(a["pack"], a["pack_args"])
    with module.function("shared", signature("args* number member")) as f:
        a = _ARGUMENTS.reader(f)
        mine = a["scratch"] + f["number"] * a["part"]
        new = f.scratch(8)
        f.store(a["part"], new)
        with f.loop(0, a["phase_count"]) as phase:
            at = f.at(a["phases"], phase.index * _ROW, I64)
            code, jobs_there = f.load(PTR, at), f.word(at, 1)
            apart = phase.index * _APART
            with _taking(f, at, a.address("next_0") + apart) as numbers:
                rows = [
                    f.load(PTR, f.at(at, place, I64)) + number * f.word(at, place + 1)
                    for place, number in zip((3, 5), numbers, strict=True)
                ]
                with f.when(f.load(I64, new) > 0):
                    f.store(f.constant(vector(I64, 2), 0), mine)
                    f.store(f.integer(0), new)
                f.call(code, f["args"], mine, *rows)
                f.take(a.address("over_0") + apart)
            with f.when(phase.index + 1 < a["phase_count"]):
                over = a.address("over_0") + apart
                wait(f, over, jobs_there, cpu)
    for name, member in (("walk", ""), ("walk_as", " member")):
        with module.function(name, signature("args*" + member)) as f:
            number = f.take(_ARGUMENTS.reader(f).address("next_thread"))
            f.call("shared", f["args"], number, f["member"] if member else number)


@contextmanager
def _taking(f: Function, phase: Value, counters: Value) -> Iterator[tuple[Value, Value]]:
    """Take jobs, as rows of `inner` and `outer`, from the thread's range and then from others."""
    inner, outer, by_outer = f.word(phase, 2), f.word(phase, 7), f.word(phase, 8) > 0
    rows, other = f.select(by_outer, outer, inner), f.select(by_outer, inner, outer)
    ranges = f.word(phase, 9)
    with f.loop(0, ranges) as turn:
        number = (f["member"] + turn.index) % ranges
        start = number * rows // ranges
        count = (number + 1) * rows // ranges - start
        counter, size = counters + number * 8, count * other
        with f.when(f.observe(counter) < size), jobs(f, counter, size) as job:
            width, none = f.select(by_outer, inner, count), f.integer(0)
            yield (
                f.select(by_outer, none, start) + job % width,
                f.select(by_outer, start, none) + job // width,
            )
