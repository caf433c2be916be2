"""Batch normalisation by libdnnl's own primitives.

An array is taken as (A, C, B), its axes in the order of x's in memory: those before the channels'
as one, those behind it as another. That is the library's NCW for B > 1 and its NWC for B = 1. An
array that does not lie so without gaps is copied.

The library sums in float32, and means come out rounded to it. Where data lie a million deviations
from zero that costs the digits which the NumPy engine keeps, as it does in PyTorch and MXNet.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from ... import memory
from ...problem import DType
from ..addresses import address_of
from ..base import Array
from ..onednn.abi import DTYPE, Arg, Handle, LibraryError, Norm, Prop
from ..onednn.library import Runtime, runtime
from ..onednn.script import Script
from .blockwise import BlockNormalizer
from .grid import Grid
from .problem import Moments, Normalization, Totals

_MOST = 1 << 30
"""No count may reach this: implementations count in 32 bits."""

_LARGEST = 1e18
"""An inverse deviation of a variance near the end of float32's range."""

_RESIDENT = 1 << 16
"""What a primitive keeps: its code and its descriptors; about."""


class OnednnNormalizer:
    """libdnnl; raises `EngineMissing` where there is none."""

    name = "onednn"

    def __init__(self) -> None:
        self._runtime = runtime()
        isa = self._runtime.library.get_effective_cpu_isa()
        self._fingerprint = f"libdnnl {self._runtime.version} isa {isa:#x}"

    def fingerprint(self) -> str:
        """The version of the library and the instructions it uses."""
        return self._fingerprint

    def refuses(self, problem: Normalization) -> str | None:
        """None when the library can do `problem` by more than reference loops, else why not."""
        if problem.dtype is DType.FLOAT64:
            return "libdnnl computes on no float64"
        if not problem.count:
            return "libdnnl takes no arrays without elements"
        if prod(problem.shape) >= _MOST:
            return f"libdnnl counts in 32 bits, and x has {prod(problem.shape)} elements"
        return _found(self._runtime, problem)

    def build(self, problem: Normalization, threads: int, variant: str = "") -> OnednnNormalization:
        """Create the primitive; a millisecond at most."""
        return OnednnNormalization(self._runtime, problem, threads)


@lru_cache(maxsize=4096)
def _found(runtime: Runtime, problem: Normalization) -> str | None:
    """Why the library's implementation of a problem is none; None if it is one."""
    version = runtime.version
    try:
        with _descriptor(runtime, problem, 1) as descriptor:
            implementation = runtime.library.implementation(descriptor)
    except LibraryError:
        return f"libdnnl {version} has no implementation of it for {problem.dtype.value} here"
    if implementation.startswith("ref"):
        return f"libdnnl {version} has only slow reference loops for it here"
    return None


class OnednnNormalization:
    """One normalisation, ready to run."""

    resident_bytes = _RESIDENT

    def __init__(self, runtime: Runtime, problem: Normalization, threads: int) -> None:
        self.problem = problem
        self._order = _grid(problem).order
        self._shape = tuple(problem.shape[axis] for axis in self._order)
        self._descriptor = _descriptor(runtime, problem, threads)
        self._script = Script(runtime, threads)
        self._write(runtime)
        self._exact = BlockNormalizer().build(problem, threads)
        copies = (len(problem.strides) * prod(problem.shape)) * problem.dtype.itemsize
        self.workspace_bytes = self._script.nbytes + copies + self._exact.workspace_bytes

    def _write(self, runtime: Runtime) -> None:
        """One step; outside slots in the order in which `_run` gives addresses."""
        data = _layout(runtime, self.problem)
        channels = runtime.library.strided((self.problem.channels,), DTYPE[DType.FLOAT32], (1,))
        arrays, vectors = _BACKWARD if self.problem.backward else _FORWARD
        slots = {int(argument): self._script.outside(data) for argument in arrays}
        slots |= {int(argument): self._script.outside(channels) for argument in vectors}
        self._script.step(self._descriptor, slots)

    def close(self) -> None:
        """Destroy what the library made."""
        self._script.close()
        self._descriptor.close()

    def forward(
        self, y: Array, x: Array, gamma: Array, beta: Array, given: Moments | None
    ) -> Moments:
        """Normalise x into y; see `NormPrimitive.forward`."""
        target, source = y.transpose(self._order), self._dense(x)
        result = target if _is_dense(target) else self._new("the result in the library's layout")
        mean, var = given if given is not None else (np.empty_like(gamma), np.empty_like(gamma))
        vectors = [_single(vector) for vector in (gamma, beta, mean, var)]
        self._run([source, result], vectors)
        if given is None:
            given = Moments(vectors[2].astype(np.float64), vectors[3].astype(np.float64))
            self._mend(result, given, vectors[1])
        if result is not target:
            target[...] = result
        return given

    def backward(
        self, dx: Array | None, grad: Array, x: Array, gamma: Array, mean: Array, invstd: Array
    ) -> Totals:
        """The gradients; see `NormPrimitive.backward`."""
        if not _is_ordinary(invstd):
            return self._exact.backward(dx, grad, x, gamma, mean, invstd)
        with np.errstate(all="ignore"):
            var = 1 / np.square(invstd) - self.problem.eps
        target = None if dx is None else dx.transpose(self._order)
        if target is not None and self._may_write(target, grad, x):
            result = target
        else:
            result = self._new("the gradient of x in the library's layout")
        vectors = [_single(vector) for vector in (gamma, mean, var, gamma, gamma)]
        self._run([self._dense(grad), self._dense(x), result], vectors)
        if target is not None and result is not target:
            with np.errstate(all="ignore"):
                target[...] = target + result if self.problem.accumulate else result
        gx, g = (vector.astype(np.float64) for vector in vectors[3:])
        return Totals(g, gx)

    def _run(self, arrays: list[Array], vectors: list[Array]) -> None:
        self._script.run(*(address_of(array) for array in (*arrays, *vectors)))

    def _dense(self, array: Array) -> Array:
        """An operand as (A, C, B) without gaps, copied where it has some."""
        ordered = array.transpose(self._order)
        if _is_dense(ordered):
            return ordered
        copy = self._new("an operand in the library's layout")
        copy[...] = ordered
        return copy

    def _new(self, purpose: str) -> Array:
        dtype = self.problem.dtype.numpy
        memory.require(prod(self._shape) * dtype.itemsize, purpose)
        return np.empty(self._shape, dtype)

    def _may_write(self, dx: Array, *operands: Array) -> bool:
        """Whether dx is overwritten, has no gaps, and is no operand, which is read once more."""
        if self.problem.accumulate:
            return False
        return _is_dense(dx) and not any(np.may_share_memory(dx, other) for other in operands)

    def _mend(self, y: Array, moments: Moments, beta: Array) -> None:
        """y = beta where the batch's variance and eps are both 0: the library has divided by 0."""
        if np.float32(self.problem.eps) or moments.var.all():
            return
        place = self._order.index(self.problem.axis)
        for channel in np.flatnonzero(moments.var == 0):
            y[(slice(None),) * place + (channel,)] = beta[channel]


