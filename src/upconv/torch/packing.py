"""Pack weights once, for inference, and find a weight's prepared calls by its address.

A `Packed` holds the calls prepared for one weight: for each signature, a primitive and the packed
weight. It is valid for one `Version` of the weight, with the key (data_ptr, _version, shape,
strides, dtype). It holds an alias of the weight's memory, so that no other tensor can reuse the
address. `_version` counts the writes that PyTorch knows of. It misses writes through `.data`,
through NumPy and by other processes, and writes to tensors made in inference mode. So up to 64
elements, spread over the weight, are compared as well.

1. A module owns the `Packed` of its weight: both have the same lifetime.
2. A small table holds the latest weights without such a module, up to `_MAX_BYTES` in all.
   The first call with a weight does not pack it, because training changes it in every step.
   The second call with the same key packs it.
3. Calls with one weight share packed weights, because most sizes pack alike. There are at most
   `_MAX_CALLS` calls. They hold at most `_MAX_BYTES`, or eight packed weights if that is more.

`counts()` returns how often weights were packed.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..engine_choice import Algorithm
from ..execution import PackedCall, Packings, PreparedCall, prepared_problem
from ..problem import Problem
from .tensors import DTYPES, Tensor, array

_MAX_BYTES = 64 << 20
_MAX_CALLS, _MIN_CALLS = 64, 8
_PROBES = 64


class Version:
    """A tensor's memory and values at one moment; None in copies and pickles."""

    __slots__ = ("_key", "_memory", "_probe", "alias")

    def __init__(self, tensor: Tensor) -> None:
        self.alias = tensor.detach()
        self._memory = _samples(self.alias)
        self._probe = self._memory.tobytes()
        self._key = _key_of(tensor)

    def of(self, tensor: Tensor) -> bool:
        """Whether this is a tensor's current version."""
        return self._key == _key_of(tensor) and self._memory.tobytes() == self._probe

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()


class Packed(Version):
    """The calls prepared for one weight."""

    __slots__ = ("__weakref__", "calls", "casts", "owned", "packings")

    def __init__(self, weight: Tensor) -> None:
        self.owned = False
        self.begin(weight)

    def begin(self, weight: Tensor) -> None:
        """Drop all calls, and start again with the weight's current values."""
        super().__init__(weight)
        self.calls: dict[Any, Any] = {}
        self.packings = Packings()
        self.casts: dict[Any, Tensor] = {}

    @property
    def nbytes(self) -> int:
        """Size of the weight in bytes."""
        return int(self.alias.numel() * self.alias.element_size())

    @property
    def held(self) -> int:
        """Approximate size in bytes of the weight and its packed copies."""
        return self.nbytes * (1 + len(_distinct(self.calls.values())))

    def keep(self, signature: Any, call: Any) -> None:
        """Keep a prepared call; drop the oldest ones if there are too many."""
        most = max(_MIN_CALLS, _MAX_BYTES // max(1, self.nbytes))
        calls = [*self.calls.items(), (signature, call)][-_MAX_CALLS:]
        while len(_distinct(call for _, call in calls)) > most:
            del calls[0]
        self.calls = dict(calls)  # a new dict, because other threads may read the old one

    def cast(self, dtype: Any) -> Tensor:
        """Return the weight in another dtype; it is converted once."""
        weight = self.casts.get(dtype)
        if weight is None:
            weight = self.casts[dtype] = self.alias.to(dtype)
        return weight


def _distinct(calls: Iterable[Any]) -> set[int]:
    """Return the identities of these calls' packed weights."""
    return {id(call.packed.weight) for call in calls if hasattr(call, "packed")}


def _key_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that changes when a tensor is written in place or given other memory."""
    version = -1 if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), version, tensor.shape, tensor.stride(), tensor.dtype


def _samples(weight: Tensor) -> NDArray[Any]:
    """Return elements spread over the weight's memory; none if the weight is not dense."""
    values = array(weight) if weight.dtype in DTYPES and weight.numel() else np.zeros(0)
    order = sorted(range(values.ndim), key=lambda axis: -values.strides[axis])
    dense = values.transpose(order)
    if not dense.flags.c_contiguous:
        return dense.reshape(-1)[:0]
    step = -(-dense.size // _PROBES) | 1  # odd, because sizes are powers of two
    return dense.reshape(-1)[::step]


_by_address: weakref.WeakValueDictionary[int, Packed] = weakref.WeakValueDictionary()
_latest: OrderedDict[int, Packed] = OrderedDict()
_lock = threading.Lock()
_count = 0


def owned(weight: Tensor, before: Packed | None) -> Packed:
    """Return a weight's `Packed` for its owner; `before` is the owner's previous one."""
    pointer = weight.data_ptr()
    if before is not None and before.alias.data_ptr() == pointer:
        return before  # `look_up` checks that it still fits the weight
    packed = _by_address.get(pointer)
    if packed is None:
        packed = _by_address[pointer] = Packed(weight)
    packed.owned = True
    with _lock:
        _latest.pop(pointer, None)
    return packed


def look_up(weight: Tensor) -> Packed | None:
    """Return a weight's `Packed`, from its owner or the table (case 2); None the first time."""
    pointer = weight.data_ptr()
    packed = _by_address.get(pointer)
    if packed is not None:
        if packed.of(weight):
            return packed
        packed.begin(weight)
        return packed if packed.owned else None
    packed = _by_address[pointer] = Packed(weight)
    with _lock:
        _latest[pointer] = packed
        held = sum(packed.held for packed in _latest.values())
        while held > _MAX_BYTES and len(_latest) > 1:
            _, dropped = _latest.popitem(last=False)
            held -= dropped.held
    return None


def prepared(problem: Problem, threads: int, *, once: bool = True) -> PreparedCall | None:
    """Return the call that computes a problem; None for the slow reference engine."""
    call = prepared_problem(problem, None, threads, Algorithm.AUTO, once=once)
    return None if call.engine.name == "reference" else call


def packed_call(
    problem: Problem, weight: Tensor, threads: int, packings: Packings | None = None
) -> PackedCall | None:
    """Return a `prepared` call with its packed weight; None also if the weight is not finite.

    packings: where to keep the packed weight for later calls, for which packing may take longer.
    """
    global _count
    call = prepared(problem, threads, once=packings is None)
    if call is None:
        return None
    packings = packings or Packings()
    before = packings.made
    packed = call.pack(array(weight), packings)
    _count += packings.made - before
    return None if packed.engine == "reference" else packed


def counts() -> int:
    """Return how often weights were packed in this process."""
    return _count


def forget() -> None:
    """Drop the packed weights that no module owns.

    >>> forget()
    """
    with _lock:
        _latest.clear()
