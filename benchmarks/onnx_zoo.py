"""Real architectures exported from PyTorch to ONNX: the models of docs/onnx-optimize.md.

    pip install transformers monai onnxscript     # missing ones are reported
    python benchmarks/onnx_zoo.py --models DIR    # all models; names choose some

Weights are random but reproducible. `enliven` scales them so that each layer's result has unit
variance: in an untrained network values vanish within a few layers, and a wrong deconvolution would
not show in the output. Batch norms have statistics, and biases values, that folding must preserve.
Every file is checked: ONNX Runtime and PyTorch must agree.

`ZOO` is the table; `stored` makes a model's file, `example` its inputs. Files are written only to
the given folder.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from audio_models import (
    Demucs,
    HiFiGan,
    IstftNet,
    dac_decoder,
    encodec_decoder,
    speecht5_hifigan,
    vits_decoder,
)
from image_models import PointPillarsNeck, UNet, dcgan, fsrcnn
from onnx_layers import Arrays, deconvolutions, largest_error, runner
from random_weights import enliven
from torch import nn
from volume_models import dynunet, unet


class Taken(nn.Module):
    """A function of several parts of a model, for exports that are not one module's call."""

    def __init__(self, call: Callable[..., torch.Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.call, self.parts = call, nn.ModuleDict(parts)

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.call(self.parts, *inputs)


def mimi_decoder() -> nn.Module:
    """Build Mimi's decoder: a grouped up-sampling, a transformer, and convolutions."""
    from transformers import MimiConfig, MimiModel

    def decode(parts: nn.ModuleDict, latents: torch.Tensor) -> torch.Tensor:
        return parts["decoder"](latents, use_cache=False).audio_values

    return Taken(decode, decoder=MimiModel(MimiConfig(attn_implementation="eager")).decoder)


def sam_mask_decoder() -> nn.Module:
    from transformers import SamMaskDecoderConfig
    from transformers.models.sam.modeling_sam import SamMaskDecoder

    config = SamMaskDecoderConfig()
    config._attn_implementation = "eager"

    def masks(parts: nn.ModuleDict, *embeddings: torch.Tensor) -> torch.Tensor:
        return parts["decoder"](*embeddings, multimask_output=True)[0]

    return Taken(masks, decoder=SamMaskDecoder(config))


def vitpose_head() -> nn.Module:
    from transformers import VitPoseBackboneConfig, VitPoseConfig
    from transformers.models.vitpose.modeling_vitpose import VitPoseClassicDecoder

    backbone = VitPoseBackboneConfig()
    return VitPoseClassicDecoder(VitPoseConfig(backbone_config=backbone, num_labels=17))


def depth_anything_neck() -> nn.Module:
    """Build Depth Anything's small neck and head, for four backbone layers of 18 x 18 patches."""
    from transformers import DepthAnythingConfig
    from transformers.models.depth_anything import modeling_depth_anything as modeling

    config = DepthAnythingConfig()

    def depth(parts: nn.ModuleDict, *layers: torch.Tensor) -> torch.Tensor:
        return parts["head"](parts["neck"](list(layers), 18, 18), 18, 18)

    neck = modeling.DepthAnythingNeck(config)
    return Taken(depth, neck=neck, head=modeling.DepthAnythingDepthEstimationHead(config))


def text_detector() -> nn.Module:
    """Build PP-OCRv5's mobile text detector: backbone, neck, and a head that up-samples twice."""
    from transformers import PPOCRV5MobileDetConfig, PPOCRV5MobileDetForObjectDetection

    def detect(parts: nn.ModuleDict, image: torch.Tensor) -> torch.Tensor:
        return parts["model"](image).last_hidden_state

    return Taken(detect, model=PPOCRV5MobileDetForObjectDetection(PPOCRV5MobileDetConfig()))


def monai_unet2d() -> nn.Module:
    from monai.networks.nets import UNet as MonaiUNet

    return MonaiUNet(2, 1, 2, (32, 64, 128, 256, 512), (2, 2, 2, 2), num_res_units=2, norm="BATCH")


@dataclass(frozen=True)
class Entry:
    """A model: its builder, its inputs' shapes, the source of its code, and its export options.

    `dynamo` selects the newer exporter; `dynamic` names the dynamic axes of the first input.
    """

    build: Callable[[], nn.Module]
    inputs: dict[str, tuple[int, ...]]
    source: str
    dynamo: bool = False
    opset: int = 17
    dynamic: dict[int, str] = field(default_factory=dict)

    @property
    def exporter(self) -> str:
        return "dynamo" if self.dynamo else "TorchScript"


_SAM = dict.fromkeys(("image", "positions", "sparse", "dense"), (1, 256, 64, 64))
_SAM["sparse"] = (1, 1, 2, 256)
_LAYERS = {f"layer{i}": (1, 1 + 18 * 18, 384) for i in range(4)}
_DAC = partial(dac_decoder, 768)  # half its width
_VOLUME = {"volume": (1, 1, 64, 64, 64)}

ZOO = {
    "hifigan": Entry(speecht5_hifigan, {"mel": (1, 86, 80)}, "transformers", dynamic={1: "frames"}),
    "encodec": Entry(encodec_decoder, {"latents": (1, 128, 75)}, "transformers"),
    "dcgan": Entry(dcgan, {"latent": (16, 100, 1, 1)}, "paper", dynamic={0: "batch"}),
    "fsrcnn": Entry(
        fsrcnn,
        {"luma": (1, 1, 270, 480)},
        "paper",
        dynamo=True,
        opset=20,
        dynamic={2: "height", 3: "width"},
    ),
    "sam": Entry(sam_mask_decoder, _SAM, "transformers", dynamo=True, opset=20),
    "unet2d": Entry(monai_unet2d, {"image": (1, 1, 256, 256)}, "monai", opset=13),
    "unet3d": Entry(unet, _VOLUME, "monai"),
    "dynunet": Entry(dynunet, _VOLUME, "monai", dynamo=True, opset=18),
    "vitpose": Entry(vitpose_head, {"features": (2, 768, 16, 12)}, "transformers"),
    "hifigan_v1": Entry(HiFiGan, {"mel": (1, 80, 43)}, "paper", dynamo=True, opset=22),
    "vits": Entry(vits_decoder, {"latents": (1, 192, 43)}, "transformers", opset=14),
    "dac": Entry(_DAC, {"latents": (1, 1024, 24)}, "transformers", dynamo=True, opset=18),
    "mimi": Entry(mimi_decoder, {"latents": (1, 512, 13)}, "transformers", dynamo=True, opset=20),
    "istftnet": Entry(IstftNet, {"mel": (1, 80, 86)}, "paper", dynamo=True, opset=18),
    "demucs": Entry(Demucs, {"speech": (1, 1, 16724)}, "paper"),
    "depth_anything": Entry(depth_anything_neck, _LAYERS, "transformers", opset=16),
    "pointpillars": Entry(PointPillarsNeck, {"pillars": (1, 64, 200, 176)}, "paper", opset=13),
    "text_detector": Entry(text_detector, {"image": (1, 3, 320, 480)}, "transformers", opset=16),
    "unet": Entry(UNet, {"image": (1, 3, 256, 256)}, "paper", dynamo=True, opset=20),
}


def example(name: str) -> Arrays:
    """Return reproducible standard normal float32 inputs of a model, by name."""
    generator = np.random.default_rng(1)
    return {
        name: generator.standard_normal(shape, np.float32)
        for name, shape in ZOO[name].inputs.items()
    }


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters' output and warnings, but not their errors."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def export(name: str, path: Path) -> np.ndarray:
    """Write a model's file atomically, and return PyTorch's result for its example."""
    entry, part = ZOO[name], path.with_suffix(".part")
    torch.manual_seed(0)
    try:
        with quiet(), torch.no_grad():
            model = entry.build().eval()
            inputs = [torch.from_numpy(value) for value in example(name).values()]
            enliven(model, inputs)
            expected = model(*inputs).numpy()
            torch.onnx.export(model, tuple(inputs), part, **_words(entry))
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    return expected


def _words(entry: Entry) -> dict[str, object]:
    """Return the exporter's keywords for an entry."""
    words: dict[str, object] = {
        "input_names": list(entry.inputs),
        "output_names": ["result"],
        "opset_version": entry.opset,
        "dynamo": entry.dynamo,
    }
    if entry.dynamo:
        words["external_data"] = False
    if entry.dynamic and entry.dynamo:
        dims = {axis: torch.export.Dim(name) for axis, name in entry.dynamic.items()}
        words["dynamic_shapes"] = (dims,)
    elif entry.dynamic:
        words["dynamic_axes"] = {next(iter(entry.inputs)): entry.dynamic}
    return words


def stored(name: str, folder: Path) -> Path:
    """Return a model's file in a folder, made if it does not exist yet."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        export(name, path)
    return path


_TOLERANCE = 1e-3
"""Relative to the largest value: float32, about a hundred layers, other orders of summation."""


def describe(name: str, path: Path, expected: np.ndarray) -> float:
    """Print a file's contents and ONNX Runtime's difference from PyTorch; return the latter."""
    model, entry = onnx.load(path), ZOO[name]
    inputs = ", ".join(f"{key} {'x'.join(map(str, s))}" for key, s in entry.inputs.items())
    opset = next(item.version for item in model.opset_import if not item.domain)
    layers = deconvolutions(model, example(name))
    wrong = largest_error(runner("onnxruntime", model, example(name), 2)(), [expected])
    print(
        f"{name}: {entry.source}, {entry.exporter}, opset {opset}, "
        f"{len(model.graph.node)} nodes, {len(layers)} ConvTranspose, "
        f"{path.stat().st_size / 1e6:.1f} MB\n  inputs {inputs}"
        f"{f', open {sorted(entry.dynamic.values())}' if entry.dynamic else ''}\n"
        f"  standard deviation {expected.std():.2g}, error of ONNX Runtime {wrong:.1e}"
    )
    print("".join(f"  {layer}\n" for layer in layers), end="", flush=True)
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ZOO)}")
    parser.add_argument("--models", type=Path, help="folder for their files")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ZOO):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(ZOO)}")
    failed = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.names or ZOO:
            path = folder / f"{name}.onnx"
            try:
                expected = export(name, path)
            except ImportError as missing:
                print(f"{name} is left out: {missing}", file=sys.stderr)
                continue
            if not describe(name, path, expected) <= _TOLERANCE:
                failed.append(name)
    if failed:
        raise SystemExit(f"ONNX Runtime differs from PyTorch: {', '.join(failed)}.")


if __name__ == "__main__":
    main()
