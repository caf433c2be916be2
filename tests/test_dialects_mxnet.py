"""MXNet: the stored answers of the real 1.9.1 (see data/dialects/make_mxnet.py), and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from upconv import conv_transpose
from upconv.dialects import (
    Layer,
    from_mxnet,
)
from upconv.errors import ArgumentError

STORED = Path(__file__).parent / "data" / "dialects" / "mxnet.npz"


def mxnet_cases() -> list[dict]:
    with np.load(STORED) as stored:
        return json.loads(stored["cases"].tobytes())


def pattern(shape: tuple[int, ...], factor: int, modulus: int) -> np.ndarray:
    """As in make_mxnet.py."""
    count = int(np.prod(shape))
    return ((np.arange(count) * factor) % modulus - modulus // 2).reshape(shape).astype(float)


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
        assert np.array_equal(conv_transpose(x, layer.weight(w), **layer.keywords()), y), case
        compared += 1
    assert compared > 150


REFUSALS = [
    # MXNet.
    (from_mxnet, (5, 5), {"kernel": (3, 3), "stride": 2},
     ("stride is (2,) (1 of them); expected one integer per spatial axis, 2 here. The input "
      "size, given without N and C, decides how many axes there are.")),
    (from_mxnet, (5, 5), {"kernel": "3,3"},
     "kernel is '3,3'; expected a shape such as \"(3, 3)\"."),
    (from_mxnet, (5, 5), {"kernel": (3, 3), "pad": None},
     "pad is None (NoneType); expected an integer."),
    (from_mxnet, (5,), {"kernel": (3,), "stride": (2,), "adj": (2,)},
     ("adj[0] is 2; expected at most stride[0] - 1 = 1. MXNet refuses more; negative padding "
      "in upconv.conv_transpose has no such limit.")),
    (from_mxnet, (4,), {"kernel": (3,), "target_shape": (5,)},
     ("the adj that target_shape[0] = 5 derives is 1; expected at most stride[0] - 1 = 0. "
      "MXNet refuses more; negative padding in upconv.conv_transpose has no such limit.")),
    (from_mxnet, (4, 4), {"kernel": (4, 4), "stride": (2, 2), "target_shape": (8, 0)},
     ("target_shape[1] is 0 in (8, 0); expected a size on every axis, or none at all. MXNet "
      "would make this axis empty, not leave it alone: write the size you want.")),
    (from_mxnet, (4,), {"kernel": (3,), "target_shape": (7,)},
     "target_shape[0] is 7; expected at most 6. MXNet's target only crops."),
    (from_mxnet, (4, 4), {"kernel": (3, 3), "target_shape": 6},
     "target_shape is (6,); expected one size per kernel axis, 2 here."),
    (from_mxnet, (4,), {"kernel": (3,), "pad": (-1,)}, "pad[0] is -1; expected an integer >= 0."),
    (from_mxnet, (4, 4), {"kernel": (3, 3), "layout": "NCW"},
     "layout is 'NCW'; expected a layout of 2 spatial axes, as kernel has."),
    (from_mxnet, (4,), {"kernel": 3, "layout": "NWC"},
     "layout is 'NWC'; expected None or one of NCW, NCHW, NCDHW, NHWC, NDHWC."),
    (from_mxnet, (4,), {"kernel": 3, "no_bias": "yes"},
     "no_bias is 'yes'; expected True, False, 1, 0 or the text of one."),
    (from_mxnet, (4,), {"kernel": 3, "cudnn_tune": "x"},
     "cudnn_tune is 'x'; expected one of None, off, limited_workspace, fastest."),
    (from_mxnet, (4,), {"kernel": 3, "num_filter": "7", "num_group": "2"},
     "num_group is 2; expected a divisor of num_filter = 7."),
    (from_mxnet, (4,), {"kernel": 3, "num_group": "2.0"},
     "num_group is '2.0' (str); expected an integer."),
    (from_mxnet, (4,), {"kernel": 3, "workspace": -1},
     "workspace is -1; expected an integer >= 0."),
    (from_mxnet, (4,), {"kernel": 3, "kernel_size": 3},
     ("an attribute of Deconvolution is 'kernel_size'; expected one of kernel, stride, dilate, "
      "pad, adj, target_shape, num_filter, num_group, workspace, no_bias, cudnn_tune, "
      "cudnn_off, layout, name.")),
    (from_mxnet, (1, 2, 4, 4), {"kernel": (3, 3)},
     "size is (1, 2, 4, 4); expected 2 spatial sizes, as kernel has. Leave out N and C."),
    (from_mxnet, (1,) * 4, {"kernel": (1,) * 4},
     "kernel is (1, 1, 1, 1); expected a shape of 1, 2 or 3 axes."),
]  # fmt: skip


@pytest.mark.parametrize(("read", "size", "keywords", "message"), REFUSALS)
def test_refusals_say_what_where_and_what_to_do(read, size, keywords, message):
    with pytest.raises(ArgumentError) as caught:
        read(size, **keywords)
    assert str(caught.value) == message
