"""Layers that `upconv bench` measures, and the engines and libraries that compute them.

The layers come from `layers.json` in this folder, or from a user's file: a JSON object whose
"layers" is a list of objects with the fields of `Layer`. An invalid layer raises a `FileError`
that names the file, layer and field.

Each library is imported only inside its function. All libraries get the same arrays and prepare
their weights before the timing starts. PyTorch runs in both memory orders, under inference_mode.
ONNX Runtime and OpenVINO run as in `upconv optimize`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.random  # before the first line of progress: while it loads, Ctrl-C may be lost

from .. import memory, testing
from ..argument_checks import boolean
from ..arrays import Array
from ..dialects import arguments
from ..engines import load
from ..errors import ArgumentError, EngineRefusal, FileError, MemoryLimitError, brief
from ..execution import PreparedCall
from ..files import opened, reported
from ..geometry import LIMIT, convolved, padded
from ..problem import Direction, DType, Problem
from ..properties import cached_property
from ..shape_checks import Signature

_BUILT_IN = Path(__file__).with_name("layers.json")
_LEAST = {"p": -LIMIT, "op": 0}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer: batch, channels, spatial size, groups, and for each axis kernel, stride, padding,
    output padding and dilation. `conv`: whether it is an ordinary convolution."""

    name: str
    n: int
    ic: int
    oc: int
    size: tuple[int, ...]
    k: tuple[int, ...]
    s: tuple[int, ...]
    p: tuple[int, ...]
    op: tuple[int, ...]
    d: tuple[int, ...]
    g: int
    conv: bool = False

    @property
    def keywords(self) -> dict[str, Any]:
        """Keywords of `upconv.conv_transpose`."""
        names = {"stride": "s", "padding": "p", "output_padding": "op", "dilation": "d"}
        return {**{word: getattr(self, key) for word, key in names.items()}, "groups": self.g}

    def problem(self, dtype: DType, direction: Direction = Direction.FORWARD) -> Problem:
        """Return the problem of the result, with a bias, or of a gradient.

        Raises `ArgumentError` if the geometry is invalid.
        """
        columns = [self.size, self.k, self.s, self.d, self.p, self.p]
        channels, bias = (self.ic, self.oc), direction is Direction.FORWARD
        if self.conv:  # an ordinary convolution is the input gradient of its transpose
            axes = tuple(convolved(*axis) for axis in zip(*columns, strict=True))
            channels, direction = channels[::-1], _OF_CONV[direction]
        else:
            axes = tuple(padded(*axis) for axis in zip(*columns, self.op, strict=True))
        return Problem(direction, axes, self.n, *channels, self.g, dtype, bias=bias)


_OF_CONV = {
    Direction.FORWARD: Direction.INPUT_GRAD,
    Direction.INPUT_GRAD: Direction.FORWARD,
    Direction.WEIGHT_GRAD: Direction.WEIGHT_GRAD,
}


def read(path: Path = _BUILT_IN) -> list[Layer]:
    """Read the layers of a file, by default upconv's own; raises `FileError`."""
    with reported(str(path), "read"), opened(path) as file:
        data = file.read()
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is not JSON: {error}") from None
    entries = document.get("layers") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise FileError(f'{path}: expected an object whose "layers" is a list of layers.')
    layers: dict[str, Layer] = {}
    for i, entry in enumerate(entries):
        layer = _layer(entry, f"{path}: layers[{i}]")
        if layer.name in layers:
            raise FileError(f"{path}: name {layer.name!r} is used twice; expected each name once.")
        layers[layer.name] = layer
    return list(layers.values())


