"""libdnnl's Graph API: prototypes, codes, and a graph run by it. Imported in a child process only.

Nothing is checked here that would make the library abort: it may, and then only the child dies.
Codes and the layout of a logical tensor (224 bytes) are those of dnnl_graph_types.h, the same from
3.2 to 3.13. Handles are closed by an `ExitStack`, newest first.

What lives here: everything that touches a pointer. What never does: upconv's own results.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from ctypes import POINTER, byref, c_char_p, c_float, c_int32, c_int64, c_size_t, c_uint8, c_void_p
from functools import cache
from typing import Any

import numpy as np

from ..arrays import Array

UNKNOWN_NDIMS, UNKNOWN_DIM = -1, -(1 << 63)
STRIDED, CPU, IN_ORDER = 2, 1, 1
DTYPES = {"f16": 1, "bf16": 2, "f32": 3, "s32": 4}
PROPERTIES = {"undef": 0, "variable": 1, "constant": 2}
POLICIES = {"fusion": 1, "debug": 2}

STATUS = {
    1: "out_of_memory",
    2: "invalid_arguments",
    3: "unimplemented",
    4: "last_impl_reached",
    5: "runtime_error",
    6: "not_required",
    7: "invalid_graph",
    8: "invalid_graph_op",
    9: "invalid_shape",
    10: "invalid_data_type",
}

KINDS = {
    "Add": 2,
    "BatchNormInference": 7,
    "BiasAdd": 8,
    "BiasAddBackward": 9,
    "Convolution": 13,
    "ConvolutionBackwardData": 14,
    "ConvolutionBackwardWeights": 15,
    "ConvTranspose": 16,
    "ConvTransposeBackwardData": 17,
    "ConvTransposeBackwardWeights": 18,
    "Divide": 20,
    "End": 25,
    "GELU": 27,
    "LeakyReLU": 35,
    "Maximum": 40,
    "Minimum": 43,
    "Multiply": 46,
    "ReLU": 58,
    "ReLUBackward": 59,
    "Sigmoid": 62,
    "Subtract": 74,
    "Tanh": 75,
}
"""dnnl_graph_op_kind_t."""

ATTRIBUTES = {
    "alpha": 1,
    "epsilon": 3,
    "groups": 50,
    "dilations": 65,
    "dst_shape": 66,
    "output_padding": 69,
    "pads_begin": 70,
    "pads_end": 71,
    "strides": 75,
    "weights_shape": 76,
    "use_dst": 104,
    "auto_broadcast": 128,
    "auto_pad": 129,
    "data_format": 131,
    "weights_format": 135,
}
"""dnnl_graph_op_attr_t."""


class Tensor(ctypes.Structure):
    """dnnl_graph_logical_tensor_t."""

    _fields_ = (
        ("id", c_size_t),
        ("ndims", c_int32),
        ("dims", c_int64 * 12),
        ("data_type", c_int32),
        ("property_type", c_int32),
        ("layout_type", c_int32),
        ("strides", c_int64 * 12),
    )


class StatusError(Exception):
    """A function of the library did not succeed."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function} says {STATUS.get(status, status)} (status {status})")


