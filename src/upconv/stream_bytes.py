"""The state of a stream as bytes: JSON with a checksum. Reading it executes no code.

8 bytes   "upconvS2"
32 bytes  SHA-256 of everything that follows
32 bytes  SHA-256 of the stream's definition: geometry, dtypes, weights
then      JSON: lists of numbers and arrays, {"type", "shape", "data" in base 64}
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from fractions import Fraction
from functools import wraps
from threading import get_ident
from typing import Any, Self, TypeVar, cast

import numpy as np

from .errors import ArgumentError, DTypeError, EngineError
from .stream_progress import Flow

_MAGIC, _HASH = b"upconvS2", 32
_REMEDY = "Pass the unchanged result of to_bytes of the same stream."


def encoded(layer: bytes, state: Any) -> bytes:
    """Encode a state; `layer` is the digest of the stream's definition."""
    body = layer + json.dumps(state, default=_plain).encode()
    return _MAGIC + hashlib.sha256(body).digest() + body


def decoded(layer: bytes, data: object) -> Any:
    """Decode the result of `encoded`; raise `ArgumentError` for any other bytes."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise DTypeError("data", f"a {type(data).__name__}", "bytes", _REMEDY)
    received, body = bytes(data), bytes(data)[len(_MAGIC) + _HASH :]
    got = ""
    if not received.startswith(_MAGIC) or len(body) < _HASH:
        got = f"{len(received)} bytes without the header of a state"
    elif hashlib.sha256(body).digest() != received[len(_MAGIC) :][:_HASH]:
        got = "damaged: its checksum does not match"
    elif body[:_HASH] != layer:
        got = "of a stream with other weights or geometry"
    if got:
        raise ArgumentError("data", got, "the state of a stream", _REMEDY)
    return json.loads(body[_HASH:], object_hook=_array)


def _plain(array: Any) -> dict[str, Any]:
    data = b64encode(array.tobytes()).decode()
    return {"type": array.dtype.name, "shape": array.shape, "data": data}


def _array(plain: dict[str, Any]) -> Any:
    return np.frombuffer(b64decode(plain["data"]), plain["type"]).reshape(plain["shape"])


Method = TypeVar("Method", bound=Callable[..., Any])


def by_one_thread(method: Method) -> Method:
    """Make a method refuse to run while another thread runs one of the same object.

    The method records the thread's number instead of taking a lock: Ctrl-C may occur anywhere, and
    the interrupted thread must be able to continue.
    """

    @wraps(method)
    def call(self: Stateful, *arguments: Any, **keywords: Any) -> Any:
        mine = get_ident()
        if self._users.setdefault("thread", mine) != mine:
            raise EngineError(
                "Another thread is using this stream. Give each thread its own stream, for example"
                " a copy(), or let one thread push all chunks."
            )
        try:
            return method(self, *arguments, **keywords)
        finally:
            self._users.pop("thread", None)

    return cast(Method, call)


class Stateful:
    """Base class of streams, chains and sums: their latency, and their state as bytes."""

    __slots__ = ("_users",)
    _ended: bool
    _users: dict[str, int]
    kind: tuple[int, np.dtype[Any]] | None
    """The axis along which chunks follow each other, counted from the end, and the dtype."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> Self:
        """Create a stream that no thread is using."""
        del arguments, keywords
        stream = super().__new__(cls)
        stream._users = {}
        return stream

    def __repr__(self) -> str:
        """Name the axis, the rate and the latency, in samples.

        >>> import numpy as np
        >>> from upconv import conv_stream, stream
        >>> stream(np.ones((8, 4, 16), np.float32), stride=8, padding=4)
        <Stream along axis -1: 8 output samples per input sample, latency 4 output samples>
        >>> conv_stream(np.ones((3, 1, 4)), stride=2, padding=((3, 0),), layout="NXC")
        <Stream along axis -2: 1/2 output samples per input sample, latency 0 output samples>
        """
        axis = -1 if self.kind is None else self.kind[0]
        rate = f"{self.rate} output samples per input sample"
        latency = f"latency {self.latency} output samples"
        return f"<{type(self).__name__} along axis {axis}: {rate}, {latency}>"

    @property
    def progress(self) -> Flow:
        """The rule for the number of final results."""
        raise NotImplementedError

    @property
    def rate(self) -> Fraction:
        """Results per input."""
        return self.progress.rate

    @property
    def latency(self) -> int:
        """The largest number of output samples by which results lag behind rate * inputs. It is
        exact, and negative if results come ahead of that."""
        return self.progress.latency

    @property
    def lookahead(self) -> int:
        """The largest number of input samples that a result needs after the one at its own time.
        It is exact."""
        return self.progress.lookahead

    @by_one_thread
    def to_bytes(self) -> bytes:
        """Return the state without the weights, for `from_bytes` of a stream defined alike.

        It contains a checksum and a digest of the definition. The definition includes the engine
        and the kind of processor, since others would produce different bits.
        """
        return encoded(self._digest(), self._state())

    def from_bytes(self, data: bytes) -> Self:
        """Return a new stream with these weights in state `data`; `ArgumentError` if it is damaged.

        >>> import numpy as np
        >>> from upconv import stream
        >>> one = stream(np.ones((1, 1, 2), np.float32))
        >>> _ = one.push(np.ones((1, 1, 3), np.float32))
        >>> one.from_bytes(one.to_bytes()).finish()
        array([[[1.]]], dtype=float32)
        """
        return self._with(decoded(self._digest(), data))

    @by_one_thread
    def copy(self) -> Self:
        """Return an independent stream in the same state; the weights are shared."""
        return self._with(self._state())

    def _require_open(self) -> None:
        if self._ended:
            raise EngineError("This stream is finished. Call reset() to start again.")

    def _digest(self) -> bytes:
        """Return a digest of the stream's definition."""
        raise NotImplementedError

    def _state(self) -> list[Any]:
        """Return the state: numbers, None, arrays that are never written to, and lists of these."""
        raise NotImplementedError

    def _with(self, state: list[Any]) -> Self:
        """Return a stream with the same definition in the given state."""
        raise NotImplementedError
