"""A sequence of steps computes what its primitives compute in a row, bit for bit, on any
number of threads."""

import itertools
import random
import sys
import time
from typing import NamedTuple

import numpy as np
import pytest

from tests.engines.jit.test_pool_processes import forks, passes
from upconv import testing
from upconv.activations import Activation
from upconv.engines import load
from upconv.engines.base import Array, Primitive
from upconv.engines.jit.program import StepSequence
from upconv.engines.jit.steps import Step
from upconv.engines.workspace import Workspace
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, Epilogue, Problem

JIT = load("jit")


class Layer(NamedTuple):
    """A primitive and what it is run with."""

    primitive: Primitive
    arguments: tuple[Array, Array, object, Array | None, Array | None]

    def run(self) -> None:
        self.primitive.run(*self.arguments)


class Chain:
    """Random layers, each of which reads what the one before it wrote, in shared scratch memory."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        layout = rng.choice(list(DataLayout))
        channels, size = rng.choice((3, 8, 24)), tuple(rng.choices((9, 20), k=rng.choice((1, 2))))
        self.layers: list[Layer] = []
        self.first = x = testing.operands(_problem(rng, channels, size, layout)).a
        for _ in range(rng.randint(4, 12)):
            problem = _problem(rng, channels, size, layout)
            operands = testing.operands(problem, rng.randrange(99))
            out = np.zeros_like(operands.before)
            variants = [
                one.variant
                for one in JIT.candidates(problem, 4, every=True)
                if one.engine == "jit" and one.possible
            ]
            # Half of the steps are of one thread, between steps of many.
            primitive = JIT.build(problem, rng.choice((1, 4)), rng.choice(variants))
            weight = primitive.pack(operands.b)
            arguments = out, x, weight, operands.bias, operands.residual
            self.layers.append(Layer(primitive, arguments))
            x, channels = out, problem.out_channels
            size = tuple(axis.out for axis in problem.axes)
        nbytes = max(layer.primitive.workspace_bytes for layer in self.layers)
        self._room = Workspace(nbytes)
        self.scratch = self._room.__enter__()

    def steps(self) -> list[Step]:
        return [
            step
            for layer in self.layers
            for step in layer.primitive.steps(*layer.arguments, self.scratch)
        ]

    def outputs(self) -> list[bytes]:
        return [layer.arguments[0].tobytes() for layer in self.layers]

    def expected(self) -> list[bytes]:
        for layer in self.layers:
            layer.run()
        return self.outputs()

    def forget(self) -> None:
        for layer in self.layers:
            layer.arguments[0].fill(np.nan)


def _problem(
    rng: random.Random, channels: int, size: tuple[int, ...], layout: DataLayout
) -> Problem:
    stride = 2 if max(size) < 60 and rng.random() < 0.4 else 1
    kernel = 2 * stride if stride > 1 else rng.choice((1, 3))
    crop = (kernel - stride) // 2
    axes = tuple(Axis(n, kernel, stride, 1, crop, crop) for n in size)
    return Problem(
        Direction.FORWARD, axes, 1, channels, rng.choice((3, 8, 40)), layout=layout, bias=True,
        epilogue=Epilogue(rng.choice((Activation.NONE, Activation.RELU)), 0.0, rng.random() < 0.3),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(12))
def test_bits_of_primitives_in_a_row(seed: int) -> None:
    chain = Chain(seed)
    expected = chain.expected()
    sequence = StepSequence(chain.steps())
    for threads in (1, 2, 3, 7, 16):
        for _ in range(4):
            chain.forget()
            assert sequence.run(threads)
            assert chain.outputs() == expected, (seed, threads)


def test_threads_have_numbers_of_their_own_in_each_run() -> None:
    chain = Chain(3)
    sequence = StepSequence(chain.steps())
    for _ in range(20):
        sequence.run(2)
        assert 1 <= sequence._block["members"] <= 2


def test_a_sequence_of_nothing() -> None:
    assert StepSequence([]).run(4)


def test_new_values_in_the_same_arrays() -> None:
    chain = Chain(3)
    sequence = StepSequence(chain.steps())
    for factor in (1, -2, 0.5):
        chain.first *= factor
        assert sequence.run(2)
        outputs = chain.outputs()
        assert outputs == chain.expected()


def test_a_flag_says_that_results_do_not_hold() -> None:
    problem = Problem(Direction.FORWARD, (Axis(60, 4, 2, 1, 1, 1),), 1, 16, 16)
    operands = testing.operands(problem)
    primitive = JIT.build(problem, 2, "winograd F(4,2)")
    weight = primitive.pack(operands.b)
    with Workspace(primitive.workspace_bytes) as scratch:
        steps = primitive.steps(operands.before, operands.a, weight, None, None, scratch)
        sequence = StepSequence(steps)
        for special, holds in ((0, True), (np.inf, False), (1, True)):
            operands.a[0, 3, 30] = special
            assert sequence.run(2) == holds


@pytest.mark.skipif(sys.platform != "linux", reason="helpers begin quickly where they sleep")
def test_a_step_that_nobody_waits_for_is_caught() -> None:
    """The planted fault: a step counts as over when a thread has begun it.

    It shows when two threads run at once, for which a busy machine takes its time: the bound is on
    what this process has computed.
    """
    end = time.process_time() + 60
    for seed in itertools.count():
        chain = Chain(seed % 5)
        expected = chain.expected()
        steps = [
            step._replace(over=step.block.address_of("next_thread"), jobs=1)
            for step in chain.steps()
        ]
        sequence = StepSequence(steps)
        for _ in range(50):
            chain.forget()
            sequence.run(4)
            if chain.outputs() != expected:
                return
        assert time.process_time() < end, "no run differs"


PRELUDE = """
from tests.engines.jit.test_program import Chain, StepSequence
chain = Chain(7)
expected = chain.expected()
sequence = StepSequence(chain.steps())
def works(threads, runs=20):
    for _ in range(runs):
        chain.forget()
        assert sequence.run(threads)
        assert chain.outputs() == expected
"""


@forks
def test_forked_children_run_it() -> None:
    passes("works(3)\nfor _ in range(3): child(lambda: works(3))\nworks(3)", prelude=PRELUDE)


@forks
def test_a_child_of_a_fork_in_the_middle_of_a_run() -> None:
    body = """
thread = threading.Thread(target=works, args=(3, 400))
thread.start()
for _ in range(5): child(lambda: works(2))
thread.join()
"""
    passes(body, prelude=PRELUDE)


@forks
def test_interrupts_arrive_after_a_run() -> None:
    body = """
def interrupt(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
for _ in range(20):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        while True:
            sequence.run(3)
    except KeyboardInterrupt:
        works(3, 1)
"""
    passes(body, prelude=PRELUDE)


def test_borrowed_threads(two_torch_threads) -> None:
    torch, chain = two_torch_threads, Chain(2)
    expected = chain.expected()
    sequence = StepSequence(chain.steps())
    for count in (2, 5):
        torch.set_num_threads(count)
        torch.randn(1 << 20).sum()
        for _ in range(10):
            chain.forget()
            assert sequence.run(count)
            assert chain.outputs() == expected
