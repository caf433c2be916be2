"""Weights packed once: primitives with the weight in their order, found again by weight and call.

Packed weights belong to a weight tensor, never to a module: so modules can be pickled and copied,
and compiled graphs find what eager calls packed. They are used only where the caller says that the
weight is at rest (`reuse_weight`), as a module in eval mode does. Before each use the weight must
be what was packed. It is not if

1. another tensor stands in its place, or was swapped into it;
2. its version has changed: in-place operations, `load_state_dict`, `copy_`, optimisers;
3. its memory or strides are others: `weight.data = ...`, `.to()`;
4. any element of a tensor of up to 1024 has changed, or any of 64 of a larger one, among which is
   at least one of every input channel, output channel and tap of which there are no more: writes
   through `weight.data` and through NumPy views, which PyTorch does not count. Such a write to few
   elements of a larger tensor may go unseen; `forget(weight)` tells of it. In memory shared with
   other processes, whose writes are not counted either, all elements are looked at.

What was packed dies with its weight. One weight has at most `MOST` calls prepared.

What lives here: `Ready` and the memory of them. What never does: PyTorch's operators.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import memory
from ..choices import tuning_asked
from ..engines.base import PackedWeight, Primitive
from ..execution import packed
from ..primitives import Lease, shared_cache
from ..problem import DataLayout, Problem
from ..tuning import selected
from .addresses import View
from .layers import Geometry, Shape, forward_problem
from .tensors import DTYPES, Tensor, array, dense_strides, numpy_dtype, result_last

MOST = 4
_PROBES, _WHOLE = 64, 1024


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """What is known of a forward call before its data: its problem, and tensors seen as arrays.

    `shape` and `strides` are the result's as PyTorch has them. `order` is the permutation of axes
    from a tensor's to the problem's, None where they are the same; `seen` and `filled` are the
    input and the result as the primitive sees them.
    """

    problem: Problem
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    order: tuple[int, ...] | None
    seen: View
    filled: View


@lru_cache(maxsize=1024)
def form(
    x: Shape,
    x_strides: Shape,
    weight: Shape,
    weight_strides: Shape,
    dtype: Any,
    bias: Shape | None,
    residual: Shape | None,
    how: Geometry,
    activation: str,
) -> Form:
    """The form of a call from shapes, strides in elements and PyTorch's dtype."""
    last = result_last("g", x, x_strides, weight, weight_strides)
    problem = forward_problem(x, weight, bias, residual, DTYPES[dtype], last, how, activation)
    order = axis_order(problem)
    shape = DataLayout.NCX.shape(problem.batch, problem.out_channels, problem.out_size)
    kind = numpy_dtype(dtype)
    return Form(
        problem,
        shape,
        dense_strides(shape, last),
        order,
        View.of(x, x_strides, kind, order),
        View.dense(problem.y_shape, kind),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A call with its primitive, which the lease holds, and its weight packed.

    `owner` holds the weight's memory, which an engine without an order of its own looks at.
    """

    form: Form
    lease: Lease[Primitive]
    primitive: Primitive
    weight: PackedWeight
    threads: int
    owner: Tensor

    @property
    def problem(self) -> Problem:
        """The problem that the primitive solves."""
        return self.form.problem


def leased(problem: Problem, threads: int) -> Lease[Primitive]:
    """A primitive for a problem, whose scratch memory would fit."""
    chosen = selected(problem, None, threads, tune=tuning_asked())
    lease = shared_cache().lease(problem, chosen.engine, threads, chosen.variant)
    memory.require(lease.primitive.workspace_bytes, "the scratch memory of this call")
    return lease


def ready(form: Form, weight: Tensor, threads: int) -> Ready:
    """A call made ready to run, its weight packed now."""
    lease = leased(form.problem, threads)
    owner = weight.detach()  # not the weight itself, whose end is waited for
    values = packed(lease.primitive, array(owner))
    return Ready(form, lease, lease.primitive, values, threads, owner)


def axis_order(problem: Problem) -> tuple[int, ...] | None:
    """Where the problem's axes are among a tensor's, which PyTorch always orders N, C, X.

    >>> from upconv.geometry import Axis
    >>> from upconv.problem import Direction
    >>> how = Problem(Direction.FORWARD, (Axis(4, 2), Axis(4, 2)), 1, 3, 5, layout=DataLayout.NXC)
    >>> axis_order(how)
    (0, 2, 3, 1)
    """
    if problem.layout is DataLayout.NCX:
        return None
    return (0, *range(2, problem.rank + 2), 1)


@dataclass(slots=True, eq=False)
class Kept:
    """What is packed of one weight, and what the weight was then."""

    reference: weakref.ref[Any]
    """To the tensor's anchor."""
    alias: Tensor
    """The same memory; while it is held no other weight can get this address."""
    version: int
    pointer: int
    nbytes: int
    """Of the storage, which may have been resized at its address."""
    shape: Any
    strides: Any
    dtype: Any
    memory: NDArray[Any]
    places: NDArray[Any] | slice
    """Those of the memory's elements that are looked at before each use."""
    values: bytes
    calls: dict[Any, Ready] = field(default_factory=dict)
    """Replaced as a whole, never changed."""
    derived: dict[Any, Any] = field(default_factory=dict)
    """What others made of the weight, which goes with it; replaced as a whole too."""
    bias: tuple[int, int, NDArray[Any]] | None = None

    def view(self, bias: Tensor) -> NDArray[Any]:
        """The bias's memory, looked at anew only where it lies elsewhere than last time."""
        pointer, nbytes = bias.data_ptr(), bias.untyped_storage().nbytes()
        last = self.bias  # read once: weights may be shared, and another thread have another bias
        if (
            last is not None
            and last[0] == pointer
            and last[1] == nbytes
            and bias.is_contiguous()
            and last[2].shape == bias.shape
        ):
            return last[2]
        found = array(bias.detach())  # the array keeps this alias, so the address stays its own
        if bias.is_contiguous():
            self.bias = (pointer, nbytes, found)
        return found

    def still(self, weight: Tensor) -> bool:
        """Whether the weight is what was packed: cases 1 to 4."""
        return (
            self.belongs(weight)
            and self.version == weight._version
            and self.pointer == weight.data_ptr()
            and self.nbytes == weight.untyped_storage().nbytes()
            and self.shape == weight.shape
            and self.strides == weight.stride()
            and self.dtype is weight.dtype
            and self.memory[self.places].tobytes() == self.values
        )

    def belongs(self, weight: Tensor) -> bool:
        """Whether it is of this very tensor."""
        anchor: Any = self.reference()
        return anchor is not None and weight.__dict__.get(_ANCHOR) is anchor

    @property
    def lives(self) -> bool:
        """Whether there still is a tensor that it is of."""
        return self.reference() is not None

    def keep(self, call: Any, made: Ready) -> None:
        """Remember a call, in place of the oldest when there are too many."""
        self.calls = newest(self.calls, call, made)


def newest(table: dict[Any, Any], key: Any, value: Any) -> dict[Any, Any]:
    """A table's newest entries and one more, as a new one: other threads may read the old one.

    >>> newest({1: "a", 2: "b", 3: "c", 4: "d"}, 5, "e")
    {2: 'b', 3: 'c', 4: 'd', 5: 'e'}
    """
    others = [entry for entry in table.items() if entry[0] != key]
    return dict([*others[1 - MOST :], (key, value)])


_kept: dict[int, Kept] = {}

# An attribute of a tensor whose end is the tensor's end. Weak references to the tensor itself would
# forbid `torch.utils.swap_tensors`, which swaps attributes too, so that an anchor stays with what
# was packed. It is pickled with a parameter, so it is of a type that `torch.load` always takes.
_ANCHOR = "_upconv_anchor"


def kept(weight: Tensor) -> Kept | None:
    """What is packed of a weight as it is now; None for one whose changes cannot be seen."""
    found = _kept.get(id(weight))
    if found is not None and found.still(weight):
        return found
    return _begin(weight)


def forget(weight: Tensor) -> None:
    """Drop what was packed of a weight or made with a tensor: the next call makes it anew.

    Needed only after a write that PyTorch does not count, such as `weight.data[0] = 0`, to a few
    elements of a tensor of more than 1024: a weight, or the numbers of a normalisation.

    >>> import torch
    >>> forget(torch.zeros(1))
    """
    _kept.pop(id(weight), None)


def release(tensor: Tensor) -> None:
    """`forget` a tensor, and take our mark from it too.

    >>> import torch
    >>> release(torch.zeros(1))
    """
    forget(tensor)
    tensor.__dict__.pop(_ANCHOR, None)


def _begin(weight: Tensor) -> Kept | None:
    """Nothing packed yet of a weight; None if it has no version, or gaps in its memory."""
    number = id(weight)
    _kept.pop(number, None)
    if weight.is_inference():
        return None
    alias = weight.detach()
    values = _dense(alias)
    if values is None:
        return None
    shared = alias.is_shared()  # another process's writes are not counted here
    places = slice(None) if shared else _places(tuple(weight.shape), weight.stride())

    # The registry is an argument because a module's globals go before the last tensors do.
    def drop(reference: weakref.ref[Any], registry: dict[int, Kept] = _kept) -> None:
        found = registry.get(number)
        if found is not None and found.reference is reference:
            registry.pop(number, None)

    anchor = _anchor(weight)
    made = Kept(
        weakref.ref(anchor, drop),
        alias,
        weight._version,
        weight.data_ptr(),
        weight.untyped_storage().nbytes(),
        weight.shape,
        weight.stride(),
        weight.dtype,
        values,
        places,
        values[places].tobytes(),
    )
    _kept[number] = made
    if weight.__dict__.get(_ANCHOR) is not anchor:  # another thread's came later
        _kept.pop(number, None)
    return made


def _anchor(weight: Tensor) -> OrderedDict[str, int]:
    """A tensor's own anchor: `copy.copy` gives a tensor that of another, which then outlives it."""
    found: Any = weight.__dict__.get(_ANCHOR)
    if found is None or found.get("owner") != id(weight):
        found = weight.__dict__[_ANCHOR] = OrderedDict(owner=id(weight))
    return found  # type: ignore[no-any-return]


def _dense(weight: Tensor) -> NDArray[Any] | None:
    """A weight's elements in the order of its memory, as integers; None if that has gaps."""
    values = array(weight)
    order = sorted(range(values.ndim), key=lambda axis: -values.strides[axis])
    dense = values.transpose(order)
    if not dense.flags.c_contiguous:
        return None
    return dense.reshape(-1).view(f"u{dense.itemsize}")


@lru_cache(maxsize=256)
def _places(shape: Shape, strides: Shape) -> NDArray[Any] | slice:
    """Where in a weight's memory to look: everywhere, or at a Latin hypercube of `_PROBES` places.

    Its axes are input channels, output channels and taps. Each axis is gone through in a random
    order, over and over, so where it has no more entries than there are places, all are looked at.
    """
    if prod(shape) <= _WHOLE:
        return slice(None)
    rng = np.random.default_rng(0)
    rows = []
    for size in (*shape[:2], prod(shape[2:])):
        rounds = -(-_PROBES // size)
        rows.append(np.concatenate([rng.permutation(size) for _ in range(rounds)])[:_PROBES])
    *channels, taps = rows
    places = np.zeros(_PROBES, np.intp)
    for row, step in zip(channels, strides, strict=False):
        places += row * step
    for size, step in zip(shape[:1:-1], strides[:1:-1], strict=True):
        places += taps % size * step
        taps //= size
    return places
