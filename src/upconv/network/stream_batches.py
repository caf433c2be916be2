"""`StreamBatch`: independent streams of one network that share their pushes.

Streams in the same phase are computed as one batch, which reads each weight once for all of them. A
new stream is computed separately for the first few pushes, until it keeps as many positions as the
others.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from ..arrays import Array
from ..errors import ArgumentError, DTypeError, brief

Kind = TypeVar("Kind", bound=Any)
"""A `NetworkStream`, or a stream of a model: `streams.py` imports this module."""


class _Group:
    """Members that are computed as one batch: the rows of each, by number, and their stream."""

    def __init__(self, rows: Mapping[int, int], stream: Any) -> None:
        self.rows, self.stream = dict(rows), stream

    def split(self) -> dict[int, _Group]:
        """Split the group into one group per member."""
        if len(self.rows) == 1:
            return dict.fromkeys(self.rows, self)
        groups, first = {}, 0
        for number, rows in sorted(self.rows.items()):
            part = self.stream.joined([self.stream], rows, slice(first, first + rows))
            groups[number] = _Group({number: rows}, part)
            first += rows
        return groups


class StreamBatch(Generic[Kind]):
    """Independent streams of one network, which may join and leave at any time.

    Create a batch with a stream's `batch` method. Only one thread at a time may use it. If the
    network's batch size is fixed, each stream is computed separately.

    >>> import numpy as np
    >>> from upconv.network import Network
    >>> network = Network({"x": (None, 1, None)})
    >>> network.output(network.conv(network.inputs["x"], np.ones((1, 1, 3)), padding=1))
    >>> batch = network.stream(chunk=2).batch()
    >>> one, other = batch.join(), batch.join()
    >>> x = np.ones((1, 1, 2), np.float32)
    >>> batch.push({one: x, other: 3 * x})
    {0: array([[[2.]]], dtype=float32), 1: array([[[6.]]], dtype=float32)}
    >>> batch.leave(other).finish()
    array([[[6.]]], dtype=float32)
    >>> batch.push({one: x})
    {0: array([[[3., 3.]]], dtype=float32)}
    """

    def __init__(self, stream: Kind) -> None:
        """Create an empty batch; call a stream's `batch` method instead."""
        self._fresh = stream.copy()
        self._fresh.reset()
        shapes = self._fresh.shapes.values()
        self._is_fixed = any(shape[0] is not None for shape in shapes)  # the batch size
        self._members: dict[int, Kind] = {}
        self._groups: dict[int, _Group] = {}  # by member
        self._next = 0

    @property
    def members(self) -> tuple[int, ...]:
        """The numbers of the streams, in the order in which they joined."""
        return tuple(self._members)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self._groups)} of {self._fresh!r}>"

    def join(self, stream: Kind | None = None) -> int:
        """Add a new stream, or a copy of a running one; return its number.

        Raises `ArgumentError` for a stream that comes from another call of `stream`.
        """
        member = self._fresh if stream is None else stream
        if type(member) is not type(self._fresh):
            got, expected = brief(stream), f"a {type(self._fresh).__name__}"
            raise DTypeError("stream", got, expected)
        self._fresh.require_alike(member)
        number, self._next = self._next, self._next + 1
        self._members[number] = member = member.copy()
        self._groups[number] = _Group({number: member.batch_size}, member)
        return number

    def leave(self, number: int) -> Kind:
        """Remove a stream and return it; it can go on by itself, and the others are unchanged."""
        self._groups |= self._group(number).split()  # the next push merges the others again
        alone = self._groups.pop(number)
        member = self._members.pop(number)
        member.moment = alone.stream.moment
        return member

    def push(self, chunks: Mapping[int, Any]) -> dict[int, Any]:
        """Push one chunk per stream, by stream number; return the results by stream number.

        chunks: the argument for each stream's `push`, or a tuple for several inputs. Lengths may
        differ, and streams without a chunk wait. If `push` raises, all streams are unchanged.
        """
        inputs: dict[int, list[Array]] = {}
        alike: dict[object, list[int]] = defaultdict(list)
        for number, chunk in chunks.items():
            group = self._group(number)
            several = chunk if isinstance(chunk, tuple) else (chunk,)
            arrays = self._members[number].converted(several)
            inputs[number] = arrays = group.stream.checked(arrays, group.rows[number] or None)
            alone = number if self._is_fixed else None
            alike[group.stream.phase, group.stream.length(arrays), alone].append(number)
        results: dict[int, Any] = {}
        pushed: list[tuple[Any, Any]] = []
        try:
            for numbers in map(sorted, alike.values()):
                rows = {number: len(inputs[number][0]) for number in numbers}
                stream = self._together(rows)
                pushed.append((stream, stream.moment))
                joined = map(np.concatenate, zip(*(inputs[n] for n in numbers), strict=True))
                arrays = stream.advanced(list(joined))
                several = arrays if isinstance(arrays, tuple) else (arrays,)
                cuts = np.cumsum(list(rows.values()))[:-1]
                parts = [np.split(array, cuts) if len(cuts) else [array] for array in several]
                for number, part in zip(numbers, zip(*parts, strict=True), strict=True):
                    ys = part if len(part) > 1 else part[0]
                    results[number] = self._members[number].given_back(ys)
        except BaseException:
            for stream, moment in pushed:
                stream.moment = moment
            for group in self._groups.values():
                if not group.stream.batch_size:  # the next chunk will determine it
                    group.rows = dict.fromkeys(group.rows, 0)
            raise
        return {number: results[number] for number in chunks}

    def _group(self, number: int) -> _Group:
        if number not in self._groups:
            listed = f"one of {', '.join(map(str, self.members))}"
            expected = listed if self._groups else "a member; the batch is empty"
            raise ArgumentError("the number of a stream", brief(number), expected)
        return self._groups[number]

    def _together(self, rows: Mapping[int, int]) -> Any:
        """Return one stream of exactly these members, all in one phase; leave the others as is."""
        groups = {id(self._groups[number]): self._groups[number] for number in rows}
        first = next(iter(groups.values()))
        if len(groups) == 1 and first.rows.keys() == rows.keys():
            first.rows = dict(rows)  # a new stream has no rows yet
            return first.stream
        alone = {n: one for group in groups.values() for n, one in group.split().items()}
        streams = [alone[number].stream for number in rows]
        stream = streams[0].joined(streams, sum(rows.values()))
        self._groups |= alone | dict.fromkeys(rows, _Group(rows, stream))
        return stream
