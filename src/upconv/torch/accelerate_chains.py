"""Modules whose own code calls deconvolutions: what follows them there is fused where it stands.

Such a module runs its code as it was written, but for its chains (`accelerate_source`), which are
handed here with all that they call and add. Here they are run one link after the other; where a
link is a known deconvolution, and the very things that were seen to follow it follow now, these are
done in one go. So nothing is believed of the code: what it reads, decides and keeps stays its own.

What follows is seen by running the model once on the example inputs.

What lives here: chains that run. What never does: source.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import fx, nn

from .accelerate_sequences import is_sequence
from .accelerate_source import CHAIN, Link, Place, Spot, written
from .accelerate_swaps import (
    calls_as_torch_does,
    is_as_swapped,
    kept_by,
    original_class,
    own_forward,
    swap,
    swappable,
    unswap,
)
from .fused import Ending, Fused, Module, ending_of, idle
from .fused_weights import foldable
from .fx_calls import ending_of_function

_ACTIVATIONS: dict[str, Callable[[Ending], Module]] = {
    "relu": lambda _: nn.ReLU(),
    "leaky_relu": lambda ending: nn.LeakyReLU(ending.slope),
    "tanh": lambda _: nn.Tanh(),
    "sigmoid": lambda _: nn.Sigmoid(),
    "silu": lambda _: nn.SiLU(),
    "gelu": lambda _: nn.GELU(),
}


@dataclass(frozen=True, eq=False)
class Seen:
    """What followed a deconvolution at a place of the code.

    at: which link of the chain came next. links, operands: what came, what was called, and with
    which further arguments; None for what was called where something was added, or by a method.
    """

    place: Place
    at: int
    fused: Fused
    links: tuple[Link, ...]
    operands: tuple[Operand, ...]

    def begins(self, spot: Spot, at: int, layer: Any) -> bool:
        """Whether it is about a layer before the at-th link of a chain."""
        here = self.fused.deconvolution is layer and self.at == at and self.place == spot.place
        return here and self.links == spot.links[at : at + len(self.links)]

    def says(self, other: Seen) -> bool:
        """Whether another says the same."""
        alike = (self.place, self.at, self.links) == (other.place, other.at, other.links)
        same = alike and self.fused.deconvolution is other.fused.deconvolution
        return same and all(map(_alike, self.operands, other.operands))


class Chains:
    """A module's chains, run; `seen` is what may be done in one go."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        self.seen = tuple(seen)
        self._made: tuple[tuple[Any, ...], Any] = ((), None)

    def __reduce__(self) -> tuple[Any, ...]:
        return Chains, (self.seen,)

    def function(self, forward: Any) -> Any:
        """A module's forward with its chains handed to `run`; None if its source has none."""
        if type(forward) is not FunctionType:
            return None
        read = forward, forward.__code__, forward.__defaults__, forward.__kwdefaults__
        known, function = self._made
        if len(known) != len(read) or any(map(_differ, known, read)):
            function = self._written(forward)
            self._made = read, function
        return function

    def _written(self, forward: FunctionType) -> Any:
        made = written(forward, self._places())
        if isinstance(made, str):
            return None
        name, names = forward.__name__, forward.__globals__
        function = FunctionType(made.code, names, name, forward.__defaults__, forward.__closure__)
        function.__kwdefaults__ = forward.__kwdefaults__
        return partial(function, **{CHAIN: partial(self.run, made.spots)})

    def _places(self) -> frozenset[Place] | None:
        return frozenset(each.place for each in self.seen)

    def run(self, spots: Sequence[Spot], number: int, *values: Any) -> Any:
        """Run a chain. values: those of its first statement, and what gives those of the others."""
        spot = spots[number]
        reading, y, i = _Reading(spot, values), values[spot.base], 0
        while i < len(spot.links):
            link = spot.links[i]
            operand, args = reading.of(link)
            i += 1
            if link.what == "call" and not args and not link.kwargs:
                after = self._at_once(reading, i, y, operand)
                if after is not None:
                    y, done = after
                    i += done
                    continue
            y = _linked(link, operand, args, y)
        return y

    def _at_once(self, reading: _Reading, i: int, y: Any, layer: Any) -> tuple[Any, int] | None:
        """What a deconvolution and links from the i-th on make of y, and how many; None if not."""
        for each in self.seen:
            # Where it applies, calling the layer does nothing else: what follows can be read.
            if not (each.begins(reading.spot, i, layer) and is_as_swapped(layer)):
                continue
            if each.fused.applies(y):
                residual = _same(each.operands, reading.ahead(i))
                if residual is _OTHERS:
                    continue
                if residual is None or each.fused.applies(y, residual):
                    return each.fused.compute(y, residual), len(each.operands)
        return None


