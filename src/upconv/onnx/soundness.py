"""Whether a ModelProto may be read: what is checked before anything is built from it.

1. Size: parts, nodes and numbers are counted, and nesting is bounded, without recursion.
2. Text: every name, property and doc string is UTF-8.
3. Opsets: one for the default domain, from 7 to the newest that the installed onnx knows; others
   are let be. No function calls itself.
4. Names: a graph defines each once; nodes read what their graph or an outer one defines; a cycle
   is refused. Nodes out of order are not: `unordered` tells.
5. Attributes: each once, of a type, with the value that type has; those of ONNX's own operators as
   their schema says. Values are left to who reads them.

What lives here: the structure. The bytes of tensors are looked after in `tensor_data`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from ..errors import ModelError, brief
from .bodies import Body, attributes, bodies, called, graphs, placed_attributes

OLDEST_OPSET = 7
NEWEST_OPSET: int = onnx.defs.onnx_opset_version()

MOST_LEVELS = 100
"""What protobuf's own reader allows; deeper models exist in memory only, and crash its copying."""
MOST_NODES = 250_000
MOST_PARTS = 5_000_000
"""Messages, and entries of lists of numbers and texts: an object of Python's is made of each."""

_FIELDS = {
    AttributeProto.FLOAT: "f",
    AttributeProto.INT: "i",
    AttributeProto.STRING: "s",
    AttributeProto.TENSOR: "t",
    AttributeProto.GRAPH: "g",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor",
    AttributeProto.TYPE_PROTO: "tp",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
    AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}
"""Type of an attribute -> the field its value is in."""

_PAYLOADS = frozenset(
    ("raw_data", "float_data", "double_data", "int32_data", "int64_data", "uint64_data")
)


def require_bounded(model: ModelProto) -> None:
    """Raise `ModelError` for a model too large or too deep to be read, or with broken text."""
    waiting: list[tuple[Any, int]] = [(model, 1)]
    parts = nodes = 0
    while waiting:
        message, level = waiting.pop()
        if level > MOST_LEVELS:
            raise ModelError(f"Its graphs or types are nested in more than {MOST_LEVELS} levels.")
        nodes += isinstance(message, NodeProto)
        for field, value in _set_fields(message):
            values = value if _repeated(value) else (value,)
            parts += len(values)
            if field.message_type is not None:
                waiting.extend((inner, level + 1) for inner in values)
            elif field.type == field.TYPE_STRING:
                _require_text(message, field.name, values)
        if nodes > MOST_NODES or parts > MOST_PARTS:
            raise ModelError(
                f"It has more than {MOST_NODES} nodes, or more than {MOST_PARTS} parts in all."
            )


def require_sound(model: ModelProto) -> None:
    """Raise `ModelError` unless names, opsets and attributes are as ONNX has them.

    The default domain is called "" afterwards, also where it was "ai.onnx".
    """
    if not model.HasField("graph"):
        raise ModelError("It holds no graph: it is empty, or no ONNX model.")
    if model.ir_version < 1:
        raise ModelError("It does not tell its version of ONNX's format; it is no ONNX model.")
    _require_opsets(model.opset_import, "It", required=True)
    _require_functions(model.functions)
    _require_graph(model.graph, [])
    for function in model.functions:
        _require_body(function, {*function.input}, list(function.output), [])
    for body in bodies(model):
        for place, attribute in placed_attributes(body):
            _require_attribute(place, attribute)
    for owner, body in [(model, model.graph), *((f, f) for f in model.functions)]:
        opset = _version(owner) or _version(model)
        for node in _all_nodes(body):
            _require_schema(node, opset)


def unordered(model: ModelProto) -> bool:
    """Whether some node comes before one whose result it reads."""
    return any(not _in_order(body) for body in bodies(model))


def _set_fields(message: Any) -> Iterable[tuple[Any, Any]]:
    if not isinstance(message, TensorProto):
        return message.ListFields()  # type: ignore[no-any-return]
    # Reading raw_data would copy it.
    fields = [field for field in message.DESCRIPTOR.fields if field.name not in _PAYLOADS]
    found = [(field, getattr(message, field.name)) for field in fields]
    return [
        (field, value)
        for field, value in found
        if (len(value) if _repeated(value) else message.HasField(field.name))
    ]


