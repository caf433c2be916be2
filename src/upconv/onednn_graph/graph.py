"""Graphs: operations joined by the ids of their tensors, partitioned, compiled, executed.

    add_op ...  ->  finalize  ->  partitions  ->  Partition.compile  ->  CompiledPartition.execute

`compile` does the last three for a whole graph. A tensor that no operation makes is an input of the
graph; one that no operation reads, or that End reads, is an output.

What lives here: Graph, CompiledGraph. What never does: what an operation computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from graphlib import CycleError, TopologicalSorter
from types import TracebackType
from typing import Any

from ..arrays import Array
from ..dialects import values
from ..dialects.onednn_graph import Rule
from ..errors import ArgumentError, brief
from .data import as_data, described, keyed
from .fusion import ANCHORS, Chain
from .logical_tensors import LogicalTensor, joined
from .operations import Op, Operation, read
from .partitions import CompiledPartition, Partition, spread
from .steps import EngineChoice

_POLICIES = ("fusion", "debug")


class Graph:
    """A graph of oneDNN operations. `rule` says whose reading counts where two differ.

    rule: "library" (what libdnnl accepts and computes) or "document" (what its pages say).

    >>> import numpy as np
    >>> graph = Graph()
    >>> x, w, y = LogicalTensor(0, "f32"), LogicalTensor(1, "f32"), LogicalTensor(2, "f32")
    >>> window = {"strides": [2], "pads_begin": [0], "pads_end": [0], "dilations": [1]}
    >>> graph.add_op(Op(0, "ConvTranspose", [x, w], [y], window))
    >>> graph.finalize()
    >>> data = {0: np.array([[[1], [2], [3]]], np.float32), 1: np.ones((2, 1, 1), np.float32)}
    >>> graph.execute(data)[2].ravel()
    array([1., 1., 2., 2., 3., 3.], dtype=float32)
    """

    def __init__(self, *, rule: str = "library") -> None:
        self._rule = values.member("rule", rule, Rule)
        self._operations: dict[int, Operation] = {}
        self._tensors: dict[int, LogicalTensor] = {}
        self._makers: dict[int, Operation] = {}
        self._order: tuple[Operation, ...] | None = None
        self._inputs: dict[int, None] = {}
        self._outputs: tuple[int, ...] = ()

    @property
    def rule(self) -> str:
        """Whose reading of attributes counts."""
        return self._rule.value

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations: in the order they run once finalized, else as they were added."""
        return tuple(self._operations.values()) if self._order is None else self._order

    @property
    def tensors(self) -> Mapping[int, LogicalTensor]:
        """What is known of every tensor, by id."""
        return dict(self._tensors)

    @property
    def is_finalized(self) -> bool:
        """Whether the graph is complete."""
        return self._order is not None

    @property
    def inputs(self) -> tuple[int, ...]:
        """Ids of the tensors that no operation makes, in the order they are read."""
        return tuple(self._inputs)

    @property
    def outputs(self) -> tuple[int, ...]:
        """Ids of the tensors that leave the graph: read by End, or by nothing."""
        return self._outputs

    def add_op(self, op: Op) -> None:
        """Add one operation, checked against its schema; the graph is as before if it is refused.

        Raises `ArgumentError` or `DTypeError` for an unknown kind or attribute, a missing one, a
        wrong value or type, an id that is taken, a tensor made twice or described in two ways.
        """
        if self.is_finalized:
            remedy = "Make another graph."
            raise ArgumentError("the graph", "finalized", "one still being built", remedy)
        operation = read(op, self._rule)
        if operation.id in self._operations:
            taken = self._operations[operation.id]
            raise ArgumentError(f"id of {operation}", "taken", f"another than that of {taken}")
        for tensor in operation.outputs:
            if tensor.id in self._makers:
                maker = self._makers[tensor.id]
                got, expected = f"made by {maker} too", "made by one operation"
                raise ArgumentError(f"output tensor {tensor.id} of {operation}", got, expected)
            if tensor.constant:
                got, expected = "constant", "no constant: it is made in every execution"
                raise ArgumentError(f"output tensor {tensor.id} of {operation}", got, expected)
        merged: dict[int, LogicalTensor] = {}
        for tensor in (*operation.inputs, *operation.outputs):
            known = merged.get(tensor.id) or self._tensors.get(tensor.id)
            merged[tensor.id] = known.merged(tensor) if known else tensor
        self._tensors.update(merged)
        self._operations[operation.id] = operation
        self._makers.update(dict.fromkeys((t.id for t in operation.outputs), operation))

    def finalize(self) -> None:
        """No more operations.

        Raises `ArgumentError` for an empty graph, a cycle, and dims that contradict each other.
        """
        if self.is_finalized:
            raise ArgumentError("the graph", "finalized already", "one still being built")
        if not any(op.outputs for op in self._operations.values()):
            raise ArgumentError("the graph", "empty", "at least one operation", "Call add_op.")
        for op in self._operations.values():
            if op.kind == "End" and op.inputs[0].id not in self._makers:
                got = f"tensor {op.inputs[0].id}, which no operation makes"
                raise ArgumentError(f"input of {op}", got, "the result of an operation")
        order, readers = self._sorted(), self._readers()
        tensors = dict(self._tensors)
        spread(order, tensors)
        read_ids = (tensor.id for op in order for tensor in op.inputs)
        self._inputs = {id_: None for id_ in read_ids if id_ not in self._makers}
        made = (tensor.id for op in order for tensor in op.outputs)
        self._outputs = tuple(
            id_ for id_ in made if not readers[id_] or "End" in (op.kind for op in readers[id_])
        )
        self._order, self._tensors = order, tensors

    def partitions(self, policy: str = "fusion") -> list[Partition]:
        """The graph in parts, in an order in which they can run.

        policy: "fusion", or "debug", by which every operation is a part of its own.
        """
        self._require_finalized()
        if not isinstance(policy, str) or policy not in _POLICIES:
            raise ArgumentError("policy", brief(policy), f"one of {', '.join(_POLICIES)}")
        chains = self._chains() if policy == "fusion" else [(op,) for op in self.operations]
        return [
            self._partition(number, chain)
            for number, chain in enumerate(self._runnable([c for c in chains if c[0].outputs]))
        ]

    def compile(
        self,
        inputs: Iterable[LogicalTensor] = (),
        *,
        constants: Mapping[int, Any] | None = None,
        engine: EngineChoice = None,
        policy: str = "fusion",
    ) -> CompiledGraph:
        """All partitions, compiled one after the other, each with the shapes inferred before it.

        The arguments are those of `Partition.compile` and `partitions`.
        """
        self._require_finalized()
        known = self.tensors
        told = {tensor.id: tensor for tensor in described("inputs", (inputs,))}
        given = keyed("constants", {} if constants is None else constants)
        self._require_inputs("inputs", told)
        self._require_inputs("constants", given)
        described_now = {id_: known[id_].merged(tensor) for id_, tensor in told.items()}
        compiled: list[CompiledPartition] = []
        with ExitStack() as undo:
            for partition in self.partitions(policy):
                ports = [described_now[p.id] for p in partition.inputs if p.id in described_now]
                mine = {p.id: given[p.id] for p in partition.inputs if p.id in given}
                one = partition.compile(ports, constants=mine, engine=engine)
                undo.callback(one.close)
                compiled.append(one)
                for port in partition.outputs:
                    described_now[port.id] = one.query_logical_tensor(port.id)
            undo.pop_all()
        return CompiledGraph(compiled, self.inputs, self.outputs)

    def execute(
        self, data: Mapping[int, Any], *, engine: EngineChoice = None, policy: str = "fusion"
    ) -> dict[int, Array]:
        """The graph's outputs by id, from arrays for all inputs: compiled for their shapes."""
        self._require_finalized()
        arrays = self.arrays(data)
        shapes = [
            LogicalTensor(id_, t.data_type, arrays[id_].shape, t.property_type)
            for id_, t in self._tensors.items()
            if id_ in arrays
        ]
        fixed = {
            id_: array
            for id_, array in arrays.items()
            if self._tensors[id_].constant or self._tensors[id_].data_type == "s32"
        }
        with self.compile(shapes, constants=fixed, engine=engine, policy=policy) as compiled:
            return compiled.execute(arrays)

    def arrays(self, data: Mapping[int, Any]) -> dict[int, Array]:
        """Arrays for all inputs, checked against what is known of them.

        Raises `ArgumentError` where one is missing, no input, or does not fit.
        """
        self._require_finalized()
        given = keyed("data", data)
        self._require_inputs("data", given)
        found = {}
        for id_ in self.inputs:
            if id_ not in given:
                raise ArgumentError("data", f"without tensor {id_}", "all inputs of the graph")
            found[id_] = as_data(self._tensors[id_], given[id_])
            joined(f"data[{id_}].shape", found[id_].shape, self._tensors[id_].dims)
        return found

    def __repr__(self) -> str:
        state = "finalized" if self.is_finalized else "being built"
        return f"<Graph of {len(self._operations)} operations, {state}>"

    def _require_inputs(self, name: str, ids: Iterable[int]) -> None:
        for id_ in ids:
            if id_ not in self._inputs:
                expected = f"only inputs of the graph: {', '.join(map(str, self._inputs))}"
                raise ArgumentError(name, f"one with tensor {id_}", expected)

    def _require_finalized(self) -> None:
        if not self.is_finalized:
            raise ArgumentError("the graph", "not finalized", "complete", "Call finalize() first.")

    def _readers(self) -> dict[int, list[Operation]]:
        """Operations that read each tensor, as often as they do."""
        readers: dict[int, list[Operation]] = {id_: [] for id_ in self._tensors}
        for op in self._operations.values():
            for tensor in op.inputs:
                readers[tensor.id].append(op)
        return readers

    def _sorted(self) -> tuple[Operation, ...]:
        """Operations, each after those whose results it reads; `ArgumentError` for a cycle."""
        before = {op.id: self._made_before((op,)) for op in self._operations.values()}
        try:
            return tuple(self._operations[id_] for id_ in TopologicalSorter(before).static_order())
        except CycleError as error:
            names = " -> ".join(str(self._operations[id_]) for id_ in error.args[1][:5])
            raise ArgumentError("the graph", f"one with the cycle {names}", "no cycle") from None

    def _made_before(self, operations: tuple[Operation, ...]) -> list[int]:
        """Ids of the operations whose results these ones read."""
        read_ids = [tensor.id for op in operations for tensor in op.inputs]
        return [self._makers[id_].id for id_ in read_ids if id_ in self._makers]

    def _chains(self) -> list[tuple[Operation, ...]]:
        """Operations grouped into what is fused; every one in one group."""
        readers, taken = self._readers(), set[int]()
        chains = []
        for op in self.operations:
            if op.id in taken or op.kind not in ANCHORS:
                continue
            found = Chain(op)
            while len(after := readers[found.output]) == 1 and after[0].id not in taken:
                longer = found.with_next(after[0])
                if longer is None:
                    break
                found = longer
            taken |= {op.id, *(one.id for one in found.tail)}
            chains.append((op, *found.tail))
        return [*chains, *((op,) for op in self.operations if op.id not in taken)]

    def _runnable(self, chains: list[tuple[Operation, ...]]) -> list[tuple[Operation, ...]]:
        """Chains, each after those whose results it reads."""
        place = {op.id: number for number, chain in enumerate(chains) for op in chain}
        before = {
            number: {place[id_] for id_ in self._made_before(chain)} - {number}
            for number, chain in enumerate(chains)
        }
        return [chains[number] for number in TopologicalSorter(before).static_order()]

    def _partition(self, number: int, chain: tuple[Operation, ...]) -> Partition:
        inner = {op.output for op in chain}
        reads = dict.fromkeys(t.id for op in chain for t in op.inputs if t.id not in inner)
        tensors = {id_: self._tensors[id_] for id_ in (*reads, *inner)}
        inputs = tuple(tensors[id_] for id_ in reads)
        return Partition(number, chain, inputs, (tensors[chain[-1].output],), tensors, self._rule)


class CompiledGraph:
    """A graph's compiled partitions, in order. Made by `Graph.compile`; `close` lets go of them."""

    def __init__(
        self,
        partitions: list[CompiledPartition],
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
    ) -> None:
        self.partitions, self.inputs, self.outputs = tuple(partitions), inputs, outputs

    @property
    def plans(self) -> int:
        """How many `upconv.Plan`s are held."""
        return sum(one.plans for one in self.partitions)

    def execute(self, inputs: Mapping[int, Any]) -> dict[int, Array]:
        """The graph's outputs by id, from its inputs by id; constants as in a partition."""
        given = keyed("inputs", inputs)
        for id_ in given:
            if id_ not in self.inputs:
                expected = f"only inputs of the graph: {', '.join(map(str, self.inputs))}"
                raise ArgumentError("inputs", f"one with tensor {id_}", expected)
        data = dict(given)
        for one in self.partitions:
            ports = [port.id for port in one.partition.inputs]
            data.update(one.execute({id_: data[id_] for id_ in ports if id_ in data}))
        return {id_: data[id_] for id_ in self.outputs}

    def close(self) -> None:
        """Let go of every partition's plans."""
        for one in self.partitions:
            one.close()

    def __enter__(self) -> CompiledGraph:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
