"""Whole models: upconv compared with PyTorch, its compiler, ONNX Runtime and OpenVINO.

    pip install transformers monai onnxruntime openvino    # missing ones are reported
    python benchmarks/models.py                            # all models
    python benchmarks/models.py hifigan_v1 unet3d --threads 1 --json one.json
    python benchmarks/models.py --precision bfloat16
    python benchmarks/models.py --training --contenders torch,accelerate dcgan
    python benchmarks/models.py --from two.json one.json --tables docs/models.md --plot models.svg

Each contender runs in a separate process. Contenders take turns: only one process computes at a
time. A turn is a rest, a warm-up call, and calls for a tenth of a second; the best time counts. All
outputs are compared with PyTorch's. Start-up is the time from the PyTorch module to the first
result: imports, tracing, export, compilation, measurement. Memory is the process's peak above its
use when the model was built.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import audio_models
import image_models
import models_page
import numpy as np
import volume_models
from contenders import CONTENDERS, OURS, PEERS, Model, Ready, Setting, serve

KINDS = {
    "audio": audio_models.MODELS,
    "images": image_models.MODELS,
    "volumes": volume_models.MODELS,
}
MODELS: dict[str, Model] = {name: model for kind in KINDS.values() for name, model in kind.items()}
DEFAULT = ("torch", "inductor", "onnxruntime", "openvino", *OURS)

TOLERANCES = {"float32": 5e-4, "bfloat16": 0.1}
"""Largest accepted error, over the largest value, after about a hundred layers."""

_OF_GRADIENTS = 20
"""Factor for gradients: rounding decides which way a ReLU at zero goes."""

_HOPELESS, _FEWEST_ROUNDS = 3.0, 3
"""Early stopping: after these rounds, contenders slower than this multiple of the best stop."""

_LONGEST = 900.0  # seconds for any answer of a worker


@dataclass
class Worker:
    """A process that runs one contender of one model."""

    name: str
    process: Any
    pipe: Any
    ready: Ready | None = None
    samples: list[float] = field(default_factory=list)
    memory: float | None = None
    failure: str = ""

    def answer(self) -> Any:
        """Return the worker's message, or None if it failed; `failure` says why."""
        try:
            message = self.pipe.recv() if self.pipe.poll(_LONGEST) else "no answer in 15 minutes"
        except (EOFError, ConnectionError):
            self.process.join()
            message = f"its process ended with code {self.process.exitcode}"
        if isinstance(message, str):
            self.failure = message
            self.process.kill()
            return None
        return message

    def turn(self) -> None:
        """Let the worker time its call."""
        self.pipe.send(True)
        self.samples.append(min(self.answer() or [math.inf]))

    def close(self) -> None:
        """End the process, and record its peak memory."""
        if not self.failure:
            self.pipe.send(False)
            self.memory = self.answer()
        self.process.join(10)
        self.process.kill()
        self.pipe.close()


