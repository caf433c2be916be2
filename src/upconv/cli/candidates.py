"""Who computes a case: upconv's engines by name, and what users would pick instead, at their best.

A peer is imported inside its function and nowhere else. It gets the same arrays and keeps its
weights prepared outside the timing. PyTorch runs in both memory orders, under inference_mode; ONNX
Runtime and OpenVINO as `upconv optimize` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from .. import testing
from ..arrays import Array
from ..engines import load
from ..errors import EngineRefusal
from ..execution import PreparedCall
from ..problem import Direction, DType, Problem
from ..signatures import Signature
from .layers import Layer


@dataclass(frozen=True)
class Case:
    """A layer in one direction, with data in NCX and IOX from a fixed seed."""

    layer: Layer
    direction: Direction
    dtype: DType

    @cached_property
    def problem(self) -> Problem:
        """The problem to solve."""
        forward = self.direction is Direction.FORWARD
        return self.layer.problem(self.dtype).replace(direction=self.direction, bias=forward)

    @property
    def fields(self) -> dict[str, Any]:
        """What it is, for JSON."""
        return {
            "name": self.layer.name,
            "input_shape": self.problem.x_shape,
            "weight_shape": self.problem.weight_shape,
            "output_shape": self.problem.y_shape,
            **self.layer.keywords,
            "problem": str(self.problem),
            "multiply_adds": self.problem.multiply_adds,
            "tolerance": self.tolerance,
        }

    @property
    def result_bytes(self) -> int:
        """Bytes of the result."""
        return prod(self.problem.result_shape) * self.dtype.itemsize

    @cached_property
    def operands(self) -> testing.Operands:
        """The operands; `before` is NaN, so that nothing left unwritten looks right."""
        given = testing.operands(self.problem, seed=7)
        given.before.fill(np.nan)
        return given

    @cached_property
    def expected(self) -> Array:
        """The result in float64, by the reference engine."""
        given, wide = self.operands, self.problem.replace(dtype=DType.FLOAT64)
        arrays = (given.a, given.b, given.bias, None, given.before)
        exact = (None if array is None else array.astype(np.float64) for array in arrays)
        return testing.compute(load("reference"), wide, testing.Operands(*exact))  # type: ignore[arg-type]

    @property
    def tolerance(self) -> float:
        """The largest `error` that rounding explains: summing, and storing the result."""
        return testing.tolerance(self.problem) + self.problem.dtype.epsilon

    def error(self, result: Array) -> float:
        """The largest |result - expected| over the largest |expected|; inf for another shape."""
        if result.shape != self.expected.shape:
            return float("inf")
        largest = float(np.abs(self.expected).max()) or 1.0
        worst = float(np.abs(result.astype(np.float64) - self.expected).max()) / largest
        return worst if np.isfinite(worst) else float("inf")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way of computing a case: `run` does it once, `array` makes a NumPy array of its result.

    `group` is the library, of which there may be several settings; `workspace_bytes` is None where
    it cannot be asked.
    """

    name: str
    group: str
    run: Callable[[], Any]
    array: Callable[[Any], Array] = np.asarray
    workspace_bytes: int | None = None


def candidates(name: str, case: Case, threads: int) -> Sequence[Candidate]:
    """The settings in which a peer, or an engine of upconv, does a case.

    Raises `EngineRefusal` where it does not, and a peer whatever it likes.
    """
    return PEERS[name](case, threads) if name in PEERS else [_engine(name, case, threads)]


def _engine(name: str, case: Case, threads: int) -> Candidate:
    """An engine; the weight of a result is packed beforehand, that of a gradient in every call, as
    training changes it."""
    chosen, given, result = load(name), case.operands, case.operands.before.copy()
    refusal = chosen.refuses(case.problem)
    if refusal is not None:
        raise EngineRefusal(refusal)
    call = PreparedCall(Signature.whole(case.problem), chosen, threads, tune=False)
    packed = call.pack(given.b) if case.direction is Direction.FORWARD else None

    def run() -> Array:
        if packed is not None:
            packed.run(result, given.a, given.bias)
        else:
            call.run(result, given.a, given.b)
        return result

    return Candidate(name, name, run, workspace_bytes=call.entry().primitive.workspace_bytes)


def _torch(case: Case, threads: int) -> Sequence[Candidate]:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    made = [_torch_candidate("torch", case, torch.contiguous_format)]
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(len(case.layer.size))
    if last is not None:
        made.append(_torch_candidate("torch-last", case, last))
    return made


def _torch_candidate(name: str, case: Case, order: Any) -> Candidate:
    import torch

    def tensor(array: Array) -> Any:  # PyTorch takes no bfloat16 from NumPy, but makes it
        kind = getattr(torch, case.dtype.value)
        return torch.from_numpy(array.astype(np.float64)).to(kind, memory_format=order)

    layer, given = case.layer, case.operands
    a, b = tensor(given.a), tensor(given.b)
    if given.bias is not None:
        bias = torch.from_numpy(given.bias.astype(np.float64)).to(a.dtype)
        function = getattr(torch.nn.functional, f"conv_transpose{len(layer.size)}d")
        run = lambda: function(a, b, bias, layer.s, layer.p, layer.op, layer.g, layer.d)  # noqa: E731
    else:
        at = int(case.direction is Direction.WEIGHT_GRAD)
        wanted = torch.empty(case.problem.result_shape, dtype=a.dtype)  # whose shape alone counts
        x, w = (b, wanted) if at else (wanted.contiguous(memory_format=order), b)
        sizes = (layer.s, layer.p, layer.d, True, layer.op, layer.g, [at == 0, at == 1, False])
        run = lambda: torch.ops.aten.convolution_backward(a, x, w, [layer.oc], *sizes)[at]  # noqa: E731
    return Candidate(name, "torch", torch.inference_mode()(run), lambda y: y.double().numpy())


def _onnx(case: Case, runtime: str, threads: int) -> Sequence[Candidate]:
    """A runtime of ONNX models, in this process."""
    from ..onnx.runtimes import Runtime
    from ..onnx.runtimes.host import backend

    how = replace(Runtime.parse(runtime), threads=threads)
    model, feeds = backend(_onnx_model(case), how, ["y"]), {"x": case.operands.a}
    return [Candidate(how.name, how.name, model.bind(feeds), lambda _: model.run(feeds)[0])]


def _onnx_model(case: Case) -> bytes:
    from onnx import numpy_helper, parser

    if case.direction is not Direction.FORWARD or case.dtype is not DType.FLOAT32:
        raise EngineRefusal("it is measured forward and in float32 only")
    layer, given = case.layer, case.operands
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]>
        layer (float{[*case.problem.x_shape]} x) => (float{[*case.problem.y_shape]} y) {{
            y = ConvTranspose <strides = {[*layer.s]}, pads = {[*layer.p, *layer.p]}, output_padding
                = {[*layer.op]}, dilations = {[*layer.d]}, group = {layer.g}> (x, w, b)
        }}""")
    for name, array in (("w", given.b), ("b", given.bias)):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model.SerializeToString()  # type: ignore[no-any-return]


PEERS: dict[str, Callable[[Case, int], Sequence[Candidate]]] = {
    "torch": _torch,
    "onnxruntime": lambda case, threads: _onnx(case, "onnxruntime", threads),
    "openvino": lambda case, threads: _onnx(case, "openvino:f32", threads),
}
"""Name, which is the distribution's -> its candidates for a case and a number of threads."""
