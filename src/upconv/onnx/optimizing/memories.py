"""What was measured of deconvolutions before, on this machine: the tuning store, put to this use.

A record is one form of one layer in one runtime. It is used only where every form that would be
measured now has one, so that ratios come from one contest.

What lives here: keys and records. What never does: the file (`upconv.tuning.store`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from ..._version import __version__
from ...tuning import processor_model, shared_tuner
from ...tuning.store import Record
from .layers import Alone
from .results import ORIGINAL, Ratio, Timing, Trial

_TABLE = "rewritings"
_FIELDS = {"median", "low", "high", "best", "rounds", "ratio", "ratio_low", "ratio_high", "error"}


@dataclass(frozen=True, slots=True)
class Memories:
    """Trials by layer and form; `fresh` forgets what was measured, and remembers anew."""

    runtime: str
    threads: int
    fresh: bool = False

    def recall(self, layer: Alone, forms: Iterable[str]) -> dict[str, Trial] | None:
        """The trials of all these forms, or None if one is missing."""
        if self.fresh:
            return None
        found = {form: self._trial(layer, form) for form in forms}
        known = {form: trial for form, trial in found.items() if trial is not None}
        return known if len(known) == len(found) else None

    def remember(self, layer: Alone, measured: Iterable[Trial]) -> None:
        """Keep the trials that were timed."""
        for trial in measured:
            if trial.timing is not None:
                record = _record(trial, trial.timing)
                shared_tuner().store.remember(_TABLE, self._key(layer, trial.rewriting), record)

    def _trial(self, layer: Alone, form: str) -> Trial | None:
        record = shared_tuner().store.find(_TABLE, self._key(layer, form))
        if record is None or not record.keys() >= _FIELDS:
            return None
        try:
            number = {name: float(record[name]) for name in _FIELDS}
        except ValueError:  # a text, which no process of ours wrote
            return None
        ratio = Ratio(number["ratio"], number["ratio_low"], number["ratio_high"])
        return Trial(
            form,
            timing=Timing(
                number["median"],
                number["low"],
                number["high"],
                number["best"],
                int(number["rounds"]),
            ),
            ratio=None if form == ORIGINAL else ratio,
            error=number["error"],
            remembered=True,
        )

    def _key(self, layer: Alone, form: str) -> str:
        words = (
            processor_model(),
            f"upconv {__version__}",
            f"{self.runtime} {installed(self.runtime)}",
            f"threads {self.threads}",
            layer.signature,
            form,
        )
        return " | ".join(words)


def installed(package: str) -> str:
    """A package's version, "none" where it is not installed.

    >>> installed("no such package")
    'none'
    """
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _record(trial: Trial, timing: Timing) -> Record:
    ratio = trial.ratio or Ratio(1.0, 1.0, 1.0)
    return {
        "median": timing.median,
        "low": timing.low,
        "high": timing.high,
        "best": timing.best,
        "rounds": float(timing.rounds),
        "ratio": ratio.median,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "error": trial.error or 0.0,
    }
