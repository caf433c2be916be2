"""Architectures with transposed convolutions that no package offers, written from their papers.

Demucs for speech, the generator of iSTFTNet, PointPillars' backbone with its neck, and U-Net; each
in its paper's words, and smaller only where its docstring says so. Those that `torch_models` has
(HiFi-GAN V1, FSRCNN, DCGAN) are not repeated here. Weights are whatever PyTorch draws. Shapes are
in the docstrings of `forward`, with N, C for batch and channels.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import nn
from torch.nn import functional
from torch_models import ResBlock


class Demucs(nn.Module):
    """Demucs for speech (Défossez, Synnaeve, Adi 2020): H=48, L=5, K=8, S=4, without resampling."""

    def __init__(self, width: int = 48, levels: int = 5, kernel: int = 8, stride: int = 4) -> None:
        super().__init__()
        self.encoder, decoder = nn.ModuleList(), []
        before, after = 1, width
        for i in range(levels):
            self.encoder.append(
                nn.Sequential(
                    nn.Conv1d(before, after, kernel, stride),
                    nn.ReLU(),
                    nn.Conv1d(after, 2 * after, 1),
                    nn.GLU(dim=1),
                )
            )
            up = nn.ConvTranspose1d(after, before, kernel, stride)
            layers = [nn.Conv1d(after, 2 * after, 1), nn.GLU(dim=1), up]
            decoder.append(nn.Sequential(*layers, *([nn.ReLU()] if i else [])))
            before, after = after, 2 * after
        self.decoder = nn.ModuleList(reversed(decoder))
        self.lstm = nn.LSTM(before, before, num_layers=2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 1, T) with a T that no level has to cut, such as 16724; so is the result."""
        skips = []
        for level in self.encoder:
            x = level(x)
            skips.append(x)
        x = self.lstm(x.transpose(1, 2))[0].transpose(1, 2)
        for level in self.decoder:
            x = level(x + skips.pop())
        return x


def inverse_dft(size: int) -> torch.Tensor:
    """Windowed waves of half a spectrum, real then imaginary parts: (size + 2, 1, size)."""
    bins = size // 2 + 1
    angle = 2 * math.pi / size * torch.outer(torch.arange(bins), torch.arange(size))
    # All bins but the first and the last stand for their conjugates too.
    weight = torch.full((bins, 1), 2 / size)
    weight[0] = weight[-1] = 1 / size
    frames = torch.cat([weight * angle.cos(), -weight * angle.sin()])
    return (frames * torch.hann_window(size)).unsqueeze(1)


class IstftNet(nn.Module):
    """iSTFTNet C8C8I (Kaneko and others 2022): HiFi-GAN's first two stages, then an inverse STFT.

    The inverse STFT is a transposed convolution with a fixed kernel, over the sum of the squared
    windows, which is 1.5 at a hop of a quarter: the usual way to export it, as ONNX has none.
    """

    def __init__(self, width: int = 512, size: int = 16, hop: int = 4) -> None:
        super().__init__()
        self.hop, self.crop = hop, size // 2
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, 16, 8, padding=4))
            width //= 2
            self.blocks.append(nn.ModuleList(ResBlock(width, k) for k in (3, 7, 11)))
        self.last = nn.Conv1d(width, size + 2, 7, padding=3)
        self.register_buffer("frames", inverse_dft(size) / 1.5)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """mel: (N, 80, T); out comes (N, 1, 256 T)."""
        x = self.first(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        # One frame more, as the paper's reflection padding makes it, is a whole number of hops.
        x = self.last(functional.pad(functional.leaky_relu(x), (1, 0), mode="reflect"))
        magnitude, phase = x.chunk(2, dim=1)
        magnitude, phase = magnitude.exp(), math.pi * phase.sin()
        spectrum = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=1)
        return functional.conv_transpose1d(
            spectrum, self.frames, stride=self.hop, padding=self.crop
        )


def _conv_block(before: int, after: int, layers: int, stride: int = 1) -> nn.Sequential:
    """3 x 3 convolutions with batch norm and ReLU, the first with a stride."""
    parts: list[nn.Module] = []
    for i in range(layers):
        conv = nn.Conv2d(before, after, 3, stride if i == 0 else 1, padding=1, bias=False)
        parts += [conv, nn.BatchNorm2d(after), nn.ReLU()]
        before = after
    return nn.Sequential(*parts)


class PointPillarsNeck(nn.Module):
    """PointPillars' backbone (Lang and others 2019): three blocks, each up-sampled to one size."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.blocks, self.ups, before = nn.ModuleList(), nn.ModuleList(), width
        for i, layers in enumerate((4, 6, 6)):
            after, up = width * 2**i, 2**i
            self.blocks.append(_conv_block(before, after, layers, stride=2))
            self.ups.append(
                nn.Sequential(
                    nn.ConvTranspose2d(after, 2 * width, up, up, bias=False),
                    nn.BatchNorm2d(2 * width),
                    nn.ReLU(),
                )
            )
            before = after

    def forward(self, pillars: torch.Tensor) -> torch.Tensor:
        """pillars: (N, 64, H, W), H and W multiples of 8; out comes (N, 384, H / 2, W / 2)."""
        maps, x = [], pillars
        for block, up in zip(self.blocks, self.ups, strict=True):
            x = block(x)
            maps.append(up(x))
        return torch.cat(maps, dim=1)


class UNet(nn.Module):
    """U-Net (Ronneberger, Fischer, Brox 2015) at half its width, with padded convolutions."""

    def __init__(self, channels: int = 3, classes: int = 2, width: int = 32) -> None:
        super().__init__()
        widths = [width * 2**i for i in range(5)]
        self.first = _conv_block(channels, width, 2)
        self.down = nn.ModuleList(_conv_block(a, b, 2) for a, b in itertools.pairwise(widths))
        pairs = list(itertools.pairwise(reversed(widths)))
        self.ups = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.joins = nn.ModuleList(_conv_block(a, b, 2) for a, b in pairs)
        self.last = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """image: (N, C, H, W), H and W multiples of 16; out comes (N, classes, H, W)."""
        x = self.first(image)
        skips = []
        for block in self.down:
            skips.append(x)
            x = block(functional.max_pool2d(x, 2))
        for up, join in zip(self.ups, self.joins, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        return self.last(x)
