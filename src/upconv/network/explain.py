"""A readable table of a program's steps."""

from __future__ import annotations

from math import prod

from .. import memory
from ..roofline import roofline
from ..terminal import aligned
from .compile import Compiled
from .fuse import chain_of
from .graph import Chain, Convolution, Graph, Node, Norm, Pad, Pointwise, Pool, Resample, Shape
from .kinds import KINDS

_HEAD = ("step", "computes", "layout", "kernel", "predicted", "measured")


def explained(compiled: Compiled, nbytes: int, seconds: list[float] | None) -> str:
    """Return the table; `seconds` holds each node's time, if it was measured."""
    graph = compiled.graph
    limits = roofline(compiled.threads, measure=seconds is not None)
    convolved = [isinstance(node.operation, Convolution) for node in graph.nodes]
    count, separate = len(graph.nodes), memory.readable(_values_bytes(compiled))
    settings = f"{compiled.dtype.value}, threads {compiled.threads}"
    lines = [
        f"network    steps {count}, convolutions {sum(convolved)}, {settings}",
        f"memory     {memory.readable(nbytes)} for a run; separate values would take {separate}",
    ]
    if seconds is not None:
        total = sum(seconds)
        share = sum(s for s, c in zip(seconds, convolved, strict=True) if c) / max(total, 1e-12)
        lines.append(f"time       {_time(total)} for all steps, {share:.0%} of it in convolutions")
    rows = [_HEAD]
    for number, node in enumerate(graph.nodes):
        layer = compiled.layers.get(node)
        predicted = ""
        if layer is not None and limits is not None:
            predicted = _time(layer.primitive.predicted_cycles / limits.clock)
        measured = "" if seconds is None else _time(seconds[number])
        kernel = "" if layer is None else layer.variant
        layout = graph.form(node.outputs[0]).layout.value
        text = computes(node, [graph.shapes[value] for value in (*node.inputs, *node.outputs)])
        rows.append((str(number + 1), text, layout, kernel, predicted, measured))
    table = aligned(rows)
    for number, node in reversed([*enumerate(graph.nodes, 2)]):
        if isinstance(node.operation, Pointwise):
            reason = _why_separate(graph, node, node.operation.chain)
            table.insert(number, f"{'':6}separate: {reason}")
    return "\n".join([*lines, "", *table])


def _why_separate(graph: Graph, node: Node, chain: Chain) -> str:
    """Say why a chain is a separate step."""
    before = graph.writers().get(node.inputs[0])
    if before is None:
        return "its value is an input of the network"
    name = KINDS[type(before.operation)].name
    epilogue = chain_of(before)
    if epilogue is None:
        return f"a {name} cannot end in a chain"
    if isinstance(before.operation, Convolution):
        first = chain[0].name if chain else "copy"
        return f"after {_chain(epilogue) or 'its sums'}, a {name}'s kernel cannot compute {first}"
    return f"it reads a value that is written after the {name}"


def _values_bytes(compiled: Compiled) -> int:
    """Return how many bytes all values would take if none shared memory."""
    graph = compiled.graph
    values = {*graph.inputs.values(), *(value for node in graph.nodes for value in node.outputs)}
    return sum(prod(graph.shapes[v]) * graph.form(v).dtype.itemsize for v in values)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def computes(node: Node, shapes: list[Shape]) -> str:
    """Describe an operation and its parameters, then " + " and its fused chain, if any."""
    operation = node.operation
    name = KINDS[type(operation)].name
    if isinstance(operation, Pointwise):
        return _chain(operation.chain)
    if isinstance(operation, Convolution):
        kernel = "x".join(map(str, operation.weight.shape[2:]))
        name = "conv_transpose" if operation.transposed else "conv"
        name += f" {shapes[0][1]}->{shapes[len(node.inputs)][1]} k{kernel}"
        for keyword in ("stride", "dilation", "groups"):
            value = getattr(operation.keywords, keyword)
            name += "" if value == 1 else f"{keyword[0]}{value}".replace(" ", "")
    elif isinstance(operation, Norm):
        kind = "instance" if operation.groups == shapes[0][1] else f"{operation.groups}-group"
        name = f"{'layer' if operation.per_position else kind} norm"
    elif isinstance(operation, Pad | Pool | Resample):
        name = f"{operation.mode} {name}"
    epilogue = _chain(chain_of(node) or ())
    return f"{name} + {epilogue}" if epilogue else name


def _chain(chain: Chain) -> str:
    words = (
        f"{op.name} {op.operand:.3g}" if isinstance(op.operand, int | float) else op.name
        for op in chain
    )
    return " + ".join(words)
