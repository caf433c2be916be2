"""Counting of allocated memory."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def traced() -> Iterator[None]:
    """Count NumPy's memory inside the block."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
