"""Graphs: `mx.sym`. A `Symbol` is one or several outputs of a graph of operators.

The JSON format is that of MXNet 1.x and 2.x: nodes, each after its inputs, with string attributes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, partialmethod
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..dialects import mxnet_attributes as kinds
from ..errors import ModelError, brief
from ..files import opened, path_text, published, reported
from ..properties import cached_property
from .attribute_scopes import is_free, scoped, stored, with_short_names
from .base import MXNetError, MXNetTypeError, MXNetValueError, ordered, raised_by
from .fluent import Fluent, named
from .inference import Key, infer_shapes, infer_types
from .operators import OPERATORS, Operator, operator_named
from .params import type_number

_COUNTS: dict[str, int] = {}


class Node:
    """A variable, whose operator is None, or an operator applied to outputs of other nodes.

    op: the operator's name, "null" for a variable. attrs: strings that no operator reads.
    """

    def __init__(
        self, operator: Operator | None, name: str, attributes: dict[str, Any], inputs: list[Any],
        attrs: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.operator, self.name, self.attributes, self.inputs = operator, name, attributes, inputs
        self.op, self.attrs = operator.name if operator else "null", dict(attrs)
        self.p: Any = operator.parse(attributes, len(inputs)) if operator else None

    def outputs(self) -> tuple[str, ...]:
        """Return the names of all outputs."""
        names = self.operator.outputs(self.p) if self.operator else ()
        return tuple(f"{self.name}_{name}" for name in names) or (self.name,)

    def named_inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs."""
        return self.operator.named_inputs(self.p) if self.operator else ()

    def texts(self) -> dict[str, str]:
        """Return the call's attributes as MXNet writes them."""
        return {key: kinds.text(value) for key, value in self.attributes.items()} | self.attrs

    def visible(self) -> list[tuple[Node, int]]:
        """Return the outputs that a caller sees."""
        return [(self, i) for i in range(self.operator.visible(self.p) if self.operator else 1)]

    def states(self) -> list[Node]:
        """Return the inputs that are states."""
        states = self.operator.auxiliary if self.operator else ()
        pairs = zip(self.named_inputs(), self.inputs, strict=True)
        return [parent for name, (parent, _) in pairs if name in states]


