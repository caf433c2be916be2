"""Conversion of a GPU library's out-of-memory errors to `MemoryLimitError`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import MemoryLimitError


@contextmanager
def out_of_memory(library: Any, purpose: str) -> Iterator[None]:
    """Convert a library's out-of-memory error in the block to `MemoryLimitError`."""
    try:
        yield
    except Exception as error:
        raise raised(library, purpose, error) from None


def raised(library: Any, purpose: str, error: Exception) -> Exception:
    """The error to raise for a library's error."""
    if not library.is_out_of_memory(error):
        return error
    reason = " ".join(str(error).split())[:300]
    message = f"{purpose} does not fit on the GPU: {reason} Work on smaller pieces of the input."
    return MemoryLimitError(message)
