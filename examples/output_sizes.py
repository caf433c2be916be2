"""A decoder's sizes before anything is allocated: shapes, work, crops for a requested size.

Claims: each layer's output shape is the next layer's input shape; `output_size` reaches every size;
a layer that does not fit in memory is refused before anything is allocated; a small layer has the
predicted shape.
"""

from __future__ import annotations

import numpy as np

import upconv

LAYERS = (
    # (weight (C, F, *kernel), keywords)
    ((512, 256, 4, 4, 4), {"stride": 2, "padding": 1}),
    ((256, 128, 4, 4, 4), {"stride": 2, "padding": 1}),
    ((128, 64, 3, 3, 3), {"stride": 2, "padding": "same_upper"}),
    ((64, 32, 5, 5, 5), {"stride": (1, 3, 3), "padding": (2, 1, 1)}),
)


def main() -> None:
    """Compute the sizes of a 3-D decoder from shapes alone."""
    shape = (1, 512, 12, 20, 20)
    print("x", shape)
    for weight, keywords in LAYERS:
        layer = upconv.explain(shape, weight, **keywords)
        assert layer.output_shape == upconv.output_shape(shape, weight, **keywords)
        shape = layer.output_shape
        gib = layer.nbytes / 2**30
        print(f"  {shape}: {layer.multiply_adds / 1e9:7.1f} G multiply-adds, {gib:5.2f} GiB")
    assert shape[:2] == (1, 32)

    # You can request any size; the crop at the end follows from it.
    print("from 5 positions with kernel 3, stride 2, cut by 1 at the beginning:")
    for size in (9, 10, 11, 14):
        layer = upconv.explain((1, 1, 5), (1, 1, 3), stride=2, padding=1, output_size=size)
        axis = layer.problem.axes[0]
        print(f"  {size:2} positions: crops ({axis.crop_begin}, {axis.crop_end})")
        assert axis.out == size
    y = upconv.conv_transpose(
        np.ones((1, 1, 5)), np.ones((1, 1, 3)), stride=2, padding=1, output_size=14
    )
    assert y.shape == (1, 1, 14)

    # With too many digits in a stride, the size is computed and the call refused, without memory.
    small = np.ones((1, 1, 3)), np.ones((1, 1, 3))
    print(upconv.output_shape((1, 1, 3), (1, 1, 3), stride=10**14))
    try:
        upconv.conv_transpose(*small, stride=10**14)
    except upconv.MemoryLimitError as error:
        print(f"refused: {error}")
    else:
        raise AssertionError("a result of 1.4 PiB was allocated")


if __name__ == "__main__":
    main()
