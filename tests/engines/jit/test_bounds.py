"""The JIT engine stays inside its arrays: random problems in a process that dies if it does not.

5,000 geometries and more, for minutes:

    python -m pytest tests/engines/jit/test_bounds.py -m long
"""

import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.support.processes import python, require_feature
from tests.support.repeating import only
from upconv.engines import load
from upconv.engines.jit.cpu import VARIABLE

CHECK = (
    "from tests.support.guarded import main; main({seeds!r}, variant={variant!r}, values={values})"
)
SMALL_CACHES = "from upconv.engines.jit import cpu; cpu._caches = lambda: (1024, 2048, 32 << 20)"
ONE_VECTOR = (
    "\nfrom upconv.engines.jit.positions import tiling; best_tile = tiling._best_tile\n"
    "tiling._best_tile = lambda *given: best_tile(*given[:-1], 1)\n"
)
PACKED_BY_EACH = (
    "\nfrom dataclasses import replace; from upconv.engines.jit.positions import schedule\n"
    "cut = schedule._cut\n"
    "def each(whole, *given):\n"
    "    plan, runs = cut(whole, *given), len(whole.blocks)\n"
    "    lanes = plan.cache_block + whole.halo_before + whole.halo_after\n"
    "    return replace(plan, shared=False, block_run=runs, buffer_positions=lanes)\n"
    "schedule._cut = each\n"
)
THIN_BLOCKS = (
    "from upconv.engines.jit import kernel_choice as kernels\n"
    "kernels.KERNELS = (kernels.channels,)\n"
    "from upconv.engines.jit.channels import primitive as channels\n"
    "channels.transposed_bytes = lambda *given: 1"
)
ALL_BFLOAT16 = (
    "from tests.support import random_problems as r; from dataclasses import replace\n"
    "from upconv.problem import DType\n"
    "drawn = r.case\n"
    "def case(seed):\n"
    "    made = drawn(seed)\n"
    "    return replace(made, problem=made.problem.replace(dtype=DType.BFLOAT16))\n"
    "r.case = case\n"
)
DEPTHWISE = (
    "from tests.support import random_problems as r; from dataclasses import replace\n"
    "from upconv.geometry import Axis; from upconv.problem import DataLayout, Direction\n"
    "drawn = r.case\n"
    "def case(seed):\n"
    "    made = drawn(seed); p = made.problem; *outer, last = p.axes\n"
    "    kernel, stride = min(9, last.kernel), 1 + seed % 2\n"
    "    last = Axis(last.size + 6, kernel, stride, 1 + seed % 3, seed % 5 - 1, seed % 4 - 1)\n"
    "    p = p.replace(axes=(*outer, last), groups=3, in_channels=3, out_channels=3,\n"
    "                  layout=DataLayout.NCX, direction=Direction.INPUT_GRAD)\n"
    "    return replace(made, problem=p)\n"
    "r.case = case\n"
)
TILES = ALL_BFLOAT16 + (
    "from upconv.engines.jit import JitEngine, kernel_choice\n"
    "kernel_choice.KERNELS = (kernel_choice.channels,)\n"  # whatever the model would take
    "JitEngine.variants = lambda self, problem, threads: ('tiles',)\n"
    "all_bfloat16 = r.case\n"
    "def case(seed):\n"
    "    made = all_bfloat16(seed)\n"
    "    rounded = made.problem.replace(dtype=DType.FLOAT32, rounded=True)\n"
    "    return made if seed % 3 else replace(made, problem=rounded)\n"
    "r.case = case\n"
)
TILES_IN_PLACE = TILES + (
    "from upconv.geometry import Axis; from upconv.problem import DataLayout\n"
    "def case(seed):\n"
    "    made = all_bfloat16(seed); p = made.problem\n"
    "    kernel, groups = 1 + seed % 3, 1 + seed % 2\n"
    "    axes = [Axis(axis.size, kernel, kernel) for axis in p.axes[-2:]]\n"
    "    size, channels = {1: 70, 2: 9}[len(axes)], 32 * groups * (1 + seed // 2 % 3)\n"
    "    axes = tuple(replace(axis, size=1 + axis.size % size) for axis in axes)\n"
    "    p = p.replace(axes=axes, groups=groups, in_channels=channels, out_channels=channels,\n"
    "                  layout=DataLayout.NXC)\n"
    "    return replace(made, problem=p)\n"
    "r.case = case\n"
)
POINTWISE = (
    "from tests.support import random_problems as r; from dataclasses import replace\n"
    "from upconv.geometry import Axis; from upconv.problem import DataLayout, DType, Epilogue\n"
    "from upconv.engines.jit import kernel_choice as kernels\n"
    "kernels.KERNELS = (kernels.positions, kernels.planes)\n"
    "drawn = r.case\n"
    "def case(seed):\n"
    "    made = drawn(seed); p = made.problem\n"
    "    axes = tuple(Axis(axis.size + 7 * (seed % 5), 1) for axis in p.axes)\n"
    "    p = p.replace(axes=axes, batch=1, layout=DataLayout.NCX, dtype=DType.FLOAT32,\n"
    "                  epilogue=Epilogue(), accumulate=False)\n"
    "    return replace(made, problem=p)\n"
    "r.case = case\n"
)
LONG_ROWS = (
    "from tests.support import random_problems as r; from dataclasses import replace\n"
    "from upconv.geometry import Axis; from upconv.problem import DataLayout, Direction, DType\n"
    "from upconv.engines.jit import kernel_choice as kernels\n"
    "kernels.KERNELS = (kernels.positions,)\n"
    "drawn = r.case\n"
    "def case(seed):\n"
    "    made = drawn(seed); p = made.problem\n"
    "    forward = p.direction is Direction.FORWARD; stride = 1 + seed % 3 if forward else 1\n"
    "    axis = Axis(900 + seed % 97, 1 + seed % 8, stride, 1 + seed % 2, seed % 4 - 1, seed % 3)\n"
    "    channels = (3 + seed % 5, 1 + seed % 2)[:: 1 if forward else -1]\n"
    "    p = p.replace(axes=(axis,), groups=1, in_channels=channels[0], out_channels=channels[1],\n"
    "                  layout=DataLayout.NCX, dtype=(DType.FLOAT32, DType.FLOAT64)[seed % 2])\n"
    "    return replace(made, problem=p)\n"
    "r.case = case\n"
)
MERGED_TAPS = (
    "from tests.support import random_problems as r; from dataclasses import replace\n"
    "from upconv.geometry import Axis; from upconv.problem import DataLayout, DType\n"
    "drawn = r.case\n"
    "def case(seed):\n"
    "    made = drawn(seed); p = made.problem; *outer, last = p.axes\n"
    "    kernel, stride, crop = 2 + seed % 7, 1 + seed % 3, min(seed % 4, 1 + seed % 7)\n"
    "    last = Axis(last.size + 6, kernel, stride, 1, crop, seed % 2)\n"
    "    p = p.replace(axes=(*outer, last), groups=1, layout=DataLayout.NXC,\n"
    "                  dtype=DType.FLOAT32)\n"
    "    return replace(made, problem=p)\n"
    "r.case = case\n"
)
IN_PLACE = (
    "from tests.support import random_problems as r; from dataclasses import replace\n"
    "from upconv.engines.jit import JitEngine\n"
    "from upconv.engines.jit.im2col.primitive import Im2col\n"
    "from upconv.geometry import Axis\n"
    "from upconv.problem import Direction, DType, Epilogue, WeightLayout\n"
    "JitEngine.variants = lambda self, problem, threads: ('im2col',)\n"
    "import numpy\n"
    "Im2col.pack = lambda self, weight: numpy.ascontiguousarray(weight)\n"  # as in one call
    "drawn = r.case\n"
    "def case(seed):\n"
    "    made = drawn(seed); p = made.problem\n"
    "    axes = tuple(Axis(1 + a.size % 3, 2 + a.kernel % 4, 1 + a.stride % 3, 1, seed % 2, 0)\n"
    "                 for a in p.axes)\n"
    "    p = p.replace(axes=axes, direction=Direction.INPUT_GRAD, weight_layout=WeightLayout.IOX,\n"
    "                  in_channels=p.groups * (54 + seed % 7), epilogue=Epilogue(), bias=False,\n"
    "                  accumulate=False, rounded=False, dtype=DType.FLOAT32)\n"
    "    return replace(made, problem=p)\n"
    "r.case = case\n"
)
WEIGHTS_BY_TILES = (
    "from tests.support import random_problems as r; from dataclasses import replace\n"
    "from upconv.engines.jit import JitEngine\n"
    "from upconv.problem import Direction, DType, Epilogue\n"
    "JitEngine.variants = lambda self, problem, threads: ('tiles',)\n"
    "drawn = r.case\n"
    "def case(seed):\n"
    "    made = drawn(seed)\n"
    "    p = made.problem.replace(direction=Direction.WEIGHT_GRAD, bias=False,\n"
    "                             epilogue=Epilogue())\n"
    "    p = p.replace(dtype=DType.FLOAT32, rounded=True) if seed % 3 < 1 else p.replace(\n"
    "        dtype=DType.BFLOAT16)\n"
    "    return replace(made, problem=p)\n"
    "r.case = case\n"
)
WINOGRAD = (
    "from tests.support import random_problems as r, winograd_layers as w\n"
    "from dataclasses import replace\n"
    "from upconv import testing; from upconv.engines.jit import JitEngine\n"
    "from upconv.engines.jit.winograd import primitive as winograd_kernel\n"
    "def case(seed):\n"
    "    problem, threads = w.layer(seed)\n"
    "    return r.Case(seed, problem.replace(epilogue=r.ended(problem)), threads, seed)\n"
    "r.case = case\n"
    "JitEngine.variants = lambda self, problem, threads: w.variants(problem, threads)\n"
    # Around arrays lies NaN, so a result that is not finite tells of a stray read, too.
    "def stray(*given): raise AssertionError('StrayError: what it read was not finite')\n"
    "winograd_kernel.Winograd._run_direct = stray\n"
    "drawn = testing.expected\n"
    "def expected(*given):\n"
    "    return wide(drawn(*given))\n"
    "def wide(found):\n"
    "    allowed = 0 * found.allowed + 8 * found.allowed.max(initial=0)\n"
    "    return replace(found, allowed=allowed, second=found.second and wide(found.second))\n"
    "testing.expected = expected\n"
)


