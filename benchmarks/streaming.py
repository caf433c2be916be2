"""Audio decoders in chunks of 20 ms against the same layers on the whole input: docs/streaming.md.

    python benchmarks/streaming.py [--seconds 2] [--rounds 5] [--threads 1]

Two stacks with random weights: the generator of HiFi-GAN V1 (22.05 kHz, hop 256: upsamplings by 8,
8, 2, 2, after each the mean of three residual blocks of six convolutions), and the decoder of
EnCodec (24 kHz, hop 320: causal upsamplings by 8, 5, 4, 2, after each one residual block; without
its LSTM, and with leaky ReLU for ELU). A chunk is the frames that 20 ms complete, 1 or 2. Whole and
chunked runs take turns, and the shortest time of each counts: processor time on one thread,
wall-clock time on several. Their results are compared bit for bit.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import upconv
from upconv.streaming import add, chain

_LEAKY = ("leaky_relu", 0.1)


def weight(*shape: int) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(sum(shape))
    fan = shape[1] * shape[2] if len(shape) == 3 else shape[0]
    return (rng.standard_normal(shape) / fan**0.5).astype(np.float32)


def conv(c: int, f: int, kernel: int, dilation: int = 1, **more: Any) -> upconv.streaming.Stream:
    more.setdefault("padding", dilation * (kernel - 1) // 2)
    return upconv.conv_stream(weight(f, c, kernel), weight(f), dilation=dilation, **more)


def residual(c: int, kernel: int, dilation: int, more: dict[str, Any]) -> Any:
    """Return the stream of x + conv(leaky(conv(leaky(x))))."""
    first = conv(c, c, kernel, dilation, activation=_LEAKY, **more)
    return add((), (_LEAKY, first, conv(c, c, kernel, **more)))


def hifi_gan(threads: int, length: int) -> Any:
    """Return (chain, input channels, samples per second, samples per frame) of HiFi-GAN."""
    more: dict[str, Any] = {"threads": threads, "length": length}
    stages: list[Any] = [conv(80, 512, 7, **more)]
    c = 512
    for stride, kernel in ((8, 16), (8, 16), (2, 4), (2, 4)):
        w = weight(c, c // 2, kernel) * stride**0.5
        pad = (kernel - stride) // 2
        up = upconv.stream(w, weight(c // 2), stride=stride, padding=pad, **more)
        c //= 2
        blocks = []
        for k in (3, 7, 11):
            steps = [
                add(
                    (), (_LEAKY, conv(c, c, k, d, activation=_LEAKY, **more), conv(c, c, k, **more))
                )
                for d in (1, 3, 5)
            ]
            blocks.append(steps)
        stages += [_LEAKY, up, add(*blocks, scale=1 / 3)]
    return chain(*stages, _LEAKY, conv(c, 1, 7, activation="tanh", **more)), 80, 22_050, 256


def encodec(threads: int, length: int) -> Any:
    """Return the same for EnCodec."""
    more: dict[str, Any] = {"threads": threads, "length": length}
    stages: list[Any] = [conv(128, 512, 7, padding=((6, 0),), **more)]
    c = 512
    for stride in (8, 5, 4, 2):
        w = weight(c, c // 2, 2 * stride) * stride**0.5
        up = upconv.stream(w, weight(c // 2), stride=stride, padding=((0, stride),), **more)
        c //= 2
        inner = conv(c, c // 2, 3, padding=((2, 0),), activation=_LEAKY, **more)
        stages += [_LEAKY, up, add((), (_LEAKY, inner, conv(c // 2, c, 1, **more)))]
    return chain(*stages, _LEAKY, conv(c, 1, 7, padding=((6, 0),), **more)), 128, 24_000, 320


def chunks(frames: int, per_second: float) -> list[slice]:
    """Return slices of the frames that are complete after every 20 ms."""
    ends = [int(0.02 * per_second * i) for i in range(1, int(frames / per_second / 0.02) + 2)]
    ends = [min(end, frames) for end in ends]
    return [slice(a, b) for a, b in zip([0, *ends], [*ends, frames], strict=False) if b > a]


def seconds(run: Any, clock: Any) -> tuple[float, Any]:
    start = clock()
    result = run()
    return clock() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    asked = parser.parse_args()
    clock = time.thread_time if asked.threads == 1 else time.perf_counter
    print("| stack | latency | whole | chunks | chunks / whole | real time | slowest chunk |")
    print("|---|---|---|---|---|---|---|")
    for name, make in (("HiFi-GAN V1", hifi_gan), ("EnCodec 24 kHz", encodec)):
        for kernels, length in (("whole's", 4096), ("short chunks'", 1)):
            decoder, channels, rate, hop = make(asked.threads, length)
            frames = int(asked.seconds * rate / hop)
            x = np.random.default_rng(0).standard_normal((1, channels, frames), np.float32)
            cuts = chunks(frames, rate / hop)
            whole, streamed, slowest = np.inf, np.inf, np.inf
            for _ in range(asked.rounds):
                decoder.reset()
                took, y = seconds(lambda d=decoder, x=x: [d.push(x), d.finish()], clock)
                whole = min(whole, took)
                decoder.reset()
                parts, each = [], []
                for cut in cuts:
                    took, z = seconds(lambda d=decoder, x=x, c=cut: d.push(x[..., c]), clock)
                    parts.append(z)
                    each.append(took)
                took, z = seconds(decoder.finish, clock)
                streamed = min(streamed, sum(each) + took)
                slowest = min(slowest, max(each[10:]))  # the first chunks prepare windows
                assert np.concatenate(y, -1).tobytes() == np.concatenate([*parts, z], -1).tobytes()
            print(
                f"| {name}, {kernels} kernels | {decoder.latency} samples ="
                f" {decoder.latency / rate * 1e3:.1f} ms | {whole:.3f} s | {streamed:.3f} s"
                f" | {streamed / whole:.2f} | {asked.seconds / streamed:.1f} x"
                f" | {slowest * 1e3:.1f} ms |"
            )


if __name__ == "__main__":
    main()
