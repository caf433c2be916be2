"""Results in chunks against whole results, bit by bit: random layers for every direct kernel.

`main` is for a separate process, in which code is compiled for one processor.
"""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

import upconv
from upconv.engines.jit.cpu import host
from upconv.engines.jit.kernel_choice import direct_variant
from upconv.problem import DType

FAMILIES = {
    # channels of x and of y, groups, convolution, layout, the longest last axis
    "depthwise": (6, 6, 6, False, "NCX", 60),
    "depthwise, several results": (3, 6, 3, False, "NCX", 60),
    "depthwise, channels last": (19, 19, 19, False, "NXC", 20),
    "depthwise, several results, channels last": (9, 18, 9, False, "NXC", 20),
    "depthwise convolution": (5, 5, 5, True, "NCX", 60),
    "depthwise convolution, channels last": (17, 17, 17, True, "NXC", 20),
    "grouped": (6, 4, 2, False, "NCX", 40),
    "grouped, channels last": (18, 36, 3, False, "NXC", 12),
    "grouped convolution": (8, 12, 4, True, "NCX", 40),
    "plain": (3, 5, 1, False, "NCX", 60),
    "plain, many channels": (48, 40, 1, False, "NCX", 9),
    "plain, channels last": (17, 9, 1, False, "NXC", 20),
    "few results, channels last": (24, 2, 1, False, "NXC", 20),
    "convolution": (4, 7, 1, True, "NCX", 50),
    "convolution of few channels, channels last": (3, 20, 1, True, "NXC", 30),
}
PAIRS = {
    "bfloat16": (16, 24, 1, False, "NCX", 20),
    "bfloat16, channels last": (12, 20, 1, False, "NXC", 20),
    "bfloat16 convolution, grouped, channels last": (12, 36, 2, True, "NXC", 20),
}
"""bfloat16 layers that dot products compute."""


@dataclass(frozen=True)
class Layer:
    """A layer and its input."""

    convolves: bool
    x: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    keywords: dict[str, Any]

    def whole(self) -> tuple[str, np.ndarray]:
        """Return the kernel that computes the whole, and the result."""
        make = upconv.conv_plan if self.convolves else upconv.plan
        how = {"engine": "jit", "algorithm": "direct"} | self.keywords
        with make(self.x.shape, self.weight, self.bias, **how) as plan:
            return direct_variant(plan.problem, 1, host()), plan(self.x)


def layer(seed: int, families: dict[str, Any]) -> tuple[str, Layer]:
    """Return the layer of a seed; successive seeds cycle through the families."""
    rng = random.Random(seed)
    family = list(families)[seed % len(families)]
    c, f, groups, convolves, layout, longest = families[family]
    rank = rng.choice((1, 2, 2, 3))
    size = (*(rng.randint(7, 9) for _ in range(rank - 1)), rng.randint(longest // 2, longest))
    kernel = tuple(rng.randint(2, 3) for _ in range(rank))
    weight = (f, c // groups) if convolves else (c, f // groups)
    keywords = {
        "stride": rng.choice((1, 1, 2)),
        "padding": tuple((rng.randint(-1, 1), rng.randint(-1, 1)) for _ in range(rank)),
        "dilation": rng.choice((1, 1, 2)),
        "groups": groups,
        "layout": layout,
        "weight_layout": "OIX" if convolves else "IOX",
    }
    if not convolves:
        keywords["output_padding"] = rng.choice((0, 1))
    values = np.random.default_rng(seed)
    x_shape = (2, c, *size) if layout == "NCX" else (2, *size, c)
    dtype = (
        DType.BFLOAT16 if families is PAIRS else rng.choice((DType.FLOAT32,) * 3 + (DType.FLOAT64,))
    )
    arrays = (
        values.standard_normal(shape).astype(dtype.numpy)
        for shape in (x_shape, (*weight, *kernel), f)
    )
    return family, Layer(convolves, *arrays, keywords)


def cut(rng: random.Random, total: int) -> tuple[int, ...]:
    """Return random sizes with this total."""
    sizes: list[int] = []
    while sum(sizes) < total:
        sizes.append(min(rng.choice((1, 2, 5, 17)), total - sum(sizes)))
    return tuple(sizes) or (0,)


def in_chunks(rng: random.Random, each: Layer) -> np.ndarray:
    """Return the result of Dask's tasks on random chunks."""
    import dask.array as da

    from upconv import dask as lazy

    chunks = tuple(cut(rng, size) for size in each.x.shape)
    call = lazy.conv if each.convolves else lazy.conv_transpose
    y = call(da.from_array(each.x, chunks=chunks), each.weight, each.bias, **each.keywords)
    result: np.ndarray = y.compute(scheduler="synchronous")
    return result


def as_stream(rng: random.Random, each: Layer) -> np.ndarray:
    """Return the result of a stream on random chunks."""
    axis = -1 if each.keywords["layout"] == "NCX" else -2
    make = upconv.conv_stream if each.convolves else upconv.stream
    stream = make(each.weight, each.bias, length=each.x.shape[axis], **each.keywords)
    ends = np.cumsum(cut(rng, each.x.shape[axis]))[:-1]
    parts = [stream.push(part) for part in np.split(each.x, ends, axis)]
    return np.concatenate([*parts, stream.finish()], axis)


def differing(a: np.ndarray, b: np.ndarray) -> int:
    """Return how many numbers differ in any bit."""
    bits = f"u{a.itemsize}"
    return int((a.view(bits) != b.view(bits)).sum())


def main(seeds: range, families: dict[str, Any] = FAMILIES) -> None:
    """Print every difference, and then the kernels that computed the layers."""
    kernels: set[str] = set()
    for seed in seeds:
        rng, (family, each) = random.Random(seed), layer(seed, families)
        kernel, whole = each.whole()
        kernels.add(kernel)
        ways = [in_chunks, as_stream] if each.weight.ndim == 3 else [in_chunks]
        for way in ways:
            wrong = differing(way(rng, each), whole)
            if wrong:
                name = f"seed {seed}, {family}, {kernel}, {way.__name__}"
                print(f"{name}: {wrong} of {whole.size} values differ")
    print(*sorted(kernels))
