"""Every engine and direction on layers of real sizes, on this processor and held to older ones.

Each setting runs in a process of its own, in which results are poisoned, every array lies against
pages that are not there, and an access beyond it is the end. 5,000 layers and more, for an hour:

    python -m pytest tests/engines/test_real_sizes.py -m long
"""

from collections.abc import Sequence

import pytest

import upconv
from tests.engines.jit.test_bounds import Way, ran, verdict
from tests.support.repeating import only
from upconv import testing
from upconv.problem import DataLayout, Direction, DType

CALL = (
    "from tests.support import guarded\n"
    "guarded.real_sizes({seeds!r}, {directions!r}, engine={engine!r})"
)
CACHES = "from upconv.engines.jit import cpu; cpu._caches = lambda: (32 << 10, {} << 10, 32 << 20)"
MODULE = "import sys, upconv.engines.jit; sys.modules['upconv.engines.jit']"
CHOOSE = "from upconv.engines.jit import kernel_choice; kernel_choice.KERNELS = "
CHANNELS = (
    CHOOSE + "(kernel_choice.channels,);"
    " from upconv.engines.jit.channels import primitive as channels;"
    " channels._POINTS = 48"  # small spatial blocks
)
POSITIONS = (
    CHOOSE + "(lambda *given: [each for each in kernel_choice.positions(*given) if each.possible]"
    " or kernel_choice.channels(*given),)"
)

SETTINGS = {
    "jit": ("jit", Way()),
    "jit, AVX2": ("jit", Way("haswell", "avx2", plant=CACHES.format(512))),
    "jit, AVX-512": ("jit", Way("skylake-avx512", "avx512vl")),
    "jit, SSE2": ("jit", Way("x86-64", "sse2")),
    "jit, 256 KiB of L2": ("jit", Way(plant=CACHES.format(256))),
    "jit, channels kernel": ("jit", Way(plant=f"{CHANNELS}; {CACHES.format(64)}")),
    "jit, channels kernel, AVX2": (
        "jit",
        Way("haswell", "avx2", plant=f"{CHANNELS}; {CACHES.format(256)}"),
    ),
    "jit, positions kernel": ("jit", Way(plant=POSITIONS)),
    "onednn": ("onednn", Way()),
    "onednn, SSE41": ("onednn", Way(isa="SSE41")),
    "onednn, AVX2": ("onednn", Way(isa="AVX2")),
    "onednn, AVX2_VNNI": ("onednn", Way(isa="AVX2_VNNI")),
    "onednn, AVX512_CORE": ("onednn", Way(isa="AVX512_CORE")),
    "reference": ("reference", Way()),
}
ALL = tuple(direction.value for direction in Direction)
AVAILABLE = {status.name: status for status in upconv.engines()}


