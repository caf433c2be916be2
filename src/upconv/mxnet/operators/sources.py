"""Operators without inputs, which graphs have for constants: zeros, ones, full, arange."""

from __future__ import annotations

import numpy as np

from .row import row

for _name, _value in (("zeros", 0), ("ones", 1)):
    row(
        f"_{_name} {_name}",
        lambda c, value=_value: np.full(c.p.shape, value, c.p.dtype),
        inputs="",
        attributes="shape:shape dtype:dtype=float32 ctx:text=",
        shapes=lambda p, inputs, outputs: (inputs, [p.shape]),
    )
row(
    "_full full",
    lambda c: np.full(c.p.shape, c.p.value, c.p.dtype),
    inputs="",
    attributes="shape:shape value:scalar dtype:dtype=float32 ctx:text=",
    shapes=lambda p, inputs, outputs: (inputs, [p.shape]),
)
row(
    "_arange arange",
    lambda c: (
        np.arange(*([c.p.start] if c.p.stop is None else [c.p.start, c.p.stop, c.p.step]))
        .repeat(c.p.repeat)
        .astype(c.p.dtype)
    ),
    inputs="",
    attributes="start:scalar stop:scalar?=None step:scalar=1 repeat:count=1 "
    "infer_range:bool=False dtype:dtype=float32 ctx:text=",
)
