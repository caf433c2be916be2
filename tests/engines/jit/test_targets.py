"""Every module that the JIT engine makes, made for processors that this machine may not have.

The engine builds random problems for a foreign processor; instead of being loaded, each module is
verified and assembled, and the object file's undefined symbols are looked at.
"""

import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import cycle, product

import llvmlite.binding as llvm
import pytest

from tests.support import winograd_layers
from tests.support.code_caches import forget
from tests.support.random_problems import case
from upconv.activations import Activation
from upconv.engines import jit, load
from upconv.engines.jit import compile as compiling
from upconv.engines.jit import pool
from upconv.engines.jit.affinity import Affinity
from upconv.engines.jit.cpu import AMX, Cpu, target
from upconv.engines.jit.emit import Module, signature
from upconv.engines.jit.protocol import Futex, System, emit
from upconv.engines.jit.values import BFLOAT, FLOAT
from upconv.errors import EngineError
from upconv.geometry import Axis
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

AVX2 = {"avx", "avx2", "fma", "f16c"}
AVX512 = {*AVX2, "avx512f", "avx512vl"}
TARGETS = {
    "AArch64": ("aarch64-unknown-linux-gnu", "cortex-a72", {"neon"}),
    "Apple M1": ("arm64-apple-darwin", "apple-m1", {"neon"}),
    "SSE2": ("x86_64-unknown-linux-gnu", "x86-64", {"sse2"}),
    "AVX2": ("x86_64-unknown-linux-gnu", "haswell", AVX2),
    "AVX-512 BF16": ("x86_64-unknown-linux-gnu", "znver4", {*AVX512, "avx512bf16"}),
    "AMX": ("x86_64-unknown-linux-gnu", "sapphirerapids", {*AVX512, "avx512bf16", "amx-bf16"}),
    "AVX-512": ("x86_64-unknown-linux-gnu", "skylake-avx512", AVX512),
}
# What a back end may call without being asked: for filling and copying memory.
LIBRARY = {"memset", "memcpy", "memmove", "bzero"}


@dataclass(slots=True)
class Made:
    """Modules that an engine wanted compiled, by their text, and the code generator's level."""

    cpu: Cpu
    modules: dict[str, tuple[Module, int]] = field(default_factory=dict)

    def add(self, module: Module, opt: int = 2) -> None:
        self.modules[module.text()] = module, opt

    def assembled(self) -> Iterator[tuple[str, bytes]]:
        """The text of each module and its object file."""
        found = llvm.Target.from_triple(self.cpu.triple)
        machines = {
            opt: found.create_target_machine(
                cpu=self.cpu.name, features=self.cpu.features, opt=opt, jit=True
            )
            for opt in (0, 1, 2)
        }
        for text, (module, opt) in self.modules.items():
            yield text, machines[opt].emit_object(compiling.parsed_for(module, self.cpu))


