"""Proof and time, layer by layer, on the inputs that a model's layers really get.

A layer is tried inside a run of the whole model, when its input comes by: the original modules and
upconv compute the same input. Two correct results differ by rounding alone: with e the spacing of
numbers at 1, n the length of the longest sum, M the sum of the magnitudes that were added, each
errs by about e * sqrt(n) * M, and eight times that is allowed between them. Times are taken in
turns, and the best of them counts.

What lives here: measuring. What never does: changing the model.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import UpconvError
from .fused import Fused, Module, geometry_of
from .fused_weights import Normalization
from .layers import FUNCTIONS, Geometry
from .tensors import Tensor

MARGIN = 0.95
"""Upconv is taken where its time is below this part of the original's: noise is no gain."""

_ROUNDS = 7
_SECONDS = 0.4
_SHAPES = 4


@dataclass(slots=True)
class Trial:
    """What was found out about one way to compute a layer.

    Seconds by the original modules, by this way, and by upconv for the layer alone, its followers
    being PyTorch's; how many inputs were tried; a fault in words.
    """

    before: float = 0.0
    after: float = 0.0
    alone: float = 0.0
    calls: int = 0
    fault: str = ""

    @property
    def wins(self) -> bool:
        """Whether it was tried, is right, and is faster beyond noise.

        >>> Trial(before=2.0, after=1.0, calls=1).wins
        True
        """
        return bool(self.calls) and not self.fault and self.after < MARGIN * self.before


@dataclass(slots=True, eq=False)
class _Watch:
    """The trials of the ways that begin with one layer, over the first inputs of each shape."""

    ways: tuple[Fused, ...]
    trials: dict[int, Trial] = field(default_factory=dict)
    shapes: set[Any] = field(default_factory=set)

    def __call__(self, module: Module, args: Any, kwargs: Any) -> None:
        """A forward pre-hook: the input is about to be computed."""
        given = dict(zip(("input", "output_size"), args, strict=False)) | dict(kwargs)
        x, output_size = given.get("input"), given.get("output_size")
        key = (getattr(x, "shape", None), str(output_size))
        if key in self.shapes or len(self.shapes) >= _SHAPES:
            return
        self.shapes.add(key)
        hooks = module._forward_pre_hooks
        others = [(number, hook) for number, hook in hooks.items() if hook is not self]
        module._forward_pre_hooks = type(hooks)(others)  # the layer as it is without this trial
        try:
            for i, way in enumerate(self.ways):
                _try(way, x, output_size, self.trials.setdefault(i, Trial()))
        finally:
            module._forward_pre_hooks = hooks


@contextmanager
def watched(ways: dict[Module, tuple[Fused, ...]]) -> Iterator[dict[Module, list[Trial]]]:
    """While it lasts, calls of the layers are tried; afterwards there is a trial for each way."""
    watches = {layer: _Watch(of_layer) for layer, of_layer in ways.items()}
    handles = [
        layer.register_forward_pre_hook(watch, with_kwargs=True) for layer, watch in watches.items()
    ]
    trials: dict[Module, list[Trial]] = {}
    try:
        yield trials
    finally:
        for handle in handles:
            handle.remove()
        for layer, watch in watches.items():
            trials[layer] = [watch.trials.get(i, Trial()) for i in range(len(watch.ways))]


def _try(way: Fused, x: Any, output_size: Any, trial: Trial) -> None:
    """Compare and time one way on one input."""
    if not way.applies(x):
        autocast = torch.is_autocast_enabled("cpu")
        fault = "under autocast" if autocast else "not one that upconv computes on as it stands"
        trial.fault = trial.fault or f"its input is {fault}"
        return
    try:
        ours = way.compute(x, None, output_size)
    except UpconvError as error:
        trial.fault = trial.fault or str(error)
        return
    theirs = way.one_by_one(x, None, output_size)
    trial.fault = trial.fault or disagreement(way, x, output_size, ours, theirs)
    if trial.fault:
        return
    bare = Fused(way.deconvolution)

    def alone() -> Tensor:
        y = bare.compute(x, None, output_size)
        for follower in way.followers:
            y = follower(y)
        return y

    before, after, part = best_of(
        lambda: way.one_by_one(x, None, output_size),
        lambda: way.compute(x, None, output_size),
        alone if way.followers else int,
    )
    trial.before += before
    trial.after += after
    trial.alone += part
    trial.calls += 1


def best_of(original: Callable[[], Any], *others: Callable[[], Any]) -> list[float]:
    """The least seconds that each takes, in turns, each right after the original, untimed.

    For in a model every layer runs after one of PyTorch's, whose threads may not be asleep yet.

    >>> len(best_of(int, str))
    2
    """
    ways = (original, *others)
    best = [math.inf] * len(ways)
    begin = time.perf_counter()
    for i in range(_ROUNDS + 1):
        for number, way in enumerate(ways):
            original()
            start = time.perf_counter()
            way()
            taken = time.perf_counter() - start
            if i:
                best[number] = min(best[number], taken)
        if i > 1 and time.perf_counter() - begin > _SECONDS:
            break
    return best


def disagreement(way: Fused, x: Tensor, output_size: Any, ours: Tensor, theirs: Tensor) -> str:
    """What is wrong with a result, in words; "" if it differs by rounding at most."""
    if ours.shape != theirs.shape:
        return f"its result has shape {tuple(ours.shape)}, the original's {tuple(theirs.shape)}"
    how = geometry_of(way.deconvolution, x, output_size)
    allowed = _allowed(way, x, how)
    ours, theirs = ours.double(), theirs.double()
    equal = (ours == theirs) | (ours.isnan() & theirs.isnan())
    wrong = ~(equal | ((ours - theirs).abs() <= allowed))
    if not bool(wrong.any()):
        return ""
    excess = ((ours - theirs).abs() / allowed).nan_to_num(math.inf)[wrong].max().item()
    return f"its result differs from the original's by {excess:.3g} times what rounding explains"


def _allowed(way: Fused, x: Tensor, how: Geometry) -> Tensor:
    """How far two correct results may lie apart, element by element."""
    weight, bias = way.folded()
    magnitude = _magnitude_of_shift(way, bias)
    sums = FUNCTIONS[len(how.stride)](
        x.detach().abs().double(),
        weight.abs().double(),
        magnitude,
        how.stride,
        how.padding,
        how.output_padding,
        how.groups,
        how.dilation,
    )
    length = weight.shape[0] // how.groups * math.prod(weight.shape[2:])
    steepest = max(1.2, abs(way.ending.slope))  # gelu and silu rise by up to 1.13
    spacing = torch.finfo(x.dtype).eps
    return 8 * spacing * math.sqrt(length) * steepest * sums + torch.finfo(x.dtype).tiny


def _magnitude_of_shift(way: Fused, bias: Tensor) -> Tensor:
    """The magnitudes that bias and normalisation add, channel by channel."""
    if way.norm is None:
        return None if bias is None else bias.detach().abs().double()
    norm, own = Normalization.of(way.norm), way.deconvolution.bias
    factor = 1 / torch.sqrt(norm.var.detach().double() + norm.eps)
    if norm.gamma is not None:
        factor = factor * norm.gamma.detach().double().abs()
    terms = norm.mean.detach().double().abs()
    terms = terms if own is None else terms + own.detach().double().abs()
    return terms * factor + (0 if norm.beta is None else norm.beta.detach().double().abs())
