"""Checks that convert a call's shapes, dtypes and frozen keywords to a problem.

`Operand`s describe the arrays of a call, `Keywords` its geometry and layouts. The functions here
are pure. `execution` caches their results, so a repeated call is not checked again. Every message
about shapes is written here.
"""

from __future__ import annotations

from functools import lru_cache, partial
from math import prod
from typing import NamedTuple

import numpy as np

from .argument_checks import Frozen, integer, one_of
from .arrays import Array, Operand, as_operand, converted, described, element_type, same_dtype
from .errors import ArgumentError, DTypeError, ShapeError
from .keywords import (
    PRELU,
    Keywords,
    convolved_axes,
    frozen_activation,
    is_prelu,
    rounds,
    transposed_axes,
)
from .keywords import epilogue as epilogue_of
from .problem import NO_EPILOGUE, TF32, DataLayout, Direction, Epilogue, Problem, WeightLayout

Shape = tuple[int, ...]

_MAX_BYTES = 1 << 62
_GROUPS = "Groups are equal blocks of channels; use 1 for an ordinary layer."


class Signature(NamedTuple):
    """A checked call: its problem, the caller's result shape and bytes, and whether x has N."""

    problem: Problem
    shape: Shape
    nbytes: int
    batched: bool

    @classmethod
    def of(cls, problem: Problem, shape: Shape, *, batched: bool) -> Signature:
        """Return the signature of a problem whose result has `shape`.

        An empty result has 0 bytes, unless its other extents are too large for any array.
        """
        span = problem.dtype.itemsize * prod(max(1, size) for size in shape)
        nbytes = span if all(shape) or span > _MAX_BYTES else 0
        return cls(problem, shape, nbytes, batched)

    @classmethod
    def whole(cls, problem: Problem) -> Signature:
        """Return the signature of a problem whose operands have a batch axis."""
        return cls.of(problem, problem.result_shape, batched=True)


class Request(NamedTuple):
    """A call without its data: the input of `plan`, `conv_plan` and `explain`."""

    x: Operand
    weight: Operand
    bias: Operand | None
    keywords: Keywords
    activation: Frozen
    convolves: bool = False  # ordinary, not transposed

    def signature(self, *, residual: bool) -> Signature:
        """Return the checked signature, with or without a residual."""
        bare = self._with(None)
        return self._with(Operand(bare.shape, self.x.dtype)) if residual else bare

    def gradient(self, direction: Direction) -> Signature:
        """Return the signature of a gradient of a transposed convolution, without an epilogue."""
        bare = self._replace(bias=None, activation=None).signature(residual=False)
        grad = Operand(bare.shape, self.x.dtype)
        signatures = transposed_gradient(grad, self.x, self.weight, self.keywords, False)
        return signatures["x" if direction is Direction.INPUT_GRAD else "weight"]

    def takes_residual(self, residual: object) -> bool:
        """Return whether `residual` (None, a bool or an array like the result) requests one."""
        if residual is None or isinstance(residual, bool | np.bool_):
            return bool(residual)
        if not any(hasattr(type(residual), name) for name in ("__array__", "__dlpack__")):
            expected, remedy = "None, a bool or an array", "Write True to plan for a residual."
            raise DTypeError("residual", f"a {type(residual).__name__}", expected, remedy)
        self._with(described(as_operand("residual", residual)))
        return True

    def _with(self, residual: Operand | None) -> Signature:
        x, weight, bias, keywords, activation, convolves = self
        call = convolution if convolves else transposed
        try:
            return call(x, weight, bias, residual, keywords, activation)
        except ShapeError as error:  # the caller passed x only as `input_shape`
            raise error.renamed("x.shape", "input_shape") from None


def activation_of(value: object, dtype: object = None) -> tuple[Frozen, Array | None]:
    """Return a hashable activation, and PReLU's slopes, converted to `dtype` unless it is None.

    For PReLU the hashable part is ("prelu", Operand), which describes the slopes.
    """
    if value is None or type(value) is str:
        return value, None
    if is_prelu(value):
        slopes = converted("slopes", value[1], dtype)
        return (PRELU, described(slopes)), slopes
    return frozen_activation(value), None


