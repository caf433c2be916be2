"""What a verification found, as plain values, text and JSON.

    Comparison   the whole: findings about the interfaces, and one Run per runtime
    Run          one runtime: its outputs, and the layers that both models have
    Difference   one value (`differences`)

Only interfaces and outputs decide whether two models are equal. Layers tell where a difference
begins; a rewritten model may well have other numbers inside.
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

    `layers` are the values that both models have under one name, in the first model's order, up to
    the first group of them with a difference. `findings` are sentences: why the second model does
    not run here. `remark` says why layers were not compared, or not all of them.
    """

    runtime: str
    outputs: tuple[Difference, ...] = ()
    layers: tuple[Difference, ...] = ()
    findings: tuple[str, ...] = ()
    remark: str = ""

    @property
    def equal(self) -> bool:
        """Whether every output is equal."""
        return not self.findings and all(output.equal for output in self.outputs)

    @property
    def first_layer(self) -> Difference | None:
        """The first layer that differs, None where none does."""
        return next((layer for layer in self.layers if not layer.equal), None)

    def as_json(self) -> dict[str, Any]:
        """Every field for JSON."""
        first = self.first_layer
        return {
            "runtime": self.runtime,
            "equal": self.equal,
            "findings": list(self.findings),
            "remark": self.remark,
            "outputs": [output.as_json() for output in self.outputs],
            "first_layer": first and first.as_json(),
            "layers": [layer.as_json() for layer in self.layers],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.runtime}: {'equal' if self.equal else 'DIFFERENT'}"
        yield from (f"  {on_terminal(finding)}" for finding in self.findings)
        yield from (f"  output {line(output)}" for output in self.outputs)
        if self.first_layer:
            yield f"  first layer that differs: {line(self.first_layer)}"
        elif self.layers:
            yield f"  all {len(self.layers)} layers that both have are equal"
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

    >>> line(Difference("y", "", "", (2,), "float32", 0.0, 1.0, 1e-6))
    'y 2 float32: error 0 of 1 (0), allowed 1e-06: equal'
    """
    shape = "x".join(map(str, difference.shape)) or "scalar"
    made = f" of {difference.op} {difference.node}".rstrip() if difference.op else ""
    verdict = "equal" if difference.equal else f"DIFFERENT {difference.words}".rstrip()
    return on_terminal(
        f"{difference.name}{made} {shape} {difference.dtype}: error {difference.error:.3g}"
        f" of {difference.scale:.3g} ({difference.relative:.2g}), allowed"
        f" {difference.allowed:.2g}: {verdict}"
    )
