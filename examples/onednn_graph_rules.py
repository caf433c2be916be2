"""oneDNN's SAME_UPPER: documentation and library differ by one position.

Claims: with rule="library" and rule="document" the same attributes pad opposite ends, so the
results differ; under each rule the gradients are adjoint to the forward operation.
"""

from __future__ import annotations

import numpy as np

from upconv import onednn_graph


def main() -> None:
    """Compute the forward result and both gradients under each rule."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 6, 7, 4))  # NXC
    w = rng.standard_normal((3, 3, 6, 4))  # XOI
    results = {}
    for rule, auto_pad in (("library", "SAME_UPPER"), ("document", "same_upper")):
        layer = {"strides": [2, 2], "auto_pad": auto_pad, "rule": rule}
        y = onednn_graph.convtranspose(x, w, **layer)
        g = rng.standard_normal(y.shape)
        dx = onednn_graph.convtranspose_backward_data(g, w, **layer)
        dw = onednn_graph.convtranspose_backward_weights(x, g, weights_shape=w.shape, **layer)
        np.testing.assert_allclose([np.vdot(x, dx), np.vdot(w, dw)], np.vdot(y, g), rtol=1e-9)
        results[rule] = y
        print(f"{rule}: {x.shape} -> {y.shape}, gradients adjoint")
    shifted = results["document"][:, :-1, :-1] - results["library"][:, 1:, 1:]
    print(f"largest difference after a shift by one position: {np.abs(shifted).max():.1e}")
    np.testing.assert_allclose(shifted, 0, atol=1e-12)
    assert np.abs(results["document"] - results["library"]).max() > 0.1


if __name__ == "__main__":
    main()
