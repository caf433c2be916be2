"""What a verification found, as plain values, text and JSON.

    Comparison   the whole: findings about the interfaces, and one Run per runtime
    Run          one runtime: its outputs, and the layers that both models have
    Difference   one value (`differences`)

Only interfaces and outputs decide whether two models are equal; the first layer that differs tells
where to look.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from ..names import on_terminal
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

    def as_json(self) -> dict[str, Any]:
        """Every field for JSON."""
        return {
            "runtime": self.runtime,
            "equal": self.equal,
            "findings": list(self.findings),
            "remark": self.remark,
            "outputs": [output.as_json() for output in self.outputs],
            "first_layer": self.first_layer and self.first_layer.as_json(),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.runtime}: {'equal' if self.equal else 'DIFFERENT'}"
        yield from (f"  {on_terminal(finding)}" for finding in self.findings)
        yield from (f"  output {line(output)}" for output in self.outputs)
        if self.first_layer:
            yield f"  first layer that differs: {line(self.first_layer)}"
        if self.remark:
            yield f"  {on_terminal(self.remark)}"


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
        """Every field as numbers, text, lists and dictionaries."""
        return {
            "equal": self.equal,
            "findings": list(self.findings),
            "inputs": [asdict(fed) for fed in self.inputs],
            "seed": self.seed,
            "runs": [run.as_json() for run in self.runs],
        }

    def __str__(self) -> str:
        lines = [on_terminal(finding) for finding in self.findings]
        return "\n".join([*lines, *map(str, self.runs)]) or "equal"


def line(difference: Difference) -> str:
    """A difference in one line.

    >>> line(Difference("y", "", "", (2,), "float32", "float64", 0.0, 1.0, 1e-6, True))
    'y 2 float32: off from float64 by 0 of its largest value, allowed 1e-06: equal'
    """
    shape = "x".join(map(str, difference.shape)) or "scalar"
    made = f" of {difference.op} {difference.node}".rstrip() if difference.op else ""
    verdict = "equal" if difference.equal else f"DIFFERENT {difference.words}".rstrip()
    against = "float64" if difference.rule == "float64" else "a"
    return on_terminal(
        f"{difference.name}{made} {shape} {difference.dtype}: off from {against} by"
        f" {difference.error:.2g} of its largest value, allowed {difference.allowed:.2g}: {verdict}"
    )
