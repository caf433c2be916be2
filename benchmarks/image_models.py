"""Decoders and up-sampling networks for images in PyTorch, written from their papers.

Shapes are in the docstrings of `forward`, with N, C for batch and channels. PyTorch draws
the weights. `MODELS` has the image models of the table in models.py.
"""

from __future__ import annotations

import itertools
import math

import torch
from contenders import Model
from torch import nn
from torch.nn import functional


def fsrcnn(d: int = 56, s: int = 12, m: int = 4, scale: int = 3) -> nn.Sequential:
    """Build FSRCNN(56, 12, 4) (Dong, Loy, Tang 2016), scale 3."""
    middle = [layer for _ in range(m) for layer in (nn.Conv2d(s, s, 3, padding=1), nn.PReLU(s))]
    return nn.Sequential(
        nn.Conv2d(1, d, 5, padding=2),
        nn.PReLU(d),
        nn.Conv2d(d, s, 1),
        nn.PReLU(s),
        *middle,
        nn.Conv2d(s, d, 1),
        nn.PReLU(d),
        nn.ConvTranspose2d(d, 1, 9, scale, padding=4, output_padding=scale - 1),
    )


def dcgan(latent: int = 100, width: int = 64) -> nn.Sequential:
    """Build DCGAN's generator (Radford, Metz, Chintala 2016), 64 x 64 pixels."""
    layers: list[nn.Module] = []
    channels = [latent, 8 * width, 4 * width, 2 * width, width]
    for i, (before, after) in enumerate(itertools.pairwise(channels)):
        shape = {"stride": 2, "padding": 1} if i else {}
        layers += [
            nn.ConvTranspose2d(before, after, 4, bias=False, **shape),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
        ]
    last = nn.ConvTranspose2d(width, 3, 4, stride=2, padding=1, bias=False)
    return nn.Sequential(*layers, last, nn.Tanh())


