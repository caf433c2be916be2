"""`upconv bench --device cuda`: compare upconv's cuDNN engine with PyTorch's own call.

Both compute the same arrays in the same memory order. Results are verified against PyTorch in
float64 before they are timed. Both sides use their fastest measured plan: upconv by tuning,
PyTorch by `torch.backends.cudnn.benchmark`. Each side has two times per call:

    on the device    ten calls in a replayed CUDA graph: GPU time without CPU overhead
    a call           successive calls between two events: time in an eager program

The peaks are the rates of a matrix product in the measured type and of a copy on this GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from statistics import geometric_mean
from typing import Any, NamedTuple, NoReturn

from .. import execution, testing
from ..devices import library
from ..engines.cudnn.engine import Cudnn
from ..errors import EngineMissing, EngineRefusal, MemoryLimitError
from ..geometry import Axis
from ..problem import DataLayout, Direction, DType, Problem
from ..terminal import aligned, shown
from ..timing import format_seconds
from . import report
from .bench_layers import Layer
from .exits import FINDINGS

_CALLS, _REPLAYS, _ROUNDS, _EAGER = 10, 2, 3, 20


@dataclass(slots=True)
class Line:
    """Times of one layer in one memory order, with the fields of the JSON document.

    seconds, torch_seconds: best time of a call on the device. call_seconds, torch_call_seconds:
    best time of an eager call. error: the largest error, as a multiple of the allowed rounding.
    """

    layer: str
    layout: str
    plan: str = ""
    error: float | None = None
    seconds: float | None = None
    torch_seconds: float | None = None
    call_seconds: float | None = None
    torch_call_seconds: float | None = None
    flops: float | None = None
    bandwidth: float | None = None
    reason: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the error exceeds what rounding explains."""
        return self.error is not None and not self.error <= 1


def measure(
    layers: Sequence[Layer], direction: Direction, dtype: DType, *, tf32: bool, output_format: Any
) -> NoReturn:
    """Measure layers in both memory orders, print the table or the document, and end."""
    torch = _torch()
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    lines = []
    with shown(None) as step:
        for number, layer in enumerate(layers, 1):
            step(f"{layer.name}: verifying and timing", number, len(layers))
            for layout in DataLayout:
                problem = layer.problem(dtype, direction).replace(layout=layout, tf32=tf32)
                lines.append(_line(torch, layer, problem))
    peak = _peak(torch, dtype)
    document = {
        "gpu": torch.cuda.get_device_name(0),
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "direction": direction,
        "dtype": "tf32" if tf32 else dtype.value,
        "peak_flops": peak[0],
        "peak_bandwidth": peak[1],
        "layers": lines,
        "geometric_means": dict(_means(lines)),
    }
    table = aligned(*_table(lines, peak), left=2)
    code = FINDINGS if any(line.wrong for line in lines) else 0
    report.finish("bench", output_format, document, table, code=code)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise EngineMissing("bench --device cuda needs PyTorch: install it") from None
    Cudnn().fingerprint()  # raises if there is no GPU or no cuDNN
    return torch


def _line(torch: Any, layer: Layer, problem: Problem) -> Line:
    line = Line(layer.name, problem.layout.value)
    try:
        _fill(torch, line, problem)
    except (EngineRefusal, MemoryLimitError, torch.cuda.OutOfMemoryError) as error:
        line.reason = " ".join(str(error).split())
    torch.cuda.empty_cache()
    return line


def _fill(torch: Any, line: Line, problem: Problem) -> None:
    tensors = _Tensors.random(problem)
    ours, line.plan = _ours(problem, tensors)
    theirs = _peer(torch, problem, tensors)
    ours()
    line.error = _error(torch, problem, tensors)
    line.seconds = line.torch_seconds = line.call_seconds = line.torch_call_seconds = inf
    seconds = library("torch").seconds
    for _ in range(_ROUNDS):
        line.seconds = min(line.seconds, _on_device(torch, ours))
        line.torch_seconds = min(line.torch_seconds, _on_device(torch, theirs))
        line.call_seconds = min(line.call_seconds, seconds(ours, _EAGER, 0))
        line.torch_call_seconds = min(line.torch_call_seconds, seconds(theirs, _EAGER, 0))
    line.flops = 2 * problem.multiply_adds / line.seconds
    line.bandwidth = problem.nbytes / line.seconds


class _Tensors(NamedTuple):
    """Random operands of a problem on the device, and the memory of its result."""

    a: Any
    b: Any
    bias: Any
    out: Any

    @classmethod
    def random(cls, problem: Problem) -> _Tensors:
        drawn, place = testing.operands(problem), library("torch").from_host
        arrays = cls(drawn.a, drawn.b, drawn.bias, drawn.before)
        return arrays.changed(lambda array: place(array, 0))

    def changed(self, change: Callable[[Any], Any]) -> _Tensors:
        """Return these tensors with `change` applied to each."""
        return _Tensors(*(None if tensor is None else change(tensor) for tensor in self))


def _ours(problem: Problem, tensors: _Tensors) -> tuple[Callable[[], None], str]:
    """Return a call of the fastest plan, with a packed weight, and the plan's description."""
    arrays = tensors.changed(lambda tensor: library("torch").array("x", tensor))
    engine = Cudnn(tune="limited_workspace").bound(library("torch"), 0)
    call = execution.prepared_problem(problem, engine, 1)
    primitive: Any = call.entry().primitive
    b = primitive.pack(arrays.b) if call.packs else arrays.b
    return lambda: primitive.run(arrays.out, arrays.a, b, arrays.bias), primitive.description


