"""Dask graphs with one task per result chunk; each task receives the operand chunks that it reads.

From those chunks, a task cuts the window that its results need by `upconv.geometry`, and computes
one problem. Result sizes, chunks and halos are exact. Weight gradients are sums with one term per
chunk, in an order that depends only on the chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, reduce
from itertools import accumulate, pairwise, product
from math import prod
from typing import Any

import dask.array as da
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph

from ..arrays import Array
from ..engine_choice import select
from ..engines.base import Engine
from ..engines.interior import is_point
from ..engines.ordered_sums import invariant_engine
from ..errors import ArgumentError, brief
from ..execution import run
from ..geometry import Axis, scaled, strided
from ..problem import DataLayout, Direction, Problem
from ..shape_checks import Signature

_TERMS_PER_TASK = 8  # terms of a weight gradient that one task adds
_MAX_TASKS = 1 << 20  # per result; Dask's schedulers are slow with far fewer

Span = tuple[int, int]
Cut = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A task's axis: the problem's axis, the operand positions it reads, the results it keeps.

    Kernels drop axes with one position, and the remaining axes determine the summation order. The
    last axis with several positions must therefore keep several in every task. A task that needs
    one position along it also computes neighbouring results, and drops them.
    """

    axis: Axis
    reads: range
    keep: slice

    @classmethod
    def of(cls, problem: Problem, number: int, span: Span, *, last: bool) -> _Piece:
        """Return the piece that computes the results `span` of one axis."""
        axis, (lo, hi) = problem.axes[number], span
        forward = problem.direction is Direction.FORWARD
        part_of, total = (axis.part, axis.out) if forward else (axis.gradient_part, axis.size)
        low, high = lo, hi
        part, reads = part_of(low, high)
        while last and (low, high) != (0, total) and is_point(part.trimmed().axis):
            low, high = max(0, low - 1), min(total, high + 1)
            part, reads = part_of(low, high)
        return cls(part, reads, slice(lo - low, hi - low))


def _last(problem: Problem) -> int:
    """Return the index of the last axis with more than one position; -1 if there is none."""
    several = (i for i, axis in enumerate(problem.axes) if not is_point(axis.trimmed().axis))
    return max(several, default=-1)


@dataclass(frozen=True, slots=True)
class _Task:
    """One task: its problem, and the slices of chunks that form its window."""

    problem: Problem
    engine: str | Engine | None
    keep: Cut
    cuts: tuple[tuple[Cut, ...], ...]

    def result(self, chunks: list[Array], weight: Array, bias: Array | None) -> Array:
        """Compute a chunk of a result."""
        x = window(chunks, self.cuts[0], self.problem.dtype.numpy)
        return run(self.problem, self.engine, x, weight, bias)[self.keep]

    def term(self, grad: list[Array], x: list[Array]) -> Array:
        """Compute one term of a weight gradient."""
        g, other = map(window, (grad, x), self.cuts, (self.problem.dtype.numpy,) * 2)
        return run(self.problem, self.engine, g, other)


def window(chunks: list[Array], cuts: tuple[Cut, ...], dtype: np.dtype[Any]) -> Array:
    """Concatenate parts of chunks; `cuts` holds one slice per chunk along each axis."""
    if len(chunks) == 1:
        return chunks[0][tuple(axis[0] for axis in cuts)].astype(dtype, copy=False)
    sizes = [[cut.stop - cut.start for cut in axis] for axis in cuts]
    result = np.empty([sum(axis) for axis in sizes], dtype)
    starts = [[0, *accumulate(axis)] for axis in sizes]
    for chunk, index in zip(chunks, product(*(range(len(axis)) for axis in cuts)), strict=True):
        region = tuple(slice(s[i], s[i + 1]) for s, i in zip(starts, index, strict=True))
        result[region] = chunk[tuple(axis[i] for axis, i in zip(cuts, index, strict=True))]
    return result


def _overlap(chunks: tuple[int, ...], reads: range) -> tuple[list[int], Cut]:
    """Return the chunks along one axis that overlap a range (at least one), and their slices."""
    overlaps = [
        (i, slice(max(reads.start, end - size) - (end - size), min(reads.stop, end) - (end - size)))
        for i, (size, end) in enumerate(zip(chunks, accumulate(chunks), strict=True))
        if reads and end - size < reads.stop and reads.start < end
    ]
    numbers, cut = zip(*overlaps or [(0, slice(0, 0))], strict=True)
    return list(numbers), cut


