"""A small vocoder writes a melody to a WAV file: chunks and one run give the same bytes.

The vocoder is an upsampler that oscillates. A transposed convolution spreads each frame of 20 ms
over 320 samples, and two residual convolutions follow. The frames arrive one at a time.

    python examples/vocoder_wav.py [melody.wav]

Claims: the file written in chunks equals the file of one run, byte by byte; each chunk gives 160
samples. Without a file name, the files go to a temporary folder.
"""

from __future__ import annotations

import sys
import tempfile
import wave
from pathlib import Path

import numpy as np

from upconv.network import Network

RATE, HOP, FRAMES, CHUNK = 8000, 160, 96, 1
NOTES = tuple(50 * overtone for overtone in (8, 9, 10, 11, 12, 13, 15, 16))
"""A scale of overtones in Hz. A hop holds whole periods of each, so notes continue smoothly."""


def vocoder() -> Network:
    """Return a network from notes, (1, 8, frames), to samples, (1, 1, 160 * frames)."""
    network = Network({"notes": (1, len(NOTES), None)})
    time = np.arange(2 * HOP) / RATE
    window = np.hanning(2 * HOP + 1)[:-1]
    weight = np.stack([window * np.sin(2 * np.pi * note * time) for note in NOTES])[:, None]
    y = network.conv_transpose(
        network.inputs["notes"], weight, stride=HOP, padding=HOP // 2, activation="tanh"
    )
    for dilation in (1, 3):
        smooth = np.array([[[0.1, 0.2, 0.1]]])
        y = y + network.conv(y, smooth, padding=dilation, dilation=dilation)
    network.output(network.activation(y * 0.5, "tanh"))
    return network


def melody() -> np.ndarray:
    """Return the notes in sequence, 12 frames each, fading out."""
    frames = np.zeros((1, len(NOTES), FRAMES), np.float32)
    for number in range(len(NOTES)):
        frames[0, number, 12 * number : 12 * (number + 1)] = np.linspace(1, 0.2, 12)
    return frames


def write(path: Path, parts: list[np.ndarray]) -> None:
    """Write samples to a 16-bit WAV file."""
    with wave.open(str(path), "wb") as audio:
        audio.setparams((1, 2, RATE, 0, "NONE", ""))
        for part in parts:
            audio.writeframes((part * 32767).round().astype("<i2").tobytes())


def main() -> None:
    """Stream the melody to a file, and compare it with the file from one run on all frames."""
    network, notes = vocoder(), melody()
    # `chunk=FRAMES` selects the kernels that one run on all frames uses, so the bits are the same.
    stream = network.stream(algorithm="direct", chunk=FRAMES)
    parts = [stream.push(notes[..., i : i + CHUNK]) for i in range(0, FRAMES, CHUNK)]
    assert parts[1].shape == (1, 1, CHUNK * HOP)
    whole = network.compile({"notes": notes.shape}, algorithm="direct").run(notes)
    with tempfile.TemporaryDirectory() as folder:
        chunked = Path(sys.argv[1] if len(sys.argv) > 1 else f"{folder}/chunked.wav")
        write(chunked, [*parts, stream.finish()])
        write(Path(folder) / "whole.wav", [whole])
        data = chunked.read_bytes()
        assert data == (Path(folder) / "whole.wav").read_bytes()
    seconds = FRAMES * HOP / RATE
    print(f"{seconds:.1f} s of melody: {len(data)} bytes, the same in chunks and in one run")


if __name__ == "__main__":
    main()
