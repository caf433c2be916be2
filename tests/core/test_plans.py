"""Plans and explanations: weights packed once, and what would be done without doing it."""

import gc
import pickle
import weakref
from typing import ClassVar

import numpy as np
import pytest

import upconv
from tests.core.test_ops import HOW, B, W, X, Y
from tests.support.racing import in_threads
from upconv.engines.reference import ReferenceEngine

RNG = np.random.default_rng(5)
RESIDUAL = RNG.standard_normal(Y.shape).astype(np.float32)


class TestPlan:
    def test_is_the_function(self) -> None:
        plan = upconv.plan(X.shape, W, B, **HOW)
        np.testing.assert_array_equal(plan(X), Y)
        out = np.empty_like(Y)
        assert plan(X, out=out) is out
        np.testing.assert_array_equal(out, Y)
        assert (plan.input_shape, plan.output_shape) == (X.shape, Y.shape)
        assert plan.workspace_bytes > 0
        assert "6->12" in repr(plan)

    def test_takes_a_residual_planned_or_not(self) -> None:
        wanted = upconv.conv_transpose(X, W, B, residual=RESIDUAL, activation="relu", **HOW)
        plain = upconv.conv_transpose(X, W, B, activation="relu", **HOW)
        for residual in (None, False, True, RESIDUAL):
            plan = upconv.plan(X.shape, W, B, residual=residual, activation="relu", **HOW)
            np.testing.assert_array_equal(plan(X, RESIDUAL), wanted)
            if residual is None or residual is False:
                np.testing.assert_array_equal(plan(X), plain)
            else:
                with pytest.raises(upconv.DTypeError, match="the plan was made with one"):
                    plan(X)

    def test_keeps_its_own_weights(self) -> None:
        w, b = W.copy(), B.copy()
        plan = upconv.plan(X.shape, w, b, **HOW)
        w[...] = 0
        b[...] = 0
        np.testing.assert_array_equal(plan(X), Y)

    def test_closes(self) -> None:
        with upconv.plan(X.shape, W, B, **HOW) as plan:
            plan(X)
        with pytest.raises(upconv.EngineError, match=r"closed\. Make a new one"):
            plan(X)
        plan.close()

    @pytest.mark.parametrize("when", ["choosing", "building", "packing"])
    def test_closes_while_its_second_form_is_prepared(self, when: str) -> None:
        """As another thread may: the running call is right, and no other plan has its form."""
        closing = {"choosing": "refuses", "building": "build", "packing": "pack"}[when]

        class Closing(ReferenceEngine):
            def refuses(self, problem):
                self.reached("refuses", problem)
                return super().refuses(problem)

            def build(self, problem, threads, variant=""):
                self.reached("build", problem)
                primitive = super().build(problem, threads, variant)
                pack = primitive.pack
                primitive.pack = lambda w: (self.reached("pack", problem), pack(w))[1]
                return primitive

            def reached(self, stop, problem):
                if stop == closing and problem.epilogue.residual:
                    plan.close()

        other = upconv.plan(X.shape, 2 * W, B, **HOW)
        other.close()
        plan = upconv.plan(X.shape, W, B, engine=Closing(), **HOW)
        wanted = upconv.conv_transpose(X, W, B, residual=RESIDUAL, engine="reference", **HOW)
        np.testing.assert_array_equal(plan(X, RESIDUAL), wanted)
        for closed in (plan, other):
            with pytest.raises(upconv.EngineError, match="This plan is closed"):
                closed(X, RESIDUAL)

    def test_closes_while_a_call_looks_at_its_operands(self) -> None:
        class Closing:
            def __array__(self, dtype=None, copy=None):
                plan.close()
                return X

        plan = upconv.plan(X.shape, W, B, **HOW)
        np.testing.assert_array_equal(plan(Closing()), Y)

    def test_is_freed(self) -> None:
        plan = upconv.plan(X.shape, W, B, **HOW)
        gone = weakref.ref(plan)
        del plan
        gc.collect()
        assert gone() is None

    def test_runs_in_many_threads(self) -> None:
        plan = upconv.plan(X.shape, W, B, **HOW)
        for result in in_threads(8, lambda: plan(X)):
            np.testing.assert_array_equal(result, Y)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda p: p(X[:1]),
             "x\\.shape is \\(1, 6, 5, 7\\); expected \\(2, 6, 5, 7\\), as planned"),
            (lambda p: p(X.astype(float)), r"x\.dtype is float64; expected float32, as planned"),
            (lambda p: p(X, X), r"residual\.shape is .* expected \(2, 12, 10, 15\)"),
            (lambda p: p(X, out=X), r"out\.shape"),
            (lambda p: p([1.0]), r"x is \[1\.0\] \(list\)"),
        ],
    )  # fmt: skip
    def test_refuses_in_words(self, call, message: str) -> None:
        with pytest.raises(upconv.ArgumentError, match=message):
            call(upconv.plan(X.shape, W, B, **HOW))


