"""One operation by libdnnl's own Graph API, in a child process, since the library may abort.

Codes and logical tensors follow dnnl_graph_types.h, which is the same from 3.2 to 3.13.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from ctypes import POINTER, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np

KINDS = {
    "Convolution": 13, "ConvolutionBackwardData": 14, "ConvolutionBackwardWeights": 15,
    "ConvTranspose": 16, "ConvTransposeBackwardData": 17, "ConvTransposeBackwardWeights": 18,
}  # fmt: skip
ATTRIBUTES = {
    "groups": 50, "dilations": 65, "dst_shape": 66, "output_padding": 69, "pads_begin": 70,
    "pads_end": 71, "strides": 75, "weights_shape": 76, "auto_pad": 129, "data_format": 131,
    "weights_format": 135,
}  # fmt: skip
STATUS = {2: "invalid_arguments", 3: "unimplemented", 5: "runtime_error", 7: "invalid_graph",
          8: "invalid_graph_op", 9: "invalid_shape", 10: "invalid_data_type"}  # fmt: skip
DTYPES = {"float16": 1, "bfloat16": 2, "float32": 3, "int32": 4}
STRIDED, CPU, IN_ORDER, DEBUG = 2, 1, 1, 2


class Refused(Exception):
    """The library refuses an operation, or ends its process; the message says why."""


class Library:
    """A child process in which the library computes; a new one replaces an ended one."""

    def __init__(self, path: str) -> None:
        self._path, self._child = path, None

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._pipe.close()  # this ends the child
            self._child.join()

    def run(
        self, kind: str, arrays: list[np.ndarray], attributes: dict[str, Any], result: Any
    ) -> np.ndarray:
        """Return the result, of shape `result`; the library infers it for None."""
        if self._child is None:
            context = multiprocessing.get_context("spawn")
            self._pipe, theirs = context.Pipe()
            self._child = context.Process(target=_serve, args=(theirs, self._path), daemon=True)
            self._child.start()
            theirs.close()
        names = [array.dtype.name for array in arrays]
        plain = [array.view(f"u{array.itemsize}") for array in map(np.ascontiguousarray, arrays)]
        try:
            self._pipe.send((kind, plain, names, attributes, result))
            answer = self._pipe.recv()
        except (EOFError, OSError):  # the child ends, or has ended
            self._pipe.close()
            self._child.join()
            code, self._child = self._child.exitcode, None
            raise Refused(signal.Signals(-code).name if code < 0 else f"exit {code}") from None
        if isinstance(answer, str):
            raise Refused(answer)
        return answer.view(arrays[0].dtype)


def _serve(pipe: Any, path: str) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libstdc++ says "terminate called ..."
    graph = _Graph(path)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(graph.run(*request))
        except Refused as refusal:
            pipe.send(str(refusal))


class _Tensor(ctypes.Structure):
    """dnnl_graph_logical_tensor_t."""

    _fields_ = (
        ("id", c_size_t), ("ndims", c_int32), ("dims", c_int64 * 12), ("data_type", c_int32),
        ("property_type", c_int32), ("layout_type", c_int32), ("strides", c_int64 * 12),
    )  # fmt: skip


class _Graph:
    """The library's handles in the child; they are never destroyed, since the process ends soon."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self._engine = self._made("engine_create", CPU, c_size_t(0))
        self._stream = self._made("stream_create", self._engine, IN_ORDER)

    def run(self, kind: str, arrays: Any, names: Any, attributes: Any, result: Any) -> Any:
        dtypes = [DTYPES[name] for name in names]
        op = self._made("graph_op_create", c_size_t(1), KINDS[kind], c_char_p(b"op"))
        for name, value in attributes.items():
            self._set(op, ATTRIBUTES[name], value)
        tensors = [
            self._tensor(i, dtype, array.shape)
            for i, (dtype, array) in enumerate(zip(dtypes, arrays, strict=True))
        ]
        output = self._tensor(9, dtypes[0], result)
        for tensor in tensors:
            self._call("graph_op_add_input", op, byref(tensor))
        self._call("graph_op_add_output", op, byref(output))
        partition = self._partition(op)
        compiled = self._made("graph_compiled_partition_create", partition)
        pointers = (POINTER(_Tensor) * len(tensors))(*map(ctypes.pointer, tensors))
        target = (POINTER(_Tensor) * 1)(ctypes.pointer(output))
        self._call("graph_partition_compile", partition, compiled, c_size_t(len(tensors)), pointers,
                   c_size_t(1), target, self._engine)  # fmt: skip
        query = "graph_compiled_partition_query_logical_tensor"
        self._call(query, compiled, c_size_t(9), byref(output))
        made = np.zeros(output.dims[: output.ndims], arrays[0].dtype)
        inputs = [self._data(*pair) for pair in zip(tensors, arrays, strict=True)]
        self._call("graph_compiled_partition_execute", compiled, self._stream,
                   c_size_t(len(inputs)), (c_void_p * len(inputs))(*(i.value for i in inputs)),
                   c_size_t(1), (c_void_p * 1)(self._data(output, made).value))  # fmt: skip
        self._call("stream_wait", self._stream)
        return made

    def _partition(self, op: c_void_p) -> c_void_p:
        graph = self._made("graph_graph_create", CPU)
        self._call("graph_add_op", graph, op)
        self._call("graph_graph_finalize", graph)
        self._call("graph_graph_filter", graph, DEBUG)
        partitions = (c_void_p * 1)()
        self._call("graph_graph_get_partitions", graph, c_size_t(1), partitions)
        return c_void_p(partitions[0])

    def _tensor(self, number: int, dtype: int, shape: Any) -> _Tensor:
        made = _Tensor()
        if shape is None:
            self._call("graph_logical_tensor_init", byref(made), c_size_t(number), dtype, -1,
                       STRIDED, 0)  # fmt: skip
        else:
            self._call("graph_logical_tensor_init_with_dims", byref(made), c_size_t(number), dtype,
                       len(shape), (c_int64 * 12)(*shape), STRIDED, 0)  # fmt: skip
        return made

    def _data(self, tensor: _Tensor, array: np.ndarray) -> c_void_p:
        return self._made("graph_tensor_create", byref(tensor), self._engine,
                          c_void_p(array.ctypes.data))  # fmt: skip

    def _set(self, op: c_void_p, code: int, value: Any) -> None:
        if isinstance(value, str):
            text = value.encode()
            self._call("graph_op_set_attr_str", op, code, c_char_p(text), c_size_t(len(text) + 1))
            return
        numbers = [value] if isinstance(value, int) else list(value)
        self._call("graph_op_set_attr_s64", op, code, (c_int64 * len(numbers))(*numbers),
                   c_size_t(len(numbers)))  # fmt: skip

    def _made(self, name: str, *arguments: Any) -> c_void_p:
        handle = c_void_p()
        self._call(name, byref(handle), *arguments)
        return handle

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, f"dnnl_{name}")(*arguments)
        if status:
            raise Refused(STATUS.get(status, str(status)))
