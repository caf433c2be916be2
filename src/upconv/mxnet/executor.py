"""Executors: a graph with arrays for its variables, which runs forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import brief
from .base import MXNetError, MXNetKeyError, MXNetTypeError, MXNetValueError, raised_by, require
from .ndarray import NDArray, differentiate
from .networks import PARAMETERS, Report, WatchedNetworks, roles, run_graph
from .symbol import Node, Symbol
from .tape import REQUESTS, Leaf, mode

_UNNAMED = ("Activation", "softmax", "log_softmax", "SoftmaxActivation")
_LOSSES = ("MakeLoss", "SoftmaxOutput")


def _monitored(callback: Callable[[str, NDArray], Any], with_inputs: bool) -> Report:
    """Return a report that calls a monitor with the outputs, or with the inputs as well."""

    def report(node: Node, inputs: list[NDArray], outputs: list[NDArray]) -> None:
        unnamed = node.op in _UNNAMED
        for i, (x, name) in enumerate(zip(inputs, node.named_inputs(), strict=True)):
            if with_inputs and node.inputs[i][0].operator is None:
                callback(node.inputs[i][0].name, x)
            if with_inputs:
                callback(f"{node.name}_{f'input{i}' if unnamed else name}", x)
        for name, y in zip(node.outputs(), outputs, strict=True):
            callback(name, y)

    return report


class Executor:
    """A graph with its arrays, in the order of `list_arguments` and of `list_auxiliary_states`."""

    arg_arrays: Any = property(lambda self: list(self.arg_dict.values()), doc="Arguments.")
    grad_arrays: Any = property(
        lambda self: list(self.grad_dict.values()), doc="Gradients or None."
    )
    aux_arrays: Any = property(lambda self: list(self.aux_dict.values()), doc="States.")

    def __init__(
        self, symbol: Symbol, arrays: dict[str, Any], grads: dict[str, Any],
        requests: dict[str, str], version: int,
    ) -> None:  # fmt: skip
        self.arg_dict = {name: arrays[name] for name in symbol.list_arguments()}
        self.aux_dict = {name: arrays[name] for name in symbol.list_auxiliary_states()}
        self.grad_dict = {
            name: None if requests[name] == "null" else grads.get(name) for name in self.arg_dict
        }
        shapes = symbol.infer_shape_partial(**{name: x.shape for name, x in arrays.items()})[1]
        types = symbol.infer_type_partial(**{name: x.dtype for name, x in arrays.items()})[1]
        with raised_by("the outputs"):
            self.outputs = [
                NDArray(np.zeros(shape, kind or np.float32))
                for shape, kind in zip(shapes, types, strict=True)
            ]
        self._symbol, self._version, self._requests = symbol, version, requests
        self._monitor: Report | None = None
        self._computed, self._networks = False, WatchedNetworks(symbol)
        named = roles(symbol).items()
        self._constants = {name for name, words in named if words <= PARAMETERS}

    @property
    def output_dict(self) -> dict[str, NDArray]:
        """Outputs by name."""
        return dict(zip(self._symbol.list_outputs(), self.outputs, strict=True))

    def set_monitor_callback(
        self, callback: Callable[[str, NDArray], Any], monitor_all: bool = False
    ) -> None:
        """Call `callback(name, array)` for every output and, with monitor_all, every input."""
        self._monitor = _monitored(callback, monitor_all)

    def forward(self, is_train: bool = False, **arrays: Any) -> list[NDArray]:
        """Copy these arrays into the arguments, run the graph, and return `outputs`."""
        for name, value in arrays.items():
            if name in self.arg_dict:
                self._write(self.arg_dict, name, value)
            elif self._version == 1:
                known = ", ".join(self.arg_dict)
                raise MXNetTypeError(f"{name!r} is not an argument; there are {known}.")
        leaves = {name: self._leaf(name, x) for name, x in self.arg_dict.items()}
        leaves |= self.aux_dict
        records, results = any(grad is not None for grad in self.grad_dict.values()), None
        with mode(recording=records, training=bool(is_train)):
            if not (records or is_train or self._monitor):
                constants = {k: x for k, x in leaves.items() if k in self._constants}
                inputs = {k: x for k, x in leaves.items() if k not in constants}
                results = self._networks.run(constants, inputs)
            if results is None:
                results = run_graph(self._symbol, leaves, self._monitor)
        for y, result in zip(self.outputs, results, strict=True):  # the caller may hold `outputs`
            y.value, y.source = result.value, result.source
        self._computed = True
        return self.outputs

    def copy_params_from(
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None,
        allow_extra_params: bool = False,
    ) -> None:  # fmt: skip
        """Copy arrays into the arguments and states by name."""
        for targets, values in ((self.arg_dict, arg_params), (self.aux_dict, aux_params or {})):
            for name, value in values.items():
                if name in targets:
                    self._write(targets, name, value)
                elif not allow_extra_params:
                    known = ", ".join(targets)
                    raise MXNetValueError(f"{name!r} is not in the graph; there are {known}.")

    def reshape(
        self, partial_shaping: bool = False, allow_up_sizing: bool = False, **shapes: Any
    ) -> Executor:
        """Return an executor for other shapes; arrays that keep their shape are shared."""
        arrays = self.arg_dict | self.aux_dict
        kinds = {name: x.dtype for name, x in arrays.items()}
        new = simple_bind(
            self._symbol, None, self._requests, kinds, version=self._version, **shapes
        )
        for name in ("arg_dict", "aux_dict", "grad_dict"):
            mine, theirs = getattr(self, name), getattr(new, name)
            same = [k for k, x in theirs.items() if x is not None and x.shape == mine[k].shape]
            theirs.update({k: mine[k] for k in same})
        return new

    @staticmethod
    def _write(targets: Mapping[str, Any], name: str, value: Any) -> None:
        shape = targets[name].shape
        if np.shape(value) != shape:
            raise MXNetValueError(f"{name}: shape {np.shape(value)}; expected {shape}.")
        targets[name][:] = value

    def _leaf(self, name: str, array: NDArray) -> NDArray:
        """Return a leaf for one argument, because two names may share an array."""
        grad = self.grad_dict[name]
        return NDArray(array.value, None if grad is None else Leaf(grad, self._requests[name]))

    def backward(self, out_grads: Any = None, is_train: bool = True) -> None:
        """Compute the gradients from the outputs' gradients: one array, or one for each output."""
        if isinstance(out_grads, (NDArray, np.ndarray)):
            out_grads = [out_grads]
        if not self._computed:
            raise MXNetError("backward must follow forward(is_train=True).")
        losses = all(node.op in _LOSSES for node, _ in self._symbol.entries)
        if out_grads is None and self._version == 1 and not losses:
            raise MXNetError("out_grads is not given, and an output is not a loss; pass gradients.")
        grads = [None] * len(self.outputs) if out_grads is None else out_grads
        pairs = [(y, g) for y, g in zip(self.outputs, grads, strict=False) if y.source is not None]
        differentiate([y for y, _ in pairs], [g for _, g in pairs], True, is_train)


