"""The engine: `Cudnn` has only settings; `BoundCudnn` adds a device and an array library."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import lru_cache
from math import ceil
from time import perf_counter
from typing import Any

import numpy as np

from ... import devices
from ...argument_checks import boolean, frozen, integer, one_of
from ...devices import DeviceArray, Library
from ...errors import EngineError, EngineRefusal
from ...problem import DType, Problem
from ..base import Primitive
from . import abi, graphs, norms
from .abi import Note, Object, handles
from .delay import wait
from .driver import Kernel, driver
from .elementwise import PER_THREAD, POINTERS, THREADS, Move, processor_of, ptx
from .graphs import BIAS, RESIDUAL, RESULT, A, B, Graph, Options
from .moves import Ends, Maybe, Moves
from .operation import Convolution, cannot
from .primitive import primitive, variants

_DEFAULT_WORKSPACE = 1024  # MiB, as in MXNet
_MAX_PLANS = 24  # plans per graph that tuning may measure
_MAX_GRAPHS = 4
_MAX_NORMS = 64
_SAMPLE_SECONDS = 0.003
_QUEUED = 5e-5


class Tune(Enum):
    """Ways to choose a plan, with MXNet's names; see `Cudnn`."""

    OFF = "off"
    LIMITED_WORKSPACE = "limited_workspace"
    FASTEST = "fastest"


class Cudnn:
    """cuDNN for arrays on NVIDIA GPUs, with its settings; pass it as `engine=`.

    tune: how a plan is chosen, with MXNet's names. "off": by cuDNN's heuristics.
        "limited_workspace": the fastest plan that `workspace` allows, measured on this GPU and
        cached. "fastest": the fastest of all plans. None: "limited_workspace" if a call requests
        tuning (`tune=True`, or `UPCONV_TUNE=1`), else "off".
    workspace: MiB of scratch memory that a plan may use, an int of 0 or more; "fastest" has no
        limit.
    deterministic: whether results must be bitwise equal in every run.

    The first call raises `EngineMissing` if there is no NVIDIA GPU or no cuDNN.

    >>> Cudnn(tune="fastest", workspace=256).tune
    'fastest'
    """

    name = "cudnn"

    def __init__(
        self, *, tune: str | None = None, workspace: int = _DEFAULT_WORKSPACE,
        deterministic: bool = False,
    ) -> None:  # fmt: skip
        remedy = '"limited_workspace" measures the plans that `workspace` allows.'
        self.tune = (
            None if tune is None else one_of("tune", frozen("tune", tune), Tune, remedy).value
        )
        self.workspace = integer("workspace", workspace, 0, remedy="It counts MiB.")
        self.deterministic = boolean("deterministic", deterministic)

    @property
    def options(self) -> Options:
        """The settings that limit which plans may be used."""
        limit = None if self.tune == Tune.FASTEST.value else self.workspace << 20
        return Options(limit, self.deterministic)

    def fingerprint(self) -> str:
        """Return the library's version."""
        driver()
        return f"cuDNN {abi.library().version}"

    def refuses(self, problem: Problem) -> str:
        """Return why the engine cannot compute in main memory."""
        return "it needs GPU arrays, such as CuPy's and PyTorch's, not arrays in main memory"

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Return only the default: there is no choice in main memory."""
        return ("",)

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Raise `EngineRefusal`: only a bound engine builds."""
        raise EngineRefusal(f"cuDNN cannot compute {problem}: {self.refuses(problem)}.")

    def bound(self, library: Library, device: int) -> BoundCudnn:
        """Return the engine for a library's arrays on a device."""
        return _bound(self.tune, self.workspace, self.deterministic, library, device)


@lru_cache(maxsize=64)
def _bound(
    tune: str | None, workspace: int, deterministic: bool, library: Library, device: int
) -> BoundCudnn:
    settings = Cudnn(tune=tune, workspace=workspace, deterministic=deterministic)
    return BoundCudnn(settings, library, device)


