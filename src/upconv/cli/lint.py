"""`upconv lint`: find mistakes in the transposed convolutions of ONNX models."""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

from typer import Argument, BadParameter, Exit, Option

from ..errors import ArgumentError, FileError, ModelError, brief
from ..files import reported
from . import options, report
from .exits import ERROR, FINDINGS, say

if TYPE_CHECKING:
    from ..onnx.linting import Findings

_UNREADABLE = "UPC900"


def _rules(words: str) -> Any:
    return Option(parser=options.names, metavar="RULES", help=words)


def lint(
    paths: Annotated[
        list[Path] | None,
        Argument(metavar="PATH...", help="Models, and folders of *.onnx (default: this folder)."),
    ] = None,
    *,
    select: Annotated[
        list[Any] | None, _rules("Check only these rules: UPC001,UPC1 (UPC1: UPC101 to 199).")
    ] = None,
    ignore: Annotated[list[Any] | None, _rules("Ignore these rules, even if selected.")] = None,
    runtime: Annotated[
        Literal["onnxruntime", "openvino"] | None,
        Option(help="Check for this runtime (default: warn about both)."),
    ] = None,
    input_shape: options.InputShapes = None,
    fail_on: Annotated[
        Literal["error", "warning", "note"],
        Option(help="The lowest severity that makes the exit code 1."),
    ] = "warning",
    exit_zero: Annotated[bool, Option("--exit-zero", help="Exit with 0 despite findings.")] = False,
    output_format: Annotated[
        Literal["text", "json", "sarif", "github"], Option(help="Format of the output on stdout.")
    ] = "text",
    fix: Annotated[
        bool, Option("--fix", help="Fix findings that have a fix, and replace the files.")
    ] = False,
    explain: Annotated[
        str | None,
        Option(
            metavar="RULE",
            help="Explain a rule (UPC101), or all that begin with UPC1, and exit.",
        ),
    ] = None,
) -> None:
    """Find mistakes in the transposed convolutions of ONNX models.

    The exit code is 1 if a finding is at least as severe as --fail-on, and 2 if a file cannot be
    read. [tool.upconv.lint] in pyproject.toml and the metadata of a node can also ignore rules.

    \b
    Examples:
      upconv lint model.onnx
      upconv lint models --runtime openvino --ignore UPC4 --fail-on error
      upconv lint models --output-format sarif --exit-zero > upconv.sarif
      upconv lint models --fix
      upconv lint --explain UPC101
    """
    if explain is not None:
        _explain(explain, output_format)
    from ..onnx.linting import Severity, chosen

    shapes = options.input_shapes(input_shape)
    if fix and shapes:
        words = "not allowed with --fix, which covers all input shapes"
        raise BadParameter(words, param_hint="--input-shape")
    selected, ignored = (
        [code for codes in option or () for code in codes] for option in (select, ignore)
    )
    chosen(selected, ignored)  # refuse unknown rules even if there is no model
    left_out = _left_out(Path.cwd())
    keywords = {"runtime": runtime, "select": selected} | ({} if fix else {"sizes": shapes})
    files = dict.fromkeys(_files(paths or [Path()]))  # find all files before the first is fixed
    reports = [_checked(f, fix, ignore=[*ignored, *left_out(f)], **keywords) for f in files]
    if not reports:
        say("no .onnx file was found")
    _print(reports, output_format, runtime)
    findings = [finding for file_report in reports for finding in file_report]
    if any(finding.rule == _UNREADABLE for finding in findings):
        raise Exit(ERROR)
    if not exit_zero and any(f.severity.rank <= Severity(fail_on).rank for f in findings):
        raise Exit(FINDINGS)


def _explain(code: str, output_format: str) -> NoReturn:
    """Print the explanation of a rule, or of all rules whose codes begin with `code`, and end."""
    from ..onnx.linting import chosen

    if output_format not in ("text", "json"):
        raise BadParameter("with --explain, it must be text or json", param_hint="--output-format")
    try:
        rules = chosen([code])
    except ArgumentError as error:
        raise error.renamed("select", "--explain") from None
    text = "\n\n".join(rule.markdown() for rule in rules)
    fields = {"rules": [rule.as_json() for rule in rules]}
    report.finish("lint --explain", output_format, fields, [text])


