"""Properties computed once, on first use, without a lock."""

from __future__ import annotations

import functools
from typing import Any, Self, TypeVar, overload

Value = TypeVar("Value")


class cached_property(functools.cached_property[Value]):  # noqa: N801 - the name of its base
    """`functools.cached_property` without the lock that it has before Python 3.12.

    All objects of a class share that lock. A child forked while another thread computes the
    property would wait for it for ever. Here two threads that come first together both compute,
    and both get the same value.
    """

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type[Any] | None = None) -> Value: ...

    def __get__(self, instance: object, owner: type[Any] | None = None) -> Any:
        """Compute the value; later reads find it in the object's dictionary."""
        if instance is None:
            return self
        return instance.__dict__.setdefault(str(self.attrname), self.func(instance))
