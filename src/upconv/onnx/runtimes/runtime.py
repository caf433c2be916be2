"""Runtimes by name, and models that are open in them, in worker processes (`worker`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import onnx_ir as ir

from ... import memory
from ...dialects.onnx import Rule
from ...errors import ArgumentError, EngineError, EngineMissing, EngineRefusal, brief
from ...installation import install_command
from ...terminal import one_line
from ...threads import resolved
from ...timing import Rounds
from ..inputs import fitting, inputs_of
from ..models import Source, from_model, nbytes, stored
from .worker import TIME_LIMIT, Worker, borrowed

PROVIDERS = {
    "CPU": ("CPUExecutionProvider", "onnxruntime"),
    "CUDA": ("CUDAExecutionProvider", "onnxruntime-gpu"),
    "TensorRT": ("TensorrtExecutionProvider", "onnxruntime-gpu"),
    "CoreML": ("CoreMLExecutionProvider", "onnxruntime"),
    "DirectML": ("DmlExecutionProvider", "onnxruntime-directml"),
    "OpenVINO": ("OpenVINOExecutionProvider", "onnxruntime-openvino"),
}
"""Short name of an ONNX Runtime provider -> its full name, and the package that contains it."""

_KINDS = {
    "onnxruntime": (
        *("onnxruntime", "onnx"),
        rf"(?P<provider>(?i:{'|'.join(PROVIDERS)}))?(:(?P<device>\d+))?",
        f"a provider ({', '.join(PROVIDERS)}) and a device number",
    ),
    "openvino": (
        *("openvino", ""),
        r"(?P<device>[A-Z][A-Z.\d]*)?:?(?P<precision>f32|f16|bf16)?",
        "a device (CPU, GPU, NPU) and a precision (f32, f16, bf16)",
    ),
    "reference": ("onnx.reference", "onnx", "(?P<precision>f64)?", "f64 or nothing"),
    "upconv": ("onnxruntime", "onnx", "", "nothing"),
}
"""Runtime -> the module that it needs; the extra that installs it, or "" for the package with the
runtime's name; the pattern of the name's suffix, whose groups are fields; the pattern in words."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A runtime with its device, precision and number of threads.

    name: one of `RUNTIMES`.
    provider: for ONNX Runtime: CPU, CUDA, TensorRT, CoreML, DirectML or OpenVINO.
    device: the name of an OpenVINO device ("GPU.1"), or the number of a provider's device.
    precision: "" is the runtime's default; OpenVINO has f32, f16 and bf16, the reference has f64.
    threads: None means `upconv.get_num_threads()` when a session is created.
    rule: how the reference reads ConvTranspose: "spec" or a runtime's name.

    >>> str(Runtime("openvino", precision="f32")), Runtime("onnxruntime").provider
    ('openvino:f32', 'CPU')
    """

    name: str
    provider: str = "CPU"
    device: str = ""
    precision: str = ""
    threads: int | None = None
    rule: str = "spec"

    def __str__(self) -> str:
        provider = "" if self.provider == "CPU" else self.provider
        return ":".join(filter(None, (self.name, provider, self.device, self.precision)))

    @classmethod
    def parse(cls, text: str, argument: str = "runtime") -> Runtime:
        """Parse the name of a runtime; raise `ArgumentError` if there is no such runtime."""
        name, _, words = str(text).partition(":")
        if name not in _KINDS:
            raise ArgumentError(argument, brief(text), f"one of {', '.join(_KINDS)}")
        *_, pattern, expected = _KINDS[name]
        match = re.fullmatch(pattern, words)
        if match is None:
            raise ArgumentError(argument, brief(text), f"after {name}: {expected}")
        fields: dict[str, Any] = {key: entry for key, entry in match.groupdict().items() if entry}
        if "provider" in fields:
            names = {provider.lower(): provider for provider in PROVIDERS}
            fields["provider"] = names[fields["provider"].lower()]
        return cls(name, **fields)

    def missing(self) -> str | None:
        """Return why the runtime cannot be used, in a sentence with a remedy; None if it can."""
        module, extra, *_ = _KINDS[self.name]
        command = install_command(extra) if extra else f"pip install {self.name}"
        try:
            loaded = import_module(module)
        except (ImportError, OSError) as error:  # OSError: one of its libraries cannot be loaded
            return f"The runtime {self.name} is not available ({one_line(error)}): {command}"
        if self.name == "onnxruntime":
            wanted, package = PROVIDERS[self.provider]
            here = loaded.get_available_providers()
            if wanted not in here:
                has = ", ".join(p.removesuffix("ExecutionProvider") for p in here)
                what = f"The ONNX Runtime installed here has no {self.provider} (it has {has})"
                return f"{what}: pip install {package}"
        return None

    def working_precision(self) -> str:
        """Return the type in which it computes float32 models, such as "bf16"; "" for float32."""
        return self.precision or (_hint(self.device) if self.name == "openvino" else "")

    @property
    def reading(self) -> Rule:
        """The rule by which the runtime reads ConvTranspose."""
        return Rule(self.name if self.name in {rule.value for rule in Rule} else self.rule)

    @property
    def version(self) -> str:
        """The version of the runtime's package."""
        return str(getattr(import_module(_KINDS[self.name][0].split(".")[0]), "__version__", ""))

    @contextmanager
    def session(
        self, model: Source, *, worker: Worker | None = None, limit: float = TIME_LIMIT
    ) -> Iterator[OpenModel]:
        """Yield `model`, ready to run within the block; the model is not changed.

        worker: the process to run in, for sessions that are timed against each other. By default,
            the session has its own process, where one run may take `limit` seconds.

        Raises `EngineRefusal` if the runtime refuses the model, `MemoryLimitError`, and what
        `upconv.onnx.load` raises.
        """
        model = model if isinstance(model, ir.Model) else from_model(model)
        runtime = replace(self, threads=resolved(self.threads))
        memory.require(2 * nbytes(model), "copying the model for a runtime")
        with ExitStack() as stack:
            process = worker or stack.enter_context(borrowed(limit))
            source = stack.enter_context(stored(model))
            outputs = [str(v.name) for v in model.graph.outputs]
            session = OpenModel(runtime, process, inputs_of(model), outputs)
            words = EngineRefusal, "refuses the model", "open"
            session.number = session.call(*words, source, runtime, outputs)
            try:
                yield session
            finally:
                if process.usable:
                    process.call("close", session.number)


