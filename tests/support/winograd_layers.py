"""Random layers for Winograd's algorithm, each made from a seed, and its errors.

To run many: `python -c "from tests.support.winograd_layers import main; main(range(2000))"`.
"""

import random
from collections import defaultdict
from collections.abc import Iterable
from math import prod

import numpy as np

from upconv import UpconvError, testing
from upconv.activations import Activation
from upconv.engines import load
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem, WeightLayout

CHANNELS = (3, 8, 16, 20, 31, 33, 64, 65, 100, 128)


def layer(seed: int) -> tuple[Problem, int]:
    """Return a problem of a few milliseconds, and a number of threads."""
    rng = random.Random(seed)
    engine = load("jit")
    while True:
        problem = _drawn(rng)
        if problem is None or problem.multiply_adds > 2e7 or prod(problem.result_shape) > 1e6:
            continue
        if engine.refuses(problem) is None and refusal(problem) is None:
            return problem, rng.choice((1, 2, 3))


def _drawn(rng: random.Random) -> Problem | None:
    rank, convolution = rng.choice((1, 1, 2, 2, 2, 3)), rng.random() < 0.5
    most = (0, 400, 40, 14)[rank]
    try:
        axes = tuple(_axis(rng, rng.randint(1, most), convolution) for _ in range(rank))
    except UpconvError:  # nothing is left of the output
        return None
    groups = rng.choice((1, 1, 1, 2, 3))
    activation = rng.choice((Activation.NONE, Activation.NONE, *Activation))
    slope = 0.2 if activation is Activation.LEAKY_RELU else 0.0
    return Problem(
        Direction.INPUT_GRAD if rng.random() < 0.5 else Direction.FORWARD, axes,
        rng.choice((1, 1, 2, 3)), groups * rng.choice(CHANNELS), groups * rng.choice(CHANNELS),
        groups, rng.choice((*[DType.FLOAT32] * 5, DType.FLOAT64)), rng.choice(tuple(DataLayout)),
        rng.choice(tuple(WeightLayout)), bias=rng.random() < 0.5,
        epilogue=Epilogue(activation, slope, residual=rng.random() < 0.25),
    )  # fmt: skip


def _axis(rng: random.Random, size: int, convolution: bool) -> Axis:
    stride = 1 if convolution else rng.choice((1, 2, 2, 2, 3, 4, 8))
    taps = rng.choice((3, 3, 3, 4, 5, 6, 7, 7, 9, 11) if convolution else (1, 2, 2, 2, 2, 3, 4))
    kernel = taps if convolution else max(1, stride * taps - rng.choice((0, 0, 0, 1)))
    dilation = rng.choice((1, 1, 1, 2, 3, 5)) if convolution else rng.choice((1, 1, 1, 1, 1, 2, 3))
    crops = rng.choice(
        [
            (stride // 2, stride // 2),
            (kernel // 4, kernel // 4),
            (0, 0),
            (rng.randint(-3, kernel), rng.randint(-3, kernel)),
        ]
    )
    return Axis(size, kernel, stride, dilation, *crops)


def computed(problem: Problem, variant: str, threads: int, given: testing.Operands) -> np.ndarray:
    """Return a variant's result; raise `AssertionError` if it fell back on direct sums."""
    primitive = load("jit").build(problem, threads, variant)
    packed, out = primitive.pack(given.b), given.before.copy()
    second = given.before.copy() if problem.epilogue.has_second else None
    primitive.run(out, given.a, packed, *testing.ends_of(problem, given, second))
    assert not getattr(packed, "direct", None), "it fell back on direct sums"
    primitive.close()
    return out


def ratio(problem: Problem, variant: str, threads: int, seed: int) -> float:
    """Return the largest error over that of direct sums, or over 1/20 of their tolerance if larger.

    Direct sums of few numbers may be exact by chance.
    """
    given = testing.operands(problem, seed)
    wanted = testing.expected(problem, given)
    if not wanted.value.size:
        return 0.0
    mine, direct = (
        np.abs(computed(problem, name, threads, given) - wanted.value).max()
        for name in (variant, "")
    )
    return float(mine / max(direct, wanted.allowed.max() / 20))


def tile_of(variant: str) -> str:
    """Return the largest transform in a variant, without its pieces."""
    names = [
        "*".join(part for part in name.split("*") if not part.startswith("F(1,"))
        for name in variant.removeprefix("winograd ").split("x")
    ]
    return max(names, key=lambda name: (name.count("*"), name))


def variants(problem: Problem, threads: int, *, exact: bool = False) -> tuple[str, ...]:
    """Return all possible variants, or those that "auto" may choose."""
    listed = load("jit").candidates(problem, threads, every=True)
    tiles = [each for each in listed if each.winograd and each.possible]
    tiles = [each for each in tiles if each.exact or not exact]
    return tuple(each.variant for each in sorted(tiles, key=lambda each: each.cycles))


def refusal(problem: Problem) -> str | None:
    """Return why Winograd's algorithm cannot compute a problem, or None."""
    listed = load("jit").candidates(problem, 1, every=True)
    if any(each.winograd and each.possible for each in listed):
        return None
    reasons = [each.reason for each in listed if each.winograd]
    return reasons[0] if reasons else "it has no Winograd's algorithm"


def main(seeds: Iterable[int]) -> None:
    """Print the ratios of one variant of each layer, by the largest tile."""
    found: dict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for seed in seeds:
        problem, threads = layer(seed)
        variant = random.Random(seed).choice(variants(problem, threads))
        found[tile_of(variant)].append((ratio(problem, variant, threads, seed), seed, variant))
    for tile, ratios in sorted(found.items()):
        numbers = [number for number, _, _ in ratios]
        print(
            f"{tile}: {len(ratios)} layers, median {np.median(numbers):.2f}, 99 %"
            f" {np.quantile(numbers, 0.99):.2f}, most {max(ratios)}"
        )
