"""The processor for which code is compiled: its name, features, registers and caches.

`UPCONV_JIT_CPU` selects an older target processor by LLVM's name: `x86-64` has only SSE2,
`haswell` AVX2 and FMA, `skylake-avx512` AVX-512. It is meant for tests, and for results that must
not depend on the machine. Code with instructions that this machine lacks ends the process.

The cost model's figures are in processor_costs.py.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ...errors import ArgumentError, brief
from .processor_costs import Costs, costs_of, dots_of

VARIABLE = "UPCONV_JIT_CPU"
AMX = "amx"


@dataclass(frozen=True, slots=True)
class Cpu:
    """A target processor.

    `vector_bytes` is the width of a vector register, and `registers` is their number. `fused` says
    whether it multiplies and adds in one instruction, `half` whether it converts float16. `l1` and
    `l2` are one core's data caches in bytes; `l3` is the cache that all cores share. `dots` is the
    number of bfloat16 products that its dot-product instructions compute in the time of one float32
    product, or 0. `tiles` is `AMX` if it has tile registers and the system lets this process use
    them. `mesh` says whether its third-level cache is large and far from each core.
    """

    triple: str
    name: str
    features: str
    vector_bytes: int
    registers: int
    fused: bool
    half: bool
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 32 << 20
    dots: float = 0.0
    tiles: str = ""
    mesh: bool = False

    def lanes(self, itemsize: int) -> int:
        """Return the number of elements of `itemsize` bytes in a vector."""
        return self.vector_bytes // itemsize

    @property
    def costs(self) -> Costs:
        """The cost figures for the processor's class."""
        return costs_of(self.vector_bytes, mesh=self.mesh)

    def sums(self, vectors: int) -> int:
        """Return the registers left for sums, besides `vectors` of one operand, a number of the
        other, and unfused products. More sums would be spilled; a test checks LLVM's code."""
        if not self.fused:
            return self.registers // 2
        return min(self.registers - self.registers // 8 - 2, self.registers - vectors - 1)

    @property
    def attributes(self) -> str:
        """LLVM attributes for every function."""
        wide = f'"prefer-vector-width"="{8 * self.vector_bytes}"'
        return f'nounwind "target-cpu"="{self.name}" "target-features"="{self.features}" {wide}'


def host() -> Cpu:
    """Return this machine's processor, or the one named by `UPCONV_JIT_CPU`.

    Raises `ArgumentError` for any other name.
    """
    return _host(os.environ.get(VARIABLE, "").strip())


@lru_cache(maxsize=8)
def _host(forced: str) -> Cpu:
    import llvmlite.binding as llvm

    triple = llvm.get_process_triple()
    if not forced:
        features = llvm.get_host_cpu_features()
        enabled = {name for name, on in features.items() if on}
        return target(triple, llvm.get_host_cpu_name(), features.flatten(), enabled)
    if forced not in _KNOWN:
        expected, remedy = f"one of {', '.join(_KNOWN)}", "Unset it to use this machine's own."
        raise ArgumentError(VARIABLE, brief(forced), expected, remedy)
    return target(triple, forced, "", _KNOWN[forced])


_AVX2 = {"avx", "avx2", "fma", "f16c"}
_AVX512 = _AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}
_KNOWN: dict[str, set[str]] = {
    "x86-64": {"sse2"},
    "x86-64-v2": {"sse2", "sse4.2"},
    "haswell": _AVX2,
    "x86-64-v3": _AVX2,
    "skylake-avx512": _AVX512,
    "x86-64-v4": _AVX512,
    "cooperlake": _AVX512 | {"avx512bf16"},
    "znver4": _AVX512 | {"avx512bf16"},
    "sapphirerapids": _AVX512 | {"avx512bf16", "amx-bf16"},
    "cortex-a72": {"neon"},
    "apple-m1": {"neon"},
}


def target(triple: str, name: str, features: str, enabled: set[str]) -> Cpu:
    """Describe a processor by its name and features, with this machine's caches."""
    x86 = triple.startswith(("x86_64", "i686", "amd64"))
    if x86 and "avx512vl" in enabled:
        vector_bytes, registers = 64, 32
    elif x86 and "avx" in enabled:
        vector_bytes, registers = 32, 16
    else:
        vector_bytes, registers = 16, 16 if x86 else 32
    fused, half = "fma" in enabled or not x86, "f16c" in enabled or not x86
    dots = dots_of(name) if x86 and vector_bytes == 64 and "avx512bf16" in enabled else 0.0
    mesh = x86 and vector_bytes == 64 and "amx-bf16" in enabled
    tiles = AMX if mesh and permitted() else ""
    core = vector_bytes, registers, fused, half
    return Cpu(triple, name, features, *core, *_caches(), dots, tiles, mesh)


_REQUEST, _TILE_DATA = 0x1023, 18  # ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA


@lru_cache(maxsize=1)
def permitted() -> bool:
    """Whether the system lets this process use tiles; Linux requires one request per process."""
    if not sys.platform.startswith("linux"):
        return False
    call = getattr(ctypes.CDLL(None), "syscall", None)
    return call is not None and call(158, _REQUEST, _TILE_DATA) == 0  # arch_prctl of x86-64


@lru_cache(maxsize=1)
def _caches() -> tuple[int, int, int]:
    """Return the bytes of the data caches that one core uses, by level, or typical sizes if the
    system does not report them."""
    sizes = {1: 32 << 10, 2: 512 << 10, 3: 32 << 20}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            level = int((index / "level").read_text())
            kind = (index / "type").read_text().strip()
            text = (index / "size").read_text().strip()
        except (OSError, ValueError):
            continue
        if level in sizes and kind in ("Data", "Unified") and text[:-1].isdecimal():
            sizes[level] = int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}.get(text[-1], 1)
    return sizes[1], sizes[2], sizes[3]
