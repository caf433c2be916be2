"""The problem to compute, as one frozen value: the signature under which primitives are cached.

Transposed convolution is one form t(g, x, w), linear in the output gradient g, the input x and the
weight w. Its partial derivatives are the three directions:

    FORWARD       y  = dt/dg (x, w)     transposed convolution   = gradient of a convolution's input
    INPUT_GRAD    dx = dt/dx (g, w)     ordinary convolution of g, its weight read as (out, in)
    WEIGHT_GRAD   dw = dt/dw (g, x)     the weight gradient of both

All names refer to the transposed convolution. An ordinary convolution with C input and F output
channels is the INPUT_GRAD of a problem with `out_channels` C and `in_channels` F.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from math import isfinite, prod
from operator import attrgetter
from typing import Any, cast

import numpy as np

from .activations import Activation
from .errors import ArgumentError, EngineMissing
from .geometry import Axis


class _Member(Enum):
    """An enum hashed by identity: every call hashes members, and `Enum` hashes in Python code."""

    __hash__ = object.__hash__


class Direction(_Member):
    """A partial derivative of the trilinear form."""

    FORWARD = "forward"
    INPUT_GRAD = "input_grad"
    WEIGHT_GRAD = "weight_grad"


@cache
def _bfloat16() -> np.dtype[Any]:
    try:
        from ml_dtypes import bfloat16
    except ImportError:
        raise EngineMissing("bfloat16 arrays need ml_dtypes: pip install ml_dtypes") from None
    return cast(np.dtype[Any], np.dtype(bfloat16))


class DType(_Member):
    """The supported element types; the value is the NumPy (or ml_dtypes) name."""

    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    itemsize: int
    """Bytes of one element."""
    _dtype: np.dtype[Any] | None

    def __init__(self, name: str) -> None:
        # Created once: NumPy takes half a microsecond to parse the name.
        self._dtype = None if name == "bfloat16" else np.dtype(name)
        self.itemsize = 2 if self._dtype is None else self._dtype.itemsize

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; bfloat16 comes from ml_dtypes (`EngineMissing` without it)."""
        return self._dtype or _bfloat16()

    @property
    def accumulator(self) -> DType:
        """The type of sums: float64 for float64, float32 for all others."""
        return DType.FLOAT64 if self is DType.FLOAT64 else DType.FLOAT32

    @property
    def epsilon(self) -> float:
        """The distance from 1 to the next larger number."""
        return 2.0 ** {"float16": -10, "bfloat16": -7, "float32": -23, "float64": -52}[self.value]


TF32 = "tf32"  # float32 multiplied with a ten-bit fraction: a precision, not an array type


