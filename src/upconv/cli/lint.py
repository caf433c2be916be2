"""`upconv lint`: what may go wrong with the transposed convolutions of an ONNX model."""

from __future__ import annotations

import json as json_format
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ArgumentError
from ..files import published, reported
from . import models, report, spelling
from .endings import Ending
from .options import Json

if TYPE_CHECKING:
    from ..onnx.linting import Findings, Rule


class Target(StrEnum):
    """The runtimes that a model can be judged for."""

    ONNXRUNTIME = "onnxruntime"
    OPENVINO = "openvino"


class Level(StrEnum):
    """The severities, the worst first."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


_Model = Annotated[str | None, typer.Argument(metavar="MODEL", help="A model's file.")]
_Select = Annotated[
    list[str] | None,
    typer.Option(metavar="RULES", help="Only these rules: UPC001,UPC1 (UPC1 is UPC101 to 199)."),
]
_Ignore = Annotated[
    list[str] | None, typer.Option(metavar="RULES", help="Not these rules, even if selected.")
]
_For = Annotated[
    Target | None, typer.Option(help="Judge for this runtime; without, as ONNX's text has it.")
]
_Size = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=SIZES",
        help="The shape of an input, as x=1,3,?,? (? stays open), or the size of a symbolic"
        " dimension, as N=2; for each one again.",
    ),
]
_Severity = Annotated[Level, typer.Option(help="The least severity that is reported.")]
_Sarif = Annotated[bool, typer.Option("--sarif", help="Print a SARIF 2.1.0 log on stdout.")]
_Output = Annotated[
    str | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file instead.")
]
_Force = Annotated[bool, typer.Option("--force", "-f", help="Overwrite the output if it exists.")]
_Rules = Annotated[bool, typer.Option("--rules", help="List the rules and end.")]


def lint(
    model: _Model = None,
    *,
    select: _Select = None,
    ignore: _Ignore = None,
    target: _For = None,
    size: _Size = None,
    severity: _Severity = Level.NOTE,
    json: Json = False,
    sarif: _Sarif = False,
    output: _Output = None,
    force: _Force = False,
    rules: _Rules = False,
) -> None:
    """Look for what may go wrong with the transposed convolutions of an ONNX model.

    The exit code is 1 when there are findings. Every rule is explained in docs/onnx-lint.md.

    \b
    Examples:
      upconv lint model.onnx
      upconv lint model.onnx --target openvino --size x=1,3,?,? --ignore UPC4
      upconv lint model.onnx --severity warning --sarif -o lint.sarif
      upconv lint --rules
    """
    from ..onnx import linting

    chosen = _chosen(linting.chosen, select, ignore)
    if json and sarif:
        raise typer.BadParameter("both were asked for", param_hint="--json and --sarif")
    if rules:
        _list(chosen, json)
        return
    if model is None:
        raise typer.BadParameter("no model was named", param_hint="MODEL")
    path = None if output is None else models.place(output, force=force, model=model)
    findings = linting.lint(
        model,
        target=target and target.value,
        select=[rule.code for rule in chosen],
        sizes=dict(_sized(one) for one in size or ()),
    ).at_least(linting.Severity(severity.value))
    _show(findings, path, output or "", json=json, sarif=sarif, force=force)
    if len(findings):
        raise typer.Exit(int(Ending.FINDINGS))


def _chosen(of: Any, select: list[str] | None, ignore: list[str] | None) -> list[Rule]:
    given = (("--select", select), ("--ignore", ignore))
    prefixes = [_prefixes(option, texts or ()) for option, texts in given]
    try:
        found: list[Rule] = of(*prefixes)
    except ArgumentError as error:
        raise typer.BadParameter(f"{error}", param_hint=f"--{error.argument}") from None
    if not found:
        raise typer.BadParameter("every rule is ignored", param_hint="--ignore")
    return found


def _prefixes(option: str, texts: Sequence[str]) -> list[str]:
    found = [spelling.names(text) for text in texts]
    for names in found:
        spelling.require_named(
            option, names, ("UPC001", "UPC1", "what `upconv lint --rules` lists")
        )
    return [name for names in found for name in names]


def _sized(text: str) -> tuple[str, tuple[int | None, ...]]:
    """An input and its shape.

    >>> _sized("a=b=1,?")
    ('a=b', (1, None))
    """
    name, sizes = models.named(text)
    parts = [part.strip() for part in sizes.split(",")]
    return name, tuple(None if part == "?" else spelling.shape(part)[0] for part in parts)


def _list(rules: list[Rule], json: bool) -> None:
    if json:
        report.document(
            "lint",
            rules=[
                {
                    "rule": rule.code,
                    "slug": rule.slug,
                    "severity": rule.severity.value,
                    "summary": rule.summary,
                    "why": rule.why,
                    "fix": rule.fix,
                    "more": rule.more,
                }
                for rule in rules
            ],
        )
        return
    rows = tuple((rule.code, rule.severity.value, rule.slug, rule.summary) for rule in rules)
    report.text(str(report.Table(("rule", "severity", "name", "finds"), rows, (), left=4)))


def _show(
    findings: Findings, path: Path | None, name: str, *, json: bool, sarif: bool, force: bool
) -> None:
    """Print the findings, or write them whole to a file."""
    if sarif:
        words = json_format.dumps(findings.as_sarif(), indent=1, allow_nan=False)
    elif json:
        words = report.document_text("lint", **findings.as_json())
    else:
        words = findings.as_text()
    if path is None:
        report.text(_encodable(words))
        return
    with reported(name), published(path, force=force, overwrite=models.OVERWRITE) as file:
        file.write(f"{words}\n".encode())


def _encodable(words: str) -> str:
    """What stdout's encoding lacks, spelled out."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return words.encode(encoding, "backslashreplace").decode(encoding)
