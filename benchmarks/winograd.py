"""Winograd's algorithm against direct sums in upconv's kernels: the speed-up of each tile.

    python benchmarks/winograd.py [--threads 2] [--seconds 0.2] [--layout NCX] [--only NAME,...]
                                  [--layers A.json B.json | --vocoders]
                                  [--detail] [--listed] [--steps] [--errors]

For every layer, "direct" and each choice of tiles run in turn on the same float32 arrays, with
weights packed beforehand; the shortest time of each counts. `gain` is the time of our direct kernel
over that of the best tile. `auto` is the time of `algorithm="direct"`, on any engine, over that of
"auto". `effic.` is the direct roofline time over the best time; no direct algorithm can exceed 1.
Geometric means follow for layers with k = 2s, at least 64 channels on both sides and 16 positions
along each axis (256 in one dimension), and for ordinary convolutions of three taps.

`--listed` times only "direct" and "auto". `--steps` omits one step of each block at a time, for
tiles that "auto" may choose: packing rows, transforms, products, inverse, storing results.
`--errors` measures rounding errors against float64 instead: the root mean square, by tile and
number of summed channels, and its ratio to that of direct sums.

A layers file has {"layers": [{"name", "n", "ic", "oc", "size", "k", "s", "p", "op", "d", "g",
"conv"}]}; the default is the layers below.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import upconv
from upconv import testing
from upconv.engine_choice import Algorithm, choose, select, variants
from upconv.engines import load
from upconv.engines.base import Primitive
from upconv.engines.jit.compile import Code
from upconv.engines.jit.correlation import Correlation
from upconv.engines.jit.cpu import host
from upconv.engines.jit.emit import Module
from upconv.engines.jit.kernel_arguments import Blocks
from upconv.engines.jit.winograd.candidates import is_winograd, schedule_of
from upconv.engines.jit.winograd.driver import ARGUMENTS
from upconv.engines.jit.winograd.primitive import Winograd
from upconv.geometry import Axis
from upconv.problem import Direction, Problem
from upconv.roofline import measured
from upconv.testing import require_engine

Run = Callable[[], None]


@dataclass(frozen=True)
class Layer:
    """A layer in PyTorch's terms; `conv`: whether it is an ordinary convolution."""

    name: str
    n: int
    ic: int
    oc: int
    size: tuple[int, ...]
    k: int
    s: int
    p: int
    op: int = 0
    d: int = 1
    g: int = 1
    conv: bool = False

    @property
    def kind(self) -> str:
        """The class of layers whose mean includes it."""
        wide = min(self.ic, self.oc) // self.g >= 64
        large = math.prod(self.size) >= 256 and (len(self.size) == 1 or min(self.size) >= 16)
        if not (wide and large and self.d == 1):
            return ""
        if self.conv:
            halves = "k = 2s convolutions" if self.k == 2 * self.s else ""
            return "k3 s1 convolutions" if (self.k, self.s) == (3, 1) else halves
        return f"k = 2s, {len(self.size)}-D" if self.k == 2 * self.s else ""


LAYERS = (
    Layer("gan_64", 1, 256, 128, (16, 16), 4, 2, 1),
    Layer("gan_batch", 8, 256, 128, (16, 16), 4, 2, 1),
    Layer("unet_wide", 1, 128, 64, (64, 64), 4, 2, 1),
    Layer("pose_head2", 1, 256, 256, (32, 24), 4, 2, 1),
    Layer("unet_deep", 1, 512, 256, (32, 32), 4, 2, 1),
    Layer("k8_s4", 1, 128, 64, (32, 32), 8, 4, 2),
    Layer("volume_16", 1, 128, 64, (16, 16, 16), 4, 2, 1),
    Layer("volume_24", 1, 64, 64, (24, 24, 24), 4, 2, 1),
    Layer("volume_wide", 1, 256, 128, (16, 16, 16), 4, 2, 1),
    Layer("hifigan_up1", 1, 512, 256, (400,), 16, 8, 4),
    Layer("hifigan_up2", 1, 256, 128, (3200,), 16, 8, 4),
    Layer("hifigan_up3", 1, 128, 64, (6400,), 4, 2, 1),
    Layer("demucs_dec", 1, 384, 192, (1024,), 8, 4, 0),
    Layer("conv_64", 1, 64, 64, (64, 64), 3, 1, 1, conv=True),
    Layer("conv_128", 1, 128, 128, (64, 64), 3, 1, 1, conv=True),
    Layer("conv_256", 1, 256, 256, (32, 32), 3, 1, 1, conv=True),
    Layer("conv_512", 1, 512, 512, (16, 16), 3, 1, 1, conv=True),
    Layer("conv3d_64", 1, 64, 64, (24, 24, 24), 3, 1, 1, conv=True),
    Layer("pix2pix_down", 1, 64, 128, (128, 128), 4, 2, 1, conv=True),
    Layer("disc_down", 1, 128, 256, (64, 64), 4, 2, 1, conv=True),
    Layer("dac_down", 1, 256, 512, (3200,), 8, 4, 2, conv=True),
    Layer("conv1d_256", 1, 256, 256, (4096,), 3, 1, 1, conv=True),
)


