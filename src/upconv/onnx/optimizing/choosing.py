"""Which form a layer gets: a pure function of its trials.

A form is faster if the whole interval of its ratio to the original lies above `LEAST_GAIN`; of
those the one whose interval begins highest wins. A gain that the noise could explain is no gain.

What lives here: the decision and its words. What never does: measuring.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .results import ORIGINAL, Trial

LEAST_GAIN = 1.03
"""A rewritten layer costs bytes and names: less than three per cent is not worth them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The form chosen, and why, in one sentence."""

    form: str
    why: str


def choose(trials: Sequence[Trial]) -> Choice:
    """The fastest form beyond doubt, else the original.

    >>> from .results import Ratio, Timing
    >>> second = Timing(1.0, 1.0, 1.0, 1.0, 9)
    >>> faster = Trial("sub_pixel", timing=second, ratio=Ratio(1.5, 1.4, 1.6))
    >>> choose([Trial(ORIGINAL, timing=second), faster])
    Choice(form='sub_pixel', why='1.50 times faster (1.40 to 1.60) than the original')
    """
    timed = [trial for trial in trials if trial.ratio is not None]
    if not timed:
        return Choice(ORIGINAL, "no rewriting of it could be measured")
    best = max(timed, key=lambda trial: trial.ratio.low if trial.ratio else 0.0)
    ratio = best.ratio
    if ratio is None or ratio.low <= LEAST_GAIN:
        fastest = max(timed, key=lambda trial: trial.ratio.median if trial.ratio else 0.0)
        return Choice(ORIGINAL, f"no rewriting is faster beyond the noise; {_said(fastest)}")
    return Choice(
        best.rewriting,
        f"{ratio.median:.2f} times faster ({ratio.low:.2f} to {ratio.high:.2f}) than the original",
    )


def _said(trial: Trial) -> str:
    ratio = trial.ratio
    if ratio is None:
        return "none was timed"
    return f"{trial.rewriting} has {ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
