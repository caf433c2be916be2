"""`Fits`: which units of a graph a network can compute, and the axes of their results.

Each unit is tried in a separate network, after the units that it reads. Operators that move axes
fit only if an earlier layer shows which axis is the channel axis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import onnx_ir as ir

from ...errors import EngineRefusal, UpconvError
from ...network import Network
from ...network.axes import Arranged
from ..constants import constant_value
from ..graphs import is_op
from .arranging import moves_axes, suits_any_axes, translate_arranged
from .partition import boundary
from .units import Unit

CONVOLUTIONS = "Conv", "ConvTranspose"
_RECURRENT = "LSTM", "GRU", "RNN"

Arrangement = Mapping[ir.Value, Arranged]


class RefusedError(Exception):
    """A unit that no network computes, or that does not fit into a part."""

    def __init__(self, unit: Unit, reason: str) -> None:
        super().__init__(reason)
        self.unit, self.reason = unit, reason


class _Trial(NamedTuple):
    """Why no network computes a unit ("" if one does), and its results with rearranged axes."""

    reason: str
    arranged: Arrangement


class Fits:
    """Trials of units, one for every order of a unit's input axes."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._trials: dict[object, _Trial] = {}

    def among(
        self, every: Iterable[Unit], kept: Mapping[Unit, str], moves: bool
    ) -> tuple[dict[Unit, str], Arrangement]:
        """Return the units that do not fit, with reasons, and the values with rearranged axes.

        every: all units, in an order in which they can run. kept: units that ONNX Runtime is to
        compute, with reasons. moves: whether operators may move axes.
        """
        refused, arranged = dict(kept), dict[ir.Value, Arranged]()
        known: set[ir.Value] = set()
        for unit in every:
            if unit in refused:
                continue
            is_known = not known.isdisjoint(unit.inputs)
            if moves_axes(unit) and not (is_known and moves):
                refused[unit] = "No earlier layer shows which axis is the channel axis."
                continue
            trial = self._trial(unit, arranged)
            if trial.reason:
                refused[unit] = trial.reason
                continue
            arranged |= trial.arranged
            if is_known or not suits_any_axes(unit):
                known.update(unit.last.outputs)
        return refused, arranged

    def _trial(self, unit: Unit, arranged: Arrangement) -> _Trial:
        read = {x: arranged[x] for x in unit.inputs if x in arranged}
        key = unit, *((x, value.axes) for x, value in read.items())
        if key not in self._trials:
            try:
                if is_op(unit.last, *_RECURRENT):
                    raise RefusedError(unit, f"A part has no {unit.last.op_type}.")
                _, values = _translated([unit], self._opset, read)
                others = {y: x for y, x in values.items() if y not in read and not x.is_plain}
                self._trials[key] = _Trial("", others)
            except RefusedError as error:
                self._trials[key] = _Trial(error.reason, {})
        return self._trials[key]


def network_of(group: list[Unit], opset: int) -> Network:
    """Build a group's network, with the group's inputs and outputs in order.

    Raises `RefusedError` for a unit that does not fit.
    """
    network, values = _translated(group, opset, {})
    network.output(*(values[y].plain() for y in boundary(group)[1]))
    return network


def _translated(
    group: list[Unit], opset: int, arranged: Arrangement
) -> tuple[Network, dict[ir.Value, Arranged]]:
    """Build a group's network without outputs; return it and its values.

    arranged: the group's inputs with rearranged axes.
    """
    shapes, reasons = {}, []
    for x in boundary(group)[0]:
        try:
            shapes[x] = arranged[x].value.shape if x in arranged else _declared(x)
        except UpconvError as error:
            reasons.append(str(error))
    try:
        network = Network({f"x{i}": shape for i, shape in enumerate(shapes.values())})
    except UpconvError as error:
        raise RefusedError(group[0], next(iter(reasons), str(error))) from None
    values = {
        x: Arranged(value, arranged[x].axes) if x in arranged else Arranged.of(value)
        for x, value in zip(shapes, network.inputs.values(), strict=True)
    }
    for unit in group:
        try:
            if any(y.dtype not in (None, ir.DataType.FLOAT) for y in unit.last.outputs):
                raise EngineRefusal("Its result is not float32.")
            translate_arranged(network, unit, values, opset)
            read = [y for y in unit.last.outputs if y.uses() or y.is_graph_output()]
            if not all(y in values for y in read):
                raise EngineRefusal("More than its first result is read.")
        except UpconvError as error:
            raise RefusedError(unit, str(error)) from None
    if reasons:  # a network cannot have such an input, even if no operation reads it
        raise RefusedError(group[0], reasons[0])
    return network, values


def _declared(x: ir.Value) -> tuple[int | None, ...]:
    """Return the shape of a group's input, as far as the model declares it."""
    if x.dtype not in (None, ir.DataType.FLOAT):
        raise EngineRefusal("Its input is not float32.")
    extents = () if x.shape is None else tuple(n if isinstance(n, int) else None for n in x.shape)
    if len(extents) > 2 and extents[1] is not None:
        return extents
    for use in x.uses():
        if use.idx == 0 and is_op(use.node, "Conv", "ConvTranspose"):
            weight = constant_value(use.node.inputs[1]).array
            if weight is not None and weight.ndim > 2:
                transposed = use.node.op_type == "ConvTranspose"
                groups = 1 if transposed else use.node.attributes.get_int("group", 1)
                channels = weight.shape[0 if transposed else 1] * groups
                return None, channels, *(None,) * (weight.ndim - 2)
    if x.dtype is None or x.shape is None:
        raise EngineRefusal("Its input's type or number of axes is unknown.")
    raise EngineRefusal(f"Its input {extents} is not (N, C, *size) with known channels.")
