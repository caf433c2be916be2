"""The overhead of a warm call over the engine's own work, in microseconds.

    python benchmarks/overhead.py [--rounds 2000] [--json]

A null engine, whose primitive returns at once, replaces the real one. What remains is checking the
arguments, finding the primitive and allocating the result. Each figure is the median of many rounds
of 50 calls. Targets: `conv_transpose` under 6,
its gradients under 15 (a third of it NumPy's, for the bias), `Plan` under 2.5.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np

import upconv
from upconv.testing import require_engine


class NullPrimitive:
    """A primitive that does nothing."""

    workspace_bytes = 0
    resident_bytes = 0
    description = ""
    predicted_cycles = 0.0

    def pack(self, weight: np.ndarray) -> np.ndarray:
        return weight

    def run(self, out, a, b, bias=None, residual=None) -> None:
        return None

    def close(self) -> None:
        return None


class NullEngine:
    """An engine whose work takes no time."""

    name = "null"

    def fingerprint(self) -> str:
        return "1"

    def refuses(self, problem: object) -> None:
        return None

    def variants(self, problem: object, threads: int) -> tuple[str, ...]:
        return ("",)

    def build(self, problem: object, threads: int, variant: str = "") -> NullPrimitive:
        return NullPrimitive()


def median_microseconds(call: Callable[[], object], rounds: int, calls: int = 50) -> float:
    """Return the median over rounds of a call's mean time."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times) * 1e6


def cases() -> dict[str, Callable[[], object]]:
    engine = NullEngine()
    x = np.zeros((1, 8, 16, 16), np.float32)
    w, b = np.zeros((8, 4, 4, 4), np.float32), np.zeros(4, np.float32)
    how = {"stride": 2, "padding": 1, "engine": engine}
    y = upconv.conv_transpose(x, w, b, **how)
    z, into = np.empty_like(y), upconv.Gradients(np.empty_like(x), np.empty_like(w))
    plan = upconv.plan(x.shape, w, b, **how)
    require_engine("the layer", engine.name, plan)
    return {
        "conv_transpose(x, w, b)": lambda: upconv.conv_transpose(x, w, b, **how),
        "conv_transpose(..., out=y)": lambda: upconv.conv_transpose(x, w, b, out=y, **how),
        "conv_transpose, tuples": lambda: upconv.conv_transpose(
            x, w, b, stride=(2, 2), padding=((1, 1), (1, 1)), engine=engine
        ),
        "... with all arguments": lambda: upconv.conv_transpose(
            x,
            w,
            b,
            stride=(2, 2),
            padding=((1, 1), (1, 1)),
            activation=("leaky_relu", 0.2),
            residual=y,
            engine=engine,
            out=z,
        ),
        "conv_transpose_backward": lambda: upconv.conv_transpose_backward(y, x, w, **how),
        "... out=, no bias": lambda: upconv.conv_transpose_backward(
            y, x, w, needs=("x", "weight"), out=into, **how
        ),
        "plan(x)": lambda: plan(x),
        "plan(x, out=y)": lambda: plan(x, out=y),
        "np.empty of the result": lambda: np.empty(y.shape, np.float32),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = {name: median_microseconds(call, options.rounds) for name, call in cases().items()}
    if options.json:
        print(json.dumps({"microseconds": figures, "numpy": np.__version__}))
        return
    for name, figure in figures.items():
        print(f"{name:28s} {figure:7.2f} us")


if __name__ == "__main__":
    main()