class Symbol(Fluent):
    """Outputs of a graph: pairs of a node and the number of one of its outputs.

    >>> import upconv.mxnet as mx
    >>> y = mx.sym.Deconvolution(mx.sym.var("x"), kernel=(4, 4), stride=(2, 2), num_filter=8)
    >>> y.infer_shape(x=(1, 3, 5, 5))
    ([(1, 3, 5, 5), (3, 8, 4, 4)], [(1, 8, 12, 12)], [])
    """

    arithmetic_prefix = "elemwise_"  # between symbols, as in MXNet

    def __init__(self, entries: Sequence[tuple[Node, int]]) -> None:
        self.entries = list(entries)

    @property
    def name(self) -> str | None:
        """The node's name, if there is only one node."""
        nodes = {id(node): node for node, _ in self.entries}
        return next(iter(nodes.values())).name if len(nodes) == 1 else None

    def nodes(self) -> list[Node]:
        """Return all nodes, each after its inputs."""
        return self._nodes

    @cached_property
    def _nodes(self) -> list[Node]:
        return ordered((n for n, _ in self.entries), lambda n: [parent for parent, _ in n.inputs])

    @cached_property
    def reads(self) -> Counter[tuple[int, int]]:
        """Number of reads of each value, by its node's id and its number."""
        entries = [*self.entries, *(entry for node in self.nodes() for entry in node.inputs)]
        return Counter((id(node), i) for node, i in entries)

    def _variables(self) -> tuple[list[str], list[str]]:
        """Return the names of arguments and of auxiliary states."""
        states = {id(parent) for node in self.nodes() for parent in node.states()}
        names: tuple[list[str], list[str]] = ([], [])
        for node in self.nodes():
            if node.operator is None:
                names[id(node) in states].append(node.name)
        return names

    def list_arguments(self) -> list[str]:
        """Return the names of the variables, in the order in which nodes read them."""
        return self._variables()[0]

    def list_auxiliary_states(self) -> list[str]:
        """Return the names of the variables that are states."""
        return self._variables()[1]

    def list_inputs(self) -> list[str]:
        """Return the names of all variables."""
        return [node.name for node in self.nodes() if node.operator is None]

    def list_outputs(self) -> list[str]:
        """Return the names of the outputs."""
        return [node.outputs()[i] for node, i in self.entries]

    def get_internals(self) -> Symbol:
        """Return a symbol with all nodes' outputs."""
        return Symbol([entry for node in self.nodes() for entry in node.visible()])

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Return all attributes as strings, by node name."""
        return {n.name: with_short_names(n.texts()) for n in self.nodes() if n.texts()}

    def list_attr(self) -> dict[str, str]:
        """Return the attributes of the node."""
        return self.attr_dict().get(self.name or "", {})

    def attr(self, key: str) -> str | None:
        """Return an attribute of the node, or None."""
        return self.list_attr().get(key)

    def _set_attr(self, **attrs: str) -> None:
        self.entries[0][0].attrs.update(stored(attrs))

    def infer_shape(self, *shapes: Any, **named: Any) -> tuple[Any, Any, Any]:
        """Infer the shapes of arguments, outputs and states; all three are None if one is open."""
        result = self._inferred(shapes, named)
        unknown = any(shape is None or 0 in shape for part in result for shape in part)
        return (None, None, None) if unknown else result

    def infer_shape_partial(self, *shapes: Any, **named: Any) -> tuple[Any, Any, Any]:
        """Infer shapes as `infer_shape` does, with 0 for open sizes and () for unknown shapes."""
        first, second, third = self._inferred(shapes, named)
        return [s or () for s in first], [s or () for s in second], [s or () for s in third]

    def _inferred(self, shapes: Any, named: Any) -> tuple[Any, Any, Any]:
        with raised_by("a shape"):
            sizes = {name: tuple(s) for name, s in self._by_name(shapes, named).items() if s}
        return self._parts(infer_shapes(self.nodes(), sizes))

    def _by_name(self, values: Any, named: Any) -> dict[str, Any]:
        """Map names to shapes or types, given by position in `list_arguments` or by keyword."""
        arguments, states = self._variables()
        result = dict(zip(arguments, values, strict=False)) | named
        names = [*arguments, *states]
        for name in (*result, *names):
            if name not in names or names.count(name) > 1:
                raise MXNetError(f"{name!r} is not one variable; there are {', '.join(names)}.")
        return {name: value for name, value in result.items() if value is not None}

    def _parts(self, known: Mapping[Key, Any]) -> tuple[Any, Any, Any]:
        """Return the shapes or types of arguments, outputs and states."""
        keys = {node.name: (id(node), 0) for node in self.nodes() if node.operator is None}
        arguments, states = ([known[keys[n]] for n in names] for names in self._variables())
        return arguments, [known.get((id(node), i)) for node, i in self.entries], states

    def infer_type(self, *types: Any, **named: Any) -> tuple[Any, Any, Any]:
        """Infer the types of arguments, outputs and states; all None if one is unknown."""
        result = self.infer_type_partial(*types, **named)
        return (None, None, None) if any(None in part for part in result) else result

    def infer_type_partial(self, *types: Any, **named: Any) -> tuple[Any, Any, Any]:
        """Infer types as `infer_type` does, with None for unknown types."""
        known = infer_types(self.nodes(), self._by_name(types, named))
        return self._parts({key: kind and kind.type for key, kind in known.items()})

    def bind(self, ctx: Any = None, args: Any = None, *values: Any, **named: Any) -> Any:
        """Return an executor on these arrays; see `executor.bind`."""
        return import_module("..executor", __name__).bind(self, ctx, args, *values, **named)

    def simple_bind(self, ctx: Any = None, *values: Any, **named: Any) -> Any:
        """Return an executor on new arrays, given some shapes; see `executor.simple_bind`."""
        return import_module("..executor", __name__).simple_bind(self, ctx, *values, **named)

    _bind, _simple_bind = partialmethod(bind, version=2), partialmethod(simple_bind, version=2)

    def eval(self, ctx: Any = None, **arrays: Any) -> Any:
        """Compute the outputs from arrays by name."""
        return self.bind(ctx, arrays, None, "null").forward()

    def tojson(self) -> str:
        """Return the graph as MXNet's JSON."""
        nodes = self.nodes()
        number = {id(node): i for i, node in enumerate(nodes)}
        rows = []
        for node in nodes:
            inputs = [[number[id(parent)], i, 0] for parent, i in node.inputs]
            row = {"op": node.op, "name": node.name}
            texts = node.texts()
            rows.append(row | ({"attrs": texts} if texts else {}) | {"inputs": inputs})
        graph = {
            "nodes": rows,
            "arg_nodes": [i for i, node in enumerate(nodes) if node.operator is None],
            "node_row_ptr": list(range(len(nodes) + 1)),
            "heads": [[number[id(node)], i, 0] for node, i in self.entries],
            "attrs": {"mxnet_version": ["int", 10901]},
        }
        return json.dumps(graph, indent=2)

    def save(self, fname: Any) -> None:
        """Write the JSON to a file."""
        name = path_text("fname", fname)
        with reported(name), published(Path(name), force=True) as handle:
            handle.write(self.tojson().encode())

    def _apply(self, operator: Operator, inputs: list[Any], attributes: dict[str, Any]) -> Symbol:
        return compose(operator, inputs, attributes)

    def __getitem__(self, key: Any) -> Symbol:
        if isinstance(key, str):
            names = self.list_outputs()
            if key not in names:
                raise MXNetValueError(f"There is no output {key!r}; there are {', '.join(names)}.")
            key = names.index(key)
        return Symbol(self.entries[key] if isinstance(key, slice) else [self.entries[key]])

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        raise MXNetTypeError("A symbol has no value, so it is neither true nor false.")

    def __iter__(self) -> Iterator[Symbol]:
        return (Symbol([entry]) for entry in self.entries)

    def __repr__(self) -> str:
        return f"<Symbol {self.name or ', '.join(self.list_outputs())}>"


