"""Operations as they are written, and as they are read: attributes checked, defaults filled in.

What lives here: Op, what a caller writes; Operation, what is left of it behind the border. What
never does: shapes and dims, which are looked at when a partition is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from ..dialects import values
from ..dialects.onednn_graph import Rule
from ..errors import ArgumentError, DTypeError, brief
from .logical_tensors import DataType, LogicalTensor
from .schemas import GROUPS, SCHEMAS, STATISTICS, Attribute, Form, Schema, Slot


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One operation: an id, a kind such as "ConvTranspose", tensors in slot order, attributes.

    Nothing is checked before it is added to a graph.

    >>> src, dst = LogicalTensor(0), LogicalTensor(1)
    >>> Op(0, "ReLU", [src], [dst]).kind
    'ReLU'
    """

    id: int
    kind: str
    inputs: Sequence[LogicalTensor]
    outputs: Sequence[LogicalTensor]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """An operation that passed its schema: every attribute there, plain, and in range.

    `given` are the attributes as they were written, for the library to read.
    """

    id: int
    schema: Schema
    inputs: tuple[LogicalTensor, ...]
    outputs: tuple[LogicalTensor, ...]
    attributes: dict[str, Any]
    given: dict[str, Any]
    name: str

    @property
    def kind(self) -> str:
        """The name of its schema."""
        return self.schema.kind

    @property
    def output(self) -> int:
        """The id of its result; no operation but End, which is never computed, has none."""
        return self.outputs[0].id

    def __str__(self) -> str:
        return f"op {self.id} ({self.kind})"


def read(op: object, rule: Rule) -> Operation:
    """`op` behind the border; raises an `ArgumentError` that names it for what its schema refuses.

    >>> relu = read(Op(3, "ReLU", [LogicalTensor(0)], [LogicalTensor(1)]), Rule.LIBRARY)
    >>> str(relu)
    'op 3 (ReLU)'
    """
    if not isinstance(op, Op):
        raise DTypeError("op", f"{brief(op)} ({type(op).__name__})", "an Op")
    number = values.integer("the op's id", op.id, low=0)
    kind = values.text(f"kind of op {number}", op.kind)
    if kind not in SCHEMAS:
        raise ArgumentError(f"kind of op {number}", brief(kind), f"one of {', '.join(SCHEMAS)}")
    schema = SCHEMAS[kind]
    with located(f"of op {number} ({kind})"):
        inputs, outputs = _tensors("inputs", op.inputs), _tensors("outputs", op.outputs)
        _check_count("the number of inputs", inputs, schema.inputs, schema.least_inputs)
        _check_count("the number of outputs", outputs, schema.outputs, len(schema.outputs))
        _check_types((*schema.inputs[: len(inputs)], *schema.outputs), (*inputs, *outputs))
        if {tensor.id for tensor in inputs} & {tensor.id for tensor in outputs}:
            remedy = "Operations make new tensors; memory is another matter."
            raise ArgumentError("the output", "its own input", "another tensor", remedy)
        given = _mapping(op.attributes)
        name = values.text("name", op.name)
        attributes = _attributes(schema, given, rule)
    return Operation(number, schema, inputs, outputs, attributes, given, name)


@contextmanager
def located(where: str) -> Iterator[None]:
    """Errors from within say which operation it was: `where` follows the argument's name."""
    try:
        yield
    except ArgumentError as error:
        name = f"{error.argument} {where}"
        raise type(error)(name, error.got, error.expected, error.remedy) from None


def _tensors(name: str, given: object) -> tuple[LogicalTensor, ...]:
    if not values.is_sequence(given):
        raise DTypeError(name, brief(given), "a list of LogicalTensor")
    tensors = tuple(given)
    for tensor in tensors:
        if not isinstance(tensor, LogicalTensor):
            raise DTypeError(name, f"one with {brief(tensor)}", "a list of LogicalTensor")
    return tensors