def vocoders() -> tuple[Layer, ...]:
    """Return residual blocks of HiFi-GAN V1 at 32 frames, and of DAC at one second."""
    hifigan = product(((256, 256), (128, 2048), (64, 4096), (32, 8192)), (3, 7, 11), (1, 3, 5))
    dac = product(((768, 344), (384, 2752), (192, 5504), (96, 11008)), (7,), (1, 3, 9))
    return tuple(
        Layer(f"{name}{c}_k{k}_d{d}", 1, c, c, (size,), k, 1, d * (k - 1) // 2, d=d, conv=True)
        for name, blocks in (("hifigan", hifigan), ("dac", dac))
        for (c, size), k, d in blocks
    )


def layers_of(paths: list[Path]) -> tuple[Layer, ...]:
    """Return the layers in files, or those above."""
    rows = [row for path in paths for row in json.loads(path.read_text())["layers"]]
    given = tuple(Layer(**{**row, "size": tuple(row["size"])}) for row in rows)
    return given or LAYERS


def problem_of(layer: Layer, layout: str) -> Problem:
    """Return the layer's forward problem, with a bias."""
    plan: Any = upconv.conv_plan if layer.conv else upconv.plan
    lead = (layer.oc, layer.ic // layer.g) if layer.conv else (layer.ic, layer.oc // layer.g)
    kernel = (layer.k,) * len(layer.size)
    more = {} if layer.conv else {"output_padding": layer.op}
    shape = (layer.n, layer.ic, *layer.size)
    shape = shape if layout == "NCX" else (layer.n, *layer.size, layer.ic)
    weight, bias = np.zeros((*lead, *kernel), np.float32), np.zeros(layer.oc, np.float32)
    with plan(
        shape, weight, bias, stride=layer.s, padding=layer.p, dilation=layer.d, groups=layer.g,
        layout=layout, engine="reference", algorithm="direct", **more,
    ) as planned:  # fmt: skip
        problem: Problem = planned.problem
        return problem


@dataclass
class Candidate:
    """A way to compute a layer, with its shortest time so far."""

    name: str
    primitive: Primitive
    run: Run
    seconds: float = math.inf


def candidates(problem: Problem, threads: int, *, every: bool = True) -> list[Candidate]:
    """Return direct sums and all tiles, or the choices of "direct" and "auto", weights packed."""
    engine: Any = load("jit")
    other = select(problem, None)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape, np.float32) for shape in problem.operand_shapes)
    w /= math.sqrt(problem.longest_sum)
    out = np.empty(problem.result_shape, np.float32)
    bias = np.zeros(problem.result_channels, np.float32)
    names = [""] if every or other is engine else []
    if other is not engine:
        names.append(other.name)
    names += variants(engine, problem, threads, Algorithm.WINOGRAD) if every else []
    names += filter(None, [choose(problem, "jit", threads, Algorithm.AUTO).variant])
    names = list(dict.fromkeys(names))

    def made(name: str) -> Candidate:
        by = other if name == other.name else engine
        primitive = by.build(problem, threads, name if by is engine else "")
        packed = primitive.pack(w)
        require_engine(f"{problem}, {name or 'direct'}", by.name, by, packed)
        return Candidate(name, primitive, lambda: primitive.run(out, x, packed, bias))

    return [made(name) for name in names]


