"""The worker process: its open models, by number, and its requests."""

from __future__ import annotations

import os
import pickle
import queue
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from ... import errors, memory
from ...terminal import one_line
from ...timing import Call, Rounds, interleaved
from .backends import BACKENDS, Backend, Feeds
from .runtime import Runtime
from .worker import kill


class Host:
    """Open models; every method is a request that a `Worker` can make."""

    def __init__(self) -> None:
        self._open: dict[int, Backend] = {}
        self._bound: dict[int, Call] = {}
        self._numbers = count()

    def open(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> int:
        """Open a model, and return its number."""
        number = next(self._numbers)
        self._open[number] = BACKENDS[runtime.name](model, runtime, outputs)
        return number

    def run(self, number: int, feeds: Feeds) -> list[Any]:
        """Return the outputs of a model."""
        return self._open[number].run(feeds)

    def bind(self, number: int, feeds: Feeds) -> None:
        """Prepare a model for `timed`."""
        self._bound[number] = self._open[number].bind(feeds)

    def timed(self, numbers: Sequence[int], seconds: float) -> Rounds:
        """Time bound models, interleaved."""
        return interleaved([self._bound[number] for number in numbers], seconds)

    def openvino_precision(self, device: str) -> str:
        """Return the type in which OpenVINO computes float32 models on a device."""
        import openvino

        kind = openvino.Core().get_property(device, "INFERENCE_PRECISION_HINT")
        return str(kind.get_type_name())

    def infer(self, model: bytes) -> bytes:
        """Infer all shapes in a model from its input shapes."""
        import onnx

        proto = onnx.load_from_string(model)
        inferred = onnx.shape_inference.infer_shapes(proto, data_prop=True)
        return bytes(inferred.SerializeToString())

    def session(self, model: bytes | str, threads: int, feeds: list[Feeds]) -> Any:
        """Return the report of an `upconv.onnx.Session` that is measured on these inputs."""
        from ..session import Session

        return Session(model, threads=threads, feeds=feeds).report()

    def close(self, number: int) -> None:
        """Close a model."""
        self._bound.pop(number, None)
        del self._open[number]


def main() -> None:
    """Answer requests until standard input ends."""
    _bound_memory()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep the runtimes' output out of the answers
    if hasattr(os, "register_at_fork"):  # a forked child must not keep our end open
        os.register_at_fork(after_in_child=lambda: os.close(answers.fileno()))
    requests: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    host = Host()
    while True:
        method, arguments = requests.get()
        try:
            answer = "value", getattr(host, method)(*arguments)
        except Exception as error:  # third-party code may raise anything
            answer = _described(error)
        pickle.dump(answer, answers, 5)
        answers.flush()


def _listen(requests: queue.SimpleQueue[Any]) -> None:
    """Queue requests; end the process when the caller ends, even in the middle of a computation."""
    while True:
        try:
            requests.put(pickle.load(sys.stdin.buffer))  # noqa: S301  # from the parent
        except EOFError:
            kill(os.getpid())


def _described(error: Exception) -> tuple[str, str]:
    if isinstance(error, errors.ModelError | errors.EngineError):
        return type(error).__name__, str(error)
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        return "MemoryLimitError", f"Running the model needs more memory than is available: {error}"
    return "EngineError", one_line(error)


def _bound_memory() -> None:
    """Make allocations fail in this process before the machine runs out of memory."""
    if sys.platform != "win32":
        import resource

        bound = memory.available_bytes()
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
