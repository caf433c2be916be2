"""`upconv lint`: what may go wrong with a model's transposed convolutions; `upconv rule`: why."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ..errors import ArgumentError, FileError, ModelError, brief
from ..files import reported
from . import options, report
from .endings import Ending, say

if TYPE_CHECKING:
    from ..onnx.linting import Findings

_UNREADABLE = "UPC900"
_COLUMNS = ("rule", "severity", "slug", "summary")

_Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="PATHS",
        help="Models, and folders that are searched for *.onnx (default: the current folder).",
    ),
]
_Select = Annotated[
    list[str] | None,
    typer.Option(metavar="RULES", help="Only these rules: UPC001,UPC1 (UPC1 is UPC101 to 199)."),
]
_Ignore = Annotated[
    list[str] | None, typer.Option(metavar="RULES", help="Not these rules, even if selected.")
]
_Runtime = Annotated[
    Literal["onnxruntime", "openvino"] | None,
    typer.Option(help="Judge for this runtime (default: warn of both)."),
]
_FailOn = Annotated[
    Literal["error", "warning", "note"],
    typer.Option(help="The least severity that makes the exit code 1."),
]
_ExitZero = Annotated[bool, typer.Option("--exit-zero", help="End with 0 despite findings.")]
_Format = Annotated[
    Literal["text", "json", "sarif", "github"], typer.Option(help="What is printed on stdout.")
]
_Fix = Annotated[bool, typer.Option("--fix", help="Fix what can be fixed, and replace the files.")]


def lint(
    paths: _Paths = None,
    *,
    select: _Select = None,
    ignore: _Ignore = None,
    runtime: _Runtime = None,
    input_shape: options.InputShapes = None,
    fail_on: _FailOn = "warning",
    exit_zero: _ExitZero = False,
    output_format: _Format = "text",
    fix: _Fix = False,
) -> None:
    """Look for what may go wrong with the transposed convolutions of ONNX models.

    The exit code is 1 when there are findings of --fail-on or worse, 2 when a file cannot be read.
    `upconv rule UPC101` explains a rule. Rules can also be left out by [tool.upconv.lint] in
    pyproject.toml and by the metadata of a node.

    \b
    Examples:
      upconv lint model.onnx
      upconv lint models --runtime openvino --ignore UPC4 --fail-on error
      upconv lint models --output-format sarif --exit-zero > upconv.sarif
      upconv lint models --fix
    """
    from ..onnx.linting import Severity, chosen

    shapes = options.input_shapes(input_shape)
    if fix and shapes:
        words = "with --fix, which is for all input shapes"
        raise typer.BadParameter(words, param_hint="--input-shape")
    selected, ignored = _codes("--select", select), _codes("--ignore", ignore)
    chosen(selected, ignored)  # raises for what is no rule, also where there is no model
    left_out = _left_out(Path.cwd())
    reports = [
        _checked(file, selected, [*ignored, *left_out(file)], runtime, shapes, fix=fix)
        for file in dict.fromkeys(_files(paths or [Path()]))
    ]
    if not reports:
        say("no .onnx file was found")
    _print(reports, output_format, runtime)
    found = [finding for one in reports for finding in one]
    if any(finding.rule == _UNREADABLE for finding in found):
        raise typer.Exit(int(Ending.ERROR))
    if not exit_zero and any(one.severity.rank <= Severity(fail_on).rank for one in found):
        raise typer.Exit(int(Ending.FINDINGS))


def rule(
    code: Annotated[
        str | None,
        typer.Argument(metavar="RULE", help="A code, or how some begin: UPC101, UPC1."),
    ] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Explain all rules.")] = False,
    output_format: Annotated[
        Literal["text", "json"], typer.Option(help="What is printed on stdout.")
    ] = "text",
) -> None:
    """Explain a rule of `upconv lint`; without one, list them all.

    \b
    Examples:
      upconv rule
      upconv rule UPC101
      upconv rule --all --output-format json
    """
    from ..onnx.linting import chosen

    try:
        rules = chosen([code] if code else ())
    except ArgumentError as error:
        raise error.renamed("select", "RULE") from None
    if output_format == "json":
        report.document("rule", rules=[found.as_json() for found in rules])
    elif code or all_:
        report.text("\n\n".join(found.markdown() for found in rules))
    else:
        rows = [tuple(one.as_json()[key] for key in _COLUMNS) for one in rules]
        report.table([_COLUMNS, *rows], left=4)


def _checked(
    file: Path,
    select: list[str],
    ignore: list[str],
    runtime: str | None,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    fix: bool,
) -> Findings:
    """The findings in a file; one that cannot be read as a model is a finding itself."""
    from ..onnx import linting

    try:
        if fix:
            return linting.fix(file, runtime=runtime, select=select, ignore=ignore)
        return linting.lint(file, runtime=runtime, select=select, ignore=ignore, sizes=shapes)
    except (FileError, ModelError, MemoryError) as error:
        words = " ".join(str(error).split()) or "There is not enough memory."
        broken = linting.RULES[_UNREADABLE].finding(words)
        return linting.Findings(str(file), 0, (broken,))


def _codes(option: str, texts: Sequence[str] | None) -> list[str]:
    found = [options.names(text) for text in texts or ()]
    for names in found:
        if not names:
            words = "it names nothing; expected rules, such as UPC001 or UPC1: see `upconv rule`"
            raise typer.BadParameter(words, param_hint=option)
    return [name for names in found for name in names]


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Files as they are, and those in folders, sorted; hidden folders and environments are not."""
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        for folder, inner, names in os.walk(path):
            inner[:] = sorted(
                name
                for name in inner
                if not name.startswith(".") and not Path(folder, name, "pyvenv.cfg").exists()
            )
            yield from (Path(folder, name) for name in sorted(names) if name.endswith(".onnx"))


