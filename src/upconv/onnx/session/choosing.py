"""Which layers upconv computes: measured inside the running model, and the whole model last.

ONNX Runtime's profiler tells what each layer takes: in upconv, while it computes all layers, and in
the model as it was given. The sets then timed as whole models are of layers that take at most so
many times as long in upconv. docs/onnx.md says why.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx_ir as ir

from ...arrays import Array
from ...errors import ArgumentError, EngineError, EngineRefusal, UpconvError, brief
from ...terminal import Progress
from ...timing import interleaved
from ..graphs import named
from ..models import stored
from ..verifying.differences import difference
from .layers import DOMAIN, layers, prepared, with_operators
from .native import Native
from .operators import Kernel
from .reports import LayerReport, Report

GAIN = 0.97  # a model stays as it was given unless it takes less than this part of the time
_LIMITS = ((0.0, 0.0), (1.0, 0.0), (1.0, 0.9), (1.0, 1.2), (1e9, 0.0), (1e9, 1e9))
"""At most how many times as long as in ONNX Runtime: a ConvTranspose, a Conv."""
_SECONDS, _PROFILED = 2.0, 4
_TICK = 1e-6  # of the profiler's clock, in seconds

_TOLERANCE = {"float64": 1e-8, "float32": 1e-3, "float16": 0.03, "bfloat16": 0.15}
"""Relative to the largest value: of float32 through some hundred layers, summed in other orders."""

Feeds = Mapping[str, Array]


class Assembly:
    """A model's layers, their kernels, and sessions in which some of them are upconv's."""

    def __init__(self, model: ir.Model, threads: int) -> None:
        self._model, self._threads = model, threads
        for node in model.graph:
            node.name = named(node)  # by which the profiler calls it
        self._prepared, self.folded = prepared(model)
        self.layers = {each.output: each for each in layers(self._prepared)}
        self.kernels = {output: Kernel(each, threads) for output, each in self.layers.items()}

    def plain(self, profile: str = "") -> Native:
        """The model as it was given; raises `EngineRefusal` where ONNX Runtime refuses it."""
        try:
            with stored(self._model) as file:
                return Native(file, self._threads, profile=profile)
        except EngineError as error:
            raise EngineRefusal(str(error)) from None

    def session(self, chosen: Collection[str], profile: str = "") -> Native:
        """The model with upconv's operators for the layers of these outputs."""
        kernels = {output: self.kernels[output] for output in chosen}
        numbers = {output: kernel.number for output, kernel in kernels.items()}
        with stored(with_operators(self._prepared, numbers)) as file:
            return Native(file, self._threads, [*kernels.values()], profile)

    def rows(self) -> dict[str, LayerReport]:
        """The layers as nothing is decided yet, by their outputs."""
        return {output: LayerReport(each.name, each.title) for output, each in self.layers.items()}

    def profiled(
        self, chosen: Collection[str] | None, names: Sequence[str], examples: Sequence[Feeds]
    ) -> dict[str, float]:
        """Seconds of each layer, by its output; `chosen` None: in the model as it was given."""
        with TemporaryDirectory(prefix="upconv-", ignore_cleanup_errors=True) as folder:
            prefix = str(Path(folder) / "profile")
            session = self.plain(prefix) if chosen is None else self.session(chosen, prefix)
            for feeds in examples:
                for _ in range(1 + _PROFILED):
                    session.run(names, feeds)
            del session  # its end writes the file
            [file] = Path(folder).iterdir()
            times = _kernel_times(json.loads(file.read_text()), len(examples))
        found = {}
        for output, layer in self.layers.items():
            # In blocks of channels a Conv is called after what it makes, its activation included.
            own = (layer.name, f"{DOMAIN}/{output}", f"{output}_nchwc", f"{layer.last}_nchwc")
            known = [times[name] for name in own if name in times]
            if known:
                found[output] = min(known) + times.get(layer.follower, 0.0)
        return found


def _kernel_times(events: list[Any], examples: int) -> dict[str, float]:
    """Seconds of each node: the best of its runs, added up over the examples."""
    ending, found = "_kernel_time", dict[str, list[float]]()
    for event in events:
        if str(event.get("name")).endswith(ending):
            found.setdefault(event["name"].removesuffix(ending), []).append(event["dur"] * 1e-6)
    return {
        name: sum(float(min(part)) for part in np.array_split(durations, examples) if len(part))
        for name, durations in found.items()
    }


Choice = tuple[Native, Report]


