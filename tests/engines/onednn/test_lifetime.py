"""oneDNN's primitives over a process's life: threads, forks, memory, and senseless calls."""

import os
import sys

import numpy as np
import pytest

from tests.support.processes import printed, python
from tests.support.racing import in_threads
from upconv import testing
from upconv.engines import load
from upconv.errors import EngineError, EngineMissing
from upconv.geometry import Axis
from upconv.primitives import PrimitiveCache
from upconv.problem import DataLayout, Direction, Problem

try:
    ENGINE = load("onednn")
except EngineMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)


AXES = (Axis(5, 3, 2, 1, 1, 0), Axis(7, 4, 3, 1, 2, 3))
PROBLEM = Problem(Direction.FORWARD, AXES, 2, 32, 48, layout=DataLayout.NXC)


def test_eight_threads_build_once_and_agree() -> None:
    problem = PROBLEM.replace(batch=8)  # enough for two threads
    cache, given = PrimitiveCache(max_entries=8), testing.operands(problem)
    wanted = testing.compute(ENGINE, problem, given, 2)

    def work() -> None:
        entry = cache.entry(problem, ENGINE, 2)
        for _ in range(20):
            out = given.before.copy()
            entry.primitive.run(out, given.a, entry.primitive.pack(given.b))
            np.testing.assert_array_equal(out, wanted)

    assert in_threads(8, work) == [None] * 8
    assert cache.info().builds == 1
    cache.clear()


def test_a_closed_primitive_raises() -> None:
    primitive = ENGINE.build(PROBLEM, 1)
    given = testing.operands(PROBLEM)
    weight = primitive.pack(given.b)
    primitive.close()
    primitive.close()
    with pytest.raises(EngineError, match="closed"):
        primitive.run(given.before, given.a, weight)


MEMORY = """
import gc, sys
from pathlib import Path
from upconv.engines import load
from upconv.geometry import Axis
from upconv.primitives import PrimitiveCache
from upconv.problem import DataLayout, Direction, Problem
engine, cache = load("onednn"), PrimitiveCache(max_entries=64)
def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
def shapes(count, start):
    for number in range(start, start + count):
        i = number * 7919 % 10501  # large and small ones mixed: the last are like the first
        axes = (Axis(3 + i % 97, 3, 2, 1, 1, 1), Axis(4 + i // 97, 4, 2, 1, 1, 1))
        layout = tuple(DataLayout)[i % 2]
        problem = Problem(tuple(Direction)[i % 3], axes, 1, 16, 32, layout=layout)
        cache.entry(problem, engine, 1)
warm, count = int(sys.argv[1]), int(sys.argv[2])
shapes(warm, 0)
before = resident()
shapes(count, warm)
print(cache.info().builds, cache.info().entries, before, resident())
"""


@pytest.mark.parametrize(
    ("warm", "count"), [(300, 600), pytest.param(500, 10_000, marks=pytest.mark.long)]
)
@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
def test_eviction_frees_native_memory(warm: int, count: int) -> None:
    builds, entries, before, after = map(int, printed(MEMORY, warm, count).split())
    assert builds == warm + count
    assert entries == 64
    assert after <= 1.1 * before, f"{before / 2**20:.0f} MiB before, {after / 2**20:.0f} after"


FORK = """
import os, signal, threading
import numpy as np, upconv
signal.alarm(120)
rng = np.random.default_rng(0)
x = rng.standard_normal((2, 32, 20, 20), np.float32)
w = rng.standard_normal((32, 48, 4, 4), np.float32)
plan = upconv.plan(x.shape, w, stride=2, engine="onednn", threads=2)
wanted = plan(x)
same = lambda: np.array_equal(plan(x), wanted)
def by_thread():
    said = []
    thread = threading.Thread(target=lambda: said.append(same()))
    thread.start(); thread.join()
    return said == [True]
def family(generations):
    "Fork; the child computes, by its own thread and by a new one, and forks in turn."
    pid = os.fork()
    if not pid:
        signal.alarm(60)
        other = upconv.conv_transpose(x[:1], w, stride=3, engine="onednn")
        right = same() and by_thread() and other.shape == (1, 48, 61, 61)
        if right and generations:
            right = family(generations - 1)
        os._exit(0 if right else 1)
    return os.waitpid(pid, 0)[1] == 0
assert family(2) and same() and by_thread()
print("alive")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_children_of_a_fork_compute_on_several_threads() -> None:
    assert printed(FORK, UPCONV_NUM_THREADS="2") == "alive"


@pytest.mark.parametrize(
    ("first", "last"), [(0, 150), pytest.param(10_000, 15_000, marks=pytest.mark.long)]
)
def test_random_problems_and_calls_end_no_process(first: int, last: int) -> None:
    """Two for each seed: a problem by every variant, and a call that makes no sense."""
    code = f"from tests.support import onednn_problems; onednn_problems.main({first}, {last})"
    done = python(code, seconds=7200)
    said = done.stdout.splitlines()
    assert done.returncode == 0, (said[-3:], [s for s in said if "WRONG" in s], done.stderr[-500:])
    assert said[-1] == "done"
