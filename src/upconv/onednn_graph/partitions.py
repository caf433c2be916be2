"""Partitions: operations that are compiled and executed together.

A partition is made by a graph. `compile` fixes shapes, `execute` runs on data. Data of constants
are given once, at compile or in the first execution; they are copied, and what is made of them (a
plan with its weight folded and packed) is kept.

What lives here: Partition, CompiledPartition. What never does: what is fused with what.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Any

import numpy as np

from ..arrays import Array, as_array, check_out, copied
from ..dialects.onednn_graph import Rule
from ..errors import ArgumentError, DTypeError, EngineError, ShapeError, brief
from . import elementwise
from .convolutions import ROLES, Convolved, convolved
from .fusion import steps
from .logical_tensors import LogicalTensor, Shape
from .operations import Operation
from .steps import EngineChoice, Step


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Operations that run together: `operations` in order, tensors read and made.

    `inputs` and `outputs` are what the partition's ports are known to be. Made by
    `Graph.partitions`.
    """

    id: int
    operations: tuple[Operation, ...]
    inputs: tuple[LogicalTensor, ...]
    outputs: tuple[LogicalTensor, ...]
    tensors: Mapping[int, LogicalTensor]
    rule: Rule

    @property
    def op_ids(self) -> tuple[int, ...]:
        """The ids of its operations, in the order in which they run."""
        return tuple(op.id for op in self.operations)

    @property
    def is_supported(self) -> bool:
        """True: no operation here is left to somebody else."""
        return True

    def compile(
        self,
        inputs: Iterable[LogicalTensor] = (),
        outputs: Iterable[LogicalTensor] = (),
        *,
        constants: Mapping[int, Any] | None = None,
        engine: EngineChoice = None,
    ) -> CompiledPartition:
        """This partition for given shapes.

        inputs, outputs: say more of the ports' dims than the graph knows; all inputs' dims must be
            known in the end, outputs' are inferred.
        constants: data of some inputs by id. Of a tensor of shapes (dst_shape, weights_shape) they
            are needed here where the output's dims are not known.
        engine: as in `upconv.conv_transpose`.

        Raises `ArgumentError` for what does not fit together, and what `upconv.plan` raises.
        """
        known = {**self.tensors}
        ports = {tensor.id for tensor in (*self.inputs, *self.outputs)}
        for tensor in described("inputs and outputs", (inputs, outputs)):
            if tensor.id not in ports:
                got, ids = f"tensor {tensor.id}", ", ".join(map(str, sorted(ports)))
                raise ArgumentError("inputs or outputs", got, f"ports of this partition: {ids}")
            known[tensor.id] = known[tensor.id].merged(tensor)
        for port in self.inputs:
            if known[port.id].shape is None:
                got = str(known[port.id].dims).replace("None", "?")
                remedy = "Describe it in compile(inputs=...)."
                raise ShapeError(f"dims of input tensor {port.id}", got, "all known", remedy)
        bound = {}
        for id_, value in keyed("constants", constants or {}).items():
            if id_ not in {port.id for port in self.inputs}:
                ids = ", ".join(str(port.id) for port in self.inputs)
                raise ArgumentError("constants", f"data of tensor {id_}", f"of inputs: {ids}")
            bound[id_] = data_of(known[id_], value)
        return CompiledPartition(self, known, bound, engine)

    def __str__(self) -> str:
        return f"partition {self.id}: " + " + ".join(op.kind for op in self.operations)


