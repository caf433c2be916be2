"""Graphs whose largest parts run as networks of `upconv.network`, each part as one node.

`Networks` holds one symbol's graphs by the inputs' shapes. It builds a graph in steps:

1. Infer shapes and element types. Compute the nodes that depend only on constants.
2. Select the nodes that `network_rules` can build individually, in float32.
3. Give each node a level, which rises by one wherever a path enters or leaves selected nodes.
   Connected selected nodes of one level are a part: no path leaves it and comes back.
4. Replace each part that has a convolution by one node, whose operator runs the network.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from ..errors import UpconvError
from ..network import Network, Value
from .base import MXNetError
from .inference import Key, infer_shapes, infer_types
from .ndarray import NDArray, applied
from .network_rules import RULES, Layers
from .operators import Array, Operator, Shape
from .packed import plan_of
from .symbol import Node, Symbol
from .tape import compute

_HEAVY = ("Convolution", "Deconvolution")
_NUMBERS = count()
_MAX_GRAPHS = 16  # sizes for which graphs are kept
_NETWORK = "network"
_FLOAT = np.dtype(np.float32)
PARAMETERS = {"weight", "bias", "gamma", "beta", "moving_mean", "moving_var"}
"""The operators' names for variables that are learned or kept from training."""
Report = Callable[[Node, list[NDArray], list[NDArray]], Any]


def roles(symbol: Symbol) -> dict[str, set[str]]:
    """Return the names that operators have for each variable."""
    names: dict[str, set[str]] = {}
    for node in symbol.nodes():
        for name, (parent, _) in zip(node.named_inputs(), node.inputs, strict=True):
            if parent.operator is None:
                names.setdefault(parent.name, set()).add(name)
    return names


def run_graph(
    graph: Symbol, arrays: Mapping[str, NDArray], report: Report | None = None
) -> list[NDArray]:
    """Compute the outputs of a graph for these arrays, and record if this thread records.

    report: called with the node of every operator, its inputs and its outputs.
    """
    values, reads = dict[tuple[int, int], NDArray](), graph.reads.copy()
    for node in graph.nodes():
        if node.operator is None:
            values[id(node), 0] = arrays[node.name]
            continue
        keys = [(id(parent), i) for parent, i in node.inputs]
        inputs = [values[key] for key in keys]
        outputs, _ = applied(node.operator, node.p, inputs, f"{node.name} ({node.op})")
        values |= {(id(node), i): y for i, y in enumerate(outputs)}
        if report is not None:
            report(node, inputs, outputs)
        for key in keys:
            reads[key] -= 1
            if not reads[key]:
                del values[key]
    return [values[id(node), i] for node, i in graph.entries]


class Prepared(NamedTuple):
    """A graph in which some parts are networks, and the reasons why other nodes are not in one.

    graph: the symbol itself if no part of it is a network. reasons: by the nodes' names.
    """

    graph: Symbol
    reasons: dict[str, str]

    def __str__(self) -> str:
        nodes = (node for node in self.graph.nodes() if node.op == _NETWORK)
        names = [f"{node.name}: a network" for node in nodes]
        reasons = [f"{name}: by itself, {reason}" for name, reason in self.reasons.items()]
        return "\n".join(names + reasons)


class Networks:
    """A symbol's graphs for inputs of several shapes; several threads may use it.

    constants: arrays for the variables that are not inputs; they must not change.
    """

    def __init__(self, symbol: Symbol, constants: Mapping[str, Array]) -> None:
        self.symbol, self._constants = symbol, constants
        self._kept: OrderedDict[Any, Prepared] = OrderedDict()
        self._open: dict[Any, Prepared] = {}

    def prepared(self, inputs: Mapping[str, Array]) -> Prepared:
        """Return the graph for inputs of these shapes and types."""
        key = tuple((name, x.shape, x.dtype) for name, x in inputs.items())
        result = self._kept.get(key)
        if result is None:
            result = self._kept[key] = self._fitting(inputs) or self._new(inputs)
            while len(self._kept) > _MAX_GRAPHS:
                self._kept.popitem(last=False)
        return result

    def _new(self, inputs: Mapping[str, Array]) -> Prepared:
        nodes, arrays = self.symbol.nodes(), {**self._constants, **inputs}
        try:
            shapes = infer_shapes(nodes, {name: x.shape for name, x in arrays.items()})
            kinds = infer_types(nodes, {name: x.dtype for name, x in arrays.items()})
        except MXNetError as error:  # the operators will raise it when they run
            return Prepared(self.symbol, {"the graph": str(error)})
        parts = _Parts(self.symbol, self._constants, shapes, kinds)
        result = Prepared(parts.rewritten(), parts.reasons)
        if not parts.sized:
            self._open[_opened(inputs)] = result
        return result

    def _fitting(self, inputs: Mapping[str, Array]) -> Prepared | None:
        """Return a graph of open sizes that was built for other inputs and fits these."""
        result = self._open.get(_opened(inputs))
        shapes = {name: x.shape for name, x in {**self._constants, **inputs}.items()}
        try:
            if result is not None:
                infer_shapes(result.graph.nodes(), shapes)
        except MXNetError:  # shapes that were equal before differ now
            return None
        return result


