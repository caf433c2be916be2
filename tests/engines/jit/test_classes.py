"""Code belongs to a layer's class: another size of a layer compiles nothing, and no layer compiles
what it does not need. Modules are counted, not milliseconds."""

from collections.abc import Iterator
from dataclasses import replace

import llvmlite.binding as llvm
import numpy as np
import pytest

from tests.support.code_caches import forget
from upconv.activations import Activation
from upconv.engines import jit, load
from upconv.engines.base import ranked
from upconv.engines.jit import compile as compiling
from upconv.engines.jit.cpu import target
from upconv.geometry import padded
from upconv.keywords import Keywords
from upconv.network.convolutions import problem_of
from upconv.network.graph import Convolution, Form
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem

# Channels in and out, kernel, stride, padding of every axis.
LAYERS = [(64, 32, 2, 2, 0), (32, 24, 4, 2, 1), (48, 48, 3, 1, 1), (21, 21, 16, 8, 4)]
AVX512 = {"avx", "avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512bw", "avx512dq"}
CPU = replace(
    target(llvm.get_process_triple(), "skylake-avx512", "", AVX512), l1=32 << 10, l2=1 << 20
)
MANY, FEW = (64, 32, 4, 2, 1), (200, 200, 4, 2, 1)
TWO = {"driver_code", "walk_code"}
POSITIONS = TWO | {"tile_code", "fill_code", "finish_code", "gather_code", "packing_code"}
CHANNELS = {"driver_code", "walk_code", "tile_code", "finish_code", "gather_code", "packing_code"}


def layer(sizes: tuple[int, ...], spec: tuple[int, int, int, int, int]) -> Problem:
    i, o, k, s, p = spec
    axes = tuple(padded(size, k, s, 1, p, p, 0) for size in sizes)
    return Problem(Direction.FORWARD, axes, 1, i, o, bias=True)


@pytest.fixture(autouse=True)
def one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the model chooses is stated for AVX-512 and 1 MiB of L2. What is compiled here is never
    run, so any machine can compile it."""
    monkeypatch.setattr(jit, "host", lambda: CPU)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Who compiles a module, by the name of the function, with nothing compiled before."""
    import sys

    names, make = list[str](), compiling.Code.__init__

    def count(self, module, functions, cpu, opt=2) -> None:
        frame = sys._getframe(1)
        emitter = frame.f_locals.get("emit")  # of `compiled`
        names.append(emitter.__name__ if emitter else frame.f_code.co_name)
        make(self, module, functions, cpu, opt)

    monkeypatch.setattr(compiling.Code, "__init__", count)
    forget()
    yield names
    forget()


def built(problem: Problem, kernel: str) -> None:
    assert load("jit").build(problem, 2).description.startswith(kernel)


@pytest.mark.parametrize("spec", LAYERS, ids=str)
def test_another_size_compiles_nothing(spec, compiled: list[str]) -> None:
    built(layer((60, 62), spec), "positions")
    compiled.clear()
    for sizes in ((64, 64), (33, 100), (57, 48), (200, 35)):
        built(layer(sizes, spec), "positions")
    assert not compiled
    load("jit").build(layer((60, 62), (*spec[:2], spec[2] + 9, *spec[3:])), 2)
    assert "tile_code" in compiled, "another kernel is another class"


def test_a_layer_of_positions_compiles_a_tile_and_what_all_share(compiled: list[str]) -> None:
    built(layer((60, 62), MANY), "positions")
    assert sorted(compiled) == sorted(POSITIONS)
    compiled.clear()
    built(layer((60, 62), (48, 20, 3, 1, 1)), "positions")
    assert compiled == ["tile_code"]


def test_a_layer_of_channels_compiles_its_tiles_and_what_all_share(compiled: list[str]) -> None:
    built(layer((8, 8), FEW), "channels")
    tiles = compiled.count("tile_code")
    assert set(compiled) == CHANNELS | {"transpose_code"}
    assert 1 <= tiles <= 4, "blocks of a few sizes"
    assert len(compiled) == len(CHANNELS | {"transpose_code"}) - 1 + tiles, "each once"
    compiled.clear()
    built(layer((30, 31), MANY), "positions")
    assert set(compiled) == {"driver_code", "tile_code", "fill_code"}, "the rest is shared"


def test_only_channels_first_data_is_turned(compiled: list[str]) -> None:
    built(layer((60, 62), MANY).replace(layout=DataLayout.NXC), "channels")
    assert set(compiled) == CHANNELS


def test_only_what_an_epilogue_and_a_type_need_is_compiled(compiled: list[str]) -> None:
    problem = layer((8, 8), FEW)
    built(problem, "channels")
    for changes, wanted in (
        ({"epilogue": Epilogue(Activation.GELU)}, ["finish_code"]),
        ({"accumulate": True}, ["finish_code"]),
        ({"epilogue": Epilogue(residual=True)}, ["finish_code"]),
        ({"dtype": DType.BFLOAT16}, ["finish_code", "gather_code", "transpose_code"]),
    ):
        compiled.clear()
        built(problem.replace(**changes), "channels")
        assert sorted(compiled) == wanted, changes


def test_what_only_hands_out_jobs_is_not_optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    levels, make = dict[tuple[str, ...], int](), compiling.Code.__init__

    def note(self, module, functions, cpu, opt=2) -> None:
        levels[functions] = opt
        make(self, module, functions, cpu, opt)

    monkeypatch.setattr(compiling.Code, "__init__", note)
    forget()
    for problem in (layer((60, 62), MANY), layer((8, 8), FEW)):
        load("jit").build(problem, 2)
    forget()
    quick = {functions for functions, level in levels.items() if level == 0}
    assert quick == {
        ("passes", "transpose_in", "transpose_out", "finish_out"),
        ("walk", "walk_as", "pack"),
    }
    assert {("wide", "narrow"), ("tile",), ("pack", "job"), ("walk", "walk_as", "pack")} <= {
        *levels
    }


def test_a_network_takes_winograd_where_it_seems_faster_by_little() -> None:
    """A convolution of HiFi-GAN in a push of two frames; a single call asks for a margin."""
    weight = np.zeros((256, 256, 11), np.float32)
    keywords = Keywords.of(1, 0, 0, 1, 1, None, "NCX", "OIX")
    operation = Convolution(weight, None, keywords, transposed=False)
    problem = problem_of(operation, (1, 256, 26), Form(DataLayout.NXC))
    best = [ranked(load("jit").candidates(problem, 1, prepared=each))[0] for each in (False, True)]
    assert [each.winograd for each in best] == [False, True]
