"""A node that is being added to a network: its inputs, constants and attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ...arrays import Array
from ...errors import EngineRefusal
from ...network import Network
from ..constants import constant_value


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A node that is being added to a network; values: model value -> network value."""

    network: Network
    node: ir.Node
    values: Mapping[ir.Value, Any]
    opset: int

    def x(self, i: int = 0) -> Any:
        """Return the network's value for an input of the node."""
        value = self.node.inputs[i]
        if value is None or value not in self.values:
            raise EngineRefusal(f"Its input {i} is constant, or an input without known channels.")
        return self.values[value]

    def has(self, i: int) -> bool:
        """Return whether the node has this input."""
        return i < len(self.node.inputs) and self.node.inputs[i] is not None

    def constant(self, i: int) -> Array:
        """Return the constant at this input."""
        constant = constant_value(self.node.inputs[i])
        if constant.array is None:
            raise EngineRefusal(constant.reason)
        return constant.array

    def optional(self, i: int) -> Array | None:
        """Return the constant at this input; None if the node has no such input."""
        return self.constant(i) if self.has(i) else None

    def attribute(self, name: str, default: Any) -> Any:
        """Return the value of an attribute, or the default if it is absent."""
        entry = self.node.attributes.get(name)
        return default if entry is None else entry.value

    def require(self, condition: object, reason: str) -> None:
        """Refuse the node for this reason unless the condition holds."""
        if not condition:
            raise EngineRefusal(reason)
