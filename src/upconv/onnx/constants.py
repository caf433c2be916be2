"""Constants of a model: the array behind a value, or why there is none.

A weight is constant when it is an initialiser, the output of a Constant node, or made from
constants by the nodes that weight normalisation and exporters put before a layer (`_FOLDED`). Those
are run by ONNX's own reference evaluator, in the opset of their graph.

1. An initialiser that is also an input of its graph is not constant: a caller may feed another.
2. DequantizeLinear is not run: quantised pairs stay whole.
3. A node runs only if its result, a bound of which follows from the shapes of what it reads, and
   all results before it have at most `most_bytes` together.

What lives here: reading. What never does: changing a model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
import onnx_ir as ir

from ..arrays import Array
from ..errors import brief
from .sealing import sparse_tensor
from .tensor_data import dense_array

DEFAULT_DOMAINS = ("", "ai.onnx")
"""The two spellings of the domain of ONNX's own operators."""

MOST_BYTES = 1 << 30
_MOST_NODES = 64  # weight norm takes eight; a chain of thousands is no weight


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """The value of a constant, or why it has none.

    `array` is read-only, and memory mapped where it lies outside the model's file. `reason` is one
    sentence for people where `array` is None, else empty.
    """

    array: Array | None
    reason: str = ""


def constant_value(
    value: ir.Value | None, *, opset: int | None = None, most_bytes: int = MOST_BYTES
) -> Constant:
    """The array that `value` always holds, or the reason why none can be told.

    value: of any graph, subgraph or function; None, an input left out, is not constant.
    opset: of the default domain, for a graph that does not tell its own (`models.load` has all
        graphs tell it).

    Never raises for what a model says: what cannot be read or run is a reason.

    >>> text = '<ir_version: 8, opset_import: ["": 13]> g () => (float[2] y)'
    >>> text += "<float[2] a = {1, 2}> { b = Neg(a) y = Relu(b) }"
    >>> graph = ir.from_onnx_text(text).graph
    >>> constant_value(graph[0].outputs[0]).array
    array([-1., -2.], dtype=float32)
    >>> constant_value(graph.outputs[0]).reason
    "'y' is made by a Relu node, which is not computed in advance."
    """
    return _Reader(opset, most_bytes, _FOLDED).read(value)


def supposed(
    value: ir.Value, given: Mapping[ir.Value, Array], *, opset: int, most_bytes: int
) -> Array | None:
    """What `value` would hold if others held the arrays `given`; None where that cannot be told.

    More is computed than for weights: whatever moves elements, places to move them to, and shapes
    where the model tells them.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[2] x) => (float[4] y)'
    >>> graph = ir.from_onnx_text(f"{text} {{ y = Concat<axis = 0>(x, x) }}").graph
    >>> x = np.array([1.0, 2.0])
    >>> supposed(graph.outputs[0], {graph.inputs[0]: x}, opset=17, most_bytes=64)
    array([1., 2., 1., 2.])
    """
    reader = _Reader(opset, most_bytes, _MOVED)
    reader.known.update(given)
    return reader.read(value).array


