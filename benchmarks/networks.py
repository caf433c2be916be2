"""Whole decoders written with `upconv.network`, against PyTorch, ONNX Runtime and OpenVINO.

    pip install torch onnx onnxruntime openvino   # peers; those that are missing are left out
    python benchmarks/networks.py                 # all models; names choose some
    python benchmarks/networks.py --threads 1 --inductor --explain hifigan

Weights are random. Peers run the same graph, of which this file makes a PyTorch module: every node
as one function of PyTorch. All take turns in one process, and the best time of each counts. The
ratio is that of the best peer's time to ours.
"""

from __future__ import annotations

import argparse
import io
import math
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import upconv
from upconv.network import Network, Value
from upconv.network.graph import (
    Concat,
    Convolution,
    Graph,
    Input,
    Node,
    Norm,
    Pointwise,
)
from upconv.timing import interleaved

Call = Callable[[], Any]


class Layers:
    """Layers with random weights, on one network."""

    def __init__(self, **inputs: tuple[int, ...]) -> None:
        self.network = Network(inputs)
        self.inputs = list(self.network.inputs.values())
        self._random = np.random.default_rng(0)

    def _weight(self, *shape: int, fan: int) -> np.ndarray:
        return self._random.standard_normal(shape, np.float32) * np.float32((2 / fan) ** 0.5)

    def conv(self, x: Value, channels: int, kernel: int, **keywords: Any) -> Value:
        """A convolution with a bias."""
        shape = (channels, x.channels, *(kernel,) * (len(x.shape) - 2))
        weight = self._weight(*shape, fan=math.prod(shape[1:]))
        return self.network.conv(x, weight, self._weight(channels, fan=200), **keywords)

    def up(self, x: Value, channels: int, kernel: int, **keywords: Any) -> Value:
        """A transposed convolution with a bias."""
        rank = len(x.shape) - 2
        fan = x.channels * max(1, kernel // keywords.get("stride", 1)) ** rank
        weight = self._weight(x.channels, channels, *(kernel,) * rank, fan=fan)
        return self.network.conv_transpose(x, weight, self._weight(channels, fan=200), **keywords)

    def batch_norm(self, x: Value) -> Value:
        """Batch norm with random statistics."""
        scale, variance = self._random.uniform(0.5, 1.5, (2, x.channels))
        offset, mean = self._random.normal(0, 0.1, (2, x.channels))
        return self.network.batch_norm(x, scale, offset, mean, variance)

    def prelu(self, x: Value) -> Value:
        """PReLU with a slope per channel."""
        return self.network.activation(x, ("prelu", self._random.uniform(0.1, 0.4, x.channels)))


def hifigan() -> Network:
    """HiFi-GAN V1: rates 8, 8, 2, 2 from 512 channels; 64 frames."""
    layers = Layers(x=(1, 80, 64))
    network = layers.network

    def leaky(x: Value, slope: float = 0.1) -> Value:
        return network.activation(x, ("leaky_relu", slope))

    x = layers.conv(layers.inputs[0], 512, 7, padding=3)
    for channels, kernel, stride in ((256, 16, 8), (128, 16, 8), (64, 4, 2), (32, 4, 2)):
        x = layers.up(leaky(x), channels, kernel, stride=stride, padding=(kernel - stride) // 2)
        branches = []
        for taps in (3, 7, 11):
            y = x
            for dilation in (1, 3, 5):
                padding = dilation * (taps - 1) // 2
                z = layers.conv(leaky(y), channels, taps, dilation=dilation, padding=padding)
                y = y + layers.conv(leaky(z), channels, taps, padding=(taps - 1) // 2)
            branches.append(y)
        x = (branches[0] + branches[1] + branches[2]) * (1 / 3)
    x = layers.conv(leaky(x, 0.01), 1, 7, padding=3)
    network.output(network.activation(x, "tanh"))
    return network


def unet(rank: int, size: int, widths: tuple[int, ...]) -> Network:
    """MONAI's UNet with residual units: instance norm, then a leaky ReLU of slope 0.25."""
    layers = Layers(x=(1, 1, *(size,) * rank))
    network = layers.network

    def normed(x: Value) -> Value:
        return network.activation(network.instance_norm(x), ("leaky_relu", 0.25))

    def unit(x: Value, channels: int, stride: int) -> Value:
        """Two convolutions, and one beside them that makes the shapes equal."""
        y = normed(layers.conv(x, channels, 3, stride=stride, padding=1))
        y = normed(layers.conv(y, channels, 3, padding=1))
        taps = 3 if stride > 1 else 1
        beside = layers.conv(x, channels, taps, stride=stride, padding=taps // 2)
        return y + beside

    def block(x: Value, level: int, out: int) -> Value:
        """A level with all below it: `widths[level]` channels in the middle, `out` behind."""
        down = unit(x, widths[level], 2)
        if level + 2 < len(widths):
            inner = block(down, level + 1, widths[level])
        else:
            inner = unit(down, widths[level + 1], 1)
        joined = network.concat(down, inner)
        y = layers.up(joined, out, 3, stride=2, padding=1, output_padding=1)
        if level == 0:
            return y + layers.conv(y, out, 3, padding=1)
        y = normed(y)
        return y + normed(layers.conv(y, out, 3, padding=1))

    network.output(block(layers.inputs[0], 0, 2))
    return network


def pix2pix() -> Network:
    """The U-Net of pix2pix: 256 x 256, six levels, batch norm, skips by concatenation."""
    layers = Layers(x=(1, 3, 256, 256))
    network, x, skips = layers.network, layers.inputs[0], []
    widths = (64, 128, 256, 512, 512, 512)
    for channels in widths:
        x = network.activation(x, ("leaky_relu", 0.2))
        x = layers.batch_norm(layers.conv(x, channels, 4, stride=2, padding=1))
        skips.append(x)
    skips.pop()
    for channels in (*widths[-2::-1], 3):
        x = layers.up(network.activation(x, "relu"), channels, 4, stride=2, padding=1)
        if skips:
            x = network.concat(layers.batch_norm(x), skips.pop())
    network.output(network.activation(x, "tanh"))
    return network


def fsrcnn() -> Network:
    """FSRCNN, three times the size: 56 and 12 channels, a PReLU behind each convolution."""
    layers = Layers(x=(1, 1, 180, 240))
    x = layers.prelu(layers.conv(layers.inputs[0], 56, 5, padding=2))
    x = layers.prelu(layers.conv(x, 12, 1))
    for _ in range(4):
        x = layers.prelu(layers.conv(x, 12, 3, padding=1))
    x = layers.prelu(layers.conv(x, 56, 1))
    layers.network.output(layers.up(x, 1, 9, stride=3, padding=4, output_padding=2))
    return layers.network


def dcgan() -> Network:
    """DCGAN's generator of 64 x 64 images, 16 at a time."""
    layers = Layers(x=(16, 100, 1, 1))
    x = layers.up(layers.inputs[0], 512, 4)
    for channels in (256, 128, 64):
        x = layers.network.activation(layers.batch_norm(x), "relu")
        x = layers.up(x, channels, 4, stride=2, padding=1)
    x = layers.network.activation(layers.batch_norm(x), "relu")
    x = layers.up(x, 3, 4, stride=2, padding=1)
    layers.network.output(layers.network.activation(x, "tanh"))
    return layers.network


MODELS: dict[str, Callable[[], Network]] = {
    "hifigan": hifigan,
    "unet2d": lambda: unet(2, 256, (16, 32, 64, 128, 256)),
    "unet3d": lambda: unet(3, 64, (16, 32, 64, 128)),
    "pix2pix": pix2pix,
    "fsrcnn": fsrcnn,
    "dcgan": dcgan,
}


# Peers --------------------------------------------------------------------------------------------


def torch_module(graph: Graph) -> Any:
    """A PyTorch module that computes a graph, one function for each node."""
    import torch
    from torch.nn import functional

    def pointwise(node: Node, values: list[Any], x: Any) -> Any:
        chain = getattr(node.operation, "end", ()) or getattr(node.operation, "chain", ())
        for op in chain:
            operand: Any = op.operand
            if isinstance(operand, Input):
                operand = values[operand.number]
            elif isinstance(operand, np.ndarray):
                shape = (1, -1) + (1,) * (0 if op.name == "prelu" else x.ndim - 2)
                operand = torch.from_numpy(operand.astype(np.float32))
                operand = operand if op.name == "prelu" else operand.reshape(shape)
            if op.name in ("add", "mul"):
                x = x + operand if op.name == "add" else x * operand
            else:
                function = getattr(functional, op.name, None) or getattr(torch, op.name)
                x = function(x) if operand is None else function(x, operand)
        return x

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.arrays = torch.nn.ParameterList()
            self.numbers: dict[int, int] = {}
            for number, node in enumerate(graph.nodes):
                if isinstance(node.operation, Convolution):
                    self.numbers[number] = len(self.arrays)
                    for array in (node.operation.weight, node.operation.bias):
                        tensor = torch.from_numpy(np.array(array, np.float32))
                        self.arrays.append(torch.nn.Parameter(tensor, requires_grad=False))

        def convolution(self, number: int, node: Node, x: Any) -> Any:
            operation: Any = node.operation
            first, keywords = self.numbers[number], operation.keywords
            weight, bias = self.arrays[first], self.arrays[first + 1]
            stride, padding, extra, dilation, groups = keywords[:5]
            rank = x.ndim - 2
            name = f"conv{'_transpose' * operation.transposed}{rank}d"
            more = {"output_padding": extra} if operation.transposed else {}
            return getattr(functional, name)(
                x, weight, bias, stride, padding, groups=groups, dilation=dilation, **more
            )

        def forward(self, *inputs: Any) -> Any:
            values = dict(zip(graph.inputs.values(), inputs, strict=True))
            for number, node in enumerate(graph.nodes):
                operation, read = node.operation, [values[value] for value in node.inputs]
                x = read[0]
                if isinstance(operation, Convolution):
                    x = self.convolution(number, node, x)
                elif isinstance(operation, Concat):
                    x = torch.cat(read, 1)
                elif isinstance(operation, Norm):
                    assert operation.groups == x.shape[1]
                    x = functional.instance_norm(x, eps=operation.epsilon)
                elif not isinstance(operation, Pointwise):
                    raise TypeError(f"no function of PyTorch for {operation}")
                values[node.outputs[0]] = pointwise(node, read, x)
            return values[graph.outputs[0]]

    return Module().eval()


def peers(graph: Graph, arrays: list[np.ndarray], threads: int, inductor: bool) -> dict[str, Call]:
    """Calls of the peers that are there."""
    try:
        import torch
    except ImportError:
        print("no PyTorch, so no peers")
        return {}
    torch.set_num_threads(threads)
    module, tensors = torch_module(graph), tuple(map(torch.from_numpy, arrays))

    def eager(model: Any) -> Call:
        def run() -> Any:
            with torch.inference_mode():
                return model(*tensors).numpy()

        return run

    calls = {"torch": eager(module)}
    if inductor:
        calls["inductor"] = eager(torch.compile(module))
    for name, make in (("onnxruntime", _onnxruntime), ("openvino", _openvino)):
        try:
            calls[name] = make(module, tensors, arrays, threads)
        except ImportError:
            print(f"no {name}")
    return calls


def _onnxruntime(module: Any, tensors: Any, arrays: list[np.ndarray], threads: int) -> Call:
    import onnxruntime
    import torch

    buffer = io.BytesIO()
    torch.onnx.export(
        module, tensors, buffer, opset_version=17, input_names=["x"], output_names=["y"],
        dynamo=False,
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(buffer.getvalue(), options, providers=providers)
    return lambda: session.run(["y"], {"x": arrays[0]})[0]


def _openvino(module: Any, tensors: Any, arrays: list[np.ndarray], threads: int) -> Call:
    import openvino

    options = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    model = openvino.convert_model(module, example_input=tensors)
    request = openvino.Core().compile_model(model, "CPU", options).create_infer_request()

    def run() -> Any:
        request.infer(arrays)
        return request.get_output_tensor(0).data

    return run


def measure(name: str, arguments: argparse.Namespace) -> float:
    """Print one model's row; the ratio."""
    network, threads = MODELS[name](), arguments.threads
    graph = network.graph()
    arrays = [
        np.random.default_rng(1).standard_normal(graph.shapes[value], np.float32)
        for value in graph.inputs.values()
    ]
    program = network.compile(threads=threads)
    calls = {"upconv": lambda: program.run(*arrays)}
    calls |= peers(graph, arrays, threads, arguments.inductor)
    results = {each: np.array(call()) for each, call in calls.items()}
    largest = np.abs(results["upconv"]).max()
    error = max(np.abs(result - results["upconv"]).max() / largest for result in results.values())
    rounds = interleaved(list(calls.values()), arguments.seconds * len(calls))
    times = {each: min(s) for each, s in zip(calls, rounds.samples, strict=True)}
    ratio = min((t for each, t in times.items() if each != "upconv"), default=math.nan)
    ratio /= times["upconv"]
    row = " ".join(f"{each} {1e3 * seconds:.2f}" for each, seconds in times.items())
    print(f"{name:10s} {row} ms  ratio {ratio:.2f}  difference {error:.1e}", flush=True)
    if name in arguments.explain:
        print(program.explain())
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS), help=", ".join(MODELS))
    parser.add_argument("--threads", type=int, default=upconv.get_num_threads())
    parser.add_argument("--seconds", type=float, default=1.0, help="for each contender")
    parser.add_argument("--inductor", action="store_true", help="compile with PyTorch's, too")
    parser.add_argument("--explain", nargs="*", default=[], help="models to explain")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    ratios = [measure(name, arguments) for name in arguments.models]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"{arguments.threads} threads: geometric mean {mean:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