class _Reading:
    """What the links of a chain call and add, each read once and, if need be, when its turn comes.

    values: of a spot's first statement, and the functions that give those of the others.
    """

    __slots__ = ("held", "spot", "thunks")

    def __init__(self, spot: Spot, values: tuple[Any, ...]) -> None:
        self.spot, self.thunks = spot, values[spot.width :]
        self.held: list[Any] = [list(values), *(None for _ in self.thunks)]

    def of(self, link: Link) -> Operand:
        """What a link calls or adds, and further arguments."""
        at = link.statement
        if self.held[at] is None:
            self.held[at] = list(self.thunks[at - 1]())
        values = self.held[at]
        operand = None if link.operand < 0 else values[link.operand]
        if link.rest < 0:
            return operand, link.args
        if not isinstance(values[link.rest], tuple):
            values[link.rest] = values[link.rest]()
        return operand, values[link.rest]

    def ahead(self, i: int) -> Iterator[tuple[Link, Operand]]:
        """The links from the i-th on."""
        return ((link, self.of(link)) for link in self.spot.links[i:])


def _differ(one: Any, other: Any) -> bool:
    return one is not other


Operand = tuple[Any, tuple[Any, ...]]
"""What a link calls or adds, and further arguments."""


def _alike(one: Operand, other: Operand) -> bool:
    """Whether two operands are one, with the same numbers as further arguments."""
    if one[0] is not other[0] or len(one[1]) != len(other[1]):
        return False
    return all(type(a) is type(b) and a == b for a, b in zip(one[1], other[1], strict=True))


def _linked(link: Link, operand: Any, args: tuple[Any, ...], y: Any) -> Any:
    """What one link makes of a value."""
    if link.what == "call":
        return operand(y, *args, **dict(link.kwargs))
    if link.what == "add":
        return operand + y if link.left else y + operand
    return getattr(y, link.what)()


_OTHERS = object()


def _same(operands: Sequence[Operand], ahead: Iterator[tuple[Link, Operand]]) -> Any:
    """What is added, None if nothing is, if the same follows as was seen; else `_OTHERS`.

    Nothing is read beyond what calls that do nothing else can have changed.
    """
    residual = None
    for other in operands:
        link, operand = next(ahead)
        if link.what == "add":
            residual = operand[0]
            if type(residual) is not torch.Tensor:
                return _OTHERS
        elif not _alike(operand, other):
            return _OTHERS
    return residual