def declared_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape that the model tells of a value; None unless it tells all of it, and it can be.

    >>> declared_shape(ir.Value(shape=ir.Shape([2, 3]))), declared_shape(ir.Value(shape=["n", 3]))
    ((2, 3), None)
    """
    if value is None or value.shape is None:
        return None
    sizes = tuple(size for size in value.shape if isinstance(size, int) and size >= 0)
    return sizes if len(sizes) == len(value.shape) else None


class _NotConstantError(Exception):
    """Carries the reason up to the value that was asked for."""


class _Reader:
    """Reads one value and all it is made from, each once."""

    def __init__(self, opset: int | None, most_bytes: int, bounds: Mapping[str, Bound]) -> None:
        self.opset, self.left, self.most, self.bounds = opset, most_bytes, most_bytes, bounds
        self.known: dict[ir.Value, Array] = {}

    def read(self, value: ir.Value | None) -> Constant:
        try:
            array = self.array(value, 0).view()
        except _NotConstantError as error:
            return Constant(None, str(error))
        array.flags.writeable = False
        return Constant(array)

    def array(self, value: ir.Value | None, depth: int) -> Array:
        if value is None:
            raise _NotConstantError("The input is left out.")
        if value not in self.known:
            self.known[value] = self._new(value, depth)
        return self.known[value]

    def _new(self, value: ir.Value, depth: int) -> Array:
        name = brief(value.name)
        if value.is_initializer():
            if value.is_graph_input():
                raise _NotConstantError(
                    f"The initialiser {name} is also an input of its graph, so it may be fed."
                )
            return _tensor_array(value.const_value, name)
        node = value.producer()
        if node is None:
            raise _NotConstantError(f"{name} is an input of its graph.")
        if node.domain in DEFAULT_DOMAINS and node.op_type == "Constant":
            return self._constant_node(node, name)
        return self._folded(node, value, depth)

    def _constant_node(self, node: ir.Node, name: str) -> Array:
        for form, read in _FORMS.items():
            attribute = node.attributes.get(form)
            if attribute is not None:
                if attribute.is_ref():
                    raise _NotConstantError(f"{name} is an attribute of its function's caller.")
                with _reported(f"The Constant node that makes {name}"):
                    return read(self, attribute, name)
        raise _NotConstantError(f"The Constant node that makes {name} holds no value.")

    def sparse(self, attribute: ir.Attr, name: str) -> Array:
        """A sparse tensor written out, if that is not too large."""
        proto = sparse_tensor(attribute)
        dtype = ir.DataType(proto.values.data_type).numpy()
        self._reserve(prod(proto.dims) * dtype.itemsize, name)
        values = ir.serde.deserialize_tensor(proto.values).numpy()
        indices = ir.serde.deserialize_tensor(proto.indices).numpy()
        return dense_array(values, indices, proto.dims)

    def _folded(self, node: ir.Node, value: ir.Value, depth: int) -> Array:
        name, bound = brief(value.name), self.bounds.get(node.op_type)
        if node.op_type == "DequantizeLinear":
            raise _NotConstantError(f"{name} is dequantised; quantised pairs are left whole.")
        if bound is None or node.domain not in DEFAULT_DOMAINS or len(node.outputs) != 1:
            raise _NotConstantError(
                f"{name} is made by a {node.op_type} node, which is not computed in advance."
            )
        if any(attribute.is_ref() for attribute in node.attributes.values()):
            raise _NotConstantError(f"{name} depends on an attribute of its function's caller.")
        if depth >= _MOST_NODES:
            raise _NotConstantError(f"{name} is at the end of more than {_MOST_NODES} nodes.")
        opset = self._opset(node, name)
        where = f"The {node.op_type} node that makes {name}"
        shape = declared_shape(next(iter(node.inputs), None))
        if bound is _of_a_shape and shape is not None:
            with _reported(where):
                return _evaluated(node, [np.broadcast_to(np.int8(0), shape)], opset)
        arrays = [None if x is None else self.array(x, depth + 1) for x in node.inputs]
        with _reported(where):
            self._reserve(bound(node, [x for x in arrays if x is not None]), name)
            return _evaluated(node, arrays, opset)

    def _opset(self, node: ir.Node, name: str) -> int:
        imports = {} if node.graph is None else node.graph.opset_imports
        for domain in DEFAULT_DOMAINS:
            if domain in imports:
                return imports[domain]
        if self.opset is None:
            raise _NotConstantError(f"The opset of the node that makes {name} is not known.")
        return self.opset

    def _reserve(self, nbytes: int, name: str) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise _NotConstantError(
                f"{name} would take more than {self.most} bytes to compute in advance."
            )


@contextmanager
def _reported(where: str) -> Iterator[None]:
    """What a foreign reader or evaluator raises, as a reason; it may be anything."""
    try:
        with np.errstate(all="ignore"):
            yield
    except _NotConstantError:
        raise
    except Exception as error:
        raise _NotConstantError(
            f"{where} cannot be read ({type(error).__name__}: {brief(str(error))})."
        ) from None


def _tensor_array(tensor: ir.TensorProtocol | None, name: str) -> Array:
    if tensor is None:
        raise _NotConstantError(f"The initialiser {name} has no data.")
    with _reported(f"The tensor {name}"):
        return tensor.numpy()


def _evaluated(node: ir.Node, arrays: Sequence[Array | None], opset: int) -> Array:
    """The only output of `node` on `arrays`, by ONNX's reference evaluator."""
    from onnx.reference import ReferenceEvaluator

    proto = ir.serde.serialize_node(node)
    names = ["" if array is None else f"i{i}" for i, array in enumerate(arrays)]
    del proto.input[:], proto.output[:]
    proto.input.extend(names)
    proto.output.append("o")
    feeds = {name: array for name, array in zip(names, arrays, strict=True) if array is not None}
    inputs = [onnx.helper.make_tensor_value_info(name, 1, None) for name in feeds]
    output = onnx.helper.make_tensor_value_info("o", 1, None)
    graph = onnx.helper.make_graph([proto], "folded", inputs, [output])
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    (result,) = ReferenceEvaluator(model).run(None, feeds)
    return np.asarray(result)