@dataclass(frozen=True)
class Race:
    """The contenders of a run, their setting, the time for each, and Inductor's folder."""

    contenders: Sequence[str]
    setting: Setting
    seconds: float
    cache: str

    def begin(self, name: str, model: Model, setting: Setting) -> Worker:
        """Start a worker, and wait for its first result."""
        context = multiprocessing.get_context(_start_method())
        here, there = context.Pipe()
        words = (there, name, model, setting, self.cache)
        process = context.Process(target=serve, args=words, daemon=False)
        process.start()
        there.close()
        worker = Worker(name, process, here)
        worker.ready = worker.answer()
        return worker

    def truth(self, model: Model) -> Ready:
        """Return PyTorch's result in float32."""
        setting = Setting(self.setting.threads, training=self.setting.training)
        worker = self.begin("torch", model, setting)
        worker.close()
        if worker.ready is None:
            raise RuntimeError(f"PyTorch does not run the model: {worker.failure}")
        return worker.ready

    def measure(self, name: str, model: Model) -> dict[str, Any]:
        """Return a model's row: times, errors, start-up times and memory by contender."""
        workers: list[Worker] = []
        try:
            truth = None if self._runs_truth() else self.truth(model)
            workers += [self.begin(each, model, self.setting) for each in self.contenders]
            truth = truth or workers[0].ready
            if truth is None:
                raise RuntimeError(f"PyTorch does not run the model: {workers[0].failure}")
            self._take_turns([each for each in workers if not each.failure])
        finally:
            for each in workers:
                each.close()
        return row(name, model, workers, truth, self.setting)

    def _runs_truth(self) -> bool:
        return self.contenders[0] == "torch" and self.setting.precision == "float32"

    def _take_turns(self, workers: list[Worker]) -> None:
        rounds, end = 0, time.perf_counter() + self.seconds * len(workers)
        while workers and (rounds < _FEWEST_ROUNDS or time.perf_counter() < end):
            for worker in workers:
                worker.turn()
            rounds += 1
            best = min(min(each.samples) for each in workers)
            limit = _HOPELESS * best if rounds >= _FEWEST_ROUNDS else math.inf
            workers = [each for each in workers if not each.failure and min(each.samples) < limit]


def _start_method() -> str:
    """Return "forkserver", whose preloaded server forks workers quickly, where systems can fork."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return "spawn"
    packages = ["transformers.models.vits.modeling_vits", "monai.networks.nets"]
    multiprocessing.set_forkserver_preload(["torch", "contenders", *packages])
    return "forkserver"


def row(
    name: str, model: Model, workers: list[Worker], truth: Ready, setting: Setting
) -> dict[str, Any]:
    """Return a model's measurements, by the columns of the JSON."""
    scale = float(np.abs(truth.values).max())
    errors = {
        each.name: float(np.abs(each.ready.values - truth.values).max()) / scale
        for each in workers
        if each.ready and each.ready.values.shape == truth.values.shape
    }
    times = {each.name: 1e3 * min(each.samples) for each in workers if each.samples}
    times = {each: time for each, time in times.items() if math.isfinite(time)}
    limit = TOLERANCES[setting.precision] * (_OF_GRADIENTS if setting.training else 1)
    right = {each: time for each, time in times.items() if errors.get(each, math.inf) <= limit}
    peer, ours = (min((n for n in right if n in group), key=right.get, default="")
                  for group in (PEERS, OURS))  # fmt: skip
    result = {
        "model": name,
        "label": model.label,
        "kind": next((kind for kind, models in KINDS.items() if name in models), ""),
        "input": list(model.shape),
        "output": list(truth.shape),
        "ms": times,
        "median_ms": {w.name: 1e3 * statistics.median(w.samples) for w in workers if w.samples},
        "error": errors,
        "wrong": sorted(set(times) - set(right)),
        "failed": {each.name: each.failure for each in workers if each.failure},
        "startup_s": {each.name: each.ready.seconds for each in workers if each.ready},
        "memory_mib": {each.name: each.memory for each in workers if each.memory is not None},
        "best_peer": peer,
        "best_of_upconv": ours,
        "ratio": right[peer] / right[ours] if peer and ours else None,
    }
    if model.rate:
        audio = truth.shape[-1] * truth.shape[0] / model.rate
        result["rate_hz"], result["audio_s"] = model.rate, audio
        result["times_real_time"] = {each: 1e3 * audio / time for each, time in times.items()}
    return result


