"""The walk: every job once, with its own rows, and no phase before the one before it is over."""

import ctypes

import numpy as np
import pytest

from upconv.engines.jit import walk
from upconv.engines.jit.compile import Code
from upconv.engines.jit.cpu import host
from upconv.engines.jit.emit import Module
from upconv.engines.jit.kernel_arguments import ArgumentLayout, Blocks
from upconv.engines.jit.values import I64

ARGUMENTS = ArgumentLayout(
    walk.NUMBERS + "sums* late* " + " ".join(f"other_{i}" for i in range(40)),
    counters=walk.COUNTERS,
)


def _emit(module: Module) -> None:
    """`add` adds both rows' numbers to a sum of their own; `read` copies a sum of the phase
    before; `note` lists the rows in the order of the jobs."""
    with module.function("add", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        number = f.word(f["inner"], 1) + f.word(f["outer"], 1)
        at = f.at(a["sums"], number, I64)
        f.store(f.load(I64, at) + f.word(f["inner"]) + f.word(f["outer"]), at)
    with module.function("read", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        number = f.word(f["inner"])
        f.store(f.load(I64, f.at(a["sums"], number, I64)), f.at(a["late"], number, I64))

    with module.function("note", walk.JOB) as f:
        sums = ARGUMENTS.reader(f)["sums"]
        count = f.at(sums, 48, I64)
        at = f.load(I64, count)
        f.store(f.word(f["inner"]), f.at(sums, at * 2, I64))
        f.store(f.word(f["outer"]), f.at(sums, at * 2 + 1, I64))
        f.store(at + 1, count)


@pytest.fixture(scope="module")
def code() -> Code:
    module = Module(host())
    _emit(module)
    return Code(module, ("add", "read", "note"), host())


@pytest.mark.parametrize("threads", [1, 2, 5, 40])
@pytest.mark.parametrize(
    ("rows", "by_outer"),
    [((7, 300), False), ((7, 300), True), ((2100, 1), True), ((1, 2100), False), ((3, 2), True)],
)
def test_every_job_once_and_phases_in_order(
    code: Code, threads: int, rows: tuple[int, int], by_outer: bool
) -> None:
    jobs = rows[0] * rows[1]
    inner = np.array([(i, i) for i in range(rows[0])])
    outer = np.array([(100 * j, rows[0] * j) for j in range(rows[1])])
    last = np.arange(jobs)[::-1].copy()[:, None]
    sums, late = np.zeros(jobs, np.int64), np.zeros(jobs, np.int64)
    add = walk.Phase(code.addresses["add"], inner, outer, by_outer=by_outer)
    table = walk.phases(threads, add, walk.Phase(code.addresses["read"], last))
    block = ARGUMENTS.block(
        phases=table.ctypes.data, phase_count=2, sums=sums.ctypes.data, late=late.ctypes.data
    )
    blocks = Blocks(block)
    expected = (inner[:, 0] + outer[:, :1]).ravel()
    for times in range(1, 51):
        blocks.run(walk.walk_code(host()).addresses["walk"], threads)
        assert (sums == times * expected).all()
        assert (late == sums).all()


def test_counts_stand_in_for_tables(code: Code) -> None:
    """A job's "addresses" are then the numbers of rows: from address zero on, a byte each."""
    table = walk.phases(2, walk.Phase(code.addresses["add"], None, None, 3, 4))
    assert table[0, 1:].tolist() == [12, 3, 0, 1, 0, 1, 4, 0, 2]


@pytest.mark.parametrize("by_outer", [False, True])
@pytest.mark.parametrize("rows", [(8, 3), (3, 8), (1, 8), (8, 1), (1, 1), (0, 4), (4, 0)])
def test_a_thread_begins_with_its_own_range(
    code: Code, rows: tuple[int, int], by_outer: bool
) -> None:
    """One thread takes all jobs here, as the third of three: its own range comes first, and the
    rows of `inner` change fastest in each range."""
    inner, outer = (np.arange(n)[:, None] for n in rows)
    order = np.zeros(2 * 24 + 1, np.int64)
    job = walk.Phase(code.addresses["note"], inner, outer, by_outer=by_outer)
    table = walk.phases(3, job)
    block = ARGUMENTS.block(phases=table.ctypes.data, phase_count=1, sums=order.ctypes.data)
    walk_as = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)
    walk_as(walk.walk_code(host()).addresses["walk_as"])(block.address, 2)
    along = int(rows[1] > 1 and (by_outer or rows[0] == 1))
    parts = [range(i * rows[along] // 3, (i + 1) * rows[along] // 3) for i in (2, 0, 1)]
    whole = range(rows[1 - along])
    pairs = [(i, j) for part in parts for j in (part if along else whole)
             for i in (whole if along else part)]  # fmt: skip
    assert order[: 2 * len(pairs)].reshape(-1, 2).tolist() == [list(pair) for pair in pairs]
    assert order[-1] == len(pairs) == rows[0] * rows[1]
