"""The tape: what is recorded of a computation, and its gradients from the end to the beginning.

A value that something differentiable depends on has a source: the node that computed it and which
output it is. A leaf is an array that a gradient is kept for; its own grad_req says how.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np

from ..dialects.mxnet_attributes import Attributes
from .base import MXNetError, ordered, raised_by
from .operators import Array, Call, Operator, operator

REQUESTS = ("null", "write", "add")


class _State(threading.local):
    recording = False
    training = False
    tracing = False


STATE = _State()
"""Whether this thread records, whether it trains, and whether it makes a graph of a block."""


@contextmanager
def mode(recording: bool | None, training: bool | None) -> Iterator[None]:
    """Record or not, train or not, within a block; None leaves it as it is."""
    before = STATE.recording, STATE.training
    STATE.recording = before[0] if recording is None else recording
    STATE.training = before[1] if training is None else training
    try:
        yield
    finally:
        STATE.recording, STATE.training = before


class Leaf:
    """Where a gradient ends: the array that it is written to, and how."""

    __slots__ = ("grad", "grad_req")

    def __init__(self, grad: Any, grad_req: str) -> None:
        self.grad, self.grad_req = grad, grad_req


class Node:
    """A recorded computation; `parents` are sources, leaves, or None, one for each input."""

    __slots__ = ("call", "parents", "row")

    def __init__(self, row: Operator, call: Call, parents: list[Any]) -> None:
        self.row, self.parents = row, parents
        self.call: Call | None = call


@lru_cache(maxsize=1024)
def _remembered(name: str, inputs: int, given: tuple[tuple[str, type, Any], ...]) -> Attributes:
    return operator(name).parse({key: value for key, _, value in given}, inputs)


def attributes_of(row: Operator, given: Mapping[str, Any], inputs: int) -> Attributes:
    """The attributes of a call, parsed once for equal ones."""
    try:
        # The type as well: 1 and 1.0 are equal, but only one is an integer.
        items = tuple((name, type(value), _frozen(value)) for name, value in given.items())
        return _remembered(row.name, inputs, items)
    except TypeError:  # an attribute that cannot be hashed
        return row.parse(given, inputs)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def compute(
    row: Operator, given: Any, arrays: Sequence[Array], parents: list[Any], name: str = "",
) -> tuple[Sequence[Array], Node | None, int]:  # fmt: skip
    """Run an operator: its outputs, its node if it was recorded, how many outputs are seen.

    given: its attributes, parsed or not. name: what errors begin with, or else the operator's.
    """
    with raised_by(name or row.name):
        parsed = isinstance(given, Attributes)
        p = given if parsed else attributes_of(row, given, len(arrays))
        wanted = row.named_inputs(p)
        if len(arrays) != len(wanted):
            given_names = ", ".join(row.inputs[: len(arrays)])
            text = f"{len(arrays)} inputs ({given_names}); expected {', '.join(wanted)}."
            raise MXNetError(f"{name or row.name}: {text}")
        call = Call(p, STATE.training, inputs=arrays)
        row.run(call)
    records = STATE.recording and any(parent is not None for parent in parents)
    node = Node(row, call, parents) if records else None
    return call.outputs, node, row.visible(p)


def gradients(
    heads: Sequence[tuple[Any, Array]], training: bool, retain: bool
) -> list[tuple[Any, Array]]:
    """Each leaf that the heads depend on, with its gradient.

    heads: sources or leaves, with the gradient of a scalar by each. Raises `MXNetError` where the
    graph has been released, or an operator on the way has no gradient.
    """
    totals: dict[tuple[int, int], Array] = {}
    leaves: dict[int, tuple[Any, Array]] = {}

    def arrive(parent: Any, grad: Array) -> None:
        if isinstance(parent, tuple):
            key = id(parent[0]), parent[1]
            totals[key] = totals[key] + grad if key in totals else grad
        elif id(parent) in leaves:
            leaves[id(parent)] = parent, leaves[id(parent)][1] + grad
        else:
            leaves[id(parent)] = parent, grad

    for parent, grad in heads:
        arrive(parent, grad)
    computed = [parent[0] for parent, _ in heads if isinstance(parent, tuple)]
    before = lambda node: [p[0] for p in node.parents if isinstance(p, tuple)]  # noqa: E731
    for node in reversed(ordered(computed, before)):
        for parent, found in zip(node.parents, _backward(node, totals, training), strict=True):
            if parent is not None and found is not None:
                arrive(parent, found)
        if not retain:
            node.call = None
    return list(leaves.values())


def _backward(
    node: Node, totals: Mapping[tuple[int, int], Array], training: bool
) -> Sequence[Array | None]:
    """The gradients of one node's inputs."""
    call = node.call
    if call is None:
        raise MXNetError(
            f"{node.row.name}: its graph has been released. Use retain_graph=True in the first "
            "backward to run a second."
        )
    given = [totals.get((id(node), i)) for i in range(len(call.outputs))]
    if node.row.backward is None:
        raise MXNetError(f"{node.row.name}: it has no gradient.")
    pairs = zip(given, call.outputs, strict=True)
    grads = [np.zeros_like(y) if g is None else np.asarray(g, y.dtype) for g, y in pairs]
    call.wanted = tuple(parent is not None for parent in node.parents)
    call.training = training
    with raised_by(f"the gradient of {node.row.name}"):
        return node.row.backward(call, *grads)
