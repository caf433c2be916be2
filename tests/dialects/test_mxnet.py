"""MXNet: the stored answers of the real 1.9.1 (see data/dialects/make_mxnet.py)."""

import json

import numpy as np

from tests.data.dialects.make_mxnet import pattern
from tests.support.paths import DATA
from upconv import conv_transpose
from upconv.dialects import Layer, from_mxnet
from upconv.errors import ArgumentError

STORED = DATA / "dialects" / "mxnet.npz"


def mxnet_cases() -> list[dict]:
    with np.load(STORED) as stored:
        return json.loads(stored["cases"].tobytes())


def read_mxnet(case: dict) -> Layer:
    attributes = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in case["attributes"].items()
    }
    return from_mxnet(tuple(case["size"]), num_filter=4, **attributes)


def test_mxnet_sizes_and_refusals():
    """All stored cases; the two ways to differ are counted, so that neither goes unnoticed."""
    agreeing = minus_one = dilated = 0
    for case in mxnet_cases():
        try:
            layer = read_mxnet(case)
        except ArgumentError as error:
            if case["out"] is not None:
                # A size of -1 means "unknown" inside MXNet, which then reports 0.
                assert "is -1 =" in str(error)  # noqa: PT017 - not every case raises
                assert 0 in case["out"]
                minus_one += 1
            else:
                agreeing += 1
            continue
        if case["out"] is None:
            assert len(layer.axes) == 3
            assert any(axis.dilation > 1 for axis in layer.axes)
            dilated += 1
        else:
            assert layer.output_size == tuple(case["out"]), case
            agreeing += 1
    assert (agreeing, minus_one, dilated) == (400, 16, 4)


def test_mxnet_values():
    compared = 0
    with np.load(STORED) as stored:
        values = stored["values"]
    for case in mxnet_cases():
        if "start" not in case:
            continue
        layer = read_mxnet(case)
        x = pattern((1, 2, *case["size"]), 7, 11)
        w = pattern((2, 4 // layer.groups, *layer.kernel), 5, 13)
        count = 4 * int(np.prod(layer.output_size))
        y = values[case["start"] : case["start"] + count].reshape(1, 4, *layer.output_size)
        found = conv_transpose(x, layer.weight(w), **layer.keywords(), engine="reference")
        assert np.array_equal(found, y), case
        compared += 1
    assert compared > 150
