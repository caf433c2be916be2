"""`upconv stream`: run a model chunk by chunk on files or pipes, and show its real-time factor."""

from __future__ import annotations

import re
import sys
import time
import wave
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from typer import Argument, BadParameter, Option

from ..arrays import Array
from ..errors import ArgumentError, FileError, brief
from ..files import published, reported
from . import npy, options
from .exits import say

_SUFFIXES = {".npy": "npy", ".wav": "wav"}
_FORMATS = {
    *(".wav", ".mp3", ".flac", ".ogg", ".jpg", ".png"),
    *(".npz", ".onnx", ".txt", ".csv", ".json"),
}
"""Extensions that raw numbers must not have."""
_CHUNK = "20ms"
_LOUDEST = 32767  # 1.0 in 16 bits
_Format = Literal["f32", "s16"]


def stream(
    model: Annotated[Path, Argument(metavar="MODEL", help="The model: .onnx.")],
    source: Annotated[
        str,
        Argument(metavar="IN", help="The input: .npy, else raw; - is stdin."),
    ],
    target: Annotated[
        str,
        Argument(metavar="OUT", help="The result: .npy or .wav, else raw; - is stdout."),
    ],
    *,
    chunk: Annotated[
        str | None,
        Option(metavar="C", help="Input positions per chunk, or a time (default: 20ms)."),
    ] = None,
    rate: Annotated[
        int | None, Option(min=1, metavar="HZ", help="Result positions per second.")
    ] = None,
    axis: Annotated[int, Option(metavar="A", help="The time axis of the input.")] = -1,
    input_format: Annotated[
        _Format | None, Option(help="Number format of raw input (default: f32).")
    ] = None,
    format_: Annotated[_Format, Option("--format", help="Number format of raw results.")] = "f32",
    precision: Annotated[
        Literal["float32", "bfloat16"], Option(help="Type of all intermediate values.")
    ] = "float32",
    threads: options.Threads = None,
    force: options.Force = False,
) -> None:
    """Compute an ONNX model chunk by chunk along time.

    Raw inputs and results hold each position's numbers together. The last line on stderr shows
    the real-time factor and the computing time until the first result.

    \b
    Examples:
      upconv stream vocoder.onnx mel.npy speech.wav --rate 24000
      upconv stream vocoder.onnx mel.f32 - --rate 24000 --format s16 > a.raw
      upconv stream denoiser.onnx a.s16 b.wav --rate 16000 --input-format s16
    """
    _refuse_formats(source, "IN", "read", ".npy", "stdin")
    _refuse_formats(target, "OUT", "write", ".npy, .wav", "stdout")
    path = None
    if target != "-":
        inputs = None if source == "-" else Path(source)
        path = npy.place(target, (), force=force, inputs=[inputs], model=model, option="OUT")
    kind = _SUFFIXES.get("" if path is None else path.suffix.lower(), format_)
    if kind == "wav" and rate is None:
        raise BadParameter("a .wav file needs it", param_hint="--rate")
    if chunk is None:
        if rate is None:
            words = f"the default chunk of {_CHUNK} needs it; or give --chunk as a number"
            raise BadParameter(f"{words} of positions", param_hint="--rate")
        chunk = _CHUNK
    if input_format is not None and _is_npy(source):
        raise BadParameter("a .npy file states its own", param_hint="--input-format")
    from ..onnx import stream as streamed

    began = time.perf_counter()
    speech = streamed(model, axis=axis, precision=precision, threads=threads)
    size = _positions(chunk, rate, speech.progress.rate)
    speech.prepare(size)
    clock = _Clock()
    with _written(path, kind, rate, force) as write:
        for part in _chunks(source, input_format or "f32", speech, axis, size):
            write(clock.timed(speech.push, part))
        write(clock.timed(speech.finish))
    say(clock.summary(rate, clock.began - began, speech.latency))


def _positions(chunk: str, rate: int | None, factor: Fraction) -> int:
    """Return the number of input positions in a chunk."""
    match = re.fullmatch(r"([0-9]{1,9})(ms)?", chunk.strip())
    if match is None or not int(match[1]):
        words = f"{chunk!r}; expected positions, as in 8, or a time, as in 20ms"
        raise BadParameter(words, param_hint="--chunk")
    if match[2] is None:
        return int(match[1])
    if rate is None:
        words = f"{chunk} is a time: --rate must give the positions per second"
        raise BadParameter(words, param_hint="--chunk")
    return max(1, round(int(match[1]) * rate / (1000 * factor)))


def _refuse_formats(name: str, option: str, verb: str, formats: str, pipe: str) -> None:
    """Refuse a file of a known format, which would be read or written as raw numbers."""
    suffix = Path(name).suffix.lower()
    if suffix in _FORMATS and suffix not in formats:
        words = f"{brief(name)} ends in {suffix}, which the command does not {verb}; it {verb}s"
        rest = f"{formats}, raw numbers (another extension, or none) and - ({pipe})"
        raise BadParameter(f"{words} {rest}", param_hint=option)


