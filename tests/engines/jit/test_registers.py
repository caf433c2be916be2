"""Whether sums stay in registers: the machine code of tiles, for processors of several kinds.

Nothing runs here: code for another processor is only looked at.
"""

import re
from collections.abc import Iterator
from typing import Any

import llvmlite.binding as llvm
import pytest

from tests.support.code_caches import forget
from upconv import testing
from upconv.engines.interior import Interior
from upconv.engines.jit import compile as compiling
from upconv.engines.jit.channels import primitive as channels
from upconv.engines.jit.compile import parsed_for
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import Cpu, target
from upconv.engines.jit.emit import Module
from upconv.engines.jit.engine_limits import too_much
from upconv.engines.jit.im2col import primitive as im2col
from upconv.engines.jit.im2col.limits import refusal as im2col_refusal
from upconv.engines.jit.planes import primitive as planes
from upconv.engines.jit.positions import primitive as positions
from upconv.engines.jit.positions.limits import refusal
from upconv.engines.jit.weight_grad import primitive as weight_grad
from upconv.engines.jit.winograd import primitive as winograd_kernel
from upconv.engines.jit.winograd.schedule import schedules
from upconv.problem import Direction, DType

X86, AVX2 = "x86_64-unknown-linux-gnu", {"avx", "avx2", "fma", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512vl", "avx512bw", "avx512dq"}
CPUS = {
    "SSE2": (target(X86, "x86-64", "", {"sse2"}), 0.2),
    "AVX2": (target(X86, "haswell", "", AVX2), 0.05),
    "AVX-512": (target(X86, "skylake-avx512", "", AVX512), 0.0),
    "AArch64": (target("aarch64-unknown-linux-gnu", "cortex-a72", "", {"neon"}), 0.1),
}
"""And the part of all tiles in which a few numbers may be kept in memory."""
NAMES = {"tile", "wide", "planes", "products"}
Tiles = dict[str, Module]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tiles]:
    """The modules of tiles that are made, by their text, and no code."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    made: Tiles = {}

    def note(self, module: Module, names: tuple[str, ...], cpu: Cpu, opt: int = 2) -> None:
        self.addresses = dict.fromkeys(names, 1)
        if NAMES & set(names):
            made[module.text()] = module

    monkeypatch.setattr(compiling.Code, "__init__", note)
    forget("")  # schedules too, which other tests may have made without the fault planted here
    yield made
    forget("")


def build(seed: int, cpu: Cpu) -> None:
    """All kernels of a layer, in all directions."""
    for direction in Direction:
        problem = testing.layer(seed, direction)
        inner = Interior.of(problem, margins=True, points=False).problem
        if inner is None or problem.dtype is DType.FLOAT16 or too_much(inner):
            continue
        if direction is Direction.WEIGHT_GRAD:
            weight_grad.WeightGrad(inner, 1, cpu)
            continue
        correlation = Correlation.of(inner)
        channels.Channels(correlation, 1, cpu)
        for plan in schedules(correlation, 1, cpu)[:1]:
            winograd_kernel.Winograd(correlation, plan, _nothing, cpu)
        tile = planes.plane_tile(correlation, cpu)
        if tile is not None:
            planes.Planes(correlation, tile, 1, cpu)
        if refusal(correlation) is None:
            positions.Positions(correlation, 1, cpu)
        if im2col_refusal(correlation) is None:
            im2col.Im2col(correlation, 1, cpu)


def _nothing() -> Any:
    """Direct sums, which nothing asks for here."""


def kept_in_memory(module: Module, machine: Any, cpu: Cpu) -> tuple[int, int]:
    """How often an innermost loop with products moves a vector to or from the stack; products."""
    moves = products = 0
    text = str(machine.emit_assembly(parsed_for(module, cpu)))
    for block in re.split(r"(?m)^(?=\.?LBB)", text):
        made = re.findall(r"\b(?:vfn?m\w+|mulp[sd]|fmla)\b", block)
        if made and "Inner Loop Header" in block:
            products += len(made)
            moves += len(re.findall(r"(?:16|32|64)-byte (?:Folded )?(?:Spill|Reload)", block))
    return moves, products


def looked_at(recorded: Tiles, cpu: Cpu, layers: int) -> list[tuple[int, int]]:
    """What `kept_in_memory` says of the tiles of some layers."""
    for seed in range(layers):
        build(seed, cpu)
    machine = llvm.Target.from_triple(cpu.triple).create_target_machine(
        cpu=cpu.name, features=cpu.features, opt=2, jit=True
    )
    machine.set_asm_verbosity(True)
    return [kept_in_memory(module, machine, cpu) for module in recorded.values()]


@pytest.mark.parametrize("name", CPUS)
def test_sums_stay_in_registers(name: str, recorded: Tiles) -> None:
    cpu, some = CPUS[name]
    found = looked_at(recorded, cpu, 12)
    assert len(found) > 25
    seen = sum(products > 0 for _, products in found)
    assert seen > 0.7 * len(found), "loops with products were not recognised"
    assert all(moves <= products / 2 for moves, products in found), found
    assert sum(moves > 0 for moves, _ in found) <= some * len(found), found


def test_too_many_sums_are_seen(recorded: Tiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would notice: with as many sums as registers some lie in memory."""
    cpu, _ = CPUS["AVX2"]
    monkeypatch.setattr(Cpu, "sums", lambda self, vectors: self.registers)
    found = looked_at(recorded, cpu, 4)
    assert sum(moves > 0 for moves, _ in found) > len(found) / 5
