"""A problem on the library: its weight packed, its arrays brought where they are wanted.

Data is reordered on the way in and out exactly where the library's layout is not the one it lies
in. Arrays that are not contiguous are copied: that is scratch memory which depends on the arrays of
a call, not on its problem; it is asked for here, and `workspace_bytes` does not hold it.

Implementations may multiply the zeros around data by weights, which is exact unless a weight is
infinite or NaN. Such weights go to the reference engine, which multiplies only what there is; and
so does a weight gradient that came out not finite, whose operands may have met such zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ... import memory
from ...activations import SCRATCH_BYTES, apply
from ...problem import DType, Problem
from ..addresses import address_of
from ..base import Array
from ..copies import contiguous
from ..nonfinite import NonFiniteWeight, is_finite, reference
from ..workspace import Workspace
from .abi import DTYPE, Arg, Handle, Library
from .candidates import Candidate
from .descriptors import Kind, Tensor
from .library import Runtime
from .script import Script

_RESIDENT = 1 << 18
"""What a primitive keeps: its code, its descriptors, and the same for its reorders; about."""


@dataclass(frozen=True, slots=True, eq=False)
class _Packed:
    """A weight in the library's layout."""

    array: Array
    address: int


@dataclass(frozen=True, slots=True, eq=False)
class Reordered:
    """An operand, and the address of the same in a layout of the library's."""

    array: Array
    address: int


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """A layout that an operand is brought into, the one it lies in, and the script that does it.

    Equal are two with the same layouts.
    """

    library: Library
    given: Handle
    wanted: Handle
    script: Script

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Form):
            return NotImplemented
        pairs = (self.given, other.given), (self.wanted, other.wanted)
        return all(self.library.memory_desc_equal(*pair) for pair in pairs)

    @property
    def nbytes(self) -> int:
        """Of an operand in the layout wanted."""
        return int(self.library.memory_desc_get_size(self.wanted))


