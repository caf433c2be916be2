"""Pointwise chains of networks as native code, against their definitions."""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.support import native_steps
from tests.support.native_steps import DTYPES, LAYOUTS, Case, checked, run
from upconv.engines.jit import chains, elementary
from upconv.engines.jit.chains import EMITTERS, chain_code
from upconv.engines.jit.cpu import host
from upconv.network import matrices
from upconv.network.definitions import chain_results
from upconv.network.graph import EXCHANGED, Input, Op, Pointwise
from upconv.network.pointwise import steps
from upconv.network.tables import Target
from upconv.problem import DataLayout, DType

SHAPES = [
    (2, 6, 37), (1, 3, 130), (2, 5, 9, 13), (3, 4, 2, 3, 5), (2, 40, 3), (1, 7, 3, 1), (4, 1, 1),
]  # fmt: skip


OPERANDS = {
    "leaky_relu": (float,),
    "elu": (float,),
    "prelu": (np.ndarray,),
    "snake": (np.ndarray,),
    **dict.fromkeys(EXCHANGED, (float, np.ndarray)),
}
"""Operation -> the kinds of its operand beside another value; no entry where it has none."""


def operand(name: str, channels: int, rng: np.random.Generator) -> float | np.ndarray | None:
    """An operand that an operation may have."""
    kinds = OPERANDS.get(name, ())
    if not kinds:
        return None
    if name == "div" and rng.integers(2):
        return float(rng.uniform(0.3, 1.5))
    if float in kinds and (np.ndarray not in kinds or rng.integers(2)):
        return float(rng.uniform(-1.5, 1.5))
    return rng.uniform(0.3, 1.5, channels)


TAME = [name for name in EMITTERS if name not in ("exp", "sqrt", "rdiv", "square")]
"""The operations that do not make a small error of an operand a large one of the result."""


