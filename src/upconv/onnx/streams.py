"""`stream`: run an ONNX model chunk by chunk along an axis, as one network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from ..argument_checks import by_name, integer
from ..arrays import Array, as_shape
from ..errors import ArgumentError, UpconvError, brief
from ..network import Network
from ..network.axes import Arranged, declared_axes
from ..network.model_streams import Captured, ModelStream, Signature, stream_of_model
from ..network.stream_schedule import refused
from ..signatures import AlgorithmName, NetworkPrecision
from .constants import FOLDED, constant_value, folded, replace
from .graphs import is_op, named
from .inputs import declared, dtype_of, inputs_of
from .models import SMALL, Source, from_model
from .nodes import Sizes, known_sizes
from .session.arranging import translate_arranged
from .session.units import units

_LENGTH = 64  # of the inputs in the first capture
_SIZES = (
    "Gather", "Floor", "Ceil", "Mod", "ConstantOfShape", "Expand", "Range", "Where", "Equal",
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And", "Or", "Max", "Min", "Abs",
    "ReduceProd", "ReduceMax", "Trunc", "Round", "Size", "Reciprocal",
)  # fmt: skip
"""Operators with which exporters compute sizes."""


def stream(
    model: Source, *, axis: int = -1, chunk: int | None = None,
    precision: NetworkPrecision = "float32", threads: int | None = None,
    algorithm: AlgorithmName = "auto",
    shapes: Mapping[str, Sequence[int | None]] | None = None,
) -> FileStream:  # fmt: skip
    """Stream a model along an axis of its inputs: `push` each chunk as it arrives, then `finish`.

    model: a path, the bytes of a file, a ModelProto or an `onnx_ir.Model`, whose operations are
        local along the axis. Its inputs are float32, and the axis is dynamic in all of them.
    axis: the axis of every input. chunk: the input length for which kernels are chosen; None means
        the first push's. precision, threads, algorithm: as in `Network.stream`. shapes: by name,
        the shapes of inputs with dynamic sizes besides batch and axis; None at the axis.

    The results are those of the model on the whole input. No value is computed twice.

    Raises `EngineRefusal` for a model that cannot be streamed, and names the node. Raises what
    `load` raises, and `ArgumentError` for arguments that do not fit the model.

    >>> import numpy as np, onnx
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 1, L] x) => (float[N, 1, M] y)'
    >>> text += "<float[1, 1, 2] w = {1, 1}> { y = ConvTranspose<strides = [2]>(x, w) }"
    >>> speech = stream(onnx.parser.parse_model(text))
    >>> speech.push(np.array([[[1, 2]]], np.float32)), speech.finish().shape
    (array([[[1., 1., 2., 2.]]], dtype=float32), (1, 1, 0))
    """
    source = from_model(model)
    RemoveUnusedNodesPass()(source)
    signature = _signature(inputs_of(source), axis, by_name("shapes", shapes))
    capture = partial(_captured, source, signature)
    options = {"chunk": chunk, "precision": precision, "algorithm": algorithm}
    return stream_of_model(FileStream, capture, signature, _LENGTH, threads=threads, **options)


class FileStream(ModelStream):
    """A stream of an ONNX model, made by `stream`; see `ModelStream`."""

    __slots__ = ()

    @property
    def input_names(self) -> list[str]:
        """The names of the inputs, in the order of chunks."""
        return list(self.signature.shapes)

    @property
    def output_names(self) -> list[str]:
        """The names of the outputs, in order."""
        return list(self.captured.structure)

    def push(self, *chunks: Any, **named: Any) -> Any:
        """Return all new results that no later input can change.

        chunks: a float32 array for each input, in order or by name. All have the same length along
        the axis, which may be 0. Returns an array, or a tuple for several outputs.
        """
        if named:
            names = self.input_names
            missing = [name for name in names if name not in named]
            if chunks or missing or len(named) > len(names):
                got = f"given {', '.join(named)} by name"
                raise ArgumentError("push", got, f"all inputs: {', '.join(names)}")
            chunks = tuple(named[name] for name in names)
        return super().push(*chunks)

    def converted(self, chunks: Sequence[Any]) -> list[Array]:
        """Convert the chunks of a push to inputs of the network."""
        return self.arrays(chunks)

    def given_back(self, results: Any) -> Any:
        """Convert the network's results to an array, or to a tuple for several outputs."""
        arrays = self.results(results)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)


