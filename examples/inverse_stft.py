"""The inverse STFT as one transposed convolution.

An inverse STFT computes a windowed frame of n samples from every spectrum and adds the frames,
hop samples apart. This is a transposed convolution with kernel n and stride hop. Its input channels
are the real and imaginary parts; its weight holds the rows of the inverse DFT times the window.
Cropping n/2 at both ends undoes the centring.

Claims: the result equals the frames added one by one; divided by the sum of squared windows, which
is another transposed convolution, it equals the original signal.
"""

from __future__ import annotations

import numpy as np

import upconv

N, HOP = 512, 128
CROP = ((N // 2, N // 2),)
WINDOW = np.hanning(N + 1)[:-1]


def stft(signal: np.ndarray) -> np.ndarray:
    """Return the spectra (bins, frames) of the centred signal."""
    padded = np.pad(signal, N // 2)
    starts = range(0, len(padded) - N + 1, HOP)
    return np.stack([np.fft.rfft(WINDOW * padded[start : start + N]) for start in starts], axis=1)


def synthesis_weight() -> np.ndarray:
    """Return the weight (2*bins, 1, N): frames of unit real, then of unit imaginary bins."""
    units = np.eye(N // 2 + 1)
    real, imaginary = np.fft.irfft(units, n=N), np.fft.irfft(1j * units, n=N)
    return (np.concatenate([real, imaginary]) * WINDOW)[:, None]


def inverse_stft(spectra: np.ndarray) -> np.ndarray:
    """Compute the signal with two transposed convolutions."""
    x = np.concatenate([spectra.real, spectra.imag])[None]
    summed = upconv.conv_transpose(x, synthesis_weight(), stride=HOP, padding=CROP)
    ones = np.ones((1, 1, spectra.shape[1]))
    squares = (WINDOW**2)[None, None]
    envelope = upconv.conv_transpose(ones, squares, stride=HOP, padding=CROP)
    return (summed / envelope)[0, 0]


def overlap_add(spectra: np.ndarray) -> np.ndarray:
    """Compute the numerator by the textbook: add one frame at a time."""
    frames = np.fft.irfft(spectra, n=N, axis=0) * WINDOW[:, None]
    total = np.zeros(HOP * (frames.shape[1] - 1) + N)
    for number in range(frames.shape[1]):
        total[HOP * number : HOP * number + N] += frames[:, number]
    return total[N // 2 : -N // 2]


def main() -> None:
    """Analyse a chirp and reconstruct it."""
    time = np.arange(16 * N) / 16000
    signal = np.sin(2 * np.pi * (200 + 1500 * time) * time)
    spectra = stft(signal)
    x = np.concatenate([spectra.real, spectra.imag])[None]
    summed = upconv.conv_transpose(x, synthesis_weight(), stride=HOP, padding=CROP)[0, 0]
    to_frames = np.abs(summed - overlap_add(spectra)).max()
    again = inverse_stft(spectra)
    to_signal = np.abs(again - signal).max()
    print(f"{len(signal)} samples -> {spectra.shape[0]} bins x {spectra.shape[1]} frames -> back")
    print(f"largest difference from frames added one by one: {to_frames:.1e}")
    print(f"largest difference from the signal:              {to_signal:.1e}")
    assert again.shape == signal.shape
    assert to_frames < 1e-11
    assert to_signal < 1e-11


if __name__ == "__main__":
    main()
