"""Calls, plans, streams and sessions whose memory ends at any of their allocations.

Some allocations of each by default; every one, for minutes:

    python -m pytest tests/core/test_failing_memory.py -m long
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import upconv
from tests.support.failing_memory import FailingMemory, faults
from upconv import streaming

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="takes memory from the C library by name"
)

RNG = np.random.default_rng(0)
X, W = RNG.standard_normal((2, 6, 9, 9), np.float32), RNG.standard_normal((6, 4, 3, 3), np.float32)
B, G, NXC = np.ones(4, "f"), np.ones((2, 4, 19, 19), "f"), np.ones((9, 4, 3, 3), "f")
X1, W1 = X[..., 0].copy(), W[..., 0].copy()
HALF = X.astype("f2"), W.astype("f2")
SAVED = np.zeros(6), np.ones(6)


def call(**keywords: Any) -> list[np.ndarray]:
    return [upconv.conv_transpose(X, W, B, **keywords)]


def gradients(**keywords: Any) -> list[np.ndarray]:
    found = upconv.conv_transpose_backward(G, X, W, stride=2, **keywords)
    return [found.x, found.weight, found.bias]


def plan() -> list[np.ndarray]:
    with upconv.plan(X.shape, W, B, stride=2, engine="jit") as plan:
        return [plan(X), plan(X)]


def stream() -> list[np.ndarray]:
    """A chunk that failed is pushed once more: the stream is as it was."""
    stream = upconv.stream(W1, stride=2)
    results = []
    for chunk in (X1[..., :4], X1[..., 4:]):
        try:
            results.append(stream.push(chunk))
        except upconv.UpconvError:
            results.append(stream.push(chunk))
    return [*results, stream.finish()]


def chain() -> list[np.ndarray]:
    chain = streaming.chain(upconv.stream(W1, stride=2), "tanh")
    return [chain.push(X1), chain.finish()]


CALLS: dict[str, Callable[[], list[np.ndarray]]] = {
    "the JIT": lambda: call(stride=2, engine="jit"),
    "the JIT, channels last": lambda: [upconv.conv_transpose(X, NXC, engine="jit", layout="NXC")],
    "the JIT, with a border": lambda: [
        upconv.conv_transpose(*HALF, engine="jit", activation="gelu", padding=-2)
    ],
    "Winograd": lambda: call(engine="jit", algorithm="winograd"),
    "libdnnl": lambda: call(stride=2, engine="onednn"),
    "the reference engine": lambda: call(stride=2, engine="reference"),
    "gradients": lambda: gradients(engine="jit"),
    "gradients by the reference engine": lambda: gradients(engine="reference"),
    "a plan": plan,
    "a stream": stream,
    "a chain": chain,
    "batch_norm": lambda: [upconv.batch_norm(X, training=True).y],
    "batch_norm_backward": lambda: [upconv.batch_norm_backward(X, *SAVED, X).x],
}


def check(name: str, most: int) -> None:
    if name == "libdnnl":
        status = {status.name: status for status in upconv.engines()}["onednn"]
        if not status.available:
            pytest.skip(status.reason)
    CALLS[name]()  # compiled code is kept
    assert list(faults(lambda _: CALLS[name](), most)) == []


@pytest.mark.parametrize("name", CALLS)
def test_an_allocation_that_fails(name: str) -> None:
    check(name, 5)


@pytest.mark.long
@pytest.mark.parametrize("name", CALLS)
def test_every_allocation_that_fails(name: str) -> None:
    check(name, sys.maxsize)


@pytest.mark.parametrize("most", [5, pytest.param(sys.maxsize, marks=pytest.mark.long)])
def test_an_onnx_session(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """This thread and those that work for it: where the session is made, and where it runs."""
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    pytest.importorskip("onnxruntime", reason="needs ONNX Runtime")
    from upconv import interrupts
    from upconv.onnx import Session

    text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 2, L] x) => (float[N, 2, M] y)'
    text += (
        "<float[2, 2, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}> { y = ConvTranspose<strides = [2]>(x, w) }"
    )
    model, feeds = onnx.parser.parse_model(text), {"x": np.ones((1, 2, 9), np.float32)}

    there = interrupts.call
    failing: list[FailingMemory] = []
    functions: list[str] = []

    def call(function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on another thread, whose arrays lie in the memory that fails."""
        functions.append(function.__name__)
        return there(in_memory, function, *arguments)

    def in_memory(function: Callable[..., Any], *arguments: Any) -> Any:
        with failing[-1]:
            return function(*arguments)

    def run(memory: FailingMemory) -> list[np.ndarray]:
        failing.append(memory)
        with Session(model, measure=False) as session:
            results: list[np.ndarray] = session.run(None, feeds)
            return results

    monkeypatch.setattr(interrupts, "call", call)
    assert list(faults(run, most)) == []
    assert {"_created", "_run"} <= set(functions)


def test_faults_are_seen() -> None:
    """A raw error, a wrong result after one, memory that is kept, and a text that says nothing."""
    kept: list[np.ndarray] = []
    failed: list[int] = []

    def raw(_: FailingMemory) -> list[np.ndarray]:
        return [np.zeros(3)]

    def leaking(_: FailingMemory) -> list[np.ndarray]:
        kept.append(np.zeros(3))
        return call(engine="reference")

    def confused(_: FailingMemory) -> list[np.ndarray]:
        try:
            return [*call(engine="reference"), np.zeros(len(failed))]
        except upconv.UpconvError:
            failed.append(1)
            raise

    def silent(_: FailingMemory) -> list[np.ndarray]:
        try:
            return [np.zeros(3)]
        except MemoryError:
            raise upconv.EngineError("It failed.") from None

    said = ("MemoryError", "blocks are left", "the next call has another", "It failed")
    for wrong, word in zip((raw, leaking, confused, silent), said, strict=True):
        assert word in " ".join(faults(wrong, 8))
