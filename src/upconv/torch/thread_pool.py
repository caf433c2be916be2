"""Run upconv's work on the threads of PyTorch's operators.

PyTorch's threads spin for milliseconds after each operator. If upconv computes the next layer, its
own threads would compete with them for the processors. So upconv hands its work to PyTorch through
a function in PyTorch's stable C interface (2.10 and later):

    torch_parallel_for(int64_t begin, int64_t end, int64_t grain, void (*work)(int64_t, int64_t,
                       void *), void *context)

An older PyTorch has no such function; upconv's own threads then do the work.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
from pathlib import Path

import torch

from ..engines.jit.compile import Code
from ..engines.jit.cpu import host
from ..engines.jit.emit import Module
from ..engines.jit.values import I64, PTR
from ..threads import borrow

_NAMES = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}
_SIGNATURE = (ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)


def borrow_pool() -> None:
    """Run the JIT engine's work on PyTorch's threads from now on, if PyTorch offers them."""
    # A forked child has none of OpenMP's threads. A spawned process has another main module.
    spawned = getattr(sys.modules.get("__main__"), "__name__", "") == "__mp_main__"
    if multiprocessing.parent_process() is not None and not spawned:
        return
    path = Path(torch.__file__).parent / "lib" / _NAMES.get(sys.platform, "libtorch_cpu.so")
    try:
        parallel_for = ctypes.CDLL(str(path)).torch_parallel_for
    except (OSError, AttributeError):
        return
    parallel_for.argtypes, parallel_for.restype = _SIGNATURE, ctypes.c_int32
    borrow(_TorchPool(parallel_for))


class _TorchPool:
    """The threads that PyTorch's operators use when the calling thread calls them."""

    def __init__(self, parallel_for: ctypes._NamedFuncPointer) -> None:
        self._parallel_for = parallel_for
        self._code: Code | None = None

    def run(self, work: int, argument: int, threads: int) -> None:
        """Call the function at the address `work` on `threads` threads, including the caller."""
        if self._code is None:
            self._code = _adapter()
        context = (ctypes.c_void_p * 2)(work, argument)
        adapter = self._code.addresses["work"]
        if self._parallel_for(0, threads, 1, adapter, ctypes.addressof(context)):
            raise RuntimeError("PyTorch's torch_parallel_for failed.")

    def awake(self) -> bool:
        """Whether PyTorch has threads besides the calling one."""
        return bool(torch.get_num_threads() > 1)


def _adapter() -> Code:
    """Compile `work`, which calls the context's function for each part of PyTorch's range."""
    cpu = host()
    module = Module(cpu)
    with module.function("work", {"begin": I64, "end": I64, "context": PTR}) as f:
        f.call(f.load(PTR, f["context"]), f.load(PTR, f["context"] + 8))
    return Code(module, ("work",), cpu, opt=0)
