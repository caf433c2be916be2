"""Blocks: layers that hold parameters and other blocks, such as `mx.gluon.Block`.

The names of parameters are paths, such as "0.weight", as in MXNet 2 and in the files that
`save_parameters` writes in both versions. At inference a hybridized block runs its graph as
networks.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Self

from .. import ndarray as nd
from .. import symbol as sym
from ..base import DeferredInitializationError, MXNetError, raised_by
from ..model import params_name, save_checkpoint
from ..ndarray import NDArray
from ..networks import Networks, WatchedNetworks, run_graph
from ..tape import STATE
from .parameter import Parameter, ParameterDict

_USER_ERRORS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class Block:
    """A layer, which owns the blocks and parameters among its attributes."""

    changes = 0  # number of member changes in all blocks

    def __init__(self, prefix: str | None = None, params: Any = None) -> None:
        self.prefix = prefix or ""
        self._children: dict[str, Block] = {}
        self.params = ParameterDict() if params is None else params

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Block):
            self._children[name] = value
        Block.changes += isinstance(value, (Block, Parameter))
        super().__setattr__(name, value)

    def _parameters(self) -> dict[str, Parameter]:
        """Return only this block's parameters: its attributes, and the others of `params`."""
        attributes = {name: p for name, p in vars(self).items() if isinstance(p, Parameter)}
        seen = {id(p) for p in attributes.values()}
        return attributes | {name: p for name, p in self.params.items() if id(p) not in seen}

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Add a block under a name, by default its number."""
        self._children[name or str(len(self._children))] = block
        Block.changes += 1

    def name_scope(self) -> AbstractContextManager[None]:
        """Return a context that does nothing; in it, MXNet 1 adds a prefix to names."""
        return nullcontext()

    def collect_params(self, select: str | None = None) -> ParameterDict:
        """Return all parameters by path, or only those whose path matches a regular expression."""
        parameters = self._parameters()
        for name, child in self._children.items():
            parameters |= {f"{name}.{k}": p for k, p in child.collect_params().items()}
        return ParameterDict({k: p for k, p in parameters.items() if re.match(select or "", k)})

    def initialize(
        self, init: Any = None, ctx: Any = None, verbose: bool = False, force_reinit: bool = False,
        device: Any = None,
    ) -> None:  # fmt: skip
        """Create all parameters' arrays; those of unknown shape wait for the first call."""
        self.collect_params().initialize(
            ctx=ctx, default_init=init, force_reinit=force_reinit, device=device
        )

    def hybridize(self, active: bool = True, **options: Any) -> None:
        """Make inner blocks run as networks at inference; see `HybridBlock.hybridize`."""
        for child in self._children.values():
            child.hybridize(active, **options)

    def cast(self, dtype: Any) -> None:
        """Convert all parameters to another type."""
        for child in self._children.values():
            child.cast(dtype)
        for parameter in self._parameters().values():
            parameter.cast(dtype)

    def apply(self, fn: Callable[[Block], Any]) -> Self:
        """Call a function with every inner block, then with this block."""
        for child in self._children.values():
            child.apply(fn)
        fn(self)
        return self

    def save_parameters(self, filename: Any, deduplicate: bool = False) -> None:
        """Write all parameters by path to a .params file."""
        self.collect_params().save(filename)

    def load_parameters(self, filename: Any, ctx: Any = None, **named: Any) -> None:
        """Read parameters by path; see `ParameterDict.load`."""
        self.collect_params().load(filename, **named)

    def forward(self, *inputs: Any) -> Any:
        """Compute the outputs from the inputs."""
        raise NotImplementedError(f"{type(self).__name__} has no forward.")

    def __call__(self, *inputs: Any) -> Any:
        if STATE.tracing or not inputs or not isinstance(inputs[0], sym.Symbol):
            return self.forward(*inputs)
        for path, parameter in self.collect_params().items():
            parameter.var(path)
        STATE.tracing = True  # inner blocks use these variables
        try:
            return self.forward(*inputs)
        finally:
            STATE.tracing = False

    def __repr__(self) -> str:
        inner = "".join(
            f"\n  ({name}): " + repr(child).replace("\n", "\n  ")
            for name, child in self._children.items()
        )
        return f"{type(self).__name__}({inner}\n)" if inner else f"{type(self).__name__}()"


