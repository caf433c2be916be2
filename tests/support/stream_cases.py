"""Random streams: layers along one axis, the same layers on whole inputs, and chunks."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

import upconv
from upconv.errors import EngineError

DTYPES = ("float32", "float64", "float16", "bfloat16")
ACTIVATIONS = (None, "relu", "leaky_relu:0.2", "tanh", "sigmoid", "silu", "gelu")


@dataclass(frozen=True)
class Case:
    """A layer, the size of its input, and a seed for the numbers."""

    convolves: bool
    channels: tuple[int, int]
    kernel: int
    keywords: dict[str, Any]
    batch: int | None
    size: int
    dtype: str
    bias: bool
    length: int
    seed: int

    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return (x, weight, bias)."""
        rng = np.random.default_rng(self.seed)
        dtype: Any = self.dtype
        if dtype == "bfloat16":
            from ml_dtypes import bfloat16 as dtype
        made, groups = self.channels[1], self.keywords["groups"]
        c, f = self.channels
        shape = {"I": c, "O": f // groups}
        if self.convolves:
            shape = {"I": c // groups, "O": f}
        sizes = [shape.get(letter, self.kernel) for letter in self.keywords["weight_layout"]]
        first = self.keywords["layout"] == "NCX"
        x_shape = (c, self.size) if first else (self.size, c)
        x = rng.standard_normal(x_shape if self.batch is None else (self.batch, *x_shape))
        weight, bias = rng.standard_normal(sizes), rng.standard_normal(made)
        if self.seed >= 7:  # values that audio should not hold, but may
            x.reshape(-1)[3::11], x.reshape(-1)[7::29] = np.inf, np.nan
            x.reshape(-1)[5::13] = 0
        return x.astype(dtype), weight.astype(dtype), bias.astype(dtype) if self.bias else None

    def stream(self, **more: Any) -> upconv.streaming.Stream:
        _, weight, bias = self.arrays()
        make = upconv.conv_stream if self.convolves else upconv.stream
        return make(weight, bias, length=self.length, **self.keywords, **more)

    def whole(self, engine: Any = None, x: np.ndarray | None = None) -> np.ndarray:
        own, weight, bias = self.arrays()
        call = upconv.conv if self.convolves else upconv.conv_transpose
        return call(own if x is None else x, weight, bias, engine=engine, **self.keywords)

    @property
    def axis(self) -> int:
        return -1 if self.keywords["layout"] == "NCX" else -2


@st.composite
def cases(draw: Any) -> Case:
    """Draw any geometry with small numbers, and crops of either sign."""
    convolves = draw(st.booleans())
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    keywords = {
        "stride": draw(st.integers(1, 5)),
        "dilation": draw(st.integers(1, 3)),
        "padding": ((draw(st.integers(-4, 6)), draw(st.integers(-4, 6))),),
        "groups": groups,
        "layout": draw(st.sampled_from(("NCX", "NXC"))),
        "weight_layout": draw(st.sampled_from(("IOX", "OIX", "XIO", "XOI", "IXO", "OXI"))),
        "activation": draw(st.sampled_from(ACTIVATIONS)),
    }
    if not convolves:
        keywords["output_padding"] = draw(st.integers(0, 4))
    return Case(
        convolves, tuple(groups * draw(st.sampled_from((1, 2, 5, 17))) for _ in range(2)),
        draw(st.integers(1, 7)), keywords, draw(st.sampled_from((None, 0, 1, 2))),
        draw(st.integers(0, 40)), draw(st.sampled_from(DTYPES)), draw(st.booleans()),
        draw(st.sampled_from((1, 4096))), draw(st.integers(0, 9)),
    )  # fmt: skip


def cut(x: np.ndarray, axis: int, sizes: Any) -> list[np.ndarray]:
    """Cut x into chunks of these sizes, and a last one with the rest."""
    chunks, start = [], 0
    for size in sizes:
        chunks.append(x.take(range(start, min(start + size, x.shape[axis])), axis))
        start = min(start + size, x.shape[axis])
    return [*chunks, x.take(range(start, x.shape[axis]), axis)]


def streamed(stream: Any, chunks: list[np.ndarray], axis: int) -> np.ndarray:
    """Return all results of a stream, concatenated."""
    return np.concatenate([*(stream.push(chunk) for chunk in chunks), stream.finish()], axis)


def intruded(stream: Any, chunk: np.ndarray, *methods: Callable[[], Any]) -> Any:
    """Return a push's result while the stream refuses another thread's calls of methods."""

    def intrude() -> None:
        for method in methods:
            with pytest.raises(EngineError, match="Another thread is using this stream"):
                method()

    class Slow:
        """A chunk that is read while the other thread tries."""

        def __array__(self, *_: object, **__: object) -> np.ndarray:
            with ThreadPoolExecutor(1) as other:
                other.submit(intrude).result(60)
            return chunk

    return stream.push(Slow())


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
