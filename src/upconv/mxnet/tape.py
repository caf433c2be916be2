"""The tape: recorded computations, and their gradients in reverse order.

A recorded value has a source: a node and an output's number. A leaf is the source of an array that
holds a gradient; its grad_req is null, write or add.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ..dialects.mxnet_attributes import Attributes
from .base import MXNetError, ordered, raised_by
from .operators import Array, Call, Operator, operator_named

REQUESTS = ("null", "write", "add")


class _State(threading.local):
    recording = False
    training = False
    tracing = False


STATE = _State()
"""Whether this thread records, whether it trains, and whether it traces the graph of a block."""


@contextmanager
def mode(recording: bool | None, training: bool | None) -> Iterator[None]:
    """Set recording and training mode within a block; None leaves a mode unchanged."""
    previous = STATE.recording, STATE.training
    STATE.recording = previous[0] if recording is None else recording
    STATE.training = previous[1] if training is None else training
    try:
        yield
    finally:
        STATE.recording, STATE.training = previous


@dataclass(slots=True, eq=False)
class Leaf:
    """The destination of a gradient: the array to write it to, and whether to write or add."""

    grad: Any
    grad_req: str


@dataclass(slots=True, eq=False)
class Node:
    """A recorded computation; `parents` has a source, a leaf or None for each input."""

    operator: Operator
    call: Call | None
    parents: list[Any]


@lru_cache(maxsize=1024)
def _parsed(name: str, inputs: int, items: tuple[tuple[str, type, Any], ...]) -> Attributes:
    return operator_named(name).parse({key: value for key, _, value in items}, inputs)


def _attributes(operator: Operator, arguments: Mapping[str, Any], inputs: int) -> Attributes:
    """Return a call's attributes; equal arguments are parsed once."""
    try:
        # The key includes the type: 1 and 1.0 are equal, but only one is an integer.
        items = tuple(
            (name, type(value), tuple(value) if isinstance(value, list) else value)
            for name, value in arguments.items()
        )
        return _parsed(operator.name, inputs, items)
    except TypeError:  # an attribute is not hashable
        return operator.parse(arguments, inputs)


def compute(
    operator: Operator, attributes: Any, arrays: Sequence[Array], parents: list[Any],
    name: str = "",
) -> tuple[Sequence[Array], Node | None, int]:  # fmt: skip
    """Run an operator; return its outputs, its node if recorded, and the number of visible outputs.

    attributes: parsed or not. name: the start of error messages, by default the operator's name.
    """
    name = name or operator.name
    with raised_by(name):
        parsed = isinstance(attributes, Attributes)
        p = attributes if parsed else _attributes(operator, attributes, len(arrays))
        expected = operator.named_inputs(p)
        if len(arrays) != len(expected):
            names = ", ".join(operator.inputs[: len(arrays)])
            got = f"{len(arrays)} inputs ({names})"
            raise MXNetError(f"{name}: {got}; expected {', '.join(expected)}.")
        call = Call(p, STATE.training, inputs=arrays)
        operator.run(call)
    records = STATE.recording and any(parent is not None for parent in parents)
    node = Node(operator, call, parents) if records else None
    return call.outputs, node, operator.visible(p)


def gradients(
    heads: Sequence[tuple[Any, Array]], training: bool, retain: bool
) -> list[tuple[Any, Array]]:
    """Return each leaf on which the heads depend, with its gradient.

    heads: sources or leaves, each with a scalar's gradient with respect to it. Raises `MXNetError`
    if the graph has been released, or an operator in between has no gradient.
    """
    totals: dict[tuple[int, int], Array] = {}
    leaves: dict[int, tuple[Any, Array]] = {}

    def accumulate(parent: Any, grad: Array) -> None:
        if isinstance(parent, tuple):
            key = id(parent[0]), parent[1]
            totals[key] = totals[key] + grad if key in totals else grad
        elif id(parent) in leaves:
            leaves[id(parent)] = parent, leaves[id(parent)][1] + grad
        else:
            leaves[id(parent)] = parent, grad

    for parent, grad in heads:
        accumulate(parent, grad)
    computed = [parent[0] for parent, _ in heads if isinstance(parent, tuple)]
    parents = lambda node: [p[0] for p in node.parents if isinstance(p, tuple)]  # noqa: E731
    for node in reversed(ordered(computed, parents)):
        for parent, part in zip(node.parents, _backward(node, totals, training), strict=True):
            if parent is not None and part is not None:
                accumulate(parent, part)
        if not retain:
            node.call = None
    return list(leaves.values())


def _backward(
    node: Node, totals: Mapping[tuple[int, int], Array], training: bool
) -> Sequence[Array | None]:
    """Return the gradients of one node's inputs."""
    call = node.call
    if call is None:
        raise MXNetError(
            f"{node.operator.name}: its graph has been released. To run backward twice, use "
            "retain_graph=True in the first call."
        )
    known = [totals.get((id(node), i)) for i in range(len(call.outputs))]
    if node.operator.backward is None:
        raise MXNetError(f"{node.operator.name}: it has no gradient.")
    pairs = zip(known, call.outputs, strict=True)
    grads = [np.zeros_like(y) if g is None else np.asarray(g, y.dtype) for g, y in pairs]
    call.wanted = tuple(parent is not None for parent in node.parents)
    call.training = training
    with raised_by(f"the gradient of {node.operator.name}"):
        return node.operator.backward(call, *grads)
