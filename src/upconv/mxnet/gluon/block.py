"""Blocks: layers that hold parameters and other blocks. `mx.gluon.Block` and its kin.

Names of parameters are paths such as "0.weight", as in MXNet 2 and in what `save_parameters` of
both versions writes. `hybridize` changes nothing: every call computes at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from .. import ndarray as nd
from .. import symbol as sym
from ..base import DeferredInitializationError, MXNetError
from ..executor import run_graph
from .parameter import Parameter, ParameterDict


class Block:
    """A layer. Blocks and parameters that are attributes belong to it."""

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        self.prefix = prefix or ""
        self._children: dict[str, Block] = {}
        self.params = ParameterDict() if params is None else params

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Block):
            self._children[name] = value
        super().__setattr__(name, value)

    def _own(self) -> dict[str, Parameter]:
        """Parameters that are attributes of this very block, and those of `params`."""
        own = {name: p for name, p in vars(self).items() if isinstance(p, Parameter)}
        if not self.params:
            return own
        held = {id(p) for p in own.values()}
        return own | {name: p for name, p in self.params.items() if id(p) not in held}

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Add a block, by a name or by its number."""
        self._children[name or str(len(self._children))] = block

    def name_scope(self) -> AbstractContextManager[None]:
        """A block of code in which MXNet 1 adds a prefix to names; here nothing."""
        return nullcontext()

    def collect_params(self, select: str | None = None) -> ParameterDict:
        """All parameters by path, or those whose path matches a regular expression."""
        found = ParameterDict(self._own())
        for name, child in self._children.items():
            found.update({f"{name}.{k}": p for k, p in child.collect_params().items()})
        if select is not None:
            found = ParameterDict({k: p for k, p in found.items() if re.match(select, k)})
        return found

    def initialize(
        self, init: Any = None, ctx: Any = None, verbose: bool = False, force_reinit: bool = False,
        device: Any = None,
    ) -> None:  # fmt: skip
        """Make the arrays of all parameters, or note what they begin with."""
        self.collect_params().initialize(
            ctx=ctx, default_init=init, force_reinit=force_reinit, device=device
        )

    def hybridize(self, active: bool = True, **unused: Any) -> None:
        """Nothing: every call computes at once, and numbers are the same."""

    def cast(self, dtype: Any) -> None:
        """Change the type of all parameters."""
        for child in self._children.values():
            child.cast(dtype)
        for parameter in self._own().values():
            parameter.cast(dtype)

    def apply(self, fn: Callable[[Block], Any]) -> Self:
        """Call a function with this block and all within it."""
        for child in self._children.values():
            child.apply(fn)
        fn(self)
        return self

    def save_parameters(self, filename: Any, deduplicate: bool = False) -> None:
        """Write all parameters by path to a .params file."""
        self.collect_params().save(filename)

    def load_parameters(self, filename: Any, ctx: Any = None, **named: Any) -> None:
        """Read parameters by path; allow_missing and ignore_extra say what need not match."""
        self.collect_params().load(filename, **named)

    def forward(self, *inputs: Any) -> Any:
        """What the layer computes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward.")

    def __call__(self, *inputs: Any) -> Any:
        return self.forward(*inputs)

    def __repr__(self) -> str:
        inner = "".join(
            f"\n  ({name}): " + repr(child).replace("\n", "\n  ")
            for name, child in self._children.items()
        )
        return f"{type(self).__name__}({inner}\n)" if inner else f"{type(self).__name__}()"


class HybridBlock(Block):
    """A layer whose forward is written once for arrays and graphs.

    Either `forward(x)`, as in MXNet 2, or `hybrid_forward(F, x, **params)`, as in MXNet 1: F is
    `mx.nd`, and the parameters come by the names of their attributes.
    """

    def forward(self, *inputs: Any) -> Any:
        own = self._own()
        if isinstance(inputs[0], sym.Symbol):  # within a graph that is to say shapes
            parts = {name: sym.var(f"{id(self)}_{name}", shape=p.shape) for name, p in own.items()}
            return self.hybrid_forward(sym, *inputs, **parts)
        values = values_of(own, lambda: self._infer(own, inputs))
        return self.hybrid_forward(nd, *inputs, **values)

    def hybrid_forward(self, F: Any, *inputs: Any, **parameters: Any) -> Any:  # noqa: N803
        """What the layer computes, by the functions of F."""
        raise NotImplementedError(f"{type(self).__name__} has neither forward nor hybrid_forward.")

    def _infer(self, own: dict[str, Parameter], inputs: Sequence[Any]) -> None:
        """Let a graph of the layer say what shapes its parameters have."""
        names = [f"input{i}" for i in range(len(inputs))]
        variables = {name: sym.var(name, shape=p.shape) for name, p in own.items()}
        result = self.hybrid_forward(sym, *map(sym.var, names), **variables)
        graph = result if isinstance(result, sym.Symbol) else sym.Group(result)
        infer_parameters(graph, own, dict(zip(names, inputs, strict=True)))


def values_of(own: dict[str, Parameter], infer: Callable[[], None]) -> dict[str, Any]:
    """The arrays of parameters, whose shapes `infer` says where they are not known yet."""
    try:
        return {name: p.data() for name, p in own.items()}
    except DeferredInitializationError:
        infer()
        return {name: p.data() for name, p in own.items()}


def infer_parameters(graph: sym.Symbol, own: dict[str, Parameter], inputs: dict[str, Any]) -> None:
    """Set the shapes of parameters to what follows in a graph from its inputs."""
    arguments, _, states = graph.infer_shape_partial(**{k: x.shape for k, x in inputs.items()})
    names = [*graph.list_arguments(), *graph.list_auxiliary_states()]
    for name, shape in zip(names, [*arguments, *states], strict=True):
        if name in own and shape and 0 not in shape:
            own[name].shape = shape


class Sequential(Block):
    """Blocks one after another."""

    def add(self, *blocks: Block) -> None:
        """Add blocks at the end."""
        for block in blocks:
            self.register_child(block)

    def forward(self, *inputs: Any) -> Any:
        found: Any = inputs
        for block in self._children.values():
            found = block(*found) if isinstance(found, tuple) else block(found)
        return found

    def __getitem__(self, key: Any) -> Any:
        found = list(self._children.values())[key]
        if isinstance(key, slice):
            part = type(self)()
            part.add(*found)
            return part
        return found

    def __len__(self) -> int:
        return len(self._children)


class HybridSequential(Sequential, HybridBlock):
    """Blocks one after another."""


class SymbolBlock(HybridBlock):
    """A layer that computes a graph; its variables, but for the inputs, are parameters."""

    def __init__(self, outputs: Any, inputs: Any, params: Any = None) -> None:
        super().__init__()
        group = sym.Group(outputs) if isinstance(outputs, list | tuple) else outputs
        self._graph = group
        self._inputs = [x.name for x in (inputs if isinstance(inputs, list | tuple) else [inputs])]
        states = group.list_auxiliary_states()
        for name in (*group.list_arguments(), *states):
            if name not in self._inputs:
                request = "null" if name in states else "write"
                self.params[name] = Parameter(name, request, shape=None)

    @staticmethod
    def imports(
        symbol_file: Any, input_names: Any, param_file: Any = None, ctx: Any = None, **unused: Any
    ) -> SymbolBlock:
        """The layer that `HybridBlock.export` wrote to a -symbol.json and a .params file."""
        graph = sym.load(symbol_file)
        names = [input_names] if isinstance(input_names, str) else list(input_names)
        for name in names:
            if name not in graph.list_arguments():
                known = ", ".join(graph.list_arguments())
                raise MXNetError(f"input_names has {name!r}; the graph's variables are {known}.")
        block = SymbolBlock(graph, [sym.var(name) for name in names])
        if param_file is not None:
            block.params.load(param_file, ignore_extra=True)
        return block

    def forward(self, *inputs: Any) -> Any:
        given = dict(zip(self._inputs, inputs, strict=True))
        infer = lambda: infer_parameters(self._graph, self.params, given)  # noqa: E731
        found = run_graph(self._graph, values_of(self.params, infer) | given)
        return found[0] if len(found) == 1 else found
