"""Partitions: operations that are compiled and executed together.

A partition is made by a graph. `compile` fixes shapes, `execute` runs on data. Data of constants
are given once, at compile or in the first execution; they are copied, and what is made of them (a
plan with its weight folded and packed) is kept.

What lives here: Partition, CompiledPartition. What never does: what is fused with what.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from types import TracebackType
from typing import Any

from ..arrays import Array, check_out, copied
from ..dialects import values
from ..dialects.onednn_graph import Rule
from ..engines import load
from ..errors import ArgumentError, EngineError, ShapeError
from . import elementwise
from .convolutions import ROLES, Convolved, convolved
from .data import checked, described, equal, keyed
from .fusion import steps
from .logical_tensors import DataType, LogicalTensor, Shape, joined, shown
from .operations import Operation, located
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
        if isinstance(engine, str):
            load(engine)  # its name is looked at now, not in the first execution
        known = dict(self.tensors)
        ports = {tensor.id for tensor in (*self.inputs, *self.outputs)}
        for tensor in described("inputs and outputs", (inputs, outputs)):
            _require_one_of("inputs or outputs", tensor.id, ports)
            known[tensor.id] = known[tensor.id].merged(tensor)
        for port in self.inputs:
            if known[port.id].shape is None:
                remedy = "Describe it in compile(inputs=...)."
                got = shown(known[port.id].dims)
                raise ShapeError(f"dims of input tensor {port.id}", got, "all known", remedy)
        fixed = {}
        for id_, value in keyed("constants", {} if constants is None else constants).items():
            _require_one_of("constants", id_, {port.id for port in self.inputs})
            if not known[id_].constant and known[id_].data_type != DataType.S32.value:
                remedy = "Make it one, or give its data to execute."
                got, expected = repr(known[id_].property_type), "'constant'"
                raise ArgumentError(f"property_type of tensor {id_}", got, expected, remedy)
            fixed[id_] = checked(known[id_], value)
        return CompiledPartition(self, known, fixed, engine)

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
        spread(partition.operations, self._tensors)
        for op in partition.operations:
            with located(f"of {op}"):
                self._infer(op, constants)
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
        number = values.integer("the tensor's id", id_, low=0)
        _require_one_of("the tensor's id", number, {port.id for port in ports})
        return self._tensors[number]

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
            _require_one_of("inputs", id_, ports)
            given[id_] = checked(ports[id_], value)
        targets = self._targets(outputs)
        self._bind({id_: data for id_, data in given.items() if id_ in self._frozen})
        data = {**self._constants, **given}  # of a constant both are the same
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
        third = op.schema.inputs[2].name if len(op.inputs) > 2 else ""
        told = None
        if third.endswith("_shape"):
            told = self._told(third, tensors[2], output, constants)
        first, second = (tensor.dims for tensor in tensors[:2])
        made = convolved(op, (first, second), output.dims, told, self.partition.rule)
        self._convolved[op.id] = made
        self._tensors[op.output] = output.sized(made.result)
        if third == "bias":
            _check_bias(tensors[2], made)
        elif third:
            self._promised[op.inputs[2].id] = made.result

    def _told(
        self,
        name: str,
        tensor: LogicalTensor,
        output: LogicalTensor,
        constants: Mapping[int, Array],
    ) -> Shape | None:
        """What a tensor of shapes holds; None where its data come later and must then agree."""
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
                raise ShapeError(f"data[{id_}]", str(told), f"{shape}, as compiled", remedy)

    def _bind(self, given: Mapping[int, Array]) -> None:
        """Keep constants, or see that they are those kept; plan once all are there."""
        with self._lock:
            for id_, data in given.items():
                kept = self._constants.get(id_)
                if kept is None:
                    self._constants[id_] = copied(f"a copy of constant {id_}", data)
                elif not equal(kept, data):
                    remedy = "Leave constants out once they are given; for others compile anew."
                    got, expected = "other data than before", "the same data: it is a constant"
                    raise ArgumentError(f"data[{id_}]", got, expected, remedy)
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
        for id_, out in keyed("outputs", {} if outputs is None else outputs).items():
            _require_one_of("outputs", id_, ports)
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


def spread(operations: Sequence[Operation], tensors: dict[int, LogicalTensor]) -> None:
    """Say of inputs what is known of results that have their dims; `ShapeError` if they do not.

    A convolution's result may be known by what follows it alone.
    """
    for op in reversed(operations):
        if op.kind in elementwise.PRESERVING:
            first = op.inputs[0].id
            with located(f"of {op}"):
                dims = joined(
                    f"dims of tensor {op.output}", tensors[op.output].dims, tensors[first].dims
                )
            tensors[first] = replace(tensors[first], dims=dims)


def _check_bias(bias: LogicalTensor, made: Convolved) -> None:
    wanted = (made.result[made.channel_axis],)
    if bias.shape != wanted:
        expected = f"{wanted}, one per channel of the result"
        raise ShapeError("dims of bias", str(bias.shape), expected)


def _require_one_of(name: str, id_: int, allowed: Collection[int]) -> None:
    if id_ not in allowed:
        ids = ", ".join(map(str, sorted(allowed)))
        raise ArgumentError(name, f"tensor {id_}", f"some of this partition's: {ids}")


def _shape(tensor: LogicalTensor) -> Shape:
    assert tensor.shape is not None  # noqa: S101 - our own invariant: it was inferred
    return tensor.shape
