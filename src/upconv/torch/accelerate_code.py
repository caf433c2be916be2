"""Whether a module's forward is code that a graph can stand for.

A graph repeats what the code did in one call. So the code may read nothing that could be another
thing in the next, and leave nothing behind:

1. of `self`, attributes alone, each a module, a parameter, a buffer or a plain number that the
   module itself holds (`accelerate_traced` sees when they change), and none of them is set;
2. of names outside, modules and functions of `torch`, and builtins that only compute;
3. no closures, no functions inside, no imports, nothing stored in attributes or items.

Everything else computes as it was written, unfused.

What lives here: reading bytecode. What never does: tracing.
"""

from __future__ import annotations

import builtins
import dis
from types import FunctionType, ModuleType
from typing import Any

from torch import nn

from .fused import Module

_PURE = frozenset(
    ("abs", "bool", "enumerate", "float", "int", "isinstance", "len", "list", "max", "min", "range")
) | {"reversed", "round", "slice", "sum", "tuple", "zip", "ValueError", "RuntimeError"}
_SIMPLE = (int, float, str, bool, tuple, type(None))
_KEEPING = ("STORE_ATTR", "DELETE_ATTR", "STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE")
_ELSEWHERE = ("STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME", "MAKE_FUNCTION", "LOAD_DEREF")
_ODD = ("LOAD_CLASSDEREF", "STORE_DEREF", "LOAD_NAME", "YIELD_VALUE", "LOAD_SUPER_ATTR")
_REFUSED = frozenset((*_KEEPING, *_ELSEWHERE, *_ODD))


def unclosed(module: Module, forward: Any) -> str | None:
    """Why a graph cannot stand for `forward` of a module, in words; None if it can.

    >>> class Up(nn.Module):
    ...     def forward(self, x):
    ...         self.seen = x
    ...         return x
    >>> unclosed(Up(), Up.forward)
    'its forward stores what it computes'
    """
    if type(forward) is not FunctionType or not forward.__code__.co_argcount:
        return "its forward is no plain function"
    code, own = forward.__code__, forward.__code__.co_varnames[0]
    if code.co_freevars or code.co_cellvars:
        return "its forward shares variables with other functions"
    steps = list(dis.get_instructions(code))
    refused = {step.opname for step in steps} & _REFUSED
    if refused:
        return "its forward stores what it computes" if refused & {*_KEEPING} else _OUTSIDE
    for step, after in zip(steps, [*steps[1:], None], strict=True):
        if step.opname == "LOAD_GLOBAL" and not _harmless(forward, str(step.argval)):
            return f"its forward uses {step.argval}, which may change"
        if _loads(step, own) and not _held(module, after):
            return "its forward uses more of itself than modules, parameters and numbers"
    return None


_OUTSIDE = "its forward uses what is outside of it"


def _loads(step: dis.Instruction, own: str) -> bool:
    """Whether an instruction loads the module itself."""
    if not step.opname.startswith(("LOAD_FAST", "STORE_FAST")):
        return False
    return step.argval == own or (isinstance(step.argval, tuple) and own in step.argval)


def _held(module: Module, after: dis.Instruction | None) -> bool:
    """Whether what comes next reads an attribute that can be watched."""
    if after is None or after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
        return False
    name = str(after.argval)
    own = vars(module)
    for contents in ("_parameters", "_buffers", "_modules"):
        if name in own[contents]:
            return True
    return name == "training" or (name in own and isinstance(own[name], _SIMPLE))


def _harmless(forward: FunctionType, name: str) -> bool:
    """Whether a name outside means a part of PyTorch, or a builtin that only computes."""
    if name not in forward.__globals__:
        return name in _PURE and hasattr(builtins, name)
    value = forward.__globals__[name]
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(home).partition(".")[0] == "torch" and not isinstance(value, nn.Module)
