"""Whole models of PyTorch before and after `upconv.torch.accelerate`: the table of docs/pytorch.md.

    pip install transformers monai         # what is missing is left out, and said
    python benchmarks/torch_models.py      # all models; names choose some; --rounds, --threads

Weights are random: time does not depend on them. Every model is run in eval mode under
`torch.no_grad()`, float32, contiguous. The original and its accelerated copy take turns; the mean
of the fastest third of the rounds is shown. "share" is the part of the original's time that its
deconvolutions take, each with what was fused into it, measured by hooks in runs of their own; the
next column says how many times faster that part became.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from upconv.threads import rest
from upconv.torch import accelerate, acceleration_report
from upconv.torch.accelerate_chains import chains_watched
from upconv.torch.accelerate_choices import choices_of, fusable
from upconv.torch.fused import Fused


class ResBlock(nn.Module):
    """HiFi-GAN's residual block: three pairs of dilated and plain convolutions."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.dilated, self.plain = (
            nn.ModuleList(
                norm(
                    nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2)
                )
                for d in dilations
            )
            for dilations in ((1, 3, 5), (1, 1, 1))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for dilated, plain in zip(self.dilated, self.plain, strict=True):
            y = dilated(functional.leaky_relu(x, 0.1))
            x = x + plain(functional.leaky_relu(y, 0.1))
        return x


