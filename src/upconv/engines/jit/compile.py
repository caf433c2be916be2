"""From IR text to machine code that can be called.

Modules are emitted as we want them, so only the code generator runs, no pass before it: that is
three quarters of the time. Code lives as long as its `Code` object does.
"""

from __future__ import annotations

import threading
from typing import Any

import llvmlite.binding as llvm

from .cpu import Cpu
from .emit import Module

_lock = threading.Lock()
_ready = False


class Code:
    """The compiled functions of a module, freed with this object."""

    __slots__ = ("_engine", "addresses", "nbytes")

    def __init__(self, module: Module, names: tuple[str, ...], cpu: Cpu) -> None:
        parsed = parsed_for(module, cpu)
        engine = llvm.create_mcjit_compiler(parsed, _machine(cpu))
        engine.finalize_object()
        self._engine: Any = engine
        self.addresses = {name: engine.get_function_address(name) for name in names}
        self.nbytes = 1 << 14


def parsed_for(module: Module, cpu: Cpu) -> Any:
    """A module in LLVM's form, verified, for a processor."""
    _initialize()
    parsed = llvm.parse_assembly(f'target triple = "{cpu.triple}"\n{module.text()}')
    parsed.verify()
    return parsed


def assembly(module: Module, cpu: Cpu) -> str:
    """The machine code of a module in the assembler's words."""
    return str(_machine(cpu).emit_assembly(parsed_for(module, cpu)))


def _initialize() -> None:
    global _ready
    if not _ready:
        with _lock:
            llvm.initialize_native_target()
            llvm.initialize_native_asmprinter()
            llvm.initialize_native_asmparser()  # for the inline assembly of `relax`
            _ready = True


def _machine(cpu: Cpu) -> Any:
    target = llvm.Target.from_triple(cpu.triple)
    return target.create_target_machine(cpu=cpu.name, features=cpu.features, opt=2, jit=True)
