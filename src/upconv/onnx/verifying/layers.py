"""The values inside two models, compared where both have one under the same name.

The values become outputs of a copy of each model, a group at a time, in the first model's order,
up to the first that differs. A copy with more outputs is optimised less by its runtime: what only a
fusion does is not seen here; the outputs, which decide, come from the models as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...dialects.onnx import Rule
from ...errors import EngineError, MemoryLimitError
from ..runtimes import Runtime
from ..runtimes.inputs import dtype_of, inputs_of
from ..runtimes.worker import borrowed
from .differences import Difference, Place, Tolerances, differences

_GROUP = 32
"""Values that become outputs together."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models, with what it is fed, and the seconds a run may take."""

    model: ir.Model
    feeds: Mapping[str, Array]
    limit: float

    @classmethod
    def of(cls, model: ir.Model, arrays: Mapping[str, Array], limit: float) -> Side:
        """A model with the inputs it has, in its own types."""
        fed = {}
        for value in inputs_of(model):
            array = arrays[str(value.name)]
            fed[str(value.name)] = array.astype(dtype_of(value) or array.dtype, copy=False)
        return cls(model, fed, limit)

    @property
    def places(self) -> dict[str, Place]:
        """What nodes of the main graph make, in their order."""
        made = (value for node in self.model.graph for value in node.outputs if value.name)
        return {str(value.name): place_of(value) for value in made}

    def outputs(self, runtime: Runtime) -> dict[str, Any]:
        """What the model gives."""
        with borrowed(self.limit) as worker, runtime.session(self.model, worker=worker) as session:
            return session.run(self.feeds)

    def inner(self, runtime: Runtime, names: Sequence[str]) -> dict[str, Any]:
        """Values inside, by name."""
        copy = self.model.clone()
        made = {value.name: value for node in copy.graph for value in node.outputs}
        copy.graph.outputs[:] = [made[name] for name in names]
        return Side(copy, self.feeds, self.limit).outputs(runtime)


def place_of(value: ir.Value) -> Place:
    """Where a value is made."""
    node, name = value.producer(), str(value.name)
    return Place(name) if node is None else Place(name, node.name or "", node.op_type, _step(node))


def _step(node: ir.Node) -> float:
    """One step of what a node quantises; of what it dequantises, the largest scale if constant."""
    if node.op_type == "QuantizeLinear":
        return 1.0
    scale = node.inputs[1] if node.op_type == "DequantizeLinear" else None
    tensor = None if scale is None else ir.convenience.get_const_tensor(scale)
    if tensor is None:
        return 0.0
    return float(np.abs(tensor.numpy().astype(np.float64)).max(initial=0.0))


def in_float64(runtime: Runtime) -> Runtime:
    """The reference in float64, reading ConvTranspose as `runtime` does."""
    known = {rule.value for rule in Rule}
    rule = runtime.name if runtime.name in known else runtime.rule
    return Runtime("reference", precision="f64", rule=rule)


def first_difference(
    runtimes: Sequence[Runtime], a: Side, b: Side, tolerances: Tolerances
) -> tuple[Difference | None, str]:
    """The first inner value that differs, and why not all were compared.

    runtimes: where both run and, if there is a second, where `a` runs in float64.
    """
    outputs = {value.name for side in (a, b) for value in side.model.graph.outputs}
    others = b.places
    places = [p for name, p in a.places.items() if name in others and name not in outputs]
    for start in range(0, len(places), _GROUP):
        group = places[start : start + _GROUP]
        names = [place.name for place in group]
        try:
            ours, theirs = (side.inner(runtimes[0], names) for side in (a, b))
            exact = a.inner(runtimes[1], names) if runtimes[1:] else {}
        except (EngineError, MemoryLimitError) as error:
            return None, f"layers from {names[0]!r} on: {error}"
        for place in group:
            pair = ours[place.name], theirs[place.name]
            for difference in differences(place, *pair, tolerances, exact.get(place.name)):
                if not difference.equal:
                    return difference, ""
    return None, ""
