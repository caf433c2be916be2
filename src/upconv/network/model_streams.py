"""Streams of a framework's models: one network for all lengths, and its stream.

A front end captures a model as a network of known sizes. `stream_of_model` captures the model at
several lengths, one of them very large. If all captures have the same operations, the model is
assumed to have them at every length; otherwise an error names the first difference. Padding and
slices must therefore be relative to the ends of an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from ..arrays import Array, as_array
from ..errors import ShapeError, UpconvError
from .axes import Axes, from_network, to_network
from .builder import Network
from .digests import plain
from .kinds import agree, described_shape, located
from .operands import one_each
from .stream_schedule import refused
from .stream_sources import Source
from .streams import NetworkStream

FAR = 1_000_003
"""A length to which no condition on short inputs applies; captures hold no data."""


class Captured(NamedTuple):
    """A network of known sizes, and each output's axes in the framework.

    structure: the structure of the outputs, in whatever form the front end chooses.
    """

    network: Network
    outputs: tuple[Axes, ...]
    structure: Any = None


Kind = TypeVar("Kind", bound="ModelStream")
Capture = Callable[[int, int], Captured]
"""Function that captures a model for a batch and a length."""


class Signature(NamedTuple):
    """The inputs' shapes in the framework, and their axes, by name."""

    shapes: Mapping[str, tuple[int, ...]]
    axes: Mapping[str, Axes]

    def declared(self, batch: int | None, length: int | None) -> dict[str, tuple[int | None, ...]]:
        """Return the shapes (N, C, *size) with this batch and length."""
        result = {}
        for name, shape in self.shapes.items():
            extents: list[int | None] = [1] * self.rank
            for axis, size in zip(self.axes[name], shape, strict=True):
                extents[axis or 0] = size
            extents[0] = batch if 0 in self.axes[name] else 1
            extents[self.axis] = length
            result[name] = tuple(extents)
        return result

    @property
    def rank(self) -> int:
        """The number of axes in the network."""
        return max(axis or 0 for axes in self.axes.values() for axis in axes) + 1

    @property
    def axis(self) -> int:
        """The network's axis of the stream, whose extent in `shapes` is 0."""
        name, shape = next(iter(self.shapes.items()))
        return self.axes[name][shape.index(0)] or 0

    def batch(self) -> int:
        """Return the batch of the example inputs."""
        pairs = (zip(self.axes[name], shape, strict=True) for name, shape in self.shapes.items())
        return next((size for pair in pairs for axis, size in pair if axis == 0), 1)


def stream_of_model(
    kind: type[Kind], capture: Capture, signature: Signature, length: int, **options: Any
) -> Kind:
    """Create a model's stream, of class `kind`; raise `EngineRefusal` if that is impossible."""
    batch = signature.batch()
    first = capture(batch, max(2, length))
    outputs = first.outputs
    for other in (max(2, length) + 1, FAR):
        outputs = _merge(first, capture(batch, other), outputs, f"{length} and {other} positions")
    try:
        several = capture(batch + 1, length)
        outputs = _merge(first, several, outputs, "another batch")
        declared = signature.declared(None, None)
    except UpconvError:  # a model may have a fixed batch
        declared = signature.declared(batch, None)
    network = first.network.redeclared(declared)
    source = network.stream(signature.axis, **options).source
    return kind(source, signature, first._replace(network=network, outputs=outputs))


def _merge(first: Captured, other: Captured, axes: tuple[Axes, ...], case: str) -> tuple[Axes, ...]:
    """Return the outputs' axes that two captures imply; raise if their networks differ."""
    one, two = first.network.nodes, other.network.nodes
    for a, b in zip(one, two, strict=False):
        if a.inputs != b.inputs or [*plain(a.operation)] != [*plain(b.operation)]:
            raise refused(located(a), f"it is a different operation for inputs of {case}")
    pairs = list(zip(axes, other.outputs, strict=False))
    alike = all(agree(a, b) for a, b in pairs)
    if len(one) != len(two) or len(axes) != len(other.outputs) or not alike:
        raise refused("this model", f"it differs for {case}")
    return tuple(
        tuple(p if p is not None else q for p, q in zip(a, b, strict=True)) for a, b in pairs
    )


class ModelStream(NetworkStream):
    """A model in progress: it takes chunks and returns results that no later input can change."""

    __slots__ = ("captured", "signature")

    def __init__(self, source: Source, signature: Signature, captured: Captured) -> None:
        """Create a stream without inputs; call `stream` instead."""
        self.signature, self.captured = signature, captured
        super().__init__(source)

    def __repr__(self) -> str:
        rate = f"{self.rate} output samples per input sample"
        return f"<{type(self).__name__}: {rate}, latency {self.latency} output samples>"

    def _begun(self) -> Self:
        return type(self)(self.source, self.signature, self.captured)

    def arrays(self, chunks: Sequence[Any]) -> list[Array]:
        """Convert the chunks to (N, C, *size); raise an error if they do not fit the inputs."""
        shapes = self.signature.shapes
        one_each("the number of chunks", chunks, shapes)
        result = []
        for (name, shape), chunk in zip(shapes.items(), chunks, strict=True):
            array, axes = as_array(name, chunk), self.signature.axes[name]
            pairs = zip(axes, shape, strict=True)
            wanted = tuple(None if axis == 0 or not size else size for axis, size in pairs)
            if not agree(wanted, array.shape):
                got, expected = str(array.shape), described_shape(wanted)
                raise ShapeError(f"the chunk of {name!r}", got, expected)
            result.append(to_network(array, axes, self.signature.rank))
        return result

    def results(self, arrays: Any) -> list[Array]:
        """Convert the network's results to the framework's axes."""
        several = arrays if isinstance(arrays, tuple) else (arrays,)
        pairs = zip(several, self.captured.outputs, strict=True)
        return [from_network(array, axes) for array, axes in pairs]
