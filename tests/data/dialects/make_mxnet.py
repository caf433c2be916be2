"""Asks the real MXNet 1.9.1 what it makes of random Deconvolution attributes; writes mxnet.npz.

Run with an interpreter that has MXNet: `python make_mxnet.py`. `cases` holds one JSON object per
case: size, attributes, channels, and `out` (the spatial output size; null when MXNet refused the
attributes). `values` holds the results of the cases that have `start`, one after another, as int16:
(F, *out) from there. Inputs are `pattern` below, small integers, so that results are exact. The
built-in CPU engine computes them, because the oneDNN path ignores an active target_shape; it has no
rank 3, for which shapes alone are kept, as for layers that it is known to compute wrongly: those
with an axis both strided and dilated whose kernel has more than one tap.
"""

import json
import os
import pathlib
import random
import re

import numpy as np

CASES = 420


def pattern(shape, factor, modulus):
    """Small distinct-looking integers, the same everywhere."""
    count = int(np.prod(shape))
    return ((np.arange(count) * factor) % modulus - modulus // 2).reshape(shape).astype("float32")


def numbers(value, rank):
    """A shape attribute in any of its forms as a list of ints, 1 where it is missing."""
    return [int(digits) for digits in re.findall(r"\d+", str(value))] or [1] * rank


def draw(rng):
    """Random attributes, legal ones and some just beyond a limit; a third of them as text."""
    rank = rng.choice((1, 1, 2, 2, 2, 3))
    each = lambda low, high: tuple(rng.randint(low, high) for _ in range(rank))  # noqa: E731
    size = each(1, 4 if rank < 3 else 3)
    attributes = {"kernel": each(1, 4)}
    for name, low, high, chance in (
        ("stride", 1, 3, 0.8),
        ("dilate", 1, 3, 0.4 if rank < 3 else 0.1),
        ("pad", 0, 2, 0.7),
        ("adj", 0, 2, 0.5),
    ):
        if rng.random() < chance:
            attributes[name] = each(low, high)
    if rng.random() < 0.35:
        s = attributes.get("stride", (1,) * rank)
        d = attributes.get("dilate", (1,) * rank)
        k = attributes["kernel"]
        full = [(size[i] - 1) * s[i] + (k[i] - 1) * d[i] + 1 for i in range(rank)]
        target = tuple(max(1, f - rng.randint(-1, 3)) for f in full)
        attributes["target_shape"] = target if rng.random() < 0.9 else (0,) * rank
    if rng.random() < 0.3:
        attributes["num_group"] = 2
    if rng.random() < 0.2:
        attributes["layout"] = {1: "NCW", 2: "NCHW", 3: "NCDHW"}[rank]
    if rng.random() < 0.3:
        brackets = rng.choice(("()", "[]"))
        for name, value in attributes.items():
            if isinstance(value, tuple):
                inner = ", ".join(map(str, value)) + ("," if rank == 1 else "")
                attributes[name] = brackets[0] + inner + brackets[1]
            else:
                attributes[name] = str(value)
    elif rank == 1 and rng.random() < 0.5:
        attributes = {n: v[0] if isinstance(v, tuple) else v for n, v in attributes.items()}
    return size, attributes


def ask(size, attributes):
    """(spatial output size or None, values or None)."""
    import mxnet as mx  # here, so that tests may look for doctests in this file without it

    rank, channels, filters = len(size), 2, 4
    try:
        symbol = mx.sym.Deconvolution(mx.sym.Variable("data"), num_filter=filters, **attributes)
        # Partial: MXNet takes an output size of 0 for an unknown one, and infers nothing then.
        shapes, (out,), _ = symbol.infer_shape_partial(data=(1, channels, *size))
    except mx.MXNetError:
        return None, None
    each = (numbers(attributes.get(name), rank) for name in ("kernel", "stride", "dilate"))
    miscomputed = any(min(axis) > 1 for axis in zip(*each, strict=True))
    if rank == 3 or 0 in out or miscomputed:
        return out[2:], None
    x = mx.nd.array(pattern((1, channels, *size), 7, 11))
    w = mx.nd.array(pattern(shapes[1], 5, 13))
    y = mx.nd.Deconvolution(x, w, num_filter=filters, **attributes).asnumpy()[0]
    assert y.shape[1:] == tuple(out[2:])
    return out[2:], y


def main():
    os.environ["MXNET_MKLDNN_ENABLED"] = "0"  # read when MXNet is imported
    rng = random.Random(20261121)
    cases, values, start = [], [], 0
    while len(cases) < CASES:
        size, attributes = draw(rng)
        out, y = ask(size, attributes)
        case = {"size": size, "attributes": attributes, "out": out}
        if y is not None and y.size <= 300:
            assert np.array_equal(y, y.round())
            assert abs(y).max() < 2**15
            case["start"] = start
            values.append(y.astype(np.int16).ravel())
            start += y.size
        cases.append(case)
    path = pathlib.Path(__file__).with_name("mxnet.npz")
    text = np.frombuffer(json.dumps(cases).encode(), np.uint8)
    np.savez_compressed(path, cases=text, values=np.concatenate(values))
    refused = sum(case["out"] is None for case in cases)
    print(f"{len(cases)} cases, {refused} refused, {start} values, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
