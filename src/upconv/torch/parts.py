"""Parts of FX graphs as networks: the largest connected pieces, each one call of one operator.

    torch.ops.upconv.network(inputs, weights, key) -> results

`hand_over` finds the parts with PyTorch's partitioner and inserts the calls into the graph. `key`
names a `Part`, which the graph module holds. Equal parts of equal graphs have equal keys in every
process, so that compiled graphs in PyTorch's caches find their parts.

A part builds its network from the weights' values in the first call, and again after a weight is
written or replaced. If no network accepts a call's values or sizes (NaN among weights, an empty
batch), PyTorch's functions compute the part, and `Part.reason` says why.
"""

from __future__ import annotations

import hashlib
import operator
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import fx

from ..errors import ArgumentError, EngineError, EngineRefusal
from ..network import Network
from ..network.axes import Arranged
from ..signatures import NetworkPrecision
from .nodes import add_node, is_convolution, name_of, writes
from .operators import _LIBRARY
from .packing import Version
from .partition import obstacle, partition
from .supported_nodes import known_size, value_of
from .tensors import Tensor, array, memory_order, thread_count

_MAX_NETWORKS = 2
_parts: weakref.WeakValueDictionary[str, Part] = weakref.WeakValueDictionary()
_counts: Counter[str] = Counter()


