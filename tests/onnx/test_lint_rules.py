"""The lint's rules about taps, by plain loops, and about runtimes, by running them."""

import re

import numpy as np
import pytest

pytest.importorskip("onnx_ir")

import onnx

from tests.support.lint_cases import (
    BAD,
    BF16,
    EVEN,
    S2,
    SAME,
    W33,
    W44,
    WIDE,
    deconv,
    dequantized,
    inside,
    one,
    only,
    ran,
    scattered,
)
from tests.support.onnx_rewriting import only_node
from tests.support.onnx_texts import normal
from upconv.dialects.onnx import Rule
from upconv.errors import EngineError
from upconv.onnx.linting import Severity, lint, overlap_rules
from upconv.onnx.linting.context import READERS, contexts, output_shape
from upconv.onnx.models import from_model

GEOMETRIES = [
    ((3, 3), (2, 2), (1, 1)),
    ((3, 5), (2, 4), (1, 1)),
    ((5, 4), (3, 2), (1, 1)),
    ((4, 3), (2, 2), (1, 3)),
    ((7, 3), (3, 1), (2, 1)),
]


@pytest.mark.parametrize(("kernel", "strides", "dilations"), GEOMETRIES)
def test_the_overlap_is_what_adding_ones_gives(kernel, strides, dilations):
    model = deconv(normal(0, 6, 4, *kernel), (9, 9), strides=strides, dilations=dilations)
    x = np.ones((1, *(6 + k for k in kernel)))
    full = scattered(x, np.ones((1, 1, *kernel)), strides, dilations)
    counts = inside(full, strides, kernel, dilations)[0]
    taps = [[len(phase) for phase in axis] for axis in overlap_rules.phase_taps(only_node(model))]
    np.testing.assert_array_equal(np.multiply.outer(*taps), counts)
    shown = [
        f"{' '.join(map(str, taps[i]))} along axis {i}"
        for i in (0, 1)
        if np.ptp(counts, axis=i).any()
    ]
    most, least = int(counts.max()), int(counts.min())
    assert f"sums of {most} taps of each channel, others of {least}." in one(model, "UPC001")
    for i in (i for i in (0, 1) if np.ptp(counts, axis=i).any()):
        assert f"kernel {kernel[i]}" in one(model, "UPC001")
    assert one(model, "UPC001").endswith(f"in turn: {'; '.join(shown)}.")


def test_one_input_has_no_inside():
    assert only(deconv(W33, (1, 1), **S2), "UPC001") == ()
    assert only(deconv(W33, (9, 9), strides=[3, 1], dilations=[2, 1]), "UPC001") == ()  # even
    assert "along spatial axis 1 (" in one(deconv(W33, (1, 5), **S2), "UPC001")
    turned = one(deconv(W33, **S2, pads=[1, 0, 0, 0]), "UPC001")
    assert turned.endswith("in turn: 1 2 along axis 0; 2 1 along axis 1.")
    long = one(deconv(normal(0, 1, 1, 301), (9,), strides=[100]), "UPC001")
    assert long.endswith("in turn: 4 3 3 3 3 3 3 3 3 3 3 3 ... along axis 0.")


# Weights that show it -----------------------------------------------------------------------------


def measured_gains(w, strides):
    """The measure of UPC002 by running it: one channel constant at a time, squares averaged."""
    size = tuple(k + 2 for k in w.shape[2:])
    power = 0.0
    for c in range(w.shape[0]):
        x = np.zeros((w.shape[0], *size))
        x[c] = 1
        power = (
            power + inside(scattered(x, w.astype(np.float64), strides), strides, w.shape[2:]) ** 2
        )
    return np.sqrt(power.mean(axis=0) / w.shape[0])


def check_gains(w, strides):
    model = deconv(w, (9,) * len(strides), strides=strides)
    gains = measured_gains(w, strides)
    found = overlap_rules.gains_of(overlap_rules.phase_sums(only_node(model)))
    np.testing.assert_allclose(found, gains / gains.max(), atol=1e-4)
    words = f"differ by {1 - gains.min() / gains.max():.0%} between positions: those at "
    places = (tuple(map(int, np.argwhere(gains == f(gains))[0])) for f in (np.max, np.min))
    words += "{} modulo the strides are the largest, those at {} the".format(*places)
    assert words in one(model, "UPC002")


PATTERN = normal(2, 16, 8, 4, 4) * np.where(np.arange(4) % 2, 1, 0.5).astype(np.float32)


@pytest.mark.parametrize(
    ("w", "strides"),
    [(WIDE, (2, 2)), (PATTERN, (2, 2)), (np.ones((1, 1, 3), np.float32), (2,))],
    ids=["uneven", "even overlap", "one channel"],
)
def test_the_gains_are_what_constant_inputs_give(w, strides):
    check_gains(w, strides)


def test_wrong_gains_are_seen(monkeypatch):
    true = overlap_rules.phase_sums
    monkeypatch.setattr(overlap_rules, "phase_sums", lambda conv: np.roll(true(conv), 1, axis=2))
    with pytest.raises(AssertionError):
        check_gains(PATTERN.transpose(0, 1, 3, 2).copy(), (2, 2))