def _checked(file: Path, fix: bool, **keywords: Any) -> Findings:
    """Return the findings in a file; an unreadable file is itself a finding."""
    from ..onnx import linting

    try:
        return linting.fix(file, **keywords) if fix else linting.lint(file, **keywords)
    except (FileError, ModelError, MemoryError) as error:
        words = " ".join(str(error).split()) or "There is not enough memory."
        broken = linting.RULES[_UNREADABLE].finding(words)
        return linting.Findings(str(file), 0, (broken,))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files, and sorted models in folders; skip hidden folders and environments."""
    for path in paths:
        if not path.exists():
            raise FileError(f"Cannot read {brief(str(path))}: No such file or directory.")
        if not path.is_dir():
            yield path
            continue
        for folder, inner, names in os.walk(path):
            environments = {n for n in inner if Path(folder, n, "pyvenv.cfg").exists()}
            inner[:] = sorted(n for n in {*inner} - environments if not n.startswith("."))
            yield from (Path(folder, name) for name in sorted(names) if name.endswith(".onnx"))


def _print(reports: Sequence[Findings], output_format: str, runtime: str | None) -> None:
    from ..onnx.linting import findings, sarif

    if output_format == "json":
        words = report.document("lint", {"runtime": runtime, **findings.document(reports)})
    elif output_format == "sarif":
        words = json.dumps(sarif.log(reports), indent=1, allow_nan=False)
    else:
        words = (findings.github if output_format == "github" else findings.text)(reports)
    if words:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        report.text(words.encode(encoding, "backslashreplace").decode(encoding))


_TABLE = "tool.upconv.lint in pyproject.toml"


def _left_out(folder: Path) -> Callable[[Path], list[str]]:
    """Return a function from a file to the rules that the nearest pyproject.toml ignores for it.

        [tool.upconv.lint]
        ignore = ["UPC4"]
        per-file-ignores = { "models/legacy/*.onnx" = ["UPC001"] }

    Patterns are relative to the folder of pyproject.toml, or match a file's name. Raises
    `FileError` for a file that is not TOML, and `ArgumentError` for wrong settings.
    """
    root, table = _settings(folder)
    per_file = table.get("per-file-ignores", {}) if isinstance(table, dict) else None
    if not isinstance(per_file, dict) or set(table) - {"ignore", "per-file-ignores"}:
        expected = "a table with ignore, a list, and per-file-ignores, a table of lists"
        raise ArgumentError(_TABLE, brief(table), expected)
    rows = [("*", "ignore", table.get("ignore", [])), *((p, p, c) for p, c in per_file.items())]
    known = [(pattern, _known(key, codes)) for pattern, key, codes in rows]

    def ignored(path: Path) -> list[str]:
        absolute = path.resolve()
        relative = absolute.relative_to(root) if absolute.is_relative_to(root) else absolute
        names = relative.as_posix(), path.name
        left_out = (c for p, c in known if any(fnmatchcase(name, p) for name in names))
        return [code for codes in left_out for code in codes]

    return ignored


def _settings(folder: Path) -> tuple[Path, Any]:
    """Return the folder and the settings of the nearest pyproject.toml that has any."""
    for root in (folder.resolve(), *folder.resolve().parents):
        file = root / "pyproject.toml"
        if not file.is_file():
            continue
        with reported(str(file), "read"):  # a file that is not TOML raises a ValueError
            document = tomllib.loads(file.read_text(encoding="utf-8"))
        table = document.get("tool", {}).get("upconv", {}).get("lint")
        if table is not None:
            return root, table
    return Path(), {}


def _known(key: str, codes: Any) -> list[str]:
    from ..onnx.linting import chosen

    where = f"{key} of {_TABLE}"
    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise ArgumentError(where, brief(codes), 'a list such as ["UPC001", "UPC4"]')
    try:
        chosen(ignore=codes)
    except ArgumentError as error:
        raise error.renamed("ignore", where) from None
    return codes