class OnednnPrimitive:
    """One problem, ready to run; see the module's docstring."""

    resident_bytes = _RESIDENT
    predicted_cycles = 0.0  # there is no model: the library does not tell

    def __init__(
        self, runtime: Runtime, problem: Problem, threads: int, candidate: Candidate
    ) -> None:
        self._problem, self._threads, self._candidate = problem, threads, candidate
        self._runtime, self._backward = runtime, candidate.operation.kind is Kind.WEIGHTS
        self._turn: Any = (...,)
        if candidate.operation.flipped:
            kernel = problem.weight_layout.to_iox(problem.rank)[2:]
            flip = [slice(None, None, -1 if i in kernel else 1) for i in range(problem.rank + 2)]
            self._turn = tuple(flip)
        self._result = candidate.result.numpy
        self._finishes = not candidate.complete
        operation = candidate.operation
        sources = ((operation.src, candidate.src), (operation.dst, candidate.dst))
        self._sources = sources[: 1 + self._backward]
        self._packing = self._written_packing()
        self._script = self._written()
        self._handed: dict[int, Script] = {}
        self._forms: dict[int, Form | None] = {}
        self.workspace_bytes = self._workspace_bytes()
        self.description = self._description()

    # Preparing ------------------------------------------------------------------------------------

    def _written(self, handed: int | None = None) -> Script:
        """The script of a run, outside slots in order a, b, out, bias, residual.

        Operand `handed` comes in the layout that is wanted.
        """
        found, script = self._candidate, Script(self._runtime, self._threads)
        operands = []
        for position, (tensor, wanted) in enumerate(self._sources):
            given = wanted if position == handed else self._given(tensor)
            operands.append(self._brought(script, script.outside(given), wanted))
        arguments: dict[Any, int] = {Arg.SRC: operands[0]}
        if self._backward:
            arguments[Arg.DIFF_DST] = operands[1]
            kernel = found.operation.weights, found.weights
            self._deliver(script, Arg.DIFF_WEIGHTS, *kernel, arguments)
        else:
            arguments[Arg.WEIGHTS] = script.outside(found.weights)
            self._deliver(script, Arg.DST, found.operation.dst, found.dst, arguments)
        return script

    def _deliver(
        self,
        script: Script,
        argument: Arg,
        tensor: Tensor,
        wanted: Handle,
        arguments: dict[Any, int],
    ) -> None:
        """The step that computes, and the reorder of its result."""
        found, problem = self._candidate, self._problem
        kind = found.result if self._finishes else problem.dtype
        given = self._given(tensor, kind)
        out = script.outside(given)
        adds_after = problem.accumulate and not found.adds and not self._finishes
        direct = not adds_after and self._same(given, wanted)
        result = out if direct else script.inside(wanted)
        if found.apart:
            channels = Tensor(
                (1, problem.result_channels, *[1] * problem.rank),
                (problem.result_channels, 1, *[problem.result_channels] * problem.rank),
            )
            bias = script.outside(self._given(channels))
        elif problem.bias:
            channels = Tensor((problem.result_channels,), (1,))
            arguments[Arg.BIAS] = script.outside(self._given(channels))
        if found.residual is not None:
            residual = script.outside(self._given(tensor))
            brought = self._brought(script, residual, found.residual)
            arguments[Arg.POST_OP | Arg.SRC_1] = brought
        script.step(found.descriptor, {**arguments, argument: result})
        if found.apart:
            script.add(bias, result)
        if not direct:
            script.reorder(result, out, add=adds_after)

    def _brought(self, script: Script, slot: int, wanted: Handle) -> int:
        """A slot that holds the same in the layout wanted."""
        if self._same(script.layout(slot), wanted):
            return slot
        inside = script.inside(wanted)
        script.reorder(slot, inside)
        return inside

    def _written_packing(self) -> Script | None:
        """The script that packs a weight; None where that is to take it as it lies."""
        operation, wanted = self._candidate.operation, self._candidate.weights
        self._packed_bytes = self._runtime.library.memory_desc_get_size(wanted)
        return None if self._backward else self._reordering(operation.weights, wanted)

    def _reordering(self, tensor: Tensor, wanted: Handle) -> Script | None:
        """A script from one outside slot to another; None where the layouts are the same."""
        given, script = self._given(tensor), Script(self._runtime, self._threads)
        if self._same(given, wanted):
            return None
        source = script.outside(given)
        script.reorder(source, script.outside(wanted))
        return script

    def _given(self, tensor: Tensor, dtype: DType | None = None) -> Handle:
        element = DTYPE[dtype or self._problem.dtype]
        return self._runtime.library.strided(tensor.dims, element, tensor.strides)

    def _same(self, first: Handle, second: Handle) -> bool:
        return bool(self._runtime.library.memory_desc_equal(first, second))

    def _workspace_bytes(self) -> int:
        """One run's workspace, and what NumPy does after it."""
        result = prod(self._problem.result_shape)
        finishing = result * self._result.itemsize + SCRATCH_BYTES if self._finishes else 0
        before = result * self._problem.dtype.itemsize if self._backward else 0
        return self._script.nbytes + finishing + 2 * before

    def _description(self) -> str:
        """The library's name of the implementation, and what happens around it."""
        found = self._candidate
        around = self._script.reorders
        words = [
            found.operation.kind.value.replace("_", " "),
            f"by {found.implementation}",
            f"with {around} reorders of data" if around else "data as it lies",
            "then the bias" if found.apart else "",
            "" if found.complete else "the rest by NumPy",
        ]
        return ", ".join(filter(None, words))

    # Running --------------------------------------------------------------------------------------

    def pack(self, weight: Array) -> _Packed | NonFiniteWeight:
        """The weight in the layout the library wants, or as it is where it is not finite."""
        if weight.nbytes > memory.ALWAYS_FINE:  # what would not fit is not looked at either
            memory.require(2 * weight.nbytes + self._packed_bytes, "the packed weight")
        if not is_finite(weight):
            return NonFiniteWeight(self._problem, self._threads, weight)
        weight = contiguous(weight[self._turn])
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
        bias: Array | None = None,
        residual: Array | None = None,
    ) -> None:
        """Compute into `out`; see `Primitive.run`."""
        if isinstance(b, NonFiniteWeight):
            b.run(out, a.array if isinstance(a, Reordered) else a, bias, residual)
        elif self._backward:
            self._weight_grad(out, a, b)
        elif self._finishes:
            self._in_two_parts(out, a, b, bias, residual)
        else:
            self._whole(out, a, b, bias, residual)

    def form(self, position: int) -> Form | None:
        """What operand a (0) or, of a weight gradient, b (1) is reordered to; None: it is not."""
        if position not in self._forms:
            tensor, wanted = self._sources[position]
            script = self._reordering(tensor, wanted)
            library, given = self._runtime.library, self._given(tensor)
            self._forms[position] = Form(library, given, wanted, script) if script else None
        return self._forms[position]

    @contextmanager
    def reordered(self, position: int, operand: Array) -> Iterator[Reordered]:
        """The operand in that form, for `run` of this primitive and of others that want the same;
        `MemoryError` where there is no room for it."""
        form, operand = self.form(position), _contiguous("the gradient", operand)
        if form is None:
            yield Reordered(operand, address_of(operand))
            return
        memory.require(form.nbytes, "the reordered gradient")
        with Workspace(form.nbytes) as address:
            form.script.run(address_of(operand), address)
            yield Reordered(operand, address)

    def close(self) -> None:
        """Destroy what the library made."""
        forms = [form.script for form in self._forms.values() if form]
        for script in (self._script, self._packing, *self._handed.values(), *forms):
            if script is not None:
                script.close()
        self._candidate.descriptor.close()

    def _whole(
        self, out: Array, a: Array, b: _Packed, bias: Array | None, residual: Array | None
    ) -> None:
        """All of it by the library."""
        target = self._target(out)
        self._linear(target, a, b, bias, residual)
        if target is not out:
            out[...] = target

    def _in_two_parts(
        self, out: Array, a: Array, b: _Packed, bias: Array | None, residual: Array | None
    ) -> None:
        """As much as is exact by the library, into float32, and what follows by NumPy."""
        problem = self._problem
        alone = out.dtype == self._result and out.flags.c_contiguous and not problem.accumulate
        result = out if alone else np.empty(problem.result_shape, self._result)
        inside = self._candidate.residual is not None
        self._linear(result, a, b, bias, residual if inside else None)
        with np.errstate(all="ignore"):  # overflow to infinity and NaN are results, not accidents
            if residual is not None and not inside:
                np.add(result, residual, out=result, casting="unsafe")
            apply(problem.epilogue.activation, problem.epilogue.slope, result)
            if problem.accumulate:
                np.add(out, result, out=out, casting="unsafe")
            elif result is not out:
                out[...] = result

    def _linear(
        self,
        target: Array,
        a: Array | Reordered,
        b: _Packed,
        bias: Array | None,
        residual: Array | None,
    ) -> None:
        """The library's part, into a contiguous array of the type it leaves."""
        script = self._script_for(a)
        a, address = _placed("the operand", a)
        addresses = [address, b.address, address_of(target)]
        if bias is not None:
            bias = _contiguous("the bias", bias)
            addresses.append(address_of(bias))
        if residual is not None:
            residual = _contiguous("the residual", residual)
            addresses.append(address_of(residual))
        script.run(*addresses)

    def _weight_grad(self, out: Array, a: Array | Reordered, b: Array | Reordered) -> None:
        target = self._target(out)
        before = target.copy() if self._problem.accumulate else None
        script = self._script_for(a, b)
        (a, first), (b, second) = _placed("the gradient", a), _placed("the input", b)
        script.run(first, second, address_of(target))
        if not is_finite(target):
            if before is not None:
                target[...] = before
            reference(self._problem, self._threads).run(target, a, b)
        if target is not out:
            out[...] = target

    def _script_for(self, *operands: Any) -> Script:
        """The script that takes these operands, one of which may be reordered already."""
        for position, operand in enumerate(operands):
            if isinstance(operand, Reordered):
                if position not in self._handed:
                    self._handed[position] = self._written(position)
                return self._handed[position]
        return self._script

    def _target(self, out: Array) -> Array:
        """`out`, or a contiguous copy of it."""
        if out.flags.c_contiguous:
            return out
        memory.require(out.nbytes, "a copy of the result")
        if self._problem.accumulate:
            return out.copy(order="C")
        return np.empty(out.shape, out.dtype)


def _placed(what: str, operand: Array | Reordered) -> tuple[Array, int]:
    """The operand as it was given, contiguous, and the address of what the library is to read."""
    if isinstance(operand, Reordered):
        return operand.array, operand.address
    operand = _contiguous(what, operand)
    return operand, address_of(operand)


def _contiguous(what: str, array: Array) -> Array:
    if array.flags.c_contiguous:
        return array
    memory.require(array.nbytes, f"a copy of {what}")
    return contiguous(array)