class CompiledPartition:
    """A partition whose shapes are known, ready to run; from many threads at once.

    `close`, or the end of a `with` block, lets go of plans and constants.
    """

    def __init__(
        self,
        partition: Partition,
        tensors: Mapping[int, LogicalTensor],
        constants: Mapping[int, Array],
        engine: EngineChoice,
    ) -> None:
        """Infer shapes and, where all constants are there, plan; call `Partition.compile`."""
        self.partition, self._engine = partition, engine
        self._tensors = dict(tensors)
        self._lock = Lock()
        self._closed = False
        self._convolved: dict[int, Convolved] = {}
        self._promised: dict[int, Shape] = {}
        for op in partition.operations:
            try:
                self._infer(op, constants)
            except ArgumentError as error:
                name = f"{error.argument} in {op}"
                raise type(error)(name, error.got, error.expected, error.remedy) from None
        self._constants: dict[int, Array] = {}
        self._frozen = {port.id for port in partition.inputs if port.constant}
        self._steps: list[Step] | None = None
        self._bind(constants)

    @property
    def plans(self) -> int:
        """How many `upconv.Plan`s it holds: 0 before all constants are there."""
        return sum(hasattr(step, "plan") for step in self._steps or ())

    @property
    def steps(self) -> int:
        """How many steps one execution takes: 1 where everything is fused."""
        return len(self._steps or ())

    def query_logical_tensor(self, id_: int) -> LogicalTensor:
        """What an input or output is, with all dims.

        Raises `ArgumentError` for a tensor that is neither.
        """
        ports = (*self.partition.inputs, *self.partition.outputs)
        if id_ not in {port.id for port in ports}:
            ids = ", ".join(str(port.id) for port in ports)
            raise ArgumentError("the tensor's id", brief(id_), f"one of {ids}")
        return self._tensors[id_]

    def execute(
        self, inputs: Mapping[int, Any], outputs: Mapping[int, Array] | None = None
    ) -> dict[int, Array]:
        """The outputs by id, from inputs by id.

        inputs: arrays of the ports' shapes and types, of any strides. A constant that was given
            before may be left out; given again it must be equal.
        outputs: arrays to write into, by id; others are made.

        Raises `ArgumentError` for what is missing or does not fit, and what upconv's calls raise.
        """
        self._require_open()
        ports = {port.id: self._tensors[port.id] for port in self.partition.inputs}
        given = {}
        for id_, value in keyed("inputs", inputs).items():
            if id_ not in ports:
                ids = ", ".join(map(str, ports))
                raise ArgumentError("inputs", f"data of tensor {id_}", f"of inputs only: {ids}")
            given[id_] = data_of(ports[id_], value)
        targets = self._targets(outputs)
        self._bind({id_: data for id_, data in given.items() if id_ in self._frozen})
        data = {**given, **self._constants}
        for id_ in ports:
            if id_ not in data:
                remedy = "Every input that is no constant given before has to be there."
                raise ArgumentError("inputs", f"without tensor {id_}", "all inputs", remedy)
        self._check_told(data)
        return self._run(data, targets)

    def close(self) -> None:
        """Let go of plans and constants; a running execution ends as if nothing happened."""
        with self._lock:
            held, self._steps, self._constants = self._steps, None, {}
            self._closed = True
        for step in held or ():
            step.close()

    def __enter__(self) -> CompiledPartition:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CompiledPartition of {self.partition}>"

    def _require_open(self) -> None:
        if self._closed:
            raise EngineError("This compiled partition is closed. Compile it again.")

    def _infer(self, op: Operation, constants: Mapping[int, Array]) -> None:
        """The dims of what one operation makes."""
        tensors = [self._tensors[tensor.id] for tensor in op.inputs]
        output = self._tensors[op.output]
        if op.kind not in ROLES:
            shape = elementwise.result_shape(op, [_shape(tensor) for tensor in tensors])
            self._tensors[op.output] = output.sized(shape)
            return
        told = None
        if len(op.inputs) > 2 and op.schema.inputs[2].group == "shape":
            told = self._told(op, tensors[2], output, constants)
        made = convolved(
            op, tuple(tensor.dims for tensor in tensors[:2]), output.dims, told, self.partition.rule
        )
        if len(op.inputs) > 2 and op.schema.inputs[2].name == "bias":
            wanted = (made.result[made.channel_axis],)
            if tensors[2].shape != wanted:
                expected = f"{wanted}, one per channel of the result"
                raise ShapeError("dims of bias", str(tensors[2].shape), expected)
        self._convolved[op.id] = made
        self._tensors[op.output] = output.sized(made.result)
        if len(op.inputs) > 2 and op.schema.inputs[2].group == "shape":
            self._promised[op.inputs[2].id] = made.result

    def _told(
        self,
        op: Operation,
        tensor: LogicalTensor,
        output: LogicalTensor,
        constants: Mapping[int, Array],
    ) -> Shape | None:
        """What a tensor of shapes holds; None where its data come later and must then agree."""
        name = op.schema.inputs[2].name
        if len(tensor.dims or ()) != 1:
            raise ShapeError(f"dims of {name}", str(tensor.dims), "one dimension")
        if tensor.id in constants:
            told = tuple(int(size) for size in constants[tensor.id])
            if any(size < 1 for size in told):
                raise ShapeError(name, str(told), "sizes >= 1")
            return told
        if output.shape is None:
            got = "a tensor whose data are not known when it is compiled"
            remedy = f"Give them, as in compile(constants={{{tensor.id}: ...}})."
            raise ArgumentError(name, got, "its data, or the output's dims", remedy)
        return None

    def _check_told(self, data: Mapping[int, Array]) -> None:
        for id_, shape in self._promised.items():
            told = tuple(int(size) for size in data[id_])
            if told != shape:
                remedy = "Compile for this shape."
                raise ShapeError(
                    f"data of tensor {id_}", str(told), f"{shape}, as compiled", remedy
                )

    def _bind(self, given: Mapping[int, Array]) -> None:
        """Keep constants, or see that they are those kept; plan once all are there."""
        with self._lock:
            for id_, data in given.items():
                kept = self._constants.get(id_)
                if kept is None:
                    self._constants[id_] = copied(f"a copy of constant {id_}", data)
                elif not _equal(kept, data):
                    remedy = "Leave constants out once they are given; for others compile anew."
                    got, expected = "other data than before", "the same data: it is a constant"
                    raise ArgumentError(f"data of tensor {id_}", got, expected, remedy)
            if self._steps is None and self._frozen <= self._constants.keys():
                shapes = {id_: tensor.shape for id_, tensor in self._tensors.items()}
                known = {id_: shape for id_, shape in shapes.items() if shape is not None}
                operations = self.partition.operations
                self._steps = steps(
                    operations, self._convolved, known, self._constants, self._engine
                )

    def _targets(self, outputs: Mapping[int, Array] | None) -> dict[int, Array]:
        ports = {port.id: self._tensors[port.id] for port in self.partition.outputs}
        targets = {}
        for id_, out in keyed("outputs", outputs or {}).items():
            if id_ not in ports:
                ids = ", ".join(map(str, ports))
                raise ArgumentError("outputs", f"an array for tensor {id_}", f"for outputs: {ids}")
            shape, dtype = _shape(ports[id_]), ports[id_].dtype
            targets[id_] = check_out(f"outputs[{id_}]", out, shape, dtype)
        return targets

    def _run(self, data: dict[int, Array], targets: Mapping[int, Array]) -> dict[int, Array]:
        work = self._steps
        if work is None:
            self._require_open()
        for step in work or ():
            data[step.output] = step.run(data, targets.get(step.output))
        return {port.id: data[port.id] for port in self.partition.outputs}


