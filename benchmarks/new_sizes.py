"""The latency of a vocoder's first call at each new length.

    python benchmarks/new_sizes.py [--threads 1 2] [--lengths 20]

The model is HiFi-GAN with SpeechT5's rates: 13 million parameters in 78 layers. A first length,
which does not count, warms all of them up. Then each length, in random order, is run twice: `first`
is the median of the first calls, `again` of the second calls. `total` is the sum of the first
calls, as for that many sentences, and `work` is their processor time, which excludes other
processes. The runtimes take turns at each length. `new` is the extra processor time of a first call
over the second one, per layer. Every result is compared with PyTorch's.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from audio_models import HiFiGan
from torch import nn

import upconv.torch
from upconv.network import Network, Value
from upconv.timing import rest

CHANNELS = 80
SHORTEST, LONGEST, KNOWN = 101, 160, 130
TOLERANCE = 1e-3  # of the largest value
Run = Callable[[np.ndarray], np.ndarray]


def vocoder() -> torch.nn.Module:
    """Return the generator with SpeechT5's rates, with plain weights as in deployment."""
    torch.manual_seed(0)
    return HiFiGan(ups=((4, 8),) * 4).eval().requires_grad_(False)


def by_torch(model: torch.nn.Module) -> Run:
    def run(mel: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(torch.from_numpy(mel)).numpy()

    return run


def by_onnx(session: Any) -> Run:
    return lambda mel: session.run(None, {"mel": mel})[0]


def network_of(model: Any) -> Network:
    """Return the generator as a network, written layer by layer."""
    network = Network({"mel": (1, CHANNELS, None)})

    def layer(module: Any, x: Value, slope: float | None = 0.1) -> Value:
        x = x if slope is None else network.activation(x, ("leaky_relu", slope))
        call = network.conv_transpose if isinstance(module, nn.ConvTranspose1d) else network.conv
        words = {"stride": module.stride, "padding": module.padding, "dilation": module.dilation}
        return call(x, module.weight.numpy(), module.bias.numpy(), **words)

    def residual(block: Any, x: Value) -> Value:
        for dilated, plain in zip(block.dilated, block.plain, strict=True):
            x = x + layer(plain, layer(dilated, x))
        return x

    x = layer(model.first, network.inputs["mel"], None)
    for up, blocks in zip(model.ups, model.blocks, strict=True):
        x = layer(up, x)
        x = sum(residual(block, x) for block in blocks) * (1 / len(blocks))
    network.output(network.activation(layer(model.last, x, 0.01), "tanh"))
    return network


def runtimes(threads: int, folder: Path, mel: np.ndarray) -> dict[str, Run]:
    """Return the runtimes by name, PyTorch first; ONNX ones need ONNX Runtime."""
    made = {"PyTorch": by_torch(vocoder())}
    accelerated = upconv.torch.accelerate(vocoder(), torch.from_numpy(mel))
    made["upconv.torch.accelerate"] = by_torch(accelerated)
    made["upconv.network"] = network_of(vocoder())
    try:
        import onnxruntime

        from upconv.onnx import Session
    except ImportError as missing:
        print(f"ONNX is left out: {missing}", file=sys.stderr)
        return made
    path = folder / "vocoder.onnx"
    if not path.exists():
        import onnx_zoo

        axes = {"input_names": ["mel"], "dynamic_axes": {"mel": {2: "frames"}}}
        with onnx_zoo.quiet():
            torch.onnx.export(vocoder(), (torch.from_numpy(mel),), path, dynamo=False, **axes)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    made["ONNX Runtime"] = by_onnx(onnxruntime.InferenceSession(path, options))
    session = Session(path, threads=threads, feeds={"mel": mel})
    made["upconv.onnx.Session"] = by_onnx(session)
    return made


def mel_of(length: int) -> np.ndarray:
    return np.random.default_rng(length).standard_normal((1, CHANNELS, length), np.float32)


def timed(run: Run, mel: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return wall-clock and processor time in milliseconds, and the result."""
    rest()
    clock, processors = time.perf_counter(), time.process_time()
    y = run(mel)
    return (time.perf_counter() - clock) * 1e3, (time.process_time() - processors) * 1e3, y


def measured(threads: int, lengths: list[int], folder: Path) -> None:
    """Print the rows for a number of threads."""
    torch.set_num_threads(threads)
    upconv.set_num_threads(threads)
    ways = runtimes(threads, folder, mel_of(KNOWN))
    layers = sum(isinstance(each, torch.nn.modules.conv._ConvNd) for each in vocoder().modules())
    for run in ways.values():
        for _ in range(3):
            run(mel_of(KNOWN))
    calls: dict[str, list[tuple[tuple[float, float], ...]]] = {name: [] for name in ways}
    for i, length in enumerate(lengths):
        mel = mel_of(length)
        expected = ways["PyTorch"](mel)
        for j in range(len(ways)):
            name = list(ways)[(i + j) % len(ways)]
            both = [timed(ways[name], mel) for _ in range(2)]
            error = max(np.abs(y - expected).max() for *_, y in both) / np.abs(expected).max()
            if not error < TOLERANCE:
                sys.exit(f"{name} differs from PyTorch by {error:.1e} at length {length}")
            calls[name].append(tuple((clock, work) for clock, work, _ in both))
    for name, pairs in calls.items():
        first, again = ([pair[i][0] for pair in pairs] for i in (0, 1))
        new = statistics.median(one[1] - two[1] for one, two in pairs) / layers
        work = sum(one[1] for one, _ in pairs)
        cells = [name, str(threads), f"{sum(first):.0f}", f"{work:.0f}"]
        cells += [f"{statistics.median(each):.0f}" for each in (first, again)] + [f"{new:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--lengths", type=int, default=20, help="number of lengths")
    arguments = parser.parse_args()
    lengths = [n for n in range(SHORTEST, LONGEST + 1) if n != KNOWN]
    lengths = random.Random(0).sample(lengths, arguments.lengths)
    heads = ("runtime", "threads", "total ms", "work", "first", "again", "new, ms per layer")
    print(f"| {' | '.join(heads)} |\n|{' --- |' * len(heads)}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for threads in arguments.threads:
            measured(threads, lengths, Path(folder))


if __name__ == "__main__":
    main()
