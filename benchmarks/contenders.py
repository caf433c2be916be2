"""Ways to run a PyTorch model, each in a process of its own: frameworks, runtimes and upconv.

`CONTENDERS` is the table: a name and a function that makes a call of a task. `serve` is what a
worker process does: it builds the model, has its contender make a call, and times that call
whenever it is asked to. A worker reports errors as text; it never stops the benchmark.
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

    label: the name in tables. rate: samples per second, where the model makes audio. package: what
    has to be installed for it, beside PyTorch.
    """

    label: str
    build: Callable[[], Any]
    shape: tuple[int, ...]
    rate: int = 0
    package: str = ""


@dataclass(frozen=True)
class Setting:
    """How all contenders of a run compute."""

    threads: int
    precision: str = "float32"
    training: bool = False


@dataclass(frozen=True)
class Task:
    """A built module of float32, its input, and the setting."""

    module: Any
    x: Any
    setting: Setting

    def cast(self) -> Task:
        """Return the task with module and input in the precision of the setting."""
        import torch

        kind = getattr(torch, self.setting.precision)
        return Task(self.module.to(kind), self.x.to(kind), self.setting)


class Unsupported(Exception):
    """A contender cannot do the task; the text says why."""


@dataclass(frozen=True)
class Ready:
    """The first result of a contender.

    values: float32, flat. shape: of the result. seconds: from the module to the result, imports of
    the contender's libraries included.
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
    """Inductor with the parameters as constants, which it may lay out anew."""
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

    made = Session(model, threads=task.setting.threads, feeds={"x": array})
    return lambda: made.run(None, {"x": array})[0]


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
    """Return a training step: forward, backward, SGD; it gives the gradients."""
    import torch

    parameters = list(task.module.parameters())
    optimiser = torch.optim.SGD(parameters, lr=1e-4)

    def run() -> Any:
        optimiser.zero_grad()
        first(module(task.x)).square().mean().backward()
        optimiser.step()
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
    with contextlib.redirect_stdout(io.StringIO()):  # an export that fails prints its graph
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
    """Have a contender make its call, and run it once."""
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
    """Time calls for some 0.1 seconds, one at least, behind one that does not count."""
    _rest()
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times[1:]


def _rest(longest: float = 0.25) -> None:
    """Wait until no thread of this process computes: libraries' threads spin after their work."""
    end = time.perf_counter() + longest
    while time.perf_counter() < end:
        busy = time.process_time()
        time.sleep(0.004)
        if time.process_time() - busy < 0.0004:
            return


def _mebibytes(row: str) -> float:
    """Read a row of the process's status: "VmRSS", memory in use, or "VmHWM", its peak."""
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith(row))


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what exporters and compilers print and warn of; what they raise stays."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def serve(pipe: Connection, name: str, model: Model, setting: Setting, cache: str) -> None:
    """Run a contender: send `Ready` or an error, then samples or the peak memory, as asked."""
    # Inductor's compiled code: a folder of this run, so that start-up times are of a cold start.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    silence = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # libraries write there on their own
        os.dup2(silence, stream)
    # Libraries that start processes (OpenVINO's telemetry) get the system's way, not this one's.
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
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # begins the peak anew
        memory = _mebibytes("VmRSS")
    call, ready = prepared(name, task)
    pipe.send(ready)
    while pipe.recv():
        pipe.send(sample(call))
    pipe.send(_mebibytes("VmHWM") - memory if measures_memory else None)
