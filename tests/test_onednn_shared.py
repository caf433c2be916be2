"""One reorder of the gradient for both results that read it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import upconv
from upconv import memory
from upconv.engines import load
from upconv.errors import EngineMissing
from upconv.geometry import Axis
from upconv.problem import Direction, DType, Problem

try:
    ENGINE = load("onednn")
except EngineMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

from upconv.engines.onednn.primitive import OnednnPrimitive

PROBLEM = Problem(
    Direction.INPUT_GRAD, (Axis(9, 4, 2, 1, 1, 1), Axis(11, 4, 2, 1, 1, 1)), 2, 32, 48
)
GRADIENTS = [Direction.INPUT_GRAD, Direction.WEIGHT_GRAD]


def drawn(shape: tuple[int, ...], seed: int, dtype: object = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def primitive(direction: Direction) -> OnednnPrimitive:
    made = ENGINE.build(PROBLEM.replace(direction=direction), 2)
    assert isinstance(made, OnednnPrimitive)
    return made


def operands(direction: Direction) -> list[np.ndarray]:
    return [drawn(shape, i) for i, shape in enumerate(_problem(direction).operand_shapes)]


def _problem(direction: Direction) -> Problem:
    return PROBLEM.replace(direction=direction)


@pytest.mark.parametrize(
    ("direction", "position"), [(way, 0) for way in GRADIENTS] + [(Direction.WEIGHT_GRAD, 1)]
)
def test_an_operand_reordered_before_gives_the_same_bits(
    direction: Direction, position: int
) -> None:
    made, given = primitive(direction), operands(direction)
    if made.form(position) is None:
        pytest.skip("the library takes it as it lies on this processor")
    pair = list(given)
    if direction is Direction.INPUT_GRAD:
        pair[1] = made.pack(given[1])
    shape = _problem(direction).result_shape
    plain, shared = np.empty(shape, np.float32), np.empty(shape, np.float32)
    made.run(plain, *pair)
    with made.reordered(position, given[position]) as there:
        pair[position] = there
        made.run(shared, *pair)
    np.testing.assert_array_equal(shared, plain)
    made.close()


@pytest.mark.parametrize("direction", GRADIENTS)
def test_what_is_not_finite_reaches_the_reference_engine(direction: Direction) -> None:
    made, given = primitive(direction), operands(direction)
    given[1][0, 0, 0, 0] = np.inf
    expected = np.empty(_problem(direction).result_shape, np.float32)
    found = expected.copy()
    by = load("reference").build(_problem(direction), 1)
    second = [given[1], given[1]]
    if direction is Direction.INPUT_GRAD:
        second = [by.pack(given[1]), made.pack(given[1])]
    by.run(expected, given[0], second[0])
    with made.reordered(0, given[0]) as there:
        made.run(found, there, second[1])
    assert not np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    made.close()


def test_forms_are_equal_where_layouts_are() -> None:
    one, same, other = (primitive(way) for way in (*GRADIENTS[:1], *GRADIENTS))
    assert one.form(0) == same.form(0)
    assert one.form(0) != other.form(1)
    assert one.form(0) is None or one.form(0) != 0


def test_no_room_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    made, g = primitive(Direction.INPUT_GRAD), operands(Direction.INPUT_GRAD)[0]
    if made.form(0) is None:
        pytest.skip("the library takes it as it lies on this processor")

    def nothing_fits(nbytes: int, what: str) -> None:
        raise memory.refused(what, None)

    monkeypatch.setattr(memory, "require", nothing_fits)
    with pytest.raises(upconv.MemoryLimitError, match="the reordered gradient"):
        made.reordered(0, g).__enter__()


def required(dtype: DType) -> np.dtype:
    """The NumPy type; skips where the library has nothing but reference loops for its gradients."""
    for direction in GRADIENTS:
        reason = ENGINE.refuses(_problem(direction).replace(dtype=dtype))
        if reason:
            pytest.skip(reason)
    return dtype.numpy


class TestGradients:
    """`conv_transpose_backward` and `conv_backward` as a whole, with the forms they happen to have
    here, and with equal ones, which bfloat16 has where there are AMX units."""

    @pytest.fixture
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """One entry per reordering that is shared."""
        made: list[int] = []
        plain = OnednnPrimitive.reordered

        def counting(self: OnednnPrimitive, position: int, operand: np.ndarray) -> object:
            made.append(position)
            return plain(self, position, operand)

        monkeypatch.setattr(OnednnPrimitive, "reordered", counting)
        return made

    @pytest.mark.parametrize("accumulate", [False, True])
    @pytest.mark.parametrize("backward", [upconv.conv_transpose_backward, upconv.conv_backward])
    @pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
    def test_are_the_same_shared_or_not(
        self,
        counted: list[int],
        monkeypatch: pytest.MonkeyPatch,
        dtype: DType,
        backward: Callable[..., upconv.Gradients],
        accumulate: bool,
    ) -> None:
        kind = required(dtype)
        shapes = (2, 32, 40, 36), (2, 32, 20, 18)
        if backward is upconv.conv_backward:
            shapes = shapes[1], shapes[0]
        g, x, w = (
            drawn(shapes[0], 1, kind),
            drawn(shapes[1], 2, kind),
            drawn((32, 32, 4, 4), 3, kind),
        )
        asked = {"stride": 2, "padding": 1, "needs": ("x", "weight"), "engine": "onednn"}

        def gradients() -> upconv.Gradients:
            if not accumulate:
                return backward(g, x, w, **asked)
            into = upconv.Gradients(np.ones(x.shape, kind), np.ones(w.shape, kind))
            return backward(g, x, w, accumulate=True, out=into, **asked)

        found = gradients()
        shared = len(counted)
        monkeypatch.setattr(OnednnPrimitive, "form", lambda self, position: None)
        expected = gradients()
        assert len(counted) == shared <= 1
        for name in ("x", "weight"):
            pair = (getattr(result, name).astype(np.float32) for result in (found, expected))
            np.testing.assert_array_equal(*pair)

    def test_share_it_where_both_want_the_same(
        self, counted: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The weight gradient is made to read what the data gradient reads."""
        plain = ENGINE.build

        def build(problem: Problem, threads: int, variant: str = "") -> OnednnPrimitive:
            made = plain(problem, threads, variant)
            assert isinstance(made, OnednnPrimitive)
            return made if problem.direction is Direction.INPUT_GRAD else _Obedient(made)

        monkeypatch.setattr(type(ENGINE), "build", lambda self, *given: build(*given))
        upconv.cache_clear()
        x, w = drawn((2, 32, 9, 11), 1), drawn((32, 48, 4, 4), 2)
        g = drawn((2, 48, 18, 22), 3)
        found = upconv.conv_transpose_backward(
            g, x, w, stride=2, padding=1, needs=("x", "weight"), engine="onednn"
        )
        upconv.cache_clear()
        expected = upconv.conv_transpose_backward(
            g, x, w, stride=2, padding=1, needs=("x", "weight"), engine="reference"
        )
        assert len(counted) == (primitive(Direction.INPUT_GRAD).form(0) is not None)
        np.testing.assert_allclose(found.x, expected.x, rtol=1e-4, atol=1e-3)
        np.testing.assert_allclose(found.weight, expected.weight, rtol=1e-4, atol=1e-3)

    @pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.BFLOAT16])
    def test_do_not_without_a_batch(self, counted: list[int], dtype: DType) -> None:
        kind = required(dtype)
        x, w, g = (
            drawn(shape, i, kind)
            for i, shape in enumerate([(32, 9, 11), (32, 48, 4, 4), (48, 18, 22)])
        )
        upconv.conv_transpose_backward(g, x, w, stride=2, padding=1, engine="onednn")
        assert not counted


class _Obedient:
    """A weight gradient that wants `g` as the data gradient does, and unpacks what it is handed."""

    def __init__(self, made: OnednnPrimitive) -> None:
        self._made, self._other = made, primitive(Direction.INPUT_GRAD)

    def __getattr__(self, name: str) -> object:
        return getattr(self._made, name)

    def form(self, position: int) -> object:
        return self._other.form(position)

    def run(self, out: np.ndarray, a: object, b: np.ndarray, *rest: object) -> None:
        self._made.run(out, getattr(a, "array", a), b)
