"""What callers, collectors, signals and forks do at the worst moment; found by attacking."""

import copy
import gc
import pickle
import signal
import threading
import tracemalloc

import numpy as np
import pytest

import upconv
from tests.support.processes import printed
from tests.support.tracing import traced
from upconv.engines.reference import ReferenceEngine
from upconv.errors import EngineRefusal
from upconv.problem import Direction, Problem

X, W = np.ones((1, 1, 3), np.float32), np.ones((1, 1, 2), np.float32)


def test_the_collector_may_free_a_plan_in_the_middle_of_the_caches_own_work() -> None:
    code = """
import gc, numpy as np, upconv
x, w = np.ones((1, 1, 3), "f"), np.ones((1, 1, 2), "f")
gc.set_threshold(1)  # collect at nearly every allocation, those under the cache's lock too
class Knot: pass
for i in range(400):
    knot = Knot()
    # The cache is what is tested: an engine whose primitives are built quickly will do.
    knot.plan, knot.itself = upconv.plan((1, 1, 3), w, stride=1 + i, engine="reference"), knot
    del knot
    upconv.conv_transpose(x, w, stride=1 + i * 7, engine="reference")
print("done")
"""
    assert printed(code) == "done"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs interval timers")
def test_an_interrupt_anywhere_leaves_the_cache_usable() -> None:
    code = """
import signal, time, numpy as np, upconv
x, w = np.ones((1, 1, 3), "f"), np.ones((1, 1, 2), "f")
def ring(*_): raise KeyboardInterrupt
signal.signal(signal.SIGALRM, ring)
interrupted, i = 0, 0
while interrupted <= 20 or time.process_time() < 1.5:
    i += 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 2e-5 + (i % 97) * 2e-6)
        upconv.conv_transpose(x, w, stride=1 + i % 500, engine="reference")
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    if i % 100 == 0:
        upconv.cache_clear()
signal.setitimer(signal.ITIMER_REAL, 0)
signal.alarm(120)  # whatever hangs now is a key that was poisoned
for stride in range(1, 501):
    upconv.conv_transpose(x, w, stride=stride, engine="reference")
print("done")
"""
    assert printed(code) == "done"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs fork")
def test_a_child_forked_while_a_plan_is_prepared_can_use_the_plan() -> None:
    code = """
import os, threading, time, numpy as np, upconv
from upconv.engines import load
from upconv.engines.reference import ReferenceEngine
preparing, forked = threading.Event(), threading.Event()
class Slow:
    name = "slow"
    def fingerprint(self): return "1"
    def refuses(self, problem): return None
    def variants(self, problem, threads): return ("",)
    def build(self, problem, threads, variant=""):
        if problem.epilogue.residual and os.getpid() == parent:
            preparing.set()
            forked.wait(60)
        return load("reference").build(problem, threads)
parent = os.getpid()
x, w = np.ones((1, 1, 3), "f"), np.ones((1, 1, 2), "f")
plan = upconv.plan(x.shape, w, engine=Slow())
residual = np.ones(plan.output_shape, "f")
threading.Thread(target=lambda: plan(x, residual)).start()
assert preparing.wait(60)
child = os.fork()
if child == 0:
    import signal; signal.alarm(120)
    plan(x, residual)
    os._exit(0)
forked.set()
print(os.waitpid(child, 0)[1])
"""
    assert printed(code) == "0"


class TestPlans:
    def test_copies_and_pickles_plan_anew(self) -> None:
        plan = upconv.plan(X.shape, W, stride=2)
        copies = [copy.copy(plan), copy.deepcopy(plan), pickle.loads(pickle.dumps(plan))]
        wanted = plan(X)
        plan.close()
        for other in copies:
            np.testing.assert_array_equal(other(X), wanted)
        with pytest.raises(upconv.EngineError, match="closed"):
            copy.copy(plan)

    def test_closing_lets_go_of_the_weights(self) -> None:
        weight = np.zeros((64, 64, 64), np.float32)
        with traced():
            plan = upconv.plan((1, 64, 3), weight)
            held = tracemalloc.get_traced_memory()[0]
            plan.close()
            left = tracemalloc.get_traced_memory()[0]
        assert held > weight.nbytes
        assert left < held - 0.9 * weight.nbytes

    def test_closing_does_not_disturb_a_call_that_runs(self) -> None:
        started, go_on, closed = (threading.Event() for _ in range(3))

        class Waiting(ReferenceEngine):
            def build(self, problem: Problem, threads: int, variant: str = ""):
                primitive = super().build(problem, threads)
                run = primitive.run

                def waiting(*operands) -> None:
                    started.set()
                    go_on.wait(120)
                    assert not closed.is_set(), "closed while running"
                    run(*operands)

                primitive.run, primitive.close = waiting, closed.set
                return primitive

        plan = upconv.plan(X.shape, W, engine=Waiting())
        results: list[np.ndarray] = []
        thread = threading.Thread(target=lambda: results.append(plan(X)))
        thread.start()
        assert started.wait(120)
        upconv.cache_clear()
        plan.close()
        go_on.set()
        thread.join()
        assert len(results) == 1
        del thread
        gc.collect()
        assert closed.is_set()


