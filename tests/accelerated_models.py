"""Models that tests accelerate, and what they compare."""

from __future__ import annotations

import copy
import types

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from upconv.torch import accelerate, acceleration_report, fused_weights, restore  # noqa: E402

BOUND = 2e-5
"""Results here are sums of about a hundred products of order 1 / 10, in float32."""


def stirred(model: nn.Module) -> nn.Module:
    """The model in eval mode, its normalisations having seen something."""
    for module in model.modules():
        if isinstance(module, fused_weights.NORMS) and module.track_running_stats:
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.eval()


def generator() -> nn.Sequential:
    """A small DCGAN."""
    return stirred(
        nn.Sequential(
            nn.ConvTranspose2d(6, 10, 3, bias=False),
            nn.BatchNorm2d(10),
            nn.ReLU(inplace=True),
            nn.Sequential(nn.ConvTranspose2d(10, 8, 4, 2, 1, groups=2), nn.Dropout(0.5)),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2),
            nn.ConvTranspose2d(8, 3, (4, 3), (2, 3), (1, 0)),
            nn.Tanh(),
        )
    )


class Skip(nn.Module):
    """A level of a U-Net: what comes in, next to what the inner level makes of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.cat([x, self.inner(x)], 1)


def volumes() -> nn.Sequential:
    """A small 3D U-Net."""
    for_channels = {"kernel_size": 3, "stride": 2, "padding": 1}

    def up(before: int, after: int) -> nn.Sequential:
        layer = nn.ConvTranspose3d(before, after, output_padding=1, **for_channels)
        return nn.Sequential(layer, nn.Sequential(nn.BatchNorm3d(after), nn.PReLU()))

    inner = nn.Sequential(nn.Conv3d(4, 6, **for_channels), nn.PReLU(), up(6, 4))
    return stirred(nn.Sequential(nn.Conv3d(2, 4, **for_channels), Skip(inner), up(8, 2)))


X = (3, 6, 2, 4)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= BOUND)


def pair(build, *shape):
    """An accelerated model, an equal one that never was, and an input."""
    model = build()
    return accelerate(model), restore(copy.deepcopy(model)), torch.randn(*shape)


class Block(nn.Module):
    """Code of its own: functions, a residual, one module called twice, an option."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(6, 8, 4, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.again = nn.ConvTranspose2d(8, 8, 3, 1, 1)
        self.act = nn.GELU()
        self.slope = 0.2

    def forward(self, x: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        y = functional.relu(self.norm(self.up(x)))
        z = functional.leaky_relu(self.again(y) + y, self.slope)
        if scale is not None:
            z = z * scale
        return self.act(z)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.last = nn.ConvTranspose2d(8, 2, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1e9:  # what no tracer follows
            return x
        return functional.relu(self.last(self.block(x) + self.block(x, 2.0)))


class Up(nn.Module):
    """A deconvolution with a normalisation, to be called by code of its own."""

    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.up, self.bn = nn.ConvTranspose2d(6, 5, 4, 2, 1), nn.BatchNorm2d(5)
        nn.init.uniform_(self.bn.running_var, 0.5, 2)
        nn.init.normal_(self.bn.running_mean)
        self.config, self.log, self.scale = types.SimpleNamespace(gain=1.0), [], 1.0
        self.inner = nn.Identity()
        self.inner.gain = 1.0
        self.pair = (types.SimpleNamespace(gain=1.0),)

    def forward(self, x):
        return torch.relu(self.bn(self.up(x)))


def example() -> torch.Tensor:
    return torch.randn(2, 6, 4, 5)


def accelerated(forward=None) -> nn.Module:
    own = type("Own", (Up,), {} if forward is None else {"forward": forward})
    return accelerate(own().eval(), example())


def fuses(model: nn.Module) -> bool:
    return " + " in acceleration_report(model).layers[0].before