def _repeated(value: Any) -> bool:
    return hasattr(value, "append")


def _require_text(message: Any, field: str, values: Iterable[object]) -> None:
    for value in values:
        if isinstance(value, bytes):  # what protobuf gives where it cannot decode
            kind = message.DESCRIPTOR.name
            raise ModelError(f"A {field} in a {kind} is {brief(value)}, which is not UTF-8.")


def _require_opsets(imports: Iterable[Any], owner: str, *, required: bool) -> None:
    found: dict[str, int] = {}
    for entry in imports:
        if entry.domain == "ai.onnx":
            entry.domain = ""
        if found.setdefault(entry.domain, entry.version) != entry.version:
            raise ModelError(f"{owner} imports two opsets of the domain {brief(entry.domain)}.")
    version = found.get("")
    if version is None and required:
        raise ModelError(f"{owner} imports no opset of ONNX's own domain.")
    if version is not None and not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise ModelError(
            f"{owner} is of opset {version}; expected {OLDEST_OPSET} to {NEWEST_OPSET}, the newest "
            "that the installed onnx knows."
        )


def _version(importer: Any) -> int:
    return next((entry.version for entry in importer.opset_import if not entry.domain), 0)


def _identity(called_or_calling: Any) -> tuple[str, str, str]:
    """Function and calling node -> what ties them together."""
    name = getattr(called_or_calling, "op_type", None) or called_or_calling.name
    return called_or_calling.domain, name, getattr(called_or_calling, "overload", "")


def _require_functions(functions: Iterable[FunctionProto]) -> None:
    calls: dict[tuple[str, str, str], set[tuple[str, str, str]]] = {}
    for function in functions:
        if _identity(function) in calls:
            raise ModelError(f"Two functions are called {brief(function.name)}.")
        _require_opsets(
            function.opset_import, f"The function {brief(function.name)}", required=False
        )
        calls[_identity(function)] = {_identity(node) for node in _all_nodes(function)}
    left = _peeled({name: called & calls.keys() for name, called in calls.items()})
    if left:
        names = ", ".join(sorted(brief(name) for _, name, _ in left))
        raise ModelError(f"Functions call themselves, or one another in a circle: {names}.")


def _all_nodes(body: Body) -> Iterator[NodeProto]:
    waiting = [body]
    while waiting:
        inner = waiting.pop()
        yield from inner.node
        waiting.extend(graph for attribute in attributes(inner) for graph in graphs(attribute))


def _peeled(needs: dict[Any, set[Any]]) -> dict[Any, set[Any]]:
    """What is left of a relation when all that needs nothing left is taken away, again and again.

    That is the circles, and what needs them: empty unless there are any.
    """
    users: dict[Any, list[Any]] = {}
    for user, needed in needs.items():
        for one in needed:
            users.setdefault(one, []).append(user)
    counts = {user: len(needed) for user, needed in needs.items()}
    ready = [user for user, count in counts.items() if not count]
    while ready:
        done = ready.pop()
        del counts[done]
        for user in users.get(done, ()):
            counts[user] -= 1
            if not counts[user]:
                ready.append(user)
    return {user: needs[user] & counts.keys() for user in counts}


def _require_graph(graph: GraphProto, outer: list[set[str]]) -> None:
    inputs = [info.name for info in graph.input]
    _require_once(inputs, "input", graph)
    tensors = [tensor.name for tensor in graph.initializer]
    sparse = [tensor.values.name for tensor in graph.sparse_initializer]
    _require_once(tensors + sparse, "initialiser", graph)
    if clash := set(inputs) & set(sparse):
        raise ModelError(f"{brief(min(clash))} is an input and a sparse initialiser at once.")
    known = {*inputs, *tensors, *sparse}
    _require_body(graph, known, [info.name for info in graph.output], outer)


def _require_once(names: list[str], kind: str, graph: GraphProto) -> None:
    seen: set[str] = set()
    for name in names:
        if not name:
            raise ModelError(f"An {kind} of the graph {brief(graph.name)} has no name.")
        if name in seen:
            raise ModelError(f"The graph {brief(graph.name)} has two {kind}s called {brief(name)}.")
        seen.add(name)


