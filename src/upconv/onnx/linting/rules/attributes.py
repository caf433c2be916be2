"""Attributes of a node as they stand, None where they are absent or not of the kind expected.

`nodes` reads attributes by ONNX's rules and gives a reason; rules that judge what is written look
here.
"""

from __future__ import annotations

import onnx_ir as ir


def integers(node: ir.Node, name: str) -> tuple[int, ...] | None:
    """A list of integers."""
    attribute = _of(node, name, ir.AttributeType.INTS)
    return None if attribute is None else tuple(int(entry) for entry in attribute.as_ints())


def integer(node: ir.Node, name: str, absent: int) -> int | None:
    """One integer, `absent` where the node does not state it."""
    if name not in node.attributes:
        return absent
    attribute = _of(node, name, ir.AttributeType.INT)
    return None if attribute is None else int(attribute.as_int())


def text(node: ir.Node, name: str) -> str | None:
    """A word."""
    attribute = _of(node, name, ir.AttributeType.STRING)
    return None if attribute is None else str(attribute.value)


def _of(node: ir.Node, name: str, kind: ir.AttributeType) -> ir.Attr | None:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != kind:
        return None
    return attribute
