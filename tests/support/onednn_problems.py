"""Random problems for the oneDNN engine, in a separate process because libdnnl may end it.

`main first last` runs the problems of these seeds by every variant and compares with the
definition. After each it calls public functions with invalid arguments. It prints every step in
advance, so that the output shows what killed the process. Scratch memory and results are first
filled with large numbers, which reveal reads of uninitialized memory.
"""

import random
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

import numpy as np

import upconv
from tests.support.random_problems import case
from tests.support.repeating import seeds
from upconv import testing
from upconv.engines import load
from upconv.problem import Direction, Problem

POISON = 0x7F  # 3.4e38 as float32 and bfloat16


def wrong(seed: int, asked: Problem, threads: int) -> str:
    """Return the engine's first wrong variant on a problem; "" if there is none."""
    engine = load("onednn")
    if engine.refuses(asked) is not None:
        return ""
    given = testing.operands(asked, seed)
    wanted = testing.expected(asked, given)
    for variant in engine.variants(asked, threads):
        primitive = engine.build(asked, threads, variant)
        out, bare = given.before.copy(), asked.direction is Direction.WEIGHT_GRAD
        if not asked.accumulate:
            out.view(np.uint8).fill(POISON)
        print("running", repr(variant), primitive.description, flush=True)
        weight = given.b if bare else primitive.pack(given.b)
        primitive.run(out, given.a, weight, given.bias, given.residual)
        primitive.close()
        if not (np.abs(out.astype(np.float64) - wanted.value) <= wanted.allowed).all():
            return f"{variant!r}, {primitive.description}"
    return ""


def absurd(seed: int) -> None:
    """Make a call that may be invalid: it may fail only with an `UpconvError`."""
    rng = random.Random(seed)
    rank = rng.randint(1, 5)
    values = (0, -1, 1, 2, -(2**31), 2**31, 2**40, 2**63, (), (1,) * rank, (0,) * rank, (1, -2))
    names = rng.sample(("stride", "dilation", "groups", "padding", "output_padding"), 3)
    keywords: dict[str, Any] = {name: rng.choice(values) for name in names}
    call = upconv.conv_transpose if "output_padding" in names else upconv.conv
    x = np.ones((1, rng.choice((0, 2, 4)), *(rng.choice((0, 1, 3)) for _ in range(rank))))
    w = np.ones((rng.choice((0, 2, 4)), 2, *(rng.choice((0, 1, 2)) for _ in range(rank))))
    dtypes = (np.float32, np.float64, np.float16)
    x, w = x.astype(rng.choice(dtypes)), w.astype(rng.choice(dtypes))
    print("calling", call.__name__, x.shape, w.shape, x.dtype, w.dtype, keywords, flush=True)
    with suppress(upconv.UpconvError):
        call(x, w, engine="onednn", **keywords)


def poison_workspaces() -> None:
    """Poison scratch memory before each use."""
    workspace: Any = import_module("upconv.engines.workspace")
    taken = workspace._borrow

    def poisoned(*sizes: int) -> Any:
        buffer = taken(*sizes)
        buffer.bytes.fill(POISON)
        return buffer

    workspace._borrow = poisoned


def main(first: int, last: int) -> None:
    """Run seeds first to last - 1; exit with code 1 if a result is wrong."""
    poison_workspaces()
    import_module("upconv.engines.onednn.engine")._WORTH = 1  # two threads for small problems too
    found = []
    for seed in seeds(first, last):
        asked, threads = case(seed, tuple(Direction)).problem, 1 + seed % 2
        print(f"seed {seed}, threads {threads}: {asked}", flush=True)
        fault = wrong(seed, asked, threads)
        if fault:
            found.append(f"WRONG seed {seed}, threads {threads}: {asked}: {fault}")
        absurd(seed)
    print("\n".join([*found, "done"]), flush=True)
    sys.exit(bool(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
