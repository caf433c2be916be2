"""The lint: what may go wrong with the transposed convolutions of a model.

`lint` checks one model, `lint_file` one of many files, and mends it if asked to. Findings are plain
values (`findings`); `formats` and `sarif` write them down.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ...dialects import values
from ...dialects.onnx import Rule as Reading
from ...errors import ArgumentError, FileError, ShapeError, UpconvError, brief
from ...files import published, reported
from ..inputs import input_files
from ..known import known
from ..models import Source, from_model, to_proto
from .context import Context, agree, contexts, shape_in_words, shape_of, suppressed
from .findings import UNREADABLE_FILE, Finding, Findings, Severity
from .rules import RULES, Rule, chosen, prefixes

__all__ = [
    "RULES",
    "Finding",
    "Findings",
    "Rule",
    "Severity",
    "chosen",
    "lint",
    "lint_file",
    "prefixes",
]

_MOST_ROUNDS = 16  # of mending: one mend can make room for another at the same node


def lint(
    model: Source,
    *,
    runtime: str | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    sizes: Mapping[str, Sequence[int]] | None = None,
) -> Findings:
    """Everything that the rules find in a model.

    model: a path, the bytes of a file, a ModelProto or an `ir.Model`; it is not changed.
    runtime: "onnxruntime" or "openvino", the one that will run the model: what it refuses is an
        error, and what another refuses is left out. None warns of what either refuses.
    select, ignore: codes of rules, or how they begin: "UPC1" is all of UPC101 to UPC199. Nothing
        selected selects all; what is ignored is left out even if selected.
    sizes: input name -> its whole shape, for inputs whose sizes the model leaves open.

    Raises `ModelError` or `FileError` for a model that cannot be read, `ArgumentError` or
    `ShapeError` for the rest.

    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, 8] x) => (float[N, 1, M] y)
    ...     <float[1, 1, 3] w = {1, 1, 1}> { y = ConvTranspose<strides = [2]>(x, w) }'''
    >>> import onnx
    >>> [(found.rule, found.severity.value) for found in lint(onnx.parser.parse_model(text))]
    [('UPC001', 'warning'), ('UPC002', 'warning')]
    """
    rules, reading = chosen(select, ignore), _reading(runtime)
    own = from_model(model)
    found = [
        finding
        for context in _inferred(own, rules, reading, sizes or {})
        for finding in _found(own, context, rules)
    ]
    name = os.fspath(model) if isinstance(model, str | os.PathLike) else ""
    return _findings(name, reading, rules, own, found)


def lint_file(
    path: str | os.PathLike[str],
    *,
    runtime: str | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    sizes: Mapping[str, Sequence[int]] | None = None,
    fix: bool = False,
) -> Findings:
    """As `lint`, but a file that cannot be read is a finding itself: UPC900.

    fix: mend what can be mended, and replace the file by the mended model, whole or not at all. It
        keeps what the model computes, up to rounding. Not together with `sizes`, since what is
        right at one size may be wrong at another.
    """
    rules, reading = chosen(select, ignore), _reading(runtime)
    if fix and sizes:
        raise ArgumentError("fix", "given with sizes", "one: a mend is for all input shapes")
    fixed: list[Finding] = []
    try:
        if fix:
            fixed = _fix(Path(path), rules, reading)
        found = lint(path, runtime=runtime, select=select, ignore=ignore, sizes=sizes)
    except (UpconvError, MemoryError) as error:
        if isinstance(error, ShapeError | ArgumentError):
            raise
        words = " ".join(str(error).split()) or "There is not enough memory."
        rule = RULES[UNREADABLE_FILE]
        broken = Finding(rule.code, rule.slug, rule.severity, "", "", words, rule.fix)
        return _findings(os.fspath(path), reading, rules, None, [broken])
    return replace(found, fixed=tuple(fixed))


def _fix(path: Path, rules: Sequence[Rule], reading: Reading | None) -> list[Finding]:
    """Mend a file; what was found there and is gone."""
    model = from_model(path)
    fixed = [f for _ in range(_MOST_ROUNDS) for f in _mended(model, rules, reading)]
    if fixed:
        if len(input_files(path)) > 1:
            raise FileError(
                f"{brief(str(path))} has weights in other files and is not mended in place. Use"
                " `upconv rewrite IN OUT --passes NAME`."
            )
        data = to_proto(model).SerializeToString()
        with reported(str(path)), published(path.resolve(), force=True) as file:
            file.write(data)
    return fixed


def _mended(model: ir.Model, rules: Sequence[Rule], reading: Reading | None) -> Iterator[Finding]:
    """One round of mends on a model, at most one per node."""
    known_shapes = _inferred(model.clone(), rules, reading, {})
    own = list(contexts(model, {rule.operator for rule in rules}))
    for pristine, seen in zip(own, list(known_shapes), strict=True):
        if pristine.node.graph is None:  # a mend of this round took it away
            continue
        for rule, finding in _found_by(model, seen, rules):
            if rule.mend and rule.mend(model, replace(seen, node=pristine.node)):
                yield finding
                break


def _inferred(
    model: ir.Model,
    rules: Sequence[Rule],
    reading: Reading | None,
    sizes: Mapping[str, Sequence[int]],
) -> Iterator[Context]:
    """The nodes that the rules look at, after shapes are filled in that the model leaves open."""
    operators = {rule.operator for rule in rules}
    declared = {c.node.outputs[0]: c.declared for c in contexts(model, operators)}
    _fill_shapes(model, sizes)
    return contexts(model, operators, reading, declared)


def _fill_shapes(model: ir.Model, sizes: Mapping[str, Sequence[int]]) -> None:
    """Write the given and the inferred shapes into values that leave a size open."""
    inputs = {str(value.name): value for value in model.graph.inputs}
    for name, shape in sizes.items():
        if name not in inputs:
            raise ArgumentError("sizes", f"with {brief(name)}", f"inputs: {brief(list(inputs))}")
        stated = shape_of(inputs[name])
        if stated is not None and not agree(stated, tuple(shape)):
            expected = f"what fits the declared {shape_in_words(stated)}"
            raise ShapeError(f"sizes[{brief(name)}]", brief(tuple(shape)), expected)
        inputs[name].shape = ir.Shape(list(shape))
    facts = known(to_proto(model), {name: tuple(shape) for name, shape in sizes.items()})
    for node in model.graph.all_nodes():
        for value in node.outputs:
            stated, told = shape_of(value), facts.values.get(str(value.name))
            if told is not None and told.shape is not None:
                full = stated or (None,) * len(told.shape)
                if len(full) == len(told.shape):
                    pairs = zip(full, told.shape, strict=True)
                    value.shape = ir.Shape([b if a is None else a for a, b in pairs])


def _found(model: ir.Model, context: Context, rules: Iterable[Rule]) -> Iterator[Finding]:
    return (finding for _, finding in _found_by(model, context, rules))


def _found_by(
    model: ir.Model, context: Context, rules: Iterable[Rule]
) -> Iterator[tuple[Rule, Finding]]:
    """What the rules find at a node, but for those that metadata leaves out."""
    left_out = suppressed(model) + suppressed(context.node)
    for rule in rules:
        if rule.operator == context.node.op_type and not rule.code.startswith(left_out or ("-",)):
            yield from ((rule, finding) for finding in rule.findings(context))


def _findings(
    name: str,
    reading: Reading | None,
    rules: Iterable[Rule],
    model: ir.Model | None,
    found: Iterable[Finding],
) -> Findings:
    nodes = 0 if model is None else sum(1 for _ in contexts(model, ["ConvTranspose"]))
    codes = tuple(rule.code for rule in rules)
    return Findings(name, "" if reading is None else reading.value, codes, nodes, tuple(found))


def _reading(runtime: str | None) -> Reading | None:
    if runtime is None:
        return None
    reading = values.member("runtime", runtime, Reading)
    if reading is Reading.SPEC:
        raise ArgumentError("runtime", brief(runtime), "'onnxruntime', 'openvino' or None")
    return reading
