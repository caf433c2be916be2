"""Running a whole model on example inputs: its results, whether two runs agree, and its time.

Models run in eval mode, without gradients, and from the same random state; how they were before is
put back. Layers agree up to their own rounding (`accelerate_trials`); how a model carries rounding
on cannot be told in general, so whole results may differ by half of the digits they have.

What lives here: runs. What never does: single layers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

from ..errors import brief
from .fused import Module
from .observers import plain
from .refusals import TensorArgumentError
from .tensors import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """What a model is called with."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, inputs: Any) -> Example:
        """One tensor, a tuple or list of positional arguments, or a dict of keywords.

        >>> Example.of(torch.ones(2)).kwargs
        {}
        """
        if isinstance(inputs, Mapping):
            return cls((), dict(inputs))
        if isinstance(inputs, torch.Tensor):
            return cls((inputs,), {})
        if isinstance(inputs, tuple | list):
            return cls(tuple(inputs), {})
        expected = "a tensor, a tuple of positional arguments or a dict of keywords"
        raise TensorArgumentError("example_inputs", brief(inputs), expected)

    def run(self, model: Module) -> Any:
        """The model's result."""
        return self._ran(model)[0]

    def seconds(self, model: Module) -> float:
        """What one run takes."""
        return self._ran(model)[1]

    def _ran(self, model: Module) -> tuple[Any, float]:
        with at_rest(model), _buffers_kept(model):
            args, kwargs = self._copies()
            start = time.perf_counter()
            try:
                result = model(*args, **kwargs)
            except Exception as error:
                got = f"such that the model raises {type(error).__name__}: {error}"
                raise TensorArgumentError("example_inputs", got, "what the model takes") from error
            return result, time.perf_counter() - start

    def _copies(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, each tensor in them copied once: some models write to what they get."""
        made: dict[int, Tensor] = {}

        def copied(tensor: Tensor) -> Tensor:
            if id(tensor) not in made:
                copy = tensor.detach().clone()
                made[id(tensor)] = copy.requires_grad_() if tensor.requires_grad else copy
            return made[id(tensor)]

        copies: tuple[tuple[Any, ...], dict[str, Any]] = tree_map_only(
            torch.Tensor, copied, (self.args, dict(self.kwargs))
        )
        return copies


@contextmanager
def at_rest(model: Module) -> Iterator[None]:
    """Eval mode, no gradients, a fixed random state; all put back at the end."""
    # What TorchScript froze has no mode.
    modes = [(each, each.training) for each in model.modules() if hasattr(each, "training")]
    try:
        for module, _ in modes:
            module.training = False
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)  # not other devices': those are not put back
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _buffers_kept(model: Module) -> Iterator[None]:
    """What runs do to buffers, by new tensors or in place, is undone at the end."""
    held = [
        (module._buffers, name, buffer, buffer.detach().clone())
        for module in model.modules()
        if not isinstance(module, torch.jit.ScriptModule)
        for name, buffer in module._buffers.items()
        if plain((buffer,)) and buffer is not None
    ]
    try:
        yield
    finally:
        for buffers, name, buffer, values in held:
            if buffers.get(name) is not buffer and name in buffers:
                buffers[name] = buffer
            if buffer.shape == values.shape and not _alike(buffer, values):
                with torch.no_grad():
                    buffer.copy_(values)


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same numbers, NaN being one."""
    return bool(((one == other) | ((one != one) & (other != other))).all())


def tensors_in(result: Any) -> Iterator[Tensor]:
    """All tensors in a result: in tuples, lists, dicts, and attributes of other objects.

    >>> len(list(tensors_in({"a": [torch.ones(1), (torch.ones(2),)], "b": None})))
    2
    """
    waiting, known = [result], set[int]()
    while waiting:
        held = waiting.pop()
        if isinstance(held, torch.Tensor):
            yield held
        elif id(held) not in known and not isinstance(held, nn.Module | type):
            known.add(id(held))
            waiting += reversed(_held_by(held))


def _held_by(result: Any) -> list[Any]:
    if isinstance(result, Mapping):
        return list(result.values())
    if isinstance(result, tuple | list):
        return list(result)
    if is_dataclass(result):
        return [getattr(result, entry.name, None) for entry in fields(result)]
    return list(getattr(result, "__dict__", {}).values())


def difference(before: Any, after: Any) -> float:
    """The largest relative difference of two results, over what half the digits allow.

    >>> difference(torch.ones(2), torch.ones(2)), difference(torch.ones(2), torch.ones(3))
    (0.0, inf)
    """
    firsts, seconds = (
        [dense for tensor in tensors_in(result) for dense in _dense(tensor)]
        for result in (before, after)
    )
    if [(t.shape, t.dtype) for t in firsts] != [(t.shape, t.dtype) for t in seconds]:
        return math.inf
    return max(map(_difference, firsts, seconds), default=0.0)


def _dense(tensor: Tensor) -> list[Tensor]:
    """A tensor of any layout as dense ones; none where there is no data."""
    if tensor.is_nested:
        return [part for each in tensor.unbind() for part in _dense(each)]
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    return [] if tensor.is_meta else [tensor]


def _difference(before: Tensor, after: Tensor) -> float:
    if before.is_complex():
        before, after = (
            torch.view_as_real(before.resolve_conj()),
            torch.view_as_real(after.resolve_conj()),
        )
    if not before.is_floating_point():
        return 0.0 if torch.equal(before, after) else math.inf
    if not before.numel():
        return 0.0
    first, second = before.detach().double(), after.detach().double()
    same = (first == second) | (first.isnan() & second.isnan())
    apart = torch.where(same, 0.0, (first - second).abs())
    scale = first[first.isfinite()].abs().max().item() if first.isfinite().any() else 1.0
    worst = apart.max().item()
    if not worst:
        return 0.0
    allowed = math.sqrt(torch.finfo(before.dtype).eps) * scale
    return worst / allowed if allowed and not math.isnan(worst) else math.inf
