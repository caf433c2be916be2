"""upconv's nd.Deconvolution against MXNet 1.9.1's, interleaved, in separate processes.

    python benchmarks/mxnet_layers.py LAYERS.json MXNET-PYTHON [--threads 2] [--rounds 7]

LAYERS.json holds a list `layers` of objects with n, ic, oc, size, k, s, p, op, d, g, per axis or
one for all; MXNET-PYTHON is the interpreter of an environment with mxnet==1.9.1. In each round,
each process runs the layer for 0.15 s; its time is the lowest of the rounds' medians. Layers that
MXNet refuses are reported and left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import Any

WORKER = """
import json, sys, time
import numpy as np
mx = __import__(sys.argv[1], fromlist=["nd"])
held = {}
def timed(layer, seconds=0.15):
    name = layer["name"]
    if name not in held:
        rank = len(layer["size"])
        each = lambda k: tuple(layer[k]) if isinstance(layer[k], list) else (layer[k],) * rank
        rng = np.random.RandomState(0)
        x = rng.standard_normal((layer["n"], layer["ic"], *layer["size"])).astype("f4")
        w = rng.standard_normal((layer["ic"], layer["oc"] // layer["g"], *each("k"))).astype("f4")
        given = dict(kernel=each("k"), stride=each("s"), pad=each("p"), adj=each("op"),
                     dilate=each("d"), num_filter=layer["oc"], num_group=layer["g"])
        held[name] = mx.nd.array(x), mx.nd.array(w), given
        y = mx.nd.Deconvolution(*held[name][:2], **given).asnumpy()
        held[name] += (float(np.abs(y).sum()),)
    x, w, given, total = held[name]
    for _ in range(3):
        mx.nd.Deconvolution(x, w, **given).wait_to_read()
    times, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 3:
        begin = time.perf_counter()
        mx.nd.Deconvolution(x, w, **given).wait_to_read()
        times.append(time.perf_counter() - begin)
    times.sort()
    return {"ms": 1e3 * times[len(times) // 2], "sum": total}
for line in sys.stdin:
    try:
        print(json.dumps(timed(json.loads(line))), flush=True)
    except Exception as error:
        print(json.dumps({"error": str(error).splitlines()[0][:90]}), flush=True)
"""


def worker(python: str, module: str, threads: int) -> subprocess.Popen[str]:
    """Start a process that reads layers as lines of JSON and times them."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "UPCONV_NUM_THREADS"), str(threads))
    environment = {**os.environ, **counts}
    command = [python, "-W", "ignore", "-c", WORKER, module]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def ask(process: subprocess.Popen[str], layer: dict[str, Any]) -> dict[str, Any]:
    """Return a process's answer for one layer."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(layer) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline() or '{"error": "the process died"}')


def main() -> None:
    """Print a line per layer, and the geometric mean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layers", type=Path)
    parser.add_argument("python")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    read = json.loads(options.layers.read_text())
    layers = read["layers"] if isinstance(read, dict) else read
    ours = worker(sys.executable, "upconv.mxnet", options.threads)
    ratios = []
    for layer in layers:
        theirs = worker(options.python, "mxnet", options.threads)  # a new one: a layer may kill it
        pairs = [(ask(theirs, layer), ask(ours, layer)) for _ in range(options.rounds)]
        theirs.kill()
        errors = [answer["error"] for pair in pairs for answer in pair if "error" in answer]
        if errors:
            print(f"{layer['name']:24} left out: {errors[0]}")
            continue
        (a, b) = pairs[0]
        right = abs(a["sum"] - b["sum"]) <= 1e-4 * abs(a["sum"])
        both = [min(answer["ms"] for answer in side) for side in zip(*pairs, strict=True)]
        ratios.append(both[0] / both[1])
        note = "" if right else "  RESULTS DIFFER"
        times = f"{both[0]:9.3f} {both[1]:9.3f} ms {ratios[-1]:7.2f}"
        print(f"{layer['name']:24} {times}{note}", flush=True)
    print(f"{'geometric mean':24} {geometric_mean(ratios):29.2f}   on {options.threads} threads")


if __name__ == "__main__":
    main()