def check(setting: str, seeds: range) -> None:
    engine, way = SETTINGS[setting]
    verify(engine, way, call(setting, only(seeds)), len(seeds) // 3)


def call(setting: str, seeds: Sequence[int]) -> str:
    """What a process is to do about some layers. Weight gradients have one kernel alone."""
    directions = ALL[:2] if "kernel" in setting else ALL
    return CALL.format(seeds=seeds, directions=directions, engine=SETTINGS[setting][0])


LAYERS = {
    "jit": 24, "jit, 256 KiB of L2": 12, "jit, channels kernel": 16, "reference": 18,
}  # fmt: skip
"""How many layers of a setting the default suite computes: as many as find the faults planted
below, or 8."""


def default_seeds(setting: str) -> range:
    """The layers of a setting in the default suite."""
    first = 1000 * list(SETTINGS).index(setting)
    return range(first, first + LAYERS.get(setting, 8))


def verify(engine: str, way: Way, code: str, least: int) -> None:
    """Hold a process to its word: it checked some cases, as many as `least`, and none was wrong."""
    if not AVAILABLE[engine].available:
        pytest.skip(AVAILABLE[engine].reason)
    done = ran(way, code)
    assert not verdict(done), verdict(done)
    word, count = done.stdout.splitlines()[-1].split(": ")
    assert word == "done"
    assert int(count) >= least, "the engine refused nearly everything"


@pytest.mark.parametrize("setting", SETTINGS)
def test_layers(setting: str) -> None:
    check(setting, default_seeds(setting))


OLDER = ["jit, AVX2", "jit, SSE2", *(s for s in SETTINGS if s.startswith("onednn, "))]


@pytest.mark.parametrize("setting", OLDER)
def test_the_conformance_suite(setting: str) -> None:
    """A third of the cases by each setting, in turn; natively all, in test_conformance.py."""
    engine, way = SETTINGS[setting]
    part = f"{OLDER.index(setting)}, engine={engine!r}"
    verify(engine, way, f"from tests.support import guarded; guarded.conformance({part})", 40)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("setting", SETTINGS)
def test_many_layers(setting: str, part: int) -> None:
    first = 1_000_000 * (1 + list(SETTINGS).index(setting)) + 500 * part
    check(setting, range(first, first + 500))


def test_the_layers_are_what_they_should_be() -> None:
    """All families' traits occur: long rows, axes of one position, volumes, depthwise, large k."""
    layers = [testing.layer(seed) for seed in range(400)]
    assert {layer.rank for layer in layers} == {1, 2, 3}
    assert {layer.dtype for layer in layers} == set(DType)
    assert {layer.layout for layer in layers} == set(DataLayout)
    assert max(axis.size for layer in layers for axis in layer.axes) > 10_000
    assert max(layer.in_channels for layer in layers) == 1026
    assert any(layer.axes[0].size == layer.axes[0].kernel == 1 < layer.rank for layer in layers)
    assert any(layer.axes[-1].size == layer.axes[-1].kernel == 1 < layer.rank for layer in layers)
    assert any(layer.groups == layer.in_channels > 100 for layer in layers)
    assert max(axis.stride for layer in layers for axis in layer.axes) >= 256
    assert min(axis.crop_begin for layer in layers for axis in layer.axes) < 0
    assert sorted(layer.multiply_adds for layer in layers)[200] > 1e6


@pytest.mark.parametrize("direction", Direction)
def test_the_quick_oracle_is_the_definition(direction: Direction) -> None:
    for problem in testing.cases():
        if problem.direction is direction:
            given = testing.operands(problem)
            a, b = (abs(operand).astype("f8") for operand in (given.a, given.b))
            looped = testing.scatter(problem, a, b)
            assert abs(looped - testing.by_taps(problem, a, b)).max(initial=0) <= 1e-12


# The check is checked -----------------------------------------------------------------------------

JIT = "from upconv.engines.jit{} import {} as {}\n"
ENGINES = "from upconv.engines import {}\n"
ONEDNN = "from upconv.engines.onednn import {}\n"

FAULTS = {  # setting, seed, plant
    "arrays keep the axes that a problem has lost": (
        "jit",
        20,
        f"{MODULE}.bordered = lambda problem, interior, inner, *_: inner",
    ),
    "a spatial block's inputs one off": (
        "jit, channels kernel",
        5003,
        JIT.format(".channels", "blocks", "channel_blocks") + "real = channel_blocks._part\n"
        "def off(*given):\n"
        "    kind, output, first = real(*given)\n"
        "    return kind, output, max(0, first - 1)\n"
        "channel_blocks._part = off",
    ),
    "no bias in the second spatial block": (
        "jit, channels kernel",
        5015,
        JIT.format("", "spatial_blocks", "spatial") + "import numpy\n"
        "real, zeros = spatial.Spatial.launches, numpy.zeros(1 << 16)\n"
        "def without(*given):\n"
        "    for number, (launch, values) in enumerate(real(*given)):\n"
        "        yield launch, values | ({'bias': zeros.ctypes.data} if number else {})\n"
        "spatial.Spatial.launches = without",
    ),
    "later passes over the channels that forget the earlier": (
        "jit, channels kernel, AVX2",
        6005,
        JIT.format(".channels", "tables", "channel_tables")
        + "real = channel_tables.Passes.__init__\n"
        "def forget(self, *given, **more):\n"
        "    real(self, *given, **more)\n"
        "    self.records['resumed'] = 0\n"
        "channel_tables.Passes.__init__ = forget",
    ),
    "rows of the output by the stride of another axis": (
        "jit, positions kernel",
        7000,
        JIT.format(".positions", "primitive", "positions") + "from dataclasses import replace\n"
        "real = positions.Placement\n"
        "def wrong(correlation, plan):\n"
        "    lines = tuple(l._replace(out=l.size * l.stride) for l in correlation.lines)\n"
        "    return real(replace(correlation, lines=lines), plan)\n"
        "positions.Placement = wrong",
    ),
    "a tail that is not stored": (
        "jit",
        0,
        JIT.format("", "rows", "rows") + "real = rows.Spans\n"
        "rows.Spans = lambda f, count, lanes: real(f, count // lanes * lanes, lanes)",
    ),
    "scratch memory for one thread and channel where there are more": (
        "jit, positions kernel",
        7000,
        JIT.format(".positions", "primitive", "positions")
        + "real = positions.Positions._arguments\n"
        "none = {'part': 0, 'buffer_channel': 0}\n"
        "positions.Positions._arguments = lambda self: real(self) | none",
    ),
    "a window without what lies before it": (
        "jit, 256 KiB of L2",
        4011,
        JIT.format(".positions", "schedule", "schedule") + "from dataclasses import replace\n"
        "cut = schedule._cut\n"
        "schedule._cut = lambda whole, *rest: cut(replace(whole, halo_before=0), *rest)",
    ),
    "the weights of the first group for all": (
        "jit",
        0,
        JIT.format(".positions", "primitive", "positions")
        + JIT.format(".channels", "primitive", "channels")
        + "real = positions.job_table\n"
        "positions.job_table = lambda correlation, plan, _: real(correlation, plan, 0)",
    ),
    "the last slab of a weight gradient left out": (
        "jit",
        17,
        JIT.format(".weight_grad", "schedule", "weight_grad")
        + "real = weight_grad.Plan.spatial_blocks_of\n"
        "def some(*given): found = real(*given); return found[:-1] if len(found) > 1 else found\n"
        "weight_grad.Plan.spatial_blocks_of = some",
    ),
    "a tap that misses the last output of a row": (
        "jit, AVX2",
        1004,
        JIT.format(".weight_grad", "tables", "weight_grad")
        + "real, count = weight_grad._runs, weight_grad.RUN.index('positions')\n"
        "def runs(*given):\n"
        "    table, first = real(*given)\n"
        "    table[..., count] -= table[..., count] > 8\n"
        "    return table, first\n"
        "weight_grad._runs = runs",
    ),
    "panels of another slab taken for these": (
        "jit",
        23,
        JIT.format(".weight_grad", "tables", "weight_grad")
        + "weight_grad.key = lambda number, panels: 1",
    ),
    "a border that nobody fills": (
        "onednn",
        8007,
        ENGINES.format("interior") + "interior.BorderFill._around = lambda self: ()",
    ),
    "the bias added twice": (
        "onednn, AVX512_CORE",
        12000,
        ONEDNN.format("primitive, selftest") + "selftest.run = lambda *_: None\n"
        "real = primitive.OnednnPrimitive._linear\n"
        "def twice(self, out, a, b, bias, *rest):\n"
        "    real(self, out, a, b, bias if bias is None else bias + bias, *rest)\n"
        "primitive.OnednnPrimitive._linear = twice",
    ),
    "the last of several blocks left out": (
        "reference",
        13016,
        ENGINES.format("reference") + "real = reference._slices\n"
        "some = lambda total, step: real(total, step)[: max(1, (total - 1) // step)]\n"
        "reference._slices = some",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str) -> None:
    """By the very cases of the default suite, of which the one that usually finds it comes first.

    An error in the plant itself finds nothing."""
    setting, finder, plant = FAULTS[fault]
    seeds = sorted(default_seeds(setting), key=lambda seed: seed != finder)
    said = verdict(ran(SETTINGS[setting][1], f"{plant}\n{call(setting, seeds)}"))
    assert "seed" in said, said or "nothing was found"
    assert "are wrong" in said or "StrayError" in said or said.startswith("SIG"), said
