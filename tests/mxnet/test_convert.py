"""Gluon's transposed layers and PyTorch's: the same values from the same parameters."""

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="layers are held against PyTorch")

import upconv.mxnet as mx  # noqa: E402
from upconv.mxnet.convert import from_torch, to_torch  # noqa: E402
from upconv.mxnet.gluon import nn  # noqa: E402

LAYERS = {
    "1-D": (1, {"kernel_size": 5, "strides": 3, "padding": 1, "output_padding": 2}),
    "2-D": (2, {"kernel_size": (4, 3), "strides": (2, 1), "padding": (1, 0)}),
    "2-D grouped": (2, {"kernel_size": 4, "strides": 2, "groups": 2}),
    "2-D dilated": (2, {"kernel_size": 3, "dilation": (2, 3), "strides": 2, "use_bias": False}),
    "3-D": (3, {"kernel_size": 3, "strides": 2, "output_padding": 1, "padding": 1}),
}


def drawn(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype(np.float32)


def filled(layer):
    layer.initialize()
    layer.weight.set_data(drawn(*layer.weight.shape))
    if layer.bias is not None:
        layer.bias.set_data(drawn(*layer.bias.shape))
    return layer


def module_of(arguments, values):
    rank = len(arguments["kernel_size"])
    module = getattr(torch.nn, f"ConvTranspose{rank}d")(**arguments)
    state = {name: torch.from_numpy(value) for name, value in values.items()}
    module.load_state_dict(state)  # raises for shapes that differ
    return module


def assert_same(layer, module, x):
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(layer(mx.nd.array(x)).asnumpy(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", LAYERS)
def test_there_and_back(name):
    rank, arguments = LAYERS[name]
    layer = filled(getattr(nn, f"Conv{rank}DTranspose")(6, in_channels=4, **arguments))
    x = drawn(2, 4, *(5, 4, 3)[:rank])
    module = module_of(*to_torch(layer))
    assert_same(layer, module, x)
    again = from_torch(module)
    assert again.attributes == layer.attributes
    assert_same(again, module, x)


@pytest.mark.parametrize("rank", [2, 3])
def test_channels_last_become_channels_first(rank):
    kind, layout = getattr(nn, f"Conv{rank}DTranspose"), "NDHWC"[:1] + "DHWC"[3 - rank :]
    layer = filled(kind(6, 3, strides=2, layout=layout, in_channels=4, groups=2))
    module, x = module_of(*to_torch(layer)), drawn(2, *(5, 4, 3)[:rank], 4)
    expected = module(torch.from_numpy(np.moveaxis(x, -1, 1).copy())).detach().numpy()
    found = np.moveaxis(layer(mx.nd.array(x)).asnumpy(), -1, 1)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_double_precision_stays():
    module = torch.nn.ConvTranspose1d(3, 2, 4, dtype=torch.float64)
    layer = from_torch(module)
    assert layer.weight.data().dtype is np.float64
    assert to_torch(layer)[1]["weight"].dtype == np.float64


@pytest.mark.parametrize(
    ("module", "says"),
    [
        (torch.nn.Conv2d(2, 3, 3), "not a transposed convolution of PyTorch"),
        (torch.nn.Linear(2, 3), "not a transposed convolution of PyTorch"),
        (torch.nn.ConvTranspose1d(2, 3, 3, stride=1, dilation=3, output_padding=2),
         "less than the"),
        (torch.nn.ConvTranspose1d(2, 3, 3, dtype=torch.bfloat16), "weight: "),
        (SimpleNamespace(transposed=True, padding_mode="reflect"), "not a transposed convolution"),
    ],
)  # fmt: skip
def test_what_gluon_has_no_layer_for_is_refused(module, says):
    with pytest.raises(mx.MXNetError, match=says):
        from_torch(module)


@pytest.mark.parametrize(
    ("layer", "says"),
    [
        (nn.Conv2D(3, 3, in_channels=2), "not a transposed convolution of Gluon"),
        (nn.Flatten(), "not a transposed convolution of Gluon"),
        (nn.Conv2DTranspose(3, 3, in_channels=2, activation="relu"), "has an activation"),
    ],
)
def test_what_pytorch_has_no_layer_for_is_refused(layer, says):
    with pytest.raises(mx.MXNetError, match=says):
        to_torch(layer)


def test_a_layer_without_values_says_so():
    layer = nn.Conv2DTranspose(3, 3)
    with pytest.raises(RuntimeError, match="not initialized"):
        to_torch(layer)
