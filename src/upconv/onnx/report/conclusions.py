"""What an optimisation amounts to, in the words that both reports open and close with.

1. The headline is about the whole model: faster, slower, the same, not measured, unchanged.
2. Beside it stands the proof: equal, different, or none; a model that was changed and not compared
   counts as not proven, although nothing was found different.
3. Nothing here judges anew: the numbers and their verdict are `Optimization`'s.

What lives here: sentences about the whole. What never does: layers one by one, markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .. import names
from ..optimizing.results import ORIGINAL, LayerResult, Optimization, OutputProof, WholeResult
from . import figures

_LONGEST_PATH = 160


class Tone(Enum):
    """How good the news is; whoever shows it adds a sign, never a colour alone."""

    GOOD = "good"
    PLAIN = "plain"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A few words, a sentence, and how good the news is."""

    tone: Tone
    title: str
    sentence: str


def speed(found: Optimization) -> Conclusion:
    """What happened to the time of the whole model."""
    changed = changed_layers(found)
    if not found.layers and not found.prepared:
        return Conclusion(Tone.PLAIN, "Nothing to do", "The model has no transposed convolutions.")
    if not found.rewritten and not found.prepared:
        return Conclusion(Tone.PLAIN, "Left as it is", f"{changed}.")
    if found.whole is None:
        return Conclusion(Tone.PLAIN, "Not measured", f"{changed}, without a clock.")
    return _measured(found.whole, changed)


def _measured(whole: WholeResult, changed: str) -> Conclusion:
    before, after, ratio = whole.before, whole.after, whole.ratio
    title, _, interval = figures.faster(ratio).partition(" (")
    tone = Tone.BAD if ratio.high < 1 else Tone.PLAIN
    if figures.is_gain(ratio):
        tone = Tone.GOOD
    elif tone is Tone.PLAIN:
        title = "As fast as before"
    times = f"From {figures.seconds(before.median)} to {figures.seconds(after.median)} a call"
    within = f" ({interval.rstrip(')')} times)" if interval else ""
    return Conclusion(tone, title, f"{times}{within}. {changed}.")


def changed_layers(found: Optimization) -> str:
    """How many layers are others now, or what was done by rules: "7 of 12 ... rewritten"."""
    if not found.layers:
        steps = figures.count(len(found.prepared), "step")
        return f"{steps} by rules" if found.prepared else "No transposed convolutions"
    total = figures.count(len(found.layers), "transposed convolution")
    return f"{len(found.rewritten) or 'None'} of {total} rewritten"


def proof(found: Optimization) -> Conclusion:
    """Whether the model still computes the same."""
    wrong = [each for each in found.proofs if not each.equal]
    if wrong:
        differ = (
            f"{len(wrong)} of {figures.count(len(found.proofs), 'comparison')} found a difference"
        )
        return Conclusion(Tone.BAD, "Not proven equal", f"{differ}; the worst is {_worst(wrong)}.")
    if found.proofs:
        equal = f"{figures.count(len(found.proofs), 'comparison')} of outputs"
        return Conclusion(
            Tone.GOOD, "Proven equal", f"{equal}; the worst is {_worst(found.proofs)}."
        )
    if found.rewritten or found.prepared:
        return Conclusion(Tone.BAD, "Not proven", "No output was compared.")
    return Conclusion(Tone.PLAIN, "Nothing to prove", "Nothing was changed.")


def _worst(proofs: list[OutputProof] | tuple[OutputProof, ...]) -> str:
    def part(each: OutputProof) -> float:
        part = each.error / each.tolerance if each.tolerance > 0 else float(each.error > 0)
        return part if part == part else float("inf")  # NaN is worse than any number

    worst = max(proofs, key=part)
    return figures.allowed(worst.error, worst.tolerance)


def written(found: Optimization) -> str:
    """What became of the file."""
    if found.written is None:
        return "Nothing was written."
    return f"Written to {names.shortened(found.written, _LONGEST_PATH)}."


def share(found: Optimization) -> str | None:
    """The deconvolutions' part of the work; None where nothing was measured."""
    both = found.share()
    if both is None:
        return None
    before, after = both
    words = f"{figures.seconds(before)} before, {figures.seconds(after)} after"
    return f"{words}: {figures.gain(before / after)}" if after > 0 else words


def sentence(words: str) -> str:
    """A remark with a capital, unless it begins with a name, and a full stop.

    >>> sentence("it has one group"), sentence("sub_pixel wins.")
    ('It has one group.', 'sub_pixel wins.')
    """
    words = words.strip()
    first = words.partition(" ")[0]
    if first.isascii() and first.isalpha():
        words = words[0].upper() + words[1:]
    return words if not words or words[-1] in ".!?" else f"{words}."


class State(Enum):
    """What became of a layer."""

    REWRITTEN = "rewritten"
    KEPT = "kept"
    UNTRIED = "not tried"


def state(layer: LayerResult) -> State:
    """Whether a layer was rewritten, was kept against others, or could not be tried at all."""
    if layer.rewritten:
        return State.REWRITTEN
    tried = any(t.refusal is None and t.rewriting != ORIGINAL for t in layer.trials)
    tried = tried or [(t.rewriting, t.refusal) for t in layer.trials] == [(ORIGINAL, None)]
    return State.KEPT if tried else State.UNTRIED
