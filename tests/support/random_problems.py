"""Random problems, each made from a seed.

`case` makes problems of a few milliseconds for the JIT engine. They have all ranks, types, layouts
and epilogues, large strides, dilations and crops of both signs, and rows long enough for every path
of a tile. `real_case` makes problems with the sizes of real layers, for all engines.
"""

import random
from dataclasses import dataclass, replace
from math import prod

from upconv import testing
from upconv.activations import Activation
from upconv.geometry import Axis, fitted
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem, WeightLayout


@dataclass(frozen=True, slots=True)
class Case:
    """A problem, and how it is run; the seed determines everything, including operands."""

    seed: int
    problem: Problem
    threads: int
    variant: int

    def __str__(self) -> str:
        return f"seed {self.seed}, threads {self.threads}: {self.problem}"


JIT = (Direction.FORWARD, Direction.FORWARD, Direction.INPUT_GRAD)


def case(seed: int, directions: tuple[Direction, ...] = JIT) -> Case:
    """Return a random problem that takes a few milliseconds."""
    rng = random.Random(seed)
    while True:
        problem = _problem(rng, directions)
        outputs, inputs = prod(problem.y_shape), prod(problem.x_shape)
        if max(outputs, inputs) <= 60_000 and problem.multiply_adds <= 6_000_000:
            return Case(seed, problem, rng.choice((1, 1, 2)), rng.randrange(1 << 20))


def real_case(seed: int, directions: tuple[Direction, ...] = tuple(Direction)) -> Case:
    """Return a layer of realistic size; successive seeds cycle through the directions."""
    direction = directions[seed % len(directions)]
    return Case(seed, testing.layer(seed, direction), (1, 2, 3)[seed // 3 % 3], seed)


def _problem(rng: random.Random, directions: tuple[Direction, ...]) -> Problem:
    rank = rng.choices((1, 2, 3, 4), (35, 40, 20, 5))[0]
    axes = tuple(_axis(rng, last=i == rank - 1) for i in range(rank))
    groups = rng.choice((1, 1, 1, 2, 3, 7))
    widest = rng.choice((3, 12, 70))
    channels = [groups * rng.randint(1, max(1, widest // groups)) for _ in range(2)]
    if rng.random() < 0.1:
        groups = channels[0] = channels[1] = rng.randint(2, 70)
    activation = rng.choice((Activation.NONE, Activation.RELU, *Activation))
    direction = rng.choice(directions)
    follows = direction is not Direction.WEIGHT_GRAD
    activation = activation if follows else Activation.NONE
    slope = 0.2 if activation is Activation.LEAKY_RELU else 0.0
    problem = Problem(
        direction, axes, batch=rng.choice((0, 1, 1, 1, 2, 3)) or rng.choice((0, 1)),
        in_channels=channels[0], out_channels=channels[1], groups=groups,
        dtype=rng.choice((DType.FLOAT32, *DType)), layout=rng.choice((DataLayout.NCX, *DataLayout)),
        weight_layout=rng.choice(tuple(WeightLayout)), bias=rng.random() < 0.5 and follows,
        epilogue=Epilogue(activation, slope, residual=rng.random() < 0.3 and follows),
        accumulate=rng.random() < 0.2,
    )  # fmt: skip
    return problem.replace(epilogue=ended(problem)) if follows else problem


def ended(problem: Problem) -> Epilogue:
    """Return the problem's epilogue, perhaps with slopes per channel or a second result."""
    rng, epilogue = random.Random(str(problem)), problem.epilogue
    if epilogue.activation is Activation.LEAKY_RELU and rng.random() < 0.5:
        epilogue = replace(epilogue, slope=0.0, slopes=True)
    second = rng.choice((*[Activation.NONE] * 6, *Activation))
    slope = 0.1 if second is Activation.LEAKY_RELU else 0.0
    return replace(epilogue, second=second, second_slope=slope)


def _axis(rng: random.Random, *, last: bool) -> Axis:
    size = rng.randint(1, 9)
    if last:
        size = rng.choice((size, rng.randint(5, 70), rng.randint(100, 300)))
    kernel = rng.choice((1, 2, 3, 4, 4, 5, 7, rng.randint(1, 41)))
    stride = rng.choice((1, 2, 2, 3, 4, 5, 8, kernel, rng.randint(1, 40)))
    dilation = rng.choice((1, 1, 1, 2, 3, rng.randint(1, 40)))
    whole = fitted(size, kernel, stride, dilation, 0, 0).full
    reach = rng.choice((0, 1, 5, kernel, whole))
    begin = rng.randint(-min(reach, 70), min(reach, whole - 1))
    end = rng.randint(-min(reach, 70), reach)
    return fitted(
        size, kernel, stride, dilation, begin, max(rng.choice((0, 1, 1)), whole - begin - end)
    )
