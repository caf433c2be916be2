"""A real GPU for tests: the engine on it, and arrays copied between main memory and the GPU."""

from functools import lru_cache, partial
from importlib import import_module
from itertools import islice

import numpy as np

from tests.support.made_up_gpu import OnHost
from upconv.devices import DeviceArray, Library, library
from upconv.engines.cudnn.engine import Cudnn
from upconv.errors import EngineMissing, EngineRefusal
from upconv.problem import Problem


@lru_cache
def reason_without(name: str) -> str:
    """Return why a library has no GPU here; "" if it has one."""
    try:
        import_module(name)
        Cudnn().fingerprint()
        library(name)
    except (ImportError, EngineMissing) as error:
        return f"needs an NVIDIA GPU, cuDNN and {name}: {error}"
    return ""


class GpuEngine:
    """The engine bound to device 0, for arrays in main memory."""

    rounds_sums = True

    def __init__(self, name: str, **settings) -> None:
        self.library: Library = library(name)
        self.bound = Cudnn(**settings).bound(self.library, 0)
        self.name = f"cudnn {name}"

    def fingerprint(self) -> str:
        return self.bound.fingerprint()

    def refuses(self, problem: Problem) -> str | None:
        return self.bound.refuses(problem)

    def variants(self, problem: Problem, threads: int) -> tuple[str, ...]:
        """Return some of the variants that can be built."""
        return tuple(
            islice(filter(partial(self._builds, problem), self.bound.variants(problem, threads)), 9)
        )

    def _builds(self, problem: Problem, variant: str) -> bool:
        try:
            self.bound.build(problem, 1, variant)
        except EngineRefusal:
            return False
        return True

    def build(self, problem: Problem, threads: int, variant: str = ""):
        return GpuOnHost(self.bound.build(problem, threads, variant), self.library)


class GpuOnHost(OnHost):
    """A primitive whose results are copied back; views with gaps have gaps on the device too."""

    def __init__(self, inner, library: Library) -> None:
        super().__init__(inner, lambda argument, array: placed(library, array))

    def run(self, out, a, b, *ends):
        b = self.placed("b", b) if isinstance(b, np.ndarray) else b
        *others, second = (*ends, *[None] * (4 - len(ends)))
        arrays = [None if end is None else self.placed("end", end) for end in others]
        results = [self.placed("out", out), None if second is None else self.placed("out", second)]
        self.inner.run(results[0], self.placed("a", a), b, *arrays, results[1])
        for array, result in zip((out, second), results, strict=True):
            if array is not None:
                array[...] = on_host(result)


def on_host(array: DeviceArray) -> np.ndarray:
    """Return a copy in main memory, after all earlier work."""
    if array.library.name == "cupy":
        return array.native.get()
    copy = array.native.detach().cpu().contiguous()
    bits = copy.view(getattr(import_module("torch"), f"int{8 * array.dtype.itemsize}"))
    return bits.numpy().view(array.dtype)


def placed(library: Library, array: np.ndarray) -> DeviceArray:
    """Copy an array to device 0: contiguous if it is, else with gaps and reversed axes."""
    if array.flags.c_contiguous or not array.size:
        return library.array("x", library.from_host(np.ascontiguousarray(array), 0))
    wide = np.zeros([2 * n + 1 for n in array.shape[::-1]], array.dtype)
    wide[tuple(slice(1, None, 2) for _ in array.shape)] = array.transpose()
    native = library.from_host(wide, 0)[tuple(slice(1, None, 2) for _ in array.shape)]
    return library.array("x", library.permuted(native, tuple(reversed(range(array.ndim)))))
