"""Models before and after `upconv.onnx.optimize`, per runtime: the table of docs/onnx-optimize.md.

    pip install transformers monai onnxscript onnxruntime openvino
    python benchmarks/onnx_models.py --models DIR    # all models; names and --runtime choose some

The models are those of `onnx_zoo`, kept in DIR (default: a temporary folder). The optimizer's own
times are not used: its files are timed here, original and result in turn, and the best round
counts. The error is the largest difference between their results in that runtime, over the largest
value.

"share" is the part of the original's time that its deconvolutions take when each runs alone, on its
inputs in the model. The next column, the speed-up of that part, is the only figure from the
optimizer, since only the optimizer knows which nodes replaced a layer. Without `optimize`, the
columns that need it stay empty.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx_layers import (
    RUNTIMES,
    Layer,
    best_milliseconds,
    deconvolutions,
    largest_error,
    runner,
)
from onnx_zoo import ZOO, example, stored

from upconv.errors import UpconvError


@dataclass(frozen=True)
class Budget:
    """Bounds of a measurement: the number of rounds, and seconds after which no round begins."""

    rounds: int
    seconds: float
    threads: int


@dataclass(frozen=True)
class Outcome:
    """An optimizer's report: the number of rewritten layers, and their speed-up."""

    rewritten: int
    gain: float | None


def optimized(name: str, path: Path, output: Path, target: str, threads: int) -> Outcome | None:
    """Write an optimized model to `output`; return None if upconv has no optimizer.

    Only this function knows the arguments and results of `optimize`.
    """
    optimize = getattr(importlib.import_module("upconv.onnx"), "optimize", None)
    if optimize is None:
        return None
    given = {"sizes": ZOO[name].inputs, "float64": False}
    result = optimize(path, output, runtime=target, threads=threads, **given)
    rows = [row for row in result.report.rows if row.before is not None]
    before, after = sum(row.before for row in rows), sum(row.after or row.before for row in rows)
    return Outcome(len(result.rewritten), before / after if rows else None)


@dataclass(frozen=True)
class Row:
    """A model in a runtime: its times in milliseconds, and the outcome for its deconvolutions."""

    name: str
    target: str
    before: float
    layers_alone: float
    layers: int
    after: float | None = None
    error: float | None = None
    outcome: Outcome | None = None

    @property
    def gain(self) -> float | None:
        """The speed-up of the deconvolutions."""
        return None if self.outcome is None else self.outcome.gain

    def cells(self) -> list[str]:
        ratio = None if self.after is None else self.before / self.after
        rewritten = "-" if self.outcome is None else str(self.outcome.rewritten)
        return [
            self.name,
            self.target,
            f"{self.before:.1f}",
            _cell(self.after, ".1f"),
            _cell(ratio, ".2f"),
            f"{100 * self.layers_alone / self.before:.0f} %",
            _cell(self.gain, ".2f"),
            f"{rewritten} of {self.layers}",
            _cell(self.error, ".1e"),
        ]


HEADS = [
    "model",
    "runtime",
    "ms before",
    "ms after",
    "times as fast",
    "transposed convolutions' share",
    "transposed convolutions times as fast",
    "rewritten",
    "largest error",
]


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def alone(layers: list[Layer], model: onnx.ModelProto, target: str, budget: Budget) -> float:
    """Return the total milliseconds of a model's layers, each run alone."""
    total = 0.0
    for layer in layers:
        inputs = {"X": layer.inputs[0]}
        run = runner(target, layer.alone(model), inputs, budget.threads)
        total += best_milliseconds([run], budget.rounds, budget.seconds / len(layers))[0]
    return total


def measured(name: str, path: Path, target: str, budget: Budget) -> Row:
    """Return a row of the table; the optimizer's file is deleted afterwards."""
    model, inputs = onnx.load(path), example(name)
    layers = deconvolutions(model, inputs)
    layers_alone = alone(layers, model, target, budget)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "optimized.onnx"
        outcome = optimized(name, path, output, target, budget.threads)
        # Nothing is written if nothing is faster.
        models = [model, onnx.load(output)] if output.exists() else [model]
    runners = [runner(target, item, inputs, budget.threads) for item in models]
    results = [run() for run in runners]
    times = best_milliseconds(runners, budget.rounds, budget.seconds)
    row = (name, target, times[0], layers_alone, len(layers))
    if outcome is None:
        return Row(*row)
    return Row(*row, times[-1], largest_error(results[-1], results[0]), outcome)


def summary(rows: list[Row]) -> str:
    """Return per runtime the worst and best speed-up of models, and that of deconvolutions."""
    lines = []
    for target in dict.fromkeys(row.target for row in rows if row.gain):
        there = [row for row in rows if row.target == target and row.gain]
        whole = [row.before / row.after for row in there]
        gains = [row.gain for row in there]
        mean = math.exp(sum(map(math.log, gains)) / len(gains))
        lines.append(
            f"{target}: whole models {min(whole):.2f} to {max(whole):.2f} times as fast; "
            f"transposed convolutions {mean:.2f} times in the geometric mean, "
            f"1.3 times or more in {sum(gain >= 1.3 for gain in gains)} of {len(gains)}."
        )
    return "\n".join(lines)


def table(names: list[str], targets: list[str], folder: Path, budget: Budget) -> list[Row]:
    """Print each row of the table when it is measured; report models that cannot be."""
    rows = []
    print(f"| {' | '.join(HEADS)} |\n|{' --- |' * len(HEADS)}", flush=True)
    for name, target in itertools.product(names, targets):
        try:
            row = measured(name, stored(name, folder), target, budget)
        except (ImportError, UpconvError) as error:
            print(f"{name} for {target} is left out: {error}", file=sys.stderr)
            continue
        rows.append(row)
        print(f"| {' | '.join(row.cells())} |", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(ZOO)}")
    parser.add_argument("--models", type=Path, help="folder for their files")
    parser.add_argument("--runtime", choices=RUNTIMES, action="append", help="default: all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15, help="rounds of original and result")
    parser.add_argument("--seconds", type=float, default=20.0, help="for all rounds of a row")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(ZOO):
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(ZOO)}")
    budget = Budget(arguments.rounds, arguments.seconds, arguments.threads)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.models or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        targets = arguments.runtime or list(RUNTIMES)
        rows = table(arguments.names or list(ZOO), targets, folder, budget)
    if not rows:
        raise SystemExit("No model could be measured.")
    print(f"\n{summary(rows)}")


if __name__ == "__main__":
    main()
