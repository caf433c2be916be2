"""Code belongs to a layer's class: another size of a layer compiles nothing."""

from __future__ import annotations

import pytest

from upconv.engines import load
from upconv.engines.jit import compile as compiling
from upconv.geometry import padded
from upconv.problem import Direction, Problem

# Channels in and out, kernel, stride, padding of every axis.
LAYERS = [(64, 32, 2, 2, 0), (32, 24, 4, 2, 1), (48, 48, 3, 1, 1), (21, 21, 16, 8, 4)]


def layer(sizes: tuple[int, ...], spec: tuple[int, int, int, int, int]) -> Problem:
    i, o, k, s, p = spec
    axes = tuple(padded(size, k, s, 1, p, p, 0) for size in sizes)
    return Problem(Direction.FORWARD, axes, 1, i, o, bias=True)


@pytest.mark.parametrize("spec", LAYERS, ids=str)
def test_another_size_compiles_nothing(spec, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, compiled, make = load("jit"), [], compiling.Code.__init__

    def count(self, module, names, cpu, opt=2) -> None:
        compiled.append(names)
        make(self, module, names, cpu, opt)

    monkeypatch.setattr(compiling.Code, "__init__", count)
    engine.build(layer((60, 62), spec), 2)
    compiled.clear()
    for sizes in ((64, 64), (33, 100), (57, 48), (200, 35)):
        assert engine.build(layer(sizes, spec), 2).description.startswith("positions")
    assert not compiled
    engine.build(layer((60, 62), (*spec[:2], spec[2] + 9, *spec[3:])), 2)
    assert compiled, "another kernel is another class"
