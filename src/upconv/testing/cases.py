"""The problems that every engine is tested with: small ones of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from ..activations import Activation
from ..geometry import Axis, fitted
from ..problem import NO_EPILOGUE, DataLayout, Direction, DType, Epilogue, Problem, WeightLayout


def cases() -> tuple[Problem, ...]:
    """Return the problems that every engine is tested with: small ones in all three directions.

    Sizes are distinct, so that swapped axes cannot agree by chance.

    >>> len(cases()) > 200
    True
    """
    return tuple(dict.fromkeys(_cases()))


def _cases() -> Iterator[Problem]:
    for problem in _forward_cases():
        for direction in Direction:
            if direction is Direction.WEIGHT_GRAD:
                yield problem.replace(direction=direction, bias=False, epilogue=NO_EPILOGUE)
            else:
                yield problem.replace(direction=direction)


def _forward_cases() -> Iterator[Problem]:
    base = Problem(Direction.FORWARD, _CROPPED, 2, 6, 12, bias=True)
    for axes in _AXES.values():
        yield base.replace(axes=axes)
    for groups in (2, 3, 6):
        yield base.replace(groups=groups)
        yield base.replace(groups=groups, axes=_AXES["rank 1"], layout=DataLayout.NXC)
    yield base.replace(groups=6, out_channels=6)  # depthwise
    yield base.replace(groups=6, out_channels=6, axes=_AXES["rank 3"])
    for layout, weight_layout in product(DataLayout, WeightLayout):
        yield base.replace(layout=layout, weight_layout=weight_layout, groups=2)
    for dtype, layout in product(DType, DataLayout):
        yield base.replace(dtype=dtype, layout=layout)
    for batch, i, o in ((0, 6, 12), (1, 1, 1), (1, 7, 5), (5, 1, 3), (3, 17, 2), (1, 3, 33)):
        yield base.replace(batch=batch, in_channels=i, out_channels=o)
    for layout in DataLayout:
        yield base.replace(rounded=True, layout=layout)
        yield base.replace(rounded=True, layout=layout, groups=3, accumulate=True)
        yield base.replace(rounded=True, layout=layout, groups=6, axes=_AXES["stride 1"])
    yield from _epilogue_cases(base)
    yield from _end_cases(base)
    for axes in (_CROPPED, _AXES["rank 1"], _AXES["rank 3"]):
        yield base.replace(axes=axes, accumulate=True, groups=3)
    yield base.replace(accumulate=True, layout=DataLayout.NXC, dtype=DType.FLOAT16)
    relu = Epilogue(Activation.RELU, residual=True)  # of the accumulated sum
    for layout in DataLayout:
        yield base.replace(accumulate=True, layout=layout, epilogue=relu)


def _epilogue_cases(base: Problem) -> Iterator[Problem]:
    for activation in Activation:
        slope = 0.2 if activation is Activation.LEAKY_RELU else 0.0
        for residual in (False, True):
            epilogue = Epilogue(activation, slope, residual)
            yield base.replace(epilogue=epilogue, bias=activation is not Activation.TANH)
    yield base.replace(
        epilogue=Epilogue(Activation.RELU, residual=True),
        layout=DataLayout.NXC,
        dtype=DType.BFLOAT16,
        groups=3,
    )


def _end_cases(base: Problem) -> Iterator[Problem]:
    """PReLU, second results, and both, in every layout, with and without bias or residual."""
    leaky = Activation.LEAKY_RELU
    ends = (
        Epilogue(leaky, slopes=True),
        Epilogue(leaky, slopes=True, residual=True),
        Epilogue(second=leaky, second_slope=0.1),
        Epilogue(leaky, slopes=True, second=Activation.RELU),
        Epilogue(Activation.TANH, residual=True, second=leaky, second_slope=0.3),
    )
    for epilogue, layout in product(ends, DataLayout):
        yield base.replace(epilogue=epilogue, layout=layout, bias=not epilogue.residual)
    square = _AXES["stride 1"]
    for epilogue, layout in product(ends[1:4], DataLayout):
        yield base.replace(epilogue=epilogue, layout=layout, axes=square, groups=3)
        yield base.replace(epilogue=epilogue, layout=layout, axes=square, groups=6, out_channels=6)
    for dtype, axes in ((DType.BFLOAT16, _CROPPED), (DType.FLOAT64, _AXES["rank 3"])):
        yield base.replace(epilogue=ends[3], dtype=dtype, axes=axes, accumulate=True)
    for name in ("grown at both ends", "no input", "rank 1", "large stride"):
        yield base.replace(epilogue=ends[3], axes=_AXES[name])


_CROPPED = (Axis(5, 3, 2, 1, 1, 0), Axis(7, 4, 3, 1, 2, 3))

_AXES: dict[str, tuple[Axis, ...]] = {
    "rank 1": (Axis(9, 5, 3, 2, 1, 2),),
    "rank 2": _CROPPED,
    "rank 3": (Axis(3, 2, 2), Axis(5, 3, 1, 1, 1, 1), Axis(4, 3, 2, 1, 0, 1)),
    "rank 4": (Axis(2, 2, 1), Axis(3, 2, 2), Axis(2, 3, 2, 1, 1, 0), Axis(4, 2, 3, 1, 0, -1)),
    "kernel = stride": (Axis(5, 2, 2), Axis(4, 3, 3)),
    "kernel = stride, cropped": (Axis(5, 2, 2, 1, 1, 0), Axis(4, 3, 3, 1, 0, 2)),
    "kernel = 2 strides": (Axis(5, 4, 2, 1, 1, 1), Axis(6, 8, 4, 1, 2, 2)),
    "kernel below stride": (Axis(5, 2, 3), Axis(4, 1, 4, 1, 0, -2)),
    "one tap": (Axis(5, 1), Axis(3, 1, 2, 3)),
    "stride 1": (Axis(5, 3, 1, 1, 1, 1), Axis(7, 5, 1, 1, 2, 2)),
    "dilated": (Axis(5, 3, 1, 2, 2, 2), Axis(6, 4, 1, 3, 0, 1)),
    "dilated, common divisor": (Axis(5, 3, 2, 2, 1, 0), Axis(4, 4, 6, 4, 3, 1)),
    "dilated, coprime": (Axis(5, 4, 3, 2, 2, 1), Axis(4, 3, 2, 5, 1, 0)),
    "one input": (Axis(1, 4), Axis(1, 3, 7, 2, 1, 1)),
    "kernel beyond input": (Axis(2, 9, 2, 1, 3, 3), Axis(1, 5, 1, 1, 2, 2)),
    "grown at both ends": (Axis(4, 3, 2, 1, -3, -2), Axis(3, 2, 3, 1, -1, -4)),
    "output padding at the stride": (Axis(4, 3, 2, 1, 1, 1 - 2), Axis(3, 2, 3, 2, 0, -3)),
    "cropped into the data": (Axis(9, 3, 2, 1, 6, 5), Axis(8, 2, 1, 1, 4, 1)),
    "cropped to one position": (Axis(5, 3, 2, 1, 5, 5), Axis(6, 2, 2, 1, 11, 0)),
    "cropped beyond the data": (fitted(3, 2, 2, 1, 9, 4), Axis(4, 3, 2)),
    "no output": (Axis(3, 3, 2, 1, 3, 4), Axis(4, 3, 2)),
    "no input": (Axis(0, 5, 2, 1, 0, 0), Axis(4, 3, 2)),
    "large stride": (Axis(3, 16, 8, 1, 4, 4), Axis(2, 40, 32, 1, 8, 8)),
}
