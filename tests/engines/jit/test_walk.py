"""The walk: every job once, with its own rows, and no phase before the one before it is over."""

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
    before."""
    with module.function("add", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        number = f.word(f["inner"], 1) + f.word(f["outer"], 1)
        at = f.at(a["sums"], number, I64)
        f.store(f.load(I64, at) + f.word(f["inner"]) + f.word(f["outer"]), at)
    with module.function("read", walk.JOB) as f:
        a = ARGUMENTS.reader(f)
        number = f.word(f["inner"])
        f.store(f.load(I64, f.at(a["sums"], number, I64)), f.at(a["late"], number, I64))


@pytest.fixture(scope="module")
def code() -> Code:
    module = Module(host())
    _emit(module)
    return Code(module, ("add", "read"), host())


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_every_job_once_and_phases_in_order(code: Code, threads: int) -> None:
    inner = np.array([(i, i) for i in range(7)])
    outer = np.array([(100 * j, 7 * j) for j in range(300)])
    last = np.arange(2100)[::-1].copy()[:, None]
    sums, late = np.zeros(2100, np.int64), np.zeros(2100, np.int64)
    table = walk.phases(
        walk.Phase(code.addresses["add"], inner, outer), walk.Phase(code.addresses["read"], last)
    )
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
    table = walk.phases(walk.Phase(code.addresses["add"], None, None, 3, 4))
    assert table[0, 1:].tolist() == [12, 3, 0, 1, 0, 1]
