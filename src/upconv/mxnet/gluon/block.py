"""Blocks: layers that hold parameters and other blocks. `mx.gluon.Block` and its kin.

Names of parameters are paths such as "0.weight", as in MXNet 2 and in what `save_parameters` of
both versions writes. `hybridize` changes nothing: every call computes at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from .. import ndarray as nd
from .. import symbol as sym
from ..base import DeferredInitializationError, MXNetError, raised_by
from ..executor import run_graph
from ..model import save_checkpoint
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

    _arity = 0  # inputs of the last call

    def __call__(self, *inputs: Any) -> Any:
        self._arity = len(inputs)
        try:
            return self.forward(*inputs)
        except DeferredInitializationError:
            self.infer_shape(*inputs)
            return self.forward(*inputs)

    def forward(self, *inputs: Any) -> Any:
        own = self._own()
        if isinstance(inputs[0], sym.Symbol):
            variables = {name: p.var() for name, p in own.items()}
            return self.hybrid_forward(sym, *inputs, **variables)
        return self.hybrid_forward(nd, *inputs, **{name: p.data() for name, p in own.items()})

    def hybrid_forward(self, F: Any, *inputs: Any, **parameters: Any) -> Any:  # noqa: N803
        """What the layer computes, by the functions of F."""
        raise NotImplementedError(f"{type(self).__name__} has neither forward nor hybrid_forward.")

    def infer_shape(self, *inputs: Any) -> None:
        """Set the shapes of the parameters from those of the inputs, by a graph of the layer.

        A block whose `forward` is its own defines this, and sets `self.weight.shape` and the like.
        """
        if type(self).hybrid_forward is HybridBlock.hybrid_forward:
            raise MXNetError(
                f"{type(self).__name__} has a forward of its own and a parameter of unknown shape; "
                "define infer_shape(self, *inputs), which sets the shape of each parameter."
            )
        names = [f"input{i}" for i in range(len(inputs))]
        graph, parameters = self._traced(names)
        infer_parameters(graph, parameters, dict(zip(names, inputs, strict=True)))

    def _traced(self, names: list[str]) -> tuple[sym.Symbol, dict[str, Parameter]]:
        """The graph of a call with inputs of these names, and parameters by variables' names."""
        parameters = self.collect_params()
        for path, parameter in parameters.items():
            parameter.variable = None  # made anew, by its path, when it is asked for
            parameter.var(path)
        result = self.forward(*map(sym.var, names))
        return result if isinstance(result, sym.Symbol) else sym.Group(result), parameters

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = True) -> tuple[str, str]:
        """Write the graph to path-symbol.json and the values to path-0000.params, for the epoch.

        The names of both files are returned. `SymbolBlock.imports` and `mx.load` read them, and so
        does MXNet. The inputs are "data", or "data0", "data1", ... Raises `MXNetError` before a
        first call of the block, and for a `forward` that computes with arrays alone.
        """
        if not self._arity:
            raise MXNetError("export needs the number of inputs; call the block once before.")
        count = range(self._arity)
        with raised_by("export"):
            graph, parameters = self._traced([f"data{i}" for i in count] if count[1:] else ["data"])
        states = graph.list_auxiliary_states()
        arrays = {k: parameters[k].data() for k in graph.list_inputs() if k in parameters}
        held = {name: arrays.pop(name) for name in states}
        save_checkpoint(path, epoch, graph, arrays, held)
        return f"{path}-symbol.json", f"{path}-{epoch:04d}.params"


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
        arrays = {name: p.data() for name, p in self.params.items()}
        found = run_graph(self._graph, arrays | dict(zip(self._inputs, inputs, strict=True)))
        return found[0] if len(found) == 1 else found

    def infer_shape(self, *inputs: Any) -> None:
        infer_parameters(self._graph, self.params, dict(zip(self._inputs, inputs, strict=True)))
