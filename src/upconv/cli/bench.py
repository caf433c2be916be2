"""`upconv bench`: real layers through every engine and installed peer, verified, then timed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .. import roofline
from ..arrays import dtype_of
from ..errors import EngineMissing, FileError, brief
from ..explanations import EngineStatus, engines
from ..problem import DType
from ..threads import get_num_threads, set_num_threads
from . import blas, layers, machine, peers, report, results, spelling, trials
from .cases import Case, Way
from .endings import Ending, say
from .layers import Layer
from .options import ElementType, Json, Threads
from .results import Measured
from .trials import Trial

if TYPE_CHECKING:
    from ..engines.jit.limits import Limits

_SECONDS = 0.3
_QUICK_SECONDS = 0.05
_QUICK_MULTIPLY_ADDS = 150_000_000
_REFERENCE = "reference"


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything a bench is told."""

    layers: tuple[Layer, ...]
    engines: tuple[str, ...]
    peers: tuple[str, ...]
    way: Way
    dtype: DType
    threads: int
    seconds: float

    @property
    def families(self) -> tuple[str, ...]:
        """Whom speeds are compared with."""
        return (*(name for name in self.engines if name == _REFERENCE), *self.peers)


_File = Annotated[
    Path | None, typer.Option("--layers", metavar="FILE", help="Layers to measure, in JSON.")
]
_Quick = Annotated[
    bool, typer.Option("--quick", help="Only the small layers, briefly: some seconds.")
]
_Only = Annotated[
    Any, typer.Option(parser=spelling.names, metavar="NAME,...", help="Only these layers.")
]
_Engines = Annotated[
    Any,
    typer.Option(
        "--engines",
        parser=spelling.names,
        metavar="NAME,...",
        help="Engines to measure (default: all that are here).",
    ),
]
_Peers = Annotated[
    Any,
    typer.Option(
        "--peers",
        parser=spelling.names,
        metavar="NAME,...",
        help="torch, onnxruntime, openvino, or none (default: those installed).",
    ),
]
_Direction = Annotated[
    Way, typer.Option(help="The result, or the gradient of the data or of the weight.")
]
_Seconds = Annotated[
    float | None,
    typer.Option(min=0.0, max=3600.0, metavar="S", help="Time for each contender on each layer."),
]


def bench(
    *,
    file: _File = None,
    quick: _Quick = False,
    only: _Only = None,
    engine_names: _Engines = None,
    peer_names: _Peers = None,
    direction: _Direction = Way.FORWARD,
    dtype: ElementType = DType.FLOAT32,
    threads: Threads = None,
    seconds: _Seconds = None,
    json: Json = False,
) -> None:
    """Measure real layers on this machine: every engine, and PyTorch, ONNX Runtime and OpenVINO.

    Every result is verified against the reference engine in float64 before it is timed; a wrong one
    is shown as WRONG and the exit code is 1. Times are the best and the median of interleaved
    rounds; efficiency is the time that this machine's ceilings allow over the best; "x torch" is
    how many times as fast as PyTorch; memory is the result and the scratch memory of a call.

    \b
    Examples:
      upconv bench --quick
      upconv bench --only hifigan_up1,unet_up1 --peers torch --threads 1
      upconv bench --direction weight --engines reference --peers none
      upconv bench --layers my_layers.json --json > result.json
    """
    _set_threads(threads)
    dtype_of(dtype.value)  # raises for bfloat16 where ml_dtypes is missing
    statuses = engines()
    setting = Setting(
        layers=_chosen_layers(file, only, quick),
        engines=_chosen_engines(statuses, engine_names),
        peers=_chosen_peers(peer_names),
        way=direction,
        dtype=dtype,
        threads=get_num_threads(),
        seconds=(_QUICK_SECONDS if quick else _SECONDS) if seconds is None else seconds,
    )
    limits = roofline.measured(setting.threads)
    measured = _measured(setting, limits)
    _say_reasons(statuses if engine_names is None else (), measured)
    if json:
        _print_document(setting, statuses, limits, measured)
    else:
        report.table(results.table(measured, setting.families))
    if any(result.fault for layer in measured for result in layer.results):
        raise typer.Exit(int(Ending.FINDINGS))


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        set_num_threads(threads)
    blas.agree(get_num_threads())


def _measured(setting: Setting, limits: Limits | None) -> list[Measured]:
    with report.progress(2 * len(setting.layers)) as bar:
        trial = Trial(
            setting.engines, setting.peers, setting.threads, setting.seconds, bar.step, limits
        )
        return [trial.of(Case(layer, setting.way, setting.dtype)) for layer in setting.layers]


# What to measure ----------------------------------------------------------------------------------


def _chosen_layers(file: Path | None, only: Sequence[str] | None, quick: bool) -> tuple[Layer, ...]:
    found = layers.built_in() if file is None else layers.read(file)
    what = layers.BUILT_IN if file is None else str(file)
    if only is not None:
        names = [layer.name for layer in found]
        spelling.require_named("--only", only, names)
        for name in only:
            if name not in names:
                raise _unknown("--only", name, names)
        found = [layer for layer in found if layer.name in only]
    if quick:
        small = _QUICK_MULTIPLY_ADDS
        found = [a for a in found if a.problem(DType.FLOAT32).multiply_adds <= small]
        if not found:
            raise FileError(
                f"{what}: no layer has at most {small:,} multiply-adds, as --quick asks."
            )
    return tuple(found)


def _chosen_engines(
    statuses: Sequence[EngineStatus], wanted: Sequence[str] | None
) -> tuple[str, ...]:
    if wanted is None:
        return tuple(status.name for status in statuses if status.available)
    known = {status.name: status for status in statuses}
    spelling.require_named("--engines", wanted, known)
    for name in wanted:
        if name not in known:
            raise _unknown("--engines", name, known)
        if not known[name].available:
            raise EngineMissing(known[name].reason)
    return tuple(wanted)


def _chosen_peers(wanted: Sequence[str] | None) -> tuple[str, ...]:
    if wanted is None:
        return peers.installed()
    spelling.require_named("--peers", wanted, (*peers.PEERS, "none"))
    for name in wanted:
        if name not in peers.PEERS and wanted != ("none",):
            raise _unknown("--peers", name, (*peers.PEERS, "none"))
    return () if wanted == ("none",) else tuple(wanted)


def _unknown(option: str, name: str, known: Iterable[str]) -> typer.BadParameter:
    return typer.BadParameter(f"{brief(name)} is not one of {', '.join(known)}", param_hint=option)


# What is said and printed -------------------------------------------------------------------------


def _say_reasons(statuses: Sequence[EngineStatus], measured: Sequence[Measured]) -> None:
    for status in statuses:
        if not status.available:
            say(f"{status.name}: {' '.join(status.reason.split())}")
    for line in trials.reasons(measured):
        say(line)


def _print_document(
    setting: Setting,
    statuses: Sequence[EngineStatus],
    limits: Limits | None,
    measured: Sequence[Measured],
) -> None:
    report.document(
        "bench",
        machine=machine.facts(),
        engines=[asdict(status) for status in statuses],
        peers=setting.peers,
        direction=setting.way.value,
        dtype=setting.dtype.value,
        threads=setting.threads,
        seconds=setting.seconds,
        ceilings=limits and asdict(limits),
        layers=[results.as_fields(layer) for layer in measured],
        summary=results.summary(measured, setting.families),
        faults=sum(result.fault for layer in measured for result in layer.results),
    )
