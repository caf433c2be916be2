"""Which parts upconv computes: whole models with different parts, timed against ONNX Runtime.

`WAYS` are the partitions that are tried. Of the fastest one, parts are left out that make the model
slower. docs/onnx.md says why only whole models are timed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass, ShapeInferencePass

from ...arrays import Array
from ...errors import ArgumentError, EngineError, EngineRefusal, brief
from ...measuring import Choice, Way, choose
from ...reports import Report, Row
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
"""What upconv is handed over. The first way is taken where nothing is measured."""

_SECONDS = 6.0
_MOST_PARTS = 6  # that are tried one by one

Feeds = Mapping[str, Array]
NO_REASONS: Mapping[str, str] = MappingProxyType({})


class Assembly:
    """A model's partitions, and sessions in which upconv computes some parts."""

    def __init__(self, model: ir.Model, threads: int) -> None:
        self._model, self._threads = model, threads
        self._simplified = _simplified(model)
        RemoveUnusedNodesPass()(self._simplified)
        ShapeInferencePass(check_type=False, strict_mode=False)(self._simplified)
        self._ways: dict[str, Partition] = {}

    def partition(self, way: str) -> Partition:
        """The parts that a way hands over."""
        if way not in self._ways:
            self._ways[way] = WAYS[way](self._simplified, threads=self._threads)
        return self._ways[way]

    def plain(self) -> Native:
        """The model as it was given; raises `EngineRefusal` where ONNX Runtime refuses it."""
        try:
            with stored(self._model) as file:
                return Native(file, self._threads)
        except EngineError as error:
            raise EngineRefusal(str(error)) from None

    def session(self, parts: Sequence[Part]) -> Native:
        """The model with upconv's operators for these parts."""
        kernels = [Kernel(part) for part in parts]
        numbers = {kernel.number: part for kernel, part in zip(kernels, parts, strict=True)}
        with stored(with_operators(self._simplified, numbers)) as file:
            return Native(file, self._threads, kernels)

    def rows(
        self,
        way: str,
        chosen: Collection[Part],
        otherwise: str = "",
        whys: Mapping[str, str] = NO_REASONS,
    ) -> tuple[Row, ...]:
        """A row for each part of a way, then for each convolution in none.

        whys: why upconv does not compute some parts, by name; otherwise: the reason of the others.
        """
        partition, details = self.partition(way), {"way": way}
        rows = []
        for part in partition.parts:
            ours = part in chosen
            why = f"It ends at {'; '.join(part.ends)}" if part.ends else ""
            by, why = ("upconv", why) if ours else (HOST, whys.get(part.name, otherwise))
            rows.append(Row(part.name, part.kind, by, part.layers, why=why, details=details))
        for name, (kind, why) in partition.left.items():
            rows.append(Row(name, kind, HOST, why=why, details=details))
        return tuple(rows)


