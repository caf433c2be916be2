"""Recording and gradients, under MXNet's names: `mx.autograd`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from .base import MXNetError
from .ndarray import NDArray, differentiate
from .tape import STATE, mode


def record(train_mode: bool = True) -> AbstractContextManager[None]:
    """Record the computations within a block, in training or prediction mode."""
    return mode(True, train_mode)


def pause(train_mode: bool = False) -> AbstractContextManager[None]:
    """Pause recording within a block."""
    return mode(False, train_mode)


train_mode, predict_mode = partial(mode, None, True), partial(mode, None, False)
"""Compute in training mode, or in prediction mode, within a block."""


def is_recording() -> bool:
    """Return whether this thread records."""
    return STATE.recording


def is_training() -> bool:
    """Return whether this thread computes in training mode."""
    return STATE.training


def backward(
    heads: Any, head_grads: Any = None, retain_graph: bool = False, train_mode: bool = True
) -> None:
    """Compute the gradients of all arrays on which the heads depend; head_grads default to ones."""
    is_single = isinstance(heads, NDArray)
    grads = [head_grads] if is_single else head_grads
    differentiate([heads] if is_single else heads, grads, retain_graph, train_mode)


def grad(
    heads: Any,
    variables: Any,
    head_grads: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> list[NDArray]:
    """Return the gradients with respect to these arrays; second derivatives are not supported.

    The gradients attached to the arrays do not change.
    """
    if create_graph:
        raise MXNetError("create_graph is True; upconv.mxnet has first derivatives only.")
    leaves: Sequence[NDArray] = [variables] if isinstance(variables, NDArray) else variables
    gradients: dict[int, Any] = {}
    differentiate(
        [heads] if isinstance(heads, NDArray) else heads,
        [head_grads] if isinstance(head_grads, NDArray) else head_grads,
        bool(retain_graph),
        train_mode,
        lambda leaf, value: gradients.update({id(leaf): value}),
    )
    missing = [x for x in leaves if id(x.source) not in gradients]
    if missing:
        raise MXNetError(f"No head depends on the variable {missing[0]!r}.")
    return [type(x)(np.array(gradients[id(x.source)])) for x in leaves]