class HiFiGan(nn.Module):
    """The generator of HiFi-GAN V1 (Kong, Kim, Bae 2020), as its paper's table 5 describes it."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = norm(nn.Conv1d(80, width, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
            up = nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2)
            self.ups.append(norm(up))
            width //= 2
            self.blocks.append(nn.ModuleList(ResBlock(width, k) for k in (3, 7, 11)))
        self.last = norm(nn.Conv1d(width, 1, 7, padding=3))

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        x = self.first(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(functional.leaky_relu(x)))


class Fsrcnn(nn.Module):
    """FSRCNN(56, 12, 4) (Dong, Loy, Tang 2016), times three."""

    def __init__(self, d: int = 56, s: int = 12, m: int = 4, scale: int = 3) -> None:
        super().__init__()
        middle = [layer for _ in range(m) for layer in (nn.Conv2d(s, s, 3, padding=1), nn.PReLU(s))]
        self.body = nn.Sequential(
            nn.Conv2d(1, d, 5, padding=2),
            nn.PReLU(d),
            nn.Conv2d(d, s, 1),
            nn.PReLU(s),
            *middle,
            nn.Conv2d(s, d, 1),
            nn.PReLU(d),
        )
        self.up = nn.ConvTranspose2d(d, 1, 9, scale, padding=4, output_padding=scale - 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.body(x))


def dcgan_generator(latent: int = 100, width: int = 64) -> nn.Sequential:
    """The generator of DCGAN (Radford, Metz, Chintala 2016), 64 x 64 pixels."""
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


def pose_head(channels: int = 768, joints: int = 17) -> nn.Sequential:
    """ViTPose's classic head (Xu and others 2022): two up-sampling blocks, then 1 x 1."""
    layers: list[nn.Module] = []
    for _ in range(2):
        layers += [
            nn.ConvTranspose2d(channels, 256, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(256),
            nn.ReLU(inplace=True),
        ]
        channels = 256
    return nn.Sequential(*layers, nn.Conv2d(256, joints, 1))


def speecht5_hifigan() -> nn.Module:
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    return SpeechT5HifiGan(SpeechT5HifiGanConfig())


def encodec() -> nn.Module:
    from transformers import EncodecConfig, EncodecModel

    return EncodecModel(EncodecConfig())


def sam_mask_decoder() -> nn.Module:
    from transformers import SamMaskDecoderConfig
    from transformers.models.sam.modeling_sam import SamMaskDecoder

    config = SamMaskDecoderConfig()
    config._attn_implementation = "eager"
    return SamMaskDecoder(config)


def monai_unet(norm: str = "INSTANCE") -> nn.Module:
    from monai.networks.nets import UNet

    channels, strides = (16, 32, 64, 128, 256), (2, 2, 2, 2)
    return UNet(3, 1, 2, channels, strides, num_res_units=2, norm=norm)


def monai_dynunet() -> nn.Module:
    from monai.networks.nets import DynUNet

    kernels, strides = [3] * 5, [1, 2, 2, 2, 2]
    return DynUNet(3, 1, 3, kernels, strides, strides[1:])


@dataclass(frozen=True)
class Model:
    """A model and what it is called with: shapes of float tensors, by position or by name."""

    build: Callable[[], nn.Module]
    inputs: tuple[tuple[int, ...], ...] | dict[str, Any]
    source: str

    def example(self) -> Any:
        """Random tensors of the shapes, the same every time."""
        generator = torch.Generator().manual_seed(1)

        def drawn(shape: Any) -> Any:
            return torch.randn(shape, generator=generator) if isinstance(shape, tuple) else shape

        if isinstance(self.inputs, dict):
            return {name: drawn(shape) for name, shape in self.inputs.items()}
        return tuple(map(drawn, self.inputs))


_SAM = {
    "image_embeddings": (1, 256, 64, 64),
    "image_positional_embeddings": (1, 256, 64, 64),
    "sparse_prompt_embeddings": (1, 1, 2, 256),
    "dense_prompt_embeddings": (1, 256, 64, 64),
    "multimask_output": True,
}

MODELS = {
    "HiFi-GAN V1": Model(HiFiGan, ((1, 80, 86),), "here"),
    "SpeechT5HifiGan": Model(speecht5_hifigan, ((86, 80),), "transformers"),
    "EnCodec": Model(encodec, ((1, 1, 24000),), "transformers"),
    "SAM mask decoder": Model(sam_mask_decoder, _SAM, "transformers"),
    "UNet 3D": Model(monai_unet, ((1, 1, 64, 64, 64),), "monai"),
    "UNet 3D, batch norm": Model(lambda: monai_unet("BATCH"), ((1, 1, 64, 64, 64),), "monai"),
    "DynUNet": Model(monai_dynunet, ((1, 1, 64, 64, 64),), "monai"),
    "DCGAN generator": Model(dcgan_generator, ((16, 100, 1, 1),), "here"),
    "FSRCNN x3": Model(Fsrcnn, ((1, 1, 120, 160),), "here"),
    "ViTPose head": Model(pose_head, ((1, 768, 16, 12),), "here"),
}


_SECONDS = 25.0
"""After which a model gets no more rounds."""


@dataclass(frozen=True)
class Row:
    """A model's times in milliseconds, and those of its deconvolutions with what is fused."""

    name: str
    before: float
    after: float
    layers_before: float
    layers_after: float
    replaced: str

    @property
    def gain(self) -> float:
        return self.layers_before / self.layers_after

    def cells(self) -> list[str]:
        share = f"{100 * self.layers_before / self.before:.0f} %"
        times = [f"{value:.1f}" for value in (self.before, self.after)]
        whole = f"{self.before / self.after:.2f}"
        return [self.name, *times, whole, share, f"{self.gain:.2f}", self.replaced]


def milliseconds(model: nn.Module, example: Any) -> float:
    start = time.perf_counter()
    model(**example) if isinstance(example, dict) else model(*example)
    return (time.perf_counter() - start) * 1e3


class Clock:
    """Adds up the milliseconds between pairs of hooks, or inside a function."""

    def __init__(self) -> None:
        self.total = self.start = 0.0

    def begin(self, *_: Any) -> None:
        self.start = time.perf_counter()

    def end(self, *_: Any) -> None:
        self.total += (time.perf_counter() - self.start) * 1e3

    def inside(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            self.begin()
            result = function(*args)
            self.end()
            return result

        return timed


def layers_time(model: nn.Module, example: Any, modules: set[nn.Module]) -> float:
    """Milliseconds that modules, and what upconv computes, take in one run of a model."""
    clock, compute = Clock(), Fused.compute
    hooks = [module.register_forward_pre_hook(clock.begin) for module in modules]
    hooks += [module.register_forward_hook(clock.end) for module in modules]
    Fused.compute = clock.inside(compute)
    try:
        milliseconds(model, example)
    finally:
        Fused.compute = compute
        for hook in hooks:
            hook.remove()
    return clock.total


def parts(
    original: nn.Module, accelerated: nn.Module, example: Any
) -> tuple[set[nn.Module], set[nn.Module]]:
    """The original's deconvolutions with what was fused, and what is left of them in the copy."""
    before, after = set(), set()
    with torch.no_grad(), chains_watched(original, fusable(original, measured=True)) as seen:
        milliseconds(original, example)
    choices = choices_of(original, seen, fuse=True)
    for choice, layer in zip(
        choices.values(), acceleration_report(accelerated).layers, strict=True
    ):
        for way in choice.ways:
            if len(way.names) == layer.before.count(" + "):
                before |= set(way.modules)
                break
        if not layer.replaced:
            after.add(accelerated.get_submodule(layer.name))
    return before, after


def fast(times: list[float]) -> float:
    """The mean of the fastest third: the fastest alone may be luck."""
    return statistics.fmean(sorted(times)[: -(-len(times) // 3)])


def measured(name: str, rounds: int) -> Row:
    torch.manual_seed(0)
    original = MODELS[name].build().eval()
    example = MODELS[name].example()
    accelerated = copy.deepcopy(original)
    accelerate(accelerated, example)
    old_parts, new_parts = parts(original, accelerated, example)
    ways = [(original, old_parts), (accelerated, new_parts)]
    whole: list[list[float]] = [[], []]
    alone: list[list[float]] = [[], []]
    begin = time.perf_counter()
    with torch.no_grad():
        for i in range(rounds):
            if i > 5 and time.perf_counter() - begin > _SECONDS:
                break
            for at in (0, 1) if i % 2 else (1, 0):  # who comes second finds other caches
                model, modules = ways[at]
                rest()
                milliseconds(model, example)
                whole[at].append(min(milliseconds(model, example) for _ in range(2)))
                alone[at].append(layers_time(model, example, modules))
    before, after, old_layers, new_layers = map(fast, (*whole, *alone))
    layers = acceleration_report(accelerated).layers
    replaced = f"{sum(layer.replaced for layer in layers)} of {len(layers)}"
    fused = sum(" + " in layer.before for layer in layers if layer.replaced)
    replaced = f"{replaced}, {fused} fused" if fused else replaced
    return Row(name, before, after, old_layers, new_layers, replaced)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=40, help="of original and accelerated")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    for name in arguments.models:
        if name not in MODELS:
            parser.error(f"there is no model {name!r}; there are {', '.join(MODELS)}")
    torch.set_num_threads(arguments.threads)
    heads = ["model", "ms before", "ms after", "times as fast", "deconvolutions' share"]
    heads += ["deconvolutions times as fast", "replaced"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}", flush=True)
    gains = []
    for name in arguments.models or MODELS:
        try:
            row = measured(name, arguments.rounds)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        gains.append(row.gain)
        print(f"| {' | '.join(row.cells())} |", flush=True)
    mean = math.exp(sum(map(math.log, gains)) / max(1, len(gains)))
    print(f"\nDeconvolutions, geometric mean: {mean:.2f} times as fast.")


if __name__ == "__main__":
    main()
