"""What only a GPU can show: streams, graphs, threads, memory, tuning, other libraries' arrays."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import upconv
from tests.support.real_gpu import reason_without
from upconv import primitives
from upconv.engines.cudnn.engine import Cudnn

pytestmark = pytest.mark.skipif(bool(reason_without("torch")), reason=reason_without("torch"))

KEYWORDS = {"stride": 2, "padding": 1}


@pytest.fixture
def torch(fresh_cache):
    import torch

    torch.manual_seed(0)
    torch.backends.cudnn.allow_tf32 = False
    return torch


def layer(torch, dtype=None, channels=32, size=20):
    """x, weight and bias of a layer, and what PyTorch computes of them in float32."""
    dtype = dtype or torch.float32
    x = torch.randn(2, channels, size, size, device="cuda").to(dtype)
    weight = (torch.randn(channels, 16, 4, 4, device="cuda") / 16).to(dtype)
    bias = torch.randn(16, device="cuda").to(dtype)
    operands = (each.float() for each in (x, weight, bias))
    return x, weight, bias, torch.nn.functional.conv_transpose2d(*operands, 2, 1)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_values_beside_pytorch(torch, name: str, layout: str) -> None:
    x, weight, bias, wanted = layer(torch, getattr(torch, name))
    if layout == "NXC":
        x, wanted = x.permute(0, 2, 3, 1).contiguous(), wanted.permute(0, 2, 3, 1)
    y = upconv.conv_transpose(x, weight, bias, layout=layout, activation="relu", **KEYWORDS)
    assert y.device == x.device
    assert y.dtype == x.dtype
    tolerance = {"float32": 2e-5, "float16": 5e-3, "bfloat16": 4e-2}[name]
    torch.testing.assert_close(y.float(), wanted.relu(), rtol=tolerance, atol=tolerance)


def test_tf32_is_only_by_choice(torch) -> None:
    x, weight, _, _ = layer(torch, channels=512)
    wanted = torch.nn.functional.conv_transpose2d(x.double(), weight.double(), None, 2, 1)
    errors = [
        float((upconv.conv_transpose(x, weight, precision=p, **KEYWORDS) - wanted).abs().max())
        for p in (None, "tf32")
    ]
    assert errors[0] < 5e-5
    assert 1e-4 < errors[1] < 2e-2


def test_gradients_beside_pytorch(torch) -> None:
    x, weight, bias, y = layer(torch)
    g = torch.randn_like(y)
    operands = [each.clone().requires_grad_() for each in (x, weight, bias)]
    torch.nn.functional.conv_transpose2d(*operands, 2, 1).backward(g)
    got = upconv.conv_transpose_backward(g, x, weight, **KEYWORDS)
    for mine, theirs in zip((got.x, got.weight, got.bias), operands, strict=True):
        torch.testing.assert_close(mine, theirs.grad, rtol=1e-4, atol=1e-3)


def test_a_tensor_that_requires_grad_is_refused(torch) -> None:
    x, weight, bias, _ = layer(torch)
    with pytest.raises(upconv.DTypeError, match=r"Detach it, or call upconv\.torch"):
        upconv.conv_transpose(x.requires_grad_(), weight, bias)


def test_nothing_waits_for_the_device(torch) -> None:
    """The call returns while the stream is still busy with what came before."""
    x, weight, bias, wanted = layer(torch)
    upconv.conv_transpose(x, weight, bias, **KEYWORDS)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(400_000_000)  # about 0.2 s
        y = upconv.conv_transpose(x, weight, bias, **KEYWORDS)
        assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_cuda_graphs(torch, name: str) -> None:
    """A captured call computes on what its arrays hold when the graph runs."""
    x, weight, bias, _ = layer(torch, getattr(torch, name))
    call = {"activation": "gelu", **KEYWORDS}
    upconv.conv_transpose(x, weight, bias, **call)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = upconv.conv_transpose(x, weight, bias, **call)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, upconv.conv_transpose(x, weight, bias, **call))


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_a_layer_is_not_prepared_during_a_capture(torch) -> None:
    x, weight, bias, _ = layer(torch, size=13)
    with (
        pytest.raises(upconv.EngineError, match="Call it once before the capture"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        upconv.conv_transpose(x, weight, bias, **KEYWORDS)
    assert upconv.conv_transpose(x, weight, bias, **KEYWORDS).isfinite().all()


def test_threads_and_streams(torch) -> None:
    """Each thread has its own stream and its own values, all the same layer."""
    _, weight, bias, _ = layer(torch)
    xs = [torch.randn(2, 32, 20, 20, device="cuda") for _ in range(4)]
    wanted = [upconv.conv_transpose(x, weight, bias, **KEYWORDS) for x in xs]
    torch.cuda.synchronize()

    def work(number: int) -> bool:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(50):
                y = upconv.conv_transpose(xs[number], weight, bias, **KEYWORDS)
            stream.synchronize()
        return torch.allclose(y, wanted[number], rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_too_little_memory_is_an_error_and_no_more(torch) -> None:
    x, weight, bias, wanted = layer(torch)
    torch.cuda.empty_cache()
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (64 << 20)) / total)
    try:
        large = torch.empty(1, device="cuda").expand(64, 32, 512, 512)
        with pytest.raises(upconv.MemoryLimitError, match="does not fit on the GPU"):
            upconv.conv_transpose(large, weight, **KEYWORDS)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(
        upconv.conv_transpose(x, weight, bias, **KEYWORDS), wanted, rtol=1e-4, atol=1e-4
    )


def test_a_thousand_shapes_in_a_bounded_cache(torch, monkeypatch) -> None:
    monkeypatch.setitem(primitives._shared, "", primitives.PrimitiveCache(max_entries=32))
    weight = torch.randn(8, 8, 4, 4, device="cuda")
    room = torch.randn(1, 8, 64, 64, device="cuda")
    free = []
    for _ in range(2):  # the library loads kernels when a shape first takes one, and keeps them
        for number in range(1000):
            x = room[:, :, : 4 + number % 40, : 4 + number // 40]
            upconv.conv_transpose(x, weight, **KEYWORDS)
        torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    assert upconv.cache_info().builds > 1900
    assert upconv.cache_info().entries <= 32
    assert free[0] - free[1] < 8 << 20


def test_tuning_is_by_the_device_and_remembered(torch, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("UPCONV_TUNING_FILE", str(tmp_path / "tuning.sqlite"))
    x, weight, bias, wanted = layer(torch, torch.float16)
    for settings in ({"tune": "limited_workspace", "workspace": 1}, {"tune": "fastest"}):
        engine = Cudnn(**settings)
        y = upconv.conv_transpose(x, weight, bias, engine=engine, **KEYWORDS)
        torch.testing.assert_close(y.float(), wanted, rtol=5e-3, atol=5e-3)
        measured = upconv.tuning_info().measured
        upconv.cache_clear()
        upconv.conv_transpose(x, weight, bias, engine=engine, **KEYWORDS)
        assert upconv.tuning_info().measured == measured
    assert upconv.tuning_info().measured == 2


def test_deterministic_results(torch) -> None:
    x, weight, _, y = layer(torch, channels=64, size=64)
    g = torch.randn_like(y)
    engine = Cudnn(deterministic=True, tune="fastest")
    results = [
        upconv.conv_transpose_backward(g, x, weight, needs="weight", engine=engine, **KEYWORDS)
        for _ in range(5)
    ]
    assert all(torch.equal(each.weight, results[0].weight) for each in results)


def test_plans_and_out(torch) -> None:
    x, weight, bias, wanted = layer(torch)
    plan = upconv.plan(tuple(x.shape), weight, bias, **KEYWORDS)
    out = torch.empty_like(wanted)
    assert plan(x, out=out) is out
    torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)
    wide = torch.zeros(2, 16, 44, 44, device="cuda")
    plan(x, out=wide[:, :, 1:41, 2:42])
    torch.testing.assert_close(wide[:, :, 1:41, 2:42], wanted, rtol=1e-4, atol=1e-4)
    wide[:, :, 1:41, 2:42] = 0
    assert not wide.any()


@pytest.mark.skipif(bool(reason_without("cupy")), reason=reason_without("cupy"))
def test_cupy_arrays(torch) -> None:
    import cupy

    x, weight, bias, wanted = layer(torch)
    stream = cupy.cuda.Stream(non_blocking=True)
    torch.cuda.synchronize()
    with stream:
        y = upconv.conv_transpose(*(cupy.asarray(each) for each in (x, weight, bias)), **KEYWORDS)
    stream.synchronize()
    assert isinstance(y, cupy.ndarray)
    np.testing.assert_allclose(cupy.asnumpy(y), wanted.cpu().numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(upconv.DTypeError, match=r"a torch array on cuda:0.*a cupy array"):
        upconv.conv_transpose(cupy.asarray(x), weight)


@pytest.mark.skipif(bool(reason_without("cupy")), reason=reason_without("cupy"))
def test_jax_arrays(torch) -> None:
    jax = pytest.importorskip("jax")
    x, weight, bias, wanted = layer(torch)
    arrays = [
        jax.device_put(each.cpu().numpy(), jax.devices("cuda")[0]) for each in (x, weight, bias)
    ]
    y = upconv.conv_transpose(*arrays, **KEYWORDS)
    assert isinstance(y, jax.Array)
    np.testing.assert_allclose(np.asarray(y), wanted.cpu().numpy(), rtol=1e-4, atol=1e-4)
    with pytest.raises(upconv.DTypeError, match="arrays are immutable"):
        upconv.conv_transpose(*arrays, out=y, **KEYWORDS)
