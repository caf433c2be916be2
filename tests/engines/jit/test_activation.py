"""The activations as machine code, against long double, in units of the last place."""

import ctypes
import math
import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from llvmlite import binding as llvm
from numpy.typing import NDArray

from upconv.activations import Activation, apply
from upconv.engines.jit import activation as subject
from upconv.engines.jit import compile as compiler
from upconv.engines.jit import cpu as cpus
from upconv.engines.jit.cpu import Cpu
from upconv.engines.jit.emit import Module
from upconv.engines.jit.values import BYTES, DOUBLE, FLOAT, I64, PTR, vector

Array = NDArray[np.floating]
WIDE = np.longdouble
DTYPES = {FLOAT: np.float32, DOUBLE: np.float64}
ELEMENTS = [
    FLOAT,
    pytest.param(
        DOUBLE,
        marks=pytest.mark.skipif(
            np.finfo(WIDE).nmant < 60, reason="no long double here that is wider than double"
        ),
    ),
]
# What the docstring of the module measured, with room for values these tests happen to meet.
SMOOTH = (Activation.TANH, Activation.SIGMOID, Activation.SILU)
ALLOWED, GELU_ALLOWED = 3.0, 5.0  # below -1, times the square of the argument


def processors() -> list[str]:
    """This machine's own processor and the older ones that it can stand in for."""
    if not llvm.get_process_triple().startswith("x86_64"):
        return [""]
    features = llvm.get_host_cpu_features()
    return ["", "x86-64", *(["haswell"] if features.get("avx2") and features.get("fma") else [])]


def emitted(cpu: Cpu, activation: Activation, slope: float, kind: str, lanes: int) -> Module:
    """A module whose `run(x, y, count)` activates `count` numbers, `lanes` at a time."""
    module, element = Module(cpu), kind.strip("<>").split()[-1]
    parameters = {"x": PTR, "y": PTR, "count": I64}
    with module.function("run", parameters) as f, f.loop(0, f["count"], lanes) as loop:
        value = f.load(kind, f.at(f["x"], loop.index, element))
        result = subject.activated(f, activation, slope, value)
        assert result.type == kind
        f.store(result, f.at(f["y"], loop.index, element))
    return module


def compiled(
    cpu: Cpu, activation: Activation, element: str, slope: float = 0.0, lanes: int | None = None
) -> Callable[[Array], Array]:
    """The activation as a function of an array; `lanes` 0 is scalar code, None a whole register."""
    width = cpu.lanes(BYTES[element]) if lanes is None else lanes
    kind = vector(element, width) if width else element
    code = compiler.Code(emitted(cpu, activation, slope, kind, width or 1), ("run",), cpu)
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    run = prototype(code.addresses["run"])

    def call(values: Array) -> Array:
        assert code.addresses  # the code lives as long as this does
        whole = np.zeros(-(-values.size // 64) * 64, DTYPES[element])
        whole[: values.size] = values
        result = np.empty_like(whole)
        run(whole.ctypes.data, result.ctypes.data, whole.size)
        return result[: values.size]

    return call


@lru_cache(maxsize=2)
def points(element: str) -> Array:
    """Every exponent of both signs, subnormal too, the ranges that matter, every limit's sides."""
    dtype, form = DTYPES[element], subject._FORMATS[element]
    rng = np.random.default_rng(7)
    bits = np.dtype(f"u{BYTES[element]}")
    anywhere = rng.integers(0, 2 ** (8 * bits.itemsize), 40_000, bits).view(dtype)
    limits = [form.one, form.one / 2, form.zero, form.gelu_zero, 1, 0.0, np.finfo(dtype).tiny]
    halves = np.arange(-40, 40) * math.log(2) / 2  # where n changes
    exact = np.concatenate([limits, np.negative(limits), halves, halves / 2]).astype(dtype)
    near = [exact]
    for direction in (-np.inf, np.inf):
        step = exact
        for _ in range(20):
            step = np.nextafter(step, dtype(direction))
            near.append(step)
    ranges = [(-2, 2), (-1.2, 0), (-12, 12), (form.zero * 1.01, 50), (-0.7, 0.7), (-1e-3, 1e-3)]
    uniform = [rng.uniform(low, high, 30_000).astype(dtype) for low, high in ranges]
    finite = np.concatenate([anywhere, *near, *uniform])
    return finite[np.isfinite(finite)]


def truth(activation: Activation, values: Array) -> Array:
    """The activation of finite values in long double."""
    v = values.astype(WIDE)
    if activation is Activation.TANH:
        return np.tanh(v)
    decay = np.exp(-np.abs(v))
    if activation is Activation.SIGMOID:
        return np.where(v >= 0, 1, decay) / (1 + decay)
    if activation is Activation.SILU:
        return v * (np.where(v >= 0, 1, decay) / (1 + decay))
    v = np.maximum(v, -45)  # where gelu has long been 0
    tail = np.vectorize(math.erfc, otypes=[WIDE])(np.abs(v) / np.sqrt(WIDE(2))) / 2
    return v * np.where(v < 0, tail, 1 - tail)


@lru_cache(maxsize=8)
def wanted(activation: Activation, element: str) -> Array:
    with np.errstate(all="ignore"):
        return truth(activation, points(element))


def errors(activation: Activation, element: str, got: Array) -> Array:
    """The distance of each result from the truth in units of the last place."""
    true = wanted(activation, element)
    with np.errstate(all="ignore"):
        largest = np.finfo(got.dtype).max / 2
        unit = np.spacing(np.minimum(np.abs(true).astype(got.dtype), largest))
        distance: Array = np.abs(got.astype(WIDE) - true) / unit.astype(WIDE)
    assert not np.isnan(distance).any()
    return distance


@pytest.fixture(params=processors(), ids=lambda name: name or "host")
def cpu(request: pytest.FixtureRequest) -> Cpu:
    return cpus._host(request.param)


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("activation", SMOOTH)
def test_close_to_the_truth(cpu: Cpu, activation: Activation, element: str) -> None:
    got = compiled(cpu, activation, element)(points(element))
    assert errors(activation, element, got).max() <= ALLOWED


@pytest.mark.parametrize("element", ELEMENTS)
def test_gelu_close_to_the_truth(cpu: Cpu, element: str) -> None:
    values = points(element)
    found = errors(Activation.GELU, element, compiled(cpu, Activation.GELU, element)(values))
    assert (found <= GELU_ALLOWED * np.square(np.minimum(values, -1).astype(WIDE))).all()


@pytest.mark.parametrize("element", [FLOAT, DOUBLE])
@pytest.mark.parametrize("activation", Activation)
def test_close_to_the_reference(cpu: Cpu, activation: Activation, element: str) -> None:
    """The same as `upconv.activations.apply`, where that is as good as its 8 units claim."""
    values = points(element)
    expected = values.copy()
    slope = 0.3 if activation is Activation.LEAKY_RELU else 0.0
    apply(activation, slope, expected)
    got = compiled(cpu, activation, element, slope)(values)
    if activation in (Activation.NONE, Activation.RELU, Activation.LEAKY_RELU):
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(expected))
    else:
        step = np.finfo(values.dtype).eps
        np.testing.assert_allclose(got, expected, rtol=8 * step, atol=8 * step)


@pytest.mark.parametrize("element", [FLOAT, DOUBLE])
@pytest.mark.parametrize(
    ("activation", "slope"),
    [*((a, 0.0) for a in Activation), *((Activation.LEAKY_RELU, s) for s in (0.3, -2.0, 1e300))],
)
def test_special_values(cpu: Cpu, activation: Activation, element: str, slope: float) -> None:
    """NaN, infinities and zeros as the reference has them, in vectors and in scalars."""
    big = np.finfo(DTYPES[element]).max
    values = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, big, -big], DTYPES[element])
    expected = values.copy()
    with np.errstate(all="ignore"):
        apply(activation, slope, expected)
    for lanes in (None, 0, 1, 2):
        got = compiled(cpu, activation, element, slope, lanes)(values)
        np.testing.assert_array_equal(got, expected)
        zeros = values == 0
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(expected[zeros]))


