"""`Support`: the nodes of an FX graph that a network computes, and why it refuses the others.

Each node is tried separately. Its row of the table adds it to a network whose inputs have the
shapes recorded in the graph. The result must have the same shape as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch.fx.passes.operator_support import OperatorSupportBase

from ..errors import ArgumentError, UpconvError
from ..network import Network
from ..network.axes import Arranged
from .arranging import moves_axes, suits_any_axes
from .nodes import add_node, is_convolution, is_view, name_of, operation_of, row_of, writes
from .tensors import Tensor


def value_of(node: Any) -> Any:
    """Return a node's value: a fake tensor, a list or a number; None if unknown."""
    meta = node.meta if isinstance(node, fx.Node) else {}
    return meta.get("val", meta.get("example_value"))


class Support(OperatorSupportBase):  # type: ignore[misc]
    """The nodes of a graph that can join parts of one dtype.

    weights: the nodes that depend only on parameters and buffers. refused: the nodes that are left
    to PyTorch, with the reasons. arranged: the values of supported nodes whose axes are not in the
    order (N, C, *size).
    """

    def __init__(
        self, module: fx.GraphModule, weights: set[fx.Node], refused: Mapping[fx.Node, str]
    ) -> None:
        self.dtype = torch.float32
        self._nodes = list(module.graph.nodes)
        self._written = _written(self._nodes)
        self.weights: set[fx.Node] = set()
        self.in_parts: set[fx.Node] = set()
        for node in self._nodes:
            if node in weights or _is_weight(node) or self._derives_from_weights(node):
                self.weights.add(node)
        self._reasons = dict(refused)
        self._dtypes: dict[fx.Node, Any] = {}
        self.arranged: dict[fx.Node, Arranged] = {}
        self._known: set[fx.Node] = set()

    def _derives_from_weights(self, node: fx.Node) -> bool:
        operands = node.all_input_nodes
        return (
            node.op in ("call_function", "call_method")
            and isinstance(value_of(node), torch.Tensor)
            and bool(operands)
            and all(operand in self.weights for operand in operands)
            and not writes(node)
        )

    def any(self) -> bool:
        """Whether any convolution has values of the dtype."""
        values = [value_of(node) for node in self._nodes if is_convolution(node)]
        return any(getattr(value, "dtype", None) is self.dtype for value in values)

    def is_node_supported(self, _: Any, node: fx.Node) -> bool:
        """Whether a network can compute the node in this dtype."""
        if node.op not in ("call_function", "call_method") or node in self.weights:
            return False
        if node not in self._reasons:  # decide the axis orders of its operands first
            for each in self._nodes:
                is_call = each.op in ("call_function", "call_method")
                if is_call and each not in self.weights and each not in self._reasons:
                    self._reasons[each] = self._refusal(each)
        return not self._reasons[node] and self._dtypes[node] is self.dtype

    def fits(self, node: fx.Node) -> bool:
        """Whether a network can compute the node in any dtype."""
        return self._reasons.get(node) == ""

    def refuse(self, nodes: Iterable[fx.Node], reason: str) -> None:
        """Leave some nodes to PyTorch for a reason."""
        self._reasons.update(dict.fromkeys(nodes, reason))

    def is_ordered(self, node: fx.Node) -> bool:
        """Whether a node must keep its place, because memory that it uses is written."""
        operands = (node, *node.all_input_nodes)
        return bool(writes(node)) or any(operand in self._written for operand in operands)

    def moves(self) -> dict[fx.Node, str]:
        """Return a reason to refuse each node that leaves axes in another order."""
        return dict.fromkeys(self.arranged, "too many parts would end in another order of axes")

    def reasons(self) -> dict[str, str]:
        """Return, for each node outside the parts, the reason why PyTorch computes it."""
        alone = "no convolution is next to it"
        return {
            f"{node.name} ({name_of(node) or node.target})": reason or alone
            for node, reason in self._reasons.items()
            if node not in self.in_parts
        }

    def _refusal(self, node: fx.Node) -> str:
        """Return why a network cannot compute a node; "" if it can."""
        if row_of(node) is None:
            return "upconv's networks have no such operation"
        if node in self._written or any(source in self._written for source in node.all_input_nodes):
            return "memory that it reads or returns is written in place"
        is_known = any(source in self._known for source in node.all_input_nodes)
        operation = operation_of(node)
        if moves_axes(operation) and not is_known:
            return "no layer before it shows which axis has the channels"
        try:
            results, values = self._tried(node)
        except UpconvError as error:
            return str(error)
        expected = [tuple(size or 0 for size in _open(value.shape)) for value in values]
        if [result.shape for result in results] != expected:
            return f"its shape is {expected}, a network's is {[result.shape for result in results]}"
        self._dtypes[node] = values[0].dtype
        if is_known or not suits_any_axes(operation):
            self._known.add(node)
        if not results[0].is_plain:
            self.arranged[node] = results[0]
        return ""

    def _tried(self, node: fx.Node) -> tuple[list[Arranged], list[Tensor]]:
        """Return a node's results in a separate network, and its values in PyTorch's graph."""
        values = _tensors(node)
        inputs: dict[fx.Node, Any] = {}
        self._collect(node, inputs)
        if not inputs:
            raise ArgumentError("every operand", "constant", "one that changes")
        for tensor in [*values, *inputs.values()]:
            _check(tensor, values[0].dtype)
        declared = {
            f"x{number}": self._declared(source, value)
            for number, (source, value) in enumerate(inputs.items())
        }
        network = Network(declared)
        operands = {
            source: Arranged(value, self.arranged[source].axes)
            if source in self.arranged
            else Arranged.of(value)
            for source, value in zip(inputs, network.inputs.values(), strict=True)
        }
        results = self._added(network, node, operands)
        return (results if isinstance(results, list) else [results]), values

    def _declared(self, source: fx.Node, value: Any) -> Any:
        """Return an operand's shape as a network input."""
        if source in self.arranged:
            return self.arranged[source].value.shape
        if not 3 <= value.dim() <= 5 or known_size(value.shape[1]) is None:
            got = f"of shape {tuple(value.shape)}"
            raise ArgumentError("a tensor", got, "(N, C, *size) of 1 to 3 spatial axes")
        return _open(value.shape)

    def _collect(self, node: fx.Node, inputs: dict[fx.Node, Any]) -> None:
        """Collect a node's operands that change between calls, including those inside lists."""
        for source in node.all_input_nodes:
            value = value_of(source)
            if source in self.weights:
                _check_weight(node, source, value_of(node))
            elif isinstance(value, (list, tuple)):
                if row_of(source) is None:
                    raise ArgumentError(
                        "an operand", f"of {name_of(source)}", "of a known operation"
                    )
                self._collect(source, inputs)
            elif isinstance(value, torch.Tensor):
                inputs[source] = value
            else:
                raise ArgumentError("an argument", "a size that is not known", "a number")

    def _added(self, network: Network, node: fx.Node, operands: Mapping[fx.Node, Arranged]) -> Any:
        def operand(source: fx.Node) -> Any:
            if source in operands:
                return operands[source]
            if source in self.weights:
                value = value_of(source)
                return torch.ones(tuple(map(int, value.shape)), dtype=value.dtype)
            return self._added(network, source, operands)

        args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), operand)
        return add_node(network, node, args, dict(kwargs))


