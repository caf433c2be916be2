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

from .accelerate_swaps import kept_by, own_forward
from .fused import NOTHING_OUTSIDE_TRAINING, Fused, Module, ending_of
from .fused_weights import foldable


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What a sequence does, and what it held when that was found out.

    steps: modules and `Fused`, to be called in this order. held: each sequence with its modules.
    """

    steps: tuple[Any, ...]
    held: tuple[tuple[Module, tuple[Module, ...]], ...]

    @property
    def fused(self) -> tuple[Fused, ...]:
        """The steps that stand for more than one module."""
        return tuple(step for step in self.steps if isinstance(step, Fused))

    def hold(self) -> bool:
        """Whether the sequences hold the modules that the steps were made from, unwatched."""
        outermost = self.held[0][0]
        for sequence, modules in self.held:
            now = sequence._modules
            if len(now) != len(modules) or any(map(_differ, now.values(), modules)):
                return False
            if sequence is not outermost and (
                sequence._forward_hooks or sequence._forward_pre_hooks
            ):
                return False
        return True


def _differ(one: Module, other: Module) -> bool:
    return one is not other


def sequence_forward(self: Module, input: Any) -> Any:  # noqa: A002  # PyTorch's name
    """The forward of a swapped `nn.Sequential`."""
    steps: Steps | None = kept_by(self)
    if steps is None or not steps.hold():
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
    return own_forward(module) is nn.Sequential.forward and "forward" not in vars(module)


def steps_of(sequence: Module, fusable: Callable[[Module], bool]) -> Steps | None:
    """The steps of a sequence in which something is fused; None if nothing is.

    fusable: whether upconv may compute a deconvolution.
    """
    held = tuple((part, tuple(part._modules.values())) for part in _sequences(sequence))
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
    made = Steps(tuple(steps), held)
    return made if made.fused else None


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
        if not normalised and foldable(module, layer.out_channels):
            normalised, end = True, i + 1
        elif ending_of(module) is not None:
            end = i + 1
            break
        elif type(module) not in NOTHING_OUTSIDE_TRAINING:
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
