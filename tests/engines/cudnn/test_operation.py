"""What cuDNN is given for a problem, and that faults in it are seen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.made_up_gpu import MadeUpEngine
from upconv import testing
from upconv.engines.cudnn import operation, primitive
from upconv.engines.cudnn.operation import Convolution, Ends, cannot, fusible
from upconv.geometry import Axis
from upconv.problem import Activation, DataLayout, Direction, DType, Epilogue, Problem

LAYER = Problem(Direction.FORWARD, (Axis(5, 4, 2, 1, 1, 1), Axis(7, 3, 2, 1, 1, 0)), 2, 6, 8)


def test_a_layer_as_it_is_printed() -> None:
    """Output padding is the remainder of a stride, so that paddings stay equal."""
    text = str(Convolution.of(LAYER))
    assert text == (
        "conv_dgrad image 2x8x10x14 filter 6x8x4x3 loss 2x6x5x7 pad 1x1 stride 2x2 float32"
    )
    crop = LAYER.replace(axes=(Axis(5, 3, 1, 1, 0, 2),))
    assert "pad 0x0..0x2" in str(Convolution.of(crop))


@pytest.mark.parametrize("layout", DataLayout)
@pytest.mark.parametrize("direction", Direction)
def test_tensors_are_contiguous(layout: DataLayout, direction: Direction) -> None:
    form = Convolution.of(LAYER.replace(layout=layout, direction=direction))
    fastest = 3 if layout is DataLayout.NCX else 1
    for tensor in (form.image, form.filter, form.loss):
        assert tensor.strides[fastest] == 1
    tensors = {"image": form.image, "loss": form.loss, "filter": form.filter}
    others = [tensors[name] for name in tensors if tensors[name] not in form.operands]
    assert others == [form.result]


@settings(max_examples=200)
@given(*(st.integers(low, high) for low, high in ((1, 9), (1, 7), (1, 5), (1, 3), (0, 8), (0, 8))))
def test_evened_axes_have_the_same_outputs(size, kernel, stride, dilation, begin, end) -> None:
    full = (size - 1) * stride + (kernel - 1) * dilation + 1
    if begin + end >= full:
        return
    axis = Axis(size, kernel, stride, dilation, begin, end)
    even, offset = axis.evened()
    assert offset >= 0
    assert offset + axis.out <= even.out
    assert 0 <= even.crop_begin - even.crop_end < stride
    assert even.evened() == (even, 0)
    for o in range(axis.out):
        assert axis.products(o) == even.products(offset + o)


@pytest.mark.parametrize(
    ("changes", "ends"),
    [
        ({}, Ends()),
        ({"bias": True}, Ends(bias=True)),
        (
            {"epilogue": Epilogue(Activation.RELU, residual=True)},
            Ends(False, True, Activation.RELU),
        ),
        ({"accumulate": True}, Ends(accumulate=True)),
        ({"accumulate": True, "bias": True}, None),
        ({"epilogue": Epilogue(Activation.LEAKY_RELU, slopes=True)}, None),
        ({"epilogue": Epilogue(second=Activation.RELU)}, None),
    ],
)
def test_what_a_graph_does_at_the_end(changes, ends) -> None:
    assert fusible(LAYER.replace(**changes)) == ends


def test_what_is_refused() -> None:
    wide = (Axis(1 << 20, 2, 2), Axis(1 << 10, 2, 2))
    assert "32 bits" in cannot(LAYER.replace(axes=wide))
    assert "tf32" in cannot(LAYER.replace(rounded=True))
    assert cannot(LAYER.replace(tf32=True)) is None
    assert cannot(LAYER.replace(dtype=DType.FLOAT64)) is None


def _shifted(problem):
    larger, offsets = operation.evened(problem)
    return larger, tuple(max(0, offset - 1) for offset in offsets)


def _swapped(problem):
    axes = tuple(range(problem.rank + 2))
    return (1, 0, *axes[2:])


FAULTS = {
    "a crop off by one": ("evened", _shifted),
    "a weight in another order": ("_filter_axes", _swapped),
    "an address that is not aligned": ("_fits", lambda array: True),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_seen(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    name, wrong = FAULTS[fault]
    engine = MadeUpEngine(lambda form: form.pre != form.post or bool(form.ends))
    square = LAYER.replace(axes=(Axis(5, 3, 1, 1, 3, 0), LAYER.axes[1]), out_channels=6)
    view = square.replace(axes=(Axis(5, 1, 2, 1, 0, 0), Axis(7, 1, 2, 1, 2, 0)))
    _check(engine, square, view)
    monkeypatch.setattr(primitive, name, wrong)
    with pytest.raises((AssertionError, ValueError)):
        _check(engine, square, view)


def _check(engine: MadeUpEngine, *problems: Problem) -> None:
    for problem in problems:
        testing.check(engine, problem)
