"""The inputs and outputs that two models declare, held against each other in words.

An input of one shape in one model and an open one in the other is no finding: what both allow is
what they are fed. Shapes and types of outputs are compared as they come out, not as declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from ...errors import brief
from ..runtimes.interface import declared, inputs_of


def findings(a: ir.Model, b: ir.Model) -> tuple[str, ...]:
    """Sentences about what differs; none where `b` can stand in for `a`."""
    return (
        *_names("input", inputs_of(a), inputs_of(b)),
        *_types(inputs_of(a), inputs_of(b)),
        *_names("output", a.graph.outputs, b.graph.outputs),
    )


def _names(what: str, a: Sequence[ir.Value], b: Sequence[ir.Value]) -> Iterator[str]:
    ours, theirs = [value.name for value in a], [value.name for value in b]
    yield from (f"The {what} {brief(n)} of a is missing in b." for n in ours if n not in theirs)
    yield from (f"The {what} {brief(n)} of b is missing in a." for n in theirs if n not in ours)
    if ours != theirs and set(ours) == set(theirs):
        orders = (", ".join(map(brief, names)) for names in (ours, theirs))
        yield "The {}s are in another order: {} in a, {} in b.".format(what, *orders)


def _types(a: Sequence[ir.Value], b: Sequence[ir.Value]) -> Iterator[str]:
    others = {value.name: value for value in b}
    for value in a:
        other = others.get(value.name, value)
        if value.type != other.type or _met(value, other) is None:
            words = f"{declared(value)} in a and {declared(other)} in b"
            yield f"The input {brief(value.name)} is {words}."


def fed(a: Sequence[ir.Value], b: Sequence[ir.Value]) -> tuple[ir.Value, ...] | None:
    """The inputs of both models, each as narrow as either has it; None if they exclude each other.

    >>> x, other = (ir.Value(name="x", shape=ir.Shape(dims)) for dims in (["N", None], [None, 3]))
    >>> str(fed([x], [other])[0].shape)
    '[N,3]'
    """
    others = {value.name: value for value in b}
    merged = [_met(value, others.pop(value.name, value)) for value in a]
    values = [value for value in merged if value is not None]
    return None if len(values) < len(merged) else (*values, *others.values())


def _met(a: ir.Value, b: ir.Value) -> ir.Value | None:
    shape = b.shape if a.shape is None else a.shape
    if a.shape is not None and b.shape is not None:
        pairs = list(zip(a.shape, b.shape, strict=False))
        apart = any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in pairs)
        if len(a.shape) != len(b.shape) or apart:
            return None
        shape = ir.Shape([y if _is_wider(x, y) else x for x, y in pairs])
    return ir.Value(name=a.name, type=a.type, shape=shape)


def _is_wider(x: int | ir.SymbolicDim, y: int | ir.SymbolicDim) -> bool:
    """Whether the dimension x says less than y does."""
    return not isinstance(x, int) and (isinstance(y, int) or x.value is None)
