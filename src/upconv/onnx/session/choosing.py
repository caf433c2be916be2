"""Choose the parts that upconv computes, by timing whole models against ONNX Runtime.

`WAYS` lists the partitions to try. Of the fastest one, parts that slow the model down are left out.
docs/onnx-session.md explains why only whole models are timed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass

from ... import memory
from ...arrays import Array
from ...errors import ArgumentError, EngineError, EngineRefusal, brief
from ...front_end_reports import Report, Row
from ...measuring import Ratio, Way, choose
from ...terminal import Progress
from ..models import load, stored
from .computations import Part
from .native import Native
from .operators import Kernel
from .parts import Partition, parts_of, with_operators

HOST = "ONNX Runtime"
_TRANSPOSED = ("ConvTranspose",)
WAYS = {
    "parts": partial(parts_of, kinds=("Conv", *_TRANSPOSED)),
    "parts of transposed layers": partial(parts_of, kinds=_TRANSPOSED),
    "transposed layers": partial(parts_of, kinds=_TRANSPOSED, alone=True),
}
"""Partitions into parts for upconv. The first one is used if nothing is measured."""

_SECONDS, _PART_SECONDS = 2.0, 1.0  # for timing a way, and a way without one of its parts
_LEAD = 1.5  # a way that is this many times as fast as the original ends the search
_MAX_PARTS = 6  # with more, the model is not timed without each of them

Feeds = Mapping[str, Array]


class Assembly:
    """A model's partitions, its `outputs`, and sessions in which upconv computes some parts."""

    def __init__(self, model: ir.Model, threads: int) -> None:
        self._model, self._threads = model, threads
        self.outputs = [str(value.name) for value in model.graph.outputs]
        self._simplified = _simplified(model)
        RemoveUnusedNodesPass()(self._simplified)
        ShapeInferencePass(check_type=False, strict_mode=False)(self._simplified)
        self._ways: dict[str, Partition] = {}
        memory.release()

    def keep(self, way: str) -> None:
        """Free the networks and packed weights of all other ways."""
        self._ways = {name: kept for name, kept in self._ways.items() if name == way}
        memory.release()

    def partition(self, way: str) -> Partition:
        """Return the parts of a way."""
        if way not in self._ways:
            self._ways[way] = WAYS[way](self._simplified, threads=self._threads)
        return self._ways[way]

    def plain(self) -> Native:
        """Open the original model; raise `EngineRefusal` if ONNX Runtime refuses it."""
        try:
            with stored(self._model) as file:
                return Native(file, self._threads)
        except EngineError as error:
            raise EngineRefusal(str(error)) from None

    def session(self, parts: Sequence[Part]) -> Native:
        """Open the model with upconv's operators in place of these parts."""
        kernels = [Kernel(part) for part in parts]
        numbers = {kernel.number: part for kernel, part in zip(kernels, parts, strict=True)}
        try:
            with stored(with_operators(self._simplified, numbers)) as file:
                return Native(file, self._threads, kernels)
        finally:
            memory.release()  # copies of the model

    def rows(
        self, way: str, chosen: Collection[Part], otherwise: str, whys: Mapping[str, str]
    ) -> tuple[Row, ...]:
        """Return a row for each part of a way, then for each convolution outside the parts.

        whys: by part name, why upconv does not compute it; otherwise: the reason for other parts.
        """
        partition, details = self.partition(way), {"way": way}
        rows = []
        for part in partition.parts:
            computed = part in chosen
            why = f"It ends at {'; '.join(part.ends)}" if part.ends else ""
            by, why = ("upconv", why) if computed else (HOST, whys.get(part.name, otherwise))
            rows.append(Row(part.name, part.kind, by, part.layers, why=why, details=details))
        for name, (kind, why) in partition.left.items():
            rows.append(Row(name, kind, HOST, why=why, details=details))
        return tuple(rows)


