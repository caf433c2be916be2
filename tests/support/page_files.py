"""A reader's files: small models and arrays under the names that pages use."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


def random(*shape: int) -> np.ndarray:
    """Return random values, the same in every call."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def model(path: str, name: str = "x", size: str = "12, 12", channels: int = 8) -> None:
    """Save a decoder of two transposed convolutions."""
    import onnx

    rank = size.count(",") + 1
    twos, ones, result = (", ".join(one * rank) for one in ("2", "1", "U"))
    layer = f"ConvTranspose <strides = [{twos}], pads = [{ones}, {ones}]>"
    text = f"""<ir_version: 8, opset_import: ["": 17]>
        decoder (float[1, {channels}, {size}] {name}) => (float[1, 2, {result}] y)
        {{ h = {layer} ({name}, w)  y = {layer} (h, v) }}"""
    decoder = onnx.parser.parse_model(text)
    for weight, pair in {"w": (channels, 4), "v": (4, 2)}.items():
        array = random(*pair, *[4] * rank)
        decoder.graph.initializer.append(onnx.numpy_helper.from_array(array, weight))
    Path(path).parent.mkdir(exist_ok=True)
    onnx.save(decoder, path)


def arrays(path: str) -> None:
    """Save an input, a weight or a bias (.npy), or all of them (.npz)."""
    drawn = {"x": random(1, 8, 12, 12), "w": random(8, 4, 4, 4), "b": random(4)}
    if path.endswith(".npz"):
        np.savez(path, **drawn)
    else:
        np.save(path, drawn[Path(path).stem])


def mxnet_model(path: str) -> None:
    """Save a Deconvolution of three channels in two files, as MXNet does."""
    from upconv import mxnet as mx

    data = mx.sym.var("data")
    net = mx.sym.Deconvolution(data, kernel=(4, 4), stride=(2, 2), num_filter=2, name="up")
    net.save(path)
    weight = mx.nd.array(random(3, 2, 4, 4))
    mx.nd.save(path.replace("symbol.json", "0000.params"), {"arg:up_weight": weight})


FILES: dict[str, Callable[[str], object]] = {
    "model.onnx": model,
    "models/one.onnx": model,
    "a.onnx": lambda path: model(path, "x", "T", 80),
    "b.onnx": lambda path: shutil.copy("a.onnx", path),
    "optimized.onnx": lambda path: shutil.copy("model.onnx", path),
    "vocoder.onnx": lambda path: model(path, "mel", "T", 80),
    "mel.npy": lambda path: np.save(path, random(1, 80, 12)),
    "mel.f32": lambda path: random(12, 80).tofile(path),
    "x.npy": arrays,
    "w.npy": arrays,
    "net.npz": arrays,
    "x.npz": lambda path: np.savez(path, data=random(1, 3, 8, 8)),
    "real.npz": lambda path: np.savez(path, x=random(1, 8, 12, 12)),
    "net-symbol.json": mxnet_model,
    "net-0000.params": lambda path: None,  # saved with net-symbol.json
    "benchmarks/table.py": lambda path: Path("benchmarks").symlink_to(BENCHMARKS),
}


def make_files(text: str) -> None:
    """Make the files that a page names."""
    for name, make in FILES.items():
        if name.partition("/")[0] in text:
            make(name)