def _print(reports: Sequence[Findings], output_format: str, runtime: str | None) -> None:
    from ..onnx.linting import findings, sarif

    if output_format == "json":
        words = report.document_text("lint", runtime=runtime, **findings.document(reports))
    elif output_format == "sarif":
        words = json.dumps(sarif.log(reports), indent=1, allow_nan=False)
    else:
        words = (findings.github if output_format == "github" else findings.text)(reports)
    if words:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        report.text(words.encode(encoding, "backslashreplace").decode(encoding))


# Settings -----------------------------------------------------------------------------------------


def _left_out(folder: Path) -> Callable[[Path], list[str]]:
    """The rules that the nearest pyproject.toml with settings leaves out, as a function of files.

        [tool.upconv.lint]
        ignore = ["UPC4"]
        per-file-ignores = { "models/legacy/*.onnx" = ["UPC001"] }

    Patterns are relative to the folder of pyproject.toml, or match a file's name. Raises
    `FileError` for a file that is no TOML, `ArgumentError` for what it may not say.
    """
    root, table = _settings(folder)
    where = "tool.upconv.lint in pyproject.toml"
    if not isinstance(table, dict) or set(table) - {"ignore", "per-file-ignores"}:
        raise ArgumentError(where, brief(table), "a table with ignore and per-file-ignores")
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise ArgumentError(f"per-file-ignores of {where}", brief(per_file), "a table of lists")
    everywhere = _known("ignore", table.get("ignore", []), where)
    some = {pattern: _known(pattern, codes, where) for pattern, codes in per_file.items()}

    def ignored(path: Path) -> list[str]:
        whole = path.resolve()
        relative = whole.relative_to(root) if whole.is_relative_to(root) else whole
        names = relative.as_posix(), path.name
        matching = (p for p in some if any(fnmatchcase(name, p) for name in names))
        return [*everywhere, *(code for pattern in matching for code in some[pattern])]

    return ignored


def _settings(folder: Path) -> tuple[Path, Any]:
    """The nearest pyproject.toml that says something to lint: its folder, and what it says."""
    for root in (folder.resolve(), *folder.resolve().parents):
        file = root / "pyproject.toml"
        if not file.is_file():
            continue
        with reported(str(file), "read"):
            try:
                whole = tomllib.loads(file.read_text(encoding="utf-8"))
            except tomllib.TOMLDecodeError as error:
                raise FileError(f"Cannot read {brief(str(file))}: {error}.") from None
        table = whole.get("tool", {}).get("upconv", {}).get("lint")
        if table is not None:
            return root, table
    return Path(), {}


def _known(key: str, codes: Any, where: str) -> list[str]:
    from ..onnx.linting import chosen

    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise ArgumentError(f"{key} of {where}", brief(codes), 'a list such as ["UPC001", "UPC4"]')
    try:
        chosen(ignore=codes)
    except ArgumentError as error:
        raise error.renamed("ignore", f"{key} of {where}") from None
    return codes