def _simplified(model: ir.Model) -> ir.Model:
    """With constants folded by ONNX Runtime, shapes too, and what does nothing taken out."""
    import onnxruntime

    from ..runtimes.onnxruntime import options

    settings = options(1)
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory(prefix="upconv-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "simplified.onnx"
        settings.optimized_model_filepath = str(path)
        try:
            with stored(model) as file:
                onnxruntime.InferenceSession(file, settings)
            return load(path).clone()
        except Exception:  # it refuses the model, or cannot write it: as it was given, then
            return model.clone()


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A session with some parts of a way; `failed`: why other parts could not compute examples."""

    way: str
    parts: tuple[Part, ...]
    session: Native
    failed: Mapping[str, str] = field(default_factory=dict)


class _Trial:
    """Sessions of one model on examples of its inputs."""

    def __init__(
        self,
        assembly: Assembly,
        names: Sequence[str],
        examples: Sequence[Feeds],
        progress: Progress,
    ) -> None:
        self._assembly, self._names, self._examples = assembly, names, examples
        self._progress = progress

    def outputs(self, session: Native) -> list[Array]:
        """What a session computes of all examples."""
        return [y for feeds in self._examples for y in session.run(self._names, feeds)]

    def choice(self, sessions: Mapping[str, Native], what: str) -> Choice:
        """The fastest session, of which the first is the baseline."""
        ways = [Way(name, partial(self.outputs, each)) for name, each in sessions.items()]
        return choose(ways, seconds=_SECONDS, progress=self._progress, what=what)

    def candidates(self) -> list[_Candidate]:
        """The ways that differ, each with the parts that can compute the examples."""
        candidates: dict[frozenset[tuple[str, ...]], _Candidate] = {}
        for way in WAYS:
            parts = self._assembly.partition(way).parts
            key = frozenset(part.nodes for part in parts)
            if parts and key not in candidates:
                candidates[key] = self._candidate(way, parts)
        return [*candidates.values()]

    def _candidate(self, way: str, parts: Sequence[Part]) -> _Candidate:
        failed: dict[str, str] = {}
        while True:
            kept = tuple(part for part in parts if part.name not in failed)
            session = self._assembly.session(kept)
            try:
                self.outputs(session)
            except EngineError:
                if not session.refused.keys() - failed.keys():
                    raise
                failed |= session.refused
            else:
                return _Candidate(way, kept, session, failed)

    def without_slow_part(self, best: _Candidate) -> tuple[_Candidate, float]:
        """The candidate without the part that slows it down most, and how many times as fast."""
        if not 2 <= len(best.parts) <= _MOST_PARTS:
            return best, 1.0
        others = {}
        for part in best.parts:
            kept = tuple(each for each in best.parts if each is not part)
            others[f"without {part.name}"] = replace(
                best, parts=kept, session=self._assembly.session(kept)
            )
        sessions = {"all parts": best.session}
        sessions |= {name: other.session for name, other in others.items()}
        choice = self.choice(sessions, "timing the model without each part")
        if choice.name not in others or choice.best.ratio is None:
            return best, 1.0
        return others[choice.name], choice.best.ratio.median


def measured(
    assembly: Assembly, names: Sequence[str], examples: Sequence[Feeds], progress: Progress
) -> tuple[Native, Report]:
    """The model as it is fastest on examples of its inputs, and the report of the choice."""
    try:
        plain = assembly.plain()
    except EngineRefusal as refusal:
        # It has no kernel for some layer, as ConvTranspose in float64. Perhaps without that one.
        try:
            return unmeasured(assembly, None)
        except EngineError:
            raise refusal from None
    trial = _Trial(assembly, names, examples, progress)
    try:
        trial.outputs(plain)
    except EngineError as error:
        remedy = "It was run to be measured: pass feeds that it takes, or measure=False."
        raise EngineError(f"{error} {remedy}") from None
    candidates = trial.candidates()
    first, failed = (
        next(iter(WAYS)),
        {name: why for c in candidates for name, why in c.failed.items()},
    )
    if not any(candidate.parts for candidate in candidates):
        why = "upconv computes none of its convolutions"
        return plain, Report(HOST, assembly.rows(first, (), "", failed), why)
    sessions = {HOST: plain} | {c.way: c.session for c in candidates if c.parts}
    choice = trial.choice(sessions, "timing the model")
    before = choice.baseline.seconds
    if choice.name == HOST:
        whys = {way: choice[way].why for way in sessions if way != HOST}
        rows = assembly.rows(first, (), next(iter(whys.values())), failed)
        seconds = [each.seconds for each in choice.outcomes[1:] if each.seconds is not None]
        why = "; ".join(f"with {way}, {why}" for way, why in whys.items())
        return plain, Report(HOST, rows, why, before, min(seconds, default=None))
    [best] = [candidate for candidate in candidates if candidate.way == choice.name]
    final, gain = trial.without_slow_part(best)
    after = None if choice.best.seconds is None else choice.best.seconds / gain
    rows = assembly.rows(final.way, final.parts, "The model is faster without it.", failed)
    return final.session, Report(HOST, rows, "", before, after, choice.best.ratio)


def decided(assembly: Assembly, report: Report) -> Native:
    """The model as decided by an earlier session; `ArgumentError` for parts of another model."""
    ways = {str(row.details.get("way")) for row in report.rows} or {next(iter(WAYS))}
    known = [way for way in WAYS if way in ways]
    if len(ways) != 1 or not known:
        raise ArgumentError("decisions", f"for {brief(sorted(ways))}", f"one of {brief([*WAYS])}")
    parts = assembly.partition(known[0]).parts
    names, saved = (
        [row.name for row in rows] for rows in (assembly.rows(known[0], ()), report.rows)
    )
    if names != saved:
        raise ArgumentError("decisions", f"for the parts {brief(saved)}", brief(names))
    chosen = [part for part, row in zip(parts, report.rows, strict=False) if row.upconv]
    return assembly.session(chosen) if chosen else assembly.plain()


def unmeasured(assembly: Assembly, names: Sequence[str] | None) -> tuple[Native, Report]:
    """The model with the parts of these names, all parts if None, computed by upconv."""
    several = isinstance(names, list | tuple | set | frozenset)
    known: list[str] = []
    for way in WAYS:
        parts = assembly.partition(way).parts
        known += [part.name for part in parts if part.name not in known]
        if names is None or (several and all(name in [p.name for p in parts] for name in names)):
            chosen = [part for part in parts if names is None or part.name in names]
            rows = assembly.rows(way, chosen, "It was not chosen.")
            if chosen:
                return assembly.session(chosen), Report(HOST, rows)
            return assembly.plain(), Report(HOST, rows, "no part was chosen")
    listed = ", ".join(map(brief, known)) or "none"
    raise ArgumentError("layers", brief(names), f"a list of some of {listed}")
