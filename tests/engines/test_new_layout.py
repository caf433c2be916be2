"""A new data layout is two files: a test adds one there and holds engines and gradients to it.

`problem.py` says how its axes are ordered. The JIT engine hands its kernels a view in a layout
that they have.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

import upconv
from upconv import testing
from upconv.engines import load
from upconv.primitives import cache_clear
from upconv.problem import DataLayout, Direction, Problem

NAME = "CNX"


class Viewed:
    """A primitive of an NCX problem, run on views of arrays in another layout."""

    run_once = None  # so that calls pack first

    def __init__(self, inner: Any, problem: Problem) -> None:
        self._inner, self._problem = inner, problem

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def run(self, out, a, b, bias=None, residual=None, slopes=None, second=None) -> None:
        order = self._problem.layout.to_ncx(self._problem.rank)
        if self._problem.direction is Direction.WEIGHT_GRAD:
            b = b.transpose(order)
        else:
            out = out.transpose(order)
            residual, second = (
                None if v is None else v.transpose(order) for v in (residual, second)
            )
        self._inner.run(out, a.transpose(order), b, bias, residual, slopes, second)


def seen(method: Any, as_ncx: Any) -> Any:
    """A method of an engine, which is asked about the NCX problem."""

    def asked(self, problem, *given, **more):
        return method(self, as_ncx(problem), *given, **more)

    return asked


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[DataLayout]:
    """The layout, with channels before images."""
    member = object.__new__(DataLayout)
    member._name_ = member._value_ = NAME
    monkeypatch.setattr(DataLayout, "_member_names_", [*DataLayout._member_names_, NAME])
    monkeypatch.setitem(DataLayout._member_map_, NAME, member)
    monkeypatch.setitem(DataLayout._value2member_map_, NAME, member)

    def shape(layout, batch, channels, size, usual=DataLayout.shape):
        usual_shape = usual(layout, batch, channels, size)
        return (channels, batch, *size) if layout is member else usual_shape

    def to_ncx(layout, rank, usual=DataLayout.to_ncx):
        return (1, 0, *range(2, rank + 2)) if layout is member else usual(layout, rank)

    def as_ncx(problem: Problem) -> Problem:
        return problem.replace(layout=DataLayout.NCX) if problem.layout is member else problem

    monkeypatch.setattr(DataLayout, "shape", shape)
    monkeypatch.setattr(DataLayout, "to_ncx", to_ncx)
    engine = type(load("jit"))
    for name in ("refuses", "candidates", "variants"):
        monkeypatch.setattr(engine, name, seen(getattr(engine, name), as_ncx))

    def build(self, problem, threads, variant="", usual=engine.build):
        primitive = usual(self, as_ncx(problem), threads, variant)
        return Viewed(primitive, problem) if problem.layout is member else primitive

    monkeypatch.setattr(engine, "build", build)
    yield member
    cache_clear()


@pytest.mark.parametrize("engine", ["jit", "reference"])
def test_engines_are_held_to_it(engine: str, added: DataLayout) -> None:
    for problem in testing.cases()[::3]:
        if problem.layout is DataLayout.NCX:
            other = problem.replace(layout=added)
            if load(engine).refuses(other) is None:
                testing.check(load(engine), other, threads=2)


def test_calls_and_gradients_take_it(added: DataLayout) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s, np.float32) for s in ((2, 6, 9, 10), (6, 5, 3, 3)))
    bias, swapped = rng.standard_normal(5, np.float32), np.ascontiguousarray(x.swapaxes(0, 1))
    y = upconv.conv_transpose(x, w, bias, stride=2, activation="gelu", engine="jit")
    result = upconv.conv_transpose(
        swapped, w, bias, stride=2, activation="gelu", layout=NAME, engine="jit"
    )
    np.testing.assert_array_equal(result.swapaxes(0, 1), y)
    expected = upconv.conv_transpose_backward(y, x, w, stride=2, engine="jit")
    gradients = upconv.conv_transpose_backward(
        result, swapped, w, stride=2, layout=NAME, engine="jit"
    )
    np.testing.assert_allclose(gradients.x.swapaxes(0, 1), expected.x, rtol=0, atol=1e-3)
    np.testing.assert_allclose(gradients.weight, expected.weight, rtol=0, atol=1e-2)
    np.testing.assert_allclose(gradients.bias, expected.bias, rtol=0, atol=1e-2)
