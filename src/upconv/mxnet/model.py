"""Saved models that run on NumPy arrays, and checkpoint files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..arrays import array_or_numbers
from ..errors import DTypeError, brief
from ..files import path_text
from .base import MXNetError, raised_by
from .ndarray import NDArray, save
from .networks import PARAMETERS, Networks, Report, roles, run_graph
from .operators import Array
from .params import Name, read_params
from .symbol import Symbol
from .symbol import load as load_symbol
from .tape import mode

_WEIGHTED = ("Convolution", "Deconvolution", "FullyConnected")
_SAME_AXES = {
    "Activation", "BatchNorm", "BlockGrad", "Cast", "Dropout", "LRN", "LeakyReLU", "Pad", "Pooling",
    "UpSampling", "clip", "identity", "relu", "sigmoid", "tanh",
}  # fmt: skip
"""Operators whose result has the same axes and channels as their first input."""


class Model:
    """A graph with arrays for its parameters; several threads may run it.

    graph: a symbol, as `mx.sym.load` returns it. arrays: parameters and states by name; the
    attribute `arrays` holds read-only copies. `inputs` are the names of the other variables,
    except the labels of losses. `outputs` are the names of the results of `run`. Inputs are
    converted to `dtype`, the parameters' narrowest floating type. Raises `MXNetError` for a missing
    parameter.

    >>> import upconv.mxnet as mx
    >>> model = Model(mx.sym.Activation(mx.sym.var("x"), act_type="relu", name="act"), {})
    >>> model.inputs, model.outputs, model.run(x=[[-1, 3]])
    (['x'], ['act_output'], [array([[0., 3.]], dtype=float32)])
    >>> model
    <Model: inputs x; outputs act_output; 0 parameters in 0 arrays; float32>
    """

    def __init__(self, graph: Symbol, arrays: Mapping[str, Array]) -> None:
        if not isinstance(graph, Symbol):
            raise DTypeError("graph", brief(graph), "a symbol, as mx.sym.load returns it")
        if not isinstance(arrays, Mapping):
            raise DTypeError("arrays", brief(arrays), "a dict of arrays by name")
        self.graph, roles_of = graph, roles(graph)
        names = dict.fromkeys(graph.list_inputs())
        self.arrays = {name: np.array(arrays[name]) for name in names if name in arrays}
        for array in self.arrays.values():
            array.flags.writeable = False  # because layers keep packed copies
        kinds = [array.dtype for array in self.arrays.values() if array.dtype.kind == "f"]
        self.dtype = min(kinds, key=lambda kind: kind.itemsize, default=np.dtype(np.float32))
        free = {name: roles_of.get(name, {""}) for name in names if name not in arrays}
        self.inputs = [name for name, role in free.items() if role != {"label"}]
        self._fixed = {k: NDArray(v) for k, v in self.arrays.items()}
        self._fixed |= {name: NDArray(np.zeros(())) for name in free.keys() - {*self.inputs}}
        self.outputs: list[str] = graph.list_outputs()
        self._networks = Networks(graph, self.arrays)
        missing = [name for name in self.inputs if arrays and free[name] <= PARAMETERS]
        if missing:
            raise MXNetError(f"The parameters have no {', '.join(missing[:9])}.")

    def __repr__(self) -> str:
        size = sum(array.size for array in self.arrays.values())
        return (
            f"<Model: inputs {self.described_inputs()}; outputs {', '.join(self.outputs)};"
            f" {size:,} parameters in {self.described_arrays()}; {self.dtype}>"
        )

    def described_arrays(self) -> str:
        """Return the number of arrays, such as "5 arrays"."""
        return f"{len(self.arrays)} array{'s' * (len(self.arrays) != 1)}"

    def described_inputs(self) -> str:
        """Return the inputs with their known axes, such as "data (N, 3, H, W)"."""
        pairs = ((name, ", ".join(map(str, axes))) for name, axes in self.input_shapes().items())
        return ", ".join(f"{name} ({axes})" if axes else name for name, axes in pairs)

    def input_shapes(self) -> dict[str, tuple[int | str, ...]]:
        """Return each input's axes, with the number of channels from the parameters' shapes.

        An input's channels are known if a layer with weights reads it, directly or through layers
        that keep the axes; the entries of other inputs are empty.

        >>> import upconv.mxnet as mx
        >>> net = mx.sym.Deconvolution(mx.sym.var("x"), kernel=(3, 3), num_filter=8, name="up")
        >>> Model(net, {"up_weight": np.ones((5, 8, 3, 3))}).input_shapes()
        {'x': ('N', 5, 'H', 'W')}
        """
        shapes: dict[str, tuple[int | str, ...]] = dict.fromkeys(self.inputs, ())
        origins = {id(node): node.name for node in self.graph.nodes() if node.name in shapes}
        for node in self.graph.nodes():
            origin = origins.get(id(node.inputs[0][0])) if node.inputs else None
            if node.operator is None or origin is None:
                continue
            kind = node.op
            if kind in _WEIGHTED and not shapes[origin]:
                weight = self.arrays.get(node.inputs[1][0].name)
                shapes[origin] = () if weight is None else _axes(node.p, weight.shape, kind)
            elif kind in _SAME_AXES or kind.endswith("_scalar"):
                origins[id(node)] = origin
        return shapes

    def run(self, /, **inputs: Any) -> list[Array]:
        """Compute the outputs; raises `MXNetError` for inputs that do not fit the graph."""
        return self.computed(inputs)

    def computed(self, inputs: Mapping[str, Any], report: Report | None = None) -> list[Array]:
        """Compute the outputs; `report` is called as in `run_graph`."""
        converted = self._converted(inputs)
        try:
            arrays = self._fixed | {name: NDArray(x) for name, x in converted.items()}
            with mode(recording=False, training=False):
                by_operators = report is not None  # a report needs every node
                graph = self.graph if by_operators else self._networks.prepared(converted).graph
                outputs = run_graph(graph, arrays, report)
        except MXNetError as error:
            raise _with_shapes(error, converted) from error
        return [y.asnumpy() for y in outputs]

    def explain(self, /, **inputs: Any) -> str:
        """Describe the parts that `run` computes as networks, and why it excludes other nodes."""
        return str(self._networks.prepared(self._converted(inputs)))

    def _converted(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the inputs as read-only arrays of the model's type."""
        if {*inputs} != {*self.inputs}:
            names = ", ".join(inputs) or "none"
            raise MXNetError(f"The inputs are {names}; expected {', '.join(self.inputs)}.")
        converted = dict[str, Array]()
        try:
            with raised_by("An input"):
                for name in self.inputs:
                    converted[name] = array_or_numbers(name, inputs[name], None)
                    converted[name] = converted[name].astype(self.dtype, copy=False).view()
                    converted[name].flags.writeable = False  # it belongs to the caller
        except MXNetError as error:
            raise _with_shapes(error, converted or inputs) from error
        return converted