def _is_npy(source: str) -> bool:
    return source != "-" and Path(source).suffix.lower() == ".npy"


def _chunks(source: str, kind: str, speech: Any, axis: int, size: int) -> Iterator[Array]:
    """Yield the chunks of the input."""
    shapes = list(speech.signature.shapes.values())
    if len(shapes) > 1:
        raise ArgumentError("the model", f"of {len(shapes)} inputs", "of one input")
    if _is_npy(source):
        array = (npy.read_all(Path(source)) or {})[""]
        if array.ndim != len(shapes[0]):
            expected = f"of {len(shapes[0])} axes"
            raise ArgumentError("the input", f"of shape {array.shape}", expected)
        if array.dtype.kind == "f" and array.dtype.itemsize != 4:
            say(f"the input is {array.dtype.name}; it is computed in float32")
            array = array.astype(np.float32)
        count = array.shape[axis]
        yield from np.split(array, range(size, count, size), axis)
        return
    number = axis % len(shapes[0])
    rest = [n for i, n in enumerate(shapes[0]) if i != number]
    dtype = np.dtype("<f4" if kind == "f32" else "<i2")
    width = int(np.prod(rest)) * dtype.itemsize
    with (
        reported(source, "read"),
        nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as file,
    ):
        while data := file.read(size * width):  # a whole chunk, or the rest
            if len(data) % width:
                words = f"has {len(data) % width} bytes after the last position of {width} bytes"
                raise FileError(f"{brief(source)} {words}.")
            rows = np.frombuffer(data, dtype).reshape(-1, *rest)
            chunk = np.ascontiguousarray(np.moveaxis(rows, 0, number), np.float32)
            yield chunk if kind == "f32" else chunk / np.float32(_LOUDEST)


@contextmanager
def _written(path: Path | None, kind: str, rate: int | None, force: bool) -> Iterator[Any]:
    """Yield a function that writes results in order; a file appears complete, or not at all."""
    if path is None:
        out = sys.stdout.buffer

        def write(part: Array) -> None:
            out.write(_raw(part, kind))
            out.flush()

        yield write
        return
    with reported(str(path)), published(path, force=force) as file:
        if kind == "npy":
            parts: list[Array] = []
            yield parts.append
            np.save(file, np.concatenate(parts, -1))
        elif kind == "wav":
            with wave.open(file, "wb") as audio:
                audio.setnchannels(1)  # a placeholder until the first samples come
                audio.setsampwidth(2)
                audio.setframerate(rate or 1)
                yield lambda part: _add_frames(audio, part)
        else:
            yield lambda part: file.write(_raw(part, kind))


def _add_frames(audio: wave.Wave_write, part: Any) -> None:
    """Add samples to a .wav file; the first samples set the number of its channels."""
    samples = _raw(part, "s16")
    if not audio.getnframes() and not samples:
        return
    if not audio.getnframes():
        audio.setnchannels(int(np.prod(part.shape[:-1])))
    audio.writeframesraw(samples)


def _raw(part: Any, kind: str) -> bytes:
    """Return the numbers, position by position, in little-endian order."""
    if isinstance(part, tuple):
        raise ArgumentError("the model", f"of {len(part)} outputs", "of one output")
    rows: Array = np.moveaxis(part, -1, 0)
    if kind == "s16":
        rows = (np.clip(rows, -1, 1) * _LOUDEST).round().astype("<i2")
    return np.ascontiguousarray(rows).tobytes()


class _Clock:
    """A clock of the computing time, in total and until the first result."""

    def __init__(self) -> None:
        self.began, self.seconds, self.samples = time.perf_counter(), 0.0, 0
        self.first: float | None = None

    def timed(self, call: Any, *arguments: Any) -> Any:
        """Time a call and return its result."""
        start = time.perf_counter()
        result = call(*arguments)
        self.seconds += time.perf_counter() - start
        count = 0 if isinstance(result, tuple) else result.shape[-1]
        self.samples += count
        if self.first is None and count:
            self.first = self.seconds
        return result

    def summary(self, rate: int | None, opening: float, latency: int) -> str:
        """Return the figures in one line."""
        first = f"first after {(self.first or 0) * 1e3:.0f} ms of computing"
        words = f"latency {latency} samples"
        if rate is None:
            return f"{self.samples} samples in {self.seconds:.2f} s, {first}, {words}"
        audio = self.samples / rate
        factor = self.seconds / audio if audio else 0.0
        times = f"{audio:.2f} s of audio in {self.seconds:.2f} s: real-time factor {factor:.3f}"
        late = f"{words} ({1e3 * latency / rate:.0f} ms), prepared in {opening:.2f} s"
        return f"{times}, {first}, {late}"
