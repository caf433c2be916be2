"""The public functions on GPU arrays, on a made-up GPU: places, results, refusals."""

import copy
import pickle

import numpy as np
import pytest

import upconv
from tests.support.made_up_gpu import LIBRARY, GpuArray, MadeUpCudnn, made_up_array
from upconv import arrays, devices
from upconv.devices import DeviceArray, same_place
from upconv.engines.cudnn.engine import Cudnn

RNG = np.random.default_rng(0)
X = RNG.standard_normal((2, 6, 5, 7)).astype(np.float32)
W = RNG.standard_normal((6, 4, 3, 2)).astype(np.float32)
KEYWORDS = {"stride": (2, 3), "padding": ((1, 0), (0, -2))}


@pytest.fixture(autouse=True)
def on_gpu(monkeypatch: pytest.MonkeyPatch, fresh_cache) -> None:
    monkeypatch.setattr(arrays, "device_array", made_up_array)


@pytest.fixture
def engine() -> MadeUpCudnn:
    return MadeUpCudnn()


def near(got, wanted) -> None:
    assert isinstance(got, np.ndarray)  # what the made-up library calls its arrays
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_conv_transpose_with_all_that_it_takes(engine) -> None:
    bias, slopes = (RNG.standard_normal(4).astype(np.float32) for _ in range(2))
    y = upconv.conv_transpose(X, W, engine="reference", **KEYWORDS)
    residual = RNG.standard_normal(y.shape).astype(np.float32)
    wanted = upconv.conv_transpose(
        X, W, bias, residual=residual, activation=("prelu", slopes), engine="reference", **KEYWORDS
    )
    x, w, bias, residual, slopes = map(GpuArray, (X, W, bias, residual, slopes))
    got = upconv.conv_transpose(
        x, w, bias, residual=residual, activation=("prelu", slopes), engine=engine, **KEYWORDS
    )
    near(got, wanted)


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("batched", [True, False])
def test_conv_and_layouts(engine, layout: str, batched: bool) -> None:
    x = X if layout == "NCX" else np.moveaxis(X, 1, -1)
    x = x if batched else x[0]
    weight = RNG.standard_normal((3, 6, 3, 2)).astype(np.float32)
    keywords = {"stride": 2, "padding": (1, 0), "layout": layout}
    wanted = upconv.conv(x, weight, engine="reference", **keywords)
    near(upconv.conv(GpuArray(x), GpuArray(weight), engine=engine, **keywords), wanted)


def test_gradients(engine) -> None:
    y = upconv.conv_transpose(X, W, engine="reference", **KEYWORDS)
    g = RNG.standard_normal(y.shape).astype(np.float32)
    wanted = upconv.conv_transpose_backward(g, X, W, engine="reference", **KEYWORDS)
    operands = GpuArray(g), GpuArray(X), GpuArray(W)
    got = upconv.conv_transpose_backward(*operands, engine=engine, **KEYWORDS)
    for name in ("x", "weight", "bias"):
        near(getattr(got, name), getattr(wanted, name))
    out = upconv.Gradients(
        *(GpuArray(np.ones_like(getattr(wanted, name))) for name in upconv.gradients.NEEDS)
    )
    upconv.conv_transpose_backward(*operands, engine=engine, out=out, accumulate=True, **KEYWORDS)
    for name in ("x", "weight", "bias"):
        near(getattr(out, name).native, 1 + getattr(wanted, name))


def test_an_end_is_not_lost_beside_a_copy_of_equal_shape() -> None:
    """The image is copied into a larger one as large as the result, which ends in an activation."""
    engine = MadeUpCudnn()
    engine.machine.lacks = lambda form: form.pre != form.post or bool(form.ends)
    x = RNG.standard_normal((1, 2, 6)).astype(np.float32)
    weight = RNG.standard_normal((2, 2, 3)).astype(np.float32)
    keywords = {"padding": ((4, 0),), "activation": "relu"}
    wanted = upconv.conv(x, weight, engine="reference", **keywords)
    near(upconv.conv(GpuArray(x), GpuArray(weight), engine=engine, **keywords), wanted)


def test_arrays_that_are_never_written_into(engine, monkeypatch) -> None:
    """JAX's: they come through CuPy, and results go back."""

    def through(argument, value):
        array = made_up_array(argument, value)
        if array is not None:
            array.given_back, array.origin = lambda native: ("jax", native), "jax"
        return array

    monkeypatch.setattr(arrays, "device_array", through)
    x, w = GpuArray(X), GpuArray(W)
    kind, y = upconv.conv_transpose(x, w, engine=engine)
    assert kind == "jax"
    near(y, upconv.conv_transpose(X, W, engine="reference"))
    with pytest.raises(upconv.DTypeError, match=r"out is an array of jax.*immutable"):
        upconv.conv_transpose(x, w, engine=engine, out=GpuArray(y))
    gradients = upconv.Gradients(x=x)
    with pytest.raises(upconv.DTypeError, match=r"out\.x is an array of jax.*immutable"):
        upconv.conv_transpose_backward(GpuArray(y), x, w, engine=engine, needs="x", out=gradients)


def test_what_computes_in_main_memory_says_so() -> None:
    with pytest.raises(upconv.DTypeError, match="weight"):
        upconv.stream(GpuArray(W[:, :, 0]))
    with pytest.raises(upconv.DTypeError, match=r"x is .*main memory.*cuda:0, like gamma"):
        upconv.batch_norm(X, GpuArray(np.ones(6, np.float32)), training=True)


