"""Types of the arguments of public functions, for type checkers and completion in editors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

Sizes: TypeAlias = int | Sequence[int]
"""One number for all spatial axes, or one per axis."""
Padding: TypeAlias = (
    int | Literal["valid", "same_upper", "same_lower"] | Sequence[int | Sequence[int]]
)
"""One number for both ends of all axes, one number or (begin, end) per axis, or a rule."""
Layout: TypeAlias = Literal["NCX", "NXC"]
WeightOrder: TypeAlias = Literal["IOX", "OIX", "XIO", "XOI", "IXO", "OXI"]
AlgorithmName: TypeAlias = Literal["auto", "direct", "winograd"]
PrecisionName: TypeAlias = Literal["float64", "float32", "float16", "bfloat16", "tf32"]
NetworkPrecision: TypeAlias = Literal["float32", "bfloat16"]
GradientName: TypeAlias = Literal["x", "weight", "bias"]
