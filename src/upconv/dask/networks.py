"""Networks on Dask arrays: one task per chunk of a result, with the halo of all layers."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ..arrays import Array
from ..errors import ArgumentError, DTypeError, ShapeError
from ..network import Network
from ..network.boxes import Box, BoxPrograms
from ..problem import DataLayout
from ..signatures import AlgorithmName, NetworkPrecision
from .functions import dask_operand
from .overlaps import Cut, gathered, require_few, spans_of, window


def run(
    network: Network,
    *arrays: Any,
    precision: NetworkPrecision = "float32",
    algorithm: AlgorithmName = "direct",
    chunks: Any = None,
) -> Any:
    """Return a network's results as lazy Dask arrays: each task runs all layers for one chunk.

    arrays: float32 Dask arrays (N, C, *size) with any chunks, one per input. precision: as in
        `Network.compile`. algorithm: "direct", or "auto" to use Winograd's where it is faster.
    chunks: chunks of the results' spatial axes, in any form that Dask accepts (default: those of
        the first array, times the network's rate). Each chunk is one task.

    With float32 and "direct", a network without averages returns the same bits as
    `network.compile(shapes, algorithm="direct")` on the whole arrays. Each task recomputes its
    halo.

    Returns a Dask array, or a tuple of several. The network's errors for these shapes are raised at
    once. An operation that reads all positions raises `EngineRefusal`, which names its line.

    >>> import dask.array as da
    >>> from upconv.network import Network
    >>> network = Network({"image": (1, 2, None, None)})
    >>> y = network.conv(network.inputs["image"], np.ones((3, 2, 3, 3)), padding=1)
    >>> network.output(network.upsample(y, 2))
    >>> image = da.ones((1, 2, 60, 60), chunks=(1, 1, 20, 30), dtype="float32")
    >>> run(network, image).chunks
    ((1,), (3,), (40, 40, 40), (60, 60))
    """
    if not isinstance(network, Network):
        got = f"a {type(network).__name__}"
        raise DTypeError("network", got, "an upconv.network.Network", "Build one first.")
    names = tuple(network.inputs)
    if len(arrays) != len(names):
        expected = f"{len(names)}: {', '.join(names)}"
        raise ArgumentError("the number of arrays", str(len(arrays)), expected)
    shapes = {}
    for name, array in zip(names, arrays, strict=True):
        shapes[name], dtype = dask_operand(name, array)
        if dtype != np.float32:
            raise DTypeError(f"{name}.dtype", str(dtype), "float32", "Convert it with astype.")
    batch = max(shape[0] for shape in shapes.values())
    first = next(array for array in arrays if array.shape[0] == batch)
    aligned = [x.rechunk({0: first.chunks[0]}) if len(x) == batch else x for x in arrays]
    for name, shape in shapes.items():
        if shape[0] not in (1, batch):
            raise ShapeError(f"{name}.shape", str(shape), f"a batch of {batch} or 1")
    programs = network.boxes(shapes, precision=precision, algorithm=algorithm)
    outputs = programs.boxes.graph.outputs
    results = tuple(_mapped(programs, value, aligned, first.chunks[0], chunks) for value in outputs)
    return results[0] if len(results) == 1 else results


class _Task(NamedTuple):
    """One task: the box of results that it computes, and the slices of chunks that it reads."""

    output: int
    box: Box
    batch: int
    cuts: tuple[tuple[Cut, ...], ...]

    def result(self, programs: BoxPrograms, *chunks: list[Array]) -> Array:
        """Compute a chunk of a result."""
        part = programs.boxes.part(self.output, self.box, self.batch)
        pairs = zip(chunks, self.cuts, strict=True)
        windows = [window(listed, cuts, np.dtype(np.float32)) for listed, cuts in pairs]
        result: Array = programs.program(part).run(*windows)
        return result


def _mapped(
    programs: BoxPrograms, output: int, arrays: list[Any], batches: tuple[int, ...], chunks: Any
) -> Any:
    """Return one result as a Dask array, one task per chunk."""
    boxes = programs.boxes
    _, channels, *sizes = boxes.graph.shapes[output]
    scales = [lambda end, rate=rate: int(end * rate) for rate in boxes.rates(output)]
    spans = spans_of(arrays[0], 2, tuple(sizes), chunks, scales)
    token = tokenize(*(array.name for array in arrays), programs.digest, output, spans)
    name, shared = f"upconv-network-{token}", f"upconv-programs-{token}"
    graph: dict[Any, Any] = {shared: programs}
    require_few(prod(map(len, (batches, *spans))), chunks)
    for n, *index in product(*(range(len(axis)) for axis in (batches, *spans))):
        box = tuple(axis[at] for axis, at in zip(spans, index, strict=True))
        keys, cuts = [], []
        for array, reads in zip(arrays, boxes.reads(output, box), strict=True):
            number = n if array.numblocks[0] == len(batches) else 0
            listed, cut = gathered(array, number, [range(*s) for s in reads], DataLayout.NCX)
            keys.append(listed)
            cuts.append(cut)
        task = _Task(output, box, int(batches[n]), tuple(cuts))
        graph[(name, n, 0, *index)] = (task.result, shared, *keys)
    lengths = tuple(tuple(high - low for low, high in axis) for axis in spans)
    layers = HighLevelGraph.from_collections(name, graph, dependencies=arrays)
    return da.Array(layers, name, (batches, (channels,), *lengths), dtype=np.float32)