def _no_larger(_: ir.Node, arrays: Sequence[Array]) -> int:
    return arrays[0].nbytes


def _broadcast(_: ir.Node, arrays: Sequence[Array]) -> int:
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    return prod(shape) * max(array.itemsize for array in arrays)


def _together(_: ir.Node, arrays: Sequence[Array]) -> int:
    return sum(array.nbytes for array in arrays)


def _cast(node: ir.Node, arrays: Sequence[Array]) -> int:
    to = ir.DataType(node.attributes["to"].as_int())
    if to is ir.DataType.STRING:
        raise TypeError("a Cast to text is not computed in advance")
    return arrays[0].size * to.numpy().itemsize


def _of_a_shape(_: ir.Node, arrays: Sequence[Array]) -> int:
    return 8 * max(1, arrays[0].ndim)


def _filled(_: ir.Node, arrays: Sequence[Array]) -> int:
    return 8 * prod(map(int, arrays[0]))


def _expanded(_: ir.Node, arrays: Sequence[Array]) -> int:
    target = tuple(map(int, arrays[1]))
    return int(prod(np.broadcast_shapes(arrays[0].shape, target))) * arrays[0].itemsize


def _tiled(_: ir.Node, arrays: Sequence[Array]) -> int:
    return prod(map(int, arrays[1])) * arrays[0].nbytes


def _counted(_: ir.Node, arrays: Sequence[Array]) -> int:
    start, limit, delta = (array.item() for array in arrays)
    return 8 * max(0, int((limit - start) / delta) + 1)


def _padded(node: ir.Node, arrays: Sequence[Array]) -> int:
    pads = node.attributes.get_ints("pads", ()) if len(arrays) == 1 else arrays[1].tolist()
    around = sum(abs(int(n)) for n in pads)
    return int(prod(n + around for n in arrays[0].shape)) * arrays[0].itemsize


def _gathered(_: ir.Node, arrays: Sequence[Array]) -> int:
    return max(1, arrays[1].size) * arrays[0].nbytes // max(1, min(arrays[0].shape, default=1))


def _places(_: ir.Node, arrays: Sequence[Array]) -> int:
    return 8 * max(1, arrays[0].ndim) * arrays[0].size


Bound = Callable[[ir.Node, Sequence[Array]], int]
"""A bound on the bytes of a node's result, from what it reads."""

_FOLDED: dict[str, Bound] = {
    "Identity": _no_larger,
    "Cast": _cast,
    "Transpose": _no_larger,
    "Reshape": _no_larger,
    "Squeeze": _no_larger,
    "Unsqueeze": _no_larger,
    "Flatten": _no_larger,
    "Slice": _no_larger,
    "Neg": _no_larger,
    "Sqrt": _no_larger,
    "Mul": _broadcast,
    "Div": _broadcast,
    "Add": _broadcast,
    "Sub": _broadcast,
    "Pow": _broadcast,
    "ReduceL2": _no_larger,
    "ReduceSum": _no_larger,
    "Concat": _together,
}
"""The operators run in advance for weights."""

_MOVED: dict[str, Bound] = {
    **_FOLDED,
    **dict.fromkeys(("Shape", "Size"), _of_a_shape),
    **dict.fromkeys(("Equal", "Less", "Greater", "And", "Or", "Mod", "Where"), _broadcast),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth", "Not", "ReduceProd"), _no_larger),
    **dict.fromkeys(("ScatterND", "ScatterElements"), _no_larger),
    "ConstantOfShape": _filled,
    "Expand": _expanded,
    "Tile": _tiled,
    "Range": _counted,
    "Pad": _padded,
    "Gather": _gathered,
    "NonZero": _places,
}
"""What else is run to learn where elements go."""

_FORMS: dict[str, Callable[[_Reader, ir.Attr, str], Array]] = {
    "value": lambda _, attribute, name: _tensor_array(attribute.as_tensor(), name),
    "sparse_value": _Reader.sparse,
    "value_float": lambda _, attribute, __: np.array(attribute.as_float(), np.float32),
    "value_floats": lambda _, attribute, __: np.array(attribute.as_floats(), np.float32),
    "value_int": lambda _, attribute, __: np.array(attribute.as_int(), np.int64),
    "value_ints": lambda _, attribute, __: np.array(attribute.as_ints(), np.int64),
    "value_string": lambda _, attribute, __: np.array(attribute.as_string(), object),
    "value_strings": lambda _, attribute, __: np.array(attribute.as_strings(), object),
}
"""The attributes a Constant node may hold its value in -> how it is read."""
