"""The state of a stream as bytes: numbers and raw arrays behind a checksum; nothing is executed.

8 bytes   "upconvS1"
32        SHA-256 of all that follows
32        SHA-256 of what the stream computes: geometry, types, weights
then      items: a length in 8 bytes, and so many bytes; a number is 8 bytes, little-endian
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Self

from ..errors import ArgumentError, DTypeError, EngineError
from ..progress import Flow, latency, lookahead

_MAGIC, _WORD, _HASH = b"upconvS1", 8, 32
_REMEDY = "Pass what to_bytes of the same stream returned, unchanged."


def encoded(layer: bytes, items: Iterable[int | bytes]) -> bytes:
    """A state; `layer` is the digest of what the stream computes."""
    body = bytearray(layer)
    for item in items:
        raw = item if isinstance(item, bytes) else item.to_bytes(_WORD, "little", signed=True)
        body += len(raw).to_bytes(_WORD, "little") + raw
    return _MAGIC + hashlib.sha256(body).digest() + bytes(body)


def damaged(got: str) -> ArgumentError:
    """The error about a state that cannot be one."""
    return ArgumentError("data", got, "the state of a stream", _REMEDY)


class Items:
    """The items of a state, read from first to last; `ArgumentError` for what is not there."""

    def __init__(self, layer: bytes, data: object) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise DTypeError("data", f"a {type(data).__name__}", "bytes", _REMEDY)
        given = bytes(data)
        body = given[len(_MAGIC) + _HASH :]
        if not given.startswith(_MAGIC) or len(body) < _HASH:
            raise damaged(f"{len(given)} bytes that do not begin like one")
        if hashlib.sha256(body).digest() != given[len(_MAGIC) :][:_HASH]:
            raise damaged("damaged: its checksum does not match")
        if body[:_HASH] != layer:
            raise damaged("of a stream with other weights or geometry")
        self._rest = body[_HASH:]

    def raw(self) -> bytes:
        """The next item."""
        size = int.from_bytes(self._rest[:_WORD], "little")
        item = self._rest[_WORD:][:size]
        if len(self._rest) < _WORD or len(item) < size:
            raise damaged("too short")
        self._rest = self._rest[_WORD + size :]
        return item

    def number(self, low: int, high: int) -> int:
        """The next item, a number from `low` to `high`."""
        raw = self.raw()
        number = int.from_bytes(raw, "little", signed=True)
        if len(raw) != _WORD or not low <= number <= high:
            raise damaged(f"one with the number {number} where {low} to {high} may be")
        return number

    def end(self) -> None:
        """Nothing may be left."""
        if self._rest:
            raise damaged("too long")


class Stateful:
    """What streams, chains and sums have in common: how late they are, and their state as bytes."""

    __slots__ = ()
    _ended: bool

    @property
    def progress(self) -> Flow:
        """After how many inputs a result is final."""
        raise NotImplementedError

    @property
    def latency(self) -> int:
        """Results, at most, that are not returned yet of those that rate * inputs makes: samples of
        the output, exact. Below 0 where results are returned ahead of that."""
        return latency(self.progress)

    @property
    def lookahead(self) -> int:
        """Inputs, at most, that a result waits for after the one at its own time: samples of the
        input, exact."""
        return lookahead(self.progress)

    def to_bytes(self) -> bytes:
        """The state, without the weights; for `from_bytes` of a stream that is made alike.

        A checksum, and one of the weights and the geometry, are in it. The same engine on the same
        kind of processor is asked for, because other bits would follow.
        """
        return encoded(self._digest(), self._items())

    def from_bytes(self, data: bytes) -> Self:
        """A new stream with these weights in the state `data`; `ArgumentError` if it is damaged.

        >>> import numpy as np
        >>> from upconv import stream
        >>> one = stream(np.ones((1, 1, 2), np.float32))
        >>> _ = one.push(np.ones((1, 1, 3), np.float32))
        >>> one.from_bytes(one.to_bytes()).finish()
        array([[[1.]]], dtype=float32)
        """
        items = Items(self._digest(), data)
        other = self._read(items)
        items.end()
        return other

    def _require_open(self) -> None:
        if self._ended:
            raise EngineError("This stream is finished. Call reset() to begin anew.")

    def _digest(self) -> bytes:
        """Of what it computes."""
        raise NotImplementedError

    def _items(self) -> Iterator[int | bytes]:
        """Its state."""
        raise NotImplementedError

    def _read(self, items: Items) -> Self:
        """One in a state."""
        raise NotImplementedError
