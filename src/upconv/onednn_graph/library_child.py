"""The child process that runs graphs by libdnnl: requests on stdin, replies on stdout.

A message is one line of JSON and then the bytes of its arrays, in the order in which the line lists
them. libdnnl prints to stdout when it is told to, so replies go to a copy of it.

What lives here: the loop and the messages, which the parent uses too. What never does: pointers.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from ..arrays import Array

Arrays = Mapping[int, Array]
_CARRIED = {"float32": "f4", "float16": "f2", "bfloat16": "u2", "int32": "i4", "uint16": "u2"}


def send(stream: IO[bytes], message: dict[str, Any], arrays: Arrays) -> None:
    """Write a message; bfloat16 arrays go as their bits."""
    parts = {
        id_: np.ascontiguousarray(array).view(_CARRIED[array.dtype.name])
        for id_, array in arrays.items()
    }
    listed = [[id_, part.dtype.str[1:], list(part.shape)] for id_, part in parts.items()]
    stream.write(json.dumps({**message, "arrays": listed}).encode() + b"\n")
    for part in parts.values():
        stream.write(part.tobytes())
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], dict[int, Array]] | None:
    """The next message, or None where the stream ended."""
    line = stream.readline()
    if not line.endswith(b"\n"):
        return None
    message: dict[str, Any] = json.loads(line)
    arrays = {}
    for id_, kind, shape in message.pop("arrays"):
        dtype = np.dtype(kind)
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        data = stream.read(size)
        if len(data) != size:
            return None
        arrays[int(id_)] = np.frombuffer(data, dtype).reshape(shape)
    return message, arrays


def serve() -> None:
    """Answer requests until stdin ends."""
    from .library_abi import StatusError, run

    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while (request := receive(sys.stdin.buffer)) is not None:
        message, arrays = request
        try:
            found = run(message["path"], message["graph"], arrays)
        except (StatusError, OSError, AttributeError, UnicodeError) as error:
            send(replies, {"error": str(error)}, {})
        else:
            send(replies, {"partitions": found["count"]}, found["arrays"])