class TestConvPlan:
    """The plan of an ordinary convolution, by every engine."""

    HOW: ClassVar = {"stride": (2, 1), "padding": ((1, 2), 1), "dilation": (1, 2), "groups": 2}
    W = RNG.standard_normal((8, 3, 3, 2)).astype(np.float32)
    B = RNG.standard_normal(8).astype(np.float32)

    @pytest.mark.parametrize("layout", ["NCX", "NXC"])
    def test_is_the_function(self, engine, layout: str) -> None:
        x = X if layout == "NCX" else np.ascontiguousarray(np.moveaxis(X, 1, -1))
        how = self.HOW | {"layout": layout, "engine": engine.name, "activation": "silu"}
        wanted = upconv.conv(x, self.W, self.B, **how)
        residual = RNG.standard_normal(wanted.shape).astype(np.float32)
        with upconv.conv_plan(x.shape, self.W, self.B, **how) as plan:
            out = np.full_like(wanted, np.nan)
            assert plan(x, out=out) is out
            np.testing.assert_array_equal(out, wanted)
            added = upconv.conv(x, self.W, self.B, residual=residual, **how)
            np.testing.assert_array_equal(plan(x, residual), added)
            again = pickle.loads(pickle.dumps(plan))
            np.testing.assert_array_equal(again(x), wanted)
            assert (plan.input_shape, plan.output_shape) == (x.shape, wanted.shape)
        with pytest.raises(upconv.EngineError, match="closed"):
            plan(x)

    def test_runs_without_a_batch_and_in_other_orders(self) -> None:
        wanted = upconv.conv(X[0], self.W, **self.HOW)
        oxi = np.ascontiguousarray(self.W.transpose(0, 2, 3, 1))
        plan = upconv.conv_plan(X.shape[1:], oxi, weight_layout="OXI", **self.HOW)
        np.testing.assert_allclose(plan(X[0]), wanted, rtol=1e-5, atol=1e-5)

    def test_refuses_in_words_of_its_own_arguments(self) -> None:
        with pytest.raises(upconv.ShapeError, match=r"weight\.shape"):
            upconv.conv_plan((1, 5, 9, 9), self.W, groups=2)
        with pytest.raises(upconv.ShapeError, match="input_shape"):
            upconv.conv_plan((6,), self.W, groups=2)
        with pytest.raises(TypeError, match="output_padding"):
            upconv.conv_plan(X.shape, self.W, output_padding=1)


def test_explain_names_engine_and_sizes() -> None:
    told = upconv.explain(X.shape, W, B, residual=True, activation="gelu", **HOW)
    assert told.engine == upconv.plan(X.shape, W, B, **HOW).engine
    assert told.output_shape == Y.shape
    assert told.multiply_adds == 2 * 6 * 5 * 7 * 4 * 3 * 2
    assert told.nbytes == 4 * (X.size + W.size + Y.size)
    assert "gelu" in str(told)
    by_shape = upconv.explain(X.shape, W.shape, B.shape, residual=True, activation="gelu", **HOW)
    assert by_shape == told
    assert upconv.explain(X.shape, W, engine="reference", **HOW).engine == "reference"


def test_an_explanation_has_80_columns_and_all_words() -> None:
    shapes = (1, 64, 32, 32), (64, 16, 4, 4)
    for more in ({}, {"engine": "cudnn"}, {"engine": "reference"}):
        told = upconv.explain(*shapes, stride=2, padding=1, activation="relu", **more)
        text = str(told)
        assert max(map(len, text.splitlines())) <= 80
        words = " ".join(text.split())
        assert str(told.problem) in words
        assert told.schedule in words
        assert all(" ".join(str(refusal).split()) in words for refusal in told.refusals)


@pytest.mark.parametrize(("direction", "of"), [("input_grad", X), ("weight_grad", W)])
def test_explain_tells_gradients(direction: str, of: np.ndarray) -> None:
    told = upconv.explain(X.shape, W, B, activation="gelu", direction=direction, **HOW)
    assert told.problem.direction.value == direction
    assert told.output_shape == of.shape
    assert told.schedule
    assert "gelu" not in str(told)
    with pytest.raises(upconv.UpconvError, match="direction is 'up'; expected one of 'forward'"):
        upconv.explain(X.shape, W, direction="up", **HOW)