def _check_count(
    name: str, tensors: tuple[LogicalTensor, ...], slots: tuple[Slot, ...], least: int
) -> None:
    if not least <= len(tensors) <= len(slots):
        names = ", ".join(slot.name if slot.required else f"[{slot.name}]" for slot in slots)
        raise ArgumentError(name, str(len(tensors)), f"a tensor for each of: {names or 'none'}")


def _check_types(slots: tuple[Slot, ...], tensors: tuple[LogicalTensor, ...]) -> None:
    """Every slot's type is one of its group's; those of one group are one type."""
    first: dict[str, LogicalTensor] = {}
    for slot, tensor in zip(slots, tensors, strict=True):
        kind, name = DataType(tensor.data_type), f"data_type of {slot.name}"
        allowed = GROUPS[slot.group]
        if slot.group == "statistics":
            allowed = STATISTICS[DataType(first["T"].data_type)]
        if kind not in allowed:
            raise DTypeError(name, kind.value, " or ".join(one.value for one in allowed))
        same = first.setdefault(slot.group, tensor)
        if same.data_type != tensor.data_type:
            expected = f"{same.data_type}, the type of tensor {same.id}"
            raise DTypeError(name, kind.value, expected, "Types are not mixed in one operation.")


def _mapping(given: object) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        expected = "a dict from attribute names to values"
        raise DTypeError("attributes", brief(given), expected)
    return dict(given)


def _attributes(schema: Schema, given: dict[str, Any], rule: Rule) -> dict[str, Any]:
    known = {name: a for name, a in schema.attributes.items() if rule in a.rules}
    for name in given:
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "nothing: it has no attributes"
            remedy = "The document has it, the library refuses it: see the graph's rule."
            remedy = remedy if name in schema.attributes else ""
            raise ArgumentError("an attribute", brief(name), expected, remedy)
    for name, attribute in known.items():
        if attribute.required and name not in given:
            raise ArgumentError(name, "missing", f"{attribute.form.value}, given")
    return {
        name: _READERS[attribute.form](name, given[name], attribute, rule)
        if name in given
        else attribute.default_by(rule)
        for name, attribute in known.items()
    }


def _number(name: str, value: object, attribute: Attribute, rule: Rule) -> int:
    return values.integer(name, value, attribute.low)


def _numbers(name: str, value: object, attribute: Attribute, rule: Rule) -> tuple[int, ...]:
    return values.integers(name, value, attribute.low)


def _flag(name: str, value: object, attribute: Attribute, rule: Rule) -> bool:
    return values.flag(name, bool(value) if isinstance(value, np.bool_) else value)


def _real(name: str, value: object, attribute: Attribute, rule: Rule) -> float:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number):
        raise DTypeError(name, f"{brief(value)} ({type(value).__name__})", "a number")
    with np.errstate(all="ignore"):
        number = float(np.float32(value))  # the attribute is an f32: what it rounds to is meant
    least = 0.0 if attribute.name == "epsilon" else -float("inf")
    if not isfinite(number) or number < least:
        expected = "a finite number" + (" >= 0" if least == 0.0 else "")
        raise ArgumentError(name, brief(value), expected)
    return number


def _word(name: str, value: object, attribute: Attribute, rule: Rule) -> str:
    word, allowed = values.text(name, value), attribute.accepted(rule)
    if word in allowed:
        return word
    other = Rule.DOCUMENT if rule is Rule.LIBRARY else Rule.LIBRARY
    remedy = ""
    if word in attribute.accepted(other):
        remedy = f"It is a spelling of the {other.value}: see the graph's rule."
    raise ArgumentError(name, brief(word), f"one of {', '.join(map(repr, allowed))}", remedy)


_READERS = {
    Form.S64: _number,
    Form.S64_LIST: _numbers,
    Form.F32: _real,
    Form.BOOL: _flag,
    Form.STRING: _word,
}
