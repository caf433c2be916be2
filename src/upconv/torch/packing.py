"""Weights packed once, for inference: a weight's prepared calls, found by the weight's address.

A `Packed` is what was prepared of one weight: for each signature of a call, a primitive and the
weight in its order. Its key is (data_ptr, _version, shape, strides, dtype), and it holds an alias
of the weight's memory, so that no other tensor can get the address. `_version` counts what PyTorch
knows of; writes through `.data`, through NumPy or of other processes, and to tensors made in
inference mode, are not counted. So up to 64 elements, spread over the weight, are compared as well.

1. A module owns the `Packed` of its weight: both end together.
2. For weights without such a module a small table holds the latest, up to `_MOST_BYTES` in all.
   Nothing is packed there for a weight that is seen for the first time: it may be a new one in
   every step of a training. The second call with the same key packs.
3. Calls of one weight share what is packed of it, as most sizes do. They are at most `_MOST_CALLS`,
   and hold at most `_MOST_BYTES` of packed weights, or eight where the weight is larger.

`counts()` tells how often weights were packed.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..choices import Algorithm
from ..execution import PackedCall, Packings, PreparedCall, prepared_problem
from ..problem import Problem
from .tensors import DTYPES, Tensor, array

_MOST_BYTES = 64 << 20
_MOST_CALLS, _LEAST_CALLS = 64, 8
_PROBES = 64


class Packed:
    """The calls prepared for one weight; None in copies and pickles, which have another weight."""

    __slots__ = (
        "__weakref__",
        "_key",
        "_memory",
        "_probe",
        "alias",
        "calls",
        "casts",
        "owned",
        "packings",
    )

    def __init__(self, weight: Tensor) -> None:
        self.owned = False
        self.begin(weight)

    def begin(self, weight: Tensor) -> None:
        """Nothing is prepared yet of the weight as it is now."""
        self.alias = weight.detach()
        self._memory = spread(self.alias)
        self._probe = self._memory.tobytes()
        self._key = key_of(weight)
        self.calls: dict[Any, Any] = {}
        self.packings = Packings()
        self.casts: dict[Any, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return int(self.alias.numel() * self.alias.element_size())

    def of(self, weight: Tensor) -> bool:
        """Whether it is of this weight as it is now."""
        return self._key == key_of(weight) and self._memory.tobytes() == self._probe

    @property
    def held(self) -> int:
        """Bytes of the weight and of what is packed of it, about."""
        return self.nbytes * (1 + len(_distinct(self.calls.values())))

    def keep(self, call: Any, made: Any) -> None:
        """Remember a call's preparation in place of the oldest, where there are too many."""
        most = max(_LEAST_CALLS, _MOST_BYTES // max(1, self.nbytes))
        calls = [*self.calls.items(), (call, made)][-_MOST_CALLS:]
        while len(_distinct(made for _, made in calls)) > most:
            del calls[0]
        self.calls = dict(calls)  # replaced: other threads may read the old one

    def cast(self, dtype: Any) -> Tensor:
        """The weight in another dtype, made once."""
        found = self.casts.get(dtype)
        if found is None:
            found = self.casts[dtype] = self.alias.to(dtype)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


def _distinct(calls: Iterable[Any]) -> set[int]:
    """The packed weights of some calls, by their identity."""
    return {id(call.ready.weight) for call in calls if hasattr(call, "ready")}


def key_of(tensor: Tensor) -> tuple[Any, ...]:
    """A key that changes when a tensor is written in place, or its memory exchanged."""
    version = -1 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.shape, tensor.stride(), tensor.dtype


def spread(weight: Tensor) -> NDArray[Any]:
    """Some elements all over the weight, in every row of its longest axes if that can be."""
    values = array(weight) if weight.dtype in DTYPES and weight.numel() else np.zeros(0)
    order = sorted(range(values.ndim), key=lambda axis: -values.strides[axis])
    dense = values.transpose(order)
    if not dense.flags.c_contiguous:
        return dense.reshape(-1)[:0]
    step = -(-dense.size // _PROBES) | 1  # odd: sizes are powers of two
    return dense.reshape(-1)[::step]


_by_address: weakref.WeakValueDictionary[int, Packed] = weakref.WeakValueDictionary()
_latest: OrderedDict[int, Packed] = OrderedDict()
_lock = threading.Lock()
_count = 0


def owned(weight: Tensor, before: Packed | None) -> Packed:
    """The `Packed` of a weight for its owner, who had `before`."""
    pointer = weight.data_ptr()
    if before is not None and before.alias.data_ptr() == pointer:
        return before  # `found` looks whether it is still right
    mine = _by_address.get(pointer)
    if mine is None:
        mine = _by_address[pointer] = Packed(weight)
    mine.owned = True
    with _lock:
        _latest.pop(pointer, None)
    return mine


def found(weight: Tensor) -> Packed | None:
    """The `Packed` of a weight: its owner's, or the table's (case 2); None the first time."""
    pointer = weight.data_ptr()
    known = _by_address.get(pointer)
    if known is not None:
        if known.of(weight):
            return known
        known.begin(weight)
        return known if known.owned else None
    made = _by_address[pointer] = Packed(weight)
    with _lock:
        _latest[pointer] = made
        held = sum(each.held for each in _latest.values())
        while held > _MOST_BYTES and len(_latest) > 1:
            _, dropped = _latest.popitem(last=False)
            held -= dropped.held
    return None


def prepared(problem: Problem, threads: int, *, once: bool = True) -> PreparedCall | None:
    """The call that does a problem; None for the reference engine, as PyTorch is faster than it."""
    call = prepared_problem(problem, None, threads, Algorithm.AUTO, once=once)
    return None if call.engine.name == "reference" else call


def ready(
    problem: Problem, weight: Tensor, threads: int, packings: Packings | None = None
) -> PackedCall | None:
    """`prepared` with the weight packed, and None too for a weight that is not finite.

    packings: where the packed weight is kept; then packing may take longer.
    """
    global _count
    call = prepared(problem, threads, once=packings is None)
    if call is None:
        return None
    packings = packings or Packings()
    before = packings.made
    found = call.pack(array(weight), packings)
    _count += packings.made - before
    return None if found.engine == "reference" else found


def counts() -> int:
    """The number of times that a weight was packed in this process."""
    return _count


def forget() -> None:
    """Let go of what is packed for weights that no module owns.

    >>> forget()
    """
    with _lock:
        _latest.clear()
