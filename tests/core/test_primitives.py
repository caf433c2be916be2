"""The cache of primitives: builds are counted by an engine that counts, closes likewise."""

import os
import threading
import time

import numpy as np
import pytest

import upconv
from tests.support.counting_engine import BASE, CountingEngine
from tests.support.processes import printed
from tests.support.racing import in_threads
from upconv.errors import ArgumentError
from upconv.geometry import Axis
from upconv.primitives import PrimitiveCache
from upconv.problem import DataLayout, Direction, DType, Epilogue, Problem, WeightLayout


def test_one_signature_is_built_once() -> None:
    cache, engine = PrimitiveCache(), CountingEngine()
    for _ in range(5):
        cache.entry(BASE.replace(), engine, 2)
    assert len(engine.built) == 1
    info = cache.info()
    assert (info.hits, info.misses, info.builds, info.entries, info.bytes) == (4, 1, 1, 1, 100)
    assert info.seconds > 0


CHANGES = {
    "direction": Direction.WEIGHT_GRAD, "axes": (Axis(5, 3, 2, 1, 0, 1), Axis(7, 4, 3)), "batch": 3,
    "in_channels": 9, "out_channels": 15, "groups": 2, "dtype": DType.FLOAT64,
    "layout": DataLayout.NXC, "weight_layout": WeightLayout.XOI, "bias": True,
    "epilogue": Epilogue(residual=True), "accumulate": True, "rounded": True, "tf32": True,
}  # fmt: skip


def test_every_field_of_a_problem_has_a_change_here() -> None:
    assert set(CHANGES) == {name for name in Problem.__slots__ if name != "_hash"}


@pytest.mark.parametrize("field", CHANGES)
def test_another_field_is_another_primitive(field: str) -> None:
    cache, engine = PrimitiveCache(), CountingEngine()
    for problem in (BASE, BASE.replace(**{field: CHANGES[field]})):
        cache.entry(problem, engine, 2)
    assert len(engine.built) == 2


def test_threads_and_fingerprint_are_in_the_key() -> None:
    cache, engine = PrimitiveCache(), CountingEngine()
    cache.entry(BASE, engine, 1)
    cache.entry(BASE, engine, 2)
    engine.version = "2"
    cache.entry(BASE, engine, 2)
    assert len(engine.built) == 3


def test_another_variant_is_another_primitive() -> None:
    cache, engine = PrimitiveCache(), CountingEngine()
    for variant in ("", "other", "", "other"):
        cache.entry(BASE, engine, 2, variant)
    assert len(engine.built) == 2


def test_eight_threads_make_one_build() -> None:
    cache, engine = PrimitiveCache(), CountingEngine(seconds=0.05)
    entries = in_threads(8, lambda: cache.entry(BASE, engine, 1))
    assert len(engine.built) == 1
    assert len({id(entry.primitive) for entry in entries}) == 1
    assert cache.info().hits == 7


def test_a_slow_build_holds_up_nobody_else() -> None:
    cache, slow, quick = PrimitiveCache(), CountingEngine(), CountingEngine()
    quick.name = "quick"
    building, go_on, build = threading.Event(), threading.Event(), slow.build
    slow.build = lambda *given: (building.set(), go_on.wait(60), build(*given))[-1]
    thread = threading.Thread(target=lambda: cache.entry(BASE, slow, 1))
    thread.start()
    assert building.wait(60)
    cache.entry(BASE, quick, 1)
    assert not slow.built
    go_on.set()
    thread.join()


def test_a_build_error_reaches_all_and_is_not_remembered() -> None:
    cache, engine = PrimitiveCache(), CountingEngine(seconds=0.05, fails=True)
    errors = in_threads(4, lambda: cache.entry(BASE, engine, 1))
    assert [type(error) for error in errors] == [ZeroDivisionError] * 4
    engine.fails = False
    cache.entry(BASE, engine, 1)
    assert cache.info().builds == 1


def test_an_interrupted_build_is_taken_over() -> None:
    cache, engine, building = PrimitiveCache(), CountingEngine(), threading.Event()
    original = engine.build

    def interrupted(problem: Problem, threads: int, variant: str):
        engine.build = original
        building.set()
        time.sleep(0.1)  # until the other one waits for this
        raise KeyboardInterrupt

    engine.build = interrupted
    seen: list[BaseException] = []

    def first() -> None:
        try:
            cache.entry(BASE, engine, 1)
        except KeyboardInterrupt as error:
            seen.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert building.wait(60)
    cache.entry(BASE, engine, 1)
    thread.join()
    assert len(seen) == 1
    assert cache.info().builds == 1


def test_the_least_recently_used_leaves_and_is_closed() -> None:
    cache, engine = PrimitiveCache(max_entries=2), CountingEngine()
    one, two, three = (BASE.replace(batch=n) for n in (1, 2, 3))
    for problem in (one, two, one, three):
        cache.entry(problem, engine, 1)
    assert engine.closed == [two]
    assert cache.info().evictions == 1
    cache.entry(one, engine, 1)
    assert len(engine.built) == 3


