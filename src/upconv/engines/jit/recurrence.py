"""An LSTM's recurrence as native code, which processes an image's positions in turn.

    i, f, o = sigmoid(x + W h), g = tanh(x + W h), each with separate rows of x and W
    c' = f c + i g,   h' = o tanh(c')

A position's results are h followed by c, which the next position reads. Weights are stored in
blocks of one vector of channels. A block has four vectors for each channel of h, one per gate, and
its weights are read in order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...activations import Activation
from .activation import activated
from .compile import compiled
from .cpu import Cpu
from .emit import Function, Module
from .kernel_arguments import ArgumentLayout
from .packing import aligned
from .rows import Span, Spans, converted
from .values import BYTES, FLOAT, I64, Value, vector
from .walk import COUNTERS, JOB, NUMBERS

GATES = 4
_PARTS = 2  # separate sums for even and odd channels, so that products need not wait for others
_ARGUMENTS = (
    "x* x_image x_row y* y_image y_row state* state_image"  # bytes between images and positions
    " weight* count channels "  # positions, and channels of h
)
LAYOUT = ArgumentLayout(NUMBERS + _ARGUMENTS, counters=COUNTERS)


def packed(weight: NDArray[np.float32], lanes: int) -> NDArray[np.float32]:
    """Reorder a (4 H, H) weight to blocks (H / lanes, H, 4, lanes), padded with zeros."""
    channels = weight.shape[1]
    blocks = -(-channels // lanes)
    result = aligned(blocks * channels * GATES * lanes, np.dtype(np.float32))
    result[...] = 0
    rows = np.zeros((GATES, blocks * lanes, channels), np.float32)
    rows[:, :channels] = weight.reshape(GATES, channels, channels)
    shape = blocks, channels, GATES, lanes
    order = rows.reshape(GATES, blocks, lanes, channels).transpose(1, 3, 0, 2)
    result.reshape(shape)[...] = order
    return result


@compiled("lstm", kept=4)
def lstm_code(module: Module, stored: str, cpu: Cpu) -> None:
    """Emit the job `lstm(args, mine, inner, image)`: all positions of image number `image`."""
    lanes = cpu.lanes(BYTES[FLOAT])
    with module.function("lstm", JOB) as f:
        a, image = LAYOUT.reader(f), f.convert("ptrtoint", f["outer"], I64)
        channels, weight = a["channels"], a["weight"]
        spans = Spans(f, channels, lanes)
        x, y = a["x"] + image * a["x_image"], a["y"] + image * a["y_image"]
        before = a["state"] + image * a["state_image"]
        with f.loop(0, a["count"], carried=[before]) as step:
            gates, state = x + step.index * a["x_row"], step.carried[0]
            result = y + step.index * a["y_row"]

            def block(span: Span) -> None:
                here = weight + span.start * channels * (GATES * BYTES[FLOAT])
                rows = (f.at(gates, channels * gate, stored) for gate in range(GATES))
                sums = [span.read(row, stored, FLOAT) for row in rows]
                i, forget, g, o = _products(f, sums, here, state, channels, stored, lanes)
                i, forget, o = (activated(f, Activation.SIGMOID, 0.0, v) for v in (i, forget, o))
                g = activated(f, Activation.TANH, 0.0, g)
                kept = forget * span.read(f.at(state, channels, stored), stored, FLOAT)
                c = f.multiply_add(i, g, kept)
                h = o * activated(f, Activation.TANH, 0.0, c)
                span.write(h, result, stored)
                span.write(c, f.at(result, channels, stored), stored)

            spans.each(block)
            step.next([result])


def _products(
    f: Function, sums: Sequence[Value], weight: Value, state: Value, channels: Value, stored: str,
    lanes: int,
) -> list[Value]:  # fmt: skip
    """Add the products of h and a block of weights to the gates' sums."""
    kind, row = vector(FLOAT, lanes), GATES * lanes
    zeros = [f.constant(kind, 0.0) for _ in range(GATES * (_PARTS - 1))]
    even = channels // _PARTS * _PARTS

    def multiplied(totals: Sequence[Value], channel: Value) -> list[Value]:
        number = converted(f, f.load(stored, f.at(state, channel, stored)), FLOAT)
        h, first = f.broadcast(number, lanes), channel * row
        vectors = (f.load(kind, f.at(weight, first + gate * lanes, FLOAT)) for gate in range(GATES))
        return [f.multiply_add(h, w, t) for w, t in zip(vectors, totals, strict=True)]

    with f.loop(0, even, _PARTS, [*sums, *zeros]) as loop:
        following: list[Value] = []
        for part in range(_PARTS):
            totals = loop.carried[GATES * part : GATES * (part + 1)]
            following += multiplied(totals, loop.index + part)
        loop.next(following)
    with f.loop(even, channels, 1, loop.results[:GATES]) as rest:
        rest.next(multiplied(rest.carried, rest.index))
    return [a + b for a, b in zip(rest.results, loop.results[GATES:], strict=True)]