def compose(
    operator: Operator, inputs: Sequence[Any], attributes: dict[str, Any], name: str | None = None,
    attr: Mapping[str, str] | None = None,
) -> Symbol:  # fmt: skip
    """Apply an operator to symbols; an input that is None becomes a variable."""
    attrs = scoped(attr)
    if name is None:  # as MXNet names them: convolution0, convolution1, ...
        hint = operator.name.lower().lstrip("_")
        _COUNTS[hint] = _COUNTS.get(hint, -1) + 1
        name = f"{hint}{_COUNTS[hint]}"
    attributes = dict(attributes)
    with raised_by(f"{name} ({operator.name})"):
        names = operator.named_inputs(operator.parse(attributes, len(inputs)))
        known = names if operator.variadic else operator.inputs
        padded = [*inputs, *[None] * (len(known) - len(inputs))]
        given = {n: x for x, n in zip(padded, known, strict=True)}
        extra = [n for n, x in given.items() if x is not None and n not in names]
        if extra:
            raise MXNetError(f"{extra[0]} does not belong to these attributes.")
        entries = [_entry(given[n], f"{name}_{n}", attrs) for n in names]
        if "num_args" in operator.attributes:  # MXNet requires it in a file
            attributes.setdefault("num_args", len(names))
        return Symbol(Node(operator, name, attributes, entries, attrs).visible())


def _entry(x: Any, name: str, attrs: dict[str, str]) -> tuple[Node, int]:
    if x is None:
        return Node(None, name, {}, [], attrs), 0
    if not isinstance(x, Symbol) or len(x.entries) != 1:
        raise MXNetError(f"an input is {brief(x)}; expected a Symbol with one output.")
    return x.entries[0]


def var(
    name: str, attr: Any = None, shape: Any = None, lr_mult: Any = None, wd_mult: Any = None,
    dtype: Any = None, init: Any = None, stype: Any = None, **more: Any,
) -> Symbol:  # fmt: skip
    """Create a variable, to which an array is bound; the other arguments become attributes.

    shape, dtype: used by `infer_shape` and `infer_type`. more: attributes named as `__name__`.
    Raises `MXNetError` for other names and for values of attr that are not strings.
    """
    if not isinstance(name, str):
        raise MXNetTypeError(f"name is {brief(name)}; expected a string.")
    unknown = [key for key in more if not is_free(key)]
    if unknown:
        name = unknown[0]
        raise MXNetValueError(f"{name} is not an argument of var; name an attribute __{name}__.")
    more |= {"lr_mult": lr_mult, "wd_mult": wd_mult}
    with raised_by("var"):
        sizes = None if shape is None else kinds.KINDS["shape"]("shape", shape)
        more["__shape__"] = None if sizes is None else kinds.text(sizes)
        kind = None if dtype is None else kinds.KINDS["dtype"]("dtype", dtype)
    more["__dtype__"] = None if kind is None else type_number(kind)
    more["__init__"] = init.dumps() if hasattr(init, "dumps") else init
    strings = {key: str(value) for key, value in more.items() if value is not None}
    return Symbol([(Node(None, name, {}, [], scoped(attr) | stored(strings)), 0)])


