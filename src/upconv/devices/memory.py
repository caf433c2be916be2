"""Too little memory on a GPU: the error of a library of arrays as upconv's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..errors import MemoryLimitError


@contextmanager
def out_of_memory(library: Any, purpose: str) -> Iterator[None]:
    """Turn a library's error for too little memory into `MemoryLimitError`."""
    try:
        yield
    except Exception as error:
        raise raised(library, purpose, error) from None


def raised(library: Any, purpose: str, error: Exception) -> Exception:
    """The error to raise for a library's own."""
    if not library.is_out_of_memory(error):
        return error
    reason = " ".join(str(error).split())[:300]
    words = f"{purpose} does not fit on the GPU: {reason} Work on smaller pieces of the input."
    return MemoryLimitError(words)