def gathered(array: Any, batch: int, reads: list[range], layout: DataLayout) -> Any:
    """Return the keys of the chunks that a task reads, in order, and the slices along each axis."""
    channels = 1 if layout is DataLayout.NCX else array.ndim - 1
    ranges = [range(array.shape[0]), *reads]
    ranges.insert(channels, range(array.shape[channels]))
    pairs = zip(array.chunks, ranges, strict=True)
    overlaps = [_overlap(sizes, positions) for sizes, positions in pairs]
    overlaps[0] = [batch], (slice(0, int(array.chunks[0][batch])),)
    keys = [(array.name, *index) for index in product(*(numbers for numbers, _ in overlaps))]
    return keys, tuple(cut for _, cut in overlaps)


def mapped(
    signature: Signature,
    operand: Any,
    weight: Any,
    bias: Any,
    engine: str | Engine | None,
    chunks: Any,
) -> Any:
    """Return the result of a forward problem or an input gradient, with one task per chunk."""
    problem = signature.problem
    operand = operand if signature.batched else operand[None]
    chosen, spans = _chosen(problem, engine), _spans(problem, operand, chunks)
    token = tokenize(operand.name, weight, bias, str(problem), repr(chosen), spans)
    name, shared = f"upconv-{problem.direction.value}-{token}", f"upconv-weight-{token}"
    graph: dict[Any, Any] = {shared: weight, f"{shared}-bias": bias}
    batches, last = operand.chunks[0], _last(problem)
    require_few(prod(map(len, (batches, *spans))), chunks)
    for n, *index in product(*(range(len(axis)) for axis in (batches, *spans))):
        pieces = [_Piece.of(problem, i, spans[i][at], last=i == last) for i, at in enumerate(index)]
        keys, cuts = gathered(operand, n, [piece.reads for piece in pieces], problem.layout)
        part = problem.replace(axes=tuple(piece.axis for piece in pieces), batch=int(batches[n]))
        keep = _in_layout(problem, slice(None), slice(None), (piece.keep for piece in pieces))
        task = _Task(part, chosen, keep, (cuts,))
        key = (name, *_in_layout(problem, n, 0, index))
        graph[key] = (task.result, keys, shared, f"{shared}-bias" if bias is not None else None)
    sizes = tuple(tuple(hi - lo for lo, hi in span) for span in spans)
    chunk_sizes = _in_layout(problem, batches, (problem.result_channels,), sizes)
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[operand])
    result = da.Array(layers, name, chunk_sizes, dtype=operand.dtype)
    return result if signature.batched else result[0]


def _in_layout(
    problem: Problem, batch: Any, channels: Any, spatial: Iterable[Any]
) -> tuple[Any, ...]:
    """Return the batch, channel and spatial entries in the order of the problem's layout."""
    first = problem.layout is DataLayout.NCX
    return (batch, channels, *spatial) if first else (batch, *spatial, channels)


def _spans(problem: Problem, operand: Any, chunks: Any) -> list[list[Span]]:
    """Return the spans of a problem's result; see `spans_of`."""
    forward = problem.direction is Direction.FORWARD
    totals, scale = (problem.out_size, scaled) if forward else (problem.size, strided)
    scales = [partial(scale, stride=axis.stride) for axis in problem.axes]
    first = 2 if problem.layout is DataLayout.NCX else 1
    return spans_of(operand, first, totals, chunks, scales)


def spans_of(
    x: Any, first: int, totals: tuple[int, ...], chunks: Any, scales: Iterable[Callable[[int], int]]
) -> list[list[Span]]:
    """Return the spans of a result's spatial axes: the caller's chunks, else those of x, scaled.

    first: the first spatial axis of x. totals: the result's sizes. scales: for each axis, the
    function that maps positions of x to positions of the result.
    """
    if chunks is not None:
        return [_between([0, *accumulate(axis)]) for axis in _normalized(chunks, totals, x.dtype)]
    return [
        _between(_ends_of(axis, total, [scale(end) for end in (0, *accumulate(axis))]))
        for axis, total, scale in zip(x.chunks[first:], totals, scales, strict=False)
    ]


