"""CUDA tensors: which of PyTorch and upconv computes them, and what comes of it."""

import pytest

from tests.support.real_gpu import reason_without

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(bool(reason_without("torch")), reason=reason_without("torch"))


@pytest.fixture(autouse=True)
def settings():
    from upconv.torch import cuda

    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, False
    cuda.forget()
    torch.manual_seed(0)
    yield cuda
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before
    cuda.forget()


def operands(dtype, last: bool, transposed: bool = True):
    x = torch.randn(4, 64, 24, 24, device="cuda", dtype=dtype)
    shape = (64, 32, 4, 4) if transposed else (32, 64, 4, 4)
    weight = torch.randn(shape, device="cuda", dtype=dtype) / 32
    bias = torch.randn(32, device="cuda", dtype=dtype)
    form = torch.channels_last if last else torch.contiguous_format
    return x.to(memory_format=form), weight.to(memory_format=form), bias


TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 4e-2}


@pytest.mark.parametrize("gain", [0.0, 1e9])
@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_both_compute_the_same(settings, monkeypatch, dtype, last, transposed, gain) -> None:
    """A gain of 0 takes upconv everywhere, a huge one PyTorch."""
    import upconv.torch

    monkeypatch.setattr(settings, "_GAIN", gain)
    x, weight, bias = operands(dtype, last, transposed)
    call = upconv.torch.conv_transpose if transposed else upconv.torch.conv
    native = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d
    for each in (x, weight, bias):
        each.requires_grad_()
    y = call(x, weight, bias, stride=2, padding=1)
    wanted = native(x, weight, bias, 2, 1)
    assert y.stride() == wanted.stride()
    near = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    torch.testing.assert_close(y, wanted, **near)
    g = torch.randn_like(wanted)
    mine = torch.autograd.grad(y, (x, weight, bias), g)
    theirs = torch.autograd.grad(wanted, (x, weight, bias), g)
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=near["rtol"], atol=60 * near["atol"])
    chosen = list(settings._choices.values())
    assert len(chosen) == 3
    assert all(each is None for each in chosen) == (gain > 1)


def test_nothing_is_measured_unless_pytorch_measures(settings) -> None:
    import upconv.torch

    torch.backends.cudnn.benchmark = False
    x, weight, bias = operands(torch.float16, True)
    upconv.torch.conv_transpose(x, weight, bias, stride=2)
    assert not settings._choices


def test_what_is_chosen_is_remembered(settings, monkeypatch) -> None:
    import upconv.torch

    x, weight, bias = operands(torch.float16, True)
    upconv.torch.conv_transpose(x, weight, bias, stride=2)
    monkeypatch.setattr(settings, "_measured", None)
    upconv.torch.conv_transpose(x, weight, bias, stride=2)
    assert len(settings._choices) == 1


def test_a_module_and_a_fused_operator(settings, monkeypatch) -> None:
    import upconv.torch

    monkeypatch.setattr(settings, "_GAIN", 0.0)
    x, weight, bias = operands(torch.float16, True)
    residual = torch.randn(4, 32, 48, 48, device="cuda", dtype=torch.float16)
    residual = residual.to(memory_format=torch.channels_last)
    how = [2, 2], [1, 1], [1, 1], True, [0, 0], 1
    y = torch.ops.upconv.fused_convolution(x, weight, bias, *how, residual, "relu")
    wanted = (torch.nn.functional.conv_transpose2d(x, weight, bias, 2, 1) + residual).relu()
    torch.testing.assert_close(y, wanted, rtol=5e-3, atol=5e-3)
    module = upconv.torch.ConvTranspose2d(64, 32, 4, stride=2, padding=1).cuda().half()
    assert module(x).shape == (4, 32, 48, 48)
