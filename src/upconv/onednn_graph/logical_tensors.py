"""What an edge of a graph is: its id, element type, dims where they are known, and its property.

The words are oneDNN's: `dims` None is an unknown number of dimensions, an entry None an unknown
dimension. Two descriptions of one id are merged; the known wins over the unknown.

What lives here: LogicalTensor, its types. What never does: data.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from ..dialects import values
from ..errors import ArgumentError, ShapeError, brief
from ..problem import DType

Dims = tuple[int | None, ...] | None
Shape = tuple[int, ...]

_MOST_DIMS = 12  # DNNL_MAX_NDIMS


class DataType(Enum):
    """The element types of the operations here, as oneDNN calls them."""

    F32 = "f32"
    BF16 = "bf16"
    F16 = "f16"
    S32 = "s32"

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype; bfloat16 is the ml_dtypes package's (`EngineMissing` without it).

        >>> DataType.F16.numpy
        dtype('float16')
        """
        if self is DataType.S32:
            return np.dtype(np.int32)
        return _FLOATS[self].numpy


_FLOATS = {
    DataType.F32: DType.FLOAT32,
    DataType.BF16: DType.BFLOAT16,
    DataType.F16: DType.FLOAT16,
}
FLOATS = tuple(_FLOATS)


class PropertyType(Enum):
    """Whether a tensor's data change between executions."""

    UNDEF = "undef"
    VARIABLE = "variable"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class LogicalTensor:
    """One edge: `id`, `data_type` "f32", "bf16", "f16" or "s32", `dims`, `property_type`.

    `dims`: a tuple, None where the number of dimensions is unknown, with None for every unknown
    dimension. `property_type`: "undef", "variable" or "constant"; a constant's data are given once.

    Raises `ArgumentError` for what none of them can be.

    >>> LogicalTensor(7, "f32", (1, 8, None)).dims
    (1, 8, None)
    """

    id: int
    data_type: str = "f32"
    dims: Dims = None
    property_type: str = "undef"

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", values.integer("id", self.id, low=0))
        name = f"tensor {self.id}"
        kind = values.member(f"data_type of {name}", self.data_type, DataType)
        given = values.member(f"property_type of {name}", self.property_type, PropertyType)
        object.__setattr__(self, "data_type", kind.value)
        object.__setattr__(self, "property_type", given.value)
        object.__setattr__(self, "dims", _dims(name, self.dims))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of its data.

        >>> LogicalTensor(0, "s32").dtype
        dtype('int32')
        """
        return DataType(self.data_type).numpy

    @property
    def shape(self) -> Shape | None:
        """The dims if all are known, else None."""
        if self.dims is None or None in self.dims:
            return None
        return tuple(size for size in self.dims if size is not None)

    @property
    def constant(self) -> bool:
        """Whether its data are the same in every execution."""
        return self.property_type == PropertyType.CONSTANT.value

    def merged(self, other: LogicalTensor) -> LogicalTensor:
        """Both descriptions of one id in one; raises if they contradict each other.

        >>> LogicalTensor(1, dims=(None, 3)).merged(LogicalTensor(1, dims=(2, None))).dims
        (2, 3)
        """
        for name in ("data_type", "property_type"):
            if getattr(self, name) != getattr(other, name):
                raise ArgumentError(
                    f"{name} of tensor {self.id}",
                    repr(getattr(other, name)),
                    f"{getattr(self, name)!r}, as where it was described first",
                    "One id is one tensor.",
                )
        return replace(self, dims=joined(f"dims of tensor {self.id}", other.dims, self.dims))

    def sized(self, shape: Shape) -> LogicalTensor:
        """This tensor with all dims known; raises `ShapeError` where they contradict its own."""
        return replace(self, dims=joined(f"dims of tensor {self.id}", self.dims, shape))


def joined(name: str, given: Dims, known: Dims) -> Dims:
    """Dims with what either says; `ShapeError` naming `given` where they contradict each other."""
    if given is None or known is None:
        return known if given is None else given
    fits = len(given) == len(known) and all(
        a is None or b is None or a == b for a, b in zip(given, known, strict=True)
    )
    if not fits:
        remedy = "None stands for a dimension that is not known."
        raise ShapeError(name, shown(given), shown(known), remedy)
    return tuple(b if a is None else a for a, b in zip(given, known, strict=True))


def shown(dims: object) -> str:
    """Dims for people.

    >>> shown((1, None))
    '(1, ?)'
    """
    return str(dims).replace("None", "?")


def _dims(tensor: str, given: object) -> Dims:
    if given is None:
        return None
    if not values.is_sequence(given):
        expected = "a tuple of sizes, or None where even their number is not known"
        raise ArgumentError(f"dims of {tensor}", brief(given), expected)
    dims = tuple(
        None if size is None else values.integer(f"dims[{i}] of {tensor}", size, low=0)
        for i, size in enumerate(given)
    )
    if len(dims) > _MOST_DIMS:
        expected = f"at most {_MOST_DIMS}, as in oneDNN"
        raise ShapeError(f"dims of {tensor}", f"{len(dims)} sizes", expected)
    return dims
