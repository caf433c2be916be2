"""The inputs and outputs that two models declare, held against each other in words.

An input of one shape in one model and an open one in the other is no finding: what both allow is
what they are fed. Shapes and types of outputs are compared as they come out, not as declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ...errors import brief
from ..runtimes.values import Dimension, Interface, Value


def findings(a: Interface, b: Interface) -> tuple[str, ...]:
    """Sentences about what differs; none where `b` can stand in for `a`.

    >>> one = Interface((), (Value("y", None, None), Value("z", None, None)))
    >>> findings(one, Interface((), one.outputs[::-1]))
    ("The outputs are in another order: 'y', 'z' in a, 'z', 'y' in b.",)
    """
    return (
        *_names("input", a.inputs, b.inputs),
        *_types(a.inputs, b.inputs),
        *_names("output", a.outputs, b.outputs),
    )


def _names(what: str, a: Sequence[Value], b: Sequence[Value]) -> Iterator[str]:
    ours, theirs = [value.name for value in a], [value.name for value in b]
    yield from (f"The {what} {brief(n)} of a is missing in b." for n in ours if n not in theirs)
    yield from (f"The {what} {brief(n)} of b is missing in a." for n in theirs if n not in ours)
    if ours != theirs and set(ours) == set(theirs):
        orders = (", ".join(map(brief, names)) for names in (ours, theirs))
        yield "The {}s are in another order: {} in a, {} in b.".format(what, *orders)


def _types(a: Sequence[Value], b: Sequence[Value]) -> Iterator[str]:
    others = {value.name: value for value in b}
    for value in a:
        other = others.get(value.name, value)
        if (value.dtype, value.kind) != (other.dtype, other.kind) or _met(value, other) is None:
            yield f"The input {brief(value.name)} is {value} in a and {other} in b."


def fed(a: Interface, b: Interface) -> tuple[Value, ...] | None:
    """The inputs of both models, each as narrow as either has it; None if they exclude each other.

    >>> x, other = Value("x", None, ("N", None)), Value("x", None, (None, 3))
    >>> fed(Interface((x,), ()), Interface((other,), ()))[0].shape
    ('N', 3)
    """
    others = {value.name: value for value in b.inputs}
    merged = [_met(value, others.pop(value.name, value)) for value in a.inputs]
    values = [value for value in merged if value is not None]
    return None if len(values) < len(merged) else (*values, *others.values())


def _met(a: Value, b: Value) -> Value | None:
    if a.shape is None or b.shape is None:
        return replace(a, shape=b.shape if a.shape is None else a.shape)
    if len(a.shape) != len(b.shape):
        return None
    pairs = list(zip(a.shape, b.shape, strict=True))
    if any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in pairs):
        return None
    return replace(a, shape=tuple(_narrower(x, y) for x, y in pairs))


def _narrower(a: Dimension, b: Dimension) -> Dimension:
    if isinstance(a, int) or b is None:
        return a
    return b if isinstance(b, int) or a is None else a