def measured(
    assembly: Assembly, names: Sequence[str], examples: Sequence[Feeds], say: Progress
) -> Choice:
    """The fastest way to run the model on the examples."""
    try:
        plain = assembly.plain()
    except EngineRefusal as refusal:
        try:  # float64 and bfloat16: it has no ConvTranspose of these
            return unmeasured(assembly, None, "ONNX Runtime does not take it")
        except EngineError:
            raise refusal from None
    rows = assembly.rows()
    if not rows:
        return plain, Report("onnxruntime", "it has no convolution with a constant weight")
    try:
        expected = _all(plain, names, examples)
    except EngineError as error:
        remedy = "It was run to be measured: pass feeds that it takes, or measure=False."
        raise EngineError(f"{error} {remedy}") from None
    say("measuring the layers in upconv", 1, 3)
    ours = _own_times(assembly, names, examples, rows)
    say("measuring the layers in ONNX Runtime", 2, 3)
    theirs = assembly.profiled(None, names, examples) if ours else {}
    for output, seconds in ours.items():
        before = 1e3 * theirs[output] if output in theirs else None
        rows[output] = replace(rows[output], before=before, after=1e3 * seconds)
    sets = _sets(assembly, ours, theirs)
    sessions = [assembly.session(chosen) for chosen in sets]
    calls = [partial(_all, session, names, examples) for session in (plain, *sessions)]
    what = f"timing the model with {len(sets)} sets of layers by upconv, round"
    rounds = interleaved(calls, _SECONDS, lambda number: say(f"{what} {number}", 3, 3))
    best, *others = (1e3 * min(samples) for samples in rounds.samples)
    for i in sorted(range(len(others)), key=lambda i: others[i]):
        if others[i] >= GAIN * best:
            break
        found = _all(sessions[i], names, examples)
        apart = [n for n, alike in enumerate(map(_alike, expected, found)) if not alike]
        if not apart:
            told = _decided(rows, sets[i])
            return sessions[i], Report("upconv", "", told, best, others[i])
        why = f"the model's output {names[apart[0] % len(names)]!r} is another with it"
        rows |= {output: replace(rows[output], why=why) for output in sets[i]}
    told, least = _decided(rows, frozenset()), min(others, default=best)
    return plain, Report("onnxruntime", "it is not faster with upconv", told, best, least)


def decided(assembly: Assembly, report: Report) -> Native:
    """The model as decided by an earlier session; `ArgumentError` for layers of another model."""
    names, saved = (
        [row.name for row in rows] for rows in (assembly.rows().values(), report.layers)
    )
    if names != saved:
        raise ArgumentError("decisions", f"for the layers {brief(saved)}", brief(names))
    chosen = [
        output for output, row in zip(assembly.layers, report.layers, strict=True) if row.upconv
    ]
    return assembly.session(chosen) if report.runs == "upconv" else assembly.plain()


def unmeasured(
    assembly: Assembly, names: Sequence[str] | None, why: str = "not measured"
) -> Choice:
    """The model with the layers of these names, every ConvTranspose if None, computed by upconv."""
    rows = assembly.rows()
    known = {row.name for row in rows.values()}
    several = isinstance(names, list | tuple | set | frozenset)
    if names is not None and not (several and all(name in [*known] for name in names)):
        listed = ", ".join(map(brief, sorted(known))) or "none"
        raise ArgumentError("layers", brief(names), f"a list of some of {listed}")
    chosen = {
        output
        for output, row in rows.items()
        if (row.kind.startswith("ConvTranspose") if names is None else row.name in names)
    }
    told = tuple(replace(row, upconv=output in chosen, why=why) for output, row in rows.items())
    if not chosen:
        return assembly.plain(), Report("onnxruntime", "no layer was chosen", told)
    return assembly.session(chosen), Report("upconv", "", told)


def _own_times(
    assembly: Assembly, names: Sequence[str], examples: Sequence[Feeds], rows: dict[str, Any]
) -> dict[str, float]:
    """Seconds that upconv takes for each layer it can compute; for the others, why it cannot."""
    kernels = dict(assembly.kernels)
    while kernels:
        try:
            found = assembly.profiled(kernels, names, examples)
            return {output: found[output] for output in kernels if output in found}
        except UpconvError:
            failed = {name: each.failed for name, each in kernels.items() if each.failed}
            if not failed:
                raise
            for output, error in failed.items():
                rows[output] = replace(rows[output], why=str(error))
                del kernels[output]
    return {}


def _sets(
    assembly: Assembly, ours: Mapping[str, float], theirs: Mapping[str, float]
) -> list[frozenset[str]]:
    """The sets of layers that are worth a try; the empty one is the model with folds alone."""
    ratio = {output: each / max(theirs.get(output, each), _TICK) for output, each in ours.items()}
    sets = [
        frozenset(
            output
            for output, each in ratio.items()
            if each < (transposed if assembly.layers[output].kind == "ConvTranspose" else ordinary)
        )
        for transposed, ordinary in _LIMITS
    ]
    return [each for each in dict.fromkeys(sets) if each or assembly.folded]


def _decided(rows: Mapping[str, LayerReport], chosen: frozenset[str]) -> tuple[LayerReport, ...]:
    def row(output: str, each: LayerReport) -> LayerReport:
        if output in chosen or each.why:
            return replace(each, upconv=output in chosen)
        faster = each.before is not None and each.after is not None and each.after < each.before
        return replace(each, why="the model is not faster so" if faster else "not faster")

    return tuple(row(output, each) for output, each in rows.items())


def _all(session: Native, names: Sequence[str], examples: Sequence[Feeds]) -> list[Array]:
    return [y for feeds in examples for y in session.run(names, feeds)]


def _alike(y: Array, z: Array) -> bool:
    """Whether two arrays are one but for rounding, which may turn a comparison here and there."""
    found = difference(ir.Value(name="the output"), y, z)
    if found.words or found.equal:
        return found.equal
    bound = _TOLERANCE.get(y.dtype.name)
    return float(np.mean(y != z)) <= 0.01 if bound is None else found.error <= bound
