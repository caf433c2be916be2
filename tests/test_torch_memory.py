"""Tensors whose memory is not what it was: freed, shrunk, never there, or written to unseen.

python -m pytest tests/test_torch_memory.py
"""

from __future__ import annotations

import copy
import gc

import pytest

torch = pytest.importorskip("torch", reason="the face for PyTorch needs PyTorch")
from torch.nn import functional as F  # noqa: E402

import upconv.torch  # noqa: E402
from upconv.errors import UpconvError  # noqa: E402
from upconv.torch import packing  # noqa: E402

SHAPES = {"input": (2, 3, 5), "weight": (3, 4, 3), "bias": (4,)}
OPERATORS = torch.ops.upconv
HOW = ([1], [0], [0], [1], 1)


def operands() -> dict:
    torch.manual_seed(0)
    return {name: torch.randn(shape) for name, shape in SHAPES.items()}


def resized(tensor, nbytes: int, first: int = 0):
    """A copy, of which the storage has another size now, and that many tensors before it."""
    made = torch.stack([tensor] * (first + 1))[first]
    made.untyped_storage().resize_(nbytes)
    return made


@pytest.mark.parametrize("nbytes", [0, 4])
@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_operands_without_their_memory_are_refused(name, sliced, nbytes) -> None:
    given = operands()
    # A freed storage has the address 0; a tensor that begins within it has not.
    given[name] = resized(given[name], nbytes, first=1 if sliced else 0)
    with pytest.raises(RuntimeError, match="storage") as error:
        upconv.torch.conv_transpose1d(**given)
    assert isinstance(error.value, UpconvError)


@pytest.mark.parametrize("nbytes", [[0], [4], [0, 4]])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_packed_parameters_without_their_memory_are_refused(name, nbytes) -> None:
    x = operands()["input"]
    layer = upconv.torch.ConvTranspose1d(3, 4, 3).eval()
    with torch.no_grad():
        wanted = layer(x)
        for each in nbytes:
            getattr(layer, name).untyped_storage().resize_(each)
        with pytest.raises(RuntimeError, match="storage"):
            layer(x)
        setattr(layer, name, None)
        layer.register_parameter(name, torch.nn.Parameter(torch.zeros(SHAPES[name])))
        assert not torch.equal(layer(x), wanted)


@pytest.mark.parametrize("name", SHAPES)
def test_zero_tensors_are_zeros(name) -> None:
    given = operands()
    given[name] = torch._efficientzerotensor(SHAPES[name])
    wanted = F.conv_transpose1d(**{**given, name: torch.zeros(SHAPES[name])})
    torch.testing.assert_close(upconv.torch.conv_transpose1d(**given), wanted)
    got = OPERATORS.conv_transpose(given["input"], given["weight"], given["bias"], *HOW)
    torch.testing.assert_close(got, wanted)


def test_gradients_that_are_zero_tensors_are_zeros() -> None:
    given = {name: each.requires_grad_() for name, each in operands().items()}
    y = upconv.torch.conv_transpose1d(**given)
    found = torch.autograd.grad(y, given.values(), torch._efficientzerotensor(y.shape))
    for each, of in zip(found, given.values(), strict=True):
        assert torch.equal(each, torch.zeros_like(of))


KERNELS = [(1,), (2,), (3,), (4,), (5,), (7,), (16,), (64,), (2, 2), (3, 3), (4, 4), (5, 5), (7, 7)]
KERNELS += [(1, 9), (2, 2, 2), (3, 3, 3), (4, 4, 4)]


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_channel_and_tap_is_looked_at(kernel) -> None:
    for channels in (1, 2, 3, 4, 6, 8, 9, 16, 24, 27, 32, 64, 100):
        for outs in (1, 2, 3, 5, 8, 18, 32, 49, 64, 128):
            shape = (channels, outs, *kernel)
            number = torch.arange(torch.Size(shape).numel()).reshape(shape)
            taps = number[0, 0].numel()
            for weight in (number, number.transpose(0, 1).contiguous().transpose(0, 1)):
                places = packing._places(shape, weight.stride())
                whole = isinstance(places, slice)
                places = places if whole else torch.from_numpy(places)
                looked = torch.as_strided(weight, (number.numel(),), (1,))[places]
                coordinates = torch.unravel_index(looked, (channels, outs, taps))
                for size, found in zip(shape, coordinates[:2], strict=False):
                    assert len(found.unique()) == (size if whole else min(64, size))
                assert len(coordinates[2].unique()) == (taps if whole else min(64, taps))


WRITES = {
    "all taps but one": lambda w: w[..., 1:].zero_(),
    "one tap": lambda w: w[..., 1, 1].zero_(),
    "one input channel": lambda w: w[3].zero_(),
    "one output channel": lambda w: w[:, 5].zero_(),
    "every other output channel": lambda w: w[:, ::2].zero_(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("channels", [8, 9, 16, 64])
@pytest.mark.parametrize("kernel", [3, 4, 5])
def test_systematic_writes_through_data_are_seen(write, channels, kernel) -> None:
    torch.manual_seed(0)
    layer = upconv.torch.ConvTranspose2d(channels, channels, kernel).eval()
    x = torch.randn(1, channels, 3, 3)
    with torch.no_grad():
        layer(x)
        WRITES[write](layer.weight.data)
        wanted = F.conv_transpose2d(x, layer.weight, layer.bias)
        torch.testing.assert_close(layer(x), wanted, rtol=1e-4, atol=1e-5)


def test_what_is_packed_of_a_weight_goes_though_copies_of_the_weight_stay() -> None:
    layer = upconv.torch.ConvTranspose2d(2, 3, 3).eval()
    x = torch.randn(1, 2, 4, 4)
    gc.collect()
    before = len(packing._kept)
    with torch.no_grad():
        for _ in range(20):
            layer.weight = copy.copy(layer.weight)
            wanted = F.conv_transpose2d(x, layer.weight, layer.bias)
            torch.testing.assert_close(layer(x), wanted, rtol=1e-5, atol=1e-5)
    gc.collect()
    assert len(packing._kept) <= before + 1
