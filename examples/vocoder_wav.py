"""A melody through a small vocoder to a WAV file, in chunks and as a whole: the same bytes.

The vocoder is an upsampler that oscillates: a transposed convolution spreads each frame over 80
samples, and two residual layers of convolutions follow. Frames of the melody come 4 at a time.

Claims: the file of the chunks equals the file of the whole byte by byte; each chunk makes 320
samples.
"""

from __future__ import annotations

import io
import wave

import numpy as np

from upconv.network import Network

RATE, HOP, FRAMES, CHUNK = 8000, 80, 200, 4
NOTES = (262, 294, 330, 349, 392, 440, 494, 523)


def vocoder() -> Network:
    """A network from notes, (1, 8, frames), to samples, (1, 1, 80 * frames)."""
    network = Network({"notes": (1, len(NOTES), None)})
    time = np.arange(2 * HOP) / RATE
    window = np.hanning(2 * HOP + 1)[:-1]
    # Notes whose period divides the hop sound without a break; others are rounded to such.
    tones = [np.round(note * HOP / RATE) * RATE / HOP for note in NOTES]
    weight = np.stack([window * np.sin(2 * np.pi * tone * time) for tone in tones])[:, None]
    y = network.conv_transpose(
        network.inputs["notes"], weight, stride=HOP, padding=HOP // 2, activation="tanh"
    )
    for dilation in (1, 3):
        smooth = np.array([[[0.1, 0.2, 0.1]]])
        y = y + network.conv(y, smooth, padding=dilation, dilation=dilation)
    network.output(network.activation(y * 0.5, "tanh"))
    return network


def melody() -> np.ndarray:
    """One note after the other, 25 frames each, that fade out."""
    frames = np.zeros((1, len(NOTES), FRAMES), np.float32)
    for number in range(len(NOTES)):
        frames[0, number, 25 * number : 25 * (number + 1)] = np.linspace(1, 0.2, 25)
    return frames


def write(file: io.BytesIO, parts: list[np.ndarray]) -> None:
    """Samples as a WAV file of 16 bits."""
    with wave.open(file, "wb") as audio:
        audio.setparams((1, 2, RATE, 0, "NONE", ""))
        for part in parts:
            audio.writeframes((part * 32767).round().astype("<i2").tobytes())


def main() -> None:
    """Stream the melody, and compare the two files."""
    stream = vocoder().stream(algorithm="direct", chunk=CHUNK)
    notes = melody()
    parts = [stream.push(notes[..., i : i + CHUNK]) for i in range(0, FRAMES, CHUNK)]
    assert parts[1].shape == (1, 1, CHUNK * HOP)
    chunked, whole = io.BytesIO(), io.BytesIO()
    write(chunked, [*parts, stream.finish()])
    stream.reset()
    write(whole, [stream.push(notes), stream.finish()])
    assert chunked.getvalue() == whole.getvalue()
    seconds = FRAMES * HOP / RATE
    print(f"{seconds:.1f} s of melody: {len(chunked.getvalue())} bytes, chunked and whole alike")


if __name__ == "__main__":
    main()
