"""Plans of layers whose weights stay as they are: packed once, and dropped when they are written.

A weight that a layer is called with a second time, for the same shapes and attributes, is packed
and kept with its plan, as MXNet keeps a weight in its library's order. All that writes an `NDArray`
says so by `written`; views count as the array whose memory they show.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_MOST = 4  # plans of one weight: each holds the weight packed
_LOCK = threading.Lock()
_HELD: dict[Any, tuple[list[weakref.ref[Array]], Any]] = {}
"""By the arrays' places, and the key: the arrays, and the plan, or None before the second use.

An array may end, and so an entry, at any time: copies are looked through.
"""


def _owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def written(array: Array) -> None:
    """Drop every plan made from this array, as its values have changed."""
    if _HELD:
        owner = _owner(array)
        with _LOCK:
            for key, (made_of, _) in _HELD.copy().items():
                if any(each() is owner for each in made_of):
                    _HELD.pop(key, None)


def plan_of(arrays: list[Array], key: Any, make: Callable[[], Any]) -> Any:
    """The plan for a weight and perhaps a bias, from their second use on; None at the first.

    key: all else that the plan depends on.
    """
    weight, *others = ((id(_owner(x)), x.ctypes.data, x.shape, x.strides) for x in arrays)
    key = weight, *others, key
    with _LOCK:
        if key not in _HELD:
            forget = lambda _: _HELD.pop(key, None)  # noqa: E731
            _HELD[key] = [weakref.ref(_owner(x), forget) for x in arrays], None
            for oldest in [each for each in _HELD.copy() if each[0][0] == weight[0]][:-_MOST]:
                _HELD.pop(oldest, None)
            return None
        made_of, plan = _HELD.pop(key)
        plan = make() if plan is None else plan
        _HELD[key] = made_of, plan
        return plan