def _simplified(model: ir.Model) -> ir.Model:
    """Have ONNX Runtime fold a model's constants and shapes and remove unused nodes."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 4  # log only fatal errors
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory(prefix="upconv-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "simplified.onnx"
        settings.optimized_model_filepath = str(path)
        try:
            with stored(model) as file:
                onnxruntime.InferenceSession(file, settings)
            return load(path).clone()
        except Exception:  # ONNX Runtime refuses the model, or cannot write it: keep the original
            return model.clone()


@dataclass(frozen=True, slots=True, eq=False)
class _Variant:
    """A session with some parts of a way; without parts it is the original model."""

    way: str
    parts: tuple[Part, ...]
    session: Native


class _Trial:
    """Variants of one model on examples of its inputs; `best` is the fastest one so far.

    At most two variants exist at a time, so that memory holds few copies of the weights. before:
    seconds of the original model. ratio: the best variant's speed relative to the original. whys:
    why ways were not chosen. failed: why parts could not compute the examples.
    """

    def __init__(self, assembly: Assembly, examples: Sequence[Feeds], progress: Progress) -> None:
        self._assembly, self._examples, self._progress = assembly, examples, progress
        self.best = _Variant(HOST, (), assembly.plain())
        self.before: float | None = None
        self.seconds: list[float] = []
        self.ratio: Ratio | None = None
        self.whys: dict[str, str] = {}
        self.failed: dict[str, str] = {}

    def outputs(self, session: Native) -> list[Array]:
        """Return the results of a session on all examples."""
        return [y for feeds in self._examples for y in session.run(self._assembly.outputs, feeds)]

    def try_ways(self) -> None:
        """Time each way against the fastest one so far, until one is far ahead."""
        known = set()
        for way in WAYS:
            if self.ratio is not None and self.ratio.low > _LEAD:
                break
            parts = self._assembly.partition(way).parts
            key = frozenset(part.nodes for part in parts)
            if parts and key not in known:
                known.add(key)
                self._try_way(way, parts)
            self._assembly.keep(self.best.way)

    def _try_way(self, way: str, parts: Sequence[Part]) -> None:
        failed: dict[str, str] = {}
        while kept := tuple(part for part in parts if part.name not in failed):
            session = self._assembly.session(kept)
            try:
                self.outputs(session)
            except EngineError:
                if not session.refused.keys() - failed.keys():
                    raise
                failed |= session.refused
            else:
                variant, what = _Variant(way, kept, session), f"timing the model with {way}"
                self.whys |= self._compare(variant, what, _SECONDS)
                break
        self.failed |= failed

    def leave_out_slow_parts(self) -> None:
        """Time the model without each part, and leave out parts that slow it down."""
        if 2 <= len(self.best.parts) <= _MAX_PARTS:
            for part in self.best.parts:
                kept = tuple(other for other in self.best.parts if other is not part)
                if kept:
                    variant = _Variant(self.best.way, kept, self._assembly.session(kept))
                    self._compare(variant, f"timing the model without {part.name}", _PART_SECONDS)

    def _compare(self, other: _Variant, what: str, budget: float) -> dict[str, str]:
        """Make another variant the best one if it is faster; otherwise, return the reason."""
        ways = [
            Way(name, partial(self.outputs, variant.session))
            for name, variant in ((self.best.way, self.best), (what, other))
        ]
        choice = choose(ways, seconds=budget, progress=self._progress, what=what)
        if self.before is None:
            self.before = choice.baseline.seconds
        seconds = choice[what].seconds
        self.seconds += [] if seconds is None else [seconds]
        ratio = choice.best.ratio
        if choice.name != what or ratio is None:
            return {other.way: choice[what].why}
        self.best, self.ratio = other, ratio if self.ratio is None else self.ratio.times(ratio)
        return {}


def measured(
    assembly: Assembly, examples: Sequence[Feeds], progress: Progress
) -> tuple[Native, Report]:
    """Find the fastest session for examples of the inputs; return it and the report."""
    try:
        trial = _Trial(assembly, examples, progress)
    except EngineRefusal as refusal:
        # ONNX Runtime lacks a kernel, such as ConvTranspose in float64; upconv may have it.
        try:
            return unmeasured(assembly, None)
        except EngineError:
            raise refusal from None
    try:
        trial.outputs(trial.best.session)
    except EngineError as error:
        remedy = "This run was for measuring: pass feeds that the model accepts, or measure=False."
        raise EngineError(f"{error} {remedy}") from None
    trial.try_ways()
    trial.leave_out_slow_parts()
    best = trial.best
    if best.parts:
        why = "The model is faster without it."
        rows = assembly.rows(best.way, best.parts, why, trial.failed)
        after = trial.before / trial.ratio.median if trial.before and trial.ratio else None
        return best.session, Report(HOST, rows, "", trial.before, after, trial.ratio)
    rows = assembly.rows(next(iter(WAYS)), (), next(iter(trial.whys.values()), ""), trial.failed)
    why = "; ".join(f"with {way}, {why}" for way, why in trial.whys.items())
    why = why or "upconv computes none of its convolutions"
    return best.session, Report(HOST, rows, why, trial.before, min(trial.seconds, default=None))


def decided(assembly: Assembly, report: Report) -> Native:
    """Apply an earlier session's decisions; raise `ArgumentError` for parts of another model."""
    ways = {str(row.details.get("way")) for row in report.rows} or {next(iter(WAYS))}
    known = [way for way in WAYS if way in ways]
    if len(ways) != 1 or not known:
        raise ArgumentError("decisions", f"for {brief(sorted(ways))}", f"one of {brief([*WAYS])}")
    parts = assembly.partition(known[0]).parts
    names, saved = (
        [row.name for row in rows] for rows in (assembly.rows(known[0], (), "", {}), report.rows)
    )
    if names != saved:
        raise ArgumentError("decisions", f"for the parts {brief(saved)}", brief(names))
    chosen = [part for part, row in zip(parts, report.rows, strict=False) if row.upconv]
    return assembly.session(chosen) if chosen else assembly.plain()


def unmeasured(assembly: Assembly, names: Sequence[str] | None) -> tuple[Native, Report]:
    """Let upconv compute the parts with these names, or all parts if None."""
    several = isinstance(names, list | tuple | set | frozenset)
    known: list[str] = []
    for way in WAYS:
        parts = assembly.partition(way).parts
        known += [part.name for part in parts if part.name not in known]
        if names is None or (several and all(name in [p.name for p in parts] for name in names)):
            chosen = [part for part in parts if names is None or part.name in names]
            rows = assembly.rows(way, chosen, "It was not chosen.", {})
            if chosen:
                return assembly.session(chosen), Report(HOST, rows)
            return assembly.plain(), Report(HOST, rows, "no part was chosen")
    listed = ", ".join(map(brief, known)) or "none"
    raise ArgumentError("layers", brief(names), f"a list of some of {listed}")
