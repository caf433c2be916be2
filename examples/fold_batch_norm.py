"""A decoder block for inference: batch normalization folded into its transposed convolution.

Claims: the folded layer gives the same results as layer plus normalization, even with groups and
with an activation after the normalization; folding does not change the caller's arrays.
"""

from __future__ import annotations

import numpy as np

import upconv


def main() -> None:
    """Collect statistics from a few batches, fold them, and compare."""
    rng = np.random.default_rng(0)
    groups, layer = 4, {"stride": 2, "padding": 1, "groups": 4}
    weight = (rng.standard_normal((32, 6, 4, 4)) * 0.1).astype(np.float32)
    outputs = 6 * groups
    gamma, beta = (rng.standard_normal(outputs).astype(np.float32) for _ in range(2))
    mean, var = np.zeros(outputs, np.float32), np.ones(outputs, np.float32)

    for _ in range(5):  # let the moving statistics converge; `out` updates them in place
        x = rng.standard_normal((4, 32, 12, 10)).astype(np.float32) + 0.5
        y = upconv.conv_transpose(x, weight, **layer)
        moving = upconv.BatchNormResult(moving_mean=mean, moving_var=var)
        upconv.batch_norm(y, gamma, beta, mean, var, momentum=0.4, training=True, out=moving)

    before = weight.copy()
    folded = upconv.fold_batch_norm(weight, None, gamma, beta, mean, var, groups=groups)
    assert np.array_equal(weight, before)

    x = rng.standard_normal((1, 32, 12, 10)).astype(np.float32)
    normalized = upconv.batch_norm(
        upconv.conv_transpose(x, weight, **layer), gamma, beta, mean, var
    ).y
    separate = np.maximum(normalized, 0)
    combined = upconv.conv_transpose(x, *folded, activation="relu", **layer)
    difference = float(np.abs(separate - combined).max())
    print(f"weight {folded.weight.shape}, bias {folded.bias.shape}, groups {groups}")
    print(f"largest difference {difference:.1e} of values up to {separate.max():.1f}")
    assert difference < 1e-5 * max(1.0, float(separate.max()))


if __name__ == "__main__":
    main()