def _check_weight(node: fx.Node, weight: fx.Node, result: Any) -> None:
    value = value_of(weight)
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        raise ArgumentError("a weight", "not a tensor on the CPU", "one")
    if None in _open(value.shape):
        raise ArgumentError("a weight", "of a size that is not known", "known sizes")
    if (is_convolution(node) or name_of(node) == "linear") and value.dtype is not result.dtype:
        raise ArgumentError("a weight", f"{value.dtype} under autocast", f"{result.dtype}")


def _check(value: Any, dtype: Any) -> None:
    if value.device.type != "cpu" or value.layout is not torch.strided:
        raise ArgumentError("a tensor", f"on {value.device}", "one on the CPU")
    if value.dtype is not dtype or dtype not in (torch.float32, torch.bfloat16):
        raise ArgumentError("a tensor", f"of {value.dtype}", "float32 or bfloat16 throughout")


def _tensors(node: fx.Node) -> list[Tensor]:
    value = value_of(node)
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if not values or not all(isinstance(tensor, torch.Tensor) for tensor in values):
        raise ArgumentError("the result", "not known as a tensor", "a tensor")
    return values


def _open(shape: Any) -> tuple[int | None, ...]:
    """Return a shape with None for symbolic sizes."""
    return tuple(map(known_size, shape))


def known_size(size: Any) -> int | None:
    """Return a size if it is constant, even as a symbol; else None."""
    if type(size) is int:
        return size
    known = size.node.maybe_as_int()
    return None if known is None else int(known)


def _is_weight(node: fx.Node) -> bool:
    """Whether a node is a parameter or a buffer of the model."""
    value = value_of(node)
    if node.op == "get_attr":
        try:
            owner = attrgetter(str(node.target))(node.graph.owning_module)
        except AttributeError:
            return False
        return isinstance(owner, torch.Tensor)
    lifted = "_dynamo_static_input_type" in node.meta.get("tensor_dict", ())
    return node.op == "placeholder" and (lifted or isinstance(value, torch.nn.Parameter))


def _written(nodes: list[fx.Node]) -> set[fx.Node]:
    """Return the nodes that may share memory with a node that is visibly written.

    A write in place is invisible if nothing else reads the memory that it writes.
    """
    seen: list[fx.Node] = []
    for node in nodes:
        seen += [write for write in writes(node) if row_of(node) is None or not _is_alone(write)]
    family: set[fx.Node] = set()
    while seen:
        node = seen.pop()
        if node in family:
            continue
        family.add(node)
        if _may_share(node):
            seen += node.all_input_nodes
        seen += [user for user in node.users if _may_share(user)]
    return family


def _is_alone(node: fx.Node) -> bool:
    """Whether only one node reads a node's memory, directly or through views."""
    while node.op.startswith("call_") and row_of(node) is not None and len(node.users) == 1:
        if not is_view(node):
            return True
        if len(node.all_input_nodes) != 1:
            return False
        (node,) = node.all_input_nodes
    return False


def _may_share(node: fx.Node) -> bool:
    """Whether a node's result may share memory with an operand."""
    if not node.op.startswith("call_"):
        return False
    return row_of(node) is None or is_view(node) or bool(writes(node))