def conditions(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the processor, the versions and the settings."""
    packages = ("upconv", "torch", "onnxruntime", "openvino", "transformers", "monai", "numpy")
    versions = {}
    for name in packages:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    processor = platform.processor() or platform.machine()
    if (path := Path("/proc/cpuinfo")).exists():
        lines = path.read_text(encoding="utf-8").splitlines()
        names = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
        processor = next(names, processor)
    return {
        "processor": processor,
        "processors": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
        "date": date.today().isoformat(),
        "threads": arguments.threads,
        "precision": arguments.precision,
        "training": arguments.training,
        "seconds": arguments.seconds,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0,
        "inductor_cache": "kept" if arguments.cache else "empty",
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean ratio, and the models on which upconv is slower or wrong."""
    ratios = [each["ratio"] for each in rows if each["ratio"]]
    return {
        "models": len(rows),
        "geometric_mean": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "behind": {each["model"]: each["ratio"] for each in rows if (each["ratio"] or 9) < 1},
        "wrong": {each["model"]: each["wrong"] for each in rows if each["wrong"]},
    }


def _say(line: str) -> None:
    print(line, flush=True)


def measured(
    models: dict[str, Model], race: Race, say: Callable[[str], None] = _say
) -> list[dict[str, Any]]:
    """Measure models, and print a line for each, or why it is left out."""
    say(f"{'model':14}" + "".join(f"{each[:11]:>12}" for each in race.contenders) + f"{'ratio':>8}")
    rows = []
    for name, model in models.items():
        if model.package and find_spec(model.package) is None:
            say(f"{name} is left out: {model.package} is not installed")
            continue
        try:
            line = race.measure(name, model)
        except RuntimeError as error:
            say(f"{name} is left out: {error}")
            continue
        rows.append(line)
        cells = (line["ms"].get(each) for each in race.contenders)
        text = "".join(f"{cell:12.2f}" if cell else f"{'-':>12}" for cell in cells)
        say(f"{name:14}{text}" + (f"{line['ratio']:8.2f}" if line["ratio"] else f"{'-':>8}"))
        for each, why in line["failed"].items():
            say(f"    {each} is left out: {why}")
        for each in line["wrong"]:
            say(f"    {each} is wrong: its error is {line['error'].get(each, math.nan):.1e}")
    return rows


def parsed(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", metavar="model", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--contenders", default=",".join(DEFAULT), help=", ".join(CONTENDERS))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--precision", choices=tuple(TOLERANCES), default="float32")
    parser.add_argument("--training", action="store_true", help="steps of SGD, not inference")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each contender")
    parser.add_argument("--cache", help="folder that keeps Inductor's code between runs")
    parser.add_argument("--json", type=Path, help="write all results to this file")
    parser.add_argument("--from", dest="files", nargs="+", type=Path, help="read, do not measure")
    parser.add_argument("--tables", type=Path, help="page whose tables are replaced")
    parser.add_argument("--plot", type=Path, help="draw the ratios as SVG")
    arguments = parser.parse_args(words)
    for name in arguments.models:
        if name not in MODELS:
            parser.error(f"no model {name!r}; there are {', '.join(MODELS)}")
    for name in arguments.contenders.split(","):
        if name not in CONTENDERS:
            parser.error(f"no contender {name!r}; there are {', '.join(CONTENDERS)}")
    return arguments


def main(words: Sequence[str] | None = None) -> int:
    arguments = parsed(words)
    if arguments.files:
        documents = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.files]
    else:
        names = arguments.models or MODELS
        chosen = {name: model for name, model in MODELS.items() if name in names}
        words = conditions(arguments)  # first, so that the load is that of others
        setting = Setting(arguments.threads, arguments.precision, arguments.training)
        print(f"{setting}; milliseconds, the best of all turns", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            race = Race(
                arguments.contenders.split(","),
                setting,
                arguments.seconds,
                arguments.cache or folder,
            )
            rows = measured(chosen, race)
        documents = [{"conditions": words, "rows": rows, "summary": summary(rows)}]
        print(json.dumps(documents[0]["summary"]))
    if arguments.json:
        arguments.json.write_text(json.dumps(documents[0], indent=1), encoding="utf-8")
    if arguments.tables:
        page = arguments.tables.read_text(encoding="utf-8")
        arguments.tables.write_text(models_page.written(page, documents), encoding="utf-8")
    if arguments.plot:
        arguments.plot.write_text(models_page.drawing(documents), encoding="utf-8")
    return bool(documents[0]["summary"]["wrong"])


if __name__ == "__main__":
    sys.exit(main())
