"""How long the first call of a layer takes, and that of another size of the same layer, in ms.

    python benchmarks/first_call.py [--engine jit] [--threads 2] [--markdown]

`cold` is the first call of a fresh process after `import upconv`: it imports the engine, compiles
what all layers share, schedules, compiles and packs. `warm` is the first call of the layer in a
process that has run another layer. `next size` is the first call of the same layer with every
spatial size larger by half, less its second call: no code is compiled for it, so packing its weight
is most of it. `then` is the second call. Each figure is the least of three processes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from upconv.cli.layers import built_in

COLUMNS = ("cold", "warm", "next size", "then")

MEASURE = """
import json, sys, time
import numpy as np
import upconv
from upconv.cli.layers import built_in

name, engine, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
layer = next(layer for layer in built_in() if layer.name == name)


def first_call(size):
    shape = (layer.n, layer.ic, *size)
    x, w = np.ones(shape, np.float32), np.ones(layer.w_shape, np.float32)
    bias = np.ones(layer.oc, np.float32)
    start = time.perf_counter()
    plan = upconv.plan(shape, w, bias, engine=engine, threads=threads, **layer.keywords)
    out = plan(x)
    first = time.perf_counter() - start
    start = time.perf_counter()
    plan(x, out=out)
    return first * 1e3, (time.perf_counter() - start) * 1e3


if sys.argv[4] == "warm":
    other = upconv.plan((1, 8, 9, 11), np.ones((8, 5, 3, 5), np.float32), np.ones(5, np.float32),
                        stride=3, engine=engine, threads=threads)
    other(np.ones((1, 8, 9, 11), np.float32))
first, then = first_call(layer.size)
following, after = first_call([n + -(-n // 2) for n in layer.size])
print(json.dumps([first, following - after, then]))
"""


def measured(name: str, engine: str, threads: int) -> dict[str, float]:
    """Each column's least time in milliseconds."""
    times: dict[str, float] = {}
    for state in ("cold", "warm") * 3:
        command = [sys.executable, "-c", MEASURE, name, engine, str(threads), state]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        first, following, then = json.loads(done.stdout)
        found = {state: first, "next size": following, "then": then}
        for column, value in found.items():
            times[column] = min(times.get(column, value), value)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="jit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    edge = "| " if arguments.markdown else ""
    print(edge + (" | " if edge else " ").join([f"{'layer':20}", *(f"{c:>9}" for c in COLUMNS)]))
    if edge:
        print("| --- |" + " ---: |" * len(COLUMNS))
    for layer in built_in():
        times = measured(layer.name, arguments.engine, arguments.threads)
        cells = [f"{layer.name:20}", *(f"{times[column]:9.1f}" for column in COLUMNS)]
        print(edge + (" | " if edge else " ").join(cells), flush=True)


if __name__ == "__main__":
    main()