def drawn(seed: int) -> Case:
    """A random chain on random arrays."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    most = {1: 3000, 2: 50, 3: 12}[rank]
    shape = (
        int(rng.integers(1, 4)),
        int(rng.integers(1, 20)),
        *rng.integers(1, most, rank).tolist(),
    )
    inputs, chain = int(rng.integers(1, 4)), []
    spread = [bool(rng.integers(2)) for _ in range(inputs - 1)]
    shapes = [shape, *(narrowed(shape, rng) if narrow else shape for narrow in spread)]
    for _ in range(rng.integers(0, 6)):
        name = str(rng.choice([*TAME, "store", "add", "mul"]))
        if name in ("add", "sub", "mul", "maximum") and rng.integers(2):
            number = int(rng.integers(inputs))
            chain.append(Op(name, Input(number, shapes[number] != shape)))
        else:
            value = None if name == "store" else operand(name, shape[1], rng)
            chain.append(Op(name, value))
    case = Case(
        Pointwise(tuple(chain)), tuple(shapes), LAYOUTS[rng.integers(2)],
        DTYPES[rng.integers(3)], int(rng.integers(1, 9)), seed=seed, spread=1.0,
        view=bool(rng.integers(2)), out_view=bool(rng.integers(2)), in_place=bool(rng.integers(2)),
        special=bool(rng.integers(4) == 0),
    )  # fmt: skip
    return replace(case, scale=reach(case), slack=16 * (1 + len(chain)))


def narrowed(shape: tuple[int, ...], rng: np.random.Generator) -> tuple[int, ...]:
    """A shape that is broadcast: 1 along some of the batch, the channels and all positions."""
    batch, channels, positions = (int(n) for n in rng.integers(2, size=3))
    axes = (batch, channels, *[positions] * (len(shape) - 2))
    return tuple(n if keeps else 1 for n, keeps in zip(shape, axes, strict=True))


def reach(case: Case) -> np.ndarray:
    """What numbers a chain meets: errors are units of these, not of results that cancel."""
    rng = np.random.default_rng(case.seed)
    arrays = tuple(
        native_steps._numbers(rng, shape, case).astype(np.float64) for shape in case.shapes
    )
    chain = [op for op in case.operation.chain if op.name != "store"]
    watched = tuple(one for op in chain for one in (op, Op("store")))
    with np.errstate(all="ignore"):
        values = chain_results(watched, arrays[0], arrays)
        return np.maximum(1, np.max([np.abs(np.nan_to_num(v)) for v in values], axis=0))


def test_operands_of_every_shape_are_broadcast():
    """One channel, position or image of an operand stands for all, in both layouts."""
    for seed, shape in enumerate(SHAPES):
        for axes in itertools.product((False, True), repeat=3):
            spread = (*axes[:2], *[axes[2]] * (len(shape) - 2))
            other = tuple(n if full else 1 for n, full in zip(shape, spread, strict=True))
            for layout, dtype, name in itertools.product(LAYOUTS, DTYPES, ("sub", "rdiv")):
                operand = Input(1, other != shape)
                chain = (Op("tanh"), Op("store"), Op(name, operand), Op("mul", np.ones(shape[1])))
                case = Case(Pointwise(chain[: 4 - seed % 2]), (shape, other), layout, dtype, 2)
                checked(replace(case, seed=seed, view=True, mean=9.0, spread=1.0), steps)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", EMITTERS)
def test_every_operation_has_the_values_of_its_definition(name, layout):
    rng = np.random.default_rng(1)
    for seed, shape in enumerate(SHAPES):
        for dtype in DTYPES:
            chain = (Op(name, operand(name, shape[1], rng)),)
            case = Case(Pointwise(chain), (shape,), layout, dtype, 2, seed=seed)
            checked(replace(case, scale=reach(case)), steps)
            special = replace(case, special=True, slack=32)
            checked(replace(special, scale=reach(special)), steps)


@pytest.mark.parametrize("seed", range(60))
def test_random_chains(seed):
    checked(drawn(seed), steps)


def test_functions_are_accurate():
    """In units of the last place, or of the argument's where it is large."""
    rng = np.random.default_rng(3)
    v = np.concatenate([rng.uniform(-100, 30, 20000), rng.uniform(-2, 2, 20000)])
    for dtype, unit in ((np.float32, 2.0**-23), (np.float64, 2.0**-52)):
        given = v.astype(dtype)
        wide = given.astype(np.longdouble)
        for name, value, exact in (
            ("softplus", None, np.log1p(np.exp(-np.abs(wide))) + np.maximum(wide, 0)),
            ("elu", 1.0, np.where(wide > 0, wide, np.expm1(np.minimum(wide, 0)))),
            ("snake", np.ones(1), wide + np.sin(wide) ** 2),
            ("exp", None, np.exp(wide)),
            ("sin", None, np.sin(wide)),
            ("cos", None, np.cos(wide)),
            ("mish", None, wide * np.tanh(np.log1p(np.exp(wide)))),
            ("gelu_tanh", None, _gelu_tanh(wide)),
        ):
            out = np.empty_like(given)
            arrays = (out.reshape(1, 1, -1),), (given.reshape(1, 1, -1),)
            run(steps(Pointwise((Op(name, value),)), *arrays, Target(DataLayout.NCX, 1, host())))
            size = np.abs(wide) + 1 if name in ("snake", "sin", "cos") else np.abs(exact)
            tiny = np.finfo(dtype).tiny
            if name in ("mish", "gelu_tanh"):  # a factor of v may be rounded as a subnormal number
                tiny = tiny * np.maximum(1, np.abs(wide))
            if name == "gelu_tanh":  # where exp(v^3) is small, it errs by v^3 units
                size = size * np.maximum(2, np.abs(wide) ** 3 / 8)
            assert np.all(np.abs(out - exact) <= 4 * unit * np.maximum(size, tiny)), name