def timed(some: list[Candidate], seconds: float) -> None:
    """Time all candidates in rounds until time is up; those far behind drop out."""
    end, rounds = time.perf_counter() + seconds * len(some), 0
    while time.perf_counter() < end or rounds < 8:
        rounds += 1
        for each in some:
            each.run()
            for _ in range(3):
                start = time.perf_counter()
                each.run()
                each.seconds = min(each.seconds, time.perf_counter() - start)
        best = min(each.seconds for each in some)
        if rounds > 4:
            some = [each for each in some if not each.name or each.seconds < 1.2 * best]


def rows(layers: tuple[Layer, ...], args: argparse.Namespace) -> Iterator[tuple[str, float, float]]:
    """Print a line per layer; yield its class, and the gains of the best tile and of "auto"."""
    limits = measured(args.threads)
    for layer in layers:
        problem = problem_of(layer, args.layout)
        some = candidates(problem, args.threads)
        timed(some, args.seconds)
        own, *others = some
        tiles = [each for each in others if each.name.startswith("winograd")]
        direct = next((each for each in others if each not in tiles), own)
        name = choose(problem, "jit", args.threads, Algorithm.AUTO).variant
        auto = next((each for each in tiles if each.name == name), direct)
        best = min(tiles, key=lambda each: each.seconds, default=own)
        roofline_seconds = (
            limits.seconds(problem.multiply_adds, problem.nbytes, problem.dtype) if limits else 0
        )
        gains = own.seconds / best.seconds, direct.seconds / auto.seconds
        print(
            f"{layer.name:18} {own.seconds * 1e3:8.3f} {best.seconds * 1e3:8.3f} {gains[0]:6.2f}"
            f" {gains[1]:6.2f} {roofline_seconds / min(own.seconds, best.seconds):6.2f}"
            f"  {best.name.removeprefix('winograd '):22}"
            f" {auto.name.removeprefix('winograd ') or 'direct'}",
            flush=True,
        )
        if args.detail and limits:
            for each in some:
                told = each.primitive.predicted_cycles / limits.clock
                text = each.primitive.description
                print(f"    {each.seconds * 1e3:8.3f} {told * 1e3:8.3f}  {each.name} {text}")
        yield layer.kind, *gains


def listed(layers: tuple[Layer, ...], args: argparse.Namespace) -> None:
    """Print the times of "direct" and "auto"."""
    print(f"{'layer':18} {'direct':>8} {'auto':>8} {'ratio':>6}  choice of auto")
    ratios = []
    for layer in layers:
        some = candidates(problem_of(layer, args.layout), args.threads, every=False)
        timed(some, args.seconds)
        direct, auto = some[0], some[-1]
        ratios.append(direct.seconds / auto.seconds)
        print(
            f"{layer.name:18} {direct.seconds * 1e3:8.3f} {auto.seconds * 1e3:8.3f}"
            f" {ratios[-1]:6.2f}  {auto.name or 'direct'}",
            flush=True,
        )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean {mean:.2f}, lowest {min(ratios):.2f}, {len(ratios)} layers")


STEPS = {
    "pack": ("fill", "transpose"),
    "transform": ("input",),
    "products": ("products",),
    "inverse": ("inverse",),
    "store": ("deliver", "finish"),
}
"""The steps of a block, and the functions that do them."""


def steps(layer: Layer, args: argparse.Namespace) -> None:
    """Print the time of each step, by omitting it, for the tile that the model ranks first."""
    problem, engine = problem_of(layer, args.layout), load("jit")
    names = [n for n in variants(engine, problem, args.threads, Algorithm.AUTO) if is_winograd(n)]
    correlation = Correlation.of(problem)
    if not names:
        return
    made = Winograd(
        correlation, schedule_of(correlation, names[0], args.threads, host()), refused, host()
    )
    module = Module()
    with module.function("nothing", {}):
        pass
    nothing = Code(module, ("nothing",), host())
    x, w = (np.ones(shape, np.float32) for shape in problem.operand_shapes)
    packed, out = made.pack(w), np.empty(problem.result_shape, np.float32)

    def without(*functions: str) -> Candidate:
        given = made._arguments | dict.fromkeys(functions, nothing.addresses["nothing"])
        blocks = Blocks(ARGUMENTS.block(**given))

        def run() -> None:
            made._blocks = blocks
            made.run(out, x, packed)

        return Candidate(" ", made, run)

    some = [without(), *(without(*functions) for functions in STEPS.values())]
    timed(some, args.seconds)
    whole, *rest = (each.seconds for each in some)
    told = "  ".join(
        f"{name} {(whole - each) * 1e3:.3f}" for name, each in zip(STEPS, rest, strict=True)
    )
    print(f"{layer.name:18} {whole * 1e3:8.3f}  {told}  {names[0].removeprefix('winograd ')}")