def _require_body(body: Body, known: set[str], outputs: list[str], outer: list[set[str]]) -> None:
    """Names of one body: defined once, read only where defined, made without a circle."""
    for node in body.node:
        for name in filter(None, node.output):
            if name in known:
                raise ModelError(f"{called(node)} makes {brief(name)}, which is defined already.")
            known.add(name)
    scopes = [*outer, known]
    for node in body.node:
        for name in filter(None, node.input):
            if not any(name in scope for scope in scopes):
                raise ModelError(f"{called(node)} reads {brief(name)}, which nothing defines.")
        for attribute in node.attribute:
            for graph in graphs(attribute):
                _require_graph(graph, scopes)  # as deep as `require_bounded` lets graphs be
    for name in outputs:
        if name not in known:
            raise ModelError(f"{brief(body.name)} returns {brief(name)}, which nothing defines.")
    if not _in_order(body):
        _require_no_cycle(body)


def _reads(node: NodeProto) -> set[str]:
    """The names a node reads, those that graphs in it read from outside included."""
    found = set(filter(None, node.input))
    for attribute in node.attribute:
        for graph in graphs(attribute):
            made = {info.name for info in graph.input}
            made |= {name for inner in graph.node for name in inner.output}
            made |= {tensor.name for tensor in graph.initializer}
            found |= {name for inner in graph.node for name in _reads(inner)} - made
    return found


def _in_order(body: Body) -> bool:
    later = {name for node in body.node for name in node.output if name}
    for node in body.node:
        if not later.isdisjoint(_reads(node)):
            return False
        later.difference_update(node.output)
    return True


def _require_no_cycle(body: Body) -> None:
    makers = {name: i for i, node in enumerate(body.node) for name in node.output if name}
    needs = {
        i: {makers[name] for name in _reads(node) if name in makers}
        for i, node in enumerate(body.node)
    }
    left = _peeled(needs)
    if not left:
        return
    at, seen = min(left), dict[int, None]()
    while at not in seen:  # each that is left needs one that is left: following ends in a circle
        seen[at] = None
        at = min(left[at])
    circle = list(seen)[list(seen).index(at) :]
    names = ", ".join(called(body.node[i]) for i in circle[:5])
    more = f" and {len(circle) - 5} more" if len(circle) > 5 else ""
    raise ModelError(f"Nodes need their own results: {names}{more} stand in a circle.")


def _require_attribute(place: str, attribute: AttributeProto) -> None:
    name = f"{place}: the attribute {brief(attribute.name)}"
    if attribute.type not in _FIELDS:
        raise ModelError(f"{name} has no type that ONNX knows.")
    said = {"name", "type", "doc_string", "ref_attr_name", _FIELDS[attribute.type]}
    other = {field.name for field, _ in attribute.ListFields()} - said
    if other:
        kind = AttributeProto.AttributeType.Name(attribute.type)
        raise ModelError(f"{name} is of type {kind}, but has a value in {brief(min(other))}.")


def _require_schema(node: NodeProto, opset: int) -> None:
    names = [attribute.name for attribute in node.attribute]
    if len(set(names)) < len(names):
        raise ModelError(f"{called(node)} has an attribute twice.")
    kinds = _schema(node.op_type, opset) if node.domain in ("", "ai.onnx") else {}
    for attribute in node.attribute:
        kind, _ = kinds.get(attribute.name, (attribute.type, False))
        if kind != attribute.type:
            got, wanted = map(AttributeProto.AttributeType.Name, (attribute.type, kind))
            raise ModelError(
                f"{called(node)}: its attribute {attribute.name} has type {got}; expected {wanted}."
            )
    for name, (_, required) in kinds.items():
        if required and name not in names:
            raise ModelError(f"{called(node)} has no attribute {name}, which it must have.")


@cache
def _schema(op_type: str, opset: int) -> dict[str, tuple[int, bool]]:
    """The attributes of an operator of ONNX's own: type, and whether it must be there."""
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:  # an operator of somebody's own; runtimes know it or do not
        return {}
    return {
        name: (int(entry.type.value), bool(entry.required))
        for name, entry in schema.attributes.items()
    }
