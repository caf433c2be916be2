"""A problem on a GPU: cuDNN's convolution of its interior, and an elementwise kernel around it.

cuDNN is fast on contiguous tensors with equal paddings, and slow or unable on others. So

    outputs that no product reaches   are left out of cuDNN's problem (`interior`);
    operands with other strides       are first copied into contiguous memory;
    unequal paddings                  become equal paddings of a larger image, if cuDNN requires it;
    a bias, residual and activation   are part of the graph, if cuDNN can fuse them;
    everything else                   is done by the elementwise kernel, which writes the result.

A `Machine` runs convolutions and kernels: a GPU, or in tests the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from ...devices import DeviceArray
from ...errors import EngineError, EngineRefusal
from ...problem import Direction, Problem
from ..base import Primitive
from ..interior import Interior
from ..jit.activation import NO_ACTIVATION, ActivationEpilogue
from . import operation
from .moves import Ends, Maybe, Mover, Moves
from .operation import NO_ENDS, Convolution, evened, filter_layout, fusible, without_epilogue

_ALIGNED = 16
"""Alignment in bytes that suffices for every cuDNN kernel."""

_MAX_FUSED = 4  # fused plans that tuning measures: some take a second to compile

_Index = tuple[slice | int, ...]


class Plan(Protocol):
    """A convolution that is ready to run, with the library's name for it and workspace bytes."""

    name: str
    workspace: int

    def run(
        self, result: DeviceArray, operands: Sequence[DeviceArray], ends: Sequence[Maybe]
    ) -> None:
        """Compute into contiguous memory; ends: bias and residual, if the graph has them."""


class Machine(Mover, Protocol):
    """A runner of convolutions and elementwise kernels."""

    def plan(self, convolution: Convolution, name: str = "") -> Plan | None:
        """Return the plan with a name, or for "" the first that can be built, or None."""

    def names(self, convolution: Convolution) -> Sequence[str]:
        """Return the names of a convolution's plans, those expected to be fastest first. Some of
        them cannot be built."""


class Form(NamedTuple):
    """A way to pass the interior to cuDNN.

    prefix: the prefix of its variants' names. problem: the problem that cuDNN computes. offsets,
    image_size: where the interior's image is within the image of `problem`. ends: the fused
    epilogue.
    """

    prefix: str
    problem: Problem
    offsets: tuple[int, ...]
    image_size: tuple[int, ...]
    ends: operation.Ends

    @property
    def convolution(self) -> Convolution:
        """cuDNN's operation for this form."""
        return Convolution.of(self.problem, self.ends)


def forms(problem: Problem, interior: Interior) -> Iterator[Form]:
    """Yield a problem's forms, beginning with the one that does most in one kernel."""
    inner = interior.problem
    if inner is None:
        return
    bare = without_epilogue(inner)
    larger, offsets = evened(bare)
    nowhere, size = (0,) * len(offsets), bare.out_size
    ends = fusible(problem) if inner == problem else None
    if ends:
        yield Form("fused ", bare, nowhere, size, ends)
    yield Form("", bare, nowhere, size, NO_ENDS)
    if larger != bare:
        yield Form("even ", larger, offsets, size, NO_ENDS)


def variants(machine: Machine, problem: Problem, most: int) -> tuple[str, ...]:
    """Return the names of all forms' plans, at most `most` per form."""
    return tuple(
        f"{form.prefix}{name}"
        for form in forms(problem, _interior(problem))
        for name in machine.names(form.convolution)[: _MAX_FUSED if form.ends else most]
    )


def primitive(machine: Machine, problem: Problem, variant: str = "") -> Primitive:
    """Return a problem's primitive. variant: one of `variants`, or "" for the first plan.

    Raises `EngineRefusal` if the library has no such plan.
    """
    interior = _interior(problem)
    possible = list(forms(problem, interior))
    if not possible:
        return EpilogueOnly(machine, problem)  # type: ignore[return-value]  # device arrays
    *words, name = variant.split(" ") if variant else ("",)
    for form in possible:
        if not variant or form.prefix.split() == words:
            plan = machine.plan(form.convolution, name)
            if plan is not None:
                return CudnnPrimitive(machine, problem, interior, form, plan)  # type: ignore[return-value]
    wanted = f" called {variant!r}" if variant else " within the allowed workspace"
    raise EngineRefusal(f"cuDNN has no plan{wanted} for {problem}.")


def _interior(problem: Problem) -> Interior:
    return Interior.of(problem, margins=False, points=True)


class EpilogueOnly:
    """A problem without products: its result is the epilogue applied to zeros."""

    predicted_cycles, workspace_bytes, resident_bytes, order = 0.0, 0, 0, None
    description = "nothing to multiply"

    def __init__(self, machine: Machine, problem: Problem) -> None:
        self._problem = problem
        self._moves = Moves(machine, problem.layout.to_ncx(problem.rank)[1])

    def pack(self, weight: DeviceArray) -> None:
        """Return None: the problem does not read its weight."""

    def run(self, out: DeviceArray, a: DeviceArray, b: Any, *ends: Maybe) -> None:
        """Compute into `out`; see `Primitive.run`."""
        if out.size:
            problem = self._problem
            begins, epilogue = (0,) * out.ndim, ActivationEpilogue.of(problem.epilogue)
            self._moves.run(out, None, begins, Ends(*ends), epilogue, accumulate=problem.accumulate)

    def close(self) -> None:
        """Do nothing: the primitive holds no resources."""


