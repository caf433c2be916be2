"""A digest of everything that the results of a graph depend on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

import numpy as np

from .graph import Graph


def digest(graph: Graph, *more: object) -> bytes:
    """Return the SHA-256 of a graph's operations, including weights, and of further values."""
    result = hashlib.sha256(repr((more, graph.outputs)).encode())
    for node in graph.nodes:
        result.update(repr((node.inputs, node.outputs)).encode())
        for part in plain(node.operation):
            result.update(part)
    return result.digest()


def plain(value: object) -> Iterator[bytes]:
    """Yield an operation's type and fields as bytes; equal operations give equal bytes."""
    if isinstance(value, np.ndarray):
        yield from (f"{value.dtype} {value.shape}".encode(), value.tobytes())
    elif is_dataclass(value):
        yield type(value).__name__.encode()
        for field in fields(value):
            yield from plain(getattr(value, field.name))
    elif isinstance(value, tuple):
        yield f"{type(value).__name__} {len(value)}".encode()
        for entry in value:
            yield from plain(entry)
    else:
        yield repr(value).encode()