def _layer(entry: object, where: str) -> Layer:
    if not isinstance(entry, dict):
        raise FileError(f"{where} is {brief(entry)}; expected an object.")
    entry = {"op": 0, "d": 1, "g": 1, "conv": False} | entry
    wanted = [field.name for field in fields(Layer)]
    for key in {*wanted} ^ {*entry}:
        fault = "missing" if key in wanted else "unknown"
        raise FileError(f"{where}: {brief(key)} is {fault}; expected {', '.join(wanted)}.")
    name, size = entry["name"], entry["size"]
    if not isinstance(name, str) or not 0 < len(name) <= 64 or not name.isprintable():
        raise FileError(f"{where}: 'name' is {brief(name)}; expected 1 to 64 printable characters.")
    where = f"{where} ({name})"
    if not isinstance(size, list) or not 1 <= len(size) <= 8:
        raise FileError(f"{where}: 'size' is {brief(size)}; expected a list of 1 to 8 integers.")
    try:
        single = {key: arguments.integer(key, entry[key], low=1) for key in ("n", "ic", "oc", "g")}
        per_axis = {
            key: arguments.per_axis(key, entry[key], len(size), _LEAST.get(key, 1), repeated=True)
            for key in ("size", "k", "s", "p", "op", "d")
        }
        conv = boolean("conv", entry["conv"])
        layer = Layer(name=name, conv=conv, **single, **per_axis)
        problem = layer.problem(DType.FLOAT64)
        if not prod(problem.y_shape):
            raise ArgumentError("'p'", str(layer.p), "less, because no output is left")
        memory.require(2 * problem.nbytes, "'size': measuring this layer")
    except (ArgumentError, MemoryLimitError) as error:
        raise FileError(f"{where}: {error}") from None
    return layer


