"""Every parameter of the public functions with every kind of value that somebody passes by mistake.

A call ends in a result or in an `UpconvError` of one line, at once. What no parameter takes is
refused by name. `test_bad_input.py` holds the words of single messages.
"""

import inspect
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import upconv
from tests.core.test_bad_input import endless
from upconv import dialects, streaming
from upconv.errors import brief

SECONDS = 2.0  # of processor time: a refusal takes a millisecond


class BrokenArray:
    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise RuntimeError("not\ntoday")


class BrokenRepr:
    def __repr__(self) -> str:
        return "on\nmany\nlines" * 50


class BrokenIndex:
    def __index__(self) -> int:
        raise RuntimeError("no index")

    __bool__ = __index__


class BrokenSequence:
    def __iter__(self) -> Any:
        raise RuntimeError("no entries")

    def __len__(self) -> int:
        return 3


class BrokenLength(BrokenSequence):
    def __iter__(self) -> Any:
        return iter((1, 2, 3))

    def __len__(self) -> int:
        raise RuntimeError("no length")


NEVER = {  # what nothing takes
    "an object": object(), "a broken array": BrokenArray(), "a repr of many lines": BrokenRepr(),
    "a broken index": BrokenIndex(), "a broken sequence": BrokenSequence(),
    "a broken length": BrokenLength(), "a set": {1, 2}, "a complex number": 1j,
    "records": np.zeros(3, "f4,f4"), "an array of objects": np.array([None, object()], object),
}  # fmt: skip
SOMETIMES = {
    "None": None, "an array": np.arange(6.0).reshape(2, 3), "a long array": np.zeros((40, 40)),
    "an array of words": np.array(["a", "b"]), "an array without axes": np.array(2),
    "an empty array": np.zeros(0), "an array of nine axes": np.zeros((1,) * 9, "f"),
    "a tuple of arrays": (np.zeros((3, 3)), np.zeros(2)), "a word": "hello", "no word": "",
    "words": ("a", "b"), "a long word": "x" * 10_000, "bytes": b"NCX", "2**31": 2**31,
    "2**40": 2**40, "2**40 twice": [2**40] * 2, "more digits than Python prints": 10**5000,
    "-1": -1, "-2**63": -(2**63), "0": 0, "True": True, "nan": float("nan"), "inf": float("inf"),
    "1e308": 1e308, "nothing": (), "nested": [[1, 2], [3, 4]], "endless": endless(),
    "a long list": [1] * 200, "a long range": range(2**40),
}  # fmt: skip

X, W, V = np.ones((1, 2, 6, 6), "f"), np.ones((2, 3, 3, 3), "f"), np.ones((3, 2, 3, 3), "f")
Y, Z = np.ones((1, 3, 8, 8), "f"), np.ones((1, 3, 4, 4), "f")
ONE, TWO, B = np.ones((1, 2, 9), "f"), np.ones(2, "f"), np.ones(3, "f")
STREAM = upconv.stream(np.ones((2, 3, 3), "f"))
LAYER = dialects.from_torch((5, 5), 3)
NORM = {"x": X, "gamma": TWO, "beta": TWO}
SAVED = {"saved_mean": np.zeros(2), "saved_invstd": np.ones(2)}

