"""The values inside two models, compared where both have one under the same name.

The values become outputs of a copy of each model, a group at a time: as many as `_BYTES` holds, as
far as their sizes are known. Groups go in the first model's order, and the last is the first with a
difference in it: everything after follows from that.

A copy with more outputs is optimised less by its runtime. What only a fusion does is not seen here;
the outputs themselves, which decide, come from the models as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import onnx

from ... import memory
from ...arrays import Array
from ...errors import EngineError
from ..known import Known
from ..runtimes import Runtime
from ..runtimes.protos import weight_bytes
from .differences import Difference, Place, differences

_BYTES = 256 << 20
_ASSUMED = 16 << 20
"""What a value is taken for whose size is not known."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models, with what it is fed and what is known of it."""

    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    known: Known

    @property
    def made(self) -> dict[str, Place]:
        """What nodes of the main graph make, in their order."""
        return {
            name: Place(name, node.name, node.op_type)
            for node in self.model.graph.node
            for name in node.output
            if name
        }

    @property
    def output_names(self) -> set[str]:
        """The names of the model's outputs."""
        return {info.name for info in self.model.graph.output}


Allow = Callable[[str, Any], float]
"""A value's name and array -> what is allowed, relative to its scale."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers compared, and why not all of them were."""

    compared: tuple[Difference, ...]
    remark: str = ""


def compared_layers(runtime: Runtime, a: Side, b: Side, allow: Allow, threads: int) -> Layers:
    """Compare the inner values of `a` and `b` in order; outputs are not among them.

    Raises `MemoryLimitError` where the copies would not fit.
    """
    memory.require(weight_bytes(a.model) + weight_bytes(b.model), "copies of the two models")
    probes = [_Probe(runtime, side, threads) for side in (a, b)]
    found: list[Difference] = []
    for group in _groups(a, b):
        try:
            ours, theirs = (probe.values(group) for probe in probes)
        except EngineError as error:
            return Layers(tuple(found), f"layers from {group[0].name!r} on: {error}")
        for place in group:
            mine = ours[place.name]
            found += differences(place, mine, theirs[place.name], allow(place.name, mine))
        if not all(difference.equal for difference in found):
            break
    return Layers(tuple(found))


def _groups(a: Side, b: Side) -> Iterator[list[Place]]:
    common = a.made.keys() & b.made.keys() - a.output_names - b.output_names
    group: list[Place] = []
    held = 0
    for name, place in a.made.items():
        if name not in common or not (a.known.is_tensor(name) and b.known.is_tensor(name)):
            continue
        size = sum(_size(side.known.nbytes(name)) for side in (a, b))
        if group and held + size > _BYTES:
            yield group
            group, held = [], 0
        group.append(place)
        held += size
    if group:
        yield group


def _size(nbytes: int | None) -> int:
    return _ASSUMED if nbytes is None else nbytes


class _Probe:
    """A copy of a model whose outputs are whatever is asked for."""

    def __init__(self, runtime: Runtime, side: Side, threads: int) -> None:
        self._runtime, self._feeds, self._threads = runtime, side.feeds, threads
        self._model = onnx.ModelProto()
        self._model.CopyFrom(side.model)

    def values(self, group: list[Place]) -> dict[str, Any]:
        """The values by name, from one run."""
        del self._model.graph.output[:]
        for place in group:
            self._model.graph.output.add().name = place.name  # its type is the runtime's to find
        with self._runtime.session(self._model, threads=self._threads) as session:
            return session.run(self._feeds)
