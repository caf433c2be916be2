"""Small models for tests of `upconv.torch`, and their comparison."""

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


def stirred(model: nn.Module) -> nn.Module:
    """Return the model in eval mode, with random normalization statistics."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.eval()


def two_of(build, dtype=torch.float32) -> list[nn.Module]:
    """Return two models with equal weights; deepcopy refuses the old weight norm."""
    made = []
    for _ in range(2):
        torch.manual_seed(3)
        made.append(stirred(build()).to(dtype))
    return made


def dcgan(latent: int = 6, width: int = 4) -> nn.Sequential:
    """Build a small DCGAN generator: 16 x 16 pixels from (N, 6, 1, 1)."""
    return stirred(
        nn.Sequential(
            nn.ConvTranspose2d(latent, 2 * width, 4, bias=False),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1, groups=2),
            nn.BatchNorm2d(width),
            nn.LeakyReLU(0.2),
            nn.Dropout(0.5),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
            nn.Tanh(),
        )
    )


class Of(nn.Module):
    """A function of this module, which holds layers and buffers, and of its input."""

    def __init__(self, function, **members) -> None:
        super().__init__()
        self.function = function
        for name, member in members.items():
            if type(member) is torch.Tensor:
                self.register_buffer(name, member)
            else:
                setattr(self, name, member)

    def forward(self, x):
        return self.function(self, x)


class UNet3d(nn.Module):
    """A U-Net of one level, in three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU())
        self.down = nn.Conv3d(4, 6, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose3d(6, 4, 2, stride=2)
        self.last = nn.Conv3d(8, 2, 3, padding="same")

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.cat([x, self.up(torch.relu(self.down(x)))], 1))


class Vocoder(nn.Module):
    """Two up-sampling layers of a HiFi-GAN, with the new and the old weight norm."""

    def __init__(self) -> None:
        super().__init__()
        new, old = nn.utils.parametrizations.weight_norm, nn.utils.weight_norm
        self.first = new(nn.Conv1d(5, 8, 7, padding=3))
        with pytest.warns(FutureWarning):
            self.up = old(nn.ConvTranspose1d(8, 4, 4, 2, padding=1))
        self.body = new(nn.Conv1d(4, 4, 3, dilation=3, padding=3))
        self.last = nn.Conv1d(4, 1, 4, padding="same", padding_mode="reflect")

    def forward(self, x):
        x = self.up(nn.functional.leaky_relu(self.first(x), 0.1))
        return self.last(x + self.body(nn.functional.leaky_relu(x, 0.1)))


MODELS = {
    "dcgan": (dcgan, (2, 6, 1, 1)),
    "unet": (UNet3d, (1, 1, 6, 4, 8)),
    "vocoder": (Vocoder, (2, 5, 11)),
}


def close(one, other, bound: float = 2e-5) -> bool:
    """Return whether two results agree up to rounding; sums have about a hundred products."""
    size = max(1.0, float(other.detach().abs().max())) if other.numel() else 1.0
    return one.shape == other.shape and torch.allclose(one, other, 0, bound * size)
