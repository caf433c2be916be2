"""Frameworks, runtimes and upconv running a PyTorch model, each in a separate process.

`CONTENDERS` maps a name to a function that makes a call from a task. A worker process runs `serve`:
it builds the model, lets its contender make a call, and times that call on request. A worker
reports errors as strings; it never stops the benchmark.
"""

from __future__ import annotations

import contextlib
import io
import logging
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

Call = Callable[[], Any]


@dataclass(frozen=True)
class Model:
    """A model and the shape of its input.

    label: the name in tables. rate: samples per second if the model makes audio. package: a package
    that it needs besides PyTorch.
    """

    label: str
    build: Callable[[], Any]
    shape: tuple[int, ...]
    rate: int = 0
    package: str = ""


@dataclass(frozen=True)
class Setting:
    """The settings of all contenders in a run."""

    threads: int
    precision: str = "float32"
    training: bool = False


@dataclass(frozen=True)
class Task:
    """A float32 module, its input, and the setting."""

    module: Any
    x: Any
    setting: Setting

    def cast(self) -> Task:
        """Return the task with its module and input in the setting's precision."""
        import torch

        kind = getattr(torch, self.setting.precision)
        return Task(self.module.to(kind), self.x.to(kind), self.setting)


class Unsupported(Exception):
    """A contender cannot do the task; the message says why."""


@dataclass(frozen=True)
class Ready:
    """A contender's first result.

    values: flat float32. shape: the result's shape. seconds: time from the module to the result,
    including imports of the contender's libraries.
    """

    values: np.ndarray
    shape: tuple[int, ...]
    seconds: float


# Contenders ---------------------------------------------------------------------------------------


def eager(task: Task) -> Call:
    task = task.cast()
    return _called(task, task.module)


def channels_last(task: Task) -> Call:
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if task.x.ndim not in formats:
        raise Unsupported("PyTorch has no channels-last format of this rank")
    task, layout = task.cast(), formats[task.x.ndim]
    x = task.x.contiguous(memory_format=layout)
    return _called(Task(task.module, x, task.setting), task.module.to(memory_format=layout))


def inductor(task: Task) -> Call:
    import torch

    task = task.cast()
    return _called(task, torch.compile(task.module))


def freezing(task: Task) -> Call:
    """Run Inductor with constant parameters, which it may reorder."""
    from torch._inductor import config

    config.freezing = True
    return inductor(task)


def onnxruntime(task: Task) -> Call:
    model, array = _exported(task)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task.setting.threads
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model, options, providers=providers)
    return lambda: session.run(None, {"x": array})[0]


def openvino(task: Task) -> Call:
    _infers(task)
    import openvino

    half = task.setting.precision == "bfloat16"
    options = {
        "INFERENCE_NUM_THREADS": task.setting.threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "bf16" if half else "f32",
    }
    converted = openvino.convert_model(task.module, example_input=task.x)
    request = openvino.Core().compile_model(converted, "CPU", options).create_infer_request()
    array = task.x.numpy()

    def run() -> Any:
        request.infer([array])
        return request.get_output_tensor(0).data

    return run


def accelerate(task: Task) -> Call:
    import upconv.torch

    task, words = task.cast(), {"training": task.setting.training}
    return _called(task, upconv.torch.accelerate(task.module, (task.x,), **words))


def backend(task: Task) -> Call:
    import torch

    import upconv.torch  # noqa: F401  names the backend

    task = task.cast()
    return _called(task, torch.compile(task.module, backend="upconv"))


def session(task: Task) -> Call:
    model, array = _exported(task)
    from upconv.onnx import Session

    onnx_session = Session(model, threads=task.setting.threads, feeds={"x": array})
    return lambda: onnx_session.run(None, {"x": array})[0]


PEERS: dict[str, Callable[[Task], Call]] = {
    "torch": eager,
    "inductor": inductor,
    "onnxruntime": onnxruntime,
    "openvino": openvino,
    "channels-last": channels_last,
    "freezing": freezing,
}
OURS: dict[str, Callable[[Task], Call]] = {
    "accelerate": accelerate,
    "backend": backend,
    "session": session,
}
CONTENDERS = PEERS | OURS


