"""Plans of layers whose weights stay as they are: packed once, and dropped when they are written.

A weight that a layer is called with a second time, for the same shapes and attributes, is packed
and kept with its plan, as MXNet keeps a weight in its library's order. All that writes an `NDArray`
says so by `written`; views count as the array whose memory they show.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_MOST = 4  # plans of one weight: each holds the weight packed
_LOCK = threading.RLock()  # an array may end, and say so, while its own thread is in here
_HELD: dict[int, OrderedDict[Any, Any]] = {}
_WEIGHTS_OF: dict[int, set[int]] = {}


def _owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def written(array: Array) -> None:
    """Drop every plan made from this array, as its values have changed."""
    if _HELD or _WEIGHTS_OF:
        _forget(id(_owner(array)))


def _forget(key: int) -> None:
    with _LOCK:
        for weight in (key, *_WEIGHTS_OF.pop(key, ())):
            _HELD.pop(weight, None)


def plan_of(arrays: list[Array], key: Any, make: Callable[[], Any]) -> Any:
    """The plan for a weight and perhaps a bias, from their second use on; None at the first.

    key: all else that the plan depends on.
    """
    weight, *bias = map(_owner, arrays)
    key = (key, *((x.ctypes.data, x.shape, x.strides) for x in arrays))
    with _LOCK:
        plans = _HELD.get(id(weight))
        if plans is None:
            plans = _HELD[id(weight)] = OrderedDict()
            weakref.finalize(weight, _forget, id(weight))
        if key in plans:
            plans.move_to_end(key)
            if plans[key] is None:
                plans[key] = make()
            return plans[key]
        plans[key] = None
        for each in bias:
            if id(each) not in _WEIGHTS_OF:
                weakref.finalize(each, _forget, id(each))
            _WEIGHTS_OF.setdefault(id(each), set()).add(id(weight))
        while len(plans) > _MOST:
            plans.popitem(last=False)
    return None
