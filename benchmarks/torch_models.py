"""Whole models of PyTorch before and after `upconv.torch.accelerate`: the table of docs/pytorch.md.

    pip install transformers monai         # for their models; without, those are left out, and said
    python benchmarks/torch_models.py      # all models; names choose some; --rounds, --threads
    python benchmarks/torch_models.py --training "DCGAN generator" "HiFi-GAN V1"
    python benchmarks/torch_models.py --compile     # PyTorch's own ways to be faster as well

Weights are random: time does not depend on them. Without --training every model is run in eval mode
under `torch.no_grad()`, float32, contiguous; with it a step is forward, backward and SGD. The
original and the others take turns; the best of the rounds is shown.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from upconv.testing import require_engine
from upconv.timing import rest
from upconv.torch import accelerate, report
from upconv.torch.graphs import backend


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


V1 = ((8, 16), (8, 16), (2, 4), (2, 4))


class HiFiGan(nn.Module):
    """The generator of HiFi-GAN (Kong, Kim, Bae 2020); V1 as its paper's table 5 describes it.

    `ups` are the stride and the kernel of each transposed convolution.
    """

    def __init__(self, width: int = 512, ups: tuple[tuple[int, int], ...] = V1) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.first = norm(nn.Conv1d(80, width, 7, padding=3))
        self.ups, self.blocks = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in ups:
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


def monai_vnet() -> nn.Module:
    from monai.networks.nets import VNet

    return VNet(3, 1, 2)


def monai_autoencoder() -> nn.Module:
    from monai.networks.nets import AutoEncoder

    return AutoEncoder(2, 1, 1, (32, 64, 128), (2, 2, 2))


def monai_unet_2d() -> nn.Module:
    from monai.networks.nets import UNet

    return UNet(2, 1, 2, (32, 64, 128, 256), (2, 2, 2), num_res_units=2, norm="BATCH")


class Dac(nn.Module):
    """The decoder of DAC (descript audio codec) for 44 kHz."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import DacConfig, DacModel

        self.decoder = DacModel(DacConfig()).decoder

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.decoder(codes)


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
    "UNet 2D": Model(monai_unet_2d, ((1, 1, 256, 256),), "monai"),
    "VNet": Model(monai_vnet, ((1, 1, 48, 48, 48),), "monai"),
    "AutoEncoder": Model(monai_autoencoder, ((1, 1, 128, 128),), "monai"),
    "DAC decoder": Model(Dac, ((1, 1024, 22),), "transformers"),
    "DCGAN generator": Model(dcgan_generator, ((16, 100, 1, 1),), "here"),
    "FSRCNN x3": Model(Fsrcnn, ((1, 1, 120, 160),), "here"),
    "ViTPose head": Model(pose_head, ((1, 768, 16, 12),), "here"),
}


def folded(model: nn.Module) -> nn.Module:
    """A copy with batch normalisation folded where a Sequential has it, channels-last if 2D."""
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    model = copy.deepcopy(model)
    for sequence in [each for each in model.modules() if type(each) is nn.Sequential]:
        for i, (layer, norm) in enumerate(itertools.pairwise(sequence)):
            if isinstance(norm, nn.modules.batchnorm._BatchNorm) and hasattr(layer, "transposed"):
                sequence[i] = fuse_conv_bn_eval(layer, norm, layer.transposed)
                sequence[i + 1] = nn.Identity()
    if any(isinstance(each, (nn.Conv3d, nn.ConvTranspose3d)) for each in model.modules()):
        return model.to(memory_format=torch.channels_last_3d)
    if any(isinstance(each, (nn.Conv2d, nn.ConvTranspose2d)) for each in model.modules()):
        return model.to(memory_format=torch.channels_last)
    return model


def frozen(model: nn.Module) -> Any:
    """The model compiled by Inductor with its parameters as constants."""
    from torch._inductor import config

    config.freezing = True
    return torch.compile(model)


def called(model: Any, example: Any) -> Any:
    return model(**example) if isinstance(example, dict) else model(*example)


def inference(model: Any, example: Any) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return called(model, example)

    return run