class CudnnPrimitive:
    """A problem computed by a cuDNN plan for one of its forms."""

    predicted_cycles, order = 0.0, None
    resident_bytes = 1 << 16  # an estimate: the library does not report it

    def __init__(
        self, machine: Machine, problem: Problem, interior: Interior, form: Form, plan: Plan
    ) -> None:
        self._problem, self._interior, self._form = problem, interior, form
        self._plan: Plan | None = plan
        _, channel, *self._spatial = problem.layout.to_ncx(problem.rank)
        self._moves = Moves(machine, channel)
        self._forward = problem.direction is Direction.FORWARD
        self._of_weight = problem.direction is Direction.WEIGHT_GRAD
        self._axes = _filter_axes(problem)
        self._in_order = self._axes == tuple(range(problem.rank + 2))
        self._epilogue = NO_ACTIVATION if form.ends else ActivationEpilogue.of(problem.epilogue)
        self._accumulates = problem.accumulate and not form.ends
        self._whole = interior.problem == problem
        # Whether the plan's result equals the problem's, except for its strides.
        self._complete = bool(form.ends) or problem == without_epilogue(problem)
        fits = self._whole and form.problem.axes == problem.axes
        self._direct = fits and self._complete and (self._in_order or not self._of_weight)
        self.workspace_bytes = 2 * problem.nbytes + plan.workspace  # bounds copies and a result
        self.description = ", ".join(self._words(plan))

    def _words(self, plan: Plan) -> Iterator[str]:
        yield f"cuDNN {plan.name}"
        if self._form.ends:
            yield "with the epilogue fused"
        elif not self._complete:
            yield "then an epilogue kernel"
        if any(self._form.offsets):
            yield "on a larger image"

    def pack(self, weight: DeviceArray) -> DeviceArray:
        """Return the interior's taps, contiguous in the order of the data's layout."""
        taps = weight if self._whole else weight[self._interior.w]
        return _ready(taps if self._in_order else taps.transpose(self._axes))

    def run(
        self,
        out: DeviceArray,
        a: DeviceArray,
        b: Any,
        bias: Maybe = None,
        residual: Maybe = None,
        slopes: Maybe = None,
        second: Maybe = None,
    ) -> None:
        """Compute into `out`; see `Primitive.run`."""
        plan = self._plan
        if plan is None:
            raise EngineError("This primitive is closed.")
        if (
            self._direct
            and _fits(out)
            and _fits(a)
            and _fits(b)
            and (bias is None or _fits(bias))
            and (residual is None or _fits(residual))
        ):
            plan.run(out, (a, b), (bias, residual))
        elif out.size:
            self._run(plan, out, a, b, Ends(bias, residual, slopes, second))

    def close(self) -> None:
        """Release the plan."""
        self._plan = None

    def _run(self, plan: Plan, out: DeviceArray, a: DeviceArray, b: Any, ends: Ends) -> None:
        """Run the general case: copy strided operands, and apply the epilogue in the kernel."""
        target, index = out, self._interior.result(self._problem.direction)
        if self._of_weight:
            target, index = out.transpose(self._axes), tuple(index[axis] for axis in self._axes)
        operands, shape, form = self._operands(a, b), self._result_shape(), self._form
        within: tuple[Maybe, Maybe] = None, None
        if form.ends:
            bias, residual = (None if array is None else _ready(array) for array in ends[:2])
            within, ends = (bias, residual), Ends()
        if self._complete and shape == target.shape and _fits(target):
            plan.run(target, operands, within)
            return
        source = target.copy() if form.ends.accumulate else out.empty(shape)
        plan.run(source, operands, within)
        if self._forward and any(form.offsets):
            source = source[self._window()]
        begins = tuple(part if isinstance(part, int) else part.start or 0 for part in index)
        self._moves.run(target, source, begins, ends, self._epilogue, accumulate=self._accumulates)

    def _operands(self, a: DeviceArray, b: DeviceArray) -> tuple[DeviceArray, DeviceArray]:
        """Return the interior's operands in the form that cuDNN reads."""
        interior = self._interior
        if not self._whole:
            a = a[interior.x if self._forward else interior.y]
            b = b[interior.x] if self._of_weight else b
        return _ready(a) if self._forward else self._image(a), _ready(b)

    def _image(self, image: DeviceArray) -> DeviceArray:
        """Return an image as given, or embedded in a larger image of zeros."""
        shape = self._form.problem.y_shape
        if image.shape == shape:
            return _ready(image)
        larger, begins = image.empty(shape), [0] * image.ndim
        for axis, offset in zip(self._spatial, self._form.offsets, strict=True):
            begins[axis] = offset
        self._moves.run(larger, image, tuple(begins))
        return larger

    def _window(self) -> _Index:
        """Return the index of the interior's image in the larger image."""
        index = [slice(None)] * (self._problem.rank + 2)
        form = self._form
        for axis, offset, size in zip(self._spatial, form.offsets, form.image_size, strict=True):
            index[axis] = slice(offset, offset + size)
        return tuple(index)

    def _result_shape(self) -> tuple[int, ...]:
        """Return the shape of the plan's result, with its axes in the target's order."""
        problem = self._form.problem
        if not self._of_weight:
            return problem.result_shape
        per_group = problem.out_channels // problem.groups
        layout = filter_layout(problem.layout)
        return layout.shape(problem.in_channels, per_group, problem.kernel)


def _filter_axes(problem: Problem) -> tuple[int, ...]:
    """Return the permutation of weight axes from the problem's order to cuDNN's."""
    order = problem.weight_layout.to_iox(problem.rank)
    wanted = filter_layout(problem.layout).to_iox(problem.rank)
    return tuple(order[wanted.index(axis)] for axis in range(problem.rank + 2))


def _fits(array: DeviceArray) -> bool:
    """Whether cuDNN can read or write an array in place."""
    return array.pointer % _ALIGNED == 0 and array.contiguous


def _ready(array: DeviceArray) -> DeviceArray:
    return array if _fits(array) else array.copy()
