"""cuDNN graphs, such as a convolution with its epilogue, and the plans that run them.

A plan is one way to run a graph: one of cuDNN's engines with its settings ("knobs"). Its name,
such as "eng22_k2=5", is the same in every process that uses the same library.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ...activations import Activation
from ...problem import DType
from ..copies import Tensor
from . import abi
from .abi import Attribute, CudnnError, Descriptor, Mode, Note, Object, Type, library, tensor
from .operation import Convolution, Kind

A, B, BIAS, RESIDUAL, RESULT = range(1, 6)
"""Numbers of a graph's tensors; A and B are the operands in the order of `Primitive.run`."""

_VIRTUAL = 100

TYPES = {
    DType.FLOAT16: abi.HALF,
    DType.BFLOAT16: abi.BFLOAT16,
    DType.FLOAT32: abi.FLOAT,
    DType.FLOAT64: abi.DOUBLE,
}


class Options(NamedTuple):
    """Limits on plans: bytes of scratch memory (None: no limit), and whether results must be
    bitwise equal in every run."""

    workspace: int | None
    deterministic: bool


class Plan:
    """A plan that has been built; `run` takes the addresses of its tensors."""

    def __init__(self, name: str, config: Object, handle: int) -> None:
        self.name = name
        self._plan = (
            Object(Descriptor.EXECUTION_PLAN)
            .set(Attribute.EXECUTION_PLAN_HANDLE, Type.HANDLE, handle)
            .set(Attribute.EXECUTION_PLAN_ENGINE_CONFIG, Type.BACKEND_DESCRIPTOR, config)
            .finalized()
        )
        (self.workspace,) = self._plan.get(Attribute.EXECUTION_PLAN_WORKSPACE_SIZE, Type.INT64)
        self._latest = threading.local()

    def run(
        self, numbers: tuple[int, ...], addresses: tuple[int, ...], workspace: int, handle: int
    ) -> None:
        """Run on the handle's stream, with each tensor's address and the scratch memory's."""
        key = addresses, workspace
        latest = self._latest.__dict__.get("pack")
        if latest is None or latest[0] != key:  # consecutive calls often use the same memory
            latest = self._latest.pack = key, _variant_pack(numbers, addresses, workspace)
        code = library().execute(handle, self._plan.address, latest[1].address)
        if code:
            library().check(code, "execution")


def _variant_pack(numbers: tuple[int, ...], addresses: tuple[int, ...], workspace: int) -> Object:
    pack = Object(Descriptor.VARIANT_PACK)
    pack.set(Attribute.VARIANT_PACK_UNIQUE_IDS, Type.INT64, *numbers)
    pack.set(Attribute.VARIANT_PACK_DATA_POINTERS, Type.VOID_PTR, *addresses)
    if workspace:
        pack.set(Attribute.VARIANT_PACK_WORKSPACE, Type.VOID_PTR, workspace)
    return pack.finalized()


class Graph:
    """A graph: the engines that can run it, by name, and the plans that have been built.

    names: the engines' names, in the library's expected order of speed.
    """

    def __init__(self, engines: Mapping[str, Object], options: Options) -> None:
        self.names, self._engines = list(engines), engines
        self._options, self._lock = options, threading.Lock()
        self._built: dict[str, Plan | None] = {}

    def plans(self, names: Iterable[str], handle: int) -> Iterator[Plan]:
        """Yield the plans of some engines, built in turn with this thread's handle.

        Plans that cannot be built or need too much scratch memory are left out.
        """
        for name in names:
            with self._lock:
                if name not in self._built:
                    self._built[name] = self._plan(name, handle)
                plan = self._built[name]
            if plan is not None:
                yield plan

    def _plan(self, name: str, handle: int) -> Plan | None:
        if name not in self._engines:
            return None
        try:
            plan = Plan(name, self._engines[name], handle)
        except CudnnError:
            return None
        limit = self._options.workspace
        return None if limit is not None and plan.workspace > limit else plan