# The function, and arguments that it takes.
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "conv_transpose": (upconv.conv_transpose, {"x": X, "weight": W}),
    "conv": (upconv.conv, {"x": X, "weight": V}),
    "conv_transpose_backward": (
        upconv.conv_transpose_backward, {"grad": Y, "x": X, "weight": W}
    ),
    "conv_backward": (upconv.conv_backward, {"grad": Z, "x": X, "weight": V}),
    "plan": (upconv.plan, {"input_shape": X.shape, "weight": W}),
    "conv_plan": (upconv.conv_plan, {"input_shape": X.shape, "weight": V}),
    "a plan": (upconv.plan(X.shape, W).__call__, {"x": X}),
    "explain": (upconv.explain, {"input_shape": X.shape, "weight": W}),
    "output_shape": (upconv.output_shape, {"input_shape": X.shape, "weight_shape": W.shape}),
    "stream": (upconv.stream, {"weight": np.ones((2, 3, 3), "f")}),
    "conv_stream": (upconv.conv_stream, {"weight": np.ones((3, 2, 3), "f")}),
    "a stream's push": (lambda chunk: STREAM.copy().push(chunk), {"chunk": ONE}),
    "a stream's from_bytes": (STREAM.from_bytes, {"data": STREAM.to_bytes()}),
    "chain": (lambda stages: streaming.chain(stages), {"stages": STREAM}),
    "add": (lambda branches, scale: streaming.add(branches, scale=scale),
            {"branches": STREAM, "scale": 1.0}),
    "a chain's push": (lambda chunk: streaming.chain(STREAM).push(chunk), {"chunk": ONE}),
    "a sum's push": (lambda chunk: streaming.add((), "relu").push(chunk), {"chunk": ONE}),
    "batch_norm": (upconv.batch_norm, {**NORM, "mean": TWO, "var": TWO}),
    "batch_norm_backward": (upconv.batch_norm_backward, {"grad": X, **SAVED, **NORM}),
    "fold_batch_norm": (
        upconv.fold_batch_norm, {"weight": W, "gamma": B, "beta": B, "mean": B, "var": B}
    ),
    "translate": (
        dialects.translate,
        {"config": {"kernel_size": (3, 3)}, "source": "torch", "target": "onnx"},
    ),
    "from_torch": (dialects.from_torch, {"size": (5, 5), "kernel_size": 3}),
    "from_onnx": (dialects.from_onnx, {"size": (5, 5), "kernel_shape": (3, 3)}),
    "from_mxnet": (dialects.from_mxnet, {"size": (5, 5), "kernel": (3, 3)}),
    "from_keras": (dialects.from_keras, {"size": (5, 5), "kernel_size": 3}),
    "from_jax": (
        dialects.from_jax, {"size": (5, 5), "kernel": (3, 3), "strides": (1, 1), "padding": "SAME"}
    ),
    "from_onednn_graph": (
        dialects.from_onednn_graph,
        {"size": (5, 5), "kernel": (3, 3), "strides": (1, 1), "pads_begin": (0, 0),
         "pads_end": (0, 0), "dilations": (1, 1)},
    ),
    **{f"to_{name}": (getattr(dialects, f"to_{name}"), {"layer": LAYER})
       for name in ("torch", "onnx", "mxnet", "keras", "jax", "onednn_graph")},
    "set_num_threads": (upconv.set_num_threads, {"n": None}),
}  # fmt: skip


def dask_functions() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    da = pytest.importorskip("dask.array", reason="needs the extra dask")
    lazy = pytest.importorskip("upconv.dask")
    x, y, z = (da.from_array(array, chunks=(1, 3, 4, 4)) for array in (X, Y, Z))
    return {
        "conv_transpose": (lazy.conv_transpose, {"x": x, "weight": W}),
        "conv": (lazy.conv, {"x": x, "weight": V}),
        "conv_transpose_backward": (
            lazy.conv_transpose_backward, {"grad": y, "x": x, "weight": W}
        ),
        "conv_backward": (lazy.conv_backward, {"grad": z, "x": x, "weight": V}),
    }  # fmt: skip


def linear_functions() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    pytest.importorskip("scipy", reason="needs the extra science")
    linear = pytest.importorskip("upconv.linear")
    return {
        "operator": (linear.operator, {"input_shape": X.shape, "weight": W}),
        "as_matrix": (linear.as_matrix, {"input_shape": X.shape, "weight": W}),
        "deconvolve": (linear.deconvolve, {"y": Y, "weight": W}),
        "deconvolve, circular": (
            linear.deconvolve, {"y": X, "weight": W[:, :2], "border": "circular"}
        ),
    }  # fmt: skip


def onnx_functions() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    front = pytest.importorskip("upconv.onnx")
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 2, L] x) => (float[N, 1, M] y) <float[2, 1, 2] w = {1, 2, 3, 4}>
        { y = ConvTranspose <strides = [2]> (x, w) }""")
    onnx.save(model, "right.onnx")
    session = front.Session(model, measure=False)
    return {
        "load": (front.load, {"path": "right.onnx"}),
        "save": (front.save, {"model": model, "path": "copy.onnx", "force": True}),
        "lint": (front.lint, {"model": "right.onnx"}),
        "rewrite": (front.rewrite, {"model": model}),
        "conv_transpose_nodes": (front.conv_transpose_nodes, {"model": front.load("right.onnx")}),
        "stream": (front.stream, {"model": model}),
        "conv_transpose": (front.conv_transpose, {"X": ONE, "W": np.ones((2, 3, 3), "f")}),
        "run": (lambda feed: session.run(None, feed), {"feed": {"x": ONE}}),
    }  # fmt: skip


def torch_functions() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Of what PyTorch takes itself, example inputs and layers, its own errors pass through."""
    torch = pytest.importorskip("torch")
    front = pytest.importorskip("upconv.torch")
    model, x = torch.nn.Sequential(torch.nn.ReLU()).eval(), torch.ones(1, 2, 9)
    stream = front.stream(model, x)
    settings = {"seconds": 0, "training": False, "remeasure": False, "filter_fn": None}
    return {
        "accelerate": (
            lambda decisions=None, progress=None, **more: front.accelerate(
                model, x, decisions=decisions, progress=progress, **more
            ),
            settings,
        ),
        "a model": (lambda model: front.accelerate(model, x, seconds=0), {"model": model}),
        "report": (front.report, {"model": front.accelerate(model, x, seconds=0)}),
        "restore": (front.restore, {"model": model}),
        "push": (lambda x: stream.push(x), {"x": x}),
    }  # fmt: skip


