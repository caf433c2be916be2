"""A vocoder's upsampler, fed frame by frame: the samples of one call, and no late builds.

Two layers with stride s and kernel 2s, and leaky_relu between them, turn a frame of features into
audio. A frame's full result overlaps the next one's by k - s positions. So each layer keeps that
tail, adds it to the beginning of the next result, and returns the finished positions.
Bias and activation are applied only to finished positions.

Claims: the stream equals the whole signal with k - s positions cut from the end; two primitives are
built, both before the first frame.
"""

from __future__ import annotations

import numpy as np

import upconv

FRAME = 16  # feature columns in each frame
SLOPE = 0.1


class StreamingLayer:
    """One transposed convolution of a signal that arrives in frames of equal length."""

    def __init__(
        self, weight: np.ndarray, bias: np.ndarray, stride: int, frame: int, slope: float
    ) -> None:
        """Make a plan for frames of `frame` positions; `slope` 1 means no activation."""
        self._plan = upconv.plan((1, weight.shape[0], frame), weight, stride=stride)
        self._bias, self._slope = bias[:, None], slope
        self._finished = frame * stride
        self._tail = np.zeros((1, weight.shape[1], weight.shape[2] - stride), weight.dtype)

    def __call__(self, frame: np.ndarray) -> np.ndarray:
        """Return the positions that this frame finishes."""
        full = self._plan(frame)
        full[:, :, : self._tail.shape[2]] += self._tail
        self._tail = full[:, :, self._finished :]
        finished = full[:, :, : self._finished] + self._bias
        return np.where(finished < 0, self._slope * finished, finished)


def whole(x: np.ndarray, layers: list[tuple]) -> np.ndarray:
    """Compute the same two layers on the whole signal at once."""
    for weight, bias, stride, slope in layers:
        crop = weight.shape[2] - stride
        x = upconv.conv_transpose(
            x,
            weight,
            bias,
            stride=stride,
            padding=((0, crop),),
            activation=("leaky_relu", slope) if slope != 1 else None,
        )
    return x


def main() -> None:
    """Stream 40 frames, and compare the result with one call."""
    rng = np.random.default_rng(2)
    layers = [
        (rng.standard_normal((32, 16, 16)) / 16, rng.standard_normal(16), 8, SLOPE),
        (rng.standard_normal((16, 1, 8)) / 8, rng.standard_normal(1), 4, 1),
    ]
    upconv.cache_clear()
    first = StreamingLayer(*layers[0][:3], FRAME, SLOPE)
    second = StreamingLayer(*layers[1][:3], FRAME * layers[0][2], 1)
    built = upconv.cache_info().builds

    features = rng.standard_normal((1, 32, 40 * FRAME))
    frames = np.split(features, 40, axis=2)
    audio = np.concatenate([second(first(frame)) for frame in frames], axis=2)

    late = upconv.cache_info().builds - built
    error = np.abs(audio - whole(features, layers)).max()
    print(f"{len(frames)} frames of {FRAME} columns -> {audio.shape[2]} samples")
    print(f"primitives built before the first frame: {built}, during the stream: {late}")
    print(f"largest difference from the whole signal: {error:.1e}")
    assert (built, late) == (2, 0)
    assert error < 1e-12


if __name__ == "__main__":
    main()
