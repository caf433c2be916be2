"""The lint: what may go wrong with the transposed convolutions of a model, said before it does.

`lint` reads a model, never changes it, and lets every rule of `RULES` look at every ConvTranspose
node, in subgraphs and functions too. What comes out is values (`findings`); text, JSON and SARIF
are made from them.

What lives here: the one call, and which rules it lets look.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from ...dialects import values
from ...dialects.onnx import Rule as Reading
from ...errors import ArgumentError, brief
from ..models import Source, from_model
from ..nodes import Unreadable, read
from .findings import Finding, Findings, Severity
from .places import Place, Standing, shape_of, standings
from .rules import RULES
from .rules.base import Rule
from .shapes import Sizes, give, infer

__all__ = ["RULES", "Finding", "Findings", "Rule", "Severity", "chosen", "lint"]


def lint(
    model: Source,
    *,
    target: str | None = None,
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    sizes: Sizes | None = None,
) -> Findings:
    """Everything that the rules find at the ConvTranspose nodes of a model.

    model: a path, the bytes of a file, a ModelProto or an `ir.Model`; it is not changed.
    target: "onnxruntime" or "openvino", the runtime that will run it. None judges by ONNX's text,
        warns of what either refuses, and leaves speed alone.
    select, ignore: numbers of rules, or how they begin: "UPC1" is all of UPC101 to UPC199. Nothing
        selected selects all; what is ignored is left out even if selected.
    sizes: the whole shape of an input by its name, None for what stays open, or the one size of a
        symbolic dimension by its.

    Raises `ModelError` or `FileError` for a model that cannot be read, `ArgumentError` or
    `ShapeError` for the rest.

    >>> text = '''<ir_version: 8, opset_import: ["": 17]> g (float[1, 1, 8] x) => (float[N, 1, M] y)
    ...     <float[1, 1, 3] w = {1, 1, 1}> { y = ConvTranspose<strides = [2]>(x, w) }'''
    >>> import onnx
    >>> [(found.rule, found.severity.value) for found in lint(onnx.parser.parse_model(text))]
    [('UPC001', 'warning'), ('UPC002', 'warning')]
    """
    rules = chosen(select, ignore)
    reading = None if target is None else _target(target)
    own = from_model(model)
    declared = {s.node: shape_of(s.node.outputs[0]) for s in standings(own) if s.node.outputs}
    if sizes:
        give(own, sizes)
    infer(own)
    places = [(standing, declared.get(standing.node)) for standing in standings(own)]
    found = tuple(_found(places, rules, reading))
    return Findings(
        os.fspath(model) if isinstance(model, str | os.PathLike) else "",
        "" if reading is None else reading.value,
        tuple(rule.code for rule in rules),
        len(places),
        found,
    )


def chosen(select: Iterable[str] = (), ignore: Iterable[str] = ()) -> list[Rule]:
    """The rules that are selected and not ignored; `ArgumentError` for what begins no number.

    >>> [rule.code for rule in chosen(["UPC00"], ["UPC001", "UPC005"])]
    ['UPC002', 'UPC003', 'UPC004']
    """
    wanted, unwanted = _prefixes("select", select), _prefixes("ignore", ignore)
    return [
        rule
        for rule in RULES.values()
        if (not wanted or rule.code.startswith(wanted))
        and not (unwanted and rule.code.startswith(unwanted))
    ]


def _prefixes(argument: str, prefixes: Iterable[str]) -> tuple[str, ...]:
    found = (prefixes,) if isinstance(prefixes, str) else tuple(prefixes)
    for prefix in found:
        if not prefix or not any(code.startswith(prefix) for code in RULES):
            raise ArgumentError(
                argument,
                brief(prefix),
                "the number of a rule, or how some begin, such as UPC001 or UPC1",
                "`upconv lint --rules` lists them.",
            )
    return found


def _target(target: str) -> Reading:
    reading = values.member("target", target, Reading)
    if reading is Reading.SPEC:
        raise ArgumentError("target", brief(target), "'onnxruntime', 'openvino' or None")
    return reading


def _found(
    places: Iterable[tuple[Standing, tuple[int | None, ...] | None]],
    rules: Iterable[Rule],
    target: Reading | None,
) -> Iterator[Finding]:
    """One place after the other, so that one layer's weights are held at a time."""
    for standing, declared in places:
        place = _place(standing, declared, target)
        for rule in rules:
            yield from rule.findings(place)


def _place(
    standing: Standing, declared: tuple[int | None, ...] | None, target: Reading | None
) -> Place:
    """A node that the target refuses is looked at as ONNX's text has it."""
    node, opset = standing.node, standing.opset
    found = read(node, opset, target)
    if target is not None and isinstance(found, Unreadable):
        found = read(node, opset)
    return Place(node, standing.graph, opset, found, target, declared)
