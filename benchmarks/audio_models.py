"""Audio decoders in PyTorch: vocoders and codecs, written from their papers or taken from packages.

Shapes are in the docstrings of `forward`, with N, C for batch and channels. PyTorch draws
the weights. `MODELS` has the audio models of the table in models.py.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from contenders import Model
from torch import nn
from torch.nn import functional

Rates = tuple[tuple[int, int], ...]
"""The stride and the kernel of each transposed convolution of a vocoder."""

V1: Rates = ((8, 16), (8, 16), (2, 4), (2, 4))
V3: Rates = ((8, 16), (8, 16), (4, 8))


def _leaky(x: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu(x, 0.1)


class ResBlock(nn.Module):
    """HiFi-GAN's first residual block: three pairs of a dilated and a plain convolution."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.dilated, self.plain = (
            nn.ModuleList(
                nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2)
                for d in dilations
            )
            for dilations in ((1, 3, 5), (1, 1, 1))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            x = x + plain(_leaky(dilated(_leaky(x))))
        return x


class ShortBlock(nn.Module):
    """HiFi-GAN's second residual block, for V3: two dilated convolutions."""

    def __init__(self, channels: int, kernel: int, dilations: tuple[int, int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2)
            for d in dilations
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(_leaky(x))
        return x


class HiFiGan(nn.Module):
    """The generator of HiFi-GAN (Kong, Kim, Bae 2020); V1 as its paper's table 5 describes it.

    Weight norm is removed, as its authors do before inference. `short` has V3's blocks.
    """

    def __init__(self, width: int = 512, ups: Rates = V1, short: bool = False) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in ups:
            up = nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2)
            self.ups.append(up)
            width //= 2
            blocks = (
                (ShortBlock(width, k, d) for k, d in ((3, (1, 2)), (5, (2, 6)), (7, (3, 12))))
                if short
                else (ResBlock(width, k) for k in (3, 7, 11))
            )
            self.blocks.append(nn.ModuleList(blocks))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """mel: (N, 80, T). Returns (N, 1, T times the product of the strides)."""
        x = self.first(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(_leaky(x))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(functional.leaky_relu(x)))


def inverse_dft(size: int) -> torch.Tensor:
    """Return windowed waves of half a spectrum, real before imaginary: (size + 2, 1, size)."""
    bins = size // 2 + 1
    angle = 2 * math.pi / size * torch.outer(torch.arange(bins), torch.arange(size))
    # All bins but the first and the last also represent their conjugates.
    weight = torch.full((bins, 1), 2 / size)
    weight[0] = weight[-1] = 1 / size
    frames = torch.cat([weight * angle.cos(), -weight * angle.sin()])
    return (frames * torch.hann_window(size)).unsqueeze(1)


class InverseStft(nn.Module):
    """An inverse STFT at a hop of a quarter, as a transposed convolution with a fixed kernel.

    The squared windows add up to 1.5 at that hop. Exported models contain this form.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("frames", inverse_dft(size) / 1.5)

    def forward(self, magnitude: torch.Tensor, phase: torch.Tensor) -> torch.Tensor:
        """magnitude, phase: (N, size / 2 + 1, T). Returns (N, 1, (T - 1) * size / 4)."""
        spectrum = torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=1)
        hop, crop = self.size // 4, self.size // 2
        return functional.conv_transpose1d(spectrum, self.frames, stride=hop, padding=crop)


class IstftNet(nn.Module):
    """iSTFTNet C8C8I (Kaneko and others 2022): two stages of HiFi-GAN, then an inverse STFT."""

    def __init__(self, width: int = 512, size: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for _ in range(2):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, 16, 8, padding=4))
            width //= 2
            self.blocks.append(nn.ModuleList(ResBlock(width, k) for k in (3, 7, 11)))
        self.last = nn.Conv1d(width, size + 2, 7, padding=3)
        self.inverse = InverseStft(size)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """mel: (N, 80, T). Returns (N, 1, 256 T)."""
        x = self.first(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(_leaky(x))
            x = sum(block(x) for block in blocks) / len(blocks)
        # One more frame, from the paper's reflection padding, makes a whole number of hops.
        x = self.last(functional.pad(functional.leaky_relu(x), (1, 0), mode="reflect"))
        magnitude, phase = x.chunk(2, dim=1)
        return self.inverse(magnitude.exp(), math.pi * phase.sin())


class ConvNextBlock(nn.Module):
    """A depthwise convolution, layer norm over channels, two linear layers, scale and sum."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.expand, self.reduce = nn.Linear(width, inner), nn.Linear(inner, width)
        self.scale = nn.Parameter(torch.full((width,), 0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).transpose(1, 2))
        y = self.scale * self.reduce(functional.gelu(self.expand(y)))
        return x + y.transpose(1, 2)


class Vocos(nn.Module):
    """Vocos for 24 kHz (Siuzdak 2023): eight ConvNeXt blocks, then an inverse STFT."""

    def __init__(self, width: int = 512, inner: int = 1536, size: int = 1024) -> None:
        super().__init__()
        self.first = nn.Conv1d(100, width, 7, padding=3)
        self.norm, self.last_norm = (nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.blocks = nn.Sequential(*(ConvNextBlock(width, inner) for _ in range(8)))
        self.head = nn.Linear(width, size + 2)
        self.inverse = InverseStft(size)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """mel: (N, 100, T). Returns (N, 1, 256 (T - 1))."""
        x = self.norm(self.first(mel).transpose(1, 2)).transpose(1, 2)
        x = self.last_norm(self.blocks(x).transpose(1, 2))
        magnitude, phase = self.head(x).transpose(1, 2).chunk(2, dim=1)
        return self.inverse(magnitude.exp().clamp(max=100), phase)


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
        """x: (N, 1, T); every level must divide T, such as 16724. Returns the same shape."""
        skips = []
        for level in self.encoder:
            x = level(x)
            skips.append(x)
        x = self.lstm(x.transpose(1, 2))[0].transpose(1, 2)
        for level in self.decoder:
            x = level(x + skips.pop())
        return x


def speecht5_hifigan() -> nn.Module:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    return SpeechT5HifiGan(SpeechT5HifiGanConfig())


def vits_decoder() -> nn.Module:
    from transformers import VitsConfig
    from transformers.models.vits.modeling_vits import VitsHifiGan

    return VitsHifiGan(VitsConfig())


def encodec() -> nn.Module:
    from transformers import EncodecConfig, EncodecModel

    return EncodecModel(EncodecConfig())


def encodec_decoder() -> nn.Module:
    return encodec().decoder


def dac_decoder(width: int = 1536) -> nn.Module:
    """Return the Descript codec's decoder."""
    from transformers import DacConfig
    from transformers.models.dac.modeling_dac import DacDecoder

    return DacDecoder(DacConfig(decoder_hidden_size=width))


_V3 = partial(HiFiGan, width=256, ups=V3, short=True)

MODELS = {
    "hifigan_v1": Model("HiFi-GAN V1", HiFiGan, (1, 80, 32), rate=22050),
    "hifigan_v3": Model("HiFi-GAN V3", _V3, (1, 80, 128), rate=22050),
    "vits": Model("VITS decoder", vits_decoder, (1, 192, 32), rate=22050, package="transformers"),
    "encodec": Model(
        "EnCodec decoder", encodec_decoder, (1, 128, 75), rate=24000, package="transformers"
    ),
    "dac": Model("DAC decoder", dac_decoder, (1, 1024, 16), rate=44100, package="transformers"),
    "vocos": Model("Vocos", Vocos, (1, 100, 95), rate=24000),
}