@pytest.mark.parametrize("element", [FLOAT, DOUBLE])
@pytest.mark.parametrize("activation", [*SMOOTH, Activation.GELU])
def test_any_lanes_the_same(cpu: Cpu, activation: Activation, element: str) -> None:
    values = points(element)[::7]
    expected = compiled(cpu, activation, element)(values)
    for lanes in (0, 2, 16):
        got = compiled(cpu, activation, element, lanes=lanes)(values)
        np.testing.assert_array_equal(got, expected)


def test_a_wrong_coefficient_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds notice a thousandth of one coefficient: they can fail."""
    form, values = subject._FORMATS[FLOAT], points(FLOAT)
    some = np.abs(values) < 2
    for name, activations in {"series": SMOOTH, "above": (Activation.GELU,)}.items():
        good = getattr(form, name)
        bad = form._replace(**{name: (good[0], good[1] * (1 + 1e-3), *good[2:])})
        monkeypatch.setitem(subject._FORMATS, FLOAT, bad)
        for activation in activations:
            got = compiled(cpus._host(""), activation, FLOAT)(values)
            assert errors(activation, FLOAT, got)[some].max() > 4 * GELU_ALLOWED


TARGETS = [
    *(
        cpus.target("x86_64-unknown-linux-gnu", name, "", cpus._KNOWN[name])
        for name in ("x86-64", "haswell", "skylake-avx512")
    ),
    cpus.target("aarch64-unknown-linux-gnu", "cortex-a72", "", {"neon"}),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.parametrize("element", [FLOAT, DOUBLE])
@pytest.mark.parametrize("activation", Activation)
def test_calls_nothing(target: Cpu, activation: Activation, element: str) -> None:
    """Vectors, halves and scalars become straight code, for processors that are not here too."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    width = target.lanes(BYTES[element])
    for lanes in (width, width // 2, 0):
        kind = vector(element, lanes) if lanes else element
        module = emitted(target, activation, 0.3, kind, lanes or 1)
        text = compiler.assembly(module, target)
        assert "run:" in text
        assert not re.findall(r"^\s(?:call\w*|bl|blr)\s", text, re.MULTILINE)
        assert len(re.findall(r"^  %v", module.text(), re.MULTILINE)) <= 105
