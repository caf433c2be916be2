"""The table of docs/benchmarks.md from what `upconv bench --json` printed, once or several times.

    upconv bench --threads 2 --json > first.json
    upconv bench --threads 2 --json > second.json
    python benchmarks/table.py first.json second.json

With several files the best time of each contender counts: a pool of threads that was badly placed
on the cores of a small machine may stay so for a whole bench.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

COLUMNS = ("reference", "torch", "torch-last", "onnxruntime", "openvino")


def best_times(documents: list[dict]) -> dict[tuple[str, str], dict[str, float]]:
    """(layer, input) -> contender -> milliseconds."""
    best: dict[tuple[str, str], dict[str, float]] = {}
    for document in documents:
        for layer in document["layers"]:
            place = (layer["name"], "x".join(map(str, layer["input_shape"])))
            times = best.setdefault(place, {})
            for result in layer["results"]:
                if result["best_seconds"]:
                    name, time = result["contender"], result["best_seconds"] * 1e3
                    times[name] = min(time, times.get(name, math.inf))
    return best


def mean_ratio(best: dict[tuple[str, str], dict[str, float]], name: str) -> float:
    """The geometric mean of a contender's time over the reference engine's."""
    logs = [math.log(t[name] / t["reference"]) for t in best.values() if name in t]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def main() -> None:
    best = best_times([json.loads(Path(name).read_text()) for name in sys.argv[1:]])
    lines = [["layer", "input", *COLUMNS], ["---"] * (2 + len(COLUMNS))]
    for (layer, size), times in best.items():
        cells = [f"{times[name]:.2f}" if name in times else "-" for name in COLUMNS]
        lines.append([layer, size, *cells])
    means = [f"{mean_ratio(best, name):.2f}" for name in COLUMNS]
    lines.append(["geometric mean over reference", "", *means])
    for line in lines:
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