def _gelu_tanh(v):
    """By a logistic function, as 1 + tanh cancels."""
    u = 2 * np.sqrt(2 / np.longdouble(np.pi)) * (v + 0.044715 * v**3)
    return v / (1 + np.exp(np.minimum(-u, 11000)))


def test_a_new_size_or_number_compiles_nothing():
    def prepared(positions, slope):
        arrays = [np.zeros((1, 8, positions), np.float32) for _ in range(2)]
        chain = (Op("leaky_relu", slope), Op("mul", np.ones(8)))
        return steps(Pointwise(chain), arrays[:1], arrays[1:], Target(DataLayout.NCX, 2, host()))

    prepared(1000, 0.1)
    before = chain_code.cache_info().misses
    times = []
    for positions in range(1001, 1011):
        start = time.thread_time()
        prepared(positions, positions / 1e4)
        times.append(time.thread_time() - start)
    assert chain_code.cache_info().misses == before
    assert min(times) < 1e-3  # 0.1 ms on a machine without other work


def test_threads_do_not_change_bits():
    rng = np.random.default_rng(5)
    x = rng.standard_normal((1, 16, 10_000)).astype(np.float32)
    results = []
    for threads in (1, 2, 3, 8):
        out = np.empty_like(x)
        chain = (Op("gelu"), Op("mul", np.arange(16.0)), Op("snake", np.ones(16)))
        run(steps(Pointwise(chain), [out], [x], Target(DataLayout.NCX, threads, host())))
        results.append(out.tobytes())
    assert len(set(results)) == 1


def test_empty_arrays_have_no_steps():
    empty = np.zeros((0, 3, 5), np.float32)
    assert (
        steps(Pointwise((Op("relu"),)), [empty], [empty], Target(DataLayout.NCX, 1, host())) == []
    )


@pytest.mark.parametrize("name", ["relu", "elu", "softplus", "snake", "prelu"])
def test_a_planted_fault_is_seen(name, monkeypatch):
    """A wrong number in an operation, or a table that begins a channel late."""
    shape = (1, 6, 70)
    case = Case(Pointwise((Op(name, operand(name, 6, np.random.default_rng(0))),)), (shape,))
    checked(case, steps)
    chain_code.cache_clear()
    if name == "prelu":
        table = matrices.Matrices.table
        late = lambda self, numbers: table(self, np.roll(numbers, 1))  # noqa: E731
        monkeypatch.setattr(matrices.Matrices, "table", late)
    elif name == "relu":
        monkeypatch.setitem(chains.EMITTERS, name, lambda f, v, _: v)
    elif name == "elu":
        monkeypatch.setattr(chains, "expm1_of_negative", lambda f, v: v)
    elif name == "softplus":
        monkeypatch.setattr(elementary.Lanes, "at_least", lambda self, limit, v: v)
        monkeypatch.setattr(elementary.Lanes, "magnitude", lambda self, v: v)
    else:
        monkeypatch.setattr(elementary, "_PI", {"float": (3.14,) * 1, "double": (3.14,)})
    with pytest.raises(AssertionError):
        checked(case, steps)
    chain_code.cache_clear()


def test_float32_and_bfloat16_in_one_chain():
    """Each array has an element type of its own; results are rounded once."""
    rng = np.random.default_rng(9)
    x = rng.standard_normal((2, 3, 50)).astype(np.float32)
    y = rng.standard_normal((2, 3, 50)).astype(DType.BFLOAT16.numpy)
    out = np.empty(x.shape, DType.BFLOAT16.numpy)
    second = np.empty_like(x)
    chain = (Op("add", Input(1)), Op("store"), Op("mul", 3.0))
    run(steps(Pointwise(chain), [out, second], [x, y], Target(DataLayout.NCX, 1, host())))
    total = x + y.astype(np.float32)
    assert np.array_equal(out, total.astype(out.dtype))
    assert np.array_equal(second, total * np.float32(3))