@lru_cache(maxsize=1024)  # models repeat layers
def _forward(
    convolves: bool,
    x: Operand,
    weight: Operand,
    bias: Operand | None,
    residual: Operand | None,
    keywords: Keywords,
    activation: Frozen,
) -> Signature:
    """Check a forward call. A convolution is the input gradient of its transpose."""
    epilogue = epilogue_of(activation, residual is not None)
    direction = _DIRECTION[convolves]
    problem, batched = _problem(x, weight, keywords, convolves, direction, bias, epilogue)
    shape = problem.result_shape if batched else problem.result_shape[1:]
    slopes, channels = activation[1] if epilogue.slopes else None, (problem.result_channels,)
    for name, operand, fitting, meaning, remedy in (
        ("bias", bias, channels, "one value per output channel", _FLATTEN),
        ("slopes", slopes, channels, "one value per output channel", _ONE_SLOPE),
        ("residual", residual, shape, "the shape of the result", _OUTPUT_SHAPE),
    ):
        if operand is not None:
            same_dtype("weight", weight.dtype, name, operand.dtype)
            if operand.shape != fitting:
                expected = f"{fitting}, {meaning}"
                raise ShapeError(f"{name}.shape", str(operand.shape), expected, remedy)
    return Signature.of(problem, shape, batched=batched)


_FLATTEN = "Flatten it, as in bias.reshape(-1), if it has more axes."
_ONE_SLOPE = "One slope for all channels is activation=('leaky_relu', slope)."
_OUTPUT_SHAPE = "upconv.output_shape computes it in advance."


def _backward(
    convolves: bool,
    grad: Operand,
    x: Operand,
    weight: Operand,
    keywords: Keywords,
    accumulate: bool,
) -> dict[str, Signature]:
    """Check a backward call. The x gradient of a convolution is its transpose's forward result."""
    arguments = x, weight, keywords, convolves, _DIRECTION[not convolves]
    of_x, batched = _problem(*arguments, None, NO_EPILOGUE, accumulate)
    same_dtype("x", x.dtype, "grad", grad.dtype)
    expected = of_x.x_shape if convolves else of_x.y_shape
    shape = expected if batched else expected[1:]
    if grad.shape != shape:
        remedy = "Pass the keywords of the forward call."
        expected_text = f"{shape}, the shape of the forward result"
        raise ShapeError("grad.shape", str(grad.shape), expected_text, remedy)
    of_weight = of_x.replace(direction=Direction.WEIGHT_GRAD)
    return {
        "x": Signature.of(of_x, x.shape, batched=batched),
        "weight": Signature.of(of_weight, weight.shape, batched=batched),
    }


_DIRECTION = (Direction.FORWARD, Direction.INPUT_GRAD)
"""The direction of a transposed convolution, and that of an ordinary convolution."""

transposed, convolution = partial(_forward, False), partial(_forward, True)
"""The signatures of `conv_transpose` and `conv`."""

transposed_gradient, convolution_gradient = partial(_backward, False), partial(_backward, True)
"""The signatures, "x" and "weight", of `conv_transpose_backward` and `conv_backward`."""


def _problem(
    x: Operand, weight: Operand, keywords: Keywords, convolves: bool,
    direction: Direction, bias: Operand | None, epilogue: Epilogue, accumulate: bool = False,
) -> tuple[Problem, bool]:  # fmt: skip
    """Return the problem, and whether x has a batch axis.

    A convolution is expressed by its transpose: its outputs are the transpose's inputs.
    """
    frame = _Frame.of(x, weight, keywords)
    i, o, kernel = frame.weight_extents(weight.shape)
    groups = integer("groups", keywords.groups, 1, remedy=_GROUPS)
    wanted, swapped = (i * groups, o * groups) if convolves else (i, o)
    if frame.channels != wanted:
        frame.check_rank(x, weight, wanted)
        got = f"{weight.shape}, with {i} on axis I of {frame.weight_layout.value}"
        over = (f" / {groups}", " over groups") if convolves and groups > 1 else ("", "")
        expected = f"{frame.channels}{over[0]} there, the channels of x {x.shape}{over[1]}"
        raise ShapeError("weight.shape", got, expected, frame.hint(x.shape, wanted, swapped))
    divided, name = (o, "output channels") if convolves else (i, "input channels")
    if divided % groups:
        raise ArgumentError("groups", str(groups), f"a divisor of the {divided} {name}", _GROUPS)
    if convolves:
        stride, padding, dilation = keywords.stride, keywords.padding, keywords.dilation
        axes = convolved_axes(frame.size, kernel, stride, padding, dilation)
        channels, order = (o, frame.channels), frame.weight_layout.swapped()
    else:
        axes = transposed_axes(frame.size, kernel, *keywords[:4], keywords.output_size)
        channels, order = (i, o * groups), frame.weight_layout
    kind = element_type("x", x.dtype)
    problem = Problem(
        direction, axes, frame.batch, *channels, groups, kind, frame.layout, order,
        bias is not None, epilogue, accumulate, rounds(keywords.precision, kind),
        keywords.precision == TF32,
    )  # fmt: skip
    return problem, frame.batched