class BoundCudnn:
    """cuDNN on one device, for the arrays of one library; created by `Cudnn.bound`."""

    name = "cudnn"
    rounds_sums = True  # to the arrays' type, unless the epilogue is fused

    def __init__(self, settings: Cudnn, library: Library, device: int) -> None:
        self._machine = Gpu(library, device, settings.options)
        self.library, self.device = library, device
        self._norm_plan = lru_cache(_MAX_NORMS)(self._new_norm_plan)
        self.tunes = None if settings.tune is None else settings.tune != Tune.OFF.value
        limit = settings.options.workspace
        self._fingerprint = (
            f"cuDNN {abi.library().version} {driver().name(device)} cuda:{device} {library.name}"
            f" workspace {'any' if limit is None else limit}"
            f"{' deterministic' * settings.deterministic}"
        )

    def fingerprint(self) -> str:
        """Return the library's version, the device and the settings."""
        return self._fingerprint

    def refuses(self, problem: Problem) -> str | None:
        """Return None if cuDNN can compute `problem`, else why not."""
        return cannot(problem)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Return the plans that tuning may measure; "" is the first by cuDNN's heuristics."""
        self._machine.refuse_capture()
        return ("", *variants(self._machine, problem, _MAX_PLANS))

    def build(self, problem: Problem, threads: int, variant: str = "") -> Primitive:
        """Build a plan; this takes tens of milliseconds, or hundreds for a fused plan."""
        self._machine.refuse_capture()
        return primitive(self._machine, problem, variant)

    # Batch normalization.

    def normalize(
        self, which: str, sizes: tuple[int, int, int], last: bool,
        arrays: dict[str, DeviceArray], eps: float,
    ) -> None:  # fmt: skip
        """Run a normalization "forward" or "backward"; see `norms` for sizes and arrays."""
        dtype = DType(arrays["x"].dtype.name)
        plan = self._norm_plan(norms.Norm(which == "forward", sizes, dtype, last), eps)
        if plan is None:
            raise EngineRefusal(f"cuDNN has no plan for batch normalization of {sizes}.")
        self._machine.execute(plan.plan, *plan.addresses(arrays))

    def _new_norm_plan(self, norm: norms.Norm, eps: float) -> norms.NormPlan | None:
        self._machine.refuse_capture()
        plan = self._machine.built(self._machine.graph(norms.operations(norm), set()))
        return None if plan is None else norms.NormPlan(norm, plan, eps)

    def scale_shift(
        self, y: DeviceArray, x: DeviceArray, scale: DeviceArray, shift: DeviceArray | None,
        channel: int,
    ) -> None:  # fmt: skip
        """Write x * scale + shift into y; scale and shift run along the axis `channel`."""
        Moves(self._machine, channel).run(y, x, (0,) * y.ndim, Ends(bias=shift, scale=scale))

    # For tuning.

    def placed(self, array: np.ndarray[Any, Any]) -> DeviceArray:
        """Copy an array from main memory to this device."""
        self._machine.refuse_capture()
        with devices.out_of_memory(self.library, "the random data for tuning"):
            native = self.library.from_host(array, self.device)
        return self.library.array("an array", native)

    def sample(self, run: Callable[[], object], length: float) -> float:
        """Return the device's mean seconds per call, over calls for about `length` seconds."""
        once = self.library.seconds(run, 1, self.device)
        count = min(max(ceil(min(length, _SAMPLE_SECONDS) / max(once, 1e-6)), 3), 200)
        begin = perf_counter()
        run()  # this returns once the call is queued
        queueing = (perf_counter() - begin) * (count + 1)
        self._machine.wait(1.5 * queueing + _QUEUED)
        return self.library.seconds(run, count, self.device)


