"""Measure a part of a graph: its network against PyTorch's functions, on random data."""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import fx

from ..arrays import Array
from ..measuring import Way, choose
from .parts import Part
from .support import value_of
from .tensors import Tensor, array, numbers


class Verdict(NamedTuple):
    """Seconds of a part in PyTorch and in its network, and why PyTorch keeps it; "" if not."""

    before: float | None
    after: float | None
    why: str


def measured(part: Part, known: Mapping[fx.Node, Tensor], seconds: float) -> Verdict:
    """Measure a part on random data of the sizes in its graph, if these are known.

    known: the tensors of the graph's inputs that are weights. seconds: the time for samples.
    """
    inputs, weights = (list(nodes) for nodes in part.node.args[:2])
    values = [value_of(node) for node in inputs]
    if any(size is None for value in values for size in _hints(value)):
        return Verdict(None, None, "its sizes depend on data")
    operands = [*map(_random, values)]
    constants = [
        known[node] if node in known else attrgetter(str(node.target))(node.graph.owning_module)
        for node in weights
    ]
    with torch.no_grad():
        choice = choose(
            [
                Way("PyTorch", lambda: part.by_pytorch(operands, constants)),
                Way("upconv", lambda: part.run(operands, constants)),
            ],
            seconds=seconds,
            arrays=lambda results: map(array, results),
            truth=lambda: _in_float32(part, operands, constants),
        )
    ours = choice["upconv"]
    return Verdict(choice.baseline.seconds, ours.seconds, part.reason or ours.why)


def _in_float32(part: Part, inputs: list[Tensor], weights: list[Tensor]) -> list[Array]:
    """Return a part's results in float32; no results if PyTorch's functions refuse that."""
    try:
        results = part.by_pytorch(*([x.float() for x in tensors] for tensors in (inputs, weights)))
    except (RuntimeError, TypeError):
        return []
    return [*map(array, results)]


def _hints(value: Tensor) -> list[int | None]:
    """Return sizes and strides as in the trace; None for those that depend on data."""
    entries = (*value.shape, *value.stride())
    return [entry if type(entry) is int else entry.node.hint for entry in entries]


def _random(like: Tensor) -> Tensor:
    """Return random data with the sizes and strides of a fake tensor; elements may overlap."""
    sizes, strides = numbers(like.shape), numbers(like.stride())
    count = 1 + sum((n - 1) * step for n, step in zip(sizes, strides, strict=True))
    return torch.randn(max(0, count)).to(like.dtype).as_strided(sizes, strides)
