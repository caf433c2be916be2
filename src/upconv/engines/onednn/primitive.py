"""A problem on the library: its packed weight, and its arrays in the library's layouts.

Data is reordered on input and output if its layout differs from the library's. Arrays that are not
contiguous are copied. This scratch memory depends on the call's arrays, not on its problem, so it
is allocated here and not counted in `workspace_bytes`.

Implementations may multiply the zeros around data by the other operand, which is exact unless that
is infinite or NaN. Such weights never reach this code (`nonfinite`). If a weight gradient is not
finite, the reference engine, which multiplies no padding, computes it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ... import memory
from ...activations import SCRATCH_BYTES, apply
from ...problem import DType, Problem
from ..addresses import address_of
from ..base import Array, Maybe
from ..copies import Tensor, contiguous, laid_out
from ..nonfinite import NonFinite, is_finite, reference
from .abi import DTYPE, Arg, Handle
from .candidates import Candidate
from .descriptors import Kind
from .library import Runtime
from .sequence import PrimitiveSequence

_RESIDENT = 1 << 18
"""Approximate bytes that a primitive keeps: code and descriptors, including its reorders'."""


@dataclass(frozen=True, slots=True, eq=False)
class _Packed:
    """A weight in the library's layout."""

    array: Array
    address: int


class OnednnPrimitive:
    """One problem, ready to run; see the module's docstring."""

    resident_bytes = _RESIDENT
    predicted_cycles = 0.0  # there is no cost model: the library does not predict its run time

    def __init__(
        self, runtime: Runtime, problem: Problem, threads: int, candidate: Candidate
    ) -> None:
        self._problem, self._threads, self._candidate = problem, threads, candidate
        self._offer = offer = candidate.offer
        self._runtime, self._backward = runtime, offer.operation.kind is Kind.WEIGHTS
        self._result = offer.result.numpy
        self._finishes = not offer.complete
        sources = ((offer.operation.src, candidate.src), (offer.operation.dst, candidate.dst))
        self._sources = sources[: 1 + self._backward]
        self._packing = self._packing_sequence()
        self._sequence = self._run_sequence()
        self.workspace_bytes = self._workspace_bytes()
        self.description = self._description()

    # Preparing ------------------------------------------------------------------------------------

    def _run_sequence(self) -> PrimitiveSequence:
        """Build the sequence for a run; its arguments are a, b, out, bias, residual."""
        candidate, problem, operation = self._candidate, self._problem, self._offer.operation
        sequence = PrimitiveSequence(self._runtime, self._threads)
        operands = [
            self._reordered(sequence, sequence.argument(self._given(tensor)), wanted)
            for tensor, wanted in self._sources
        ]
        arguments: dict[Any, int] = {Arg.SRC: operands[0]}
        if self._backward:
            arguments[Arg.DIFF_DST] = operands[1]
            argument, tensor, wanted = Arg.DIFF_WEIGHTS, operation.weights, candidate.weights
        else:
            arguments[Arg.WEIGHTS] = sequence.argument(candidate.weights)
            argument, tensor, wanted = Arg.DST, operation.dst, candidate.dst
        source = self._given(tensor, self._offer.result if self._finishes else problem.dtype)
        out = sequence.argument(source)
        adds_after = problem.accumulate and not self._offer.adds and not self._finishes
        direct = not adds_after and self._same(source, wanted)
        result = out if direct else sequence.temporary(wanted)
        if self._offer.bias is not None:
            channels = Tensor((problem.result_channels,), (1,))
            arguments[Arg.BIAS] = sequence.argument(self._given(channels))
        if candidate.residual is not None:
            residual = sequence.argument(self._given(tensor))
            reordered = self._reordered(sequence, residual, candidate.residual)
            arguments[Arg.POST_OP | Arg.SRC_1] = reordered
        sequence.step(candidate.descriptor, {**arguments, argument: result})
        if not direct:
            sequence.reorder(result, out, add=adds_after)
        return sequence

    def _reordered(self, sequence: PrimitiveSequence, slot: int, wanted: Handle) -> int:
        """Return a slot with the same data in the layout `wanted`."""
        if self._same(sequence.layout(slot), wanted):
            return slot
        inside = sequence.temporary(wanted)
        sequence.reorder(slot, inside)
        return inside

    def _packing_sequence(self) -> PrimitiveSequence | None:
        """Build the sequence that packs a weight, or return None if packing is not needed."""
        source, wanted = self._given(self._offer.operation.weights), self._candidate.weights
        self._packed_bytes = self._runtime.library.memory_desc_get_size(wanted)
        if self._backward or self._same(source, wanted):
            return None
        sequence = PrimitiveSequence(self._runtime, self._threads)
        sequence.reorder(sequence.argument(source), sequence.argument(wanted))
        return sequence

    def _given(self, tensor: Tensor, dtype: DType | None = None) -> Handle:
        element = DTYPE[dtype or self._problem.dtype]
        return self._runtime.library.strided(tensor.dims, element, tensor.strides)

    def _same(self, first: Handle, second: Handle) -> bool:
        return bool(self._runtime.library.memory_desc_equal(first, second))

    def _workspace_bytes(self) -> int:
        """Return the bytes of one run's workspace and of NumPy's arrays after it."""
        result = prod(self._problem.result_shape)
        finishing = result * self._result.itemsize + SCRATCH_BYTES if self._finishes else 0
        before = result * self._problem.dtype.itemsize if self._backward else 0
        return self._sequence.nbytes + finishing + 2 * before

    def _description(self) -> str:
        """Return the implementation's name in the library, and the steps around it."""
        candidate = self._candidate
        around = self._sequence.reorders
        words = [
            self._offer.operation.kind.value.replace("_", " "),
            f"by {candidate.implementation}",
            f"with {around} reorders of data" if around else "data as given",
            "" if self._offer.complete else "then NumPy",
        ]
        return ", ".join(filter(None, words))

    # Running --------------------------------------------------------------------------------------

    def pack(self, weight: Array) -> _Packed:
        """Return the weight in the library's layout; raise `NonFinite` if it is not finite."""
        if weight.nbytes > memory.ALWAYS_FINE:
            memory.require(2 * weight.nbytes + self._packed_bytes, "the packed weight")
        if not is_finite(weight):
            raise NonFinite
        weight = contiguous(weight)
        if self._packing is None:
            return _Packed(weight, address_of(weight))
        packed = np.empty(self._packed_bytes + 64, np.uint8)
        address = -(-address_of(packed) // 64) * 64
        self._packing.run(address_of(weight), address)
        return _Packed(packed, address)

    def run(
        self,
        out: Array,
        a: Array,
        b: Any,
        bias: Maybe = None,
        residual: Maybe = None,
        slopes: Maybe = None,
        second: Maybe = None,
    ) -> None:
        """Compute into `out`; see `Primitive.run`."""
        if self._backward:
            self._weight_grad(out, a, b)
        elif self._finishes:
            self._in_two_parts(out, a, b, bias, residual)
        else:
            self._whole(out, a, b, bias, residual)

    def close(self) -> None:
        """Destroy the library's objects."""
        for sequence in (self._sequence, self._packing):
            if sequence is not None:
                sequence.close()
        self._candidate.descriptor.close()

    def _whole(self, out: Array, a: Array, b: _Packed, bias: Maybe, residual: Maybe) -> None:
        """Compute everything with the library."""
        target = laid_out("the result", out, filled=self._problem.accumulate)
        self._linear(target, a, b, bias, residual)
        if target is not out:
            out[...] = target

    def _in_two_parts(self, out: Array, a: Array, b: _Packed, bias: Maybe, residual: Maybe) -> None:
        """Compute the exact part with the library, in float32, and the rest with NumPy."""
        problem = self._problem
        alone = out.dtype == self._result and out.flags.c_contiguous and not problem.accumulate
        result = out if alone else np.empty(problem.result_shape, self._result)
        inside, late = self._candidate.residual is not None, self._offer.bias is None
        self._linear(result, a, b, None if late else bias, residual if inside else None)
        with np.errstate(all="ignore"):  # overflow to infinity and NaN are results, not accidents
            if late and bias is not None:
                along = bias.reshape(problem.layout.by_channel(problem.rank))
                np.add(result, along, out=result, casting="unsafe")
            if residual is not None and not inside:
                np.add(result, residual, out=result, casting="unsafe")
            if problem.accumulate:
                np.add(out, result, out=result, casting="unsafe")
            apply(problem.epilogue.activation, problem.epilogue.slope, result)
            if result is not out:
                out[...] = result

    def _linear(self, target: Array, a: Array, b: _Packed, bias: Maybe, residual: Maybe) -> None:
        """Compute the library's part into a contiguous array of its result type."""
        a = laid_out("the operand", a)
        named = ("the bias", bias), ("the residual", residual)
        more = [laid_out(what, array) for what, array in named if array is not None]
        self._sequence.run(address_of(a), b.address, address_of(target), *map(address_of, more))

    def _weight_grad(self, out: Array, a: Array, b: Array) -> None:
        target = laid_out("the result", out, filled=self._problem.accumulate)
        before = target.copy() if self._problem.accumulate else None
        a, b = laid_out("the gradient", a), laid_out("the input", b)
        self._sequence.run(address_of(a), address_of(b), address_of(target))
        if not is_finite(target):
            if before is not None:
                target[...] = before
            reference(self._problem, self._threads).run(target, a, b)
        if target is not out:
            out[...] = target
