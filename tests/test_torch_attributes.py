"""Attributes of a ConvTranspose module that are set after it was made."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import upconv.torch  # noqa: E402


def pair():
    """A layer of ours and PyTorch's with the same parameters, and an input."""
    torch.manual_seed(0)
    original = nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2).eval()
    return upconv.torch.from_torch(copy.deepcopy(original)), original, torch.randn(2, 4, 5, 6)


def assert_same(layer, original, x) -> None:
    with torch.no_grad():
        torch.testing.assert_close(layer(x), original(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [("stride", 3), ("stride", [3, 2]), ("stride", [3]), ("output_padding", 0), ("dilation", 3)],
)
def test_attributes_may_be_set_later_in_all_forms_that_pytorch_takes(name, value, training) -> None:
    layer, original, x = pair()
    assert_same(layer, original, x)
    for module in (layer, original):
        setattr(module, name, value)
        module.train(training)
    assert_same(layer, original, x)
    for module in (layer, original):
        module(x).square().sum().backward()
    torch.testing.assert_close(layer.weight.grad, original.weight.grad, rtol=1e-4, atol=1e-4)


def test_attributes_set_to_what_pytorch_refuses_are_refused() -> None:
    for name, value in (("stride", (1, 2, 3)), ("stride", 2.5), ("padding_mode", "circular")):
        layer, original, x = pair()
        errors = []
        for module in (original, layer):
            setattr(module, name, value)
            with pytest.raises((RuntimeError, TypeError, ValueError)) as error:
                module(x)
            errors.append(error.value)
        assert isinstance(errors[1], type(errors[0]))
        assert f"{name} is " in str(errors[1])


@pytest.mark.parametrize(
    ("name", "value", "equal"),
    [
        ("stride", (2.0, 2.0), 2),
        ("stride", (2, 2.0), 2),
        ("padding", (True, 1), 1),
        ("output_padding", (False, 0), 0),
        ("dilation", (1.0, 1), 1),
        ("groups", True, 1),
    ],
)
def test_what_equals_an_integer_is_refused_whatever_was_computed_before(name, value, equal) -> None:
    for before in (False, True):
        layer = upconv.torch.ConvTranspose2d(4, 6, 3, stride=2, padding=1).eval()
        x = torch.randn(2, 4, 5, 6)
        setattr(layer, name, equal if name == "groups" else (equal, equal))
        if before:
            layer(x)
            with torch.no_grad():
                layer(x)
        setattr(layer, name, value)
        for training in (True, False):
            with pytest.raises(TypeError, match=name):
                layer.train(training)(x)
            with torch.no_grad(), pytest.raises(TypeError, match=name):
                layer(x)


def test_an_output_size_of_floats_is_refused_whatever_was_computed_before() -> None:
    layer, x = upconv.torch.ConvTranspose2d(4, 6, 3, stride=2, padding=1), torch.randn(2, 4, 5, 6)
    layer(x, [9, 11])
    with pytest.raises(TypeError, match="output_padding"):
        layer(x, [9.0, 11.0])