@dataclass(slots=True)
class OpenModel:
    """A model that is open in a worker: its `inputs`, and the names of its `outputs`."""

    runtime: Runtime
    worker: Worker
    inputs: tuple[ir.Value, ...]
    outputs: list[str]
    number: int = -1

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs by name; raise `EngineError`, or `ArgumentError` for wrong feeds."""
        arrays = self.call(EngineError, "failed", "run", self.number, fitting(self.inputs, feeds))
        return dict(zip(self.outputs, arrays, strict=True))

    def bind(self, feeds: Mapping[str, Any]) -> None:
        """Set the inputs for `timed`, and run the model on them once."""
        self.call(EngineError, "failed", "bind", self.number, fitting(self.inputs, feeds))

    def call(self, kind: type[EngineError], what: str, method: str, *arguments: Any) -> Any:
        """Call a method in the process; convert an `EngineError` to `kind`."""
        try:
            return self.worker.call(method, *arguments)
        except EngineError as error:
            raised = type(error) if isinstance(error, EngineRefusal) else kind
            raise raised(f"{self.runtime} {what}: {error}") from None


def timed(sessions: Sequence[OpenModel], seconds: float) -> Rounds:
    """Time bound sessions of one worker, interleaved; slow models exceed `seconds`."""
    numbers = [session.number for session in sessions]
    rounds: Rounds = sessions[0].worker.call("timed", numbers, seconds, times=10 * len(sessions))
    return rounds


@cache
def _hint(device: str) -> str:
    with borrowed() as worker:
        return str(worker.call("openvino_precision", device or "CPU"))


RUNTIMES = {name: Runtime(name) for name in _KINDS}


def ready(runtime: str | Runtime, argument: str = "runtime") -> Runtime:
    """Return the installed runtime with this name; errors name the `argument`.

    Raises `ArgumentError` for an unknown name, and `EngineMissing` if it is not installed.
    """
    parsed = Runtime.parse(runtime, argument) if isinstance(runtime, str) else runtime
    if not isinstance(parsed, Runtime):
        raise ArgumentError(argument, brief(runtime), "a name, or an upconv.onnx Runtime")
    if missing := parsed.missing():
        raise EngineMissing(missing)
    return parsed
