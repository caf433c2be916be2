"""Batch normalization compared with PyTorch on the same arrays, in one run.

    python benchmarks/batch_norm.py [--rounds 25] [--threads 2]

Calls alternate. The table shows median times in ms, and upconv's median over PyTorch's. Each call
allocates its result. Rows: channels first and last; training, inference, gradients. upconv runs on
one thread, PyTorch on --threads.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional

import upconv

LAYERS = (
    ((8, 64, 64, 64), 1),
    ((1, 32, 32, 64, 64), 1),
    ((128, 512, 3, 3), 1),
    ((8, 64, 64, 64), -1),
)


def medians(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Return the median time of each call in ms; the calls alternate."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds + 2):
        for call, samples in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            samples.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(samples[2:]) for samples in times]


def pairs(shape: tuple[int, ...], axis: int) -> dict[str, list[Callable[[], object]]]:
    """Return PyTorch's and upconv's call for each row."""
    rng = np.random.default_rng(0)
    x, grad = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    gamma, beta, mean = (rng.standard_normal(shape[axis]).astype(np.float32) for _ in range(3))
    var = rng.random(shape[axis]).astype(np.float32) + 1
    tensors = [torch.from_numpy(array) for array in (x, grad)]
    tx, tgrad = (t if axis == 1 else t.movedim(-1, 1) for t in tensors)
    tgamma, tbeta, tmean, tvar = map(torch.from_numpy, (gamma, beta, mean.copy(), var.copy()))
    done = upconv.batch_norm(x, axis=axis, training=True)
    saved = [torch.from_numpy(v.astype(np.float32)) for v in (done.saved_mean, done.saved_invstd)]
    stats = (done.saved_mean, done.saved_invstd)

    def theirs(training: bool) -> Callable[[], object]:
        return lambda: functional.batch_norm(tx, tmean, tvar, tgamma, tbeta, training)

    def ours(training: bool) -> Callable[[], object]:
        return lambda: upconv.batch_norm(x, gamma, beta, mean, var, axis=axis, training=training)

    gradients = torch.ops.aten.native_batch_norm_backward
    return {
        "training": [theirs(True), ours(True)],
        "inference": [theirs(False), ours(False)],
        "gradients": [
            lambda: gradients(tgrad, tx, tgamma, tmean, tvar, *saved, True, 1e-5, [True] * 3),
            lambda: upconv.batch_norm_backward(grad, *stats, x, gamma, beta, axis=axis),
        ],
    }


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print("| x | axis | | PyTorch | upconv |")
    print("|---" * 5 + "|")
    for shape, axis in LAYERS:
        for row, calls in pairs(shape, axis).items():
            first, own = medians(calls, options.rounds)
            print(f"| {shape} | {axis} | {row} | {first:.2f} | {own:.2f} ({own / first:.1f}) |")


if __name__ == "__main__":
    main()
