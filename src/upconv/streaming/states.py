"""The state of a stream as bytes: numbers and raw arrays behind a checksum; nothing is executed.

8 bytes   "upconvS1"
32        SHA-256 of all that follows
32        SHA-256 of what the stream computes: geometry, types, weights
then      items: a length in 8 bytes, and so many bytes; a number is 8 bytes, little-endian
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from ..errors import ArgumentError, DTypeError

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
