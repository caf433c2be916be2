"""What the lint says of runtimes, held against ONNX Runtime and OpenVINO."""

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
    W33,
    W44,
    deconv,
    dequantised,
    one,
    only,
    scattered,
    weights,
)
from upconv.onnx.linting import Severity, lint


def run_onnxruntime(model, **feeds):
    runtime = pytest.importorskip("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)[0]


def run_openvino(model, **feeds):
    core = pytest.importorskip("openvino").Core()
    compiled = core.compile_model(core.read_model(model.SerializeToString()), "CPU")
    return compiled(feeds)[0]


def cropped(model, w, x, crops):
    """What a reading of the node gives, from the full result."""
    strides = onnx.helper.get_attribute_value(
        next(a for a in model.graph.node[0].attribute if a.name == "strides")
    )
    y = scattered(x, w, strides)
    return y[(slice(None), *(slice(b, y.shape[1 + i] - e) for i, (b, e) in enumerate(crops)))]


READERS = {"onnxruntime": run_onnxruntime, "openvino": run_openvino}


@pytest.mark.parametrize("runtime", READERS)
@pytest.mark.parametrize(
    "said",
    [
        {"output_shape": [10, 14], "auto_pad": "SAME_UPPER"},
    ],
    ids=["shape and upper"],
)
def test_the_crops_of_each_reader_are_what_it_cuts_off(said, runtime):
    model = deconv(W33, batch=1, strides=[2, 2], **said)
    readings = one(model, "UPC101").facts["readings"]
    assert len({json.dumps(reading["crops"]) for reading in readings.values()}) > 1
    x = weights(5, 1, 6, 5, 7)
    expected = cropped(model, W33, x[0].astype(np.float64), readings[runtime]["crops"])
    np.testing.assert_allclose(READERS[runtime](model, x=x)[0], expected, rtol=1e-4, atol=1e-4)
    assert readings[runtime]["sizes"] == list(expected.shape[1:])


def test_with_a_target_only_its_reading_counts():
    model = BAD["UPC101"][0]
    assert only(model, "UPC101", target="onnxruntime") == ()
    assert set(one(model, "UPC101", target="openvino").facts["readings"]) == {"spec", "openvino"}


def test_openvino_forgets_auto_pad_of_an_open_size():
    model = BAD["UPC102"][0]
    x = weights(5, 1, 6, 5, 7)
    assert run_openvino(model, x=x).shape[2:] == (11, 15)
    assert run_onnxruntime(model, x=x).shape[2:] == (10, 14)
    assert one(model, "UPC102").facts["crops"] == [[0, 1], [0, 1]]
    assert only(model, "UPC102", sizes={"h": [5]}) == ()
    assert only(model, "UPC102", target="onnxruntime") == ()


REFUSED = {
    "onnxruntime": ("UPC103", "UPC104", "UPC201", "UPC204", "UPC206"),
    "openvino": ("UPC202", "UPC203", "UPC205"),
}


@pytest.mark.parametrize("runtime", REFUSED)
def test_what_is_said_to_be_refused_is_refused(runtime):
    pytest.importorskip(runtime)
    for code in REFUSED[runtime]:
        shows, neighbour = BAD[code]
        assert one(shows, code, target=runtime).severity is Severity.ERROR
        for model, refused in ((shows, True), (neighbour, False)):
            dtype = np.float64 if code == "UPC204" and refused else np.float32
            dtype = np.float16 if code == "UPC204" and not refused else dtype
            dims = [d.dim_value or 6 for d in model.graph.input[0].type.tensor_type.shape.dim]
            feeds = {"x": weights(5, *dims, dtype=dtype)}
            if len(model.graph.input) > 1:
                feeds["w"] = EVEN
            if refused:
                with pytest.raises(Exception, match=r"\S"):
                    READERS[runtime](model, **feeds)
            else:
                READERS[runtime](model, **feeds)


def test_the_other_runtime_s_refusals_are_silent():
    for runtime, other in (("onnxruntime", "openvino"), ("openvino", "onnxruntime")):
        for code in REFUSED[runtime]:
            found = only(BAD[code][0], code, target=other)
            if code.startswith("UPC2"):
                assert [f.severity for f in found] in ([], [Severity.NOTE])


def test_bfloat16_has_no_kernel_and_float64_is_computed_lower():
    assert one(BF16, "UPC204", target="onnxruntime").facts["dtype"] == "BFLOAT16"
    assert only(BF16, "UPC204", target="openvino") == ()
    lowered = one(BAD["UPC204"][0], "UPC204", target="openvino")
    assert (lowered.severity, lowered.facts["dtype"]) == (Severity.NOTE, "DOUBLE")


def test_output_padding_that_onnx_forbids_is_an_error_said_once():
    found = lint(deconv(W44, **S2, output_padding=[0, 3]))
    assert [(f.rule, f.severity) for f in found] == [("UPC201", Severity.ERROR)]
    assert found[0].facts["axes"] == [1]
    accepted = lint(deconv(W44, **S2, output_padding=[0, 3]), target="openvino")
    assert {f.severity for f in accepted} <= {Severity.WARNING, Severity.NOTE}


def test_declared_shapes_are_held_against_what_runs():
    model = BAD["UPC105"][0]
    found = one(model, "UPC105")
    assert found.facts == {"declared": [2, 4, 11, 14], "true": [2, 4, 11, 15]}
    plain = deconv(W33, **S2)
    assert run_onnxruntime(plain, x=weights(5, 2, 6, 5, 7)).shape == (2, 4, 11, 15)
    assert one(deconv(W33, **S2, y_shape=[2, 5, 11, 15]), "UPC105").facts["declared"][1] == 5


def test_shape_inference_is_held_against_what_runs():
    found = one(BAD["UPC106"][0], "UPC106")
    inferred = onnx.shape_inference.infer_shapes(BAD["UPC106"][0])
    dims = [d.dim_value for d in inferred.graph.output[0].type.tensor_type.shape.dim]
    assert found.facts["inferred"] == dims[2:]
    ran = run_onnxruntime(BAD["UPC106"][0], x=weights(5, 2, 6, 5, 7))
    assert dims[2:] != list(ran.shape[2:])


@pytest.mark.parametrize("said", [{"axis": -4}, {"axis": 0}])
def test_the_axis_of_scales(said):
    found = one(dequantised(np.ones(6), **said), "UPC107")
    assert found.facts == {"axis": 0, "scales": 6, "expected_axis": 1}


def test_scales_for_the_whole_weight_or_by_default_are_fine():
    assert only(dequantised(1.0), "UPC107") == ()
    assert only(dequantised(np.ones(4)), "UPC107") == ()  # its axis is 1 where none is stated
    assert only(dequantised(1.0), "UPC902") == ()
