"""The linter for transposed convolutions in ONNX models."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ...checks import by_name
from ...dialects import arguments
from ...dialects.onnx import Rule as Reading
from ...errors import FileError, brief
from ...files import published, reported
from ..inputs import input_shapes
from ..models import Source, from_model, sources, to_proto
from ..nodes import known_sizes
from ..shapes import inferred
from .context import Context, contexts
from .findings import Finding, Findings, Severity
from .rule_table import RULES, Rule, chosen

__all__ = ["RULES", "Finding", "Findings", "Rule", "Severity", "chosen", "fix", "lint"]

_SUPPRESSED = "upconv.lint.ignore"  # metadata of nodes and models, with the codes of rules
_MAX_ROUNDS = 16  # of repairs: one repair can enable another at the same node


def lint(
    model: Source,
    *,
    runtime: str | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> Findings:
    """Return everything that the rules find in a model.

    model: a path, the bytes of a file, a ModelProto or an `ir.Model`; it is not changed.
    runtime: "onnxruntime" or "openvino", the one that will run the model: its refusals are errors,
        and the other's are omitted. None warns about the refusals of both; "spec" omits both.
    select, ignore: codes of rules, or prefixes of codes: "UPC1" is all of UPC101 to UPC199. An
        empty `select` selects all rules; `ignore` wins over `select`.
    sizes: for dynamic sizes: input name -> its full shape, or symbol -> its size.

    Raises `ModelError` or `FileError` for a model that cannot be read, and `ArgumentError` or
    `ShapeError` for the other arguments.

    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, 8] x) => (float[N, 1, M] y)
    ...     <float[1, 1, 3] w = {1, 1, 1}> { y = ConvTranspose<strides = [2]>(x, w) }'''
    >>> import onnx
    >>> [(finding.rule, finding.severity.value) for finding in lint(onnx.parser.parse_model(text))]
    [('UPC001', 'warning'), ('UPC002', 'warning')]
    """
    rules, reading, checked = chosen(select, ignore), _reading(runtime), from_model(model)
    nodes = list(_inferred(checked, reading, by_name("sizes", sizes)))
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else ""
    findings = (finding for context in nodes for finding in _findings(checked, context, rules))
    return Findings(name, len(nodes), tuple(findings))


def fix(
    path: str | os.PathLike[str],
    *,
    runtime: str | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
) -> Findings:
    """Repair a model's file and lint it again; the result lists the repaired findings as `fixed`.

    The repaired model computes the same, up to rounding. The file is replaced as a whole, and only
    if there was a repair.

    Raises what `lint` raises, and `FileError` for a model that has weights in other files.
    """
    model, fixed = from_model(path), list[Finding]()
    for _ in range(_MAX_ROUNDS):
        findings = lint(model, runtime=runtime, select=select, ignore=ignore)
        repaired = [finding for finding in findings if _repaired(model, finding, _reading(runtime))]
        fixed += repaired
        if not repaired:
            break
    if fixed:
        if len(sources(model)) > 1:
            words = "has weights in other files: use `upconv rewrite IN OUT --passes NAME`"
            raise FileError(f"{brief(os.fspath(path))} {words}.")
        data = to_proto(model).SerializeToString()
        with reported(os.fspath(path)), published(Path(path).resolve(), force=True) as file:
            shutil.copymode(path, file.name)
            file.write(data)
    return replace(findings, model=os.fspath(path), fixed=tuple(fixed))


def _repaired(model: ir.Model, finding: Finding, reading: Reading | None) -> bool:
    repair, location = RULES[finding.rule].repair, (finding.graph, finding.node)
    nodes = [c.parsed.node for c in contexts(model, reading, {}) if c.location == location]
    return repair is not None and any(repair(model, node, reading) for node in nodes)


def _inferred(
    model: ir.Model, reading: Reading | None, sizes: Mapping[str, Sequence[int]]
) -> Iterator[Context]:
    """Yield the nodes that rules check, with inferred shapes in place of dynamic ones."""
    table, declared = inferred(model, _shapes(model, sizes)), {}
    outputs = [value for node in model.graph.all_nodes() for value in node.outputs]
    for value in (*model.graph.inputs, *outputs):
        declared[value] = known_sizes(value)
        known = table.get(str(value.name))
        if known is not None:
            with suppress(ValueError):  # the declared shape stays if the two contradict
                value.merge_shapes(known.shape)
    return contexts(model, reading, declared)


def _shapes(
    model: ir.Model, sizes: Mapping[str, Sequence[int]]
) -> dict[str, list[int | str | None]]:
    """Return the shapes of the inputs, with the sizes that `sizes` states by name or by symbol."""
    inputs = [value for value in model.graph.inputs if value.shape is not None]
    shapes: dict[str, list[int | str | None]] = {}
    for value, (name, shape) in zip(inputs, input_shapes(inputs, sizes).items(), strict=True):
        dims = [d if isinstance(d, int) else d.value for d in value.shape or ()]
        pairs = zip(dims, shape, strict=True)
        shapes[name] = [n if name in sizes or d in sizes else d for d, n in pairs]
    return shapes


def _findings(model: ir.Model, context: Context, rules: Iterable[Rule]) -> Iterator[Finding]:
    owners = (model, context.parsed.node)
    codes = " ".join(owner.metadata_props.get(_SUPPRESSED, "") for owner in owners)
    suppressed = tuple(codes.replace(",", " ").split())
    for rule in rules:
        if not rule.code.startswith(suppressed):
            yield from rule.findings(context)


def _reading(runtime: str | None) -> Reading | None:
    return None if runtime is None else arguments.member("runtime", runtime, Reading)