_new, _tensor, _tensors = POINTER(c_void_p), POINTER(Tensor), POINTER(POINTER(Tensor))
_PROTOTYPES: dict[str, list[Any]] = {
    "dnnl_engine_create": [_new, c_int32, c_size_t],
    "dnnl_engine_destroy": [c_void_p],
    "dnnl_stream_create": [_new, c_void_p, ctypes.c_uint],
    "dnnl_stream_wait": [c_void_p],
    "dnnl_stream_destroy": [c_void_p],
    "dnnl_graph_logical_tensor_init_with_dims":
        [_tensor, c_size_t, c_int32, c_int32, POINTER(c_int64), c_int32, c_int32],
    "dnnl_graph_logical_tensor_init": [_tensor, c_size_t, c_int32, c_int32, c_int32, c_int32],
    "dnnl_graph_op_create": [_new, c_size_t, c_int32, c_char_p],
    "dnnl_graph_op_destroy": [c_void_p],
    "dnnl_graph_op_add_input": [c_void_p, _tensor],
    "dnnl_graph_op_add_output": [c_void_p, _tensor],
    "dnnl_graph_op_set_attr_f32": [c_void_p, c_int32, POINTER(c_float), c_size_t],
    "dnnl_graph_op_set_attr_bool": [c_void_p, c_int32, POINTER(c_uint8), c_size_t],
    "dnnl_graph_op_set_attr_s64": [c_void_p, c_int32, POINTER(c_int64), c_size_t],
    "dnnl_graph_op_set_attr_str": [c_void_p, c_int32, c_char_p, c_size_t],
    "dnnl_graph_graph_create": [_new, c_int32],
    "dnnl_graph_graph_destroy": [c_void_p],
    "dnnl_graph_add_op": [c_void_p, c_void_p],
    "dnnl_graph_graph_finalize": [c_void_p],
    "dnnl_graph_graph_filter": [c_void_p, c_int32],
    "dnnl_graph_graph_get_partition_num": [c_void_p, POINTER(c_size_t)],
    "dnnl_graph_graph_get_partitions": [c_void_p, c_size_t, _new],
    "dnnl_graph_partition_destroy": [c_void_p],
    "dnnl_graph_partition_is_supported": [c_void_p, POINTER(c_uint8)],
    "dnnl_graph_partition_get_input_ports_num": [c_void_p, POINTER(c_size_t)],
    "dnnl_graph_partition_get_input_ports": [c_void_p, c_size_t, _tensor],
    "dnnl_graph_partition_get_output_ports_num": [c_void_p, POINTER(c_size_t)],
    "dnnl_graph_partition_get_output_ports": [c_void_p, c_size_t, _tensor],
    "dnnl_graph_compiled_partition_create": [_new, c_void_p],
    "dnnl_graph_compiled_partition_destroy": [c_void_p],
    "dnnl_graph_partition_compile":
        [c_void_p, c_void_p, c_size_t, _tensors, c_size_t, _tensors, c_void_p],
    "dnnl_graph_compiled_partition_query_logical_tensor": [c_void_p, c_size_t, _tensor],
    "dnnl_graph_tensor_create": [_new, _tensor, c_void_p, c_void_p],
    "dnnl_graph_tensor_destroy": [c_void_p],
    "dnnl_graph_compiled_partition_execute":
        [c_void_p, c_void_p, c_size_t, _new, c_size_t, _new],
}  # fmt: skip


class Library:
    """The Graph functions of one libdnnl; `call` raises `StatusError` unless one succeeds."""

    def __init__(self, path: str) -> None:
        self._functions = ctypes.CDLL(path)
        for name, arguments in _PROTOTYPES.items():
            function = getattr(self._functions, name)
            function.restype, function.argtypes = c_int32, arguments

    def call(self, name: str, *arguments: Any) -> None:
        """Call `dnnl_{name}`."""
        status = getattr(self._functions, f"dnnl_{name}")(*arguments)
        if status:
            raise StatusError(f"dnnl_{name}", status)

    def made(self, held: ExitStack, kind: str, *arguments: Any) -> c_void_p:
        """What `dnnl_{kind}_create` makes, destroyed with `held`."""
        handle = c_void_p()
        self.call(f"{kind}_create", byref(handle), *arguments)
        held.callback(self.call, f"{kind}_destroy", handle)
        return handle

    def ports(self, partition: c_void_p, side: str) -> list[Tensor]:
        """The "input" or "output" ports of a partition."""
        count = c_size_t()
        self.call(f"graph_partition_get_{side}_ports_num", partition, byref(count))
        ports = (Tensor * count.value)()
        self.call(f"graph_partition_get_{side}_ports", partition, count, ports)
        return list(ports)


@cache
def library(path: str) -> Library:
    """The library at a path, loaded once."""
    return Library(path)


def run(path: str, graph: Mapping[str, Any], arrays: Mapping[int, Array]) -> dict[str, Any]:
    """A described graph run by the library: arrays by id, and the ops of every partition.

    `graph` is what `upconv.onednn_graph.library` writes: "policy", "ops", "outputs".
    Raises `StatusError` where the library refuses, if it does not abort.
    """
    functions = library(path)
    with ExitStack() as held:
        engine = functions.made(held, "engine", CPU, 0)
        stream = functions.made(held, "stream", engine, IN_ORDER)
        partitions = _partitions(functions, held, graph)
        data = {id_: np.ascontiguousarray(array) for id_, array in arrays.items()}
        known: dict[int, Tensor] = {}
        left = list(partitions)
        while left:
            for partition in left:
                inputs = functions.ports(partition, "input")
                if all(port.id in data for port in inputs):
                    break
            else:
                raise StatusError("the partitions have no order in which they can run", 0)
            left.remove(partition)
            _execute(functions, partition, engine, stream, data, known)
        return {"arrays": {id_: data[id_] for id_ in graph["outputs"]}, "count": len(partitions)}


def _partitions(functions: Library, held: ExitStack, graph: Mapping[str, Any]) -> list[c_void_p]:
    handle = functions.made(held, "graph_graph", CPU)
    for op in graph["ops"]:
        functions.call("graph_add_op", handle, _op(functions, held, op))
    functions.call("graph_graph_finalize", handle)
    functions.call("graph_graph_filter", handle, POLICIES[graph["policy"]])
    count = c_size_t()
    functions.call("graph_graph_get_partition_num", handle, byref(count))
    partitions = (c_void_p * count.value)()
    functions.call("graph_graph_get_partitions", handle, count, partitions)
    found = []
    for address in partitions:
        partition = c_void_p(address)
        held.callback(functions.call, "graph_partition_destroy", partition)
        supported = c_uint8()
        functions.call("graph_partition_is_supported", partition, byref(supported))
        if functions.ports(partition, "output"):  # End has none
            if not supported.value:
                raise StatusError("dnnl_graph_partition_is_supported: no", 3)
            found.append(partition)
    return found


