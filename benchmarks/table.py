"""The table of docs/benchmarks.md, from one or several JSON documents of `upconv bench`.

    upconv bench --threads 2 --output-format json > first.json
    upconv bench --threads 2 --output-format json > second.json
    python benchmarks/table.py first.json second.json

With several files the best time of each candidate counts: on a small machine, a thread pool that is
badly placed on the cores may stay so for a whole run. Efficiency is the roofline time, the shortest
that this machine allows, over the best time.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

ENGINES = ("jit", "reference")
COLUMNS = (*ENGINES, "torch", "torch-last", "onnxruntime", "openvino")

Place = tuple[str, str]
"""(layer, input)."""


def place_of(layer: dict) -> Place:
    return layer["name"], "x".join(map(str, layer["input_shape"]))


def best_times(documents: list[dict]) -> dict[Place, dict[str, float]]:
    """Return milliseconds by place and candidate."""
    best: dict[Place, dict[str, float]] = {}
    for document in documents:
        for layer in document["layers"]:
            place = place_of(layer)
            times = best.setdefault(place, {})
            for result in layer["results"]:
                if result["best_seconds"]:
                    name, time = result["candidate"], result["best_seconds"] * 1e3
                    times[name] = min(time, times.get(name, math.inf))
    return best


def roofline_times(documents: list[dict]) -> dict[Place, float]:
    """Return the roofline time in milliseconds by place, from the highest measured roofline."""
    lowest: dict[Place, float] = {}
    for document in documents:
        for layer in document["layers"]:
            if layer.get("roofline_seconds"):
                place, roofline = place_of(layer), layer["roofline_seconds"] * 1e3
                lowest[place] = min(roofline, lowest.get(place, math.inf))
    return lowest


def geometric_mean(ratios: list[float]) -> str:
    logs = [math.log(ratio) for ratio in ratios]
    return f"{math.exp(sum(logs) / len(logs)):.2f}" if logs else "-"


def main() -> None:
    documents = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    if any(document.get("faults") for document in documents):
        sys.exit("a benchmark has faults: a wrong result, or a layer computed by another engine")
    best, roofline = best_times(documents), roofline_times(documents)
    present = [name for name in ENGINES if any(name in times for times in best.values())]
    columns = [name for name in COLUMNS if name not in ENGINES or name in present]
    efficiencies = [
        {e: roofline[place] / times[e] for e in present if e in times and place in roofline}
        for place, times in best.items()
    ]
    lines = [["layer", "input", *columns, *(f"{engine} efficiency" for engine in present)]]
    lines.append(["---"] * len(lines[0]))
    for ((layer, size), times), efficiency in zip(best.items(), efficiencies, strict=True):
        cells = [f"{times[name]:.2f}" if name in times else "-" for name in columns]
        shares = [f"{efficiency[name]:.2f}" if name in efficiency else "-" for name in present]
        lines.append([layer, size, *cells, *shares])
    ratios = {
        name: [t[name] / t["reference"] for t in best.values() if {name, "reference"} <= t.keys()]
        for name in columns
    }
    means = [geometric_mean(ratios[name]) for name in columns]
    shares = [geometric_mean([e[name] for e in efficiencies if name in e]) for name in present]
    lines.append(["geometric mean, of times over the reference's", "", *means, *shares])
    for line in lines:
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