_FORWARD = (Arg.SRC, Arg.DST), (Arg.SCALE, Arg.SHIFT, Arg.MEAN, Arg.VARIANCE)
_BACKWARD = (
    (Arg.DIFF_DST, Arg.SRC, Arg.DIFF_SRC),
    (Arg.SCALE, Arg.MEAN, Arg.VARIANCE, Arg.DIFF_SCALE, Arg.DIFF_SHIFT),
)
"""Arguments of x's shape, and those of one number per channel."""


def _grid(problem: Normalization) -> Grid:
    return Grid.of(problem.shape, problem.axis, problem.strides[problem.backward])


def _layout(runtime: Runtime, problem: Normalization) -> Handle:
    """The description of an array as (A, C, B)."""
    grid = _grid(problem)
    before, behind = prod(grid.size[: grid.place]), prod(grid.size[grid.place + 1 :])
    channels = problem.channels
    last = behind == 1
    strides = (channels, 1, channels) if last else (channels * behind, behind, 1)
    return runtime.library.strided((before, channels, behind), DTYPE[problem.dtype], strides)


def _descriptor(runtime: Runtime, problem: Normalization, threads: int) -> Handle:
    """The primitive's descriptor; `LibraryError` where there is no implementation."""
    data, name = _layout(runtime, problem), "batch_normalization_forward"
    flags = Norm.USE_SCALE | Norm.USE_SHIFT
    kind = Prop.FORWARD_TRAINING
    if not problem.batch_statistics:
        flags, kind = flags | Norm.GLOBAL_STATS, Prop.FORWARD_INFERENCE
    with runtime.making(threads) as library, library.create("primitive_attr") as attributes:
        library.call("primitive_attr_set_scratchpad_mode", attributes, 1)
        common = (problem.eps, int(flags))
        if not problem.backward:
            return library.primitive_desc(
                name, runtime.engine, kind, data, data, *common, attributes
            )
        kind = Prop.FORWARD_TRAINING
        hint = library.primitive_desc(name, runtime.engine, kind, data, data, *common, attributes)
        with hint:
            return library.primitive_desc(
                "batch_normalization_backward",
                runtime.engine,
                Prop.BACKWARD,
                data,
                data,
                data,
                *common,
                hint,
                attributes,
            )


def _is_dense(ordered: Array) -> bool:
    """Whether an array, its axes in order, has no gaps and its rows follow each other."""
    return ordered.flags.c_contiguous and ordered.flags.aligned


def _is_ordinary(invstd: Array) -> bool:
    """Whether every r is that of a variance in float32's range; 0 is none's unless eps is 0."""
    return bool(((invstd != 0) & ~(invstd > _LARGEST)).all())


def _single(vector: Array) -> Array:
    """A copy in float32, the library's type of parameters."""
    with np.errstate(all="ignore"):
        return vector.astype(np.float32)
