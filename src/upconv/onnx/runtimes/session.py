"""A model in a runtime, which lives in a worker: what it takes and gives, runs and times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from ... import memory
from ...arrays import Array
from ...errors import ArgumentError, DTypeError, EngineError, EngineRefusal, ShapeError, brief
from ..models import save, to_proto
from .timing import Rounds
from .worker import Worker

if TYPE_CHECKING:
    from .runtime import Runtime

_INLINE = (2 << 30) - (64 << 20)
"""Bytes of weights up to which a model is sent as one message; protobuf has none of 2 GiB."""


class Session:
    """A model in a runtime. Close it, or use it in a `with`.

    `inputs` and `outputs` are what the model takes and gives, in its order.
    """

    def __init__(self, model: ir.Model, runtime: Runtime, worker: Worker, held: ExitStack) -> None:
        self.runtime, self.worker, self.held = runtime, worker, held
        self.inputs, self.outputs = inputs_of(model), tuple(model.graph.outputs)
        names = [str(value.name) for value in self.outputs]
        size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value)
        memory.require(2 * size, "copies of the model for a runtime")
        source: bytes | str
        if size <= _INLINE:
            source = to_proto(model).SerializeToString()
        else:
            folder = held.enter_context(TemporaryDirectory(prefix="upconv-"))
            source = str(save(model, Path(folder) / "model.onnx")[0])
        self._number: int | None = self._call(
            EngineRefusal, "does not take the model", "open", source, runtime, names
        )
        held.callback(self._release)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name: arrays (a sequence is a list of them).

        feeds: an array for every input, of its dtype and shape.

        Raises `ArgumentError` for feeds that do not fit, `EngineError` if the runtime fails.
        """
        arrays = self._call(EngineError, "failed", "run", self._open(), fitting(self.inputs, feeds))
        return dict(zip((str(value.name) for value in self.outputs), arrays, strict=True))

    def bind(self, feeds: Mapping[str, Any]) -> None:
        """Take these inputs for `timed`; the model has run on them once when this returns."""
        self._call(EngineError, "failed", "bind", self._open(), fitting(self.inputs, feeds))

    def report(self) -> dict[str, Any]:
        """Of the runtime "upconv": `upconv.onnx.Session.report`, as JSON."""
        told: dict[str, Any] = self._call(EngineError, "failed", "report", self._open())
        return told

    def close(self) -> None:
        """Give the model's memory back; a closed session raises `EngineError`."""
        self.held.close()
        self._number = None

    def _open(self) -> int:
        if self._number is None:
            raise EngineError(f"This session of {self.runtime} is closed. Make another one.")
        return self._number

    def _call(self, kind: type[EngineError], what: str, method: str, *arguments: Any) -> Any:
        try:
            return self.worker.call(method, *arguments)
        except EngineError as error:
            raised = type(error) if isinstance(error, EngineRefusal) else kind
            raise raised(f"{self.runtime} {what}: {error}") from None

    def _release(self) -> None:
        if self.worker.usable:
            self.worker.call("close", self._number)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def timed(sessions: Sequence[Session], seconds: float) -> Rounds:
    """Interleaved times of sessions of one worker, each bound to its inputs.

    seconds: of all together; slow models take longer.

    Raises `EngineError` where one of them fails.
    """
    numbers = [session._number for session in sessions]
    rounds: Rounds = sessions[0].worker.call("timed", numbers, seconds, times=10 * len(sessions))
    return rounds


def inputs_of(model: ir.Model) -> tuple[ir.Value, ...]:
    """What a model is fed: its inputs that have no value of their own."""
    weights = model.graph.initializers
    return tuple(value for value in model.graph.inputs if value.name not in weights)


def fitting(inputs: Sequence[ir.Value], feeds: Mapping[str, Any]) -> dict[str, Array]:
    """`feeds` in the order of the inputs, C-contiguous.

    Raises `ArgumentError` for missing and unknown names, `DTypeError` and `ShapeError` for arrays
    that are not what the model declares.
    """
    names = [str(value.name) for value in inputs]
    for name in feeds:
        if name not in names:
            listed = ", ".join(map(brief, names)) or "none"
            raise ArgumentError("feeds", f"with {brief(name)}", f"the model's inputs: {listed}")
    return {str(value.name): _fitting(value, feeds) for value in inputs}


def _fitting(value: ir.Value, feeds: Mapping[str, Any]) -> Array:
    name = str(value.name)
    argument = f"feeds[{brief(name)}]"
    if name not in feeds:
        raise ArgumentError(argument, "missing", f"an array, {declared(value)}")
    array: Array = np.ascontiguousarray(feeds[name]).reshape(np.shape(feeds[name]))
    dtype = dtype_of(value)
    if dtype is not None and array.dtype != dtype:
        raise DTypeError(argument, f"an array of {array.dtype}", str(dtype), "Convert it.")
    if not fits(array.shape, value.shape):
        raise ShapeError(f"{argument}.shape", str(array.shape), declared(value))
    return array


def dtype_of(value: ir.Value) -> np.dtype[Any] | None:
    """NumPy's dtype of a tensor of numbers, None for anything else."""
    if not isinstance(value.type, ir.TensorType) or value.dtype in (
        None, ir.DataType.UNDEFINED, ir.DataType.STRING
    ):  # fmt: skip
        return None
    return np.dtype(value.dtype.numpy())


def declared(value: ir.Value) -> str:
    """A value's type and shape as errors show them, such as "float32[N,3,?]"."""
    dims = None if value.shape is None else [_dim(dim) for dim in value.shape]
    shape = "..." if dims is None else ",".join("?" if d is None else str(d) for d in dims)
    return f"{dtype_of(value) or value.type or 'any type'}[{shape}]"


def _dim(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value


def fits(shape: Sequence[int], declared: ir.Shape | None) -> bool:
    """Whether a shape is one that the declared one allows; symbols are not compared.

    >>> fits((2, 3), ir.Shape(["N", 3])), fits((2, 3), ir.Shape([None, 4]))
    (True, False)
    """
    if declared is None:
        return True
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(not isinstance(d, int) or s == d for s, d in pairs)
