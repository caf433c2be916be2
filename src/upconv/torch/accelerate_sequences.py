"""`nn.Sequential`, computed with fused steps: what follows a deconvolution is known by its order.

Sequences inside sequences count as one. A swapped sequence checks at every call that it still holds
the modules that its steps were made from, and otherwise computes as it always did.

What lives here: the steps of sequences. What never does: decisions on what is worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .accelerate_swaps import (
    calls_as_torch_does,
    is_as_swapped,
    is_derived,
    kept_by,
    original_class,
    own_forward,
)
from .fused import Fused, Module, ending_of, idle
from .fused_weights import foldable
from .observers import hooks_everywhere, watched


@dataclass(frozen=True, eq=False)  # without slots, which PyTorch 2.4 cannot compile
class Steps:
    """What a sequence does, and what it held when that was found out.

    steps: modules and `Fused`, to be called in this order. held: each sequence with its class and
    its modules, the outermost first. layers: the deconvolutions that something is fused into.
    """

    steps: tuple[Any, ...]
    held: tuple[tuple[Module, type, tuple[Module, ...]], ...]
    layers: tuple[Module, ...]

    @property
    def fused(self) -> tuple[Fused, ...]:
        """The steps that stand for more than one module."""
        return tuple(step for step in self.steps if isinstance(step, Fused))

    def hold(self, outermost: Module) -> bool:
        """Whether these are still the steps of a sequence, and nobody watches those inside it."""
        # A replica or a shallow copy has what was kept by another module.
        if self.held[0][0] is not outermost:
            return False
        for layer in self.layers:
            if not is_as_swapped(layer):
                return False
        for sequence, kind, modules in self.held:
            if not _holds(sequence, modules):
                return False
            if sequence is not outermost and not _only_calls(sequence, kind):
                return False
        return not hooks_everywhere()


def _holds(sequence: Module, modules: tuple[Module, ...]) -> bool:
    """Whether a sequence still holds these modules, in this order."""
    if len(sequence._modules) != len(modules):
        return False
    for number, module in enumerate(sequence._modules.values()):
        if module is not modules[number]:
            return False
    return True


def _only_calls(sequence: Module, kind: type) -> bool:
    """Whether a sequence that was of a known class still does nothing but call what it holds."""
    if type(sequence) is not kind and not is_as_swapped(sequence):
        return False
    return "forward" not in sequence.__dict__ and not watched(sequence)


def sequence_forward(self: Module, input: Any) -> Any:  # noqa: A002  # PyTorch's name
    """The forward of a swapped `nn.Sequential`."""
    steps: Steps | None = kept_by(self)
    if steps is None or self.training or not steps.hold(self):
        return own_forward(self)(self, input)
    for step in steps.steps:
        input = step(input)  # noqa: A001
    return input


def is_sequence(module: Module) -> bool:
    """Whether a module does nothing but call what it holds, one after the other.

    >>> is_sequence(nn.Sequential()), is_sequence(nn.ModuleList())
    (True, False)
    """
    if not isinstance(module, nn.Sequential) or isinstance(module, torch.jit.ScriptModule):
        return False
    if "forward" in vars(module) or is_derived(module):
        return False
    own: Any = original_class(module)
    usual = all(getattr(own, name) is getattr(nn.Sequential, name) for name in _OF_SEQUENCES)
    return usual and calls_as_torch_does(own)


_OF_SEQUENCES = ("forward", "__iter__")


def steps_of(sequence: Module, fusable: Callable[[Module], bool]) -> Steps | None:
    """The steps of a sequence in which something is fused; None if nothing is.

    fusable: whether upconv may compute a deconvolution.
    """
    held = tuple(
        (part, original_class(part), tuple(part._modules.values())) for part in _sequences(sequence)
    )
    modules = list(_flat(sequence))
    steps: list[Any] = []
    while modules:
        module = modules.pop(0)
        if fusable(module):
            followers = tail(module, modules)
            del modules[: len(followers)]
            steps.append(Fused(module, followers) if followers else module)
        else:
            steps.append(module)
    layers = tuple(step.deconvolution for step in steps if isinstance(step, Fused))
    return Steps(tuple(steps), held, layers) if layers else None


def tail(layer: Any, candidates: Sequence[Any]) -> list[Any]:
    """As many of the modules that follow a deconvolution as can be fused into it.

    >>> layer = nn.ConvTranspose2d(3, 4, 2)
    >>> [type(m).__name__ for m in tail(layer, [nn.BatchNorm2d(4), nn.ReLU(), nn.ReLU()])]
    ['BatchNorm2d', 'ReLU']
    """
    normalised, end = False, 0
    for i, module in enumerate(candidates):
        if "forward" in vars(module):  # another one than its class says
            break
        if not normalised and foldable(module, layer):
            normalised, end = True, i + 1
        elif ending_of(module) is not None:
            end = i + 1
            break
        elif not idle(module, layer):
            break
    return list(candidates[:end])


def _sequences(sequence: Module) -> Iterator[Module]:
    yield sequence
    for module in sequence._modules.values():
        if is_sequence(module):
            yield from _sequences(module)


def _flat(sequence: Module) -> Iterator[Module]:
    for module in sequence._modules.values():
        if is_sequence(module):
            yield from _flat(module)
        else:
            yield module
