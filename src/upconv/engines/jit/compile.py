"""Compilation of LLVM IR to machine code.

The emitter writes optimized modules, so only the code generator runs. The passes before it would
take three quarters of the time. Code lives as long as its `Code` object. One LLVM target machine,
whose state takes 0.8 MiB, generates all code for a processor.

Only one thread at a time uses LLVM; calling compiled code takes no lock. Locks are held during a
fork, because a thread that held one would not exist in the child process.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite
import llvmlite.binding as llvm

from ... import forks
from ...errors import EngineError
from .. import code_files
from .cpu import Cpu
from .emit import Module

_lock = threading.RLock()
_machines: dict[tuple[Cpu, int], Any] = {}
_LLVM = f"{llvmlite.__version__} {llvm.llvm_version_info} 1"  # count changes of `_machine`

VERIFYING = False
"""Whether LLVM verifies each module first; tests turn it on. Without it, an invalid module ends the
process. All users have the same modules, so verifying in tests is enough."""


class Code:
    """A module's compiled functions, freed with this object.

    `opt` is the code generator's level: 2, or 1 if the code is equally fast. Level 0 compiles in a
    fifth of the time, for code that mostly waits or calls other code.
    """

    __slots__ = ("_engine", "addresses")

    def __init__(self, module: Module, names: tuple[str, ...], cpu: Cpu, opt: int = 2) -> None:
        code = _code(_text(module, cpu), cpu, opt)
        _initialize()
        object_file = llvm.ObjectFileRef.from_data(code)
        # The engine takes ownership of a machine but generates nothing with it, so any one will do.
        empty = llvm.parse_assembly(f'target triple = "{cpu.triple}"')
        target = llvm.Target.from_triple(cpu.triple)
        engine = llvm.create_mcjit_compiler(empty, target.create_target_machine(jit=True))
        engine.add_object_file(object_file)
        # The first query for an address makes the code executable. Finalizing would also spend
        # half a millisecond on generating code for the empty module.
        self._engine: Any = engine
        self.addresses: dict[str, int] = {n: engine.get_function_address(n) for n in names}

    @property
    def address(self) -> int:
        """The address of the only function."""
        (address,) = self.addresses.values()
        return address


@functools.cache
def provided(name: str, address: int) -> str:
    """Return the name by which compiled code can call a C function in this process.

    Code refers to the name instead of the address, so that other processes can use it.
    """
    _initialize()
    llvm.add_symbol(f"upconv_{name}", address)
    return f"upconv_{name}"


def _code(text: str, cpu: Cpu, opt: int) -> bytes:
    """Return a module's object file, from disk if possible."""
    name = code_files.name_of(text, cpu.name, cpu.features, str((opt, VERIFYING)), _LLVM)
    code = code_files.read(name)
    if code is None:
        code = _emitted(text, cpu, opt)
        code_files.write(name, code)
    return code


def _emitted(text: str, cpu: Cpu, opt: int) -> bytes:
    """Return the object file that LLVM emits for a module."""
    parsed = _parsed(text)
    with _lock:
        machine = _machines.get((cpu, opt))
        if machine is None:
            machine = _machines[cpu, opt] = _machine(cpu, opt)
        emitted: bytes = machine.emit_object(parsed)
    _refuse_library_calls(emitted, cpu)
    return emitted


def _refuse_library_calls(emitted: bytes, cpu: Cpu) -> None:
    """Raise `EngineError` if LLVM calls a library to convert numbers.

    It does so if the processor lacks an instruction. No such library is loaded, so the call would
    end the process.
    """
    match = re.search(rb"\0_?(__(?:trunc|extend|gnu|fix|float)\w+)\0", emitted)
    if match is not None:
        name = match[1].decode()
        raise EngineError(
            f"LLVM's code for {cpu.name} calls {name}, which does not exist; please report this"
            " with the output of `upconv doctor --json`, and use engine='reference' until then"
        )


def compiled(
    *names: str, kept: int, opt: int = 2
) -> Callable[[Callable[..., None]], functools._lru_cache_wrapper[Code]]:
    """Turn an emitter into a function that returns compiled code, cached per class of code.

    The emitter takes a module and the function's arguments: the class of code, and the processor.
    """

    def around(emit: Callable[..., None]) -> functools._lru_cache_wrapper[Code]:
        @functools.lru_cache(maxsize=kept)
        @functools.wraps(emit)
        def code(*arguments: Any) -> Code:
            module = Module(arguments[-1])
            emit(module, *arguments)
            return Code(module, names, arguments[-1], opt)

        return code

    return around


CODE_BYTES = 1 << 16
"""Approximate bytes of one `Code`: its machine code, in separate pages, and the LLVM engine."""


def parsed_for(module: Module, cpu: Cpu) -> Any:
    """Parse a module for a processor, into LLVM's representation."""
    return _parsed(_text(module, cpu))


def _text(module: Module, cpu: Cpu) -> str:
    return f'target triple = "{cpu.triple}"\n{module.text()}'


def _parsed(text: str) -> Any:
    _initialize()
    parsed = llvm.parse_assembly(text)
    if VERIFYING:
        parsed.verify()
    return parsed


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@contextmanager
def parsing() -> Iterator[Callable[[str], Any]]:
    """Yield LLVM's IR parser, for other targets, while no other thread can use LLVM."""
    with _lock:
        yield llvm.parse_assembly


def assembly(module: Module, cpu: Cpu) -> str:
    """Return a module's machine code in assembly language."""
    parsed = parsed_for(module, cpu)  # initializes LLVM, without which there is no machine
    return str(_machine(cpu).emit_assembly(parsed))


def _machine(cpu: Cpu, opt: int = 2) -> Any:
    target = llvm.Target.from_triple(cpu.triple)
    return target.create_target_machine(cpu=cpu.name, features=cpu.features, opt=opt, jit=True)


# llvmlite takes a lock around every call into LLVM, including calls that free code.
_llvmlite_lock = getattr(llvm.ffi.lib, "_lock", None)
if _llvmlite_lock is not None:
    forks.hold(_llvmlite_lock)
forks.hold(_lock)