def graph_of(
    operations: Iterable[Object], unwanted: set[Note], handle: int, options: Options
) -> Graph | None:
    """Return a graph of operations, or None if none of the library's engines can run it.

    unwanted: the numerical notes of engines that must not be used.
    """
    try:
        graph = (
            Object(Descriptor.OPERATIONGRAPH)
            .set(Attribute.OPERATIONGRAPH_OPS, Type.BACKEND_DESCRIPTOR, *operations)
            .set(Attribute.OPERATIONGRAPH_HANDLE, Type.HANDLE, handle)
            .finalized()
        )
    except CudnnError:
        return None
    engines = dict(_engines(graph, unwanted))
    return Graph(engines, options) if engines else None


def _engines(graph: Object, unwanted: set[Note]) -> Iterator[tuple[str, Object]]:
    """Yield the names and settings of the engines that the library lists for a graph, except those
    with unwanted notes. Settings keep their graph alive."""
    for mode in (Mode.A, Mode.B, Mode.FALLBACK):
        try:
            listed = (
                Object(Descriptor.ENGINEHEUR)
                .set(Attribute.ENGINEHEUR_OPERATION_GRAPH, Type.BACKEND_DESCRIPTOR, graph)
                .set(Attribute.ENGINEHEUR_MODE, Type.HEUR_MODE, mode)
                .finalized()
            )
            configs = listed.objects(Attribute.ENGINEHEUR_RESULTS, Descriptor.ENGINECFG)
        except CudnnError:  # this mode does not support the graph
            continue
        for config in configs:
            config.kept.append(listed)
            (engine,) = config.objects(Attribute.ENGINECFG_ENGINE, Descriptor.ENGINE)
            if not unwanted.intersection(
                engine.get(Attribute.ENGINE_NUMERICAL_NOTE, Type.NUMERICAL_NOTE)
            ):
                yield _name(engine, config), config


def _name(engine: Object, config: Object) -> str:
    (index,) = engine.get(Attribute.ENGINE_GLOBAL_INDEX, Type.INT64)
    knobs = config.objects(Attribute.ENGINECFG_KNOB_CHOICES, Descriptor.KNOB_CHOICE)
    settings = sorted(
        (knob.get(Attribute.KNOB_CHOICE_KNOB_TYPE, Type.KNOB_TYPE)[0],
         knob.get(Attribute.KNOB_CHOICE_KNOB_VALUE, Type.INT64)[0])
        for knob in knobs
    )  # fmt: skip
    return f"eng{index}" + "".join(f"_k{kind}={value}" for kind, value in settings)


def unwanted_notes(convolution: Convolution, options: Options) -> set[Note]:
    """Return the notes that mark engines as less precise than requested or nondeterministic."""
    notes = {Note.REDUCED_PRECISION_REDUCTION}
    if convolution.dtype is DType.FLOAT32:
        notes.add(Note.DOWN_CONVERT_INPUTS)
        if not convolution.tf32:
            notes.add(Note.TENSOR_CORE)
    return notes | ({Note.NONDETERMINISTIC} if options.deterministic else set())


def operations(convolution: Convolution) -> Iterator[Object]:
    """Yield the operations of a convolution and its epilogue."""
    kind, sums = TYPES[convolution.dtype], TYPES[convolution.dtype.accumulator]
    result = convolution.result
    count = sum(1 for _ in _steps(convolution))
    numbers = [*(_VIRTUAL + i for i in range(count)), RESULT]
    values = [
        tensor(number, *result, kind if number == RESULT else sums, virtual=number != RESULT)
        for number in numbers
    ]
    yield _convolution(convolution, kind, sums, values[0])
    for i, (mode, slope, other) in enumerate(_steps(convolution)):
        settings = Object(Descriptor.POINTWISE)
        settings.set(Attribute.POINTWISE_MODE, Type.POINTWISE_MODE, mode)
        settings.set(Attribute.POINTWISE_MATH_PREC, Type.DATA_TYPE, sums)
        if slope is not None:
            settings.set(Attribute.POINTWISE_RELU_LOWER_CLIP_SLOPE, Type.DOUBLE, slope)
        step = Object(Descriptor.OPERATION_POINTWISE)
        of = Type.BACKEND_DESCRIPTOR
        step.set(Attribute.OPERATION_POINTWISE_PW_DESCRIPTOR, of, settings.finalized())
        step.set(Attribute.OPERATION_POINTWISE_XDESC, of, values[i])
        if other is not None:
            number, (dims, strides) = other
            step.set(Attribute.OPERATION_POINTWISE_BDESC, of, tensor(number, dims, strides, kind))
        step.set(Attribute.OPERATION_POINTWISE_YDESC, of, values[i + 1])
        yield step.finalized()


