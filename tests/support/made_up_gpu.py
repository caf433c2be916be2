"""A made-up GPU: cuDNN's operations by their definitions, our kernels on the processor.

Device memory is main memory, so that everything around the library (layouts, crops, windows, ends,
variants) is tested on every machine. Only a real GPU can test the library itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.lib.stride_tricks import as_strided

from upconv import testing
from upconv.devices import DeviceArray
from upconv.engines.copies import Tensor
from upconv.engines.cudnn import elementwise
from upconv.engines.cudnn.elementwise import POINTERS, Move
from upconv.engines.cudnn.moves import Ends, Maybe, Moves
from upconv.engines.cudnn.operation import Convolution, Kind, cannot
from upconv.engines.cudnn.primitive import primitive, variants
from upconv.engines.jit.compile import Code
from upconv.engines.jit.cpu import host
from upconv.engines.jit.emit import Module
from upconv.engines.jit.rows import converted
from upconv.engines.jit.values import I32, I64, PTR
from upconv.errors import EngineRefusal
from upconv.geometry import fitted
from upconv.problem import Direction, Problem
from upconv.testing.oracle import _ACTIVATED


class MadeUpLibrary:
    """NumPy's arrays as if they were on device 0."""

    name = "made up"

    def array(self, argument: str, native: np.ndarray) -> DeviceArray:
        strides = tuple(step // native.itemsize for step in native.strides)
        pointer = native.__array_interface__["data"][0]
        return DeviceArray(self, native, native.shape, strides, native.dtype, pointer, 0)

    def empty(self, shape, dtype, device):
        room = np.full(
            int(np.prod(shape)) * dtype.itemsize + 64, 0xFF, np.uint8
        )  # NaN in all types
        start = -room.__array_interface__["data"][0] % 64
        end = start + int(np.prod(shape)) * dtype.itemsize
        return room[start:end].view(dtype).reshape(shape)

    def address(self, native):
        return native.__array_interface__["data"][0]

    def contiguous(self, native):
        return native.flags.c_contiguous

    def copy(self, native):
        new = self.empty(native.shape, native.dtype, 0)
        new[...] = native
        return new

    def permuted(self, native, axes):
        return native.transpose(axes)

    def cast(self, native, dtype):
        return native.astype(dtype)

    def sums(self, native, axes):
        return native.sum(axis=axes, dtype=np.float64)

    def stream(self, device):
        return 0

    def capturing(self, device):
        return False

    def on(self, device):
        return nullcontext()

    def from_host(self, array, device):
        return self.copy(array)

    def seconds(self, run: Callable[[], object], count: int, device: int) -> float:
        for _ in range(count):
            run()
        return 1e-6 * count

    def is_out_of_memory(self, error: Exception) -> bool:
        return isinstance(error, MemoryError)


LIBRARY = MadeUpLibrary()


class MadeUpGpu:
    """Runs convolutions by their definition; `lacks` selects those without a plan."""

    def __init__(self, lacks: Callable[[Convolution], bool] = lambda _: False) -> None:
        self.lacks = lacks
        self.moves = 0

    def plan(self, convolution: Convolution, name: str = ""):
        if self.lacks(convolution) or name not in ("", *self.names(convolution)):
            return None
        return MadeUpPlan(convolution, name or "eng0")

    def names(self, convolution: Convolution) -> Sequence[str]:
        return () if self.lacks(convolution) else ("eng0", "eng1_k2=3")

    def move(self, move: Move, packed: bytes, total: int, arrays: Sequence[Maybe]) -> None:
        self.moves += 1
        assert all(
            (a is not None) == (name in _used(move))
            for a, name in zip(arrays, POINTERS, strict=True)
        )
        addresses = [0 if array is None else array.pointer for array in arrays]
        call = ctypes.CFUNCTYPE(None, *[ctypes.c_uint64] * len(POINTERS), ctypes.c_char_p)
        call(_host_code(move).addresses["move_all"])(*addresses, packed)


def _used(move: Move) -> set[str]:
    terms = {"bias": move.bias, "residual": move.residual, "slopes": move.epilogue.slopes}
    terms["scale"] = move.scale
    present = {"result"} | {name for name, used in terms.items() if used}
    present |= {"second"} if move.epilogue.has_second else set()
    return present | ({"source"} if move.source else set())


@lru_cache(maxsize=256)
def _host_code(move: Move) -> Code:
    """Compile the kernel of a class as a loop that reads the packed arguments."""
    module = Module(host())
    names = elementwise.parameters(move.axes)
    # Many processors, unlike GPUs, have no instruction that rounds to bfloat16.
    rounding = patch.object(elementwise, "_narrowed", converted)
    with rounding, module.function("move", names | {"index": I32}, exported=False) as f:
        for value, address in elementwise.element(f, move, f["index"]):
            f.store(value, address)
    words = [name for name, kind in names.items() if kind == I64]
    sizes = [name for name, kind in names.items() if kind == I32]
    with module.function("move_all", dict.fromkeys((*POINTERS, "packed"), PTR)) as f:
        values = {name: f[name] for name in POINTERS}
        for number, name in enumerate(words):
            values[name] = f.load(I64, f.at(f["packed"], number, I64))
        behind = f.at(f["packed"], len(words), I64)
        for number, name in enumerate(sizes):
            values[name] = f.load(I32, f.at(behind, number, I32))
        with f.loop(0, f.convert("zext", values["total"], I64)) as loop:
            index = f.convert("trunc", loop.index, I32)
            f.call("move", *(values[name] for name in names), index)
    return Code(module, ("move_all",), host())


class MadeUpPlan:
    """A cuDNN convolution by its definition, in float64."""

    workspace = 0

    def __init__(self, convolution: Convolution, name: str) -> None:
        self.convolution, self.name = convolution, name

    def run(
        self, result: DeviceArray, operands: Sequence[DeviceArray], ends: Sequence[Maybe]
    ) -> None:
        form = self.convolution
        first, second = map(_view, operands, form.operands)
        target = _view(result, form.result)
        value = testing.by_taps(_problem(form), first, second)
        bias, residual = ends
        assert (bias is not None, residual is not None) == (form.ends.bias, form.ends.residual)
        if form.ends.accumulate:
            value += target
        if bias is not None:
            value += np.asarray(bias.native, np.float64).reshape(-1, *[1] * (value.ndim - 2))
        if residual is not None:
            value += _view(residual, form.result)
        if form.ends:
            value = _ACTIVATED[form.ends.activation](value, form.ends.slope)
        target[...] = value


def _view(array: DeviceArray, tensor: Tensor) -> np.ndarray:
    """Return the memory as a tensor of the library, which needs contiguous and aligned memory."""
    assert array.contiguous
    assert array.pointer % 16 == 0
    assert array.size == np.prod(tensor.dims)
    steps = [step * array.dtype.itemsize for step in tensor.strides]
    return as_strided(np.asarray(array.native), tensor.dims, steps)


DIRECTIONS = {
    Kind.DATA_GRADIENT: Direction.FORWARD,
    Kind.CONVOLUTION: Direction.INPUT_GRAD,
    Kind.WEIGHT_GRADIENT: Direction.WEIGHT_GRAD,
}


def _problem(form: Convolution) -> Problem:
    """Return the problem of tensors and paddings, whose sizes must agree."""
    axes = []
    sizes = (each.dims[2:] for each in (form.loss, form.filter, form.image))
    rows = zip(*sizes, form.pre, form.post, form.stride, form.dilation, strict=True)
    for loss, kernel, image, pre, post, stride, dilation in rows:
        room = image + pre + post - (dilation * (kernel - 1) + 1)
        assert room // stride + 1 == loss, str(form)
        axes.append(fitted(loss, kernel, stride, dilation, pre, image))
    channels = *form.loss.dims[:2], form.image.dims[1]
    groups = form.image.dims[1] // form.filter.dims[1]
    return Problem(DIRECTIONS[form.kind], tuple(axes), *channels, groups)


class MadeUpEngine:
    """The engine on the made-up GPU, for NumPy's arrays, which are in its memory."""

    name = "made up"
    rounds_sums = True

    def __init__(self, lacks: Callable[[Convolution], bool] = lambda _: False) -> None:
        self.machine = MadeUpGpu(lacks)

    def fingerprint(self) -> str:
        return "made up"

    def refuses(self, problem: Problem) -> str | None:
        return cannot(problem)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        return ("", *variants(self.machine, problem, 24))

    def build(self, problem: Problem, threads: int, variant: str = ""):
        return OnHost(primitive(self.machine, problem, variant), LIBRARY.array)


class OnHost:
    """A device's primitive, run on arrays in main memory that `placed` copies to the device."""

    def __init__(self, inner: Any, placed: Callable[[str, np.ndarray], DeviceArray]) -> None:
        self.inner, self.placed = inner, placed
        self.workspace_bytes, self.resident_bytes = inner.workspace_bytes, inner.resident_bytes

    def pack(self, weight):
        return self.inner.pack(self.placed("weight", weight))

    def run(self, out, a, b, *ends):
        b = self.placed("b", b) if isinstance(b, np.ndarray) else b
        ends = [None if end is None else self.placed("end", end) for end in ends]
        self.inner.run(self.placed("out", out), self.placed("a", a), b, *ends)

    def close(self):
        self.inner.close()


class GpuArray:
    """A caller's array on the made-up GPU."""

    def __init__(self, array: np.ndarray) -> None:
        self.native = LIBRARY.copy(np.asarray(array))


def made_up_array(argument: str, value: object) -> DeviceArray | None:
    """Return the view of a made-up array, in place of `devices.device_array`."""
    return LIBRARY.array(argument, value.native) if isinstance(value, GpuArray) else None


class MadeUpCudnn(MadeUpEngine):
    """An engine to pass as `engine=`: already bound, and tuned with made-up times."""

    name = "cudnn"
    library, device, tunes = LIBRARY, 0, None

    def __init__(self) -> None:
        super().__init__()
        self.measured: list[float] = []

    def bound(self, library: MadeUpLibrary, device: int) -> MadeUpCudnn:
        return self

    def build(self, problem: Problem, threads: int, variant: str = ""):
        return primitive(self.machine, problem, variant)

    def placed(self, array: np.ndarray) -> DeviceArray:
        return LIBRARY.array("x", LIBRARY.from_host(array, 0))

    def sample(self, run: Callable[[], object], length: float) -> float:
        run()
        self.measured.append(length)
        return 1.0 - 0.4 * (len(self.measured) == 1)


class MadeUpNorms:
    """The engine's batch normalization, by its definition or refused as by the library."""

    def __init__(self, *, refuses: bool) -> None:
        self.refuses, self.machine = refuses, MadeUpGpu()

    def normalize(self, which, sizes, last, arrays, eps) -> None:
        if self.refuses:
            raise EngineRefusal("cuDNN has no plan for batch normalization")
        n, c, positions = sizes

        def flat(name: str) -> np.ndarray:
            assert arrays[name].contiguous
            array = arrays[name].native
            if array.ndim == 1:
                return array.reshape(1, c, 1)
            return (
                array.reshape(n, positions, c).swapaxes(1, 2)
                if last
                else array.reshape(n, c, positions)
            )

        x, gamma = flat("x").astype(np.float64), flat("gamma")
        if which == "forward":
            mean, var = x.mean((0, 2)), x.var((0, 2))
            invstd = (var + eps) ** -0.5
            count = x.size // c
            stats = {"mean": mean, "invstd": invstd, "batch_mean": mean}
            stats["batch_var"] = var * count / (count - 1)
            for name, value in stats.items():
                arrays[name].native[...] = value
            normal = (x - mean.reshape(1, c, 1)) * invstd.reshape(1, c, 1)
            flat("y")[...] = normal * gamma + flat("beta")
        else:
            normal, g = (x - flat("mean")) * flat("invstd"), flat("grad").astype(np.float64)
            arrays["dgamma"].native[...] = (g * normal).sum((0, 2))
            arrays["dbeta"].native[...] = g.sum((0, 2))
            spread = g - g.mean((0, 2), keepdims=True)
            spread = spread - normal * (g * normal).mean((0, 2), keepdims=True)
            flat("dx")[...] = gamma * flat("invstd") * spread

    def scale_shift(self, y, x, scale, shift, channel) -> None:
        Moves(self.machine, channel).run(y, x, (0,) * y.ndim, Ends(bias=shift, scale=scale))
