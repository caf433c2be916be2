"""What a verification found, as plain values, text and JSON.

    Comparison   the whole: findings about the interfaces, and one Run per runtime
    Run          one runtime: its outputs, and the layers that both models have
    Difference   one value (`differences`)

Only interfaces and outputs decide whether two models are equal; the first layer that differs tells
where to look.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..documents import document
from ..names import neutral
from .differences import Difference


@dataclass(frozen=True, slots=True)
class Fed:
    """An input as both models were given it."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Run:
    """Both models in one runtime.

    `first_layer` is the first value inside that differs, where an output does. `findings` are
    sentences: why the second model does not run here. `remark` says what could not be compared.
    """

    runtime: str
    outputs: tuple[Difference, ...] = ()
    first_layer: Difference | None = None
    findings: tuple[str, ...] = ()
    remark: str = ""

    @property
    def equal(self) -> bool:
        """Whether every output is equal."""
        return not self.findings and all(output.equal for output in self.outputs)

    def __str__(self) -> str:
        lines = [f"{self.runtime}: {'equal' if self.equal else 'DIFFERENT'}"]
        lines += [f"  {neutral(finding)}" for finding in self.findings]
        lines += [f"  output {line(output)}" for output in self.outputs]
        if self.first_layer:
            lines.append(f"  first layer that differs: {line(self.first_layer)}")
        return "\n".join([*lines, *([f"  {neutral(self.remark)}"] if self.remark else [])])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two models on the same inputs.

    `findings` are sentences about the interfaces: inputs and outputs that are missing, in another
    order, of another type or shape. `a` is the first model and `b` the second, here and in them.
    """

    findings: tuple[str, ...]
    runs: tuple[Run, ...]
    inputs: tuple[Fed, ...]
    seed: int

    @property
    def equal(self) -> bool:
        """Whether the models have the same interface and in every runtime the same outputs."""
        return not self.findings and all(run.equal for run in self.runs)

    def as_json(self) -> dict[str, Any]:
        """Every field as numbers, text, lists and dictionaries; null stands for an infinity."""
        runs = [{**document(run), "equal": run.equal} for run in self.runs]
        return {**document(self), "runs": runs, "equal": self.equal}

    def __str__(self) -> str:
        return "\n".join([*map(neutral, self.findings), *map(str, self.runs)]) or "equal"


def line(difference: Difference) -> str:
    """A difference in one line.

    >>> line(Difference("y", "", "", (2,), "float32", "float64", 0.0, 1.0, 1e-6, True))
    'y 2 float32: off from float64 by 0 of its largest value, allowed 1e-06: equal'
    """
    shape = "x".join(map(str, difference.shape)) or "scalar"
    made = f" of {difference.op} {difference.node}".rstrip() if difference.op else ""
    verdict = "equal" if difference.equal else f"DIFFERENT {difference.words}".rstrip()
    against = "float64" if difference.rule == "float64" else "a"
    return neutral(
        f"{difference.name}{made} {shape} {difference.dtype}: off from {against} by"
        f" {difference.error:.2g} of its largest value, allowed {difference.allowed:.2g}: {verdict}"
    )
