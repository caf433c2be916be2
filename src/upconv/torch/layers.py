"""From a call in PyTorch's words to a problem: the checks of a call, made once per signature.

Arguments that say how tensors are combined travel as one `Geometry`, in PyTorch's terms: padding P
and output padding a on each axis, both ends of the result being cut by P and a positions added to
the end. Problems are remembered by shapes, dtype, layout and geometry.

What lives here: arguments and shapes. What never does: tensors' memory.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from operator import index
from typing import Any, NamedTuple

from torch.nn import functional

from ..arguments import epilogue
from ..dialects.torch import layer_of
from ..errors import ArgumentError, brief
from ..geometry import Axis, padded_size
from ..problem import DataLayout, Direction, DType, Problem
from .refusals import TensorArgumentError, TensorShapeError, TensorTypeError, for_tensors

Shape = tuple[int, ...]

FUNCTIONS: dict[int, Any] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
"""PyTorch's own, by the number of spatial axes."""


class Geometry(NamedTuple):
    """How a layer combines its operands; one int per spatial axis in each of the first four."""

    stride: Shape
    padding: Shape
    output_padding: Shape
    dilation: Shape
    groups: int

    def out_size(self, size: Any, kernel: Any) -> tuple[Any, ...]:
        """The spatial size of the result; sizes may be a compiler's symbols.

        >>> Geometry((2,), (1,), (1,), (1,), 1).out_size((3,), (3,))
        (6,)
        """
        columns = (size, kernel, self.stride, self.dilation, self.padding, self.output_padding)
        return tuple(padded_size(*row) for row in zip(*columns, strict=True))


def geometry_of(arguments: Any) -> Geometry:
    """A `Geometry` from the five arguments of an operator, which may be lists.

    >>> geometry_of([[2], [0], [0], [1], 1]).stride
    (2,)
    """
    stride, padding, output_padding, dilation, groups = arguments
    return Geometry(tuple(stride), tuple(padding), tuple(output_padding), tuple(dilation), groups)


def geometry(
    rank: int, stride: Any, padding: Any, output_padding: Any, dilation: Any, groups: Any
) -> Geometry:
    """PyTorch's arguments, each an int or one int per axis, as a `Geometry`.

    Raises `TensorTypeError` for what are no integers, `TensorArgumentError` for too many or few.

    >>> geometry(2, 2, (1, 0), [0], 1, 1).stride
    (2, 2)
    """
    if type(groups) is not int:
        groups = _integer("groups", groups)
    return Geometry(
        _each("stride", stride, rank),
        _each("padding", padding, rank),
        _each("output_padding", output_padding, rank),
        _each("dilation", dilation, rank),
        groups,
    )


def module_geometry(rank: int, module: Any, output_padding: Any) -> Geometry:
    """How a module combines its operands, by its attributes as they are now.

    PyTorch's constructor makes tuples of them; they may have been set to ints or lists since.
    Raises `TensorArgumentError` for a padding mode that transposed convolutions do not have.

    >>> from torch import nn
    >>> module = nn.ConvTranspose2d(1, 1, 3)
    >>> module.stride = 2
    >>> module_geometry(2, module, (0, 0)).stride
    (2, 2)
    """
    if module.padding_mode != "zeros":
        expected = "'zeros'"
        remedy = "PyTorch has no other one for transposed convolutions."
        raise TensorArgumentError("padding_mode", brief(module.padding_mode), expected, remedy)
    axes, groups = (module.stride, module.padding, output_padding, module.dilation), module.groups
    for entries in axes:
        if type(entries) is not tuple or len(entries) != rank:
            return geometry(rank, *axes, groups)
        for entry in entries:
            if type(entry) is not int:  # 2.0 and True are equal to integers that were taken before
                return geometry(rank, *axes, groups)
    if type(groups) is not int:
        return geometry(rank, *axes, groups)
    return Geometry(*axes, groups)


def _each(name: str, value: Any, rank: int) -> Any:
    """One integer per axis; one alone, in a list or not, stands for all."""
    if isinstance(value, (list, tuple)):  # a union is nothing that PyTorch 2.6 can compile
        entries = tuple([_integer(name, entry) for entry in value])
        if len(entries) == rank:
            return entries
        if len(entries) == 1:
            return entries * rank
        expected = f"an int or a tuple of {rank}, one per spatial axis of the weight"
        raise TensorArgumentError(name, brief(value), expected)
    return (_integer(name, value),) * rank


def _integer(name: str, value: Any) -> Any:
    if type(value) is int:
        return value
    if isinstance(value, (bool, str, float)) or not hasattr(value, "__index__"):
        got = f"{brief(value)} ({type(value).__name__})"
        raise TensorTypeError(name, got, "an int or a tuple of ints", _FORMS)
    if hasattr(value, "node"):  # a compiler's symbol: it counts as an int and stays what it is
        return value
    try:
        return index(value)
    except Exception:  # a tensor of several numbers, say
        raise TensorTypeError(name, brief(value), "an int or a tuple of ints", _FORMS) from None


_FORMS = "As in stride=2 or stride=(2, 2)."


