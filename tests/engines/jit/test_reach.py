"""Which part of the taps tiles cannot skip, against counting them one by one."""

import random
from itertools import product

import pytest

from upconv.engines.jit.channels.reach import MANY, POINTS, Along, Reach, reach


def counted(axes: tuple[Along, ...], images: int, inside: bool) -> Reach:
    """By the definition: for each tile of consecutive points, the taps that any of them needs."""
    places = list(product(*(range(axis.count) for axis in axes)))
    taps = list(product(*(axis.shifts for axis in axes)))
    needed = [
        {tap for tap in taps if all(_exists(*each) for each in zip(axes, place, tap, strict=True))}
        for place in places
    ]
    points = [p for p in needed for _ in range(images)] if inside else needed * images
    parts = []
    for size in POINTS:
        tiles = [set().union(*points[i : i + size]) for i in range(0, len(points), size)]
        parts.append(round(sum(map(len, tiles)) / (len(tiles) * len(taps)), 3))
    return Reach(len(points), tuple(parts))


def _exists(axis: Along, place: int, shift: int) -> bool:
    return 0 <= place * axis.step - shift < axis.size


@pytest.mark.parametrize("seed", range(60))
def test_parts(seed: int) -> None:
    rng = random.Random(seed)
    axes = tuple(
        Along(
            rng.randint(1, 6),
            rng.randint(1, 7),
            rng.choice((1, 1, 2, 3)),
            tuple(rng.sample(range(-4, 5), rng.randint(1, 4))),
        )
        for _ in range(rng.randint(1, 3))
    )
    images, inside = rng.randint(1, 3), rng.random() < 0.5
    assert reach(axes, images, inside=inside) == counted(axes, images, inside)


@pytest.mark.parametrize("axes", [(Along(3, 0, 1, (0,)),), (Along(3, 4, 1, ()),)], ids=str)
def test_without_points_or_taps_nothing_is_skipped(axes: tuple[Along, ...]) -> None:
    assert reach(axes, 2, inside=True).parts == MANY.parts