@dataclass(frozen=True, slots=True)
class Way:
    """How the engine is made to compute: for which processor, with which tiles and caches.

    Processors need the feature `needs`. `plant` is code that runs before. `isa` is what libdnnl is
    held to.
    """

    cpu: str = ""
    needs: str = ""
    variant: str | None = None
    plant: str = ""
    isa: str = ""


WAYS = {
    "as it is": Way(),
    "AVX2": Way("haswell", "avx2"),
    "AVX-512": Way("skylake-avx512", "avx512vl"),
    "SSE2": Way("x86-64", "sse2"),
    "tiny tiles": Way(variant="positions", plant=SMALL_CACHES + ONE_VECTOR),
    "tiny windows": Way(variant="positions", plant=SMALL_CACHES + PACKED_BY_EACH),
    "thin spatial blocks": Way(plant=THIN_BLOCKS),
    "bfloat16": Way("skylake-avx512", "avx512vl", "channels", ALL_BFLOAT16),
    "depthwise": Way("skylake-avx512", "avx512vl", "", DEPTHWISE),
    "pointwise": Way(variant="", plant=POINTWISE),
    "long rows": Way(variant="", plant=LONG_ROWS),
    "long rows, AVX-512": Way("skylake-avx512", "avx512vl", "", LONG_ROWS),
    "weights in place": Way(plant=IN_PLACE),
    "weights in place, SSE2": Way("x86-64", "sse2", plant=IN_PLACE + SMALL_CACHES),
    "winograd": Way(plant=WINOGRAD),
    "winograd, AVX2": Way("haswell", "avx2", plant=WINOGRAD + SMALL_CACHES),
    "dot products": Way(needs="avx512bf16", variant="dots", plant=ALL_BFLOAT16),
    "merged taps": Way(plant=MERGED_TAPS),
    "weights by tiles": Way(needs="amx-bf16", plant=WEIGHTS_BY_TILES),
    "weights by tiles, AVX2": Way("haswell", "avx2", plant=WEIGHTS_BY_TILES),
    "tiles": Way(needs="amx-bf16", plant=TILES),
    "tiles, small caches": Way(needs="amx-bf16", plant=TILES + SMALL_CACHES),
    "tiles in place": Way(needs="amx-bf16", plant=TILES_IN_PLACE),
    "tiles, vector code": Way("haswell", "avx2", plant=TILES + SMALL_CACHES),
    "tiles in place, vector code": Way("haswell", "avx2", plant=TILES_IN_PLACE),
}
MANY = {"as it is": 5000, "AVX2": 5000, "tiny tiles": 5000}  # 1,000 for the others


