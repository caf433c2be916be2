"""The walk over a kernel's tables, in which all threads take part: phases, one after another.

A phase is a function and a grid of jobs. A job reads one row of each of two tables: job n reads
row n % count of `inner` and row n // count of `outer`. So tables grow with the sum of both counts
and not with their product. No job of a phase begins before all jobs of the previous phase are over.

    job(args, mine, inner, outer)    `mine` is the thread's own part of the scratch memory, whose
                                     first two numbers are 0 when a thread begins its first job

A thread writes nothing before it has taken a job: if it arrives when all jobs are over, another run
may already use the same scratch memory.

A kernel's argument block begins with `NUMBERS` and has `COUNTERS`; `phases` returns the table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import Code, compiled
from .cpu import Cpu
from .emit import Module, signature
from .kernel_arguments import ArgumentLayout, jobs, wait
from .packing import Numbers
from .values import I64, PTR, vector

MOST_PHASES = 4
NUMBERS = "phases* phase_count scratch* part pack* pack_args* "
"""The table of phases and its number of rows, the scratch memory of all threads and the bytes of
one thread's part; and the code that packs a weight, with its argument block."""
COUNTERS = "next_thread " + " ".join(f"next_{i} over_{i}" for i in range(MOST_PHASES)) + " "
JOB = signature("args* mine* inner* outer*")
"""The parameters of a job's function."""

_ARGUMENTS = ArgumentLayout(NUMBERS, counters=COUNTERS)


class Phase(NamedTuple):
    """A function's address and the tables of its jobs. Where a table is None, a job gets the number
    of a row, below the count, instead of its address."""

    code: int
    inner: Numbers | None
    outer: Numbers | None = None
    inner_count: int = 1
    outer_count: int = 1


def phases(*listed: Phase) -> Numbers:
    """Return the table of phases; the caller keeps the tables of jobs alive."""
    rows = []
    for phase in listed:
        sides = []
        tables = (phase.inner, phase.inner_count), (phase.outer, phase.outer_count)
        for table, count in tables:
            address = 0 if table is None else table.ctypes.data
            nbytes = 1 if table is None else table.strides[0]
            sides.append((count if table is None else len(table), address, nbytes))
        (inner, *first), (outer, *second) = sides
        rows.append((phase.code, inner * outer, inner, *first, *second))
    return np.array(rows, np.int64)


_ROW = 7  # numbers of a phase: code, jobs, rows of `inner`, and address and bytes of a row of both
_APART = 8 * (_ARGUMENTS.place("next_1") - _ARGUMENTS.place("next_0"))


def after_packing(table: Numbers, threads: int, code: Code) -> Numbers:
    """Put the packing of a weight, in which all threads take part, before a table of phases.
    `code` is the walk's code, which the caller keeps alive."""
    pack = Phase(code.addresses["pack"], None, inner_count=threads)
    return np.concatenate([phases(pack), table])


@compiled("walk", "pack", kept=4, opt=0)
def walk_code(module: Module, cpu: Cpu) -> None:
    """The function `walk(args)`, which every thread runs, and the job `pack` for weights."""
    with module.function("pack", JOB) as f:
        a = _ARGUMENTS.reader(f)
        f.call(a["pack"], a["pack_args"])
    with module.function("walk", {"args": PTR}) as f:
        a = _ARGUMENTS.reader(f)
        mine = a["scratch"] + f.take(a.address("next_thread")) * a["part"]
        new = f.scratch(8)
        f.store(a["part"], new)
        with f.loop(0, a["phase_count"]) as phase:
            at = f.at(a["phases"], phase.index * _ROW, I64)
            code, count, jobs_there = f.load(PTR, at), f.word(at, 2), f.word(at, 1)
            apart = phase.index * _APART
            with jobs(f, a.address("next_0") + apart, jobs_there) as job:
                rows = [
                    f.load(PTR, f.at(at, place, I64)) + number * f.word(at, place + 1)
                    for place, number in ((3, job % count), (5, job // count))
                ]
                with f.when(f.load(I64, new) > 0):
                    f.store(f.constant(vector(I64, 2), 0), mine)
                    f.store(f.integer(0), new)
                f.call(code, f["args"], mine, *rows)
                f.take(a.address("over_0") + apart)
            with f.when(phase.index + 1 < a["phase_count"]):
                over = a.address("over_0") + apart
                wait(f, over, jobs_there, cpu)
