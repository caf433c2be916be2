"""Parts of FX graphs as networks: the largest connected pieces, each one call of one operator.

    torch.ops.upconv.network(inputs, weights, key) -> results

`hand_over` finds the parts by PyTorch's partitioner and puts the calls into the graph. `key` names
a `Part`, which the graph module holds. Equal parts of equal graphs get equal keys in every process,
so that compiled graphs of PyTorch's caches find theirs.

A part builds its network from the weights' values in the first call, and again when a weight was
written or exchanged. Where a network cannot be built of the values or sizes of a call (NaN among
weights, an empty batch), PyTorch's functions compute the part; `Part.reason` then says why.
"""

from __future__ import annotations

import hashlib
import operator
import weakref
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import fx
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from ..errors import ArgumentError, EngineError
from ..network import Network, Value
from .nodes import add_node, is_convolution, name_of
from .operators import _LIBRARY
from .packing import key_of, spread
from .support import Support, value_of
from .tensors import Tensor, array, channels_last, dense_strides, new_result, thread_count

_PREFIX = "upconv_part_"
_MOST_NETWORKS = 2
_parts: weakref.WeakValueDictionary[str, Part] = weakref.WeakValueDictionary()
_counts: Counter[str] = Counter()


class Part:
    """Nodes of a graph that one network computes.

    operations: their names, in order. layers: the number of convolutions. node: the call in the
    graph. module: the nodes as a module of PyTorch's. reason: why PyTorch computed the latest call
    that the network could not; "" where there was none.
    """

    def __init__(self, node: fx.Node, module: fx.GraphModule, weights: set[fx.Node]) -> None:
        self.module = module
        nodes = [each for each in module.graph.nodes if each.op.startswith("call_")]
        self.operations = tuple(map(name_of, nodes))
        self.layers = sum(map(is_convolution, nodes))
        self.reason = ""
        inputs = module.graph.find_nodes(op="placeholder")
        self._roles = tuple(each in weights for each in inputs)
        results = module.graph.output_node().args[0]
        self._single = isinstance(results, fx.Node)
        self._last = tuple(channels_last(value_of(each)) for each in self._results)
        self._inputs = [value_of(each) for each in inputs if each not in weights]
        self._dtype = self._inputs[0].dtype
        self._networks: dict[tuple[int, ...], _Current] = {}
        digest = hashlib.sha256(repr((module.code, self._roles, self._last)).encode()).hexdigest()
        _counts[digest] += 1
        self.key = f"{digest[:24]}-{_counts[digest]}"
        self.node = self._inserted(node)
        _parts[self.key] = self

    @property
    def _results(self) -> tuple[fx.Node, ...]:
        results = self.module.graph.output_node().args[0]
        return (results,) if self._single else tuple(results)

    def __deepcopy__(self, _: Any) -> Part:
        return self  # copies of a graph call the part by its key

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # it belongs to this process

    # In the graph ---------------------------------------------------------------------------------

    def _inserted(self, node: fx.Node) -> fx.Node:
        """Put the operator's call in the place of the call of the module."""
        graph = node.graph
        by_role = [
            [each for each, weight in zip(node.args, self._roles, strict=True) if weight is role]
            for role in (False, True)
        ]
        with graph.inserting_before(node):
            call = graph.call_function(NETWORK, (*by_role, self.key))
            values = [value_of(each) for each in self._results]
            call.meta = {**node.meta, "val": values, "example_value": values}
            if self._single:
                result = graph.call_function(operator.getitem, (call, 0))
                result.meta = {"val": values[0], "example_value": values[0]}
                node.replace_all_uses_with(result)
            else:
                node.replace_all_uses_with(call)
        graph.erase_node(node)
        return call

    def put_back(self) -> None:
        """Let PyTorch's nodes stand in the graph again."""
        graph, call = self.node.graph, self.node
        inputs = self.module.graph.find_nodes(op="placeholder")
        known = dict(zip(inputs, self._merged(*call.args[:2]), strict=True))
        with graph.inserting_before(call):
            results = graph.graph_copy(self.module.graph, known)
        listed = (results,) if self._single else tuple(results)
        for item in list(call.users):
            item.replace_all_uses_with(listed[item.args[1]])
            graph.erase_node(item)
        graph.erase_node(call)

    def _merged(self, inputs: Any, weights: Any) -> list[Any]:
        """Inputs and weights in the order of the module's arguments."""
        sources = iter(inputs), iter(weights)
        return [next(sources[role]) for role in self._roles]

    # Computing ------------------------------------------------------------------------------------

    def by_pytorch(self, inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """The results by PyTorch's own functions."""
        results = self.module(*self._merged(inputs, weights))
        return [results] if self._single else list(results)

    def fake(self, inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """Results without values, in the memory formats that `run` gives them."""
        results = self.by_pytorch(inputs, weights)
        pairs = zip(results, self._last, strict=True)
        return [new_result(each.shape, each, last) for each, last in pairs]

    def run(self, inputs: list[Tensor], weights: list[Tensor]) -> list[Tensor]:
        """The results by the network, or by PyTorch where there is none for these operands."""
        try:
            network = self._network(weights)
            arrays = [array(each.to(torch.float32)) for each in inputs]
            names = zip(network.inputs, arrays, strict=True)
            precision = "bfloat16" if self._dtype is torch.bfloat16 else "float32"
            program = network.program(
                {name: each.shape for name, each in names},
                precision=precision, threads=thread_count(),
            )  # fmt: skip
        except ArgumentError as error:
            self.reason = str(error)
            copies = [each.clone() for each in inputs]  # functions in place may be among them
            results = self.by_pytorch(copies, weights)
            pairs = zip(results, self._last, strict=True)
            return [_formatted(each, last) for each, last in pairs]
        results = [
            torch.empty_strided(shape, dense_strides(shape, last), dtype=torch.float32)
            for shape, last in zip(program.output_shapes, self._last, strict=True)
        ]
        program.run(*arrays, out=[array(each) for each in results])
        return [each.to(self._dtype) for each in results]

    def build(self, weights: list[Tensor]) -> Network:
        """The network with the weights' values as they are now.

        Raises `ArgumentError` for weights that no network takes.
        """
        declared = {
            f"x{number}": tuple(size if type(size) is int else None for size in x.shape)
            for number, x in enumerate(self._inputs)
        }
        network = Network(declared)
        with torch.no_grad():
            merged = self._merged(network.inputs.values(), [each.detach() for each in weights])
            results = _Building(self.module, network).run(*merged)
        network.output(*((results,) if self._single else results))
        return network

    def _network(self, weights: list[Tensor]) -> Network:
        address = tuple(each.data_ptr() for each in weights)
        current = self._networks.get(address)
        if current is None or not current.of(weights):
            current = _Current.of_weights(self.build(weights), weights)
            kept = {key: each for key, each in self._networks.items() if key != address}
            latest = [*kept.items()][len(kept) + 1 - _MOST_NETWORKS :] if kept else []
            self._networks = {**dict(latest), address: current}
        return current.network


class _Current(NamedTuple):
    """A network and the state of the weights that it was built from.

    aliases: hold the weights' memory. probes: some elements of every weight, as bytes.
    """

    network: Network
    aliases: list[Tensor]
    keys: list[Any]
    memory: list[Any]
    probes: bytes

    @classmethod
    def of_weights(cls, network: Network, weights: list[Tensor]) -> _Current:
        aliases = [each.detach() for each in weights]
        memory = [each for each in map(spread, aliases) if each.size]
        return cls(network, aliases, list(map(key_of, weights)), memory, _probed(memory))

    def of(self, weights: list[Tensor]) -> bool:
        """Whether the weights are as they were."""
        return self.keys == list(map(key_of, weights)) and _probed(self.memory) == self.probes


def _probed(memory: list[Any]) -> bytes:
    kinds = {each.dtype for each in memory}
    return b"".join(
        np.concatenate([each for each in memory if each.dtype == kind]).tobytes() for kind in kinds
    )


class _Building(fx.Interpreter):  # type: ignore[misc]
    """Runs a part's module on values of a network; what depends on weights only is computed."""

    def __init__(self, module: fx.GraphModule, network: Network) -> None:
        super().__init__(module)
        self._network = network

    def run_node(self, n: fx.Node) -> Any:
        if n.op not in ("call_function", "call_method"):
            return super().run_node(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        leaves: list[Any] = []
        fx.node.map_aggregate((args, kwargs), leaves.append)
        if any(isinstance(each, Value) for each in leaves):
            return add_node(self._network, n, args, dict(kwargs))
        return super().run_node(n)


def hand_over(
    module: fx.GraphModule, *, weights: Iterable[fx.Node] = (), left: dict[str, str] | None = None
) -> list[Part]:
    """Replace the largest parts of a graph that networks compute by one call each, in place.

    module: a graph of PyTorch's functions or of ATen's operators, whose nodes know their values
    (`meta["val"]` or `meta["example_value"]`). Parameters and buffers are weights: `get_attr` nodes
    and inputs that Dynamo lifted; `weights` names further inputs. A part has a convolution at
    least, its values are float32 or bfloat16 on the CPU.

    left: is given, for each node that stays, why.

    Returns the parts, which `module` holds; what outlives it holds them, too. They take no
    gradients.
    """
    support = Support(module, set(weights))
    reasons = {} if left is None else left
    chosen: list[Any] = []
    for dtype in (torch.float32, torch.bfloat16):
        support.dtype = dtype
        if not support.any():
            continue
        partitioner = CapabilityBasedPartitioner(module, support, True)
        chosen += [
            dict.fromkeys(each.nodes)
            for each in partitioner.propose_partitions()
            if any(map(is_convolution, each.nodes))
        ]
    chosen = [each for each in chosen if not _several_at_once(each)]
    reasons.update(support.reasons(chosen))
    names = {node.name for node in support.weights}  # sorting the graph makes new nodes
    fuse_by_partitions(module, chosen, prefix=_PREFIX)
    constant = {node for node in module.graph.nodes if node.name in names}
    parts = []
    for node in list(module.graph.find_nodes(op="call_module")):
        if str(node.target).startswith(_PREFIX):
            sub = module.get_submodule(node.target)
            parts.append(Part(node, sub, _with_weights(node, sub, constant)))
            delattr(module, node.target)
    for node in reversed([node for node in module.graph.nodes if node in constant]):
        if node.op.startswith("call_") and not node.users:
            module.graph.erase_node(node)
    module.meta.setdefault("upconv", []).extend(parts)
    module.graph.lint()
    module.recompile()
    return parts


def _several_at_once(nodes: dict[fx.Node, None]) -> bool:
    """Whether a list of values would be a result: operators return tensors alone."""
    return any(
        not isinstance(value_of(node), torch.Tensor) and not set(node.users) <= set(nodes)
        for node in nodes
    )


def _with_weights(call: fx.Node, module: fx.GraphModule, weights: set[fx.Node]) -> set[fx.Node]:
    """Let a part compute what depends on weights only; returns its inputs that are weights."""
    graph = module.graph
    inputs = graph.find_nodes(op="placeholder")
    known = dict(zip(call.args, inputs, strict=True))
    computed = [each for each in call.args if each in weights and each.op.startswith("call_")]

    def copied(source: fx.Node) -> fx.Node:
        node = known.get(source)
        if node is None or (source in computed and node.op == "placeholder"):
            if source.op.startswith("call_"):
                operands = source.all_input_nodes
                table = {each: copied(each) for each in operands}
                with graph.inserting_before(first):
                    new = graph.node_copy(source, table.__getitem__)
            else:
                with graph.inserting_before(inputs[0]):
                    new = graph.placeholder(source.name)
                new.meta = dict(source.meta)
            if node is not None:
                node.replace_all_uses_with(new)
            known[source] = node = new
        return node

    first = next(each for each in graph.nodes if each.op != "placeholder")
    for source in computed:
        old = known[source]
        copied(source)
        graph.erase_node(old)
    order = {node: source for source, node in known.items()}
    placeholders = graph.find_nodes(op="placeholder")
    call.args = tuple(order[node] for node in placeholders)
    graph.lint()
    module.recompile()
    return {node for node in placeholders if order[node] in weights}


# The operator -------------------------------------------------------------------------------------


def _part(key: str) -> Part:
    part = _parts.get(key)
    if part is None:
        raise EngineError(
            "This graph calls a part of another process, or one that was let go of. "
            "Compile or accelerate the model again."
        )
    return part


def _formatted(tensor: Tensor, last: bool) -> Tensor:
    """A tensor in the memory format that the fake kernel told."""
    return new_result(tensor.shape, tensor, last).copy_(tensor)


def _compute(inputs: list[Tensor], weights: list[Tensor], key: str) -> list[Tensor]:
    return _part(key).run(inputs, weights)


def _fake(inputs: list[Tensor], weights: list[Tensor], key: str) -> list[Tensor]:
    return _part(key).fake(inputs, weights)


def _no_gradient(*_: Any) -> Any:
    raise EngineError(
        "A part that a network computes has no gradient. Call the model under torch.no_grad(), or "
        "compile it where gradients are recorded."
    )


def _register() -> None:
    schema = "network(Tensor[] inputs, Tensor[] weights, str key) -> Tensor[]"
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    _LIBRARY.define(schema, tags=tags)
    _LIBRARY.impl("network", _compute, "CPU")
    torch.library.register_fake("upconv::network", _fake, lib=_LIBRARY)
    torch.library.register_autograd("upconv::network", _no_gradient, lib=_LIBRARY)


_register()
NETWORK = torch.ops.upconv.network.default
