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
from ...measuring import Way, choose
from ...reports import Report, Row
from ...terminal import Progress
from ..graphs import named
from ..models import stored
from .layers import DOMAIN, layers, prepared, with_operators
from .native import Native
from .operators import Kernel

HOST = "ONNX Runtime"
_LIMITS = ((0.0, 0.0), (1.0, 0.0), (1.0, 0.9), (1.0, 1.2), (1e9, 0.0), (1e9, 1e9))
"""At most how many times as long as in ONNX Runtime: a ConvTranspose, a Conv."""
_SECONDS, _PROFILED = 2.0, 4
_TICK = 1e-6  # of the profiler's clock, in seconds

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

    def rows(self) -> dict[str, Row]:
        """The layers as nothing is decided yet, by their outputs."""
        return {output: Row(each.name, each.title, HOST) for output, each in self.layers.items()}

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
        return plain, Report(HOST, why="it has no convolution with a constant weight")
    try:
        _all(plain, names, examples)
    except EngineError as error:
        remedy = "It was run to be measured: pass feeds that it takes, or measure=False."
        raise EngineError(f"{error} {remedy}") from None
    say("measuring the layers in upconv", 1, 2)
    ours = _own_times(assembly, names, examples, rows)
    say("measuring the layers in ONNX Runtime", 2, 2)
    theirs = assembly.profiled(None, names, examples) if ours else {}
    for output, seconds in ours.items():
        rows[output] = replace(rows[output], before=theirs.get(output), after=seconds)
    sets = _sets(assembly, ours, theirs)
    sessions = [plain, *(assembly.session(chosen) for chosen in sets)]
    ways = [
        Way(f"set {number}" if number else HOST, partial(_all, session, names, examples))
        for number, session in enumerate(sessions)
    ]
    what = f"timing the model with {len(sets)} sets of layers by upconv, round"
    choice = choose(ways, seconds=_SECONDS, progress=say, what=what)
    before, best = choice.baseline.seconds, choice.best
    for chosen, one in zip(sets, choice.outcomes[1:], strict=True):
        if one.seconds is None:  # its results are others, or it failed
            rows |= {output: replace(rows[output], why=one.why) for output in chosen}
    if choice.name != HOST:
        number = [way.name for way in ways].index(choice.name)
        decided_rows = _decided(rows, sets[number - 1])
        report = Report(HOST, decided_rows, "", before, best.seconds, best.ratio)
        return sessions[number], report
    after = min((one.seconds for one in choice.outcomes[1:] if one.seconds), default=None)
    why = "it is not faster with upconv"
    return plain, Report(HOST, _decided(rows, frozenset()), why, before, after)


def decided(assembly: Assembly, report: Report) -> Native:
    """The model as decided by an earlier session; `ArgumentError` for layers of another model."""
    names, saved = ([row.name for row in rows] for rows in (assembly.rows().values(), report.rows))
    if names != saved:
        raise ArgumentError("decisions", f"for the layers {brief(saved)}", brief(names))
    chosen = [
        output for output, row in zip(assembly.layers, report.rows, strict=True) if row.upconv
    ]
    return assembly.plain() if report.why else assembly.session(chosen)


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
    decided_rows = tuple(
        replace(row, by="upconv" if output in chosen else HOST, why=why)
        for output, row in rows.items()
    )
    if not chosen:
        return assembly.plain(), Report(HOST, decided_rows, "no layer was chosen")
    return assembly.session(chosen), Report(HOST, decided_rows)


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


def _decided(rows: Mapping[str, Row], chosen: frozenset[str]) -> tuple[Row, ...]:
    def row(output: str, each: Row) -> Row:
        if output in chosen:
            return replace(each, by="upconv", why="")
        faster = each.before is not None and each.after is not None and each.after < each.before
        why = "the model is not faster so" if faster else "not faster"
        return replace(each, why=each.why or why)

    return tuple(row(output, each) for output, each in rows.items())


def _all(session: Native, names: Sequence[str], examples: Sequence[Feeds]) -> list[Array]:
    return [y for feeds in examples for y in session.run(names, feeds)]