def _ups(channels: int, width: int = 256, count: int = 3) -> nn.Sequential:
    """Build transposed convolutions (kernel 4, stride 2), each with batch norm and ReLU."""
    layers: list[nn.Module] = []
    for before in (channels, *(width,) * (count - 1)):
        layers += [
            nn.ConvTranspose2d(before, width, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


def pose_head(channels: int = 768, joints: int = 17) -> nn.Sequential:
    """Build ViTPose's classic head (Xu and others 2022): two up-sampling blocks, then 1 x 1."""
    return nn.Sequential(*_ups(channels, count=2), nn.Conv2d(256, joints, 1))


class Pix2Pix(nn.Module):
    """The U-Net of pix2pix (Isola and others 2017): 4 x 4 kernels, skips by concatenation."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 512, 512)) -> None:
        super().__init__()
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        before = (3, *widths)
        for i, (a, b) in enumerate(itertools.pairwise(before)):
            norm = [nn.BatchNorm2d(b)] if 0 < i < len(widths) - 1 else []
            slope = [nn.LeakyReLU(0.2)] if i else []
            self.down.append(nn.Sequential(*slope, nn.Conv2d(a, b, 4, 2, 1), *norm))
        for i in reversed(range(len(widths))):
            a, b = widths[i] * (1 if i == len(widths) - 1 else 2), before[i]
            last = nn.BatchNorm2d(b) if i else nn.Tanh()
            up = nn.ConvTranspose2d(a, b, 4, 2, 1)
            self.up.append(nn.Sequential(nn.ReLU(), up, last))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 3, H, W), H and W multiples of 64. Returns the same shape."""
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
        x = self.up[0](skips.pop())
        for up in self.up[1:]:
            x = up(torch.cat((x, skips.pop()), 1))
        return x


class SumBlock(nn.Module):
    """beside(x) + layers(x), optionally followed by ReLU."""

    def __init__(self, *layers: nn.Module, beside: nn.Module | None = None, relu: bool = False):
        super().__init__()
        self.layers = nn.Sequential(*layers)
        self.beside = beside if beside is not None else nn.Identity()
        self.last = nn.ReLU() if relu else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.beside(x) + self.layers(x))


class Edsr(nn.Module):
    """EDSR's baseline (Lim and others 2017): 16 residual blocks of 64 channels, scale 2."""

    def __init__(self, width: int = 64, blocks: int = 16, scale: int = 2) -> None:
        super().__init__()

        def conv(before: int, after: int) -> nn.Conv2d:
            return nn.Conv2d(before, after, 3, padding=1)

        rows = [SumBlock(conv(width, width), nn.ReLU(), conv(width, width)) for _ in range(blocks)]
        self.first = conv(3, width)
        self.body = SumBlock(*rows, conv(width, width))
        up = (conv(width, width * scale**2), nn.PixelShuffle(scale))
        self.last = nn.Sequential(*up, conv(width, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 3, H, W). Returns (N, 3, 2H, 2W)."""
        return self.last(self.body(self.first(x)))


def _conv_norm(before: int, after: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(before, after, kernel, stride, padding=kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(after)]


def resnet(counts: tuple[int, ...], deep: bool, width: int = 64) -> nn.Sequential:
    """Build ResNet (He and others 2016) up to its last map; `deep` uses kernels of 1, 3 and 1."""
    stem = [*_conv_norm(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    layers, before = stem, width
    for level, count in enumerate(counts):
        inner = width * 2**level
        after = 4 * inner if deep else inner
        for i in range(count):
            stride = 2 if level and not i else 1
            kernels = (1, 3, 1) if deep else (3, 3)
            widths = [before, *(inner,) * (len(kernels) - 1), after]
            strides = (1, stride, 1) if deep else (stride, 1)
            rows: list[nn.Module] = []
            for (a, b), kernel, s in zip(itertools.pairwise(widths), kernels, strides, strict=True):
                rows += [*_conv_norm(a, b, kernel, s), nn.ReLU()]
            same = before == after and stride == 1
            beside = None if same else nn.Sequential(*_conv_norm(before, after, 1, stride))
            layers.append(SumBlock(*rows[:-1], beside=beside, relu=True))
            before = after
    return nn.Sequential(*layers)


def pose_net(joints: int = 17) -> nn.Sequential:
    """Build Simple Baselines for pose (Xiao, Wu, Wei 2018): ResNet-50, three up-sampling blocks."""
    return nn.Sequential(resnet((3, 4, 6, 3), True), _ups(2048), nn.Conv2d(256, joints, 1))


class CenterNet(nn.Module):
    """CenterNet (Zhou, Wang, Krähenbühl 2019): ResNet-18, three up-sampling blocks, three heads."""

    def __init__(self, classes: int = 80, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(resnet((2, 2, 2, 2), False, width), _ups(8 * width))
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Conv2d(256, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, count, 1))
            for count in (classes, 2, 2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 3, H, W), multiples of 32. Returns heat maps, sizes and offsets as channels."""
        x = self.body(x)
        return torch.cat([head(x) for head in self.heads], 1)


def _conv_block(before: int, after: int, layers: int, stride: int = 1) -> nn.Sequential:
    """Build 3 x 3 convolutions with batch norm and ReLU; the first has the stride."""
    parts: list[nn.Module] = []
    for i in range(layers):
        parts += [*_conv_norm(before, after, 3, stride if i == 0 else 1), nn.ReLU()]
        before = after
    return nn.Sequential(*parts)


class PointPillarsNeck(nn.Module):
    """PointPillars' backbone (Lang and others 2019): three blocks, all up-sampled to one size."""

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
        """pillars: (N, 64, H, W), H and W multiples of 8. Returns (N, 384, H / 2, W / 2)."""
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
        """image: (N, C, H, W), H and W multiples of 16. Returns (N, classes, H, W)."""
        x = self.first(image)
        skips = []
        for block in self.down:
            skips.append(x)
            x = block(functional.max_pool2d(x, 2))
        for up, join in zip(self.ups, self.joins, strict=True):
            x = join(torch.cat([skips.pop(), up(x)], dim=1))
        return self.last(x)


class Attention(nn.Module):
    """Self-attention over positions, one head, between group norm and a residual sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width)
        self.q, self.k, self.v, self.out = (nn.Conv2d(width, width, 1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (layer(y).flatten(2).transpose(1, 2) for layer in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[-1]), dim=-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(x.shape))


def _norm_conv(before: int, after: int) -> list[nn.Module]:
    return [nn.GroupNorm(32, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1)]


def _res_block(before: int, after: int) -> SumBlock:
    beside = None if before == after else nn.Conv2d(before, after, 1)
    return SumBlock(*_norm_conv(before, after), *_norm_conv(after, after), beside=beside)


def vae_decoder(widths: tuple[int, ...] = (256, 128, 64), latent: int = 4) -> nn.Sequential:
    """Build a small decoder of a latent diffusion autoencoder (Rombach and others 2022)."""
    width = widths[0]
    layers = [nn.Conv2d(latent, width, 3, padding=1)]
    layers += [_res_block(width, width), Attention(width), _res_block(width, width)]
    for level, after in enumerate(widths):
        layers += [_res_block(width, after), _res_block(after, after)]
        width = after
        if level + 1 < len(widths):
            layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, *_norm_conv(width, 3))


MODELS = {
    "dcgan": Model("DCGAN, 16 images", dcgan, (16, 100, 1, 1)),
    "pix2pix": Model("pix2pix", Pix2Pix, (1, 3, 256, 256)),
    "fsrcnn": Model("FSRCNN x3", fsrcnn, (1, 1, 180, 240)),
    "edsr": Model("EDSR x2", Edsr, (1, 3, 64, 96)),
    "pose": Model("Simple Baselines pose", pose_net, (1, 3, 256, 192)),
    "unet2d": Model("U-Net 2D", UNet, (1, 3, 192, 256)),
    "centernet": Model("CenterNet", CenterNet, (1, 3, 256, 320)),
    "pointpillars": Model("PointPillars neck", PointPillarsNeck, (1, 64, 128, 112)),
    "vae": Model("VAE decoder", vae_decoder, (1, 4, 32, 40)),
}
