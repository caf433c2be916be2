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
from tests.data.mxnet.make_operators import compute, inputs
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
    found, expected = compute(case, mx), answers(case)
    assert found.keys() == expected.keys()
    attributes, adds = ast.literal_eval(case["attributes"]), case["grad_req"].get("gamma") == "add"
    if adds and "d_gamma" in expected and OPERATORS["BatchNorm"].parse(attributes, 5).fix_gamma:
        # MXNet's oneDNN engine writes this zero even where it is asked to add it; its other one
        # adds, as upconv does.
        expected["d_gamma"] = inputs(case)["initial_gamma"]
    for name, value in expected.items():
        close(found[name], value, name)


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
