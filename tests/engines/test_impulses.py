"""Impulses and shifts in small integers, which are exact in every order of sums: bit by bit.

1. Forward, a 1 at input position i gives the kernel at s*i + d*t - p, and nothing anywhere else.
2. In the input gradient, a 1 at output position o gives tap t at each i with s*i + d*t - p = o.
3. In the weight gradient, a 1 at input position i gives tap t the gradient at s*i + d*t - p.
4. Inputs one position further give results one stride further, gradients likewise.

Where things lie is written out here once more, from the definition alone.
"""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

import upconv
from tests.support import winograd_layers
from tests.support.processes import require_feature
from upconv.engines import load
from upconv.engines.ordered_sums import ORDERED
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Problem, WeightLayout

FORWARD, INPUT_GRAD, WEIGHT_GRAD = Direction.FORWARD, Direction.INPUT_GRAD, Direction.WEIGHT_GRAD
NXC, OIX = DataLayout.NXC, WeightLayout.OIX
FEATURES = {"dots": "avx512bf16", "tiles": "amx-bf16"}
PROCESSORS = {"skylake-avx512": "avx512vl", "haswell": "avx2", "x86-64": "sse2"}

AXES = {
    "one axis": (Axis(9, 4, 2, 1, 1, 1),),
    "a long axis": (Axis(37, 3, 1, 2, -1, 3),),
    "two axes": (Axis(5, 3, 2, 1, 1, 0), Axis(7, 4, 3, 2, 2, -1)),
    "three axes": (Axis(3, 2, 2), Axis(4, 3, 1, 1, 1, 1), Axis(5, 3, 2, 1, 0, 1)),
}
PLAIN = [(axes, 3, 5, 1, {}) for axes in AXES.values()] + [
    (AXES["two axes"], 6, 4, 2, {"layout": NXC}),
    (AXES["two axes"], 4, 4, 4, {"weight_layout": OIX}),
]
WIDE = [
    (AXES["two axes"], 20, 33, 1, {}),
    (AXES["one axis"], 18, 36, 2, {"layout": NXC}),
    (AXES["three axes"], 5, 17, 1, {"layout": NXC, "weight_layout": OIX}),
]
DEPTHWISE = [
    ((Axis(6, 3, 1, 1, 1, 1), Axis(19, 3, 1, 1, 1, 0)), 3, 3, 3, {}),
    ((Axis(34, 5, 1, 1, 2, 2),), 2, 4, 2, {}),
    ((Axis(5, 3, 1, 1, 1, 1), Axis(8, 3, 1, 1, 1, 1)), 19, 19, 19, {"layout": NXC}),
]
SHORT = [  # kernels that Winograd's algorithm has forms for
    ((Axis(9, 4, 2, 1, 1, 1), Axis(11, 4, 2, 1, 1, 1)), 16, 16, 1, {}),
    ((Axis(40, 3, 1, 1, 1, 1),), 16, 20, 1, {"layout": NXC}),
    ((Axis(30, 7, 1, 2, 6, 6),), 16, 16, 1, {}),
]
DEEP = [  # more channels of the result than positions
    ((Axis(3, 4, 2, 1, 1, 1), Axis(2, 5, 2, 1, 2, 1)), 26, 2, 1, {}),
    ((Axis(9, 8, 3, 2, 2, 1),), 22, 3, 1, {"layout": NXC}),
    ((Axis(3, 2, 2), Axis(1, 3, 1, 1, 1, 1), Axis(2, 3, 1, 1, 1, 1)), 60, 6, 2, {}),
]
BFLOAT16 = [(axes, c, f, g, more | {"dtype": DType.BFLOAT16}) for axes, c, f, g, more in WIDE]

IN_PLACE = [((Axis(40, 2, 2),), 64, 32, 1, {"layout": NXC, "dtype": DType.BFLOAT16})]
ROUNDED = [(axes, c, f, g, more | {"rounded": True}) for axes, c, f, g, more in PLAIN]

# The layers that a kernel computes, the variant that holds the engine to it, and directions.
BOTH = FORWARD, INPUT_GRAD
KERNELS: dict[str, tuple[list[Any], str, tuple[Direction, ...]]] = {
    "positions": ([layer for layer in PLAIN if not layer[-1].get("layout")], "positions", BOTH),
    "channels": (PLAIN + WIDE, "channels", BOTH),
    "planes": (DEPTHWISE, "planes", BOTH),
    "im2col": (DEEP, "im2col", (INPUT_GRAD,)),
    "dots": (BFLOAT16, "dots", BOTH),
    "tiles": (BFLOAT16 + IN_PLACE + ROUNDED, "tiles", BOTH),
    "weights": (PLAIN + WIDE + DEPTHWISE, "", (WEIGHT_GRAD,)),
    "winograd": (SHORT, "winograd", BOTH),
}
OTHERS = {
    "reference": (PLAIN + DEPTHWISE, tuple(Direction)),
    "onednn": (PLAIN + WIDE + DEPTHWISE, tuple(Direction)),
    "ordered": ([layer for layer in PLAIN if len(layer[0]) == 1], BOTH),
}
Compute = Callable[[Problem, np.ndarray, np.ndarray], np.ndarray]