def test_bytes_are_bounded_too() -> None:
    cache, engine = PrimitiveCache(max_bytes=250), CountingEngine()
    for n in range(1, 5):
        cache.entry(BASE.replace(batch=n), engine, 1)
    assert cache.info().bytes == 200
    assert [problem.batch for problem in engine.closed] == [1, 2]


def test_what_is_in_use_is_closed_only_afterwards() -> None:
    cache, engine = PrimitiveCache(max_entries=1), CountingEngine()
    held = cache.entry(BASE, engine, 1)
    cache.entry(BASE.replace(batch=3), engine, 1)
    assert engine.closed == []
    assert not cache.used(held)
    del held
    assert engine.closed == [BASE]
    cache.clear()
    assert len(engine.closed) == 2


def test_a_cache_of_nothing_still_works() -> None:
    cache, engine = PrimitiveCache(max_entries=0), CountingEngine()
    for _ in range(2):
        assert cache.entry(BASE, engine, 1).primitive.problem == BASE
    assert (len(engine.built), len(engine.closed), cache.info().entries) == (2, 2, 0)


def test_many_threads_with_evictions_never_run_a_closed_primitive() -> None:
    cache, engine = PrimitiveCache(max_entries=2), CountingEngine()
    x, w = np.ones((1, 6, 5, 7), np.float32), np.ones((6, 4, 3, 4), np.float32)
    problems = [BASE.replace(batch=1, epilogue=Epilogue(), accumulate=a) for a in (True, False)]
    problems += [BASE.replace(batch=1, axes=(Axis(5, 3, s), Axis(7, 4, 3))) for s in (1, 2, 3)]

    def work() -> int:
        for turn in range(60):
            problem = problems[turn % len(problems)]
            entry = cache.entry(problem, engine, 1)
            primitive = entry.primitive
            primitive.run(np.zeros(problem.result_shape, np.float32), x, primitive.pack(w))
        return 1

    assert in_threads(6, work) == [1] * 6
    info = cache.info()
    assert info.entries <= 2
    assert info.builds == info.evictions + info.entries == len(engine.closed) + info.entries


FORKING = """
import os, signal
import numpy as np
import upconv
from upconv.primitives import shared_cache

x, w = np.ones((1, 2, 5), np.float32), np.ones((2, 3, 4), np.float32)
upconv.conv_transpose(x, w)
shared_cache()._lock.acquire()  # as if another thread held it while this one forks
child = os.fork()
if child == 0:
    signal.alarm(120)  # nobody else would end what hangs
    upconv.conv_transpose(x, w, stride=2)
    os._exit(0 if upconv.cache_info().builds == 2 else 1)
shared_cache()._lock.release()
print(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_a_working_cache() -> None:
    """In a process of its own: other libraries in this one may mind being forked."""
    assert printed(FORKING) == "0"


def test_bounds_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPCONV_CACHE_BYTES", "12345")
    monkeypatch.setenv("UPCONV_CACHE_ENTRIES", "7")
    info = PrimitiveCache().info()
    assert (info.max_bytes, info.max_entries) == (12345, 7)
    monkeypatch.setenv("UPCONV_CACHE_BYTES", "lots")
    with pytest.raises(ArgumentError, match="UPCONV_CACHE_BYTES is 'lots'; expected an integer"):
        PrimitiveCache()


class TestTheSharedCache:
    X, W = np.ones((1, 2, 5), np.float32), np.ones((2, 3, 4), np.float32)

    def test_a_second_call_builds_nothing(self, fresh_cache: PrimitiveCache) -> None:
        engine = CountingEngine()
        for _ in range(3):
            upconv.conv_transpose(self.X, self.W, stride=2, engine=engine)
        upconv.plan(self.X.shape, self.W, stride=2, engine=engine)(self.X)
        assert len(engine.built) == 1
        assert upconv.cache_info().builds == 1

    def test_other_spellings_of_one_layer_are_one_signature(self, fresh_cache) -> None:
        engine = CountingEngine()
        for how in (
            {"stride": 2, "padding": 1, "output_padding": 1},
            {"stride": (2,), "padding": ((1, 1),), "output_padding": [1]},
            {"stride": np.int64(2), "padding": ((1, 0),)},
            {"stride": 2, "padding": 1, "output_size": 11},
        ):
            upconv.conv_transpose(self.X, self.W, engine=engine, **how)
        assert len(engine.built) == 1

    def test_clear_closes(self, fresh_cache: PrimitiveCache) -> None:
        engine = CountingEngine()
        upconv.conv_transpose(self.X, self.W, engine=engine)
        upconv.cache_clear()
        assert len(engine.closed) == 1
        assert upconv.cache_info().misses == 0


def test_two_engines_of_one_name_are_two_engines(fresh_cache: PrimitiveCache) -> None:
    first, second = CountingEngine(), CountingEngine()
    for engine in (first, second, first):
        upconv.conv_transpose(TestTheSharedCache.X, TestTheSharedCache.W, engine=engine)
    assert (len(first.built), len(second.built)) == (1, 1)
