"""Segmentation networks for volumes: one is written here, the others are MONAI's.

`MODELS` has the volume models of the table in models.py.
"""

from __future__ import annotations

import itertools

import torch
from contenders import Model
from torch import nn


def _normed(before: int, after: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv3d(before, after, 3, stride, padding=1)
    return [conv, nn.InstanceNorm3d(after, affine=True), nn.LeakyReLU(0.01)]


class PlainUNet(nn.Module):
    """nnU-Net's plain U-Net (Isensee and others 2021): instance norm, kernel 2 on the way up."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64, 128), classes: int = 2) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Sequential(*_normed(a, b, 2 if i else 1), *_normed(b, b))
            for i, (a, b) in enumerate(itertools.pairwise((1, *widths)))
        )
        pairs = list(itertools.pairwise(reversed(widths)))
        self.ups = nn.ModuleList(nn.ConvTranspose3d(a, b, 2, 2) for a, b in pairs)
        self.joins = nn.ModuleList(
            nn.Sequential(*_normed(2 * b, b), *_normed(b, b)) for _, b in pairs
        )
        self.last = nn.Conv3d(widths[0], classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 1, D, H, W), multiples of 8. Returns (N, classes, D, H, W)."""
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
        skips.pop()
        for up, join in zip(self.ups, self.joins, strict=True):
            x = join(torch.cat((up(x), skips.pop()), 1))
        return self.last(x)


def unet(rank: int = 3, norm: str = "INSTANCE") -> nn.Module:
    from monai.networks.nets import UNet

    channels, strides = (16, 32, 64, 128, 256), (2, 2, 2, 2)
    return UNet(rank, 1, 2, channels, strides, num_res_units=2, norm=norm)


def dynunet() -> nn.Module:
    from monai.networks.nets import DynUNet

    kernels, strides = [3] * 5, [1, 2, 2, 2, 2]
    return DynUNet(3, 1, 3, kernels, strides, strides[1:])


def vnet() -> nn.Module:
    from monai.networks.nets import VNet

    return VNet(3, 1, 2)


def basic_unet() -> nn.Module:
    from monai.networks.nets import BasicUNet

    return BasicUNet(3, 1, 2, features=(16, 16, 32, 64, 128, 16), upsample="deconv")


def segresnet() -> nn.Module:
    from monai.networks.nets import SegResNet

    return SegResNet(3, 8, 1, 2)


def unetr() -> nn.Module:
    from monai.networks.nets import UNETR

    sizes = {"feature_size": 16, "hidden_size": 384, "mlp_dim": 1536, "num_heads": 6}
    return UNETR(1, 2, (48, 48, 48), **sizes)


MODELS = {
    "nnunet3d": Model("nnU-Net 3D", PlainUNet, (1, 1, 40, 48, 48)),
    "unet3d": Model("UNet 3D", unet, (1, 1, 64, 64, 64), package="monai"),
    "vnet": Model("VNet", vnet, (1, 1, 32, 32, 32), package="monai"),
    "basicunet": Model("BasicUNet", basic_unet, (1, 1, 48, 48, 48), package="monai"),
    "segresnet": Model("SegResNet", segresnet, (1, 1, 48, 64, 64), package="monai"),
    "unetr": Model("UNETR", unetr, (1, 1, 48, 48, 48), package="monai"),
}
