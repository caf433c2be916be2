"""The latency of a layer's first call, and of its first call at another size, in ms.

    python benchmarks/first_call.py [--layers FILE] [--threads 2] [--processor] [--disk]

`cold` is the first call in a fresh process after `import upconv`: it imports the engine, compiles
the code that all layers share, schedules, compiles and packs. `warm` is the layer's first call in a
process that has run another layer, and `both` in one that has run a layer with each kernel. Each of
these includes `pack`, packing the weight, and `then`, the second call. `next size` is the first
call of the same layer with every spatial size larger by half, without its packing and second call:
the time to make another plan. `code` is the number of modules that the layer compiles after both
others, + the number for the next size. Results go to memory that was used before. Python files are
compiled beforehand, as in an installed package. Every process compiles all code, unless `--disk`
lets it read code from earlier processes, as users' processes do. Times are the shortest of several
processes: wall-clock time or, on a busy machine, processor time (`--processor`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from upconv.cli.bench_layers import Layer, read

COLUMNS = ("cold", "warm", "both", "pack", "then", "next size")

MEASURE = """
import json, sys, time
import numpy as np
import upconv
from upconv.cli.bench_layers import Layer
from upconv.testing import require_engine

fields, engine, threads, state = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
clock = getattr(time, sys.argv[5])
layer = Layer(*(tuple(f) if isinstance(f, list) else f for f in fields))
modules = 0


def timed(function, *arguments, **keywords):
    start = clock()
    result = function(*arguments, **keywords)
    return (clock() - start) * 1e3, result


def first_call(size):
    shape = (layer.n, layer.ic, *size)
    x = np.ones(shape, np.float32)
    w = np.ones((layer.ic, layer.oc // layer.g, *layer.k), np.float32)
    bias, out = np.ones(layer.oc, np.float32), result(size)
    making, plan = timed(upconv.plan, shape, w, bias, **options)
    running, _ = timed(plan, x, out=out)
    then = min(timed(plan, x, out=out)[0] for _ in range(3))
    pack = min(timed(upconv.plan, shape, w, bias, **options)[0] for _ in range(3))
    require_engine(layer.name, engine, plan)
    return making + running, pack, then


def result(size):
    steps = zip(size, layer.k, layer.s, layer.p, layer.op, layer.d)
    out = [(n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, o, d in steps]
    return np.ones((layer.n, layer.oc, *out), np.float32)


def count():
    from upconv.engines.jit import compile as compiling

    compiled = compiling.Code.__init__

    def counted(*arguments, **keywords):
        global modules
        modules += 1
        compiled(*arguments, **keywords)

    compiling.Code.__init__ = counted


def run_others():
    # Many positions and few channels, and vice versa: one layer for each kernel.
    for channels, size in {"warm": [(8, 90)], "both": [(8, 90), (200, 2)]}[state]:
        shape, w = (1, channels, size, size), np.ones((channels, channels, 3, 5), np.float32)
        plan = upconv.plan(shape, w, stride=3, engine=engine, threads=threads)
        plan(np.ones(shape, np.float32))


options = {"engine": engine, "threads": threads, **layer.keywords}
if state != "cold":
    run_others()
if engine == "jit" and state == "both":
    count()
first, pack, then = first_call(layer.size)
own, modules = modules, 0
following, other_pack, other_then = first_call([n + -(-n // 2) for n in layer.size])
found = {state: first, "pack": pack, "then": then, "next size": following - other_pack - other_then}
print(json.dumps([found, f"{own}+{modules}" if state == "both" else ""]))
"""


def measured(
    layer: Layer, given: argparse.Namespace, repeats: int, cache: str
) -> tuple[dict[str, float], str]:
    """Return each column's shortest time in milliseconds, and the number of compiled modules."""
    how = [given.engine, str(given.threads)]
    clock = "process_time" if given.processor else "perf_counter"
    times: dict[str, float] = {}
    code = ""
    fields = json.dumps([getattr(layer, name) for name in Layer.__slots__])
    own = {"PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
    own |= {"UPCONV_CODE_CACHE": "1" if given.disk else "0", "UPCONV_CACHE_DIR": cache}
    for state in ("cold", "warm", "both") * repeats:
        command = [sys.executable, "-c", MEASURE, fields, *how, state, clock]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env=os.environ | own
        )
        found, modules = json.loads(done.stdout)
        code = modules or code
        for column, value in found.items():
            times[column] = min(times.get(column, value), value)
    return times, code


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=Path, help="file of layers")
    parser.add_argument("--engine", default="jit")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3, help="processes of each kind")
    parser.add_argument("--processor", action="store_true", help="measure processor time")
    parser.add_argument("--disk", action="store_true", help="read code from earlier processes")
    parser.add_argument("--markdown", action="store_true")
    given = parser.parse_args()
    edge = "| " if given.markdown else ""
    join = " | " if edge else " "
    print(edge + join.join([f"{'layer':20}", *(f"{c:>9}" for c in (*COLUMNS, "code"))]))
    if edge:
        print("| --- |" + " ---: |" * (len(COLUMNS) + 1))
    layers = read(given.layers) if given.layers else read()
    with tempfile.TemporaryDirectory() as cache:
        measured(layers[0], given, 1, cache)  # compiles Python's files
        for layer in layers:
            times, code = measured(layer, given, given.repeats, cache)
            cells = [f"{layer.name:20}", *(f"{times[c]:9.1f}" for c in COLUMNS), f"{code:>9}"]
            print(edge + join.join(cells), flush=True)


if __name__ == "__main__":
    main()
