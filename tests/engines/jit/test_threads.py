"""The JIT engine with threads: the same bits whoever computes, and no code lost while it runs."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.support.processes import printed
from tests.support.random_problems import case
from tests.support.repeating import seeds
from upconv import testing
from upconv.engines import load
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem

PLANE = (Axis(33, 4, 2, 1, 1, 1), Axis(41, 5, 3, 1, 2, 0))
LARGE = [
    Problem(Direction.FORWARD, PLANE, 2, 24, 20, bias=True),
    Problem(Direction.INPUT_GRAD, (Axis(40, 3, 1, 1, 1, 1), Axis(71, 7, 1, 1, 3, 3)), 2, 9, 24),
    Problem(
        Direction.INPUT_GRAD, (Axis(50, 3, 1, 1, 1, 1), Axis(80, 3, 1, 1, 1, 1)), 2, 64, 64, 64
    ),
    Problem(Direction.FORWARD, PLANE, 3, 24, 18, 6, dtype=DType.FLOAT64),
    Problem(Direction.FORWARD, PLANE, 2, 48, 16, 2, dtype=DType.BFLOAT16, layout=DataLayout.NXC),
    Problem(Direction.FORWARD, (Axis(9001, 16, 8, 1, 4, 4),), 1, 16, 12),
    Problem(Direction.FORWARD, (Axis(4, 4, 2), Axis(5, 4, 2)), 3, 200, 100),
    Problem(Direction.FORWARD, PLANE, 2, 30, 10, dtype=DType.FLOAT16, accumulate=True),
    Problem(Direction.INPUT_GRAD, PLANE, 2, 24, 20, bias=True),
    Problem(Direction.INPUT_GRAD, (Axis(9001, 16, 8, 1, 4, 4),), 1, 16, 12),
    Problem(Direction.INPUT_GRAD, PLANE, 2, 48, 16, 2, layout=DataLayout.NXC),
    Problem(Direction.WEIGHT_GRAD, PLANE, 2, 24, 20),
    Problem(Direction.WEIGHT_GRAD, (Axis(9001, 16, 8, 1, 4, 4),), 1, 16, 2),
    Problem(Direction.WEIGHT_GRAD, PLANE, 9, 48, 48, 48, layout=DataLayout.NXC),
    Problem(Direction.WEIGHT_GRAD, PLANE, 2, 30, 20, dtype=DType.FLOAT16, accumulate=True),
]


def able(problems: list[Problem]) -> list[Problem]:
    engine = load("jit")
    return [problem for problem in problems if engine.refuses(problem) is None]


@pytest.mark.parametrize("problem", able(LARGE), ids=str)
def test_any_number_of_threads_gives_the_same_bits(problem: Problem) -> None:
    given = testing.operands(problem)
    first = testing.compute(load("jit"), problem, given, threads=1)
    wanted = testing.expected(problem, given)
    assert (np.abs(first.astype(np.float64) - wanted.value) <= wanted.allowed).all()
    for threads in (1, 2, 3, 16):
        for _ in range(3):
            again = testing.compute(load("jit"), problem, given, threads)
            assert again.tobytes() == first.tobytes(), threads


def test_random_problems_give_the_same_bits_with_threads() -> None:
    for seed in seeds(30):
        for problem in able([case(seed).problem]):
            given = testing.operands(problem)
            first = testing.compute(load("jit"), problem, given, threads=1)
            for threads in (2, 5):
                again = testing.compute(load("jit"), problem, given, threads)
                assert again.tobytes() == first.tobytes(), (threads, problem)


@pytest.mark.parametrize("problem", able(LARGE)[:3], ids=str)
def test_eight_callers_of_one_primitive(problem: Problem) -> None:
    primitive = load("jit").build(problem, 2)
    inputs = [testing.operands(problem, seed) for seed in range(8)]
    packed = primitive.pack(inputs[0].b)

    def computed(given: testing.Operands) -> bytes:
        out = given.before.copy()
        primitive.run(out, given.a, packed, inputs[0].bias)
        return out.tobytes()

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda given: {computed(given) for _ in range(10)}, inputs))
    assert results == [{computed(given)} for given in inputs]


def test_code_that_caches_let_go_of_still_runs() -> None:
    """Six threads compile and compute while every cache of code is emptied again and again."""
    code = """
import gc, sys, threading, time
import numpy as np, upconv
gc.set_threshold(50)
end, wrong = time.time() + 1.5, []
def work(i):
    n = 0
    while time.time() < end or n < 5:
        n += 1
        x = np.arange(3.0 * (9 + i)).reshape(1, 3, 9 + i)
        w = np.arange(3.0 * 4 * (1 + n % 4)).reshape(3, 4, 1 + n % 4)
        mine = upconv.conv_transpose(x, w, stride=1 + n % 3, engine="jit")
        if not (mine == upconv.conv_transpose(x, w, stride=1 + n % 3, engine="reference")).all():
            wrong.append((i, n))
def empty():
    while time.time() < end:
        upconv.cache_clear()
        for name, module in list(sys.modules.items()):
            if name.startswith("upconv.engines.jit."):
                for value in list(vars(module).values()):
                    if hasattr(value, "cache_clear"): value.cache_clear()
        gc.collect()
        time.sleep(0.01)
threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
threads.append(threading.Thread(target=empty))
for thread in threads: thread.start()
for thread in threads: thread.join()
print(wrong)
"""
    assert printed(code, UPCONV_CODE_CACHE="0") == "[]"


def test_a_child_forked_while_threads_compile_can_compile() -> None:
    code = """
import os, signal, threading, time
import numpy as np, upconv
stop = False
def compute(start):
    for stride in range(start, start + 10**6):
        if stop: return
        w = np.ones((1, 1, 1 + stride % 40))
        upconv.conv_transpose(np.ones((1, 1, 3)), w, stride=stride, engine="jit")
threads = [threading.Thread(target=compute, args=(1 + 1000 * i,)) for i in range(3)]
for thread in threads: thread.start()
time.sleep(0.5)
ends = []
for n in range(5):
    child = os.fork()
    if child == 0:
        signal.alarm(120)  # nobody else would end what hangs
        x, w = np.ones((1, 2, 5)), np.ones((2, 3, 2))
        y = upconv.conv_transpose(x, w, stride=50 + n, engine="jit")
        os._exit(0 if y[0, 0, 0] == 2 else 1)
    ends.append(os.waitpid(child, 0)[1])
    if ends[-1]: break
stop = True
print(ends == [0] * 5)
"""
    assert printed(code, UPCONV_CODE_CACHE="0") == "True"


def test_the_tests_problems_are_large_enough_for_threads() -> None:
    assert min(problem.multiply_adds for problem in LARGE) > 16 * 200_000
    assert len({str(problem) for problem in LARGE}) == len(LARGE)
