"""What is done with each deconvolution of a model, and why.

What lives here: choices as values. What never does: carrying them out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .accelerate_chains import Chains, chain_refusal
from .accelerate_layers import kind_of, layers_of, refusals
from .accelerate_report import LayerReport
from .accelerate_sequences import is_sequence, sequence_forward, steps_of
from .accelerate_swaps import swappable
from .accelerate_trials import MARGIN, Trial
from .fused import Fused, Module, hooked
from .modules import OURS

_PYTORCH = "pytorch"
_GRACE = 1.1
"""Fusing spares passes over memory: only where it is clearly slower is it not done."""


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A layer, the ways to compute it, and the one that is taken.

    ways: the layer alone, then with what may be fused into it. taken: a place in ways, -1 for the
    original. why: in words. follows: in words, why no more is fused. before, after: seconds on the
    example inputs, or None.
    """

    name: str
    ways: tuple[Fused, ...]
    refused: str | None
    taken: int = -1
    why: str = ""
    follows: str = ""
    before: float | None = None
    after: float | None = None

    @property
    def replaced(self) -> bool:
        """Whether upconv computes the layer."""
        return self.taken >= 0

    @property
    def way(self) -> Fused:
        """The way that is taken, or that the original is compared with."""
        return self.ways[self.taken]

    def given_back(self, why: str) -> Choice:
        """The original, for a reason that replaces that of a replacement."""
        return replace(self, taken=-1, why=why, after=None) if self.replaced else self

    def report(self) -> LayerReport:
        """The choice as the user sees it."""
        way = self.way if self.replaced else self.ways[0]
        before = " + ".join([kind_of(way.deconvolution), *way.names])
        if not self.replaced:
            engine = "upconv" if isinstance(way.deconvolution, OURS) else _PYTORCH
            return LayerReport(self.name, before, "as it was", engine, self.why, self.before)
        after = "upconv, fused" if way.names else "upconv"
        engine = way.engine or "upconv"
        return LayerReport(self.name, before, after, engine, self.why, self.before, self.after)


def fusable(model: Module, *, measured: bool) -> set[Module]:
    """The deconvolutions of a model that upconv may compute."""
    return {layer for layer, why in refusals(model, measured).items() if why is None}


def choices_of(
    model: Module, seen: Mapping[Module, Chains] | None, *, fuse: bool
) -> dict[Module, Choice]:
    """The ways to compute each deconvolution of a model; nothing is taken yet.

    seen: what followed layers in modules' own code; None if nothing was run.
    """
    layers = layers_of(model)
    refused = refusals(model, seen is not None)
    known = {layer for layer, why in refused.items() if why is None}
    ways: dict[Module, list[Fused]] = {layer: [Fused(layer)] for layer in layers}
    unknown: dict[Module, str] = {}
    for module in model.modules() if fuse else ():
        inside = known & set(module.modules()) - {module}
        found = _found(module, inside, seen) if inside else []
        for way in found if isinstance(found, list) else ():
            if hooked(way.deconvolution):
                unknown[way.deconvolution] = "its hooks have to see its own result"
            elif _kinds(way) not in map(_kinds, ways[way.deconvolution]):
                ways[way.deconvolution].append(way)
        if isinstance(found, str):
            unknown |= dict.fromkeys(inside & set(module.children()), found)
    return {
        layer: Choice(
            name,
            tuple(ways[layer]),
            refused[layer],
            why=refused[layer] or "",
            follows=unknown.get(layer, _NOTHING) if fuse else "",
        )
        for layer, name in layers.items()
    }


_NOTHING = "nothing that follows is known to be fusable"


def _kinds(way: Fused) -> tuple[object, ...]:
    """What tells ways to compute one layer apart."""
    return tuple((type(each), id(each) if list(each.parameters()) else 0) for each in way.followers)


def _found(
    module: Module, inside: set[Module], seen: Mapping[Module, Chains] | None
) -> list[Fused] | str:
    """What can be fused where a module calls layers, or why that is not known."""
    if is_sequence(module):
        if not swappable(module, sequence_forward):
            return "no class that does the same can be made from the sequence's"
        steps = steps_of(module, inside.__contains__)
        return list(steps.fused) if steps else []
    why = chain_refusal(module)
    if why is None and seen is None:
        return "what follows is not looked for in code without example_inputs"
    if why is None and seen is not None and module in seen:
        return [each.fused for each in seen[module].seen]
    return why or []


def unmeasured(choice: Choice) -> Choice:
    """The choice where there is nothing to measure on: what fuses most."""
    if choice.refused:
        return choice
    last = len(choice.ways) - 1
    return replace(choice, taken=last, why=_fusing(choice, last))


def chosen(choice: Choice, trials: Sequence[Trial]) -> Choice:
    """The way that won, or the original.

    A way that fuses is compared with the layer computed alone and its followers by PyTorch.
    """
    alone, *others = trials
    if not any(trial.calls or trial.fault for trial in trials):
        return replace(choice, why="the model did not call it on the example inputs")
    best, taken = alone, 0
    for i, trial in enumerate(others, 1):
        if trial.wins and trial.after <= _GRACE * trial.alone:
            best, taken = trial, i
    if best.wins:
        gain = best.before / best.after
        why = "; ".join(filter(None, (f"{gain:.2f} times as fast", _fusing(choice, taken))))
        return replace(choice, taken=taken, why=why, before=best.before, after=best.after)
    if best.fault:
        return replace(choice, why=best.fault)
    why = f"upconv takes {best.after / best.before:.2f} of its time, more than {MARGIN}"
    return replace(choice, why=why, before=best.before)


def _fusing(choice: Choice, taken: int) -> str:
    if choice.ways[taken].names:
        return "what follows is fused"
    if len(choice.ways) > 1:
        return "fusing what follows was no gain"
    return choice.follows