class _Frame(NamedTuple):
    """Batch, channels and spatial size of x, read by its layout."""

    layout: DataLayout
    weight_layout: WeightLayout
    batched: bool
    batch: int
    channels: int
    size: Shape

    @classmethod
    def of(cls, x: Operand, weight: Operand, keywords: Keywords) -> _Frame:
        layout = one_of("layout", keywords.layout, DataLayout)
        weight_layout = one_of("weight_layout", keywords.weight_layout, WeightLayout)
        rank = len(weight.shape) - 2
        if rank < 1:
            expected = f"at least 3 axes: two of channels and a kernel ({weight_layout.value})"
            remedy = "For one tap add an axis, as in weight[..., None]."
            raise ShapeError("weight.shape", str(weight.shape), expected, remedy)
        if len(x.shape) not in (rank + 1, rank + 2):
            axes = "axis" if rank == 1 else "axes"
            order = f"{layout.value}, with {rank} spatial {axes} like the kernel"
            expected = f"{rank + 2} axes ({order}), or {rank + 1} without the batch"
            remedy = "Add the missing axis, as in x[None]."
            if len(x.shape) > rank + 2:
                remedy = "If the weight lacks an axis, add it, as in weight[..., None]."
            raise ShapeError("x.shape", str(x.shape), expected, remedy)
        same_dtype("x", x.dtype, "weight", weight.dtype)
        batched = len(x.shape) == rank + 2
        shape = x.shape if batched else (1, *x.shape)
        if min(weight.shape) < 1:
            remedy = "A layer has at least one channel and one tap."
            raise ShapeError("weight.shape", str(weight.shape), "no axis of size 0", remedy)
        ordered = [shape[axis] for axis in layout.to_ncx(rank)]
        if ordered[1] < 1:
            expected = f"at least 1 channel ({layout.value})"
            remedy = "Only the batch and the spatial axes may be empty."
            raise ShapeError("x.shape", str(x.shape), expected, remedy)
        return cls(layout, weight_layout, batched, ordered[0], ordered[1], tuple(ordered[2:]))

    def check_rank(self, x: Operand, weight: Operand, channels: int) -> None:
        """Refuse an unbatched x whose channels would fit if a spatial axis were added.

        Call it only for an x whose channels do not fit.
        """
        rank = len(self.size)
        if not self.batched and x.shape[self.layout.to_ncx(rank - 1)[1]] == channels:
            got = f"{x.shape}, with {rank - 1} spatial {'axis' if rank == 2 else 'axes'}"
            axes = f"{rank + 2} axes ({self.layout.value}), or {rank + 1} without the batch"
            expected = f"{rank}, like the weight {weight.shape}: {axes}"
            remedy = "Add the missing axis, as in x[..., None], or use another weight."
            raise ShapeError("x.shape", got, expected, remedy)

    def hint(self, x: Shape, wanted: int, swapped: int) -> str:
        """Advise on an x without `wanted` channels; `swapped`: that number with I and O swapped."""
        order, is_last = self.weight_layout, self.layout is DataLayout.NXC
        if self.channels == swapped:
            other = f"weight_layout={order.swapped().value!r}"
            return f"Axes I and O look swapped: use {other}, or transpose the weight."
        if not is_last and x[-1] == wanted:
            return "If the channels of x are its last axis, use layout='NXC'."
        if is_last and wanted in x[:2]:
            return "If the channels of x are its first axis after N, use layout='NCX'."
        return (
            f"Check that the weight is in the order {order.value!r} (I input, O output channels)."
        )

    def weight_extents(self, shape: Shape) -> tuple[int, int, Shape]:
        """Return the extents of axes I and O, and the kernel."""
        i, o, *kernel = (shape[axis] for axis in self.weight_layout.to_iox(len(shape) - 2))
        return i, o, tuple(kernel)
