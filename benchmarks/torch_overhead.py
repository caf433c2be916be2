"""The overhead of a call through `upconv.torch` over the engine's own work, in microseconds.

    python benchmarks/torch_overhead.py [--rounds 400]

As in `overhead.py`, a null engine replaces the real one. PyTorch's own module is timed for
comparison, on a layer of one channel and one position: nearly no work. `Plan` on arrays shows the
overhead without the front end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from overhead import NullEngine, median_microseconds
from torch import nn

import upconv
import upconv.torch
from upconv import execution
from upconv.engine_choice import Selection
from upconv.testing import require_engine


def cases() -> dict[str, Callable[[], object]]:
    engine = NullEngine()
    execution.selected = lambda *_, **__: Selection(engine)
    x = np.zeros((1, 8, 16, 16), np.float32)
    w, b = np.zeros((8, 4, 4, 4), np.float32), np.zeros(4, np.float32)
    plan = upconv.plan(x.shape, w, b, stride=2, padding=1, engine=engine)
    require_engine("the layer", engine.name, plan)
    layer = upconv.torch.ConvTranspose2d(8, 4, 4, stride=2, padding=1).eval()
    half = upconv.torch.ConvTranspose2d(8, 4, 4, stride=2, padding=1).eval().bfloat16()
    t = torch.zeros(1, 8, 16, 16)
    sixteen, last = t.bfloat16(), t.to(memory_format=torch.channels_last)
    small, point = nn.ConvTranspose2d(1, 1, 1).eval(), torch.zeros(1, 1, 1, 1)
    function = upconv.torch.conv_transpose

    def graded() -> object:
        with torch.enable_grad():
            return layer(t)

    return {
        "plan(x), on arrays": lambda: plan(x),
        "module, eval": lambda: layer(t),
        "module, eval, unbatched": lambda: layer(t[0]),
        "module, eval, channels last": lambda: layer(last),
        "module, eval, bfloat16": lambda: half(sixteen),
        "module, eval, autograd records": graded,
        "conv_transpose(x, w, b)": lambda: function(t, layer.weight, layer.bias, 2, 1),
        "PyTorch's module, 1 multiply-add": lambda: small(point),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    with torch.no_grad():
        for name, call in cases().items():
            print(f"{name:34s} {median_microseconds(call, options.rounds):7.2f} us")


if __name__ == "__main__":
    main()
