"""Vectors made by the real MXNet 1.9.1, from its attributes as they stand: all four results."""

import json

import numpy as np
import pytest

import upconv
from tests.support.paths import DATA

FILE = DATA / "mxnet_public.npz"
# What describes a case and is no attribute of the operator.
NOT_ATTRIBUTES = {
    "both_engines", "effective_adj", "effective_pad", "engine", "exact", "op", "out_shape", "tag",
}  # fmt: skip


def load_cases() -> dict[str, dict[str, np.ndarray]]:
    cases: dict[str, dict[str, np.ndarray]] = {}
    with np.load(FILE, allow_pickle=False) as file:
        for name in json.loads(str(file["index"])):
            parts = [key for key in file.files if key.startswith(f"{name}.")]
            cases[name] = {key.partition(".")[2]: file[key] for key in parts}
    return cases


CASES = load_cases()


def close(got: np.ndarray, wanted: np.ndarray, exact: bool) -> None:
    assert got.shape == wanted.shape
    if exact:
        np.testing.assert_array_equal(got, wanted)
    else:
        scale = max(1.0, float(np.abs(wanted).max(initial=0)))
        np.testing.assert_allclose(got, wanted, rtol=0, atol=2e-5 * scale)


def test_there_are_sixty_cases_of_every_rank() -> None:
    assert len(CASES) == 60
    assert {case["data"].ndim for case in CASES.values()} == {3, 4, 5}


@pytest.mark.parametrize("name", CASES)
def test_deconvolution(name: str, engine) -> None:
    case = CASES[name]
    described = json.loads(str(case["attrs"]))
    attributes = {k: v for k, v in described.items() if k not in NOT_ATTRIBUTES}
    layer = upconv.dialects.from_mxnet(case["data"].shape[2:], **attributes)
    keywords = layer.keywords() | {"engine": engine}
    data, weight, bias = case["data"], case["weight"], case.get("bias")
    exact = described["exact"]
    out = upconv.conv_transpose(data, weight, bias, **keywords)
    assert list(out.shape) == described["out_shape"]
    close(out, case["out"], exact)
    try:
        grads = upconv.conv_transpose_backward(case["out_grad"], data, weight, **keywords)
    except upconv.EngineRefusal:  # an engine without gradients: the others' must still agree
        keywords["engine"] = None
        grads = upconv.conv_transpose_backward(case["out_grad"], data, weight, **keywords)
    close(grads.x, case["d_data"], exact)
    close(grads.weight, case["d_weight"], exact)
    if bias is not None:
        close(grads.bias, case["d_bias"], exact)
    # The data gradient is the plain convolution of the output gradient with the same weight.
    pads = tuple((axis.crop_begin, axis.crop_end) for axis in layer.axes)
    convolved = upconv.conv(
        case["out_grad"], weight, stride=keywords["stride"], padding=pads,
        dilation=keywords["dilation"], groups=keywords["groups"],
    )  # fmt: skip
    close(convolved, case["d_data"], exact)