def problems(layers: list[Any], direction: Direction) -> Iterator[Problem]:
    for axes, c, f, groups, more in layers:
        yield Problem(direction, axes, 2, c, f, groups, **more)


def computer(engine: Any, variant: str = "") -> Compute:
    """A function from operands to results, by one engine and variant."""

    def compute(problem: Problem, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        problem = problem.replace(batch=len(a))
        name = variant
        if variant == "winograd":
            name = winograd_layers.variants(problem, 1, exact=True)[-1]
        primitive = engine.build(problem, 1, name)
        kind = problem.dtype.numpy
        a, b = a.astype(kind), b.astype(kind)
        out = np.full(problem.result_shape, np.nan, kind)
        weights = problem.direction is WEIGHT_GRAD
        primitive.run(out, a, b if weights else primitive.pack(b))
        return out.astype(np.float64)

    return compute


def whole_numbers(problem: Problem, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.random.default_rng(len(shape)).integers(1, 5, shape)
    return numbers * np.where(np.arange(numbers.size).reshape(shape) % 3, 1.0, -1.0)


def by_name(problem: Problem, data: np.ndarray, weight: bool = False) -> np.ndarray:
    """A view with the axes (N, C, *positions), or (I, O, *taps)."""
    order = problem.weight_layout.to_iox if weight else problem.layout.to_ncx
    return data.transpose(order(problem.rank))


def outputs_of(problem: Problem, i: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    """(tap, output) of every product of an input position that lies in the output."""
    for t in product(*(range(axis.kernel) for axis in problem.axes)):
        pairs = zip(problem.axes, i, t, strict=True)
        o = tuple(
            axis.stride * at + axis.dilation * tap - axis.crop_begin for axis, at, tap in pairs
        )
        if all(0 <= at < axis.out for axis, at in zip(problem.axes, o, strict=True)):
            yield t, o


def sampled(sizes: tuple[int, ...], most: int = 12) -> list[tuple[int, ...]]:
    """Some positions, odd and even ones, the first and the last among them."""
    every = list(product(*map(range, sizes)))
    step = -(-len(every) // most) | 1
    return [*every[::step], every[-1]]


def check_impulses(compute: Compute, problem: Problem) -> None:
    """Cases 1 to 3."""
    by_direction = (
        _check_weight_impulses if problem.direction is WEIGHT_GRAD else _check_data_impulses
    )
    by_direction(compute, problem.replace(batch=1))


def _check_data_impulses(compute: Compute, problem: Problem) -> None:
    """Each impulse is an image of its own, its channel another one each time."""
    forward = problem.direction is FORWARD
    sizes = problem.size if forward else problem.out_size
    places = sampled(sizes)
    w = whole_numbers(problem, problem.weight_shape)
    many = problem.replace(batch=len(places))
    a, wanted = np.zeros(many.operand_shapes[0]), np.zeros(many.result_shape)
    c, f = (n // problem.groups for n in (problem.in_channels, problem.out_channels))
    iox = by_name(problem, w, weight=True)
    into, found = by_name(problem, a), by_name(problem, wanted)
    for n, place in enumerate(places):
        channel = n * 7 % into.shape[1]
        into[(n, channel, *place)] = 1
        group = channel // (c if forward else f)
        if forward:
            for t, o in outputs_of(problem, place):
                found[(n, slice(group * f, group * f + f), *o)] = iox[(channel, slice(None), *t)]
            continue
        for i in product(*map(range, problem.size)):
            for t, o in outputs_of(problem, i):
                if o == place:
                    rows = slice(group * c, group * c + c)
                    found[(n, rows, *i)] = iox[(rows, channel - group * f, *t)]
    np.testing.assert_array_equal(compute(many, a, w), wanted, str(problem))


def _check_weight_impulses(compute: Compute, problem: Problem) -> None:
    g_shape, x_shape = problem.operand_shapes
    g = whole_numbers(problem, g_shape)
    c, f = (n // problem.groups for n in (problem.in_channels, problem.out_channels))
    for n, i in enumerate(sampled(problem.size, 8)):
        channel = n * 7 % problem.in_channels
        x, wanted = np.zeros(x_shape), np.zeros(problem.weight_shape)
        by_name(problem, x)[(0, channel, *i)] = 1
        group = channel // c
        for t, o in outputs_of(problem, i):
            gradient = by_name(problem, g)[(0, slice(group * f, group * f + f), *o)]
            by_name(problem, wanted, weight=True)[(channel, slice(None), *t)] = gradient
        np.testing.assert_array_equal(compute(problem, g, x), wanted, str(problem))


def check_shifts(compute: Compute, problem: Problem) -> None:
    """Case 4, along each axis."""
    shapes = problem.operand_shapes
    a, b = (whole_numbers(problem, shape) for shape in shapes)
    weights = problem.direction is WEIGHT_GRAD
    for number, axis in enumerate(problem.axes):
        steps = {FORWARD: (1, 0), INPUT_GRAD: (axis.stride, 0), WEIGHT_GRAD: (axis.stride, 1)}
        by, other = steps[problem.direction]
        if by >= by_name(problem, a).shape[2 + number] or axis.size < 2:
            continue
        first, later = _moved(problem, a, number, by)
        second, after = _moved(problem, b, number, other) if weights else (b, b)
        before, behind = (compute(problem, *pair) for pair in ((first, second), (later, after)))
        if not weights:
            result = axis.stride if problem.direction is FORWARD else 1
            size = by_name(problem, before).shape[2 + number]
            before = by_name(problem, before).take(range(max(0, size - result)), 2 + number)
            behind = by_name(problem, behind).take(range(min(result, size), size), 2 + number)
        np.testing.assert_array_equal(before, behind, f"{problem}, axis {number}")


def _moved(problem: Problem, data: np.ndarray, number: int, by: int) -> tuple[Any, Any]:
    """Data that ends in zeros, and the same `by` positions further."""
    first = data.copy()
    view = np.moveaxis(by_name(problem, first), 2 + number, 0)
    view[len(view) - by :] = 0
    axis = problem.layout.to_ncx(problem.rank)[2 + number]
    return first, np.roll(first, by, axis)


def check(compute: Compute, layers: list[Any], directions: tuple[Direction, ...]) -> None:
    for direction in directions:
        for problem in problems(layers, direction):
            check_impulses(compute, problem)
            check_shifts(compute, problem)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_the_jit(kernel: str, processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layers, variant, directions = KERNELS[kernel]
    if kernel == "planes" and processor == "x86-64":
        pytest.skip("the planes kernel is for AVX2 and AVX-512")
    some = layers if processor == "skylake-avx512" or kernel == "planes" else layers[::2]
    if kernel == "dots":
        if processor != "skylake-avx512":
            pytest.skip("dot products are for AVX-512")
        processor = "cooperlake"
    if kernel == "tiles" and processor == "skylake-avx512":
        processor = "sapphirerapids"  # on the others vector code stands in
    require_feature(PROCESSORS.get(processor) or FEATURES[kernel])
    monkeypatch.setenv("UPCONV_JIT_CPU", processor)
    check(computer(load("jit"), variant), some, directions)


@pytest.mark.parametrize("name", OTHERS)
def test_other_engines(name: str) -> None:
    layers, directions = OTHERS[name]
    status = {status.name: status for status in upconv.engines()}.get(name)
    if status and not status.available:
        pytest.skip(status.reason)
    engine = load(name) if status else ORDERED
    able = [layer for layer in layers if not engine.refuses(next(problems([layer], FORWARD)))]
    assert len(able) > len(layers) // 2
    check(computer(engine), able, directions)


@pytest.mark.parametrize("processor", ["haswell", "skylake-avx512"])
def test_the_planes_kernel_does_its_layers(processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    require_feature(PROCESSORS[processor])
    monkeypatch.setenv("UPCONV_JIT_CPU", processor)
    for problem in (p for way in BOTH for p in problems(DEPTHWISE, way)):
        if problem.direction is INPUT_GRAD and problem.out_channels > problem.groups:
            continue  # it adds up several channels
        assert load("jit").build(problem, 1, "planes").description.startswith("planes"), problem


def _computing(change: Callable[[Compute, Problem, np.ndarray, np.ndarray], Any]) -> Compute:
    right = computer(load("reference"))
    return lambda problem, a, b: change(right, problem, a, b)


FAULTS = {
    "one position": lambda right, p, a, b: np.roll(right(p, a, b), 1, -1),
    "one tap": lambda right, p, a, b: right(p, a, b[..., ::-1]),
    "a last bit": lambda right, p, a, b: right(p, a, b) * (1 + 2**-23),
    "every other position": lambda right, p, a, b: right(
        p, a * (1 + np.arange(a.shape[-1]) % 2), b
    ),
}


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, direction: Direction) -> None:
    """Shifts see what treats positions unequally, impulses everything."""
    problem = Problem(direction, AXES["two axes"], 1, 3, 5)
    checks = [check_impulses, check_shifts] if fault == "every other position" else [check_impulses]
    for checked in checks:
        with pytest.raises(AssertionError):
            checked(_computing(FAULTS[fault]), problem)