@pytest.fixture(params=TARGETS)
def made(request, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """An engine for another processor, which only notes what it would compile."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple, name, features = TARGETS[request.param]
    # Whether this machine permits tiles says nothing of another one.
    tiles = AMX if "amx-bf16" in features else ""
    made = Made(replace(target(triple, name, "", features), tiles=tiles))

    def note(self, module: Module, names: tuple[str, ...], cpu: Cpu, opt: int = 2) -> None:
        assert cpu == made.cpu
        made.add(module, opt)
        self.addresses = dict.fromkeys(names, 16)

    # Leave no code in the caches that was not compiled, nor find any there that was.
    forget()
    monkeypatch.setattr(compiling.Code, "__init__", note)
    monkeypatch.setattr(jit, "host", lambda: made.cpu)
    yield made
    forget()


def build(problems: list[Problem]) -> int:
    """How many problems the engine did not refuse."""
    engine = load("jit")
    able = [problem for problem in problems if engine.refuses(problem) is None]
    for number, problem in enumerate(able):
        variants = engine.variants(problem, 2)
        engine.build(problem, 2, variants[number % len(variants)])
        if problem.dtype is DType.BFLOAT16:
            engine.build(problem, 2, variants[-1])  # the one with instructions for it, if any has
    return len(able)


SOME = [kind for kind in Activation if kind not in (Activation.SIGMOID, Activation.RELU6)]


def epilogues() -> list[Problem]:
    """All types with all activations; layouts, and a residual beside accumulation, in turn."""
    base = Problem(Direction.FORWARD, (Axis(70, 4, 2, 1, 1, 1),), 1, 5, 7)
    problems = []
    turns = cycle(product((False, True), DataLayout))
    # Seven activations, so that every type meets every turn.
    for (dtype, activation), (both, layout) in zip(product(DType, SOME), turns, strict=False):
        slope = 0.2 if activation is Activation.LEAKY_RELU else 0.0
        problem = base.replace(dtype=dtype, layout=layout, accumulate=both)
        problems.append(problem.replace(epilogue=Epilogue(activation, slope, both)))
    return problems


def tiles() -> list[Problem]:
    """Rows of all phases and of some, few and many channels, one tap and many, none."""
    rng = random.Random(7)
    problems = []
    for stride in (1, 2, 3, 5, 8, 24):
        for kernel in (1, stride, 2 * stride, 33):
            axes = (Axis(3, 2, 2), Axis(rng.choice((3, 50)), kernel, stride))
            channels = rng.choice((1, 5, 64))
            problems.append(Problem(Direction.FORWARD, axes, 2, channels, rng.choice((1, 3, 40))))
    return problems + [case(seed).problem for seed in range(8)]


@pytest.mark.parametrize("problems", [epilogues, tiles])
def test_engine_code(made: Made, problems: Callable[[], list[Problem]]) -> None:
    assert build(problems()) > 20
    assert len(made.modules) > 20
    _check(made)
    # Dot products of bfloat16, of vectors or tiles, where they are to be had, and nowhere else.
    dots = made.cpu.name in ("znver4", "sapphirerapids")
    assert any("dpbf16ps" in text for text in made.modules) == dots


def test_winograd_code(made: Made) -> None:
    engine = load("jit")
    for seed in range(4):
        problem, threads = winograd_layers.layer(seed)
        for variant in winograd_layers.variants(problem, threads):
            engine.build(problem, threads, variant)
    assert len(made.modules) > 20
    _check(made)


def test_tile_code(made: Made) -> None:
    """Tile registers where they are to be had, and elsewhere the vector code for them."""
    engine = load("jit")
    problem = Problem(Direction.FORWARD, (Axis(70, 4, 2, 1, 1, 1),), 1, 40, 40, bias=True)
    for layout in DataLayout:
        for kind in ({"dtype": DType.BFLOAT16}, {"rounded": True, "accumulate": True}):
            engine.build(problem.replace(layout=layout, **kind), 2, "tiles")
    _check(made)
    texts = [text for text in made.modules if "tile" in text]
    assert texts
    assert any("tdpbf16ps" in text for text in texts) == (made.cpu.tiles == AMX)
    assert any("@tile_product" in text for text in texts) == (made.cpu.tiles != AMX)


def test_pool_code(made: Made) -> None:
    switch, call, *rest = (compiling.provided(f"test_{i}", 16) for i in range(5))
    for system in (
        System(made.cpu.triple, switch, Futex(call, 98), Affinity(*rest)),
        System(made.cpu.triple, switch, None, None),
    ):
        module = Module(made.cpu)
        emit(module, system)
        made.add(module)
    assert pool  # which compiles the first of these where it runs
    _check(made)


def _check(made: Made) -> None:
    foreign = "llvm.aarch64" if made.cpu.triple.startswith("x86") else "llvm.x86"
    for text, code in made.assembled():
        assert foreign not in text
        assert len(code) > 100
        if "linux" in made.cpu.triple:
            needed = undefined(code)
            assert all(name.startswith("upconv_") or name in LIBRARY for name in needed), needed
            assert all(llvm.address_of_symbol(name) for name in needed)


def undefined(elf: bytes) -> set[str]:
    """Names of symbols that a 64-bit little-endian object file uses and does not have."""
    start, size, count = (
        struct.unpack_from("<Q", elf, 0x28)[0],
        struct.unpack_from("<H", elf, 0x3A)[0],
        struct.unpack_from("<H", elf, 0x3C)[0],
    )
    # Section headers: name, type, flags, address, offset, size, link, info, alignment, entry size.
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, start + i * size) for i in range(count)]
    names = set()
    for _, kind, _, _, offset, length, link, *_ in sections:
        if kind == 2:  # SHT_SYMTAB, whose link is its table of names
            table = sections[link][4]
            for place in range(offset, offset + length, 24):
                name, _, _, section = struct.unpack_from("<IBBH", elf, place)
                if name and not section:
                    names.add(elf[table + name : elf.index(b"\0", table + name)].decode())
    return names


def test_an_undefined_symbol_is_seen() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    text = "declare void @elsewhere()\ndefine void @here() {\n call void @elsewhere()\n ret void\n}"
    for triple in ("aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"):
        machine = llvm.Target.from_triple(triple).create_target_machine(jit=True)
        assert undefined(machine.emit_object(llvm.parse_assembly(text))) == {"elsewhere"}


@pytest.mark.parametrize("system", ["x86_64-unknown-linux-gnu", "x86_64-apple-darwin"])
def test_code_that_calls_a_library_is_refused(system: str) -> None:
    """AVX2 has no instruction that rounds to bfloat16."""
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = Module(target(system, "haswell", "", AVX2))
    with module.function("rounded", signature("dst* src*")) as f:
        f.store(f.convert("fptrunc", f.load(FLOAT, f["src"]), BFLOAT), f["dst"])
    with pytest.raises(EngineError, match="haswell calls __truncsfbf2, which does not exist"):
        compiling.Code(module, ("rounded",), module.cpu)