class Part:
    """Nodes of a graph that one network computes.

    operations: the names of the nodes, in order. layers: the number of convolutions. node: the
    call in the graph. module: the nodes as a PyTorch module. reason: why the network refused a
    call, which PyTorch then computed; "" if it refused none.
    """

    def __init__(self, nodes: list[fx.Node], weights: set[fx.Node]) -> None:
        sources, body = _with_computed_weights(nodes, weights)
        self.operations = tuple(map(name_of, body))
        self.layers = sum(map(is_convolution, body))
        self.reason = ""
        self._is_weight = tuple(source in weights for source in sources)
        self._writes = any(write in sources for node in body for write in writes(node))
        self._inputs = [value_of(source) for source in sources if source not in weights]
        self._dtype = self._inputs[0].dtype
        results = [node for node in nodes if not set(node.users) <= set(nodes)]
        self._orders = tuple(memory_order(value_of(result)) for result in results)
        self.module = _module(sources, body, results)
        self._networks: dict[tuple[int, ...], _Current] = {}
        digest = hashlib.sha256(repr((self.module.code, self._is_weight, self._orders)).encode())
        name = digest.hexdigest()[:24]
        _counts[name] += 1
        self.key = f"{name}-{_counts[name]}"
        self.node = self._inserted(nodes, sources, results)
        _parts[self.key] = self

    def __deepcopy__(self, _: Any) -> Part:
        return self  # copies of a graph call the part by its key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # it belongs to this process

    # In the graph ---------------------------------------------------------------------------------

    def _inserted(
        self, nodes: list[fx.Node], sources: list[fx.Node], results: list[fx.Node]
    ) -> fx.Node:
        """Insert the operator's call after the last node, and erase the nodes."""
        graph = nodes[0].graph
        pairs = list(zip(sources, self._is_weight, strict=True))
        inputs = [source for source, is_weight in pairs if not is_weight]
        weights = [source for source, is_weight in pairs if is_weight]
        values = [value_of(result) for result in results]
        with graph.inserting_after(nodes[-1]):
            call = graph.call_function(NETWORK, (inputs, weights, self.key))
        call.meta = {**nodes[-1].meta, "val": values, "example_value": values}
        last = call
        for number, result in enumerate(results):
            with graph.inserting_after(last):
                last = graph.call_function(operator.getitem, (call, number))
            last.meta = {**result.meta, "val": values[number], "example_value": values[number]}
            result.replace_all_uses_with(last)
        for node in reversed(nodes):
            graph.erase_node(node)
        for node in _dependent(graph, call):
            last.append(node)
            last = node
        return call

    def put_back(self) -> None:
        """Put PyTorch's nodes back into the graph."""
        graph, call = self.node.graph, self.node
        inputs = self.module.graph.find_nodes(op="placeholder")
        known = dict(zip(inputs, self._merged(*call.args[:2]), strict=True))
        with graph.inserting_before(call):
            results = graph.graph_copy(self.module.graph, known)
        for item in list(call.users):
            item.replace_all_uses_with(results[item.args[1]])
            graph.erase_node(item)
        graph.erase_node(call)

    def _merged(self, inputs: Any, weights: Any) -> list[Any]:
        """Return inputs and weights in the order of the module's arguments."""
        sources = iter(inputs), iter(weights)
        return [next(sources[is_weight]) for is_weight in self._is_weight]

    # Computing ------------------------------------------------------------------------------------

    def by_pytorch(self, inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """Compute the results with PyTorch's own functions."""
        if self._writes:
            inputs = [tensor.clone() for tensor in inputs]
        return list(self.module(*self._merged(inputs, weights)))

    def fake(self, inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """Return fake results with the same strides as the results of `run`."""
        return [*map(_result, self.by_pytorch(inputs, weights), self._orders)]

    def run(self, inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """Return the network's results, or PyTorch's if no network accepts these operands."""
        try:
            network = self._network(weights)
            arrays = [array(tensor.to(torch.float32).contiguous()) for tensor in inputs]
            pairs = zip(network.inputs, arrays, strict=True)
            shapes = {name: data.shape for name, data in pairs}
            precision: NetworkPrecision = "bfloat16" if self._dtype is torch.bfloat16 else "float32"
            program = network.program(shapes, precision=precision, threads=thread_count())
        except (ArgumentError, EngineRefusal) as error:
            self.reason = str(error)
            # PyTorch's results may share the inputs' memory, and have other strides.
            results = self.by_pytorch(inputs, weights)
            copies = [*map(_result, results, self._orders)]
            return [copy.copy_(result) for copy, result in zip(copies, results, strict=True)]
        results = [
            torch.empty_permuted(shape, order, dtype=torch.float32)
            for shape, order in zip(program.output_shapes, self._orders, strict=True)
        ]
        program.run(*arrays, out=[array(result) for result in results])
        return [result.to(self._dtype) for result in results]

    def build(self, weights: list[Tensor]) -> Network:
        """Return the network with the weights' current values.

        Raises `ArgumentError` for weights that no network accepts.
        """
        declared = {
            f"x{number}": tuple(map(known_size, x.shape)) for number, x in enumerate(self._inputs)
        }
        network = Network(declared)
        with torch.no_grad():
            values = map(Arranged.of, network.inputs.values())
            merged = self._merged(values, [weight.detach() for weight in weights])
            results = _Building(self.module, network).run(*merged)
        network.output(*(result.plain() for result in results))
        return network

    def _network(self, weights: list[Tensor]) -> Network:
        address = tuple(weight.data_ptr() for weight in weights)
        current = self._networks.get(address)
        if current is None or not all(map(Version.of, current.versions, weights)):
            current = _Current(self.build(weights), [*map(Version, weights)])
            others = [item for item in self._networks.items() if item[0] != address]
            latest = others[len(others) + 1 - _MAX_NETWORKS :] if others else []
            self._networks = {**dict(latest), address: current}
        return current.network


def _result(like: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return an uninitialized tensor of another's shape; order: its axes in memory."""
    return torch.empty_permuted(like.shape, order, dtype=like.dtype, device=like.device)


class _Current(NamedTuple):
    """A network and the versions of the weights that it was built from."""

    network: Network
    versions: list[Version]


class _Building(fx.Interpreter):  # type: ignore[misc]
    """An interpreter of a part on network values; operations on weights alone give tensors."""

    def __init__(self, module: fx.GraphModule, network: Network) -> None:
        super().__init__(module)
        self._network = network

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in ("call_function", "call_method"):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        leaves: list[Any] = []
        fx.node.map_aggregate((args, kwargs), leaves.append)
        if any(isinstance(leaf, Arranged) for leaf in leaves):
            return add_node(self._network, n, args, dict(kwargs))
        return super().run_node(n)


def hand_over(
    module: fx.GraphModule,
    *,
    weights: Iterable[fx.Node] = (),
    refused: Mapping[fx.Node, str] = MappingProxyType({}),
) -> tuple[list[Part], dict[str, str]]:
    """Replace each of the largest parts that networks can compute with one call, in place.

    module: a graph of PyTorch's functions or ATen's operators, whose nodes hold their values
    (`meta["val"]` or `meta["example_value"]`). Weights are parameters and buffers, as `get_attr`
    nodes or as inputs that Dynamo lifted, and the inputs in `weights`. A part has at least one
    convolution, and its values are float32 or bfloat16 on the CPU.

    refused: nodes that stay with PyTorch, with the reasons.

    Returns the parts, which `module` holds, and a reason for each node that stays, by name. An
    object that outlives the module must hold the parts too. They have no gradients.
    """
    support, chosen = partition(module, set(weights), refused)
    parts = []
    for nodes in chosen:
        reason = obstacle(nodes, support)
        if reason:
            support.refuse(nodes, reason)
        else:
            support.in_parts.update(nodes)
            parts.append(Part(nodes, support.weights))
    for node in reversed([node for node in module.graph.nodes if node in support.weights]):
        if node.op.startswith("call_") and not node.users:
            module.graph.erase_node(node)
    module.meta.setdefault("upconv", []).extend(parts)
    module.graph.lint()
    module.recompile()
    return parts, support.reasons()


def _dependent(graph: fx.Graph, call: fx.Node) -> list[fx.Node]:
    """Return the nodes before a call that need its results, in order."""
    late: dict[fx.Node, None] = {}
    seen = {call, *call.users}
    for node in graph.nodes:
        if node is call:
            break
        if any(source in seen or source in late for source in node.all_input_nodes):
            late[node] = None
    return list(late)


def _with_computed_weights(
    nodes: list[fx.Node], weights: set[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the operands of some nodes, and these nodes preceded by those that derive weights."""
    sources: list[fx.Node] = []
    body: list[fx.Node] = []
    seen = set(nodes)

    def visit(node: fx.Node) -> None:
        for source in node.all_input_nodes:
            if source not in seen:
                seen.add(source)
                if source in weights and source.op.startswith("call_"):
                    visit(source)
                else:
                    sources.append(source)
        body.append(node)

    for node in nodes:
        visit(node)
    return sources, body


def _module(sources: list[fx.Node], body: list[fx.Node], results: list[fx.Node]) -> fx.GraphModule:
    """Return some nodes as a module that returns a tuple."""
    graph, known = fx.Graph(), dict[fx.Node, fx.Node]()
    for source in sources:
        known[source] = graph.placeholder(source.name)
        known[source].meta = dict(source.meta)
    for node in body:
        known[node] = graph.node_copy(node, known.__getitem__)
    graph.output(tuple(known[result] for result in results))
    return fx.GraphModule(torch.nn.Module(), graph)


# The operator -------------------------------------------------------------------------------------


def _part(key: str) -> Part:
    part = _parts.get(key)
    if part is None:
        raise EngineError(
            "This graph calls a part of another process, or one that was deleted. "
            "Compile or accelerate the model again."
        )
    return part


def _no_gradient(*_: Any) -> Any:
    raise EngineError(
        "A part that a network computes has no gradient. Call the model under torch.no_grad(), or "
        "compile it with gradients enabled."
    )


def _register() -> None:
    schema = "network(Tensor[] inputs, Tensor[] weights, str key) -> Tensor[]"
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    _LIBRARY.define(schema, tags=tags)
    _LIBRARY.impl("network", lambda inputs, weights, key: _part(key).run(inputs, weights), "CPU")
    fake = lambda inputs, weights, key: _part(key).fake(inputs, weights)  # noqa: E731
    torch.library.register_fake("upconv::network", fake, lib=_LIBRARY)
    torch.library.register_autograd("upconv::network", _no_gradient, lib=_LIBRARY)


_register()
NETWORK = torch.ops.upconv.network.default