def mxnet_functions() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    mx = pytest.importorskip("upconv.mxnet")
    graph = mx.sym.Deconvolution(
        mx.sym.var("data"), kernel=(3,), num_filter=3, no_bias=True, name="up"
    )
    graph.save("net-symbol.json")
    mx.nd.save("net-0000.params", {"arg:up_weight": mx.nd.ones((2, 3, 3))})
    model = mx.load("net-symbol.json", "net-0000.params")
    return {
        "load": (mx.load, {"symbol_json": "net-symbol.json", "params": "net-0000.params"}),
        "Model": (mx.Model, {"graph": graph, "arrays": {"up_weight": np.ones((2, 3, 3))}}),
        "save": (lambda fname: graph.save(fname), {"fname": "copy.json"}),
        "run": (lambda data: model.run(data=data), {"data": ONE}),
        "explain": (lambda data: model.explain(data=data), {"data": ONE}),
        "to_onnx": (
            lambda opset=17, path=None, verify=False: mx.to_onnx(
                model, {"data": ("N", 2, 9)}, path, opset=opset, verify=verify, force=True
            ),
            {},
        ),
        "to_onnx, model": (lambda model: mx.to_onnx(model, {"data": (1, 2, 9)}), {"model": model}),
        "to_onnx, shapes": (
            lambda shapes: mx.to_onnx(model, shapes, verify=False), {"shapes": {"data": (1, 2, 9)}}
        ),
    }  # fmt: skip


def network_functions() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    network = upconv.network.Network({"x": (1, 2, None)})
    network.output(network.conv_transpose(network.inputs["x"], np.ones((2, 3, 3), "f")))
    return {
        "Network": (upconv.network.Network, {"inputs": {"x": (1, 2, 9)}}),
        "compile": (network.compile, {"shapes": {"x": (1, 2, 9)}}),
        "stream": (network.stream, {}),
        "redeclared": (network.redeclared, {"inputs": {"x": (1, 2, 9)}}),
        "program": (lambda x: network(x), {"x": ONE}),
    }


def attack(call: Callable[..., Any], right: dict[str, Any]) -> list[str]:
    """What went wrong with one argument after another replaced by each value."""
    faults = []
    call(**right)
    names = [
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    for argument in dict.fromkeys((*names, *right)):
        for name, value in {**NEVER, **SOMETIMES}.items():
            start, fault = time.process_time(), ""
            try:
                call(**{**right, argument: value})
            except upconv.UpconvError as error:
                message = str(error)
                if "\n" in message or len(message) > 600:
                    fault = f"not one line to read: {message[:80]!r}"
                elif name in NEVER and argument not in message:
                    fault = f"the argument is not named: {message}"
            except Exception as error:  # what the test is there to see
                fault = f"{type(error).__name__}: {brief(error)}"
            if time.process_time() - start > SECONDS:
                fault = "it takes long"
            if fault:
                faults.append(f"{argument} = {name}: {fault}")
    return faults


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_result_or_a_refusal(function: str, own_threads: None) -> None:
    assert attack(*FUNCTIONS[function]) == []


@pytest.mark.parametrize(
    "functions",
    [
        dask_functions,
        linear_functions,
        onnx_functions,
        torch_functions,
        mxnet_functions,
        network_functions,
    ],
)
def test_a_result_or_a_refusal_of_a_front_end(
    functions: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, function in functions().items():
        with np.errstate(over="ignore"):  # NumPy warns of 1e308 in float32
            assert attack(*function) == [], name


def test_the_attack_sees_faults() -> None:
    """Errors that are raw, of many lines or without a name, and no others."""

    def right(argument: Any) -> None:
        raise upconv.ArgumentError("argument", "x", "y")

    def raw(argument: Any) -> None:
        {}[argument]

    def unnamed(argument: Any) -> None:
        raise upconv.ArgumentError("it", "x", "y")

    for function, faults in ((right, 0), (raw, len(NEVER) + len(SOMETIMES)), (unnamed, len(NEVER))):
        assert len(attack(_taking_one(function), {"argument": STREAM})) == faults


def _taking_one(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """The function, and nothing for the argument that is right."""
    return lambda argument: None if argument is STREAM else function(argument)
