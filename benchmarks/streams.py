"""HiFi-GAN V1 in chunks, as a stream and by overlapping chunks: docs/streaming.md, "How fast".

    python benchmarks/streams.py [--rounds 5] [--threads 1 2] [--chunks 10 20 40 100]

Without state, a chunk is computed with the receptive field on both sides, and the results there are
discarded, as people do today. ONNX Runtime runs so here; `upconv.onnx.stream` carries state. Both
read the same file with random weights, take turns, and must return the same samples. A chunk's
length is rounded up to whole frames of 11.6 ms. First audio is the time to the first samples of a
new stream with prepared programs: computing, and waiting for input.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx_zoo
import onnxruntime
import torch
from audio_models import HiFiGan

from upconv.onnx import stream

RATE, HOP, BANDS, FIELD = 22_050, 256, 80, 13
"""Samples per second, samples per frame, bands, and frames read on either side of a result."""
FRAMES = 60
Pushed = list[tuple[float, np.ndarray[Any, Any]]]


def exported(path: Path) -> None:
    """Write the model to a file."""
    torch.manual_seed(0)
    axes = {"input_names": ["mel"], "dynamic_axes": {"mel": {2: "frames"}}}
    with onnx_zoo.quiet():
        mel = torch.zeros(1, BANDS, FRAMES)
        torch.onnx.export(HiFiGan().eval(), (mel,), path, dynamo=False, **axes)


def timed(run: Any) -> tuple[float, np.ndarray[Any, Any]]:
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def by_stream(speech: Any, mel: np.ndarray[Any, Any], chunk: int) -> Pushed:
    """Return the seconds and samples of each push and of the end."""
    speech.reset()
    cuts = [mel[..., i : i + chunk] for i in range(0, FRAMES, chunk)]
    return [timed(lambda c=c: speech.push(c)) for c in cuts] + [timed(speech.finish)]


def by_overlap(session: Any, mel: np.ndarray[Any, Any], chunk: int) -> Pushed:
    """Return the same for runs on overlapping chunks."""
    parts = []
    for first in range(0, FRAMES, chunk):
        begin, stop = max(0, first - FIELD), min(FRAMES, first + chunk)
        end = min(FRAMES, stop + FIELD)
        piece = np.ascontiguousarray(mel[..., begin:end])
        seconds, y = timed(lambda piece=piece: session.run(None, {"mel": piece})[0])
        parts.append((seconds, y[..., (first - begin) * HOP : (stop - begin) * HOP]))
    return parts


def first_audio(parts: Pushed, chunk: int, ahead: int) -> float:
    """Return milliseconds from the first frame to the first samples: waiting and computing."""
    number = next(i for i, (_, y) in enumerate(parts) if y.size)
    frames = max((number + 1) * chunk, ahead)
    return frames * HOP / RATE * 1e3 + parts[number][0] * 1e3


def rows(path: Path, threads: int, milliseconds: list[int], rounds: int) -> None:
    """Print the rows for a number of threads."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options)
    mel = np.random.default_rng(0).standard_normal((1, BANDS, FRAMES), np.float32)
    whole, audio = session.run(None, {"mel": mel})[0], FRAMES * HOP / RATE
    for length in milliseconds:
        chunk = -(-length * RATE // (1000 * HOP))
        speech = stream(path, chunk=chunk, threads=threads)
        ways = {
            "ONNX Runtime": (lambda c=chunk: by_overlap(session, mel, c), chunk + FIELD),
            "upconv": (lambda c=chunk, s=speech: by_stream(s, mel, c), 0),
        }
        best = dict.fromkeys(ways, (np.inf, np.inf))
        for number in range(rounds + 1):
            for name, (run, ahead) in ways.items():
                parts = run()
                y = np.concatenate([part for _, part in parts], -1)
                np.testing.assert_allclose(y, whole, rtol=0, atol=1e-4)
                if number:  # the first round prepares programs
                    spent = sum(seconds for seconds, _ in parts)
                    first = first_audio(parts, chunk, ahead)
                    best[name] = min(best[name][0], first), min(best[name][1], spent)
        for name, (first, spent) in best.items():
            cells = (threads, f"{length} ms = {chunk}", name, f"{first:.0f} ms")
            print("|", *(f"{cell} |" for cell in cells), f"{audio / spent:.2f} x |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--chunks", type=int, nargs="+", default=[10, 20, 40, 100])
    asked = parser.parse_args()
    print("| threads | chunk, frames | runtime | first audio | real time |")
    print("|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocoder.onnx"
        exported(path)
        for threads in asked.threads:
            rows(path, threads, asked.chunks, asked.rounds)


if __name__ == "__main__":
    main()