def _with_shapes(error: Exception, inputs: Mapping[str, Any]) -> MXNetError:
    """Return the error with the shapes of the inputs appended."""
    shapes = ", ".join(f"{k} {x.shape}" if hasattr(x, "shape") else k for k, x in inputs.items())
    return MXNetError(f"{str(error).rstrip('.')}. The inputs are {shapes}.")  # NumPy adds no dot


def _axes(p: Any, weight: tuple[int, ...], kind: str) -> tuple[int | str, ...]:
    """Return the axes of a layer's input, with letters for unknown sizes."""
    if kind == "FullyConnected":
        return ("N", weight[1])
    layout = p.layout or "NC" + "DHW"[-len(p.kernel) :]
    first = kind == "Deconvolution"  # whether the weight's first axis is the input's channels
    axis = 0 if first else layout.index("C")
    channels = weight[axis] * (1 if first else p.num_group)
    return tuple(channels if letter == "C" else letter for letter in layout)


def load(symbol_json: Name, params: Name | None = None) -> Model:
    """Read the model of a -symbol.json and a .params file; without params all variables are inputs.

    Raises `FileError`, `ModelError` for a damaged file, and `MXNetError`; see `Model`.
    """
    arrays = {} if params is None else read_params(path_text("params", params))
    graph = load_symbol(path_text("symbol_json", symbol_json))
    return Model(graph, {k.split(":", 1)[-1]: v for k, v in arrays.items()})


def params_name(prefix: str, epoch: int) -> str:
    """Return the name of a checkpoint's file of parameters, such as "net-0000.params"."""
    with raised_by("epoch"):
        return f"{prefix}-{epoch:04d}.params"


def load_params(prefix: str, epoch: int) -> tuple[dict[str, NDArray], dict[str, NDArray]]:
    """Read parameters and states by name from `prefix-0000.params`, where 0000 is the epoch."""
    parts: dict[str, dict[str, NDArray]] = {"arg": {}, "aux": {}}
    for name, value in read_params(params_name(prefix, epoch)).items():
        kind, _, plain_name = name.partition(":")
        if kind not in parts:
            raise MXNetError(
                f"{name!r} does not begin with arg: or aux:, as names in a checkpoint do."
            )
        parts[kind][plain_name] = NDArray(value)
    return parts["arg"], parts["aux"]


def load_checkpoint(
    prefix: str, epoch: int
) -> tuple[Symbol, dict[str, NDArray], dict[str, NDArray]]:
    """Read the graph in `prefix-symbol.json`, and parameters and states as `load_params` does."""
    return load_symbol(f"{prefix}-symbol.json"), *load_params(prefix, epoch)


def save_checkpoint(
    prefix: str, epoch: int, symbol: Symbol | None, arg_params: Mapping[str, NDArray],
    aux_params: Mapping[str, NDArray], remove_amp_cast: bool = True,
) -> None:  # fmt: skip
    """Write the files that `load_checkpoint` reads; without a symbol, only the parameters."""
    name = params_name(prefix, epoch)
    if symbol is not None:
        symbol.save(f"{prefix}-symbol.json")
    named = {f"arg:{k}": v for k, v in arg_params.items()}
    save(name, named | {f"aux:{k}": v for k, v in aux_params.items()})
