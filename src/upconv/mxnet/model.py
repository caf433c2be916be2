"""Saved models, run as they are: a graph and its parameters, on NumPy arrays, without a tape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import UpconvError
from .base import MXNetError
from .operators import Array
from .operators.row import Call
from .params import Name, read_params
from .symbol import Symbol
from .symbol import load as load_symbol

_PARAMETERS = {"weight", "bias", "gamma", "beta", "moving_mean", "moving_var"}
_FOREIGN = (UpconvError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)


class Model:
    """A graph with arrays for its parameters; made once, it may be run by several threads.

    graph: what `mx.sym.load` reads. arrays: parameters and states by name, of which `arrays` has
    copies not to be written to. `inputs` names the graph's other variables but for the labels of
    losses, which are not needed; `outputs` names what `run` returns. Inputs are made `dtype`, the
    narrowest floating type of the parameters. Raises `MXNetError` for a parameter that is missing.

    >>> import upconv.mxnet as mx
    >>> model = Model(mx.sym.Activation(mx.sym.var("x"), act_type="relu", name="act"), {})
    >>> model.inputs, model.outputs, model.run(x=[[-1, 3]])
    (['x'], ['act_output'], [array([[0., 3.]], dtype=float32)])
    """

    def __init__(self, graph: Symbol, arrays: Mapping[str, Array]) -> None:
        self.graph, self._nodes, roles = graph, list[Any](graph.nodes()), dict[int, set[str]]()
        self._last: dict[tuple[int, int], int] = {}  # the place of the last node to read a value
        for place, node in enumerate(self._nodes):
            names = node.row.named_inputs(node.p) if node.row else ()
            for name, (parent, i) in zip(names, node.inputs, strict=True):
                roles.setdefault(id(parent), set()).add(name)
                self._last[id(parent), i] = place
        self._last |= {(id(node), i): len(self._nodes) for node, i in graph.entries}
        variables = {node.name: roles.get(id(node)) for node in self._nodes if not node.row}
        self.arrays = {name: np.array(arrays[name]) for name in variables if name in arrays}
        for array in self.arrays.values():
            array.flags.writeable = False  # layers keep weights packed
        kinds = [array.dtype for array in self.arrays.values() if array.dtype.kind == "f"]
        self.dtype = min(kinds, key=lambda kind: kind.itemsize, default=np.dtype(np.float32))
        free = {name: role or {""} for name, role in variables.items() if name not in arrays}
        self.inputs = [name for name, role in free.items() if role != {"label"}]
        self.outputs: list[str] = graph.list_outputs()
        missing = [name for name in self.inputs if arrays and free[name] <= _PARAMETERS]
        if missing:
            raise MXNetError(f"The parameters have no {', '.join(missing[:9])}.")

    def run(self, /, **inputs: Any) -> list[Array]:
        """The outputs, in inference; raises `MXNetError` for inputs that do not fit the graph."""
        return self.computed(inputs, {})

    def computed(self, inputs: Mapping[str, Any], met: dict[Any, Any]) -> list[Array]:
        """As `run`; leaves (shape, type) in `met` of every value, by its node's id and number."""
        if {*inputs} != {*self.inputs}:
            raise MXNetError(f"The inputs are {[*inputs]}; expected {self.inputs}.")
        name, given, values = "An input", dict[str, Array](), dict[tuple[int, int], Array]()
        try:
            given |= {k: np.asarray(x).astype(self.dtype, copy=False) for k, x in inputs.items()}
            arrays = self.arrays | given
            for place, node in enumerate(self._nodes):
                name = f"{node.name} ({node.row and node.row.name})"
                keys = [(id(parent), i) for parent, i in node.inputs]
                read = [values[key] for key in keys if key in values]  # a label is not there
                if getattr(node.p, "fix_gamma", False):
                    read[1] = np.ones_like(read[1])  # as the operator writes into it
                found = node.row.run(Call(node.p, inputs=read)) if node.row else ()
                found = (arrays[node.name],) if node.name in arrays and not node.row else found
                for i, y in enumerate(found):
                    met[id(node), i] = y.shape, y.dtype
                    if (id(node), i) in self._last:
                        values[id(node), i] = y
                for key in keys:
                    if self._last[key] == place:
                        values.pop(key, None)
        except _FOREIGN as error:
            shapes = ", ".join(f"{k} {x.shape}" for k, x in given.items())
            text = str(error).rstrip(".")  # NumPy's have no full stop
            raise MXNetError(f"{name}: {text}. The inputs are {shapes or inputs}.") from error
        return [np.array(values[id(node), i]) for node, i in self.graph.entries]


def load(symbol_json: Name, params: Name | None = None) -> Model:
    """The model of a -symbol.json and a .params file; see `Model`. Without params all are inputs.

    Raises `FileError`, `ModelError` for a damaged file, and `MXNetError`.
    """
    arrays = {} if params is None else read_params(params)
    return Model(load_symbol(symbol_json), {k.split(":", 1)[-1]: v for k, v in arrays.items()})
