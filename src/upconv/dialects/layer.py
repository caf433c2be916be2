"""A layer of any dialect: axes with signed crops, groups, and its arrays' axis orders.

`from_<dialect>` returns a `Layer`, and `to_<dialect>` returns its attributes in that dialect. Along
each axis, in the symbols of `upconv.geometry`, y[o] = sum of x[i]*w[t] over s*i + d*t = o + p. JAX
stores w[k-1-t] where other frameworks store w[t]: such a layer is `flipped`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import ArgumentError, DTypeError, ShapeError, brief
from ..geometry import Axis
from ..problem import DataLayout, WeightLayout


@dataclass(frozen=True, slots=True)
class Layer:
    """A transposed convolution for one input size, in upconv's own terms.

    axes: one entry per spatial axis. layout, weight_layout: the framework's axis orders.
    flipped: whether it stores the kernel reversed along every spatial axis.

    Raises `ArgumentError` for no axes and for groups < 1.

    >>> from upconv.geometry import Axis
    >>> layer = Layer((Axis(5, 3, 2, 1, 1, 0),))
    >>> layer.output_size
    (10,)
    >>> print(layer)
    5->10 k3 s2 d1 crop(1,0) g1 NCX IOX
    """

    axes: tuple[Axis, ...]
    groups: int = 1
    layout: DataLayout = DataLayout.NCX
    weight_layout: WeightLayout = WeightLayout.IOX
    flipped: bool = False

    def __post_init__(self) -> None:
        if not self.axes:
            raise ArgumentError("axes", "()", "at least one spatial axis")
        if self.groups < 1:
            raise ArgumentError("groups", str(self.groups), "an integer >= 1")

    @property
    def kernel(self) -> tuple[int, ...]:
        """Taps per axis."""
        return tuple(axis.kernel for axis in self.axes)

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides per axis."""
        return tuple(axis.stride for axis in self.axes)

    @property
    def dilations(self) -> tuple[int, ...]:
        """Dilations per axis."""
        return tuple(axis.dilation for axis in self.axes)

    @property
    def output_size(self) -> tuple[int, ...]:
        """Output positions per axis."""
        return tuple(axis.out for axis in self.axes)

    @property
    def crops(self) -> tuple[tuple[int, int], ...]:
        """Positions cropped at (start, end) per axis; negative numbers add positions."""
        return tuple((axis.crop_begin, axis.crop_end) for axis in self.axes)

    def keywords(self) -> dict[str, Any]:
        """Return the keywords of `upconv.conv_transpose(x, layer.weight(w), bias, **keywords)`.

        >>> from upconv.geometry import Axis
        >>> Layer((Axis(5, 3, 2, 1, 1, 0),)).keywords()["padding"]
        ((1, 0),)
        """
        return {
            "stride": self.strides,
            "padding": self.crops,
            "dilation": self.dilations,
            "groups": self.groups,
            "layout": self.layout.value,
            "weight_layout": self.weight_layout.value,
        }

    def weight(self, w: Any) -> Any:
        """Return the weight for conv_transpose: `w`, or a reversed view of it if flipped.

        Raises `ShapeError` if the kernel of `w`, in `weight_layout`, differs from the layer's.

        >>> import numpy as np
        >>> from upconv.geometry import Axis
        >>> Layer((Axis(5, 3),), flipped=True).weight(np.array([[[1, 2, 3]]]))
        array([[[3, 2, 1]]])
        """
        if not hasattr(w, "shape"):
            raise DTypeError("the weight", f"{brief(w)} ({type(w).__name__})", "an array")
        rank, shape = len(self.axes), tuple(w.shape)
        start = self.weight_layout.value.index("X")
        if len(shape) != rank + 2 or shape[start : start + rank] != self.kernel:
            kernel = ", ".join(map(str, self.kernel))
            axes = ", ".join(kernel if x == "X" else x for x in self.weight_layout.value)
            expected = f"{rank + 2} axes ({axes}), where O counts one group's output channels"
            remedy = "Read the layer again with this weight's kernel."
            raise ShapeError("the weight's shape", str(shape), expected, remedy)
        if not self.flipped:
            return w
        window = [slice(None)] * len(shape)
        window[start : start + rank] = [slice(None, None, -1)] * rank
        return w[tuple(window)]

    def __str__(self) -> str:
        def join(name: str) -> str:
            return "x".join(str(getattr(axis, name)) for axis in self.axes)

        crops = "x".join(f"({begin},{end})" for begin, end in self.crops)
        return (
            f"{join('size')}->{join('out')} k{join('kernel')} s{join('stride')} d{join('dilation')}"
            f" crop{crops} g{self.groups} {self.layout.value} {self.weight_layout.value}"
            + (" flipped" if self.flipped else "")
        )


def require_layer(layer: object) -> None:
    """Raise `DTypeError` unless `layer` is a `Layer`."""
    if not isinstance(layer, Layer):
        raise DTypeError(
            "layer", f"{brief(layer)} ({type(layer).__name__})", "a Layer, as from_* returns it"
        )
