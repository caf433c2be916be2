"""Whole MXNet models: as networks by `Model.run`, operator by operator, and in MXNet itself.

    python benchmarks/mxnet_models.py [--threads 1] [--seconds 2] [--mxnet PYTHON]

Models with random weights: a DCGAN generator, a U-Net, a fully convolutional network with bilinear
deconvolutions, and a pose network with three deconvolutions of 4. Runs are interleaved, and
the shortest time counts. PYTHON is the interpreter of an environment with mxnet==1.9.1, which runs
the files that upconv saved, in a separate process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import numpy as np

import upconv
import upconv.mxnet as mx
from upconv.mxnet.model import Model

THEIRS = """
import sys, time, json
import mxnet as mx
import numpy as np
prefix, shape, seconds = sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])
symbol, arguments, states = mx.model.load_checkpoint(prefix, 0)
executor = symbol.simple_bind(mx.cpu(), grad_req="null", data=tuple(shape))
executor.copy_params_from(arguments, states)
x = mx.nd.array(np.random.RandomState(1).standard_normal(shape))
best, end = 9e9, time.perf_counter() + seconds
while time.perf_counter() < end:
    begin = time.perf_counter()
    y = executor.forward(is_train=False, data=x)[0].asnumpy()
    best = min(best, time.perf_counter() - begin)