def _op(functions: Library, held: ExitStack, op: Mapping[str, Any]) -> c_void_p:
    handle = functions.made(held, "graph_op", op["id"], KINDS[op["kind"]], op["name"].encode())
    for name, value in op["attributes"].items():
        _set(functions, handle, ATTRIBUTES[name], value)
    for side in ("input", "output"):
        for tensor in op[f"{side}s"]:
            functions.call(f"graph_op_add_{side}", handle, byref(_tensor_of(functions, tensor)))
    return handle


def _set(functions: Library, op: c_void_p, code: int, value: Any) -> None:
    if isinstance(value, str):
        text = value.encode()
        functions.call("graph_op_set_attr_str", op, code, text, len(text) + 1)
    elif isinstance(value, bool):
        functions.call("graph_op_set_attr_bool", op, code, byref(c_uint8(value)), 1)
    elif isinstance(value, float):
        functions.call("graph_op_set_attr_f32", op, code, byref(c_float(value)), 1)
    else:
        numbers = [value] if isinstance(value, int) else list(value)
        array = (c_int64 * len(numbers))(*numbers)
        functions.call("graph_op_set_attr_s64", op, code, array, len(numbers))


def _tensor_of(functions: Library, tensor: Mapping[str, Any]) -> Tensor:
    made, dims = Tensor(), tensor["dims"]
    kind, role = DTYPES[tensor["data_type"]], PROPERTIES[tensor["property_type"]]
    if dims is None:
        arguments = (byref(made), tensor["id"], kind, UNKNOWN_NDIMS, STRIDED, role)
        functions.call("graph_logical_tensor_init", *arguments)
        return made
    sizes = (c_int64 * 12)(*(UNKNOWN_DIM if size is None else size for size in dims))
    name = "graph_logical_tensor_init_with_dims"
    functions.call(name, byref(made), tensor["id"], kind, len(dims), sizes, STRIDED, role)
    return made


def _execute(
    functions: Library,
    partition: c_void_p,
    engine: c_void_p,
    stream: c_void_p,
    data: dict[int, Array],
    known: dict[int, Tensor],
) -> None:
    """Compile and execute one partition; what it makes is put into `data`."""
    inputs, outputs = (functions.ports(partition, side) for side in ("input", "output"))
    for port in inputs:
        described = {
            "id": port.id,
            "data_type": _name(DTYPES, port.data_type),
            "property_type": _name(PROPERTIES, port.property_type),
            "dims": data[port.id].shape,
        }
        known[port.id] = _tensor_of(functions, described)
    with ExitStack() as held:
        compiled = functions.made(held, "graph_compiled_partition", partition)
        tensors = [known[port.id] for port in inputs]
        sides = (len(inputs), _pointers(tensors), len(outputs), _pointers(outputs))
        functions.call("graph_partition_compile", partition, compiled, *sides, engine)
        for port in outputs:
            query = "graph_compiled_partition_query_logical_tensor"
            functions.call(query, compiled, port.id, byref(port))
            shape = tuple(port.dims[: port.ndims])
            data[port.id] = np.zeros(shape, _dtype(_name(DTYPES, port.data_type)))
        buffers = [
            functions.made(held, "graph_tensor", byref(tensor), engine, data[tensor.id].ctypes.data)
            for tensor in (*tensors, *outputs)
        ]
        ins, outs = buffers[: len(inputs)], buffers[len(inputs) :]
        functions.call(
            "graph_compiled_partition_execute",
            compiled, stream, len(ins), _addresses(ins), len(outs), _addresses(outs),
        )  # fmt: skip
        functions.call("stream_wait", stream)


def _pointers(tensors: Sequence[Tensor]) -> Any:
    return (POINTER(Tensor) * len(tensors))(*(ctypes.pointer(tensor) for tensor in tensors))


def _addresses(handles: Sequence[c_void_p]) -> Any:
    return (c_void_p * len(handles))(*(handle.value for handle in handles))


def _name(codes: Mapping[str, int], code: int) -> str:
    return next(name for name, known in codes.items() if known == code)


def _dtype(name: str) -> np.dtype[Any]:
    """16-bit floats are carried as what they are in memory; bfloat16 as its bits."""
    return np.dtype({"f32": "f4", "f16": "f2", "bf16": "u2", "s32": "i4"}[name])
