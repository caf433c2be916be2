"""Native steps of a network's operations against their definitions, on arrays of every kind.

`checked` computes one case. `main` computes many in a separate process, with arrays that guarded.py
fences.
"""

import faulthandler
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.support.guarded import Fence, Side, zoned_stacks
from upconv.engines.jit import pool
from upconv.engines.jit.cpu import host
from upconv.engines.jit.steps import Step
from upconv.engines.jit.walk import walk_code
from upconv.network.definitions import define
from upconv.network.graph import Operation
from upconv.network.tables import Target
from upconv.problem import DataLayout, DType

Array = NDArray[Any]
LAYOUTS = (DataLayout.NCX, DataLayout.NXC)
DTYPES = (DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16)
WAYS = (("", ""), ("haswell", "avx2"), ("skylake-avx512", "avx512vl"), ("x86-64", "sse2"))
"""Target processors of the code, this one first, and the feature needed to run it here."""


@dataclass(frozen=True, slots=True)
class Case:
    """An operation on arrays of these shapes, channels first.

    A result may err by `slack` units of rounding, of at least `scale`. With `view`, inputs are
    views of some channels of larger arrays; with `out_view`, outputs are. With `in_place`, output 0
    is input 0. With `special`, some elements are infinite or NaN.
    """

    operation: Operation
    shapes: tuple[tuple[int, ...], ...]
    layout: DataLayout = DataLayout.NCX
    dtype: DType = DType.FLOAT32
    threads: int = 1
    slack: float = 16
    scale: float | Array = 1.0
    view: bool = False
    out_view: bool = False
    in_place: bool = False
    special: bool = False
    seed: int = 0
    spread: float = 3.0
    mean: float = 0.0


def run(steps: Sequence[Step]) -> None:
    """Run steps one after another."""
    for step in steps:
        step.block.restart()
        pool.run(walk_code(host()).addresses["walk"], step.block.address, step.threads)


def laid_out(array: Array, layout: DataLayout, dtype: DType, view: bool) -> tuple[Array, Array]:
    """Return a channels-first array in a layout, and the array that holds it: for a view, one with
    more channels."""
    first = 2 if view else 0
    batch, channels, *size = array.shape
    shape = layout.shape(batch, channels + (5 if view else 0), tuple(size))
    holder = np.full(shape, -77, dtype.numpy)
    axis = layout.to_ncx(len(size))[1]
    index: list[Any] = [slice(None)] * holder.ndim
    index[axis] = slice(first, first + channels)
    result = holder[tuple(index)]
    result[...] = array.transpose(np.argsort(layout.to_ncx(len(size))))
    return result, holder


def checked(case: Case, steps: Callable[..., list[Step]], fence: Any = None) -> None:
    """Raise `AssertionError` unless a case has the values of its definition."""
    rng = np.random.default_rng(case.seed)
    inputs = [_numbers(rng, shape, case) for shape in case.shapes]
    wanted = define(case.operation, tuple(array.astype(np.float64) for array in inputs))
    with nullcontext() if fence is None else fence:
        pairs = [laid_out(array, case.layout, case.dtype, case.view) for array in inputs]
        given = [pair[0] for pair in pairs]
        outputs, holders = [], []
        for number, array in enumerate(wanted):
            if case.in_place and number == 0:
                outputs.append(given[0])
                continue
            empty = np.full(array.shape, -77.0)
            out, holder = laid_out(empty, case.layout, case.dtype, case.out_view)
            outputs.append(out)
            holders.append((out, holder))
        listed = steps(case.operation, outputs, given, Target(case.layout, case.threads, host()))
        run(listed)
    _compare(case, outputs, wanted)
    for out, holder in holders:
        out[...] = -77
        assert (holder == -77).all(), "channels next to the result have changed"
    for array, before in zip(given[case.in_place :], inputs[case.in_place :], strict=True):
        now = array.transpose(case.layout.to_ncx(array.ndim - 2))
        assert np.array_equal(now.astype(np.float64), before.astype(np.float64), equal_nan=True)


def _numbers(rng: np.random.Generator, shape: tuple[int, ...], case: Case) -> Array:
    array = rng.standard_normal(shape) * case.spread + case.mean
    if case.special and array.size:
        flat = array.reshape(-1)
        places = rng.integers(0, flat.size, max(1, flat.size // 50))
        flat[places] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0], len(places))
    return array.astype(case.dtype.numpy)


def _compare(case: Case, outputs: Sequence[Array], wanted: Sequence[Array]) -> None:
    unit, wide = case.dtype.epsilon, case.dtype.accumulator.epsilon
    for number, (out, expected) in enumerate(zip(outputs, wanted, strict=True)):
        got = out.transpose(case.layout.to_ncx(out.ndim - 2)).astype(np.float64)
        size = np.abs(expected)
        allowed = case.slack * wide * np.maximum(size, case.scale)
        if case.dtype is DType.BFLOAT16:
            allowed = allowed + unit * size
        with np.errstate(invalid="ignore"):
            right = np.abs(got - expected) <= allowed
        right |= (got == expected) | (np.isnan(got) & np.isnan(expected))
        if not right.all():
            at = tuple(int(i) for i in np.argwhere(~right)[0])
            raise AssertionError(
                f"output {number}: {(~right).sum()} of {right.size} are wrong, the first at {at}:"
                f" {got[at]!r}, expected {expected[at]!r}; {case}"
            )


def main(seeds: Mapping[str, range]) -> None:
    """Compute the cases that test modules draw from seeds, on both sides of the fence, and end the
    process."""
    faulthandler.enable()
    try:
        fence = Fence()
        with zoned_stacks():
            for name, numbers in seeds.items():
                module = import_module(f"tests.network.{name}")
                for seed, side in product(numbers, Side):
                    case = module.drawn(seed)
                    print(name, seed, side.value, case, flush=True)
                    checked(case, module.steps, fence.raised(side))
                    fence.check()
        print("done", flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
