"""The linter's rules. A code never changes its meaning and is never reused.

    UPC0..   the output: checkerboards, gaps, borders
    UPC1..   the node: invalid, or read differently by different runtimes
    UPC2..   the node: refused by a runtime
    UPC4..   neighbouring operators that could be part of the node
    UPC9..   files, nodes and weights that cannot be checked

A rule is a function of a `Context`; its docstring is the explanation that `upconv lint --explain`
and docs/onnx-lint.md show: one sentence, a paragraph and, after "Fix:", the remedy. A new rule is a
function, a line in the table, its test and its section of the page (`upconv lint --explain UPC`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from textwrap import fill
from typing import Any

import onnx_ir as ir

from ...dialects.onnx import Rule as Reading
from ...errors import ArgumentError, brief
from ..nodes import Unreadable
from ..passes import PASSES
from ..passes.base import run
from . import attribute_rules, overlap_rules
from .context import Context
from .findings import Finding, Severity

Repair = Callable[[ir.Model, ir.Node, Reading | None], bool]
"""Repairs a node in place, without changing values beyond rounding; returns whether it did."""

_CHECKERBOARD = "https://distill.pub/2016/deconv-checkerboard/"
_OPERATORS = "https://onnx.ai/onnx/operators/onnx__"
_CONV_TRANSPOSE = f"{_OPERATORS}ConvTranspose.html"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: `check` yields sentences about a node; `repair`, if any, may fix it.

    `severity` applies if no runtime is stated; `more` is the address of a web page.
    """

    code: str
    severity: Severity
    check: Callable[[Context], Iterator[str]]
    more: str = ""
    repair: Repair | None = None

    @property
    def slug(self) -> str:
        """The name of the rule."""
        return self.check.__name__.replace("_", "-")

    def as_json(self) -> dict[str, Any]:
        """Return the explanation as data: its `summary`, `why` it matters and the `fix`."""
        parts = (self.check.__doc__ or "").split("\n\n")
        summary, why, fix, *_ = [*(" ".join(part.split()) for part in parts), "", "", ""]
        return {
            "rule": self.code,
            "slug": self.slug,
            "severity": self.severity.value,
            "summary": summary,
            "why": why,
            "fix": fix.removeprefix("Fix: "),
            "fixable": self.repair is not None,
            "more": self.more,
        }

    def markdown(self) -> str:
        """Return the explanation as shown by `upconv lint --explain` and docs/onnx-lint.md."""
        texts = self.as_json()
        parts = (
            f"### {self.code} {self.slug}",
            f"*{self.severity.value.capitalize()}.* {texts['summary']}",
            texts["why"],
            f"**Fix.** {texts['fix']}",
            *([f"More: <{self.more}>"] if self.more else []),
        )
        return "\n\n".join(fill(part, 100, break_on_hyphens=False) for part in parts)

    def finding(self, message: str, context: Context | None = None) -> Finding:
        """Make a sentence a finding about a node or, without a context, about the whole file."""
        texts, severity = self.as_json(), self.severity
        graph, node = ("", "") if context is None else context.location
        if context is not None and context.runtime is not None and self.code.startswith("UPC2"):
            severity = Severity.ERROR  # the runtime for which the model is checked refuses it
        remedy = texts["fix"], texts["fixable"]
        return Finding(self.code, self.slug, severity, node, graph, message, *remedy)

    def findings(self, context: Context) -> Iterator[Finding]:
        """Yield the findings about a node; if it is unreadable, only that finding."""
        if isinstance(context.parsed, Unreadable) == (self.code in ("UPC109", "UPC901")):
            yield from (self.finding(message, context) for message in self.check(context))


def _by_pass(*names: str) -> Repair:
    """Return a repair by the first pass that fires; `normalise` keeps the runtime's reading."""

    def repair(model: ir.Model, node: ir.Node, reading: Reading | None) -> bool:
        suffix = f":{reading.value}" if reading else ""
        passes = [PASSES[name + suffix if name == "normalise" else name] for name in names]
        return any(step.fired for step in run(model, passes, only=lambda other: other is node))

    return repair


def _drop_bias(model: ir.Model, node: ir.Node, reading: Reading | None) -> bool:
    node.resize_inputs(2)
    return True


def _drop_shape(model: ir.Model, node: ir.Node, reading: Reading | None) -> bool:
    node.outputs[0].shape = None  # runtimes infer it
    return True


_E, _W, _N = Severity.ERROR, Severity.WARNING, Severity.NOTE

_ALL = (
    Rule("UPC001", _W, overlap_rules.uneven_overlap, _CHECKERBOARD),
    Rule("UPC002", _W, overlap_rules.checkerboard_weights, _CHECKERBOARD),
    Rule("UPC003", _W, overlap_rules.dead_phases),
    Rule("UPC004", _W, overlap_rules.bias_only_border),
    Rule("UPC101", _W, attribute_rules.runtimes_disagree, _CONV_TRANSPOSE, _by_pass("normalise")),
    Rule("UPC102", _W, attribute_rules.same_of_open_size, _CONV_TRANSPOSE, _by_pass("normalise")),
    Rule("UPC105", _E, attribute_rules.declared_shape, repair=_drop_shape),
    Rule("UPC107", _W, attribute_rules.quantised_axis, f"{_OPERATORS}DequantizeLinear.html"),
    Rule("UPC108", _W, attribute_rules.training_batch_norm, f"{_OPERATORS}BatchNormalization.html"),
    Rule("UPC109", _E, attribute_rules.malformed, _CONV_TRANSPOSE),
    Rule(
        "UPC201",
        _W,
        attribute_rules.refused_geometry,
        _CONV_TRANSPOSE,
        _by_pass("no_output_padding"),
    ),
    Rule("UPC202", _W, attribute_rules.empty_bias_name, repair=_drop_bias),
    Rule("UPC204", _W, attribute_rules.element_type),
    Rule("UPC401", _N, attribute_rules.foldable_neighbour, repair=_by_pass(*attribute_rules.FOLDS)),
    Rule("UPC900", _E, attribute_rules.unreadable_file),
    Rule("UPC901", _N, attribute_rules.unknown_geometry),
    Rule("UPC902", _N, attribute_rules.computed_weight),
)

RULES: dict[str, Rule] = {rule.code: rule for rule in _ALL}


def chosen(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> list[Rule]:
    """Return the rules that are selected and not ignored; raise `ArgumentError` for unknown codes.

    >>> [rule.code for rule in chosen(["UPC00"], ["UPC001"])]
    ['UPC002', 'UPC003', 'UPC004']
    """
    wanted, unwanted = _prefixes("select", select) or ("UPC",), _prefixes("ignore", ignore)
    codes = (code for code in RULES if code.startswith(wanted) and not code.startswith(unwanted))
    return [RULES[code] for code in codes]


def _prefixes(argument: str, codes: Any) -> tuple[str, ...]:
    several = isinstance(codes, list | tuple | set | frozenset)
    prefixes = tuple(codes) if several else (codes,)
    for prefix in prefixes:
        named = isinstance(prefix, str) and prefix
        if not (named and any(code.startswith(prefix) for code in RULES)):
            expected = "the code of a rule, or a prefix of codes, such as UPC001 or UPC1"
            remedy = "`upconv lint --explain UPC` lists them."
            raise ArgumentError(argument, brief(prefix), expected, remedy)
    return prefixes