@lru_cache(maxsize=4096)
def forward_problem(
    x: Shape,
    weight: Shape,
    bias: Shape | None,
    residual: Shape | None,
    dtype: DType,
    last: bool,
    how: Geometry,
    activation: str,
) -> Problem:
    """The problem of a batched forward call, from the shapes of its operands.

    Raises `TensorShapeError` and `TensorArgumentError` for what PyTorch refuses.

    >>> how = Geometry((2,), (0,), (0,), (1,), 1)
    >>> print(forward_problem((1, 3, 4), (3, 5, 2), None, None, DType.FLOAT32, False, how, ""))
    forward n1 c3->5 4->8 k2 s2 float32 NCX IOX
    """
    try:
        return _forward_problem(x, weight, bias, residual, dtype, last, how, activation)
    except ArgumentError as error:
        raise for_tensors(error) from None


@lru_cache(maxsize=4096)
def input_grad_problem(
    g: Shape, weight: Shape, size: Shape, dtype: DType, last: bool, how: Geometry
) -> Problem:
    """The problem whose result is the gradient of an input of spatial size `size`."""
    _require_axes("grad.shape", g, "weight.shape", weight, how)
    return _gradient(Direction.INPUT_GRAD, g, (g[0], weight[0], *size), weight, dtype, last, how)


@lru_cache(maxsize=4096)
def weight_grad_problem(
    g: Shape, x: Shape, kernel: Shape, dtype: DType, last: bool, how: Geometry
) -> Problem:
    """The problem whose result is the gradient of a weight with `kernel` taps."""
    _require_axes("grad.shape", g, "input.shape", x, how)
    weight = (x[1], g[1] // max(1, how.groups), *kernel)
    return _gradient(Direction.WEIGHT_GRAD, g, x, weight, dtype, last, how)


def _gradient(
    direction: Direction, g: Shape, x: Shape, weight: Shape, dtype: DType, last: bool, how: Geometry
) -> Problem:
    try:
        forward = _forward_problem(x, weight, None, None, dtype, last, how, "")
    except ArgumentError as error:
        raise for_tensors(error) from None
    expected = (forward.batch, forward.out_channels, *forward.out_size)
    if g != expected:
        raise TensorShapeError("grad.shape", str(g), f"{expected}, the shape of the forward result")
    return forward.replace(direction=direction)


def _forward_problem(
    x: Shape,
    weight: Shape,
    bias: Shape | None,
    residual: Shape | None,
    dtype: DType,
    last: bool,
    how: Geometry,
    activation: str,
) -> Problem:
    _require_axes("input.shape", x, "weight.shape", weight, how)
    _require_channels(x, weight, how.groups)
    problem = Problem(
        Direction.FORWARD,
        _spatial_axes(x, weight, how),
        x[0],
        x[1],
        weight[1] * how.groups,
        how.groups,
        dtype,
        DataLayout.NXC if last else DataLayout.NCX,
        bias=bias is not None,
        epilogue=epilogue(activation or None, residual is not None),
    )
    if bias is not None and bias != (problem.out_channels,):
        expected = f"({problem.out_channels},), one value per output channel"
        raise TensorShapeError("bias.shape", str(bias), expected)
    result = (problem.batch, problem.out_channels, *problem.out_size)
    if residual is not None and residual != result:
        expected = f"{result}, the shape of the result"
        raise TensorShapeError("residual.shape", str(residual), expected)
    return problem


def _spatial_axes(x: Shape, weight: Shape, how: Geometry) -> tuple[Axis, ...]:
    """The spatial axes of a call; PyTorch bounds output padding only where there is a batch.

    Empty results are given for every dtype and batch: to refuse all would be a surprise.
    """
    free = x[0] == 0 and min(how.padding + how.output_padding) >= 0
    layer = layer_of(
        x[2:],
        weight[2:],
        stride=how.stride,
        padding=0 if free else how.padding,
        output_padding=0 if free else how.output_padding,
        dilation=how.dilation,
        groups=how.groups,
        output_size=None,
    )
    if not free:
        return layer.axes
    rows = zip(layer.axes, how.padding, how.output_padding, strict=True)
    return tuple(replace(axis, crop_begin=p, crop_end=p - a) for axis, p, a in rows)


def _require_axes(first: str, a: Shape, second: str, b: Shape, how: Geometry) -> None:
    """As many axes everywhere: operators are called with what nobody has looked at."""
    rank = len(a) - 2
    if not 1 <= rank <= 3:
        raise TensorShapeError(first, str(a), "3, 4 or 5 axes")
    if len(b) != len(a):
        raise TensorShapeError(second, str(b), f"{len(a)} axes, as many as {first}")
    for name, entries in zip(how._fields[:4], how[:4], strict=True):
        if len(entries) != rank:
            expected = f"{rank} integers, one per spatial axis"
            raise TensorArgumentError(name, str(entries), expected)


def _require_channels(x: Shape, weight: Shape, groups: int) -> None:
    """Empty axes, channels and groups, in the order in which PyTorch looks at them."""
    if groups < 1:
        raise TensorArgumentError("groups", str(groups), "an integer >= 1")
    if min(weight) < 1:
        remedy = "A layer has at least one channel and one tap."
        raise TensorShapeError("weight.shape", str(weight), "no axis of size 0", remedy)
    if weight[0] % groups:
        expected = f"a divisor of the weight's {weight[0]} input channels"
        raise TensorArgumentError("groups", str(groups), expected)
    if x[1] != weight[0]:
        expected = f"{weight[0]} channels, the first axis of weight {weight}"
        remedy = "A transposed convolution's weight is (in_channels, out_channels/groups, *kernel)."
        raise TensorShapeError("input.shape", f"{x}, {x[1]} channels", expected, remedy)
    if min(x[2:]) < 1:
        remedy = "Only the batch may be empty."
        raise TensorShapeError("input.shape", str(x), "no spatial axis of size 0", remedy)