def test_gradients_do_not_mix_places(engine) -> None:
    y = upconv.conv_transpose(X, W, engine="reference", **KEYWORDS)
    out = upconv.Gradients(x=np.zeros_like(X))
    with pytest.raises(upconv.DTypeError, match=r"out\.x .*main memory.*cuda:0"):
        upconv.conv_transpose_backward(
            GpuArray(y), GpuArray(X), GpuArray(W), engine=engine, needs="x", out=out, **KEYWORDS
        )


def test_plans(engine) -> None:
    wanted = upconv.conv_transpose(X, W, engine="reference", **KEYWORDS)
    weight = GpuArray(W)
    plan = upconv.plan(X.shape, weight, engine=engine, **KEYWORDS)
    weight.native[...] = 0  # a plan has a copy
    near(plan(GpuArray(X)), wanted)
    near(plan.resized((1, 6, 5, 7))(GpuArray(X[:1])), wanted[:1])
    out = GpuArray(np.zeros_like(wanted))
    assert plan(GpuArray(X), out=out) is out
    near(out.native, wanted)
    with pytest.raises(upconv.DTypeError, match="main memory"):
        plan(X)
    for copied in (pickle.dumps, copy.copy):
        with pytest.raises(upconv.EngineError, match="copied or pickled"):
            copied(plan)


def test_out_may_overlap_an_operand(engine) -> None:
    weight = np.ones((6, 6, 1, 1), np.float32)
    x = GpuArray(X)
    wanted = upconv.conv_transpose(X, weight, engine="reference")
    y = upconv.conv_transpose(x, GpuArray(weight), engine=engine, out=x)
    assert y is x
    near(x.native, wanted)


def test_a_second_call_builds_nothing(engine) -> None:
    x, w = GpuArray(X), GpuArray(W)
    upconv.conv_transpose(x, w, engine=engine)
    builds = upconv.cache_info().builds
    upconv.conv_transpose(x, w, engine=engine)
    assert upconv.cache_info().builds == builds == 1


def test_main_memory_and_a_gpu_share_no_call(engine) -> None:
    """Shapes and types are equal: only the place of the arrays differs."""
    here = upconv.conv_transpose(X, W)
    there = upconv.conv_transpose(GpuArray(X), GpuArray(W), engine=engine)
    near(there, here)
    near(upconv.conv_transpose(X, W), here)
    for x, w, name in ((GpuArray(X), W, "weight"), (X, GpuArray(W), "x")):
        with pytest.raises(
            upconv.DTypeError, match=rf"{name} .*main memory.*cuda:0.*Move it there"
        ):
            upconv.conv_transpose(x, w, engine=engine)


def test_engines_of_the_processor_are_refused_there() -> None:
    with pytest.raises(upconv.EngineRefusal, match=r"'jit' computes in main memory.*cuda:0"):
        upconv.conv_transpose(GpuArray(X), GpuArray(W), engine="jit")


def test_cudnn_is_refused_in_main_memory() -> None:
    for engine in ("cudnn", Cudnn()):
        with pytest.raises(upconv.EngineRefusal, match="GPU arrays"):
            upconv.conv_transpose(X, W, engine=engine)


def test_tf32_is_for_gpus(engine) -> None:
    for name in ("jit", "reference", "onednn", None):
        with pytest.raises(upconv.EngineRefusal, match="TF32"):
            upconv.conv_transpose(X, W, precision="tf32", engine=name)
    got = upconv.conv_transpose(GpuArray(X), GpuArray(W), precision="tf32", engine=engine)
    near(got, upconv.conv_transpose(X, W, engine="reference"))
    with pytest.raises(upconv.ArgumentError, match="precision"):
        upconv.conv_transpose(X.astype(np.float64), W.astype(np.float64), precision="tf32")


def test_tuning_measures_on_the_device_and_remembers(engine, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("UPCONV_TUNING_FILE", str(tmp_path / "tuning.sqlite"))
    near(
        upconv.plan(X.shape, GpuArray(W), engine=engine, tune=True)(GpuArray(X)),
        upconv.conv_transpose(X, W, engine="reference"),
    )
    measured = len(engine.measured)
    assert measured > 2
    upconv.cache_clear()
    upconv.plan(X.shape, GpuArray(W), engine=engine, tune=True)
    assert len(engine.measured) == measured


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tune": "fast"}, "tune.*'fast'.*limited_workspace"),
        ({"workspace": -1}, "workspace.*-1.*MiB"),
        ({"workspace": 1.5}, "workspace"),
        ({"deterministic": "yes"}, "deterministic"),
    ],
)
def test_settings_are_checked(settings, words: str) -> None:
    with pytest.raises(upconv.ArgumentError, match=words):
        Cudnn(**settings)


def test_refusals_of_sizes(engine) -> None:
    with pytest.raises(upconv.EngineRefusal, match="one to three spatial axes"):
        upconv.conv_transpose(
            GpuArray(np.zeros((1, 1, 2, 2, 2, 2), np.float32)),
            GpuArray(np.zeros((1, 1, 1, 1, 1, 1), np.float32)),
            engine=engine,
        )


def test_contiguity_and_spans() -> None:
    array = LIBRARY.array("x", np.zeros((4, 3, 5), np.float32))
    assert array.contiguous
    assert not array[:, 1:].contiguous
    assert array[:, :1].transpose((1, 0, 2)).contiguous is False
    assert array[:1, 1:].contiguous
    backwards = array[::-1]
    assert backwards.span == array.span
    assert len(array[1:3].span) == 2 * 15 * 4
    same_place({"x": array, "bias": None})
    assert isinstance(array.copy(), DeviceArray)


def test_arrays_of_main_memory_are_none_of_a_gpu() -> None:
    class Says:
        def __dlpack_device__(self):
            return 1, 0

    for value in (X, [1.0], None, Says(), object()):
        assert devices.device_array("x", value) is None