def checked(way: Way, seeds: range, *, values: bool = True) -> subprocess.CompletedProcess[str]:
    """The process that has checked some seeds, or died of it."""
    return ran(way, CHECK.format(seeds=seeds, variant=way.variant, values=values))


def ran(way: Way, code: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, on the way's processor."""
    _require(way)
    isa = {"ONEDNN_MAX_CPU_ISA": way.isa} if way.isa else {}
    plant = f"{way.plant}\n{code}"
    return python(plant, flags=["error"], seconds=3600, **{VARIABLE: way.cpu}, **isa)


def _require(way: Way) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("maps memory as Linux does")
    if way.needs:
        require_feature(way.needs)


def verdict(done: subprocess.CompletedProcess[str]) -> str:
    """What was wrong and with which case; empty if nothing was."""
    *_, last = ["before the first case", *done.stdout.splitlines()]
    if done.returncode < 0:
        return f"{signal.Signals(-done.returncode).name} at {last}\n{done.stderr[-2000:]}"
    return f"{last}\n{done.stderr[-2000:]}" if done.returncode else ""


@pytest.mark.parametrize("way", WAYS)
def test_random_geometries(way: str) -> None:
    first = 100 * list(WAYS).index(way)
    _check(WAYS[way], range(first, first + 6))


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_many_random_geometries(way: str) -> None:
    first = 10_000 * (1 + list(WAYS).index(way))
    _check(WAYS[way], range(first, first + MANY.get(way, 1000)))


def _check(way: Way, seeds: range) -> None:
    done = checked(way, only(seeds))
    assert not verdict(done), verdict(done)
    word, count = done.stdout.splitlines()[-1].split(": ")
    assert word == "done"
    assert int(count) >= len(seeds) // 2, "the engine refused nearly everything"


# The checker is checked ---------------------------------------------------------------------------

JIT = "from dataclasses import replace; from upconv.engines.jit{} import {} as {}\n"

FAULTS = {
    "a workspace too small": JIT.format("", "operands", "operands")
    + "real = operands.Workspace; operands.Workspace = lambda n: real(n // 2)",
    "output rows one element late": JIT.format(".positions", "placement", "placement")
    + "real = placement.offsets\n"
    "def late(*a): table = real(*a); table[2] += 8; return table\n"
    "placement.offsets = late",
    "results one element early": JIT.format(".positions", "placement", "placement")
    + "real = placement.filled\n"
    "def early(kind, shape, **columns):\n"
    "    table = real(kind, shape, **columns)\n"
    "    if kind is placement.TILES: table['y'] -= 4\n"
    "    return table\n"
    "placement.filled = early",
    "a bias without room for a tile": JIT.format(".positions", "primitive", "positions")
    + "import numpy\n"
    "class Tight:\n"
    "    __getattr__ = lambda self, name: getattr(numpy, name)\n"
    "    zeros = staticmethod(lambda n, kind: numpy.zeros(n and n - 64, kind))\n"
    "positions.np = Tight()",
    "input rows one element too long": JIT.format(".positions", "tables", "tables")
    + "real = tables.InputRows.of\n"
    "def longer(*a): rows = real(*a); return replace(rows, width=rows.width + 1)\n"
    "tables.InputRows.of = longer",
    "a shift of the tile too large": JIT.format(".positions", "tile", "tile")
    + "real = tile._one_channel\n"
    "def shifted(f, t, *rest):\n"
    "    steps = tuple(s._replace(shift=s.shift + 2000) for s in t.steps)\n"
    "    return real(f, replace(t, steps=steps), *rest)\n"
    "tile._one_channel = shifted",
    "weights one element too far": JIT.format(".positions", "weights", "weights")
    + "real = weights._piece_table\n"
    "def further(*a): pieces, tables = real(*a); return pieces, tables + 1\n"
    "weights._piece_table = further",
    "a packed weight too small": JIT.format("", "packing", "packing") + "real = packing.aligned\n"
    "packing.aligned = lambda count, dtype: real(count - 96, dtype)",
    "results one element too long": JIT.format("", "rows", "rows")
    + JIT.format(".positions", "primitive", "positions")
    + "real = rows.Spans\n"
    "rows.Spans = lambda f, count, lanes: real(f, count + 1, lanes)",
    "tables let go of": JIT.format(".positions", "primitive", "positions")
    + "real = positions.Positions.__init__\n"
    "def forgetful(self, *a): real(self, *a); self._tables.clear()\n"
    "positions.Positions.__init__ = forgetful",
    "a pair beyond the last channel": ALL_BFLOAT16
    + JIT.format(".channels", "products", "products")
    + "products.paired = lambda f, channels: channels + channels % 2",
    "merged taps beyond the end of a row": MERGED_TAPS
    + JIT.format(".channels", "points", "points")
    + "points.CROSSING = points.OUTER",
    "a row of a weight in place beyond the last": IN_PLACE
    + JIT.format(".im2col", "primitive", "im2col")
    + "real = im2col.filled\n"
    "def beyond(kind, shape, **columns):\n"
    "    table = real(kind, shape, **columns)\n"
    "    if kind is im2col.ROWS: table['last'] += 1\n"
    "    return table\n"
    "im2col.filled = beyond",
    "inputs of a panel beyond the last": IN_PLACE
    + JIT.format(".im2col", "primitive", "im2col")
    + "real = im2col.reads_of\n"
    "im2col.reads_of = lambda axes: real(axes) + 1",
    "rows of Winograd's results too long": WINOGRAD
    + JIT.format(".winograd", "blocks", "winograd_blocks")
    + "real = winograd_blocks.AxisBlocks.of\n"
    "def longer(*given): axis = real(*given); return axis._replace(out=axis.out + 1)\n"
    "winograd_blocks.AxisBlocks.of = longer",
    "rows of Winograd's operands too long": WINOGRAD
    + JIT.format(".winograd", "blocks", "winograd_blocks")
    + "real = winograd_blocks.AxisBlocks.of\n"
    "def longer(*given): axis = real(*given); return axis._replace(size=axis.size + 1)\n"
    "winograd_blocks.AxisBlocks.of = longer",
    "tables of Winograd's let go of": WINOGRAD
    + JIT.format(".winograd", "tables", "winograd_tables")
    + "real = winograd_kernel.Winograd.__init__\n"
    "def forgetful(self, *a):\n"
    "    real(self, *a); self.tables = None; winograd_tables._listed.cache_clear()\n"
    "winograd_kernel.Winograd.__init__ = forgetful",
    "a transformed weight too small": WINOGRAD
    + JIT.format(".winograd", "weights", "winograd_weights")
    + "real = winograd_weights.aligned\n"
    "winograd_weights.aligned = lambda count, dtype: real(count - 96, dtype)",
    "a weight read one element too far": WINOGRAD
    + JIT.format(".winograd", "weights", "winograd_weights")
    + "real = winograd_weights._terms\n"
    "def further(*a): taps, factors = real(*a); return taps + 1, factors\n"
    "winograd_weights._terms = further",
    "a panel of x too small": WEIGHTS_BY_TILES
    + "from upconv.engines.jit.weight_grad.tile_schedule import TilePlan\n"
    "real = TilePlan.x_positions\n"
    "TilePlan.x_positions = property(lambda plan: real.fget(plan) // 2 - 64)",
    "pieces of x one position too long": WEIGHTS_BY_TILES
    + JIT.format(".weight_grad", "tile_tables", "tile_tables")
    + JIT.format(".weight_grad", "tile_primitive", "tile_primitive")
    + "real = tile_tables.tables_of\n"
    "def longer(*a): tables = real(*a); tables['pieces'][:, 2] += 1; return tables\n"
    "tile_primitive.tables_of = longer",
    "tiles in place beyond the last row": TILES_IN_PLACE
    + JIT.format(".tiles", "placement", "placement")
    + "placement.InPlace._rows_earlier = lambda self, x: 0 * x",
    "a packed operand of tiles too small": TILES
    + JIT.format(".tiles", "tables", "tables")
    + "tables.Packed.nbytes = property(lambda self: self.__dict__['nbytes'] // 2,\n"
    "    lambda self, nbytes: self.__dict__.update(nbytes=nbytes))",
    "a stage too small": JIT.format(".positions", "driver", "driver") + "driver.STAGE_BYTES = 64",
}


FIRST = {
    "a workspace too small": 1,
    "output rows one element late": 5,
    "results one element early": 45,
    "a bias without room for a tile": 48,
    "input rows one element too long": 5,
    "a shift of the tile too large": 5,
    "weights one element too far": 5,
    "tables let go of": 5,
    "a pair beyond the last channel": 64,
    "a stage too small": 5,
}
"""The seed that finds a fault, where 0 does not: those before it need not be computed."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_caught(fault: str) -> None:
    """By what it touches: that values are wrong would not show that the fence stands."""
    first = FIRST.get(fault, 0)
    done = checked(Way(plant=FAULTS[fault]), range(first, first + 50), values=False)
    said = verdict(done)
    assert any(word in said for word in ("SIGSEGV", "SIGBUS", "StrayError")), said
    assert "seed" in said, "the case is named"


def test_the_cases_are_what_they_should_be() -> None:
    """Ranks, dtypes, layouts, empty batches, long rows and refusals all occur."""
    from tests.support.random_problems import case

    cases = [case(seed).problem for seed in range(300)]
    assert {problem.rank for problem in cases} == {1, 2, 3, 4}
    assert len({problem.dtype for problem in cases}) == 4
    assert {problem.batch for problem in cases} >= {0, 1, 2, 3}
    assert max(problem.axes[-1].size for problem in cases) > 200
    assert max(axis.stride for problem in cases for axis in problem.axes) > 30
    assert min(axis.crop_begin for problem in cases for axis in problem.axes) < -20
    assert max(axis.crop_end for problem in cases for axis in problem.axes) > 20
    able = [problem for problem in cases if load("jit").refuses(problem) is None]
    assert len(able) > 150
