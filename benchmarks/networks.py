"""Decoders written with `upconv.network`, against PyTorch, ONNX Runtime and OpenVINO.

    pip install torch onnx onnxruntime openvino   # peers; missing ones are left out
    python benchmarks/networks.py                 # all models; names choose some
    python benchmarks/networks.py --threads 1 --inductor --explain hifigan

Weights are random. Peers run the same graph as a PyTorch module, with one PyTorch function per
node. All take turns in one process, and the best time of each counts. The ratio is the best peer's
time over ours.
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
from network_models import MODELS

import upconv
from upconv.network import graph as ir
from upconv.network.graph import Graph, Node
from upconv.timing import interleaved

Call = Callable[[], Any]


def listed(result: Any) -> list[np.ndarray]:
    """Return the arrays of a result, which has one or several."""
    results = result if isinstance(result, list | tuple) else [result]
    return [np.asarray(each) for each in results]


# Peers --------------------------------------------------------------------------------------------


def torch_module(graph: Graph) -> Any:
    """Return a PyTorch module that computes a graph, with one function per node."""
    import torch
    from torch.nn import functional

    def pointwise(chain: ir.Chain, values: list[Any], x: Any) -> Any:
        for op in chain:
            operand: Any = op.operand
            if isinstance(operand, ir.Input):
                operand = values[operand.number]
            elif isinstance(operand, np.ndarray):
                shape = (1, -1) + (1,) * (0 if op.name == "prelu" else x.ndim - 2)
                operand = torch.from_numpy(operand.astype(np.float32))
                operand = operand if op.name == "prelu" else operand.reshape(shape)
            if op.name == "snake":
                x = x + torch.sin(operand * x) ** 2 / operand
            elif op.name in ("add", "mul"):
                x = x + operand if op.name == "add" else x * operand
            else:
                name = {"hard_swish": "hardswish"}.get(op.name, op.name)
                function = getattr(functional, name, None) or getattr(torch, name)
                x = function(x) if operand is None else function(x, operand)
        return x

    def norm(operation: ir.Norm, read: list[Any], x: Any) -> Any:
        if operation.per_position:
            raise TypeError("no layer norm over channels")
        x = functional.group_norm(x, operation.groups, eps=operation.epsilon)
        return pointwise(operation.epilogue, read, x)

    def pad(operation: ir.Pad, read: list[Any], x: Any) -> Any:
        flat = [n for pair in reversed(operation.amounts) for n in pair]
        return functional.pad(x, flat, operation.mode)

    def pool(operation: ir.Pool, read: list[Any], x: Any) -> Any:
        padding = tuple(begin for begin, _ in operation.padding)
        name = f"{'max' if operation.mode == 'max' else 'avg'}_pool{x.ndim - 2}d"
        return getattr(functional, name)(x, operation.kernel, operation.stride, padding)

    def resample(operation: ir.Resample, read: list[Any], x: Any) -> Any:
        factors = tuple(map(float, operation.factors))
        return functional.interpolate(x, scale_factor=factors, mode=operation.mode)

    functions: dict[type, Callable[..., Any]] = {
        ir.Pointwise: lambda operation, read, x: pointwise(operation.chain, read, x),
        ir.Concat: lambda _, read, __: torch.cat(read, 1),
        ir.Slice: lambda operation, _, x: x[:, operation.start : operation.stop],
        ir.Norm: norm,
        ir.Pad: pad,
        ir.Pool: pool,
        ir.Resample: resample,
        ir.PixelShuffle: lambda o, _, x: functional.pixel_shuffle(x, o.factors[0]),
    }

    class Module(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.arrays = torch.nn.ParameterList()
            self.numbers: dict[int, int] = {}
            for number, node in enumerate(graph.nodes):
                if isinstance(node.operation, ir.Convolution):
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
                if isinstance(operation, ir.Convolution):
                    result = self.convolution(number, node, read[0])
                    result = pointwise(operation.epilogue, read, result)
                else:
                    result = functions[type(operation)](operation, read, read[0])
                values[node.outputs[0]] = result
            results = tuple(values[value] for value in graph.outputs)
            return results[0] if len(results) == 1 else results

    return Module().eval()


def peers(graph: Graph, arrays: list[np.ndarray], threads: int, inductor: bool) -> dict[str, Call]:
    """Return the calls of installed peers, by name."""
    try:
        import torch
    except ImportError:
        print("PyTorch is not installed, so there are no peers")
        return {}
    torch.set_num_threads(threads)
    module, tensors = torch_module(graph), tuple(map(torch.from_numpy, arrays))

    def eager(model: Any) -> Call:
        def run() -> Any:
            with torch.inference_mode():
                return listed(model(*tensors))

        return run

    calls = {"torch": eager(module)}
    if inductor:
        torch.compiler.reset()  # forget earlier models, which ran the same code
        calls["inductor"] = eager(torch.compile(torch.export.export(module, tensors).module()))
    for name, make in (("onnxruntime", _onnxruntime), ("openvino", _openvino)):
        try:
            calls[name] = make(module, tensors, arrays, threads)
        except ImportError:
            print(f"{name} is not installed")
    return calls


def _onnxruntime(module: Any, tensors: Any, arrays: list[np.ndarray], threads: int) -> Call:
    import onnxruntime
    import torch

    buffer = io.BytesIO()
    torch.onnx.export(module, tensors, buffer, opset_version=17, dynamo=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(buffer.getvalue(), options, providers=providers)
    feeds = {each.name: array for each, array in zip(session.get_inputs(), arrays, strict=True)}
    return lambda: session.run(None, feeds)


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
        return [request.get_output_tensor(i).data for i in range(len(model.outputs))]

    return run


def measure(name: str, arguments: argparse.Namespace) -> float:
    """Print one model's row, and return its ratio."""
    network, threads = MODELS[name](), arguments.threads
    graph = network.graph()
    arrays = [
        np.random.default_rng(1).standard_normal(graph.shapes[value], np.float32)
        for value in graph.inputs.values()
    ]
    program = network.compile(threads=threads)
    calls = {"upconv": lambda: program.run(*arrays)}
    calls |= peers(graph, arrays, threads, arguments.inductor)
    error, results = 0.0, [listed(call()) for call in calls.values()]
    for others in results[1:]:
        for ours, theirs in zip(results[0], others, strict=True):
            error = max(error, np.abs(theirs - ours).max() / np.abs(ours).max())
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
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each contender")
    parser.add_argument("--inductor", action="store_true", help="also compile with Inductor")
    parser.add_argument("--explain", nargs="*", default=[], help="models to explain")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    ratios = [measure(name, arguments) for name in arguments.models]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"{arguments.threads} threads: geometric mean {mean:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