@dataclass(frozen=True)
class Case:
    """A layer in one direction, with data in NCX and IOX from a fixed seed."""

    layer: Layer
    direction: Direction
    dtype: DType

    @cached_property
    def problem(self) -> Problem:
        """The problem to solve."""
        return self.layer.problem(self.dtype, self.direction)

    @property
    def fields(self) -> dict[str, Any]:
        """Fields of the JSON document."""
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
        """Random operands; `before` is NaN, so that an unwritten element counts as wrong."""
        operands = testing.operands(self.problem, seed=7)
        operands.before.fill(np.nan)
        return operands

    @cached_property
    def expected(self) -> Array:
        """The result of the reference engine in float64."""
        operands, wide = self.operands, self.problem.replace(dtype=DType.FLOAT64)
        arrays = (operands.a, operands.b, operands.bias, None, operands.before)
        exact = (None if array is None else array.astype(np.float64) for array in arrays)
        return testing.compute(load("reference"), wide, testing.Operands(*exact))  # type: ignore[arg-type]

    @property
    def tolerance(self) -> float:
        """Largest `error` that rounding of the sums and of the stored result explains."""
        return testing.tolerance(self.problem) + self.problem.dtype.epsilon

    def error(self, result: Array) -> float:
        """Return the largest |result - expected| over the largest |expected|, or inf."""
        if result.shape != self.expected.shape:
            return float("inf")
        largest = float(np.abs(self.expected).max()) or 1.0
        worst = float(np.abs(result.astype(np.float64) - self.expected).max()) / largest
        return worst if np.isfinite(worst) else float("inf")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A computation of a case: `run` runs it once, and `array` converts its result to NumPy.

    group: the library, which may have several candidates. workspace_bytes: None if unknown.
    """

    name: str
    group: str
    run: Callable[[], Any]
    array: Callable[[Any], Array] = np.asarray
    workspace_bytes: int | None = None
    require: Callable[[], None] = lambda: None
    """Raises `EngineError` if an engine other than the named one computed the latest run."""


def engine(name: str, case: Case, threads: int) -> Candidate:
    """Return an engine of upconv as a candidate; raises `EngineRefusal`.

    A forward candidate packs its weight beforehand. A gradient candidate packs it in every call,
    because training changes the weight.
    """
    chosen, operands, result = load(name), case.operands, case.operands.before.copy()
    refusal = chosen.refuses(case.problem)
    if refusal is not None:
        raise EngineRefusal(refusal)
    call = PreparedCall(Signature.whole(case.problem), chosen, threads, tune=False)
    packed = call.pack(operands.b) if case.direction is Direction.FORWARD else None
    run = partial(call.run, result, operands.a, operands.b)
    if packed is not None:
        run = partial(packed.run, result, operands.a, operands.bias)

    def require() -> None:
        weight = packed or (call.pack(operands.b) if call.packs else call)
        testing.require_engine(case.layer.name, name, call, weight)

    nbytes = call.entry().primitive.workspace_bytes
    return Candidate(name, name, run, lambda _: result, nbytes, require)


def _torch(case: Case, threads: int) -> Sequence[Candidate]:
    import torch

    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    candidates = [_torch_candidate("torch", case, torch.contiguous_format)]
    last = {2: torch.channels_last, 3: torch.channels_last_3d}.get(len(case.layer.size))
    if last is not None:
        candidates.append(_torch_candidate("torch-last", case, last))
    return candidates


def _torch_candidate(name: str, case: Case, order: Any) -> Candidate:
    import torch

    def tensor(array: Array) -> Any:  # PyTorch cannot read bfloat16 from NumPy
        kind = getattr(torch, case.dtype.value)
        return torch.from_numpy(array.astype(np.float64)).to(kind, memory_format=order)

    layer, operands = case.layer, case.operands
    a, b = tensor(operands.a), tensor(operands.b)
    if operands.bias is not None:
        bias = torch.from_numpy(operands.bias.astype(np.float64)).to(a.dtype)
        function = getattr(torch.nn.functional, f"conv_transpose{len(layer.size)}d")
        run = lambda: function(a, b, bias, layer.s, layer.p, layer.op, layer.g, layer.d)  # noqa: E731
    else:
        at = int(case.direction is Direction.WEIGHT_GRAD)
        shaped = torch.empty(case.problem.result_shape, dtype=a.dtype)  # its values are not read
        x, w = (b, shaped) if at else (shaped.contiguous(memory_format=order), b)
        sizes = (layer.s, layer.p, layer.d, True, layer.op, layer.g, [at == 0, at == 1, False])
        run = lambda: torch.ops.aten.convolution_backward(a, x, w, [layer.oc], *sizes)[at]  # noqa: E731
    return Candidate(name, "torch", torch.inference_mode()(run), lambda y: y.double().numpy())


def _onnx(case: Case, runtime: str, threads: int) -> Sequence[Candidate]:
    """Return the candidates of an ONNX runtime that runs in this process."""
    from ..onnx.runtimes import Runtime
    from ..onnx.runtimes.backends import BACKENDS

    chosen = replace(Runtime.parse(runtime), threads=threads)
    model, feeds = BACKENDS[chosen.name](_onnx_model(case), chosen, ["y"]), {"x": case.operands.a}
    return [Candidate(chosen.name, chosen.name, model.bind(feeds), lambda _: model.run(feeds)[0])]


def _onnx_model(case: Case) -> bytes:
    from onnx import numpy_helper, parser

    if case.direction is not Direction.FORWARD or case.dtype is not DType.FLOAT32:
        raise EngineRefusal("bench measures it only forward and in float32")
    layer, operands = case.layer, case.operands
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["": 17]>
        layer (float{[*case.problem.x_shape]} x) => (float{[*case.problem.y_shape]} y) {{
            y = ConvTranspose <strides = {[*layer.s]}, pads = {[*layer.p, *layer.p]}, output_padding
                = {[*layer.op]}, dilations = {[*layer.d]}, group = {layer.g}> (x, w, b)
        }}""")
    for name, array in (("w", operands.b), ("b", operands.bias)):
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model.SerializeToString()  # type: ignore[no-any-return]


PEERS: dict[str, Callable[[Case, int], Sequence[Candidate]]] = {
    "torch": _torch,
    "onnxruntime": lambda case, threads: _onnx(case, "onnxruntime", threads),
    "openvino": lambda case, threads: _onnx(case, "openvino:f32", threads),
}
"""Distributions by name, with functions that return candidates for a case and a thread count."""