_Step = tuple[int, float | None, tuple[int, Tensor] | None]
"""A step in an epilogue: cudnnPointwiseMode_t, a slope, the second operand's number and shape."""

_ADD, _RELU = 0, 100
_MODES = {
    Activation.TANH: 101,
    Activation.SIGMOID: 102,
    Activation.GELU: 104,
    Activation.SILU: 106,
}


def _steps(convolution: Convolution) -> Iterator[_Step]:
    ends, dims = convolution.ends, convolution.result.dims
    if ends.bias:
        ones = [1] * (len(dims) - 2)
        shape = Tensor((1, dims[1], *ones), (dims[1], 1, *[dims[1]] * len(ones)))
        yield _ADD, None, (BIAS, shape)
    if ends.residual:
        yield _ADD, None, (RESIDUAL, convolution.result)
    if ends.activation in (Activation.RELU, Activation.LEAKY_RELU):
        yield _RELU, ends.slope, None
    elif ends.activation is not Activation.NONE:
        yield _MODES[ends.activation], None, None


def _convolution(convolution: Convolution, kind: int, sums: int, result: Object) -> Object:
    settings = Object(Descriptor.CONVOLUTION)
    settings.set(Attribute.CONVOLUTION_COMP_TYPE, Type.DATA_TYPE, sums)
    settings.set(Attribute.CONVOLUTION_CONV_MODE, Type.CONVOLUTION_MODE, abi.CROSS_CORRELATION)
    settings.set(Attribute.CONVOLUTION_SPATIAL_DIMS, Type.INT64, len(convolution.stride))
    settings.set(Attribute.CONVOLUTION_DILATIONS, Type.INT64, *convolution.dilation)
    settings.set(Attribute.CONVOLUTION_FILTER_STRIDES, Type.INT64, *convolution.stride)
    settings.set(Attribute.CONVOLUTION_PRE_PADDINGS, Type.INT64, *convolution.pre)
    settings.set(Attribute.CONVOLUTION_POST_PADDINGS, Type.INT64, *convolution.post)
    first, second = (tensor(A + i, *shape, kind) for i, shape in enumerate(convolution.operands))
    operation, base, attributes = _KINDS[convolution.kind]
    node, scalar = Object(operation), Type.DOUBLE if sums == abi.DOUBLE else Type.FLOAT
    node.set(base + Attribute.CONV_DESC, Type.BACKEND_DESCRIPTOR, settings.finalized())
    node.set(base + Attribute.ALPHA, scalar, 1.0)
    node.set(base + Attribute.BETA, scalar, float(convolution.ends.accumulate))
    for attribute, value in zip(attributes, (first, second, result), strict=True):
        node.set(attribute, Type.BACKEND_DESCRIPTOR, value)
    return node.finalized()


_KINDS = {
    Kind.CONVOLUTION: (Descriptor.OPERATION_CONVOLUTION_FORWARD, 0, (704, 703, 705)),
    Kind.DATA_GRADIENT: (Descriptor.OPERATION_CONVOLUTION_BACKWARD_DATA, 6, (711, 709, 710)),
    Kind.WEIGHT_GRADIENT: (Descriptor.OPERATION_CONVOLUTION_BACKWARD_FILTER, 12, (716, 717, 715)),
}
"""The operation, the offset of its attributes from the forward operation's, and the attributes of
its operands (in the order of `Primitive.run`) and result."""