class HybridBlock(Block):
    """A layer whose forward is written once for arrays and symbols.

    A subclass defines `forward(x)`, as in MXNet 2, or `hybrid_forward(F, x, **params)`, as in
    MXNet 1: F is `mx.nd` or `mx.sym`, and params holds the parameters by attribute name.
    """

    _arity = 0  # inputs of the last call
    _active = False
    _traces: dict[int, _Trace]
    _checked = -1
    _members: list[Any]  # inner blocks and parameters at the time of the traces

    def hybridize(self, active: bool = True, **options: Any) -> None:
        """Run the graph of this block at inference, with its largest parts as networks.

        The first such call traces the graph with symbols, as MXNet does. The second call with the
        same parameters builds the networks. A block that does not accept symbols, or has no part
        for a network, runs as before; `explain` gives the reason. MXNet's options are ignored.
        """
        super().hybridize(active, **options)
        self._active, self._traces, self._members, self._checked = active, {}, [], -1

    def explain(self, *inputs: Any) -> str:
        """Describe which parts of a hybridized block run as networks, and why others do not."""
        if not self._active:
            return "The block is not hybridized."
        trace = self._trace_of(len(inputs))
        if trace.reason:
            return trace.reason
        arrays = {name: p.data().value for name, p in trace.parameters.items()}
        named = {name: x.value for name, x in zip(trace.inputs, inputs, strict=True)}
        return str(Networks(trace.graph, arrays).prepared(named))

    def _trace_of(self, arity: int) -> _Trace:
        if self._checked != Block.changes:
            members: list[Any] = [*self.collect_params().values()]
            self.apply(members.append)
            self._checked = Block.changes
            if members != self._members:
                self._members, self._traces = members, {}
        if arity not in self._traces:
            self._traces[arity] = _Trace(self, arity)
        return self._traces[arity]

    def __call__(self, *inputs: Any) -> Any:
        self._arity = len(inputs)
        idle = not (STATE.recording or STATE.training or STATE.tracing)
        if self._active and idle and inputs and all(isinstance(x, NDArray) for x in inputs):
            result = self._trace_of(len(inputs)).run(inputs)
            if result is not None:
                return result
        try:
            return super().__call__(*inputs)
        except DeferredInitializationError:
            self.infer_shape(*inputs)
            return super().__call__(*inputs)

    def forward(self, *inputs: Any) -> Any:
        traced = isinstance(inputs[0], sym.Symbol)
        parameters = {k: p.var() if traced else p.data() for k, p in self._parameters().items()}
        return self.hybrid_forward(sym if traced else nd, *inputs, **parameters)

    def hybrid_forward(self, F: Any, *inputs: Any, **parameters: Any) -> Any:  # noqa: N803
        """Compute the outputs with functions of F."""
        raise NotImplementedError(f"{type(self).__name__} has neither forward nor hybrid_forward.")

    def infer_shape(self, *inputs: Any) -> None:
        """Set the shapes of all parameters from the inputs, by inference on the block's graph.

        A subclass that defines `forward` overrides this, and sets `self.weight.shape`.
        """
        kind, base = type(self), HybridBlock
        if kind.hybrid_forward is base.hybrid_forward and kind._symbols is base._symbols:
            raise MXNetError(
                f"{type(self).__name__} defines forward, and has a parameter of unknown shape; "
                "define infer_shape(self, *inputs), which sets the shape of each parameter."
            )
        result, names = self._symbols(len(inputs))
        graph, parameters = sym.Group(result), self.collect_params()
        sizes = {name: x.shape for name, x in zip(names, inputs, strict=True)}
        arguments, _, states = graph.infer_shape_partial(**sizes)
        variables = [*graph.list_arguments(), *graph.list_auxiliary_states()]
        for name, shape in zip(variables, [*arguments, *states], strict=True):
            if name in parameters and shape and 0 not in shape:
                parameters[name].shape = shape

    def _symbols(self, count: int) -> tuple[Any, list[str]]:
        """Return the result of a call with `count` symbols, and the inputs' names."""
        names = ["data"] if count == 1 else [f"data{i}" for i in range(count)]
        return Block.__call__(self, *map(sym.var, names)), names

    def export(self, path: str, epoch: int = 0, remove_amp_cast: bool = True) -> tuple[str, str]:
        """Write path-symbol.json and path-0000.params, and return their names; 0000 is the epoch.

        `SymbolBlock.imports`, `mx.load` and MXNet read both. The inputs are "data", or "data0",
        "data1", ... Raises `MXNetError` before the first call of the block, and for a `forward`
        that accepts only arrays.
        """
        if not self._arity:
            raise MXNetError("export needs the number of inputs; call the block once before.")
        with raised_by("export"):
            graph = sym.Group(self._symbols(self._arity)[0])
        parameters, names = self.collect_params(), {*graph.list_inputs()}
        arrays = {name: p.data() for name, p in parameters.items() if name in names}
        states = {name: arrays.pop(name) for name in graph.list_auxiliary_states()}
        save_checkpoint(path, epoch, graph, arrays, states)
        return f"{path}-symbol.json", params_name(path, epoch)