def _signature(
    inputs: Sequence[ir.Value], axis: int, shapes: dict[str, Sequence[int | None]]
) -> Signature:
    """Return the inputs' signature, with size 0 along the stream's axis and 1 for an open batch."""
    known, axes = {}, {}
    for name in shapes:
        if name not in (names := [str(value.name) for value in inputs]):
            raise ArgumentError("the name of an input", brief(name), f"one of {', '.join(names)}")
    for value in inputs:
        name = str(value.name)
        argument, got = f"input {brief(name)}", declared(value)
        if dtype_of(value) != np.float32 or value.shape is None:
            raise ArgumentError(argument, got, "float32 of a known number of axes")
        rank = len(value.shape)
        number = integer("axis", axis, -rank, rank - 1) % max(1, rank)
        extents = known_sizes(value) or ()
        if extents[number] is not None:
            remedy = "Export the model with this axis dynamic."
            raise ArgumentError(argument, got, f"dynamic along axis {axis}", remedy)
        axes[name] = declared_axes(rank, number)
        stated = shapes.get(name, extents)
        fits = isinstance(stated, list | tuple) and len(stated) == rank
        if not fits or any(a not in (None, b) for a, b in zip(extents, stated, strict=True)):
            raise ArgumentError(f"shapes[{name!r}]", brief(stated), got)
        batch = axes[name].index(0) if 0 in axes[name] else None
        sizes = [1 if i == batch and n is None else 0 if i == number else n
                 for i, n in enumerate(stated)]  # fmt: skip
        if None in sizes:
            remedy = f"Pass shapes={{{name!r}: (...)}}."
            expected = f"known except for the batch and axis {axis}"
            raise ArgumentError(argument, got, expected, remedy)
        known[name] = as_shape(name, [n or 0 for n in sizes])
    return Signature(known, axes)


def _captured(source: ir.Model, signature: Signature, batch: int, length: int) -> Captured:
    """Capture a model as a network, for inputs of known sizes."""
    model = source.clone()
    for value in inputs_of(model):
        name = str(value.name)
        pairs = zip(signature.axes[name], signature.shapes[name], strict=True)
        value.shape = ir.Shape(batch if axis == 0 else size or length for axis, size in pairs)
    _fold_sizes(model)
    network = Network(
        {f"x{i}": shape for i, shape in enumerate(signature.declared(batch, length).values())}
    )
    values = {
        x: Arranged(value, signature.axes[str(x.name)])
        for x, value in zip(inputs_of(model), network.inputs.values(), strict=True)
    }
    opset = model.graph.opset_imports.get("", 0)
    for unit in (unit for unit in units(model.graph) if not is_op(unit.last, "Constant")):
        where = f"{unit.last.op_type} {named(unit.last)}"
        network.at(where)
        try:
            translate_arranged(network, unit, values, opset)
        except (UpconvError, TypeError, ValueError, KeyError) as error:
            raise refused(where, str(error).rstrip(".")) from None
    outputs = []
    for y in model.graph.outputs:
        if y not in values:
            raise ArgumentError(f"output {brief(y.name)}", "constant", "computed from the inputs")
        outputs.append(values[y])
    network.output(*(output.value for output in outputs))
    names = [str(y.name) for y in model.graph.outputs]
    return Captured(network, tuple(output.axes for output in outputs), names)


def _fold_sizes(model: ir.Model) -> None:
    """Replace nodes that compute sizes from the input shapes by constants, in graph order."""
    opset = model.opset_imports[""]
    for node in list(model.graph):
        if is_op(node, "Shape") and (sizes := _sizes(node.inputs[0])) is not None:
            begin, end = node.attributes.get_int("start", 0), node.attributes.get_int("end", None)
            replace(model.graph, node, np.array(sizes[begin:end], np.int64))
            continue
        constant = folded(node, opset, (*FOLDED, *_SIZES))
        if constant is not None:
            replace(model.graph, node, constant)
        elif None in map(_sizes, node.outputs):
            _infer(node, opset)
    RemoveUnusedNodesPass()(model)


def _sizes(value: ir.Value | None) -> Sizes | None:
    """Return the sizes of a value, if all of them and its type are known."""
    sizes = None if value is None or value.dtype is None else known_sizes(value)
    return None if sizes is None or None in sizes else sizes


def _infer(node: ir.Node, opset: int) -> None:
    """Set the types and shapes of a node's outputs, if ONNX can infer them."""
    types, data = {}, {}
    for x in {x for x in node.inputs if x is not None}:
        array = constant_value(x).array
        sizes = _sizes(x) if array is None else array.shape
        if sizes is None:
            return
        kind = x.dtype if array is None else ir.DataType.from_numpy(array.dtype)
        if array is not None and array.nbytes <= SMALL:
            data[x.name] = onnx.numpy_helper.from_array(array, x.name)
        types[x.name] = onnx.helper.make_tensor_type_proto(kind, sizes)
    opsets = [onnx.helper.make_opsetid("", opset)]
    proto = ir.serde.serialize_node(node)
    try:
        schema = onnx.defs.get_schema(node.op_type, opset, node.domain)
        results = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, None, opsets)
    except Exception:  # third-party code; unknown shapes are refused later
        return
    for y in node.outputs:
        inferred = results.get(y.name)
        if inferred is not None and inferred.tensor_type.HasField("shape"):
            y.dtype = ir.DataType(inferred.tensor_type.elem_type)
            dims = inferred.tensor_type.shape.dim
            y.shape = ir.Shape([d.dim_value if d.HasField("dim_value") else None for d in dims])