class DataLayout(_Member):
    """The order of a data array's axes: N batch, C channels, X all spatial axes."""

    NCX = "NCX"
    NXC = "NXC"

    def shape(self, batch: int, channels: int, size: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of an array in this order."""
        return (batch, channels, *size) if self is DataLayout.NCX else (batch, *size, channels)

    @cache
    def to_ncx(self, rank: int) -> tuple[int, ...]:
        """Return the permutation that transposes an array in this order to NCX.

        >>> DataLayout.NXC.to_ncx(rank=2)
        (0, 3, 1, 2)
        """
        if self is DataLayout.NCX:
            return tuple(range(rank + 2))
        return (0, rank + 1, *range(1, rank + 1))

    def by_channel(self, rank: int) -> tuple[int, ...]:
        """Return the shape in which one number per channel broadcasts along all other axes.

        >>> DataLayout.NXC.by_channel(rank=2)
        (1, 1, 1, -1)
        """
        channel = self.to_ncx(rank)[1]
        return tuple(-1 if axis == channel else 1 for axis in range(rank + 2))


class WeightLayout(_Member):
    """The order of a weight's axes: I input channels, O output channels, X all kernel axes.

    In a transposed convolution, axis I holds all input channels and axis O the output channels of
    one group. In an ordinary convolution, axis O holds all and axis I those of one group.
    """

    IOX = "IOX"
    OIX = "OIX"
    XIO = "XIO"
    XOI = "XOI"
    IXO = "IXO"
    OXI = "OXI"

    def shape(self, i: int, o: int, kernel: tuple[int, ...]) -> tuple[int, ...]:
        """Return a weight's shape in this order; `i` and `o` are the extents of axes I and O."""
        ordered, extents = [0] * (len(kernel) + 2), (i, o, *kernel)
        for axis, extent in zip(self.to_iox(len(kernel)), extents, strict=True):
            ordered[axis] = extent
        return tuple(ordered)

    @cache
    def to_iox(self, rank: int) -> tuple[int, ...]:
        """Return the permutation that transposes a weight in this order to IOX.

        >>> WeightLayout.XOI.to_iox(rank=2)
        (3, 2, 0, 1)
        """
        positions = iter(range(rank + 2))
        axes = {
            letter: [next(positions) for _ in range(rank if letter == "X" else 1)]
            for letter in self.value
        }
        return tuple(axis for letter in "IOX" for axis in axes[letter])

    @cache
    def swapped(self) -> WeightLayout:
        """Return the same memory with I and O swapped: a convolution's weight in its transpose."""
        return WeightLayout(self.value.translate(str.maketrans("IO", "OI")))


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The operations after the bias: add the residual, then apply the activation.

    A problem that accumulates adds the contents of the output array before the activation.

    `slope` is the factor for negative values in LEAKY_RELU, and 0.0 for every other activation.
    `slopes` means that each run gets one factor per channel of the result instead (PReLU).

    `second` requests a second result, second(y), in a separate array. It is computed from y before
    y is rounded to the problem's dtype. NONE requests no second result.
    """

    activation: Activation = Activation.NONE
    slope: float = 0.0
    residual: bool = False
    slopes: bool = False
    second: Activation = Activation.NONE
    second_slope: float = 0.0

    def __post_init__(self) -> None:
        of = (self.activation, self.slope), (self.second, self.second_slope)
        for activation, slope in of:
            if not isfinite(slope):
                remedy = "It is the factor for negative values, such as 0.2."
                raise ArgumentError("activation slope", str(slope), "a finite number", remedy)
            if slope and activation is not Activation.LEAKY_RELU:
                raise ArgumentError("activation slope", str(slope), "0.0 unless leaky_relu")
        if self.slopes and (self.slope or self.activation is not Activation.LEAKY_RELU):
            got, expected = f"{self.activation.value!r}, {self.slope}", "leaky_relu without a slope"
            raise ArgumentError("activation with slopes", got, expected)

    @property
    def has_second(self) -> bool:
        """Whether there is a second result."""
        return self.second is not Activation.NONE

    @property
    def empty(self) -> bool:
        """Whether the epilogue does nothing."""
        return self == NO_EPILOGUE

    def __str__(self) -> str:
        second = (
            f"{self.second.value}:{self.second_slope:g}" if self.second_slope else self.second.value
        )
        words = [
            "residual" if self.residual else "",
            "prelu" if self.slopes else self.activation.value,
            f"slope={self.slope:g}" if self.slope else "",
            f"second={second}" if second else "",
        ]
        return " ".join(word for word in words if word)


NO_EPILOGUE = Epilogue()
_LOWEST = {"batch": 0, "in_channels": 1, "out_channels": 1, "groups": 1}


@dataclass(frozen=True, slots=True)
class Problem:
    """One transposed convolution or one of its gradients, as parameter, cache key and string.

    `axes` holds one `Axis` per spatial dimension. `in_channels` and `out_channels` count the
    channels of all groups. `bias` adds one value per channel of the result (never for WEIGHT_GRAD).
    `accumulate` adds the contents of the output array before the activation. `rounded` means that
    both float32 operands are first rounded to bfloat16; `tf32` means that an engine may round them
    to a ten-bit fraction, as GPUs do. Everything else stays float32.

    Raises `ArgumentError` for an impossible combination.

    >>> axes = (Axis(5, 3, 2, 1, 1, 0), Axis(7, 4, 2, 1, 1, 1))
    >>> print(Problem(Direction.FORWARD, axes, 2, 6, 12, groups=3))
    forward n2 c6->12 g3 5x7->10x14 k3x4 s2x2 crop(1,0)x(1,1) float32 NCX IOX
    """

    direction: Direction
    axes: tuple[Axis, ...]
    batch: int
    in_channels: int
    out_channels: int
    groups: int = 1
    dtype: DType = DType.FLOAT32
    layout: DataLayout = DataLayout.NCX
    weight_layout: WeightLayout = WeightLayout.IOX
    bias: bool = False
    epilogue: Epilogue = NO_EPILOGUE
    accumulate: bool = False
    rounded: bool = False
    tf32: bool = False
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        if not self.axes:
            raise ArgumentError("axes", "()", "at least one spatial axis")
        for name, low in _LOWEST.items():
            if (count := getattr(self, name)) < low:
                raise ArgumentError(name, str(count), f"an integer >= {low}")
        for name in ("in_channels", "out_channels"):
            if (count := getattr(self, name)) % self.groups:
                expected = f"a divisor of {name} = {count}"
                raise ArgumentError("groups", str(self.groups), expected)
        if self.direction is Direction.WEIGHT_GRAD and (self.bias or not self.epilogue.empty):
            raise ArgumentError("bias or epilogue", "set", "none for a weight gradient")
        if (self.rounded or self.tf32) and self.dtype is not DType.FLOAT32:
            raise ArgumentError("dtype", self.dtype.value, "float32 where operands are rounded")
        # A signature is hashed on every call, and hashing nested values takes microseconds.
        object.__setattr__(self, "_hash", hash(_fields(self)))

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[type[Problem], tuple[Any, ...]]:
        return Problem, _fields(self)  # rebuilt, since member hashes differ between processes

    @property
    def precision(self) -> DType:
        """The type of the operands when they are multiplied."""
        return DType.BFLOAT16 if self.rounded else self.dtype

    @property
    def rank(self) -> int:
        """Number of spatial axes."""
        return len(self.axes)

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps per axis."""
        return tuple(axis.kernel for axis in self.axes)

    @property
    def size(self) -> tuple[int, ...]:
        """Spatial size of x, the transposed convolution's input."""
        return tuple(axis.size for axis in self.axes)

    @property
    def out_size(self) -> tuple[int, ...]:
        """Spatial size of y, the transposed convolution's output."""
        return tuple(axis.out for axis in self.axes)

    @property
    def x_shape(self) -> tuple[int, ...]:
        """Shape of x and dx in this problem's layout."""
        return self.layout.shape(self.batch, self.in_channels, self.size)

    @property
    def y_shape(self) -> tuple[int, ...]:
        """Shape of y and g in this problem's layout."""
        return self.layout.shape(self.batch, self.out_channels, self.out_size)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of w and dw in this problem's weight layout."""
        return self.weight_layout.shape(
            self.in_channels, self.out_channels // self.groups, self.kernel
        )

    @property
    def operand_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the operands (a, b) of `Primitive.run`, in the order of the module's table."""
        return {
            Direction.FORWARD: (self.x_shape, self.weight_shape),
            Direction.INPUT_GRAD: (self.y_shape, self.weight_shape),
            Direction.WEIGHT_GRAD: (self.y_shape, self.x_shape),
        }[self.direction]

    @property
    def result_shape(self) -> tuple[int, ...]:
        """Shape of the result."""
        return {
            Direction.FORWARD: self.y_shape,
            Direction.INPUT_GRAD: self.x_shape,
            Direction.WEIGHT_GRAD: self.weight_shape,
        }[self.direction]

    @property
    def result_channels(self) -> int:
        """Number of channels of the result, and so of values in the bias."""
        return self.out_channels if self.direction is Direction.FORWARD else self.in_channels

    @property
    def multiply_adds(self) -> int:
        """Multiply-adds of the direct algorithm, including taps that fall outside the output."""
        per_input = (self.out_channels // self.groups) * prod(self.kernel)
        return self.batch * self.in_channels * prod(self.size) * per_input

    @property
    def longest_sum(self) -> int:
        """The largest number of products in the sum of one result element."""
        if self.direction is Direction.WEIGHT_GRAD:
            return max(1, self.batch * prod(self.size))
        if self.direction is Direction.INPUT_GRAD:
            return (self.out_channels // self.groups) * prod(self.kernel)
        taps = prod(min(axis.size, -(-axis.kernel // axis.period)) for axis in self.axes)
        return max(1, (self.in_channels // self.groups) * taps)

    @property
    def nbytes(self) -> int:
        """Bytes of both operands and the result."""
        shapes = (*self.operand_shapes, self.result_shape)
        return self.dtype.itemsize * sum(prod(shape) for shape in shapes)

    def replace(self, **changes: Any) -> Problem:
        """Return this problem with some fields changed; a change of dtype resets the rounding."""
        if "dtype" in changes:
            changes = {"rounded": False, "tf32": False} | changes
        return Problem(**{name: getattr(self, name) for name in _NAMES} | changes)

    def __str__(self) -> str:
        def each(name: str) -> str:
            return "x".join(str(getattr(axis, name)) for axis in self.axes)

        crops = "x".join(f"({axis.crop_begin},{axis.crop_end})" for axis in self.axes)
        words = [
            self.direction.value,
            f"n{self.batch} c{self.in_channels}->{self.out_channels}",
            f"g{self.groups}" if self.groups > 1 else "",
            f"{each('size')}->{each('out')} k{each('kernel')} s{each('stride')}",
            f"d{each('dilation')}" if any(axis.dilation > 1 for axis in self.axes) else "",
            f"crop{crops}" if any(axis.crop_begin or axis.crop_end for axis in self.axes) else "",
            f"{self.dtype.value} {self.layout.value} {self.weight_layout.value}",
            "bias" if self.bias else "",
            str(self.epilogue),
            "accumulate" if self.accumulate else "",
            f"precision {self.precision.value}" if self.rounded else "",
            f"precision {TF32}" if self.tf32 else "",
        ]
        return " ".join(word for word in words if word)


_NAMES = tuple(name for name in Problem.__slots__ if name != "_hash")
_fields = attrgetter(*_NAMES)
