"""Memory that is counted."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def traced() -> Iterator[None]:
    """Count NumPy's memory from here."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