def _normalized(
    chunks: Any, totals: tuple[int, ...], dtype: np.dtype[Any]
) -> tuple[tuple[int, ...], ...]:
    """Return the caller's chunk sizes, normalized by Dask for axes of these sizes."""
    requested = chunks if isinstance(chunks, tuple | list) else [chunks] * len(totals)
    for size, total in zip(requested, totals, strict=False):
        if isinstance(size, int) and size > 0:
            require_few(-(-total // size), chunks)
    expected = f"chunks of the result's spatial axes {totals}, in a form that Dask accepts"
    try:
        sizes = da.core.normalize_chunks(chunks, shape=totals, dtype=dtype)
        sizes = tuple(tuple(map(int, axis)) for axis in sizes)
    except Exception as error:  # Dask raises various errors, even ZeroDivisionError
        remedy = f"Dask says: {brief(error)}."
        raise ArgumentError("chunks", brief(chunks), expected, remedy) from None
    if min(map(min, sizes)) < 0 or tuple(map(sum, sizes)) != totals:
        raise ArgumentError("chunks", brief(chunks), expected, _LARGER)
    return sizes


_LARGER = "Pass larger chunks, as in chunks=(256, 256)."


def require_few(count: int, chunks: Any) -> None:
    """Refuse more tasks than Dask's schedulers can handle."""
    if count > _MAX_TASKS:
        got = f"{brief(chunks)}, which makes {count} tasks"
        raise ArgumentError("chunks", got, f"at most {_MAX_TASKS} tasks for a result", _LARGER)


def _ends_of(sizes: tuple[int, ...], total: int, ends: list[int]) -> list[int]:
    """Return the ends of a result's chunks, 0 first, from the ends of the operand's chunks.

    ends: the ends of the operand's chunks as positions of the result, 0 first. If the operand's
    chunks have equal sizes, the result's chunks do too, as Zarr requires.
    """
    if ends[1] and set(sizes[:-1]) <= {sizes[0]} and sizes[-1] <= sizes[0]:
        require_few(-(-total // ends[1]), None)
        ends = list(range(0, total, ends[1]))
    return sorted({0, *(min(end, total) for end in ends), total})


def _between(ends: list[int]) -> list[Span]:
    """Return the spans [low, high) between consecutive ends."""
    return list(pairwise(ends)) if len(ends) > 1 else [(0, 0)]


def weight_gradient(signature: Signature, grad: Any, x: Any, engine: str | Engine | None) -> Any:
    """Return the weight gradient: one term per chunk of `grad`, added in chunk order."""
    if not signature.batched:
        grad, x = grad[None], x[None]
    dtype, problem = grad.dtype, signature.problem
    problem = problem.replace(dtype=problem.dtype.accumulator)
    x = x.rechunk({0: grad.chunks[0]})
    token = tokenize(grad.name, x.name, str(problem), repr(engine))
    name, first = f"upconv-weight-gradient-{token}", 2 if problem.layout is DataLayout.NCX else 1
    spans = [_between([0, *accumulate(c)]) for c in grad.chunks[first : first + problem.rank]]
    graph: dict[Any, Any] = {}
    terms: list[Any] = []
    batches = grad.chunks[0]
    for n, *index in product(*(range(len(axis)) for axis in (batches, *spans))):
        box = [spans[i][at] for i, at in enumerate(index)]
        parts = [axis.part(*span) for axis, span in zip(problem.axes, box, strict=True)]
        g_keys, g_cuts = gathered(grad, n, [range(*span) for span in box], problem.layout)
        x_keys, x_cuts = gathered(x, n, [reads for _, reads in parts], problem.layout)
        part = problem.replace(axes=tuple(axis for axis, _ in parts), batch=int(batches[n]))
        terms.append((f"{name}-terms", len(terms)))
        graph[terms[-1]] = (_Task(part, engine, (), (g_cuts, x_cuts)).term, g_keys, x_keys)
    level = 0
    while len(terms) > 1:
        groups = [terms[i : i + _TERMS_PER_TASK] for i in range(0, len(terms), _TERMS_PER_TASK)]
        terms, level = [(f"{name}-sums-{level}", i) for i in range(len(groups))], level + 1
        graph |= {key: (_add, group) for key, group in zip(terms, groups, strict=True)}
    shape = signature.shape
    graph[(name, *[0] * len(shape))] = (_round, terms[0], dtype)
    layers = HighLevelGraph.from_collections(name, graph, dependencies=[grad, x])
    return da.Array(layers, name, tuple((size,) for size in shape), dtype=dtype)


def _add(terms: list[Array]) -> Array:
    with np.errstate(all="ignore"):
        return reduce(np.add, terms)


def _round(total: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(all="ignore"):
        return total.astype(dtype, copy=False)


def _chosen(problem: Problem, engine: str | Engine | None) -> str | Engine | None:
    """Return the engine for chunks; its summation order is fixed if the JIT engine supports it."""
    select(problem, engine)  # raises the errors of a call on the whole array
    if engine not in (None, "jit"):
        return engine
    invariant = invariant_engine(problem)
    return engine if invariant.refuses(problem) else invariant