def chained_forward(self: Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of a swapped module: its own code, whose chains are run by what it keeps."""
    chains: Chains | None = kept_by(self)
    own = own_forward(self)
    if chains is not None and not self.training and not torch.compiler.is_compiling():
        own = chains.function(own) or own
    return own(self, *args, **kwargs)


def chain_refusal(module: Module) -> str | None:
    """Why what follows is not looked for in a module's own code; None if it is, "" if it has none.

    >>> chain_refusal(nn.ReLU())
    ''
    """
    own = original_class(module)
    if is_sequence(module) or own.__module__.startswith("torch.nn."):
        return ""
    if isinstance(module, torch.jit.ScriptModule | fx.GraphModule) or "forward" in vars(module):
        return "what follows is not looked for: its forward is no function of its class"
    forward = inspect.getattr_static(own, "forward")
    if type(forward) is not FunctionType or not swappable(module, chained_forward):
        return "what follows is not looked for: its forward is no function of its class"
    made = written(forward)
    return f"what follows is not looked for: {made}" if isinstance(made, str) else None


@contextmanager
def chains_watched(model: Module, layers: Collection[Module]) -> Iterator[dict[Module, Chains]]:
    """While it lasts, the code of modules tells what follows some layers when it calls them."""
    watching: dict[Module, Chains] = {}
    for module in model.modules():
        if not set(module.modules()).isdisjoint(layers) and chain_refusal(module) is None:
            watching[module] = _Watching(module, layers)
    for module, chains in watching.items():
        swap(module, chained_forward, chains)
    try:
        yield watching
    finally:
        for module in watching:
            unswap(module)


class _Watching(Chains):
    """Chains of a module that run link by link, and tell what follows the layers of a set."""

    def __init__(self, module: Module, layers: Collection[Module]) -> None:
        super().__init__(())
        self.module, self.layers = module, layers

    def _places(self) -> None:
        return None

    def _at_once(self, reading: _Reading, i: int, y: Any, layer: Any) -> None:
        if any(layer is one for one in self.layers) and Fused(layer).applies(y):
            spot = reading.spot
            calm = [all(map(self._only_reads, names)) for names in spot.reads]
            # What the first statement reads has been read, but for further arguments.
            calm[0] |= all(link.rest < 0 for link in spot.links if not link.statement)
            quiet = takewhile(lambda pair: calm[pair[0].statement], reading.ahead(i))
            found = _following(spot, i, layer, quiet)
            if found is not None and not any(map(found.says, self.seen)):
                self.seen += (found,)

    def _only_reads(self, name: tuple[str, ...]) -> bool:
        """Whether reading a name with its attributes calls nobody's code."""
        code = own_forward(self.module).__code__
        if name[0] in code.co_varnames or name[0] in code.co_cellvars:
            mine = len(name) > 1 and name[0] == code.co_varnames[0]
            return len(name) == 1 or (mine and self._holds(*name[1:]))
        value: Any = own_forward(self.module).__globals__.get(name[0])
        for each in name[1:]:
            if type(value) is not ModuleType:
                return False
            value = getattr(value, each, None)
        return True

    def _holds(self, name: str, *more: str) -> bool:
        """Whether an attribute is simply there, and so are the entries of what it is."""
        own = type(self.module)
        computed = hasattr(inspect.getattr_static(own, name, None), "__get__")
        if computed or not calls_as_torch_does(own):
            return False
        return not more or (more == ("[]",) and type(getattr(self.module, name)) in _HOLDERS)


_HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential, list, tuple, dict)


def _following(
    spot: Spot, at: int, layer: Module, ahead: Iterator[tuple[Link, Operand]]
) -> Seen | None:
    """As much of what follows a layer as can be done with it; None if nothing can."""
    followers, operands = list[Module](), list[Operand]()
    normalised, adds, end, kept = False, False, 0, 0
    for link, operand in ahead:
        operands.append((None, ()) if link.what == "add" else operand)
        if link.what == "add":
            if adds:
                break
            adds, end, kept = True, len(operands), len(followers)
            continue
        follower = _follower(link, *operand)
        if follower is None:
            break
        followers.append(follower)
        norm = not (normalised or adds) and foldable(follower, layer)
        ends = ending_of(follower) is not None
        if norm or ends:
            normalised, end, kept = normalised or norm, len(operands), len(followers)
        elif not idle(follower, layer):
            break
        if ends:
            break
    if not end:
        return None
    fused = Fused(layer, followers[:kept], adds)
    return Seen(spot.place, at, fused, spot.links[at : at + end], tuple(operands[:end]))


def _follower(link: Link, operand: Any, args: tuple[Any, ...]) -> Module | None:
    """A link as a module; one is made for a function or method that is an activation."""
    if isinstance(operand, nn.Module):
        own = args or link.kwargs or "forward" in operand.__dict__
        return None if own else operand
    target = operand if link.what == "call" else link.what
    ending = ending_of_function(target, args, dict(link.kwargs))
    return _ACTIVATIONS[ending.name](ending).eval() if ending else None
