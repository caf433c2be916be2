"""The proof that an optimised model is the model: same inputs, same outputs.

Both run in the runtime they are for, and in float64 in the reference evaluator where it can; every
output must be equal as far as rounding goes (`verifying.allowances`).

What lives here: asking for the comparison. What never does: comparing (`verifying`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx

from ...arrays import Array
from ...dialects.onnx import Rule
from ...errors import EngineError, MemoryLimitError, brief
from ..runtimes import Reference, Runtime
from ..verifying import Run, verify
from .results import OutputProof


@dataclass(frozen=True, slots=True)
class Proof:
    """The outputs as they were compared, and what could not be compared and why."""

    outputs: tuple[OutputProof, ...]
    remarks: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether something was compared and all of it was equal."""
        return bool(self.outputs) and all(output.equal for output in self.outputs)

    @property
    def objection(self) -> str:
        """Why it does not hold, without a full stop."""
        apart = [one for one in self.outputs if not one.equal and one.output]
        if not apart:
            return "; ".join(text.rstrip(".") for text in self.remarks) or "nothing was compared"
        one = max(apart, key=lambda output: output.error)
        others = f", and {len(apart) - 1} more differ" if apart[1:] else ""
        return (
            f"in {one.evaluated_by} {brief(one.output)} is off by {one.error:.2g} of its largest"
            f" value, and rounding explains {one.tolerance:.2g}{others}"
        )


NOTHING = Proof((), ())
"""Nothing was compared."""


def proof(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    runtime: Runtime,
    feeds: Mapping[str, Array],
    rule: Rule,
    *,
    in_float64: bool,
) -> Proof:
    """Compare two models in `runtime` and, if asked for, in float64."""
    outputs, remarks = _compared(before, after, runtime, feeds, runtime.name)
    if in_float64:
        wide = Reference(rule=rule.value, in_float64=True)
        try:
            more, said = _compared(before, after, wide, feeds, "float64")
        except (EngineError, MemoryLimitError) as error:
            more, said = (), (f"Not compared in float64: {error}",)
        outputs, remarks = outputs + more, remarks + said
    return Proof(outputs, remarks)


def _compared(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    runtime: Runtime,
    feeds: Mapping[str, Array],
    name: str,
) -> tuple[tuple[OutputProof, ...], tuple[str, ...]]:
    found = verify(before, after, runtimes=[runtime], feeds=feeds, layers=False)
    outputs = tuple(output for run in found.runs for output in _outputs(run, name))
    findings = found.findings + tuple(text for run in found.runs for text in run.findings)
    if findings:  # an interface that changed, or a model that does not run: no equality to be had
        outputs += (OutputProof("", name, "", float("inf"), 0.0, equal=False),)
    return outputs, findings


def _outputs(run: Run, name: str) -> tuple[OutputProof, ...]:
    return tuple(
        OutputProof(one.name, name, one.dtype, one.relative, one.allowed, one.equal)
        for one in run.outputs
    )
