"""Attributes of symbols that no operator reads, such as the learning rate of a variable."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from ..errors import brief
from .base import MXNetValueError

HIDDEN = ("ctx_group", "lr_mult", "wd_mult", "force_mirroring", "mirror_stage")
"""Attributes that are stored between underscores, such as `__lr_mult__`."""
_SCOPE: ContextVar[Mapping[str, str]] = ContextVar("attributes", default={})  # noqa: B039


class AttrScope:
    """The attributes of every symbol that is created within a block.

    Raises `MXNetValueError` for a value that is not a string.

    >>> import upconv.mxnet as mx
    >>> with AttrScope(lr_mult="0.1"):
    ...     x = mx.sym.var("x")
    >>> x.attr("lr_mult")
    '0.1'
    """

    def __init__(self, **attrs: str) -> None:
        self._attrs = stored(attrs)

    def __enter__(self) -> AttrScope:
        self._token = _SCOPE.set(scoped(self._attrs))
        return self

    def __exit__(self, *_: object) -> None:
        _SCOPE.reset(self._token)


def stored(attrs: Mapping[str, Any]) -> dict[str, str]:
    """Return attributes under the names that files use; raises `MXNetValueError`."""
    if not isinstance(attrs, Mapping):
        raise MXNetValueError(f"attr is {brief(attrs)}; expected a dict of strings.")
    for key, value in attrs.items():
        if not isinstance(value, str):
            raise MXNetValueError(f"The attribute {key} is {brief(value)}; expected a string.")
    return {f"__{key}__" if key in HIDDEN else key: value for key, value in attrs.items()}


def scoped(attrs: Mapping[str, Any] | None) -> dict[str, str]:
    """Return a new symbol's attributes: these, and those of the enclosing scopes."""
    return {**_SCOPE.get(), **stored(attrs or {})}


def with_short_names(attrs: dict[str, str]) -> dict[str, str]:
    """Add names without underscores for attributes that are stored between underscores."""
    return attrs | {key: attrs[f"__{key}__"] for key in HIDDEN if f"__{key}__" in attrs}


def is_free(key: str) -> bool:
    """Return whether an argument of this name is an attribute that no operator reads."""
    return key in HIDDEN or (key.startswith("__") and key.endswith("__"))
