"""Pooling, padding, resampling, pixel shuffle and copies of networks, against their definitions."""

from dataclasses import replace

import numpy as np
import pytest

from tests.support.native_steps import (
    DTYPES,
    LAYOUTS,
    WAYS,
    Case,
    checked,
    laid_out,
    run,
)
from tests.support.processes import python, require_feature
from upconv.engines.jit import windows
from upconv.engines.jit.cpu import VARIABLE, host
from upconv.network.graph import (
    ChannelPool,
    Concat,
    Pad,
    Permute,
    PixelShuffle,
    PixelUnshuffle,
    Pool,
    Resample,
    Slice,
)
from upconv.network.moves import conversion
from upconv.network.tables import Target
from upconv.network.windows import steps
from upconv.problem import DataLayout, DType

KINDS = ("max", "average", "pad", "nearest", "linear", "shuffle", "concat", "slice", "adaptive",
         "channels", "resize", "unshuffle", "permute")  # fmt: skip


def drawn(seed: int, kind: str = "") -> Case:
    """A random operation on random arrays."""
    rng = np.random.default_rng(seed)
    kind = kind or KINDS[seed % len(KINDS)]
    rank = int(rng.integers(1, 4))
    most = {1: 9000, 2: 60, 3: 14}[rank]
    size = tuple(rng.integers(1, most, rank).tolist())
    channels, batch = int(rng.integers(1, 40)), int(rng.integers(1, 4))
    if rng.integers(3) == 0:
        size = tuple(max(1, n // 8) for n in size)
    shapes = ((batch, channels, *size),)
    factors = tuple(rng.integers(1, 5, rank).tolist())
    if kind in ("max", "average"):
        kernel = tuple(int(rng.integers(1, min(n, 5) + 1)) for n in size)
        padding = tuple(tuple(rng.integers(0, k // 2 + 1, 2).tolist()) for k in kernel)
        stride = tuple(rng.choice([1, 2, 3, 4, 11], rank).tolist())
        dilation = tuple(
            int(rng.integers(1, 1 + n // k)) for n, k in zip(size, kernel, strict=True)
        )
        rest = dilation if rng.integers(2) else (), bool(rng.integers(2))
        operation = Pool(kind, kernel, stride, padding, bool(rng.integers(2)), *rest)
    elif kind == "adaptive":
        every = rng.integers(2)  # or some windows
        windows = tuple(1 if every else rng.choice([1, n, *divisors(n)]) for n in size)
        mode = ("max", "average")[rng.integers(2)]
        operation = Pool(mode, (), (), (), windows=tuple(map(int, windows)))
    elif kind == "resize":
        sizes = tuple(int(rng.integers(1, 2 * n + 2)) for n in size)
        mode = ("nearest", "linear")[rng.integers(2)]
        operation = Resample((), mode, sizes, mode == "linear" and bool(rng.integers(2)))
    elif kind == "unshuffle":
        shapes = ((batch, channels, *(n * f for n, f in zip(size, factors, strict=True))),)
        operation = PixelUnshuffle(factors)
    elif kind == "permute":
        operation = Permute(tuple(rng.integers(0, channels, rng.integers(1, 50)).tolist()))
    elif kind == "channels":
        operation = ChannelPool(("max", "average")[rng.integers(2)])
    elif kind == "pad":
        mode = ("constant", "reflect", "replicate")[rng.integers(3)]
        amounts = []
        for n in size:
            cut = rng.integers(2) and n > 4
            low = -1 if cut else 0
            kept = n - 2 * cut
            high = min(5, kept - 1) if mode == "reflect" else 5
            amounts.append(tuple(rng.integers(low, high + 1, 2).tolist()))
        operation = Pad(tuple(amounts), mode, float(rng.choice([0.0, -1.5])))
    elif kind in ("nearest", "linear"):
        large = rank == 1 and rng.integers(4) == 0
        operation = Resample((19,) if large else factors, kind)
    elif kind == "shuffle":
        factors = tuple(rng.integers(1, 4, rank).tolist())
        shapes = ((batch, int(rng.integers(1, 20)) * int(np.prod(factors)), *size),)
        operation = PixelShuffle(factors)
    elif kind == "concat":
        counts = rng.integers(1, 20, rng.integers(1, 4)).tolist()
        shapes = tuple((batch, count, *size) for count in counts)
        operation = Concat()
    else:
        start = int(rng.integers(channels))
        operation = Slice(start, int(rng.integers(start, channels)) + 1)
    layout, dtype = LAYOUTS[rng.integers(2)], DTYPES[rng.integers(3)]
    # The definition rounds the place of each position in float64.
    positions = kind in ("linear", "resize")
    slack = 64 * max(size) if positions and dtype is DType.FLOAT64 else 64
    return Case(
        operation, shapes, layout, dtype,
        int(rng.integers(1, 9)), slack=slack, seed=seed, view=bool(rng.integers(2)),
        out_view=bool(rng.integers(2)), special=bool(rng.integers(4) == 0) and not positions,
    )  # fmt: skip


def divisors(n: int) -> list[int]:
    """The divisors of a number."""
    return [d for d in range(1, n + 1) if n % d == 0]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", KINDS)
def test_random_windows(kind, seed):
    checked(drawn(seed, kind), steps)


@pytest.mark.parametrize("source", LAYOUTS)
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "bfloat16"),
                                    ("bfloat16", "float32"), ("float64", "float64"),
                                    ("bfloat16", "bfloat16"), ("float32", "float64")])  # fmt: skip
def test_conversions(source, dtypes):
    """Between layouts and element types, of views too; squares are not mistaken."""
    before, after = (DType(name).numpy for name in dtypes)
    rng = np.random.default_rng(2)
    for shape in (
        (2, 5, 70),
        (1, 3, 3),
        (3, 40, 9, 31),
        (2, 2, 5, 4, 3),
        (1, 1, 4000),
        (1, 64, 1),
        (1, 12, 99),
    ):
        for result in LAYOUTS:
            for threads in (1, 3):
                values = rng.standard_normal(shape)
                x, _ = laid_out(values.astype(before), source, DType(dtypes[0]), bool(threads % 2))
                out, holder = laid_out(np.zeros(shape), result, DType(dtypes[1]), True)
                run(conversion(out, x, source, Target(result, threads, host())))
                perm = result.to_ncx(len(shape) - 2)
                assert np.array_equal(out.transpose(perm), values.astype(before).astype(after))
                out[...] = -77
                assert (holder == -77).all()


@pytest.mark.parametrize(("cpu", "feature"), WAYS[1:])
def test_conversions_on_older_processors(cpu, feature):
    require_feature(feature)
    code = (
        "import tests.network.test_windows as t\n"
        "for source in t.LAYOUTS:\n"
        "    for pair in (('bfloat16', 'bfloat16'), ('float32', 'bfloat16'),\n"
        "                 ('bfloat16', 'float32'), ('float64', 'float64')):\n"
        "        t.test_conversions(source, pair)\n"
        "print('done')"
    )
    done = python(code, **{VARIABLE: cpu})
    assert done.stdout == "done\n", done.stderr[-2000:]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nan_and_infinity_in_maxima(layout):
    """NaN wins, wherever it stands in a window, as in NumPy."""
    for seed in range(12):
        operation = Pool("max", (3, 2), (1 + seed % 3, 1 + seed % 2), ((1, 1), (0, 1)))
        checked(Case(operation, ((1, 5, 17, 40),), layout, special=True, seed=seed), steps)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mode", ["max", "average"])
def test_windows_as_large_as_the_input_with_gaps_or_padding(layout, mode):
    """A window of two positions, two apart, on an input of two reads one of them, not both."""
    for counted in (False, True):
        for padding, dilation in (((1, 1), 2), ((0, 1), 2), ((0, 0), 1)):
            operation = Pool(mode, (2,), (2,), (padding,), counted, (dilation,))
            checked(Case(operation, ((2, 5, 2),), layout), steps)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_long_rows_are_cut(layout):
    """A row of many jobs: each reads what lies beside its part."""
    shape = (1, 2, 70_001)
    for operation in (
        Pool("average", (5,), (1,), ((2, 2),), False), Pool("max", (4,), (3,), ((1, 0),)),
        Resample((3,), "linear"), Resample((2,)), Pad(((40, 30),), "reflect"),
        Pad(((9, -7),), "replicate"), PixelShuffle((2,)),
    ):  # fmt: skip
        for threads in (1, 3):
            checked(Case(operation, (shape,), layout, threads=threads, slack=64), steps)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_large_strides_and_factors(layout):
    """No code grows with them: windows over all positions, long strides, large factors."""
    none = (0, 0)
    for operation, shape in (
        (Pool("average", (40, 300), (40, 300), (none, none)), (2, 5, 40, 300)),
        (Pool("max", (40, 30), (1000, 1000), ((3, 4), (5, 6))), (2, 5, 40, 30)),
        (Pool("average", (700,), (700,), ((9, 3),), False), (1, 3, 9001)),
        (Pool("max", (3, 5), (2, 37), (none, (2, 2))), (2, 20, 9, 500)),
        (Resample((3, 127)), (2, 3, 4, 9)), (Resample((64,), "linear"), (1, 20, 11)),
        (Resample((40, 2), "linear"), (1, 20, 3, 4)), (PixelShuffle((17,)), (2, 34, 13)),
        (PixelShuffle((2, 32)), (1, 192, 3, 5)), (PixelShuffle((5, 5)), (1, 75, 4, 3)),
    ):  # fmt: skip
        for view in (False, True):
            case = Case(operation, (shape,), layout, threads=3, view=view, out_view=view)
            checked(replace(case, slack=4096), steps)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_threads_do_not_change_bits(layout):
    rng = np.random.default_rng(5)
    x = rng.standard_normal(layout.shape(2, 7, (60, 50))).astype(np.float32)
    for operation, size in ((Pool("average", (3, 3), (2, 2), ((1, 1), (1, 1))), (30, 25)),
                            (Resample((2, 3), "linear"), (120, 150))):  # fmt: skip
        results = set()
        for threads in (1, 2, 8):
            out = np.empty(layout.shape(2, 7, size), np.float32)
            run(steps(operation, [out], [x], Target(layout, threads, host())))
            results.add(out.tobytes())
        assert len(results) == 1


def test_a_new_size_compiles_nothing():
    def prepared(size):
        x, out = (
            np.zeros((1, 4, size, size), np.float32),
            np.zeros((1, 4, 2 * size, 2 * size), "f4"),
        )
        pooled = np.zeros((1, 4, size // 2, size // 2), np.float32)
        pool = Pool("max", (2, 2), (2, 2), ((0, 0), (0, 0)))
        assert steps(Resample((2, 2), "linear"), [out], [x], Target(DataLayout.NCX, 2, host()))
        assert steps(pool, [pooled], [x], Target(DataLayout.NCX, 2, host()))

    prepared(20)
    before = windows.line_code.cache_info().misses
    for size in (22, 64, 130):
        prepared(size)
    assert windows.line_code.cache_info().misses == before
