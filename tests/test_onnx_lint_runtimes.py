"""What the lint says of runtimes, checked by running ONNX Runtime and OpenVINO."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

pytest.importorskip("onnx_ir")

from lint_cases import (
    BAD,
    BF16,
    EVEN,
    S2,
    SAME,
    W33,
    W44,
    deconv,
    dequantised,
    one,
    only,
    ran,
    scattered,
    weights,
)
from upconv.onnx.linting import Severity, lint

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
    facts = one(model, "UPC101").facts
    assert len({json.dumps(crops) for crops in facts["crops"].values()}) > 1
    x, y = weights(5, 1, 6, 5, 7), []
    for group in np.split(np.arange(6), said.get("group", 1)):
        full = scattered(x[0, group].astype(np.float64), W33[group], (2, 2))
        crops = zip(facts["crops"][runtime], full.shape[1:], strict=True)
        y.append(full[(slice(None), *(slice(b, n - e) for (b, e), n in crops))])
    result = ran(model.SerializeToString(), runtime, x=x)
    np.testing.assert_allclose(result[0], np.concatenate(y), rtol=1e-4, atol=1e-4)
    assert facts["shapes"][runtime] == list(result.shape)


def test_for_one_runtime_only_its_reading_counts():
    model = BAD["UPC101"][0]
    assert only(model, "UPC101", runtime="onnxruntime") == ()
    assert set(one(model, "UPC101", runtime="openvino").facts["crops"]) == {"spec", "openvino"}


def test_openvino_ignores_auto_pad_of_an_open_size():
    model = BAD["UPC102"][0]
    x = weights(5, 1, 6, 5, 7)
    assert ran(model.SerializeToString(), "openvino", x=x).shape[2:] == (11, 15)
    assert ran(model.SerializeToString(), "onnxruntime", x=x).shape[2:] == (10, 14)
    assert one(model, "UPC102").facts["crops"] == [[0, 1], [0, 1]]
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
    pytest.importorskip(runtime)
    other = RUNTIMES[runtime == RUNTIMES[0]]
    assert one(shows, code, runtime=runtime).severity is Severity.ERROR
    if code != "UPC109":
        assert [f.severity for f in only(shows, code, runtime=other)] in ([], [Severity.NOTE])
    with pytest.raises(Exception, match=r"\S"):
        ran(shows.SerializeToString(), runtime)
    assert only(neighbour, code, runtime=runtime) == ()
    ran(neighbour.SerializeToString(), runtime)


def test_bfloat16_has_no_kernel_and_float64_is_computed_lower():
    assert "BFLOAT16" in one(BF16, "UPC204", runtime="onnxruntime").message
    assert only(BF16, "UPC204", runtime="openvino") == ()
    lowered = one(BAD["UPC204"][0], "UPC204", runtime="openvino")
    assert (lowered.severity, lowered.facts["dtype"]) == (Severity.NOTE, "DOUBLE")


def test_output_padding_that_onnx_forbids_is_an_error():
    model = deconv(W44, **S2, output_padding=[0, 3])
    assert [(f.rule, f.severity) for f in lint(model)] == [("UPC109", Severity.ERROR)]
    accepted = lint(model, runtime="openvino")
    assert {f.severity for f in accepted} <= {Severity.WARNING, Severity.NOTE}


def test_declared_shapes_are_compared_with_what_runs():
    found = one(BAD["UPC105"][0], "UPC105")
    assert found.facts == {"declared": [2, 4, 11, 14], "true": [2, 4, 11, 15]}
    assert ran(deconv(W33, **S2).SerializeToString(), "onnxruntime").shape == (2, 4, 11, 15)
    assert one(deconv(W33, **S2, y_shape=[2, 5, 11, 15]), "UPC105").facts["declared"][1] == 5


def test_the_mistake_of_onnx_s_shape_inference_is_found_where_it_is_recorded():
    model = deconv(W33, **SAME, output_padding=[1, 0])
    assert only(model, "UPC105") == ()
    recorded = onnx.shape_inference.infer_shapes(model)
    true = list(ran(model.SerializeToString(), "onnxruntime").shape)
    assert one(recorded, "UPC105").facts["true"] == true


@pytest.mark.parametrize("said", [{"axis": -4}, {"axis": 0}])
def test_the_axis_of_scales(said):
    assert one(dequantised(np.ones(6), **said), "UPC107").facts == {"axis": 0, "scales": 6}


def test_scales_for_the_whole_weight_or_by_default_are_fine():
    assert only(dequantised(1.0), "UPC107") == ()
    assert only(dequantised(np.ones(4)), "UPC107") == ()  # its axis is 1 where none is stated
    assert only(dequantised(1.0), "UPC902") == ()