def data_of(tensor: LogicalTensor, value: object) -> Array:
    """`value` as an array of a tensor's type and shape; raises where it is none."""
    name = f"data of tensor {tensor.id}"
    if tensor.data_type == "s32":
        array = np.asarray(value)
        if array.dtype.kind not in "iu" or array.size > 12 or array.dtype == object:
            raise DTypeError(f"{name}", brief(value), "a few integers")
    else:
        array = as_array(name, value)
        if array.dtype != tensor.dtype:
            expected = f"{tensor.dtype}, which {tensor.data_type} is"
            raise DTypeError(f"{name}.dtype", str(array.dtype), expected, "Convert it first.")
    if array.shape != tensor.shape:
        expected = f"{tensor.shape}, as compiled"
        raise ShapeError(f"shape of the {name}", str(array.shape), expected)
    return array


def described(name: str, groups: Sequence[Iterable[LogicalTensor]]) -> list[LogicalTensor]:
    """Logical tensors out of several lists; `DTypeError` for anything else."""
    found = []
    for group in groups:
        if not isinstance(group, Iterable) or isinstance(group, Mapping | str):
            raise DTypeError(name, brief(group), "lists of LogicalTensor")
        for tensor in group:
            if not isinstance(tensor, LogicalTensor):
                raise DTypeError(name, f"with {brief(tensor)}", "lists of LogicalTensor")
            found.append(tensor)
    return found


def keyed(name: str, given: object) -> dict[int, Any]:
    """A mapping from tensor ids as a dict; `DTypeError` for anything else."""
    if not isinstance(given, Mapping) or not all(
        isinstance(key, int | np.integer) and not isinstance(key, bool) for key in given
    ):
        raise DTypeError(name, brief(given), "a dict from tensor ids to arrays")
    return {int(key): value for key, value in given.items()}


def _shape(tensor: LogicalTensor) -> Shape:
    assert tensor.shape is not None, tensor
    return tensor.shape


def _equal(first: Array, second: Array) -> bool:
    """Whether two arrays of one shape and type hold the same bits."""
    bits = np.dtype(f"u{first.dtype.itemsize}")
    pair = [np.ascontiguousarray(array).view(bits) for array in (first, second)]
    return bool(np.array_equal(*pair))