class WatchedNetworks:
    """A symbol's networks; the constants may be modified.

    The networks are built at the second call with the same values. A block that is trained between
    calls is therefore not compiled for each call.
    """

    def __init__(self, symbol: Symbol) -> None:
        self._symbol, self._number = symbol, next(_NUMBERS)
        self._state: tuple[object, Networks | None] = (None, None)

    def run(self, constants: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[Any] | None:
        """Compute the outputs from `NDArray`s by name; return None if no part is a network."""
        arrays = {name: x.value for name, x in constants.items()}
        # The token expires when an array is written, and keeps no array alive.
        token = plan_of([*arrays.values()], self._number, object) if arrays else None
        if token is None:
            return None
        known, networks = self._state
        if known is not token or networks is None:
            networks = Networks(self._symbol, arrays)
            self._state = token, networks
        graph = networks.prepared({name: x.value for name, x in inputs.items()}).graph
        return None if graph is self._symbol else run_graph(graph, {**constants, **inputs})


def _opened(inputs: Mapping[str, Array]) -> Any:
    """Return the key of networks with open sizes: names, ranks, channels, types."""
    return tuple((name, x.ndim, x.shape[1:2], x.dtype) for name, x in inputs.items())


class _Part(NamedTuple):
    """Nodes that become one node, the values that they read, and their values that others read."""

    nodes: list[Node]
    inputs: list[Key]
    outputs: list[Key]


class _Parts:
    """A symbol whose values have known shapes and types, and its parts."""

    def __init__(
        self, symbol: Symbol, constants: Mapping[str, Array], shapes: Mapping[Key, Any],
        kinds: Mapping[Key, Any],
    ) -> None:  # fmt: skip
        self._symbol, self._shapes, self._kinds = symbol, shapes, kinds
        self._constants: dict[Key, Array] = {}
        self.reasons: dict[str, str] = {}
        self.sized = False
        nodes = symbol.nodes()
        for node in nodes:
            if node.operator is None:
                if node.name in constants:
                    self._constants[id(node), 0] = constants[node.name]
            elif all(key in self._constants for key in _keys(node)):
                arrays = [self._constants[key] for key in _keys(node)]
                results, *_ = compute(
                    node.operator, node.p, arrays, [None] * len(arrays), node.name
                )
                self._constants |= {(id(node), i): y for i, y in enumerate(results)}
        self._able = {id(node) for node in nodes if self._can_build(node)}

    def _can_build(self, node: Node) -> bool:
        """Return whether a network can compute the node; if not, add the reason to `reasons`."""
        if node.operator is None or (id(node), 0) in self._constants:
            return False
        if node.op not in RULES:
            self.reasons[node.name] = f"{node.op}: networks have no such layer"
            return False
        data = [key for key in _keys(node) if key not in self._constants]
        try:
            if any(self._kinds.get(key) != _FLOAT for key in (*_keys(node), (id(node), 0))):
                raise MXNetError("networks compute only float32")
            try:
                self._try(node, data, self.sized)
            except UpconvError:  # for example, a value has one position only at these sizes
                self._try(node, data, True)
                self.sized = True
        except UpconvError as error:
            self.reasons[node.name] = f"{node.op}: {error}"
            return False
        return True

    def _try(self, node: Node, data: list[Key], sized: bool) -> None:
        """Build the node alone; raise `UpconvError` if a network cannot compute it."""
        layers, values = self._empty(data, sized)
        outputs = layers.build(node, *self._operands(node, values))
        if any(self._symbol.reads[id(node), i] for i in range(len(outputs), 9)):
            raise MXNetError("more than its first output is read")
        layers.network.output(*outputs)
        known = dict(zip(layers.network.inputs, map(self._shapes.get, data), strict=True))
        graph = layers.network.graph(**known)
        if graph.shapes[graph.outputs[0]] != self._shapes[id(node), 0]:
            raise MXNetError("a network's result has another shape")
        self.sized |= layers.sized

    def _empty(self, keys: list[Key], sized: bool) -> tuple[Layers, dict[Key, Value]]:
        """Return a network without layers, of open or fixed sizes, and the values of its inputs."""
        shapes: list[Any] = [self._shapes[key] for key in keys]
        if any(shape is None or len(shape) < 3 or 0 in shape for shape in shapes):
            got = ", ".join(map(str, shapes))
            raise MXNetError(f"its data has the shape {got}; networks take (N, C, *size)")
        if not sized:
            shapes = [(None, s[1], *[None] * (len(s) - 2)) for s in shapes]
        layers = Layers(Network({f"x{i}": shape for i, shape in enumerate(shapes)}))
        return layers, dict(zip(keys, layers.network.inputs.values(), strict=True))

    def _operands(
        self, node: Node, values: Mapping[Key, Value]
    ) -> tuple[list[Value | Array], list[Shape]]:
        """Return a node's inputs, as values and constants, and their shapes."""
        keys = _keys(node)
        operands = [self._constants[k] if k in self._constants else values[k] for k in keys]
        return operands, [self._shapes[key] for key in keys]

    def rewritten(self) -> Symbol:
        """Return the symbol with a node for each part; the symbol itself without parts."""
        parts = {id(node): part for part in self._parts() for node in part.nodes}
        if not parts:
            return self._symbol
        entries: dict[Key, tuple[Node, int]] = {}
        by_id = {id(node): node for node in self._symbol.nodes()}

        def entry(key: Key) -> tuple[Node, int]:
            """Return an old value's replacement, after creating those that it depends on."""
            if key not in entries:
                part = parts.get(key[0])
                if part is not None:
                    node = self._network_node(part, [entry(source) for source in part.inputs])
                    entries.update({output: (node, i) for i, output in enumerate(part.outputs)})
                else:
                    node = copy(by_id[key[0]])
                    node.inputs = [entry(source) for source in _keys(node)]
                    entries.update({(key[0], i): (node, i) for i in range(len(node.outputs()))})
            return entries[key]

        for node in self._symbol.nodes():  # in order, so that recursion stays shallow
            if id(node) not in parts:
                entry((id(node), 0))
            elif node is parts[id(node)].nodes[-1] and parts[id(node)].outputs:
                entry(parts[id(node)].outputs[0])
        return Symbol([entry((id(node), i)) for node, i in self._symbol.entries])

    def _parts(self) -> Iterator[_Part]:
        """Yield the parts that have a convolution, with their inputs and outputs."""
        nodes, level, group = self._symbol.nodes(), dict[int, int](), dict[int, list[Node]]()
        for node in nodes:
            able = id(node) in self._able
            parents = [i for i, output in _keys(node) if (i, output) not in self._constants]
            steps = (level[i] + (able != (i in self._able)) for i in parents)
            level[id(node)] = max(steps, default=0)
            if not able:
                continue
            same = [group[i] for i in parents if i in group and level[i] == level[id(node)]]
            members = [node]
            for other in {id(other): other for other in same}.values():
                members += other
            group |= dict.fromkeys(map(id, members), members)
        order = {id(node): i for i, node in enumerate(nodes)}
        for members in {id(members): members for members in group.values()}.values():
            members.sort(key=lambda node: order[id(node)])
            if len(members) > 1 and any(node.op in _HEAVY for node in members):
                yield self._part(members)
            else:  # a plan computes a single convolution equally fast
                reason = f"{members[0].op}: it has no neighbour to join with a convolution"
                self.reasons |= {node.name: reason for node in members}

    def _part(self, nodes: list[Node]) -> _Part:
        """Return nodes with the values that they read, and their values that others read."""
        inside = {id(node) for node in nodes}
        reads, all_reads = Counter(key for node in nodes for key in _keys(node)), self._symbol.reads
        inputs = [key for key in reads if key[0] not in inside and key not in self._constants]
        outputs = [key for key in all_reads if key[0] in inside and all_reads[key] > reads[key]]
        return _Part(nodes, inputs, outputs)

    def _network_node(self, part: _Part, inputs: list[tuple[Node, int]]) -> Node:
        layers, values = self._empty(part.inputs, self.sized)
        for node in part.nodes:
            outputs = layers.build(node, *self._operands(node, values))
            values |= {(id(node), i): value for i, value in enumerate(outputs)}
        layers.network.output(*(values[key] for key in part.outputs))
        first, last = part.nodes[0].name, part.nodes[-1].name
        return Node(
            _operator(layers.network, len(part.outputs)), f"{first}..{last}", {}, inputs, {}
        )


def _operator(network: Network, outputs: int) -> Operator:
    """Return an operator that runs a network."""

    def forward(_: Any, *arrays: Array) -> list[Array]:
        results = network(*arrays)
        return [results] if outputs == 1 else [*results]

    def shapes(_: Any, inputs: Any, known: Any) -> Any:
        if any(shape is None or 0 in shape for shape in inputs):
            return inputs, []
        graph = network.graph(**dict(zip(network.inputs, inputs, strict=True)))
        return inputs, [graph.shapes[value] for value in graph.outputs]

    return Operator(
        _NETWORK, forward, inputs="x{}", attributes="num_args:few", shapes=shapes,
        outputs=lambda p: [f"output{i}" for i in range(outputs)], visible=lambda p: outputs,
    )  # fmt: skip


def _keys(node: Node) -> list[Key]:
    return [(id(parent), i) for parent, i in node.inputs]