class TestGradients:
    """An error leaves every array of the caller's as it was."""

    class Partial(ReferenceEngine):
        name = "partial"

        def refuses(self, problem: Problem) -> str | None:
            weight = problem.direction is Direction.WEIGHT_GRAD
            return "it makes no weight gradients" if weight else None

    def test_a_refusal_comes_before_anything_is_written(self) -> None:
        out = upconv.Gradients(x=np.full_like(X, 7), weight=np.full_like(W, 7))
        grad = np.ones((1, 1, 4), np.float32)
        with pytest.raises(EngineRefusal, match="no weight gradients"):
            upconv.conv_transpose_backward(grad, X, W, out=out, engine=self.Partial())
        assert (out.x == 7).all()
        assert (out.weight == 7).all()

    def test_interleaved_arrays_are_separate(self) -> None:
        memory = np.zeros((1, 1, 6), np.float32)
        out = upconv.Gradients(x=memory[..., ::2], weight=memory[..., 1:4:2])
        grad = np.ones((1, 1, 4), np.float32)
        upconv.conv_transpose_backward(grad, X, W, out=out)
        np.testing.assert_array_equal(memory, [[[2, 3, 2, 3, 2, 0]]])


def test_a_weight_packed_into_a_foreign_object_is_still_seen_to_overlap() -> None:
    class Packing(ReferenceEngine):
        def build(self, problem: Problem, threads: int, variant: str = ""):
            primitive = super().build(problem, threads)
            pack, run = primitive.pack, primitive.run

            def run_view(out, a, b, *ends) -> None:
                out[...] = 0
                run(out, a, pack(b["a view"]), *ends)

            primitive.pack, primitive.run = lambda weight: {"a view": weight}, run_view
            return primitive

    memory = np.arange(1, 7.0).reshape(1, 1, 6)
    out = upconv.conv_transpose(np.ones((1, 1, 4)), memory[..., :3], engine=Packing(), out=memory)
    np.testing.assert_array_equal(out, [[[1, 3, 6, 6, 5, 3]]])


def test_empty_axes_have_the_sizes_the_rules_say() -> None:
    empty, one = np.ones((1, 1, 0)), np.ones((1, 1, 1))
    assert upconv.conv_transpose(empty, one, stride=3, padding="same_upper").shape == (1, 1, 0)
    assert upconv.conv(empty, np.ones((1, 1, 3)), padding="same_upper").shape == (1, 1, 0)
    nothing, point = np.ones((0, 1, 0, 0)), np.ones((1, 1, 1, 1))
    assert upconv.conv_transpose(nothing, point).shape == nothing.shape


class TestForeignArrays:
    def test_a_failing_array_protocol_gives_way_to_dlpack(self) -> None:
        class Both:
            def __array__(self, dtype=None, copy=None):
                raise RuntimeError("not this way")

            def __dlpack__(self, **keywords):
                return X.__dlpack__(**keywords)

            def __dlpack_device__(self):
                return X.__dlpack_device__()

        np.testing.assert_array_equal(upconv.conv_transpose(Both(), W), upconv.conv_transpose(X, W))

    def test_a_mask_is_not_dropped_by_a_detour(self) -> None:
        class Hiding:
            def __array__(self, dtype=None, copy=None):
                return np.ma.array(X)

        with pytest.raises(upconv.DTypeError, match=r"masked|MaskedArray|mask"):
            upconv.conv_transpose(Hiding(), W)

    @pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
    def test_matrices_and_other_subclasses_are_plain_arrays_here(self) -> None:
        out = np.matrix(np.zeros((2, 6), np.float32))
        x, w = np.ones((4, 5), np.float32), np.ones((4, 2, 2), np.float32)
        assert upconv.conv_transpose(x, w, out=out) is out
        np.testing.assert_array_equal(np.asarray(out), upconv.conv_transpose(x, w))


def test_explain_takes_an_engine_object() -> None:
    assert upconv.explain(X.shape, W, engine=TestGradients.Partial()).engine == "partial"


HUGE = 10**5000  # more digits than Python turns into text


@pytest.mark.parametrize(
    "call",
    [
        lambda: upconv.conv_transpose(X, W, stride=(HUGE,)),
        lambda: upconv.conv_transpose(X, W, padding=((HUGE, 1),)),
        lambda: upconv.conv_transpose(X, W, activation=("leaky_relu", HUGE)),
        lambda: upconv.output_shape((1, 1, HUGE), (1, 1, 1)),
        lambda: upconv.conv_transpose_backward(X, X, W, needs=iter(lambda: "x", None)),
        lambda: upconv.conv_transpose_backward(X, X, W, needs=np.array([["x", "weight"]])),
        lambda: upconv.conv_transpose(X, W, stride=[1] * 10**6),
        lambda: upconv.dialects.from_mxnet(5, kernel="(" + "9" * 5000 + ",)"),
        lambda: upconv.dialects.from_mxnet(5, kernel=3, num_group="9" * 5000),
        lambda: upconv.dialects.from_jax(5, 3, strides=2, padding="SAME").weight([[1]]),
    ],
)
def test_the_absurd_is_refused_in_words(call) -> None:
    with pytest.raises(upconv.UpconvError) as caught:
        call()
    assert len(str(caught.value)) < 500