class Gpu:
    """A device that runs cuDNN graphs and upconv's kernels; see `primitive.Machine`."""

    def __init__(self, library: Library, device: int, options: Options) -> None:
        self._library, self._device, self._options = library, device, options
        self._processor = processor_of(driver().capability(device))
        self._kernels: dict[Move, Kernel] = {}
        self._graph = lru_cache(_MAX_GRAPHS)(self._new_graph)

    def plan(self, convolution: Convolution, name: str = "") -> GpuPlan | None:
        """Return the plan with a name, or for "" the first that can be built."""
        plan = self.built(self._graph(convolution), name)
        return None if plan is None else GpuPlan(self, plan, convolution)

    def graph(self, operations: Iterable[Object], unwanted: set[Note]) -> Graph | None:
        """Return a graph of operations; see `graphs.graph_of`."""
        with self._library.on(self._device):
            return graphs.graph_of(operations, unwanted, self._handle(), self._options)

    def built(self, graph: Graph | None, name: str = "") -> graphs.Plan | None:
        """Return a graph's plan with a name, or for "" the first that can be built."""
        if graph is None:
            return None
        with self._library.on(self._device):
            return next(graph.plans([name] if name else graph.names, self._handle()), None)

    def names(self, convolution: Convolution) -> list[str]:
        """Return the names of a convolution's engines; some may have no plan."""
        graph = self._graph(convolution)
        return [] if graph is None else graph.names

    def move(self, move: Move, packed: bytes, total: int, arrays: Sequence[Maybe]) -> None:
        """Run one of upconv's kernels on the caller's stream."""
        kernel = self._kernels.get(move)
        if kernel is None:
            self.refuse_capture()
            kernel = driver().kernel(self._device, ptx(move, self._processor), "move")
            self._kernels[move] = kernel
        addresses = (0 if array is None else array.pointer for array in arrays)
        packed = struct.pack(f"{len(POINTERS)}Q", *addresses) + packed
        stream = self._library.stream(self._device)
        kernel(-(-total // (THREADS * PER_THREAD)), THREADS, stream, packed)

    def wait(self, seconds: float) -> None:
        """Make the caller's stream wait."""
        wait(self._device, self._processor, self._library.stream(self._device), seconds)

    def execute(
        self, plan: graphs.Plan, numbers: tuple[int, ...], addresses: tuple[int, ...]
    ) -> None:
        """Run a plan on the caller's stream, without waiting for it."""
        library, device = self._library, self._device
        with library.on(device):
            scratch, address = None, 0
            if plan.workspace:
                with devices.out_of_memory(library, "the scratch memory of this call"):
                    scratch = library.empty((plan.workspace,), _BYTES, device)
                address = library.address(scratch)
            plan.run(numbers, addresses, address, handles.of(device, library.stream(device)))

    def _new_graph(self, convolution: Convolution) -> Graph | None:
        unwanted = graphs.unwanted_notes(convolution, self._options)
        return self.graph(graphs.operations(convolution), unwanted)

    def _handle(self) -> int:
        """Return this thread's handle, on the caller's stream."""
        return handles.of(self._device, self._library.stream(self._device))

    def refuse_capture(self) -> None:
        """Raise while a CUDA graph is being captured, since it must not include preparation."""
        if self._library.capturing(self._device):
            raise EngineError(
                "A layer cannot be prepared while a CUDA graph is being captured."
                " Call the layer once before the capture, on arrays with the same strides."
            )


_BYTES = np.dtype(np.uint8)


class GpuPlan:
    """A plan that has been built on a device; see `primitive.Plan`."""

    def __init__(self, gpu: Gpu, plan: graphs.Plan, convolution: Convolution) -> None:
        self._gpu, self._plan = gpu, plan
        self.name, self.workspace = plan.name, plan.workspace
        ends = convolution.ends
        self._bias, self._residual = ends.bias, ends.residual
        more = (BIAS,) * ends.bias + (RESIDUAL,) * ends.residual
        self._numbers = (A, B, RESULT, *more)

    def run(
        self, result: DeviceArray, operands: Sequence[DeviceArray], ends: Sequence[Maybe]
    ) -> None:
        """Enqueue the computation on the caller's stream, without waiting for it."""
        a, b = operands
        addresses = a.pointer, b.pointer, result.pointer
        if self._bias or self._residual:
            addresses += tuple(array.pointer for array in ends if array is not None)  # type: ignore[assignment]
        self._gpu.execute(self._plan, self._numbers, addresses)
