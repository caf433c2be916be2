"""Modules whose forward is traced, to know what follows a deconvolution that they call.

Only the module's own forward is traced; all that it calls are leaves. Tracing follows one path of
the code: that of a call whose required arguments are tensors, all others being left out, outside
training, with the attributes as they were. A swapped module takes the traced graph for such calls
alone, and its own forward for all others.

What lives here: tracing and running traced modules. What never does: reading nodes (`fx_calls`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import fx, nn

from .accelerate_code import unclosed
from .accelerate_sequences import is_sequence
from .accelerate_swaps import kept_by, original_class, own_forward, swappable
from .fused import Ending, Fused, Module
from .fx_calls import Node, deconvolution_of, module_of
from .fx_chains import Chain, chain_of

_ACTIVATIONS: dict[str, Callable[[Ending], Module]] = {
    "relu": lambda _: nn.ReLU(),
    "leaky_relu": lambda ending: nn.LeakyReLU(ending.slope),
    "tanh": lambda _: nn.Tanh(),
    "sigmoid": lambda _: nn.Sigmoid(),
    "silu": lambda _: nn.SiLU(),
    "gelu": lambda _: nn.GELU(),
}


class FusedStep(nn.Module):  # type: ignore[misc]  # PyTorch is untyped here
    """A `Fused` that a graph calls; its modules belong to others."""

    def __init__(self, fused: Fused) -> None:
        super().__init__()
        self.__dict__["fused"] = fused

    def forward(self, x: Any, residual: Any = None) -> Any:
        """What `Fused` computes."""
        return self.fused(x, residual)


class Traced:
    """The graph of a module, made when it is first called, with fused steps for some layers.

    names: the layers, by their names in the module. Copies and pickles trace anew.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names
        self._graph: Any = None
        self._held: tuple[Any, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return Traced, (self.names,)

    def graph(self, module: Module) -> Any:
        """The graph for a module as it is; None where its code is not what was traced."""
        held = _state(module)
        if self._graph is None:
            self._graph, self._held = _fused_graph(module, self.names) or False, held
        same = len(held) == len(self._held) and all(map(_alike, held, self._held))
        return self._graph if self._graph and same else None


def _alike(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in _SIMPLE and one == other)


_SIMPLE = (int, float, str, bool, tuple)


def _state(module: Module) -> tuple[Any, ...]:
    """What the module's code may depend on: its attributes and all that is registered in it."""
    own = vars(module)
    code = own_forward(module), own.get("forward")
    plain = [value for name, value in own.items() if name not in _REGISTRIES]
    parts = [part for name in _CONTENTS for part in own[name].values()]
    return (*code, *plain, *parts, *(p for m in own["_modules"].values() if m for p in _inside(m)))


def _inside(module: Module) -> list[Any]:
    """The modules in a list or dict of modules, which a forward may pick from."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return list(module._modules.values())
    return []


_CONTENTS = ("_parameters", "_buffers", "_modules")
_REGISTRIES = {name for name in vars(nn.Module()) if name.startswith("_")} | {"_upconv_report"}


def traced_forward(self: Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of a swapped module."""
    traced: Traced | None = kept_by(self)
    usual = (
        traced is not None
        and not self.training
        and not kwargs
        and all(type(arg) is torch.Tensor for arg in args)
    )
    if usual and not torch.compiler.is_compiling() and len(args) == len(_required(self)):
        graph = traced.graph(self) if traced is not None else None
        if graph is not None:
            return graph(*args)
    return own_forward(self)(self, *args, **kwargs)


def _required(module: Module) -> list[str]:
    """The names of the arguments that a forward must be given."""
    parameters = list(_signature(own_forward(module)).values())[1:]
    plain = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(each.kind not in plain and each.default is each.empty for each in parameters):
        return []
    return [each.name for each in parameters if each.default is each.empty]


_SIGNATURES: dict[Any, Any] = {}


def _signature(forward: Any) -> Any:
    if forward not in _SIGNATURES:
        _SIGNATURES[forward] = inspect.signature(forward).parameters
    return _SIGNATURES[forward]


def chains_in(module: Module, layers: set[Module]) -> list[Fused] | str:
    """What can be fused in a module's own forward; in words, why that cannot be told."""
    found = _trace(module)
    if isinstance(found, str):
        return found
    ways = [_way(chain) for chain in _chains(found, layers)]
    return [way for way in ways if way.names]


def may_trace(module: Module) -> bool:
    """Whether a module has a forward of its own that calls others."""
    if is_sequence(module) or isinstance(module, torch.jit.ScriptModule | fx.GraphModule):
        return False
    own = original_class(module).__module__
    if not swappable(module, traced_forward):
        return False
    return "forward" not in vars(module) and not own.startswith("torch.nn.")


class _Leaves(fx.Tracer):  # type: ignore[misc]
    """Traces one forward; modules that it calls are not entered."""

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        """All are."""
        return True


def _trace(module: Module) -> Any:
    """A graph module of a module's own forward, or why there is none."""
    why = unclosed(module, own_forward(module))
    if why is not None:
        return f"what follows is not looked for: {why}"
    required = set(_required(module))
    defaults = {
        name: each.default
        for name, each in list(_signature(own_forward(module)).items())[1:]
        if name not in required and each.default is not each.empty
    }
    if not required:
        return "its forward has no tensors as arguments"
    traced = _bare(module)
    modes = [(part, part.training) for part in module.modules()]
    try:
        for part, _ in modes:
            part.training = False
        with torch.random.fork_rng(devices=[]):  # what draws numbers draws them here and now
            graph = _Leaves().trace(traced, concrete_args=defaults)
    except Exception as error:  # any code of anybody's runs here, on proxies
        return f"{original_class(module).__name__} cannot be traced ({type(error).__name__})"
    finally:
        for part, mode in modes:
            part.training = mode
    for node in graph.nodes:
        if node.op == "get_attr" and "_tensor_constant" in str(node.target):
            return f"{original_class(module).__name__} makes tensors that a graph would freeze"
    attributes = {
        node.target: attrgetter(node.target)(module)
        for node in graph.nodes
        if node.op in ("get_attr", "call_module")
    }
    return fx.GraphModule(attributes, graph)


def _bare(module: Module) -> Any:
    """The module with its own forward, sharing everything with it."""
    own: Any = original_class(module)
    bare = own.__new__(own)
    bare.__dict__.update(vars(module))
    return bare


def _chains(graph_module: Any, layers: set[Module]) -> list[Chain]:
    found: list[Chain] = []
    taken: set[Node] = set()
    for node in graph_module.graph.nodes:
        call = deconvolution_of(node) if module_of(node) in layers else None
        if call is not None:
            found.append(chain_of(node, call, fuse=True, shapes=False, taken=taken))
            taken.update(found[-1].nodes)
    return found


def _way(chain: Chain) -> Fused:
    """The chain as modules, one made where the code called a function."""
    followers = []
    for node in chain.nodes[1:]:
        module = module_of(node)
        if module is not None:
            followers.append(module)
        elif node is chain.last and chain.ending.name:
            followers.append(_ACTIVATIONS[chain.ending.name](chain.ending).eval())
    return Fused(chain.call.layer, followers, chain.residual is not None)


def _fused_graph(module: Module, names: frozenset[str]) -> Any:
    """A module's graph with steps for the named layers, to be called; None if there is none."""
    found = _trace(module)
    if isinstance(found, str):
        return None
    layers = {found.get_submodule(name) for name in names if _has(found, name)}
    for number, chain in enumerate(_chains(found, layers)):
        if len(chain.nodes) == 1:
            continue
        last, name = chain.last, f"upconv_step_{number}"
        found.add_submodule(name, FusedStep(_way(chain)))
        last.op, last.target, last.kwargs = "call_module", name, {}
        last.args = (chain.call.x, *(() if chain.residual is None else (chain.residual,)))
        for node in reversed(chain.nodes[:-1]):
            found.graph.erase_node(node)
    found.graph.lint()
    found.recompile()
    return found


def _has(graph_module: Any, name: str) -> bool:
    return any(name == known for known, _ in graph_module.named_modules())