def training(model: nn.Module, example: Any) -> Callable[[], object]:
    optimiser = torch.optim.SGD(model.train().parameters(), lr=1e-4)

    def run() -> None:
        optimiser.zero_grad()
        y = called(model, example)
        y = y if isinstance(y, torch.Tensor) else y[0]
        y.square().mean().backward()
        optimiser.step()

    return run


def best(ways: list[Callable[[], object]], rounds: int, seconds: float) -> list[float]:
    """The best milliseconds of each way; who comes second finds other caches, so they rotate."""
    for way in ways:
        way()
    times = [math.inf] * len(ways)
    end = time.perf_counter() + seconds
    for i in range(rounds):
        if i > 3 and time.perf_counter() > end:
            break
        for j in range(len(ways)):
            at = (i + j) % len(ways)
            rest()
            for _ in range(2):
                start = time.perf_counter()
                ways[at]()
                times[at] = min(times[at], (time.perf_counter() - start) * 1e3)
    return times


def copied(model: nn.Module, name: str) -> nn.Module:
    """A copy; parametrized weights refuse deepcopy once they were used, so it is built anew."""
    other = MODELS[name].build()
    other.load_state_dict(model.state_dict())
    return other.eval()


OPERATORS = ("upconv::convolution", "upconv::fused_convolution")


def require_layers(name: str, model: nn.Module, example: Any) -> None:
    """Raise `EngineError` where PyTorch computes layers that the report says upconv computes."""
    taken = {each.name for each in report(model).layers if each.inference}
    with torch.no_grad(), torch.profiler.profile() as profile:
        called(model, example)
    calls = [each for each in profile.events() if each.name in OPERATORS]
    inside = [[child.name for child in each.cpu_children] for each in calls]
    ours = sum(not any("convolution" in operator for operator in names) for names in inside)
    if ours < len(taken):
        require_engine(f"{name}: one of {', '.join(sorted(taken))}", "upconv", "torch")


def measured(name: str, arguments: argparse.Namespace) -> tuple[list[str], list[float]]:
    torch.manual_seed(0)
    original = MODELS[name].build().eval()
    example = MODELS[name].example()
    accelerated = copied(original, name)
    accelerate(accelerated, example, training=arguments.training)
    if arguments.verbose:
        print(report(accelerated), file=sys.stderr, flush=True)
    kind = training if arguments.training else inference
    ways = [kind(original, example), kind(accelerated, example)]
    if arguments.compile:
        ways += [
            kind(folded(copied(original, name)), example),
            kind(torch.compile(copied(original, name)), example),
            kind(torch.compile(copied(original, name), backend=backend), example),
            kind(frozen(copied(original, name)), example),
        ]
    times = best(ways, arguments.rounds, arguments.seconds)
    layers = report(accelerated).layers
    if not arguments.training:
        require_layers(name, accelerated, example)
    taken = sum(bool(each.training) if arguments.training else each.inference for each in layers)
    cells = [name, *(f"{each:.1f}" for each in times), f"{times[0] / times[1]:.2f}"]
    return [*cells, f"{taken} of {len(layers)}"], times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--rounds", type=int, default=40, help="of original and accelerated")
    parser.add_argument("--seconds", type=float, default=20.0, help="for one model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--training", action="store_true", help="steps, not inference")
    parser.add_argument("--compile", action="store_true", help="PyTorch's other ways too")
    parser.add_argument("--verbose", action="store_true", help="print what was decided of layers")
    arguments = parser.parse_args()
    for name in arguments.models:
        if name not in MODELS:
            parser.error(f"there is no model {name!r}; there are {', '.join(MODELS)}")
    torch.set_num_threads(arguments.threads)
    heads = ["model", "ms eager", "ms accelerated"]
    if arguments.compile:
        heads += ["folded, channels-last", "torch.compile", 'backend="upconv"', "freezing"]
    heads += ["times as fast", "layers replaced"]
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}", flush=True)
    gains = []
    for name in arguments.models or MODELS:
        try:
            cells, times = measured(name, arguments)
        except ImportError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        gains.append(times[0] / times[1])
        print(f"| {' | '.join(cells)} |", flush=True)
    mean = math.exp(sum(map(math.log, gains)) / max(1, len(gains)))
    print(f"\nGeometric mean: {mean:.2f} times as fast.")


if __name__ == "__main__":
    main()