def refused() -> Primitive:
    """Fail instead of falling back on direct sums."""
    raise AssertionError("the result is not finite")


HALVES = "F(2,2)*F(2,2)"
ERRORS = (
    (4, 2, 2, ("F(2,2)", "F(3,2)", "F(4,2)")),
    (3, 1, 2, ("F(2,3)", "F(3,2)*F(2,2)", "F(4,3)")),
    (7, 1, 1, (f"F(1,2)*{HALVES}", f"F(2,2)*{HALVES}", f"F(3,2)*{HALVES}", "F(1,3)*F(3,3)")),
    (11, 1, 1, (f"F(1,3)*{HALVES}", f"F(2,3)*{HALVES}", "F(1,4)*F(3,3)")),
)
"""Kernel, stride and number of axes of layers, and the tiles of each axis."""


def errors() -> None:
    """Print rounding errors of layers with C input and 32 output channels."""
    engine: Any = load("jit")
    counts = (16, 64, 256, 1024)
    print("tiles    ", *(f"{f'C = {count}':>18}" for count in counts))
    for kernel, stride, rank, tiles in ERRORS:
        found: dict[str, list[str]] = {}
        for count in counts:
            axes = tuple(Axis(24 + i, kernel, stride, 1, 1, 1) for i in (0, 1)[:rank])
            problem = Problem(Direction.FORWARD, axes, 1, count, 32)
            given = testing.operands(problem)
            value, base = testing.expected(problem, given).value, 0.0
            for name in ("", *tiles):
                variant = "winograd " + "x".join([name] * rank) if name else ""
                primitive = engine.build(problem, 1, variant)
                out = np.empty(problem.result_shape, np.float32)
                primitive.run(out, given.a, primitive.pack(given.b))
                root = math.sqrt(np.mean((out - value) ** 2) / np.mean(value**2))
                base = base or root
                told = f"{root:.1e} ({root / base:.2f})" if name else f"{root:.1e}"
                found.setdefault(name or f"direct, k {kernel} s {stride}", []).append(told)
        for name, numbers in found.items():
            print(f"{name:22}", *(f"{number:>18}" for number in numbers))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.2, help="time for each candidate")
    parser.add_argument("--layout", default="NCX", choices=("NCX", "NXC"))
    parser.add_argument("--layers", type=Path, nargs="+", default=[])
    parser.add_argument("--vocoders", action="store_true", help="layers of HiFi-GAN and DAC")
    parser.add_argument("--listed", action="store_true", help="direct sums and auto only")
    parser.add_argument("--only", default="", help="names of layers")
    parser.add_argument("--detail", action="store_true", help="all candidates, with predictions")
    parser.add_argument("--steps", action="store_true", help="the time of each step of a block")
    parser.add_argument("--errors", action="store_true", help="measure rounding, not time")
    args = parser.parse_args()
    if args.errors:
        errors()
        return
    wanted = set(filter(None, args.only.split(",")))
    given = vocoders() if args.vocoders else layers_of(args.layers)
    layers = tuple(each for each in given if not wanted or each.name in wanted)
    if args.listed:
        listed(layers, args)
        return
    if args.steps:
        for layer in layers:
            steps(layer, args)
        return
    print(f"{'layer':18} {'direct':>8} {'best':>8} {'gain':>6} {'auto':>6} {'effic.':>6}  tiles")
    found = list(rows(layers, args))
    for kind in sorted({kind for kind, _, _ in found if kind}):
        gains = [(best, auto) for each, best, auto in found if each == kind]
        means = [
            math.exp(sum(map(math.log, each)) / len(each)) for each in zip(*gains, strict=True)
        ]
        print(f"{kind:18} best {means[0]:.2f}, auto {means[1]:.2f}, {len(gains)} layers")
    print(f"lowest gain of auto: {min(auto for _, _, auto in found):.2f}")


if __name__ == "__main__":
    main()
