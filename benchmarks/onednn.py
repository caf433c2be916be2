"""The tables of docs/onednn.md: libdnnl's implementation for each layer, and its times.

    python benchmarks/onednn.py layers.json

layers.json holds {"layers": [...]}, each with name, n, ic, oc, size, k, s, p, op, d, g. One thread,
float32, forward, weights packed beforehand. Each layer runs in a separate process, in which the
library prints what it executes and how long that takes, even in layouts that it chooses. Times are
the best of many rounds, in which all contenders take turns. Arrays begin at multiples of 64 bytes,
like the library's own buffers.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from upconv.engines import load
from upconv.geometry import padded
from upconv.problem import DataLayout, Direction, Problem
from upconv.testing import operands, require_engine

SECONDS = float(os.environ.get("SECONDS_PER_LAYER", "2.5"))


def problem_of(layer: dict, layout: DataLayout) -> Problem:
    pads = (layer["k"], layer["s"], layer["d"], layer["p"], layer["p"], layer["op"])
    axes = tuple(padded(size, *pads) for size in layer["size"])
    return Problem(
        Direction.FORWARD, axes, layer["n"], layer["ic"], layer["oc"], layer["g"], layout=layout
    )


def aligned(shape: tuple[int, ...]) -> np.ndarray:
    """Return zeros at a multiple of 64 bytes, like the library's own buffers."""
    memory = np.zeros(4 * math.prod(shape) + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + 4 * math.prod(shape)].view(np.float32).reshape(shape)


def measure(layer: dict) -> None:
    """Print every contender's best time, in the child, among the library's own output."""
    calls, told = {}, {}
    for layout in DataLayout:
        problem = problem_of(layer, layout)
        given = operands(problem)
        for name in ("jit", "onednn"):
            engine = load(name)
            for variant in engine.variants(problem, 1) if name == "onednn" else ("",):
                primitive = engine.build(problem, 1, variant)
                packed, a = primitive.pack(given.b), aligned(given.a.shape)
                a[...], out = given.a, aligned(problem.y_shape)
                key = f"{layout.value} {name} {variant}".strip()
                calls[key] = lambda p=primitive, o=out, a=a, b=packed: p.run(o, a, b)
                told[key] = primitive.description
                require_engine(f"{layer['name']} {layout.value}", name, engine, packed)
    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        for key, call in calls.items():
            print(f"mark,{key}", flush=True)
            start = time.perf_counter()
            call()
            best[key] = min(best[key], time.perf_counter() - start)
    for key, seconds in best.items():
        print(f"best,{key},{seconds * 1e3:.4f},{told[key].split(',')[1].strip()}", flush=True)


def child(layer: dict) -> dict[str, dict[str, float | str]]:
    """Return each contender's time, implementation, and time as printed by the library."""
    done = subprocess.run(
        [sys.executable, __file__, "--layer", json.dumps(layer)],
        env={**os.environ, "ONEDNN_VERBOSE": "profile_exec"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, dict[str, float | str]] = {}
    inside: dict[str, float] = {}
    last = ""
    for line in done.stdout.splitlines():
        words = line.split(",")
        if words[0] == "mark":
            last = words[1]
        elif ",exec," in line and words[3] in ("deconvolution", "convolution"):
            inside[last] = min(inside.get(last, float("inf")), float(words[-1]))
        elif words[0] == "best":
            found[words[1]] = {"ms": float(words[2]), "by": ",".join(words[3:])}
    for key, ms in inside.items():
        if key in found:
            found[key]["library"] = ms
    return found


def rows(layer: dict) -> str:
    found = child(layer)
    cells = [layer["name"]]
    for layout in ("NXC", "NCX"):
        jit, own = found[f"{layout} jit"]["ms"], found[f"{layout} onednn"]
        variants = {k: v for k, v in found.items() if k.startswith(f"{layout} onednn")}
        tuned = min(variants, key=lambda k: variants[k]["ms"])
        name = tuned.removeprefix(f"{layout} onednn").strip() or "default"
        implementation = str(own["by"]).removeprefix("by ").removeprefix("conv:any+")
        cells += [implementation.rpartition("+")[2], f"{own['ms']:.3f}"]
        if layout == "NXC":
            everything = [v["library"] for v in found.values() if "library" in v]
            cells += [f"{own['library']:.3f}", f"{min(everything):.3f}"]
        cells += [f"{jit:.3f}", f"{own['ms'] / jit:.2f}", f"{name} {variants[tuned]['ms']:.3f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python benchmarks/onednn.py layers.json")
    if sys.argv[1] == "--layer":
        measure(json.loads(sys.argv[2]))
        return
    head = [
        "layer", "NXC: implementation", "ms", "in the library", "library's best", "jit ms",
        "ratio", "best variant", "NCX: implementation", "ms", "jit ms", "ratio", "best variant",
    ]  # fmt: skip
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for layer in json.loads(Path(sys.argv[1]).read_text())["layers"]:
        print(rows(layer), flush=True)


if __name__ == "__main__":
    main()
