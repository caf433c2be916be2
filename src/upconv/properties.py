"""Properties computed once, on first use, without a lock."""

from __future__ import annotations

import functools
from typing import Any, Self, TypeVar, overload

Value = TypeVar("Value")


class cached_property(functools.cached_property[Value]):  # noqa: N801 - named like its base class
    """`functools.cached_property` without the lock of Python versions before 3.12.

    All objects of a class share that lock. A child forked while another thread computes the
    property would wait for it forever. Without the lock, two threads may both compute the value;
    both then get the same one.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Value: ...

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        """Compute the value and store it in the object's dictionary for later reads."""
        if instance is None:
            return self
        return instance.__dict__.setdefault(str(self.attrname), self.func(instance))