def bilinear(factor):
    k = 2 * factor - factor % 2
    line = 1 - np.abs(np.arange(k) - (k - 1) / 2) / factor
    return np.multiply.outer(line, line).astype(np.float32)


def hann_inverse(n, hop):
    """The real and imaginary rows of a windowed inverse transform."""
    t = np.arange(n)
    window = 0.5 - 0.5 * np.cos(2 * np.pi * t / n)
    rows = [f(2 * np.pi * k * t / n) * window for k in range(n // 2 + 1) for f in (np.cos, np.sin)]
    scale = np.array([1 if k in (0, n // 2) else 2 for k in range(n // 2 + 1) for _ in (0, 1)])
    return (np.array(rows) * np.sqrt(scale)[:, None])[:, None].astype(np.float32)


QUIET = {
    "random, even overlap": (normal(3, 64, 32, 4, 4), (2, 2), 1),
    "random, kernel as the stride": (normal(3, 32, 16, 2, 2), (2, 2), 1),
    "random and small, of which chance makes much": (normal(3, 24, 1, 2, 2), (2, 2), 1),
    "bilinear by 3, uneven": (np.tile(bilinear(3), (6, 1, 1, 1)), (3, 3), 6),
    "bilinear by 2": (np.tile(bilinear(2), (6, 1, 1, 1)), (2, 2), 6),
    "an inverse transform": (hann_inverse(16, 4), (4,), 1),
    "stride 1": (normal(3, 4, 4, 3, 3), (1, 1), 1),
    "zeros": (np.zeros((4, 4, 3, 3), np.float32), (2, 2), 1),
    "not finite": (np.full((4, 4, 3, 3), np.inf, np.float32), (2, 2), 1),
}


@pytest.mark.parametrize("name", QUIET)
def test_weights_without_a_pattern_are_no_finding(name):
    w, strides, group = QUIET[name]
    model = deconv(w, (9,) * len(strides), strides=strides, group=group)
    assert only(model, "UPC002") == ()


def test_weights_that_even_out_the_overlap_are_no_finding():
    w = np.tile(bilinear(3), (6, 1, 1, 1))
    assert only(deconv(w, (9, 9), strides=[3, 3], group=6), "UPC001") == ()
    assert one(deconv(np.ones_like(w), (9, 9), strides=[3, 3], group=6), "UPC001")


@pytest.mark.parametrize("dtype", ["float16", "float64", "bfloat16"])
def test_weights_of_every_float_type_are_read(dtype):
    pytest.importorskip("ml_dtypes")  # which gives NumPy bfloat16
    w = WIDE.astype(np.dtype(dtype))
    assert re.search(r"differ by [45]\d%", one(deconv(w, (9, 9), opset=22, **S2), "UPC002"))


# Gaps and borders ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "strides", "dilations"),
    [((2, 2), (3, 2), (1, 1)), ((3, 3), (4, 2), (2, 1)), ((2, 3), (5, 4), (1, 2))],
)
def test_dead_phases_are_the_outputs_that_nothing_reaches(kernel, strides, dilations):
    model = deconv(normal(0, 6, 4, *kernel), (9, 9), strides=strides, dilations=dilations)
    ones = scattered(np.ones((1, 9, 9)), np.ones((1, 1, *kernel)), strides, dilations)
    share = (inside(ones, strides, kernel, dilations) == 0).mean()
    assert one(model, "UPC003").startswith(f"{share:.0%} of the outputs")
    assert only(model, "UPC001") == ()
    zeros_between = deconv(np.ones((3, 1, 1, 1), np.float32), **S2, group=3)
    assert only(zeros_between, "UPC003") == ()


def test_the_edge_is_where_nothing_reaches():
    found = one(deconv(EVEN, **S2, output_padding=[1, 0]), "UPC004")
    assert found.endswith(": the first 0 and last 1 of axis 0.")
    assert scattered(np.ones((6, 5, 7)), EVEN, (2, 2)).shape[1:] == (10, 14)  # not (11, 14)


RUNTIMES = ("onnxruntime", "openvino")
QUAD = deconv(np.ones((2, 3, 2, 2, 2, 2), np.float32), (3,) * 4, strides=[2] * 4)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize(
    "said",
    [
        {"output_shape": [10, 14], "auto_pad": "SAME_UPPER"},
        {"output_shape": [9, 14], "auto_pad": "SAME_UPPER", "group": 2},
    ],
    ids=["shape and upper", "groups"],
)
def test_the_crops_of_each_reader_are_what_it_cuts_off(said, runtime):
    model = deconv(W33, batch=1, strides=[2, 2], **said)
    [context] = contexts(from_model(model), None, {})
    conv = context.readings()[Rule(runtime)]
    assert f"{READERS[Rule(runtime)]}: {str(conv.layer.crops)[1:-1]}" in one(model, "UPC101")
    x, y = normal(5, 1, 6, 5, 7), []
    for group in np.split(np.arange(6), said.get("group", 1)):
        full = scattered(x[0, group].astype(np.float64), W33[group], (2, 2))
        crops = zip(conv.layer.crops, full.shape[1:], strict=True)
        y.append(full[(slice(None), *(slice(b, n - e) for (b, e), n in crops))])
    result = ran(model, runtime, x=x)
    np.testing.assert_allclose(result[0], np.concatenate(y), rtol=1e-4, atol=1e-4)
    assert output_shape(conv) == result.shape


def test_for_one_runtime_only_its_reading_counts():
    model = BAD["UPC101"][0]
    assert only(model, "UPC101", runtime="onnxruntime") == ()
    assert "ONNX Runtime" not in one(model, "UPC101", runtime="openvino")


def test_openvino_ignores_auto_pad_of_an_open_size():
    model = BAD["UPC102"][0]
    x = normal(5, 1, 6, 5, 7)
    assert ran(model, "openvino", x=x).shape[2:] == (11, 15)
    assert ran(model, "onnxruntime", x=x).shape[2:] == (10, 14)
    assert "axis 0. OpenVINO" in one(model, "UPC102")
    assert "cut (0, 1), (0, 1) (begin, end)" in one(model, "UPC102")
    assert only(model, "UPC102", sizes={"x": (1, 6, 5, 7)}) == ()
    assert only(model, "UPC102", runtime="onnxruntime") == ()


REFUSED = [
    ("onnxruntime", "UPC201", *BAD["UPC201"]),
    (
        "onnxruntime",
        "UPC201",
        deconv(EVEN, (1, 3), pads=[1] * 4),
        deconv(EVEN, (2, 3), pads=[1] * 4),
    ),
    ("onnxruntime", "UPC204", *BAD["UPC204"]),
    ("onnxruntime", "UPC109", deconv(W33, **SAME, pads=[0] * 4), deconv(W33, **SAME)),
    ("onnxruntime", "UPC109", deconv(W33, kernel_shape=[2, 2]), deconv(W33, kernel_shape=[3, 3])),
    ("openvino", "UPC202", *BAD["UPC202"]),
    ("openvino", "UPC201", QUAD, deconv(EVEN, **S2)),
]


@pytest.mark.parametrize(("runtime", "code", "shows", "neighbour"), REFUSED)
def test_what_is_said_to_be_refused_is_refused(runtime, code, shows, neighbour):
    other = RUNTIMES[runtime == RUNTIMES[0]]
    assert [found.severity for found in only(shows, code, runtime=runtime)] == [Severity.ERROR]
    assert code == "UPC109" or only(shows, code, runtime=other) == ()
    with pytest.raises(EngineError, match=r"\S"):
        ran(shows, runtime)
    assert only(neighbour, code, runtime=runtime) == ()
    ran(neighbour, runtime)


def test_bfloat16_has_no_kernel():
    assert "BFLOAT16" in one(BF16, "UPC204", runtime="onnxruntime")
    assert only(BF16, "UPC204", runtime="openvino") == ()


def test_channels_that_do_not_fit_and_output_padding_that_onnx_forbids_are_errors():
    narrow = one(deconv(W33, x_shape=[1, 5, 5, 7], **S2), "UPC109")
    assert "its input has 5 channels and its weight 6" in narrow
    model = deconv(W44, **S2, output_padding=[0, 3])
    assert [(f.rule, f.severity) for f in lint(model)] == [("UPC109", Severity.ERROR)]
    accepted = lint(model, runtime="openvino")
    assert {f.severity for f in accepted} <= {Severity.WARNING, Severity.NOTE}


def test_declared_shapes_are_compared_with_what_runs():
    found = one(BAD["UPC105"][0], "UPC105")
    assert found.endswith("the output shape (2, 4, 11, 14); it is (2, 4, 11, 15).")
    assert ran(deconv(W33, **S2), "onnxruntime").shape == (2, 4, 11, 15)
    assert "(2, 5, 11, 15);" in one(deconv(W33, **S2, y_shape=[2, 5, 11, 15]), "UPC105")


@pytest.mark.parametrize("declared", [[2, 4, 15, 21], [2, 4, 14, 20]])
def test_a_shape_that_some_reader_gives_is_no_mistake(declared):
    model = deconv(EVEN, strides=[3, 3], auto_pad="SAME_UPPER", y_shape=declared)
    assert only(model, "UPC105") == ()


def test_the_mistake_of_onnx_s_shape_inference_is_found_where_it_is_recorded():
    model = deconv(W33, **SAME, output_padding=[1, 0])
    assert only(model, "UPC105") == ()
    recorded = onnx.shape_inference.infer_shapes(model)
    true = ran(model, "onnxruntime").shape
    assert one(recorded, "UPC105").endswith(f"it is {true}.")


@pytest.mark.parametrize("said", [{"axis": -4}, {"axis": 0}])
def test_the_axis_of_scales(said):
    assert "with 6 scales along axis 0;" in one(dequantized(np.ones(6), **said), "UPC107")


def test_scales_for_the_whole_weight_or_by_default_are_fine():
    assert only(dequantized(1.0), "UPC107") == ()
    assert only(dequantized(np.ones(4)), "UPC107") == ()  # its axis is 1 where none is stated
    assert only(dequantized(1.0), "UPC902") == ()
