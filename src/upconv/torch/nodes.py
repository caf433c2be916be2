"""Nodes of FX graphs: their rows in the table of operations, and the memory that they write."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from ..errors import ArgumentError
from ..network import Network
from . import arranging
from .arranging import Row
from .network_rules import ROWS

_SPACES = (functional, torch, torch._C._nn, operator)
_IN_PLACE = {
    "iadd": "add", "imul": "mul", "isub": "sub", "itruediv": "truediv", "ipow": "pow",
    "setitem": "", "__getitem__": "getitem",
}  # fmt: skip
_LAST_IS_INPLACE = {
    "relu", "leaky_relu", "elu", "silu", "hardswish", "dropout", "hardtanh", "celu", "relu6",
    "selu", "mish", "hardsigmoid",
}  # fmt: skip
_VIEWS = {
    "clone", "contiguous", "detach", "alias", "dropout", "slice", "narrow", "split",
    "split_with_sizes", "chunk", *arranging.MOVES,
}  # fmt: skip


def name_of(node: fx.Node) -> str:
    """Return the name of a node's function, as in `ROWS`; "" for other nodes and functions."""
    target: Any = node.target
    if node.op == "call_method":
        return str(target)
    if isinstance(target, torch._ops.OpOverload):
        space, _, name = target._schema.name.partition("::")
        return name if space == "aten" else ""
    name = getattr(target, "__name__", "")
    if node.op != "call_function" or not any(getattr(s, name, None) is target for s in _SPACES):
        return ""
    qualified = f"functional.{name}"
    return qualified if qualified in ROWS and hasattr(functional, name) else name


def operation_of(node: fx.Node) -> str:
    """Return `name_of` without its in-place mark, as in "relu_" or "iadd"."""
    name = name_of(node)
    if name in ROWS or name in arranging.MOVES:
        return name
    return _IN_PLACE.get(name, name.removesuffix("_"))


def row_of(node: fx.Node) -> Row | None:
    """Return a node's row, even if its function works in place; None if there is none."""
    name = operation_of(node)
    return arranging.LAST_AXIS.get(name) or arranging.row_of(name)


def is_convolution(node: fx.Node) -> bool:
    """Whether a node is a convolution, transposed or not."""
    return name_of(node).startswith("conv")


def is_view(node: fx.Node) -> bool:
    """Whether a node with a row may return a view of its first argument."""
    return operation_of(node) in _VIEWS


def writes(node: fx.Node) -> list[fx.Node]:
    """Return the nodes whose memory a node writes in place."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        aliases = {argument.name: argument.alias_info for argument in target._schema.arguments}
        values = {**dict(zip(aliases, node.args, strict=False)), **node.kwargs}
        written = [values[name] for name, alias in aliases.items() if alias and alias.is_write]
    else:
        name = getattr(target, "__name__", str(target))
        in_place = name.endswith("_") and not name.endswith("__")
        in_place |= name in _IN_PLACE and target is getattr(operator, name, None)
        in_place |= node.kwargs.get("inplace") is True
        in_place |= name in _LAST_IS_INPLACE and len(node.args) > 1 and node.args[-1] is True
        first = node.args[0] if node.args else node.kwargs.get("input")
        written = [first if in_place else None, node.kwargs.get("out")]
    return [value for value in written if isinstance(value, fx.Node)]


def add_node(network: Network, node: fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Add a node's operation to a network.

    args, kwargs: the node's arguments, with `Arranged` values or tensors in place of nodes.

    Raises an `UpconvError` if there is no row, or if the row does not accept the arguments.
    """
    row = row_of(node)
    name = name_of(node) or node.target
    if row is None:
        raise ArgumentError("the operation", str(name), "one that a network computes")
    names = dict(kwargs)
    first = [names.pop(name) for name in ("input", "self") if name in names]
    for option in ("inplace", "memory_format", "out_dtype"):
        names.pop(option, None)
    try:
        return row(network, *first, *args, **names)
    except (TypeError, ValueError, IndexError, RuntimeError) as error:  # unusual arguments
        raise ArgumentError(f"the arguments of {name}", str(error), "those of the table") from None