def _named(argument: str, names: list[str], values: Any, required: bool = True) -> dict[str, Any]:
    """Return arrays by name, from a list in the order of names, or a dict that may have others."""
    if not isinstance(values, Mapping):
        values = dict(zip(names, values or (), strict=False))
    arrays = {name: values[name] for name in names if values.get(name) is not None}
    missing = [name for name in names if name not in arrays]
    if missing and required:
        raise MXNetValueError(f"{argument} has no array for {missing[0]!r}.")
    for name, value in arrays.items():
        if not isinstance(value, NDArray):
            raise MXNetTypeError(f"{name} in {argument} is {brief(value)}; expected an NDArray.")
    return arrays


def _requests(names: list[str], grad_req: Any, version: int) -> dict[str, str]:
    """Return each name's word of grad_req; in 1.x a name missing from a dict is "null"."""
    if isinstance(grad_req, str):
        grad_req = dict.fromkeys(names, grad_req)
    elif not isinstance(grad_req, Mapping):
        require(version == 1, "grad_req is a list; expected a word or a dict")
        grad_req = dict(zip(names, grad_req, strict=True))
    if version > 1 and not grad_req.keys() >= {*names}:
        raise MXNetKeyError(f"grad_req has not all of {', '.join(names)}.")
    for name, word in grad_req.items():
        if word not in REQUESTS:
            message = f"grad_req of {name} is {brief(word)}; expected null, write or add."
            raise MXNetValueError(message)
    return {name: grad_req.get(name, "null") for name in names}


def bind(
    symbol: Symbol, ctx: Any, args: Any, args_grad: Any = None, grad_req: Any = "write",
    aux_states: Any = None, *, version: int = 1,
) -> Executor:  # fmt: skip
    """Return an executor on these arrays, given by name or in the order of `list_arguments`.

    args_grad: arrays for the gradients; an argument without one has no gradient. version: MXNet's
    version. In 2, backward defaults to ones, and forward ignores unknown names.
    """
    names, states = symbol.list_arguments(), symbol.list_auxiliary_states()
    arrays = _named("args", names, args) | _named("aux_states", states, aux_states)
    shapes = {name: arrays[name].shape for name in names}
    for name, shape in zip(names, symbol.infer_shape_partial(**shapes)[0], strict=True):
        if shapes[name] != shape:
            raise MXNetError(f"{name} has shape {shapes[name]}; expected {shape}.")
    if version > 1:  # later changes to the caller's arrays have no effect
        arrays = {name: NDArray(np.array(x.value)) for name, x in arrays.items()}
    grads = _named("args_grad", names, args_grad, required=False)
    return Executor(symbol, arrays, grads, _requests(names, grad_req, version), version)


def simple_bind(
    symbol: Symbol, ctx: Any = None, grad_req: Any = "write", type_dict: Any = None, *,
    version: int = 1, **shapes: Any,
) -> Executor:  # fmt: skip
    """Return an executor on arrays of zeros; infer their shapes and types from the given ones.

    type_dict: types by name; float32 is the default.
    """
    names, states = symbol.list_arguments(), symbol.list_auxiliary_states()
    arguments, _, others = symbol.infer_shape(**shapes)
    if arguments is None:
        raise MXNetError(f"The shapes of {', '.join(names)} do not all follow from {shapes}.")
    kinds = {name: kind for name, kind in (type_dict or {}).items() if name in names + states}
    types = symbol.infer_type_partial(**kinds)
    known = [*zip(names + states, arguments + others, types[0] + types[2], strict=True)]
    arrays, grads = (
        {name: NDArray(np.zeros(shape, kind or np.float32)) for name, shape, kind in known}
        for _ in range(2)
    )
    return Executor(symbol, arrays, grads, _requests(names, grad_req, version), version)