def _called(task: Task, module: Any) -> Call:
    return _step(task, module) if task.setting.training else lambda: module(task.x)


def _step(task: Task, module: Any) -> Call:
    """Return a training step (forward, backward, SGD), which returns the gradients."""
    import torch

    parameters = list(task.module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-4)

    def run() -> Any:
        optimizer.zero_grad()
        first(module(task.x)).square().mean().backward()
        optimizer.step()
        return [each.grad for each in parameters if each.grad is not None]

    return run


def _infers(task: Task) -> None:
    if task.setting.training:
        raise Unsupported("it does not train")


def _exported(task: Task) -> tuple[bytes, np.ndarray]:
    """Return the model as an ONNX file, and the input as an array."""
    import torch

    _infers(task)
    if task.setting.precision != "float32":
        raise Unsupported(f"ONNX Runtime has no kernels of {task.setting.precision}")
    buffer = io.BytesIO()
    with contextlib.redirect_stdout(io.StringIO()):  # a failing export prints its graph
        torch.onnx.export(
            task.module, (task.x,), buffer, opset_version=17, input_names=["x"],
            output_names=["y"], dynamo=False,
        )  # fmt: skip
    return buffer.getvalue(), task.x.numpy()


def first(result: Any) -> Any:
    """Return the first tensor of a model's result."""
    while not hasattr(result, "shape"):
        result = next(iter(result.values() if isinstance(result, dict) else result))
    return result


# Workers ------------------------------------------------------------------------------------------


def built(model: Model, setting: Setting) -> Task:
    """Build a model with random weights, and draw its input: the same in every process."""
    import torch
    from random_weights import enliven

    torch.manual_seed(0)
    with torch.no_grad():
        module = model.build().eval()
        x = torch.randn(model.shape)
        enliven(module, [x])
    return Task(module.train(setting.training), x, setting)


def prepared(name: str, task: Task) -> tuple[Call, Ready]:
    """Let a contender make its call, and run it once."""
    start = time.perf_counter()
    call = CONTENDERS[name](task)
    result = call()
    seconds = time.perf_counter() - start
    shape = tuple(first(result).shape)
    parts = result if task.setting.training else [first(result)]
    values = np.concatenate([_floats(part) for part in parts])
    return call, Ready(values, shape, seconds)


def _floats(values: Any) -> np.ndarray:
    if not isinstance(values, np.ndarray):
        values = values.detach().float().numpy()
    return np.array(values, np.float32).ravel()


def sample(call: Call, seconds: float = 0.1) -> list[float]:
    """Time at least one call, for about `seconds`, after a warm-up call."""
    _rest()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[1:]


def _rest(longest: float = 0.25) -> None:
    """Wait until no thread of this process is busy: library threads spin after their work."""
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        busy = time.process_time()
        time.sleep(0.004)
        if time.process_time() - busy < 0.0004:
            return


def _mebibytes(row: str) -> float:
    """Return "VmRSS", the memory in use, or "VmHWM", its peak, from the process's status."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(row))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the output and warnings of exporters and compilers, but not their errors."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def serve(pipe: Connection, name: str, model: Model, setting: Setting, cache: str) -> None:
    """Run a contender: send `Ready` or an error, then samples or peak memory on request."""
    # A new folder for Inductor's code, so that start-up times include compilation.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # libraries write to these directly
        os.dup2(silence, stream)
    # OpenVINO's telemetry starts processes, which must use the system's default method.
    multiprocessing.set_start_method(None, force=True)
    import torch

    torch.set_num_threads(setting.threads)
    with _quiet():
        try:
            task = built(model, setting)
            with torch.inference_mode(not setting.training):
                _take_turns(pipe, name, task)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            kind = "" if isinstance(error, Unsupported) else f"{type(error).__name__}: "
            pipe.send(f"{kind}{lines[0]}"[:200])


def _take_turns(pipe: Connection, name: str, task: Task) -> None:
    measures_memory = Path("/proc/self/clear_refs").exists()
    if measures_memory:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets the peak
        memory = _mebibytes("VmRSS")
    call, ready = prepared(name, task)
    pipe.send(ready)
    while pipe.recv():
        pipe.send(sample(call))
    pipe.send(_mebibytes("VmHWM") - memory if measures_memory else None)
