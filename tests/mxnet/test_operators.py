"""Deconvolution, Convolution and BatchNorm against answers of the real MXNet 1.9.1.

`tests/data/mxnet/make_operators.py` makes the answers; a sample of them lies beside it. With
UPCONV_MXNET_ANSWERS set to a file of all 2,600 cases those are compared instead.
"""

import ast
import json
import os
from typing import Any

import numpy as np
import pytest

import upconv.mxnet as mx
from tests.data.mxnet.make_operators import inputs
from tests.support.paths import DATA
from upconv import UpconvError
from upconv.mxnet.operators import OPERATORS

_stored = np.load(os.environ.get("UPCONV_MXNET_ANSWERS", DATA / "mxnet" / "operators.npz"))
CASES = json.loads(_stored["cases"].tobytes())
VALUES = _stored["values"]
COMPUTED = [case for case in CASES if "results" in case]
REFUSED = [case for case in CASES if "outcome" in case]


def answers(case: dict[str, Any]) -> dict[str, np.ndarray]:
    return {
        name: VALUES[start : start + int(np.prod(shape))].reshape(shape)
        for name, (start, shape) in case["results"].items()
    }


def close(found: Any, expected: np.ndarray, name: str) -> None:
    found = np.asarray(found, np.float64)
    assert found.shape == expected.shape, name
    bound = 2e-5 * max(1, np.abs(expected).max(initial=0))
    assert np.abs(found - expected).max(initial=0) <= bound, name


def label(case: dict[str, Any]) -> str:
    return f"{case['op']}-{case.get('seed', case.get('kind'))}"


@pytest.mark.parametrize("case", COMPUTED, ids=label)
def test_has_the_values_and_gradients_of_mxnet(case: dict[str, Any]) -> None:
    given, expected = inputs(case), answers(case)
    arrays = {name: mx.nd.array(given[name], dtype=case["dtype"]) for name in case["shapes"]}
    for name, request in case["grad_req"].items():
        if name in arrays:
            arrays[name].attach_grad(request)
            if request != "null":
                arrays[name].grad[:] = given[f"initial_{name}"]
    attributes = ast.literal_eval(case["attributes"])
    run = getattr(mx.nd, case["op"])
    record = case.get("record", True)
    if record is None:
        outputs = run(*arrays.values(), **attributes)
    else:
        with mx.autograd.record(train_mode=record):
            outputs = run(*arrays.values(), **attributes)
    outputs = outputs if isinstance(outputs, list) else [outputs]
    for name, found in zip(("out", "mean", "invstd"), outputs, strict=False):
        close(found, expected[name], name)
    for name in case["shapes"]:
        if f"{name}_after_forward" in expected:
            close(arrays[name], expected[f"{name}_after_forward"], f"{name} after forward")
    backward = case.get("backward", True)
    if backward is None or outputs[0].source is None:
        assert not any(name.startswith("d_") for name in expected)
        return
    outputs[0].backward(mx.nd.array(given["out_grad"], dtype=case["dtype"]), train_mode=backward)
    for name, array in arrays.items():
        # MXNet's oneDNN engine writes this zero even where it is asked to add it; its other one
        # adds, as upconv does.
        added = (
            name == "gamma"
            and case["grad_req"][name] == "add"
            and OPERATORS["BatchNorm"].parse(attributes, 5).fix_gamma
        )
        if added:
            close(array.grad, given["initial_gamma"], "d_gamma")
        elif f"d_{name}" in expected:
            close(array.grad, expected[f"d_{name}"], f"d_{name}")
        if f"{name}_after" in expected:
            close(array, expected[f"{name}_after"], f"{name} after backward")


# What MXNet refuses and upconv computes, or the other way round; docs/mxnet.md says why.
COMPUTED_HERE = {
    "target on onednn": "by the definition; rule='library' refuses it",
    "float16": "with float32 sums",
    "NHWC": "for both operators",
    "dilation of rank 3": "as for other ranks",
    "rank 3 on native": "by the one implementation there is",
}
REFUSED_HERE = {
    "target partly zero": "MXNet makes the axis empty",
    "workspace negative": "MXNet lets it wrap around",
    "gamma shape": "MXNet reads what lies behind the array",
}


@pytest.mark.parametrize(
    "case", REFUSED, ids=lambda case: f"{case['op']}-{case['kind']}-{case['attributes']}"
)
def test_refuses_what_mxnet_refuses(case: dict[str, Any]) -> None:
    pairs = zip(case["shapes"], case["dtypes"], strict=True)
    arrays = [mx.nd.array(np.ones(shape), dtype=dtype) for shape, dtype in pairs]
    attributes = ast.literal_eval(case["attributes"])
    run = getattr(mx.nd, case["op"])
    computed = case["outcome"] == "returned" or case["kind"] in COMPUTED_HERE
    if computed and case["kind"] not in REFUSED_HERE:
        run(*arrays, **attributes)
        return
    with pytest.raises(mx.MXNetError) as caught:
        run(*arrays, **attributes)
    assert isinstance(caught.value, UpconvError)
    assert str(caught.value)