class _Trace:
    """A hybridized block's graph, or the reason why there is none."""

    def __init__(self, block: HybridBlock, arity: int) -> None:
        self.reason, self.inputs = "", list[str]()
        self.parameters: dict[str, Parameter] = {}
        try:
            result, self.inputs = block._symbols(arity)
            self.kind = list if isinstance(result, sym.Symbol) else type(result)
            self.single = isinstance(result, sym.Symbol) and len(result) == 1
            self.graph = sym.Group(result)
            if len(self.graph) != len(result):
                raise MXNetError("an output is a group of symbols")
            parameters, names = block.collect_params(), {*self.graph.list_inputs()}
            self.parameters = {name: p for name, p in parameters.items() if name in names}
            self.networks = WatchedNetworks(self.graph)
        except _USER_ERRORS as error:  # a user's code may need arrays
            self.reason = f"It does not accept symbols: {type(error).__name__}: {error}"

    def run(self, inputs: tuple[Any, ...]) -> Any:
        """Compute the outputs; return None if the block itself must compute them."""
        if self.reason or any(p._array is None for p in self.parameters.values()):
            return None
        arrays = {name: p.data() for name, p in self.parameters.items()}
        outputs = self.networks.run(arrays, dict(zip(self.inputs, inputs, strict=True)))
        if outputs is None:
            return None
        return outputs[0] if self.single else self.kind(outputs)


class Sequential(Block):
    """Blocks in sequence."""

    def add(self, *blocks: Block) -> None:
        """Add blocks at the end."""
        for block in blocks:
            self.register_child(block)

    def forward(self, *inputs: Any) -> Any:
        values: Any = inputs
        for block in self._children.values():
            values = block(*values) if isinstance(values, tuple) else block(values)
        return values

    def __getitem__(self, key: Any) -> Any:
        blocks = list(self._children.values())[key]
        if not isinstance(key, slice):
            return blocks
        part = type(self)()
        part.add(*blocks)
        return part

    def __len__(self) -> int:
        return len(self._children)


class HybridSequential(Sequential, HybridBlock):
    """Blocks in sequence, as a graph."""


class SymbolBlock(HybridBlock):
    """A layer that computes a graph; the graph's variables are its inputs and parameters."""

    def __init__(self, outputs: Any, inputs: Any, params: Any = None) -> None:
        super().__init__()
        group = self._symbol = sym.Group(outputs)
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
        """Read the layer that `HybridBlock.export` wrote to a -symbol.json and a .params file."""
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

    def _symbols(self, count: int) -> tuple[Any, list[str]]:
        return self._symbol, self._inputs

    def forward(self, *inputs: Any) -> Any:
        arrays = {name: p.data() for name, p in self.params.items()}
        outputs = run_graph(self._symbol, arrays | dict(zip(self._inputs, inputs, strict=True)))
        return outputs[0] if len(outputs) == 1 else outputs