def _error(torch: Any, problem: Problem, tensors: _Tensors) -> float:
    """Return the largest difference from PyTorch in float64, over the allowed rounding."""
    wide = tensors.changed(lambda tensor: tensor.double())
    value = _peer(torch, problem, wide)()
    magnitude = _peer(torch, problem, wide.changed(lambda tensor: tensor.abs()))()
    result = _view(problem, tensors.out)
    # A separate kernel may add the bias; it stores the sums once more.
    bare = _peer(torch, problem, wide._replace(bias=None))()
    stored = value.abs() + bare.abs()
    allowed = testing.tolerance(problem) * magnitude + problem.dtype.epsilon * stored
    worst = ((result.double() - value).abs() / (allowed + 1e-30)).max()
    return float(worst)


def _view(problem: Problem, tensor: Any) -> Any:
    """Return data or a weight as PyTorch's call expects it.

    With channels last, a single spatial axis becomes two.
    """
    if tensor.shape != problem.weight_shape or problem.direction is not Direction.WEIGHT_GRAD:
        tensor = tensor.permute(problem.layout.to_ncx(problem.rank))
    return tensor.unsqueeze(2) if _widened(problem) else tensor


def _widened(problem: Problem) -> bool:
    return problem.rank == 1 and problem.layout is DataLayout.NXC


def _peer(torch: Any, problem: Problem, tensors: _Tensors) -> Callable[[], Any]:
    """Return PyTorch's call on the same memory, with the weight in the memory order of the data."""
    last = problem.layout is DataLayout.NXC
    form = {4: torch.channels_last, 5: torch.channels_last_3d}

    def weight(tensor: Any) -> Any:
        wide = tensor.unsqueeze(2) if _widened(problem) else tensor
        return wide.contiguous(memory_format=form[wide.dim()]) if last else wide

    axes = (Axis(1, 1), *problem.axes) if _widened(problem) else problem.axes
    strides, dilations = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    pads = [axis.crop_begin for axis in axes]
    extra = [axis.crop_begin - axis.crop_end for axis in axes]
    aten, groups = torch.ops.aten, problem.groups
    first = _view(problem, tensors.a)
    if problem.direction is Direction.WEIGHT_GRAD:
        x = _view(problem, tensors.b)
        like = weight(tensors.a.new_empty(problem.weight_shape))
        gradient = None, strides, pads, dilations, True, extra, groups, (False, True, False)
        return lambda: aten.convolution_backward(first, x, like, *gradient)[1]
    forward = problem.direction is Direction.FORWARD
    geometry = strides, pads, dilations, forward, extra if forward else [0] * len(pads), groups
    w = weight(tensors.b)
    return lambda: aten.convolution(first, w, tensors.bias, *geometry)


def _on_device(torch: Any, call: Callable[[], object]) -> float:
    """Return the seconds per call in a CUDA graph of several calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(_CALLS):
            call()
    graph.replay()
    return library("torch").seconds(graph.replay, _REPLAYS, 0) / _CALLS


def _peak(torch: Any, dtype: DType) -> tuple[float, float]:
    """Return the FLOP/s of a matrix product, and the bytes per second that a copy moves."""
    kind = getattr(torch, dtype.value)
    a, b = (torch.randn(8192, 8192, device="cuda").to(kind) for _ in range(2))
    source = torch.empty(1 << 29, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    seconds = library("torch").seconds
    torch.mm(a, b)
    product = min(seconds(lambda: torch.mm(a, b), 3, 0) for _ in range(3))
    copy = min(seconds(lambda: target.copy_(source), 3, 0) for _ in range(3))
    return 2 * 8192**3 / product, 2 * source.numel() / copy


def _means(lines: Sequence[Line]) -> Iterator[tuple[str, float]]:
    """Yield the geometric means of PyTorch's time over upconv's, for each memory order."""
    for layout in DataLayout:
        rows = [r for r in lines if r.layout == layout.value and r.seconds and r.torch_seconds]
        if rows:
            yield layout.value, geometric_mean(r.torch_seconds / r.seconds for r in rows)  # type: ignore[operator]
            calls = (r.torch_call_seconds / r.call_seconds for r in rows)  # type: ignore[operator]
            yield f"{layout.value} call", geometric_mean(calls)


def _table(lines: Sequence[Line], peak: tuple[float, float]) -> tuple[list[list[str]], list[str]]:
    rows = []
    for r in lines:
        if r.seconds is None or r.torch_seconds is None:
            rows.append([r.layer, r.layout, *["-"] * 7, r.reason[:60]])
            continue
        flops, bandwidth = r.flops or 0.0, r.bandwidth or 0.0
        of_peak = max(flops / peak[0], bandwidth / peak[1])
        eager = (r.torch_call_seconds or 0.0) / (r.call_seconds or 1.0)
        rows.append([
            r.layer, r.layout, format_seconds(r.seconds), format_seconds(r.torch_seconds),
            f"{r.torch_seconds / r.seconds:.2f}", f"{eager:.2f}", f"{flops / 1e12:.1f}",
            f"{bandwidth / 1e9:.0f}", f"{of_peak:.0%}",
            "WRONG" if r.wrong else f"{r.error or 0.0:.1g}",
        ])  # fmt: skip
    for name, mean in _means(lines):
        where = ("", f"{mean:.2f}") if name.endswith("call") else (f"{mean:.2f}", "")
        rows.append(["geometric mean", name.split()[0], "", "", *where, "", "", "", ""])
    headings = ["layer", "layout", "device", "PyTorch", "x PyTorch", "x a call", "TFLOP/s"]
    return rows, [*headings, "GB/s", "of peak", "error"]
