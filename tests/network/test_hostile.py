"""Every argument of every method of `Network` refuses what it cannot be, by an error of upconv."""

from typing import Any

import numpy as np
import pytest

from upconv.errors import UpconvError
from upconv.network import Network, Value

W, B = np.ones((2, 4, 3), np.float32), np.ones(4)
VALID: dict[str, dict[str, Any]] = {
    "conv": {
        "weight": W, "bias": np.ones(2), "stride": 1, "padding": 1, "dilation": 1, "groups": 1,
        "activation": "relu",
    },
    "conv_transpose": {
        "weight": np.ones((4, 2, 3)), "bias": np.ones(2), "stride": 1, "padding": 1,
        "output_padding": 0, "dilation": 1, "groups": 1, "activation": "relu",
    },
    "activation": {"activation": "relu"},
    **{name: {"y": 1.5} for name in ("add", "sub", "mul", "div", "maximum", "minimum")},
    "clip": {"low": -1.0, "high": 1.0},
    "batch_norm": {"scale": B, "offset": B, "mean": B, "variance": B, "epsilon": 1e-5},
    "instance_norm": {"scale": B, "offset": B, "epsilon": 1e-5},
    "group_norm": {"groups": 2, "scale": B, "offset": B, "epsilon": 1e-5},
    "layer_norm": {"scale": B, "offset": B, "epsilon": 1e-5},
    "lstm": {"weight": np.ones((8, 4)), "hidden_weight": np.ones((8, 2)), "bias": np.ones(8)},
    "slice": {"start": 1, "stop": 3},
    "permute": {"order": [3, 0]},
    "channel_shuffle": {"groups": 2},
    "pad": {"amounts": 1, "mode": "reflect", "value": 1.0},
    "crop": {"amounts": 1},
    "upsample": {"factors": 2, "mode": "linear"},
    "resize": {"size": 5, "mode": "linear", "align_corners": True},
    "max_pool": {"kernel": 2, "stride": 2, "padding": 1, "dilation": 1, "ceil_mode": True},
    "avg_pool": {
        "kernel": 2, "stride": 2, "padding": 1, "count_padding": True, "dilation": 1,
        "ceil_mode": True,
    },
    "adaptive_pool": {"windows": 3, "mode": "max"},
    "channel_pool": {"mode": "max"},
    "softmax": {},
    "pixel_shuffle": {"factor": 2, "order": "DCR"},
    "pixel_unshuffle": {"factor": 3},
}  # fmt: skip
OTHERS = {
    "concat", "output", "inputs", "graph", "compile", "draw", "program", "stream",
    "nodes", "at", "redeclared", "boxes",
}  # fmt: skip


class Failing:
    """An object whose conversions fail."""

    def __array__(self, *_: object, **__: object) -> None:
        raise RuntimeError

    def __repr__(self) -> str:
        raise RuntimeError

    __index__ = __float__ = __len__ = __iter__ = __repr__


HOSTILE = (
    None, True, -1, 0, 1.5, 10**30, float("nan"), "", "auto", b"x", object(), Failing(), [], (),
    {}, {1}, [[[]]], (None,), ("relu", None), ("prelu", object()), ("elu", 10**400), (1, 2, 3, 4),
    [("a", "b")], 1j, np.float32(np.inf), np.array(3.0), np.ones((0, 2, 3)), np.ones(2, complex),
    np.ones((2,) * 7), np.full((2, 4, 3), np.nan), np.array(["a"]), np.ma.ones(4), range(3),
    Network, Network({"x": (1, 4, 9)}).inputs["x"], np.ones(4)[::-1], np.ones(4) * 1e39,
)  # fmt: skip


def test_every_method_is_here() -> None:
    methods = {name for name in dir(Network) if not name.startswith("_")}
    assert methods - OTHERS == VALID.keys()


@pytest.mark.parametrize("open_sizes", [False, True])
@pytest.mark.parametrize("method", VALID)
def test_arguments_that_cannot_be_are_refused(method: str, open_sizes: bool) -> None:
    network = Network({"x": (1, 4, None if open_sizes else 9)})
    x = network.inputs["x"]
    assert isinstance(getattr(network, method)(x, **VALID[method]), Value)
    for argument in ("x", *VALID[method]):
        for hostile in HOSTILE:
            arguments = {"x": x, **VALID[method], argument: hostile}
            try:
                result = getattr(network, method)(**arguments)
            except UpconvError as error:
                result = str(error)
            assert isinstance(result, Value) or 10 < len(result) < 700, (argument, result)


@pytest.mark.parametrize("method", ["concat", "output"])
def test_values_that_cannot_be_are_refused(method: str) -> None:
    network = Network({"x": (1, 4, 9)})
    for hostile in HOSTILE:
        with pytest.raises(UpconvError):
            getattr(network, method)(network.inputs["x"], hostile)


def test_inputs_and_shapes_that_cannot_be_are_refused() -> None:
    network = Network({"x": (1, 4, None)})
    network.output(network.activation(network.inputs["x"], "relu"))
    for hostile in HOSTILE:
        with pytest.raises(UpconvError):
            network.graph(x=hostile)
        if type(hostile) is not tuple or len(hostile) < 3:
            with pytest.raises(UpconvError):
                Network({"x": hostile})
        with pytest.raises(UpconvError):
            Network(hostile)
        with pytest.raises(UpconvError):
            Network({"x": (1, hostile, 9)} if type(hostile) is not int or hostile < 1 else {})
