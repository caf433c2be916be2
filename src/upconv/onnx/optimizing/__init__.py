"""`optimize`: make a model faster and verify the result, or return the model unchanged."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ..._version import __version__
from ...arrays import Array
from ...errors import ArgumentError, EngineError, MemoryLimitError, brief
from ...files import reported, require_free
from ...front_end_reports import Condition, FilePath, Report, conditions, restored
from ...terminal import Progress, shown
from ...threads import resolved
from ...tuning import processor_model
from ..graphs import named
from ..inputs import feeds as drawn
from ..models import Source, digest, from_model, save, stored, to_proto
from ..passes import PASSES
from ..passes.base import run
from ..runtimes import TIME_LIMIT, Runtime, borrowed, ready
from .candidates import CANDIDATES, Setup, measured
from .extract import Layer, layers, mark
from .results import ORIGINAL, LayerResult, Optimization
from .select import Selecting, choose

__all__ = ["Optimization", "optimize"]

Sizes = Mapping[str, Sequence[int]]

_FOLDS = ("fold_batch_norm", "fold_pad", "fold_slice")  # only remove nodes, so they run first
_MAX_SECONDS = 3600.0
_HINT = " upconv.onnx.Session may still be faster: it uses upconv's own kernels."


def optimize(
    model: Source,
    output: str | os.PathLike[str] | None = None,
    *,
    runtime: str | Runtime = "onnxruntime",
    input_shapes: Sizes | Sequence[Sizes] | None = None,
    feeds: Mapping[str, Any] | None = None,
    threads: int | None = None,
    seed: int = 0,
    seconds: float = 1.0,
    float64: bool = True,
    session: bool = False,
    decisions: FilePath | None = None,
    remeasure: bool = False,
    force: bool = False,
    time_limit: float = TIME_LIMIT,
    progress: Progress | None = None,
) -> Optimization:
    """Rewrite a model's transposed convolutions where that makes it faster, and save the result.

    model: a path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`; not changed.
    output: the path of the result, which is written in one step; if nothing makes the model faster,
        it is written unchanged. None writes nothing. The result's `proto` holds the model too.
    runtime: the runtime that measures and verifies: "onnxruntime", "openvino", "openvino:f32", ...
    input_shapes: shapes of inputs and sizes of symbols, by name, for dynamic dimensions; or several
        such mappings: a layer is then rewritten only if it is faster at all of them.
    feeds: arrays to run the model on instead of random ones.
    threads: threads of the runtime; None keeps its own setting, or `upconv.get_num_threads()`.
    seed: seed of the random inputs.
    seconds: time spent on each layer and shape; the whole model takes five times as long.
    float64: compare results with the model in float64, in a slow evaluator.
    session: also measure `upconv.onnx.Session` on the model.
    decisions: a file saved by an earlier result's `report.save`; its decisions are applied and
        verified without measuring. Decisions for another model, runtime, processor, version, number
        of threads or shape are refused.
    remeasure: if the file of `decisions` is missing or was measured under other conditions, measure
        and write it.
    force: overwrite `output`.
    time_limit: seconds that one run may take before its process is ended.
    progress: called with the name of a step, its number from 1, and the number of steps. Without
        it, a line on stderr shows the progress if stderr is a terminal.

    Raises `ModelError`, `FileError`, `ArgumentError`, `EngineMissing`, `EngineRefusal` if the
    runtime refuses the model itself, `EngineError` and `MemoryLimitError`.

    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 2, 3] x) => (float[1, 1, 6] y)'
    >>> text += "<float[2, 1, 2] w = {1, 2, 3, 4}> { y = ConvTranspose<strides = [2]>(x, w) }"
    >>> result = optimize(ir.from_onnx_text(text), seconds=0.01)
    >>> [candidate.passes for candidate in result.layers[0].candidates if candidate.seconds][:2]
    ['original', 'sub_pixel:unfolded']
    """
    began, chosen = time.perf_counter(), ready(runtime)
    stated = chosen.threads or None
    chosen = replace(chosen, threads=resolved(stated if threads is None else threads))
    _require_seconds(seconds)
    path = model if isinstance(model, str | os.PathLike) else None
    if output is not None:  # fail before minutes of measuring
        name, inputs = os.fspath(output), [Path(path)] if path else []
        with reported(name):
            require_free(name, Path(name).resolve(), force=force, inputs=inputs)
    original = from_model(model)
    sets = _shape_sets({} if input_shapes is None else input_shapes)
    arrays = tuple(drawn(original, one, feeds, seed=seed) for one in sets)
    with shown(progress) as say:
        setup = Setup(chosen, arrays, seconds, time_limit, float64, say)
        here = _conditions(chosen, original, arrays)
        saved = _saved(decisions, str(chosen), here, remeasure)
        selecting, folded = _selected(original, setup, saved)
        measured_session = _session(original, setup) if session else None
    final = selecting.model or original
    proto, changed = to_proto(final), selecting.model is not None
    hint = "" if changed or session or chosen.name == "upconv" else _HINT
    versions = {one: version(one) for one in ("onnx", "onnx-ir", "numpy")}
    result = Optimization(
        model=os.fspath(path) if path else original.graph.name or "",
        runtime=str(chosen),
        threads=chosen.threads or 1,
        opset=original.opset_imports.get("", 0),
        inputs=tuple({n: a.shape for n, a in feed.items()} for feed in setup.inputs),
        folded=folded if changed else (),
        layers=selecting.layers,
        whole=selecting.whole,
        verified=True if changed else None,
        checks=selecting.checks,
        verdict=selecting.verdict + hint,
        bytes_before=to_proto(original).ByteSize(),
        bytes_after=proto.ByteSize(),
        machine=processor_model(),
        versions={"upconv": __version__, **versions, chosen.name: chosen.version},
        session=measured_session,
        remarks=tuple(dict.fromkeys(selecting.remarks)),
        conditions=here,
        proto=proto,
        written=None if output is None else str(save(final, output, force=force)[0]),
        seconds=time.perf_counter() - began,
    )
    if decisions is not None and saved is None:
        result.report.save(decisions)
    return result


def _shape_sets(shapes: Sizes | Sequence[Sizes]) -> list[Sizes]:
    sets = [shapes] if isinstance(shapes, Mapping) else list(shapes)
    if not sets:
        raise ArgumentError("input_shapes", "an empty sequence", "one or more mappings, or None")
    return sets


def _require_seconds(seconds: float) -> None:
    if not (isinstance(seconds, int | float) and 0 < seconds <= _MAX_SECONDS):
        allowed = f"a number above 0, at most {_MAX_SECONDS:.0f}"
        raise ArgumentError("seconds", brief(seconds), allowed)


def _conditions(
    runtime: Runtime, model: ir.Model, inputs: Sequence[Mapping[str, Array]]
) -> dict[str, Condition]:
    """Return the conditions under which decisions hold."""
    shapes = "; ".join(str({n: [*a.shape] for n, a in one.items()}) for one in inputs)
    name = f"{runtime} {runtime.version}"
    return conditions(runtime.threads or 1, runtime=name, model=digest(model), shapes=shapes)


def _saved(
    path: FilePath | None, host: str, here: Mapping[str, Condition], remeasure: bool
) -> Report | None:
    """Load the saved decisions to apply, if any."""
    if path is None:
        if remeasure:
            raise ArgumentError("remeasure", "True", "decisions, the file to write")
        return None
    saved = restored(path, host, here, remeasure)
    for row in saved.rows if saved else ():
        if row.by not in (ORIGINAL, *CANDIDATES):
            raise ArgumentError("decisions", f"with {brief(row.by)}", ", ".join(CANDIDATES))
    return saved


def _selected(
    original: ir.Model, setup: Setup, saved: Report | None
) -> tuple[Selecting, tuple[str, ...]]:
    prepared = original.clone()
    steps = run(prepared, [PASSES[name] for name in _FOLDS], rule=setup.runtime.reading)
    folded = tuple(f"{step.by} at {step.node}" for step in steps if step.fired)
    mark(prepared)
    selecting = Selecting(original, prepared, setup)
    if saved is not None:
        selecting.repeat([LayerResult.of(row) for row in saved.rows], saved)
        return selecting, folded
    with borrowed(setup.limit) as worker:
        nodes = layers(prepared, setup.runtime, setup.inputs, worker)
    results = []
    for number, (node, layer) in enumerate(nodes, 1):
        setup.say(f"measuring {named(node)}", number, len(nodes))
        results.append(_result(named(node), layer, setup))
    selecting.select(results, folded)
    return selecting, folded


def _result(name: str, layer: Layer | str, setup: Setup) -> LayerResult:
    if isinstance(layer, str):
        return LayerResult(name, ORIGINAL, layer)
    try:
        tried = measured(layer, setup)
    except (EngineError, MemoryLimitError) as error:
        return LayerResult(name, ORIGINAL, f"{setup.runtime} cannot run it separately: {error}")
    (chosen, why), axes, groups = choose(tried), layer.conv.axes, layer.conv.groups
    channels, kind = layer.weight.array.shape[1] * groups, layer.weight.stored
    dtype = str(kind or layer.weight.array.dtype)
    return LayerResult(name, chosen, why, axes, layer.shapes, channels, groups, dtype, tried)


def _session(original: ir.Model, setup: Setup) -> Report:
    setup.say("measuring upconv.onnx.Session", 1, 1)
    try:
        with stored(original) as file, borrowed(setup.limit) as worker:
            inputs = list(setup.inputs)
            report: Report = worker.call("session", file, setup.runtime.threads, inputs)
            return report
    except (EngineError, MemoryLimitError) as error:
        return Report("ONNX Runtime", why=str(error))