Variable = var


def Group(symbols: Iterable[Symbol]) -> Symbol:  # noqa: N802 - MXNet's name
    """Return a symbol with the outputs of several symbols, or of one symbol."""
    return Symbol([entry for symbol in symbols for entry in symbol.entries])


@cache
def function(name: str, operator: Operator) -> Any:
    """Create a function of symbols from an operator."""

    def apply(*values: Any, name: Any = None, attr: Any = None, **named: Any) -> Symbol:
        attrs = {key: str(named.pop(key)) for key in [*named] if is_free(key)}
        with raised_by(operator.name):
            inputs, attributes = operator.bind(values, named)
        return compose(operator, inputs, attributes, name, {**(attr or {}), **attrs})

    apply.__name__ = apply.__qualname__ = name
    return apply


def load(fname: Any) -> Symbol:
    """Read the graph of a -symbol.json file."""
    name = path_text("fname", fname)
    with reported(name, "read"), opened(Path(name)) as handle:
        return load_json(handle.read(), name)


def load_json(text: str | bytes, name: str = "The JSON") -> Symbol:
    """Read the graph of MXNet's JSON.

    Raises `ModelError` for a damaged graph, and `MXNetError` for an unknown operator.
    """
    try:
        graph = json.loads(text)
        if not isinstance(graph, dict) or not {"nodes", "heads"} <= {*graph}:
            reason = f"it is {brief(graph)}; expected an object with nodes and heads"
            raise ModelError(f"{name} is not an MXNet graph: {reason}.")
        nodes: list[Node] = []
        for row in graph["nodes"]:
            nodes.append(_node(row, nodes))
        return Symbol(_entries(graph["heads"], nodes))
    except (MXNetError, ModelError):
        raise
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, AttributeError) as error:
        raise ModelError(f"{name} is not an MXNet graph: {brief(error)}.") from None


fromjson = load_json


def _entries(pairs: Any, nodes: list[Node]) -> list[tuple[Node, int]]:
    """Return the outputs of nodes that a file's entries [node, output, ...] refer to."""
    if not pairs:
        raise ValueError("there are no heads")
    for number, index, *_ in pairs:
        if not 0 <= number < len(nodes) or not 0 <= index < len(nodes[number].outputs()):
            raise ValueError(f"[{number}, {index}] is not an output of an earlier node")
    return [(nodes[number], index) for number, index, *_ in pairs]


def _node(row: dict[str, Any], earlier: list[Node]) -> Node:
    """Create a node from a file's row; its inputs are among the earlier nodes."""
    raw = row.get("attrs") or row.get("attr") or row.get("param") or {}
    if not isinstance(raw, dict) or not isinstance(row["name"], str):
        raise ValueError("a node's name is not a string, or its attributes are not a dict")
    inputs = _entries(row["inputs"], earlier) if row["inputs"] else []
    variable = row["op"] == "null"
    attrs = {k: kinds.text(v) for k, v in raw.items() if variable or k.startswith("__")}
    if variable:
        return Node(None, row["name"], {}, [], attrs)
    kind = operator_named(row["op"])
    known = {k: v for k, v in raw.items() if k not in attrs and v != "None"}
    with raised_by(f"{row['name']} ({kind.name})"):
        node = Node(kind, row["name"], known, inputs, attrs)
        if len(inputs) != len(kind.named_inputs(node.p)):
            raise MXNetError(f"{node.name}: it has {len(inputs)} inputs.")
    return node


_sync = function("SyncBatchNorm", OPERATORS["_contrib_SyncBatchNorm"])
contrib = SimpleNamespace(SyncBatchNorm=_sync)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return named(name, function)
