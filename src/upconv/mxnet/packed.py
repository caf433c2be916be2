"""Layers' plans for constant weights: packed once, and dropped when a weight is written.

A layer packs its weight at the second call with the same array, shapes and attributes, and keeps
the plan. Code that writes an `NDArray` calls `written`. A view counts as the array that owns its
memory.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_MAX_PLANS = 4  # plans of one weight, each of which holds a packed weight
_LOCK = threading.Lock()
_HELD: dict[Any, tuple[list[weakref.ref[Array]], Any]] = {}
"""Addresses of arrays and the key -> the arrays and their plan, None before the second use.

An array, and with it an entry, may be freed at any time, so searches use copies.
"""


def _owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def written(array: Array) -> None:
    """Drop every plan made from this array, because its values have changed."""
    if _HELD:
        owner = _owner(array)
        with _LOCK:
            for key, (sources, _) in _HELD.copy().items():
                if any(source() is owner for source in sources):
                    _HELD.pop(key, None)


def plan_of(arrays: list[Array], key: Any, make: Callable[[], Any]) -> Any:
    """Return the plan for a weight, and a bias if given, from the second use on; else None.

    key: everything else on which the plan depends.
    """
    weight, *others = ((id(_owner(x)), x.ctypes.data, x.shape, x.strides) for x in arrays)
    key = weight, *others, key
    with _LOCK:
        if key not in _HELD:
            forget = lambda _: _HELD.pop(key, None)  # noqa: E731
            _HELD[key] = [weakref.ref(_owner(x), forget) for x in arrays], None
            for oldest in [k for k in _HELD.copy() if k[0][0] == weight[0]][:-_MAX_PLANS]:
                _HELD.pop(oldest, None)
            return None
        sources, plan = _HELD.pop(key)
        plan = make() if plan is None else plan
        _HELD[key] = sources, plan
        return plan