print(json.dumps([best, float(np.abs(y).sum())]))
"""
S = mx.sym


def layer(x: Any, name: str, channels: int, kernel: int, stride: int = 1, **more: Any) -> Any:
    """Add a convolution, transposed if `up=True`, then normalization and relu."""
    operator = S.Deconvolution if more.pop("up", False) else S.Convolution
    pad = more.pop("pad", (kernel - 1) // 2)
    x = operator(
        x, kernel=(kernel, kernel), stride=(stride, stride), pad=(pad, pad), no_bias=True,
        num_filter=channels, name=name, **more,
    )  # fmt: skip
    return S.Activation(S.BatchNorm(x, fix_gamma=False, name=f"{name}_norm"), act_type="relu")


def dcgan() -> Any:
    """Build a generator of 64 x 64 images from noise."""
    x = layer(S.var("data"), "up0", 512, 4, up=True, pad=0)
    for i, channels in enumerate((256, 128, 64), 1):
        x = layer(x, f"up{i}", channels, 4, 2, up=True)
    x = S.Deconvolution(x, kernel=(4, 4), stride=(2, 2), pad=(1, 1), num_filter=3, name="rgb")
    return S.tanh(x)


def unet() -> Any:
    """Build four levels of two convolutions each, joined by concatenations."""
    x, skips = S.var("data"), []
    for i, channels in enumerate((32, 64, 128, 256)):
        x = layer(layer(x, f"a{i}", channels, 3), f"b{i}", channels, 3)
        if i < 3:
            skips.append(x)
            x = S.Pooling(x, kernel=(2, 2), stride=(2, 2), pool_type="max")
    for i, channels in enumerate((128, 64, 32)):
        up = S.Deconvolution(x, kernel=(2, 2), stride=(2, 2), num_filter=channels, name=f"up{i}")
        x = S.Concat(up, skips.pop())
        x = layer(layer(x, f"c{i}", channels, 3), f"d{i}", channels, 3)
    return S.sigmoid(S.Convolution(x, kernel=(1, 1), num_filter=2, name="mask"))


def fcn() -> Any:
    """Build scores at strides 16 and 8, enlarged by grouped deconvolutions and cropped."""
    data = x = S.var("data")
    taps = []
    for i, channels in enumerate((32, 64, 128, 256)):
        x = layer(layer(x, f"a{i}", channels, 3), f"b{i}", channels, 3)
        x = S.Pooling(x, kernel=(2, 2), stride=(2, 2), pooling_convention="full")
        taps.append(S.Convolution(x, kernel=(1, 1), num_filter=21, name=f"score{i}"))
    bilinear = {"num_filter": 21, "num_group": 21, "no_bias": True}
    up = S.Deconvolution(taps[3], kernel=(4, 4), stride=(2, 2), name="up2", **bilinear)
    total = S.Crop(up, taps[2], num_args=2, center_crop=True) + taps[2]
    up = S.Deconvolution(total, kernel=(16, 16), stride=(8, 8), name="up8", **bilinear)
    return S.Crop(up, data, num_args=2, center_crop=True)


def poses() -> Any:
    """Build residual blocks down to stride 16, and three 4 x 4 deconvolutions to heat maps."""
    x = layer(S.var("data"), "stem", 32, 7, 2)
    x = S.Pooling(x, kernel=(3, 3), stride=(2, 2), pad=(1, 1), pool_type="max")
    for i, channels in enumerate((32, 64, 128)):
        stride = 1 if i == 0 else 2
        y = layer(layer(x, f"a{i}", channels, 3, stride), f"b{i}", channels, 3)
        x = S.relu(y + layer(x, f"s{i}", channels, 1, stride))
    for i in range(3):
        x = layer(x, f"up{i}", 128, 4, 2, up=True)
    return S.Convolution(x, kernel=(1, 1), num_filter=17, name="maps")


MODELS = {
    "DCGAN generator": (dcgan, (1, 100, 1, 1)),
    "U-Net": (unet, (1, 3, 128, 128)),
    "FCN": (fcn, (1, 3, 160, 160)),
    "pose network": (poses, (1, 3, 256, 192)),
}


def drawn(graph: Any, shape: tuple[int, ...]) -> Model:
    """Return the model with random parameters."""
    draw = np.random.default_rng(0)
    arguments, _, states = graph.infer_shape(data=shape)
    names = [*graph.list_arguments(), *graph.list_auxiliary_states()]
    arrays = {}
    for name, size in zip(names, [*arguments, *states], strict=True):
        scale = np.prod(size[1:]) ** -0.5
        values = draw.standard_normal(size) * scale if len(size) > 1 else draw.uniform(0.5, 1, size)
        arrays[name] = values.astype(np.float32)
    del arrays["data"]
    return Model(graph, arrays)


def theirs(python: str, model: Model, shape: tuple[int, ...], args: Any) -> list[float]:
    """Return MXNet's time in seconds, and the sum of its result's magnitudes."""
    states = {*model.graph.list_auxiliary_states()}
    arrays = {name: mx.nd.array(array) for name, array in model.arrays.items()}
    with tempfile.TemporaryDirectory() as folder:
        prefix = str(Path(folder) / "net")
        kept = {name: x for name, x in arrays.items() if name not in states}
        mx.model.save_checkpoint(prefix, 0, model.graph, kept, {k: arrays[k] for k in states})
        command = [python, "-W", "ignore", "-c", THEIRS, prefix, json.dumps(shape)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(args.threads)}
        text = subprocess.run(
            [*command, str(args.seconds)], capture_output=True, text=True, env=environment,
            check=True,
        )  # fmt: skip
    return json.loads(text.stdout)


def main() -> None:
    """Print a line per model, and geometric means."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--mxnet", help="the interpreter of an environment with mxnet==1.9.1")
    args = parser.parse_args()
    upconv.set_num_threads(args.threads)
    factors = []
    for name, (make, shape) in MODELS.items():
        model = drawn(make(), shape)
        x = np.random.default_rng(1).standard_normal(shape, np.float32)
        ways = {
            "operators": lambda model=model, x=x: model.computed({"data": x}, lambda *_: None),
            "networks": lambda model=model, x=x: model.run(data=x),
        }
        [expected], [result] = (run() for run in ways.values())
        assert np.abs(result - expected).max() <= 1e-4 * np.abs(expected).max()
        best = dict.fromkeys(ways, float("inf"))
        end = time.perf_counter() + args.seconds
        while time.perf_counter() < end:
            for way, run in ways.items():
                begin = time.perf_counter()
                run()
                best[way] = min(best[way], time.perf_counter() - begin)
        if args.mxnet:
            best["MXNet"], total = theirs(args.mxnet, model, shape, args)
            assert abs(total / np.abs(result).sum() - 1) < 1e-3
        factors.append([seconds / best["networks"] for seconds in best.values()])
        print(f"{name:16}", *(f"{way} {1e3 * s:8.2f} ms  " for way, s in best.items()))
    means = zip(best, map(geometric_mean, zip(*factors, strict=True)), strict=True)
    print("over networks:", ", ".join(f"{way} {factor:.2f}" for way, factor in means))


if __name__ == "__main__":
    main()
