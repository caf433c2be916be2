"""conv_transpose1d/2d/3d for PyTorch: formats without copies, arguments, refusals.

python -m pytest tests/test_torch_functions.py
"""

from __future__ import annotations

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the face for PyTorch needs PyTorch")
from torch.nn import functional as F  # noqa: E402

import upconv.torch  # noqa: E402
from upconv.errors import UpconvError  # noqa: E402
from upconv.torch import compute, packing  # noqa: E402

OURS = {rank: getattr(upconv.torch, f"conv_transpose{rank}d") for rank in (1, 2, 3)}
THEIRS = {rank: getattr(F, f"conv_transpose{rank}d") for rank in (1, 2, 3)}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}


def drawn(*shape: int, dtype: torch.dtype = torch.float64):
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


def geometry(rng: random.Random, rank: int) -> dict:
    stride = [rng.randint(1, 4) for _ in range(rank)]
    dilation = [rng.randint(1, 3) for _ in range(rank)]
    most = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
    return {
        "stride": stride,
        "padding": [rng.randint(0, 2) for _ in range(rank)],
        "output_padding": [rng.randint(0, m) for m in most],
        "groups": rng.choice((1, 2, 3)),
        "dilation": dilation,
    }


@pytest.mark.parametrize("seed", range(60))
def test_random_layers_forward_and_gradients(seed: int) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    rank = 1 + seed % 3
    kwargs = geometry(rng, rank)
    groups = kwargs["groups"]
    size = [rng.randint(5, 7) for _ in range(rank)]
    kernel = [rng.randint(1, 4) for _ in range(rank)]
    x = drawn(rng.randint(1, 3), groups * rng.randint(1, 3), *size)
    w = drawn(x.shape[1], rng.randint(1, 3), *kernel)
    b = drawn(w.shape[1] * groups) if rng.random() < 0.7 else None
    if rank > 1 and rng.random() < 0.5:
        x = x.to(memory_format=LAST[rank])
    if rng.random() < 0.3:
        x = x.expand(x.shape)[..., ::2]
    operands = [each.requires_grad_() for each in (x.detach(), w, b) if each is not None]
    rest = () if b is not None else (None,)
    try:
        wanted = THEIRS[rank](*operands, *rest, **kwargs)
    except RuntimeError:
        with pytest.raises(UpconvError):
            OURS[rank](*operands, *rest, **kwargs)
        return
    got = OURS[rank](*operands, *rest, **kwargs)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    g = torch.randn_like(wanted)
    for mine, yours in zip(
        torch.autograd.grad(got, operands, g), torch.autograd.grad(wanted, operands, g), strict=True
    ):
        torch.testing.assert_close(mine, yours, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    ("n", "c", "f", "size", "k"),
    [(2, 8, 6, 10, 3), (2, 3, 5, 4, 3), (2, 4, 1, 5, 3), (2, 2, 2, 3, 1)],
)
@pytest.mark.parametrize("form", ["contiguous", "x last", "w last", "both last", "transposed"])
def test_results_have_the_strides_of_pytorchs(rank, n, c, f, size, k, form: str) -> None:
    x, w = drawn(n, c, *[size] * rank).float(), drawn(c, f, *[k] * rank).float()
    if form == "transposed":
        x = x.transpose(1, -1).contiguous().transpose(1, -1)
    elif form != "contiguous" and rank == 1:
        pytest.skip("PyTorch has no channels-last format for one axis")
    x = x.to(memory_format=LAST[rank]) if form in ("x last", "both last") else x
    w = w.to(memory_format=LAST[rank]) if form in ("w last", "both last") else w
    got, wanted = OURS[rank](x, w, stride=2), THEIRS[rank](x, w, stride=2)
    assert got.stride() == wanted.stride()
    torch.testing.assert_close(got, wanted)


class Watched:
    """Primitives that note which arrays they are given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[dict] = []
        lease = packing.leased

        def leased(problem, threads):
            held = lease(problem, threads)
            held.primitive = Noting(held.primitive, self, problem, threads)
            return held

        monkeypatch.setattr(packing, "leased", leased)
        monkeypatch.setattr(compute, "leased", leased)


class Noting:
    def __init__(self, primitive, watched: Watched, problem, threads: int) -> None:
        self.primitive, self.watched = primitive, watched
        self.facts = {"problem": problem, "threads": threads}
        self.workspace_bytes = primitive.workspace_bytes

    def pack(self, weight):
        return self.primitive.pack(weight)

    def run(self, out, a, b, bias=None, residual=None) -> None:
        self.watched.seen.append({"out": out, "a": a, **self.facts})
        self.primitive.run(out, a, b, bias, residual)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
def test_tensors_reach_the_engine_without_a_copy(monkeypatch, dtype, last: bool) -> None:
    if dtype is torch.bfloat16:
        pytest.importorskip("ml_dtypes")
    watched = Watched(monkeypatch)
    x, w = drawn(2, 4, 5, 6, dtype=dtype), drawn(4, 3, 2, 2, dtype=dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    y = upconv.torch.conv_transpose2d(x, w)
    (facts,) = watched.seen
    assert str(facts["problem"]).count("NXC" if last else "NCX") == 1
    assert facts["a"].ctypes.data == x.data_ptr()
    assert facts["out"].ctypes.data == y.data_ptr()
    assert facts["a"].flags.c_contiguous
    assert facts["out"].flags.c_contiguous
    assert facts["a"].dtype.name == str(dtype).removeprefix("torch.")


def test_neither_operands_nor_results_lose_the_freedom_to_be_resized() -> None:
    """Memory that NumPy has seen, or owns, cannot be resized."""
    x, w, b = drawn(1, 2, 3), drawn(2, 2, 2), drawn(2)
    y = upconv.torch.conv_transpose1d(x, w, b)
    for tensor in (x, w, b, y):
        assert tensor.resize_(50).shape == (50,)


def test_threads_follow_pytorch_unless_upconv_was_told(monkeypatch) -> None:
    watched = Watched(monkeypatch)
    x, w = drawn(1, 2, 3), drawn(2, 2, 2)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        upconv.torch.conv_transpose1d(x, w)
        torch.set_num_threads(2)
        upconv.torch.conv_transpose1d(x, w)
        upconv.set_num_threads(3)
        upconv.torch.conv_transpose1d(x, w)
    finally:
        upconv.set_num_threads(None)
        torch.set_num_threads(before)
    assert [facts["threads"] for facts in watched.seen] == [1, 2, 3]


X, W, B = drawn(1, 4, 5, 5), drawn(4, 3, 3, 3), drawn(3)

# What PyTorch refuses, by (input, weight, bias, keywords).
REFUSED_BY_BOTH = {
    "channels": (X, drawn(5, 3, 3, 3), None, {}),
    "bias of another length": (X, W, drawn(4), {}),
    "bias of two axes": (X, W, drawn(1, 3), {}),
    "bias without axes": (X, W, torch.tensor(1.0, dtype=torch.float64), {}),
    "stride 0": (X, W, None, {"stride": 0}),
    "stride below 0": (X, W, None, {"stride": -1}),
    "padding below 0": (X, W, None, {"padding": -1}),
    "dilation 0": (X, W, None, {"dilation": 0}),
    "output_padding not below stride": (X, W, None, {"output_padding": 1}),
    "output_padding below 0": (X, W, None, {"output_padding": -1}),
    "groups that do not divide": (X, W, None, {"groups": 3}),
    "groups 0": (X, W, None, {"groups": 0}),
    "three strides for two axes": (X, W, None, {"stride": (1, 2, 3)}),
    "no strides": (X, W, None, {"stride": []}),
    "nothing left": (X, W, None, {"padding": 10}),
    "text for a stride": (X, W, None, {"stride": "a"}),
    "text for padding": (X, W, None, {"padding": "same"}),
    "float for a stride": (X, W, None, {"stride": 1.5}),
    "bool for a stride": (X, W, None, {"stride": True}),
    "None for a stride": (X, W, None, {"stride": None}),
    "float for groups": (X, W, None, {"groups": 1.0}),
    "tensor of several": (X, W, None, {"stride": torch.tensor([2, 2])}),
    "a stride beyond 64 bits": (X, W, None, {"stride": 2**70}),
    "other dtype of weight": (X, W.float(), None, {}),
    "five axes": (X[None], W, None, {}),
    "two axes": (X[0, 0], W, None, {}),
    "weight of three axes": (X, W[0], None, {}),
    "no channels": (X[:, :0], W[:0], None, {}),
    "no positions": (X[..., :0], W, None, {}),
    "no taps": (X, W[..., :0], None, {}),
    "no output channels": (X, W[:, :0], None, {}),
    "an array": (X.numpy(), W, None, {}),
    "no weight": (X, None, None, {}),
    "32-bit integers": (X.int(), W.int(), None, {}),
}


@pytest.mark.parametrize("name", REFUSED_BY_BOTH)
def test_what_pytorch_refuses_is_refused_with_an_error_that_is_both(name: str) -> None:
    x, w, b, kwargs = REFUSED_BY_BOTH[name]
    with pytest.raises((RuntimeError, TypeError, ValueError)) as theirs:
        F.conv_transpose2d(x, w, b, **kwargs)
    with pytest.raises(UpconvError) as ours:
        upconv.torch.conv_transpose2d(x, w, b, **kwargs)
    kinds = (RuntimeError, TypeError, ValueError)
    expected = next(kind for kind in kinds if isinstance(theirs.value, kind))
    assert isinstance(ours.value, expected)
    assert "; expected " in str(ours.value)


def quantised(x):
    return torch.quantize_per_tensor(x.float(), 1.0, 0, torch.quint8)


REFUSED_BY_US = {
    "a bias of another dtype": (lambda x: x.float(), "the dtype of input"),
    "64-bit integers": (lambda x: x.long(), "Integers are not computed on"),
    "complex": (lambda x: x + 0j, "pass .real and .imag"),
    "sparse": (lambda x: x.to_sparse(), "to_dense"),
    "oneDNN's own layout": (lambda x: x.float().to_mkldnn(), "to_dense"),
    "eight bits": (lambda x: x.to(torch.float8_e5m2), r"\.float\(\)"),
    "quantised": (quantised, "dequantize"),
    "another device": (lambda x: x.to("meta"), "Move one of them"),
}


@pytest.mark.parametrize("name", REFUSED_BY_US)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_what_is_not_computed_on_is_refused_in_words(name: str) -> None:
    convert, remedy = REFUSED_BY_US[name]
    with pytest.raises(RuntimeError, match=remedy) as error:
        upconv.torch.conv_transpose2d(convert(X), W.float() if "bias" in name else W, B)
    assert isinstance(error.value, UpconvError)


def test_other_devices_are_refused_in_words() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x, w = torch.empty(1, 4, 5, 5, device="cuda"), torch.empty(4, 3, 3, 3, device="cuda")
        with pytest.raises(
            upconv.torch.TensorTypeError, match="on device cuda:0; expected a tensor"
        ):
            upconv.torch.conv_transpose2d(x, w)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"stride": torch.tensor(2)},
        {"stride": np.int64(2)},
        {"stride": (np.int64(2), 1)},
        {"stride": (2,)},
        {"stride": [2, 3], "padding": (1,), "groups": np.int64(2)},
        {"stride": torch.Size([2, 3])},
    ],
)
def test_numbers_are_taken_in_all_forms_that_pytorch_takes(kwargs: dict) -> None:
    try:
        wanted = F.conv_transpose2d(input=X, weight=W, **kwargs)
    except RuntimeError:  # a tensor, before 2.7
        pytest.skip("this PyTorch does not take it")
    got = upconv.torch.conv_transpose2d(input=X, weight=W, **kwargs)
    torch.testing.assert_close(got, wanted)


def test_an_empty_batch_has_an_empty_result_and_gradients_of_zero() -> None:
    w = W.clone().requires_grad_()
    y = upconv.torch.conv_transpose2d(X[:0], w, B)
    assert y.shape == (0, 3, 7, 7)
    y.sum().backward()
    assert w.grad is not None
    assert not w.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_empty_results_are_those_of_pytorch_where_it_has_them(rank, batch, dtype) -> None:
    """Its kernels differ, by dtype, batch and processor."""
    axes = {1: [(1, 4, 3, 2)], 2: [(1, 4, 3, 2), (3, 2, 2, 1)],
            3: [(3, 2, 2, 1), (1, 4, 3, 2), (2, 1, 1, 0)]}[rank]  # fmt: skip
    size, kernel, stride, padding = zip(*axes, strict=True)
    kwargs = {"stride": stride, "padding": padding}
    results = []
    for function in (upconv.torch.conv_transpose, THEIRS[rank]):
        x = drawn(batch, 4, *size).to(dtype).requires_grad_()
        w, b = drawn(4, 3, *kernel).to(dtype).requires_grad_(), drawn(6).to(dtype).requires_grad_()
        try:
            y = function(x, w, b, groups=2, **kwargs)
        except RuntimeError:
            assert function is THEIRS[rank]
            continue
        y.sum().backward()
        for operand in (x, w, b):
            assert operand.grad.shape == operand.shape
            assert not operand.grad.any()
        results.append(y)
    assert results[0].shape == (batch, 6, *{1: (0,), 2: (0, 4), 3: (4, 0, 2)}[rank])
    assert all(y.shape == results[0].shape for y in results)


def test_lazily_negated_tensors_count_as_what_they_are() -> None:
    x = torch.view_as_complex(drawn(1, 4, 5, 5, 2)).conj().imag
    assert x.is_neg()
    with torch.no_grad():
        got = upconv.torch.conv_transpose2d(x, W)
    torch.testing.assert_close(got, F.conv_transpose2d(x.resolve_neg(), W))


def test_meta_tensors_have_results_without_data() -> None:
    y = upconv.torch.conv_transpose2d(X.to("meta"), W.to("meta"), stride=2)
    assert y.device.type == "meta"
    assert y.shape == (1, 3, 11, 11)
    with pytest.raises(upconv.torch.TensorShapeError, match="4 channels"):
        upconv.torch.conv_transpose2d(X.to("meta"), drawn(5, 3, 3, 3).to("meta"))


def test_the_rank_free_function_reads_the_rank_off_the_weight() -> None:
    for rank in (1, 2, 3):
        x, w = drawn(2, 4, *[4] * rank), drawn(4, 3, *[2] * rank)
        got = upconv.torch.conv_transpose(x, w, None, 2)
        torch.testing.assert_close(got, THEIRS[rank](x, w, None, 2))
    with pytest.raises(upconv.torch.TensorShapeError, match="3, 4 or 5 axes"):
        upconv.torch.conv_transpose(drawn(2, 3), drawn(3, 3))


def test_bfloat16_without_ml_dtypes_is_refused_in_words(monkeypatch) -> None:
    from upconv import problem
    from upconv.errors import EngineMissing

    def missing():
        raise EngineMissing("bfloat16 arrays need ml_dtypes: pip install ml_dtypes")

    monkeypatch.setattr(problem, "_bfloat16", missing)
    with pytest.raises(RuntimeError, match="pip install ml_dtypes"):
        upconv.torch.conv_transpose2d(X.bfloat16(), W.bfloat16())


def test_a_missing_pytorch_is_said_in_words(monkeypatch) -> None:
    import importlib
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(upconv.EngineMissing, match=r"pip install 'upconv\[torch\]'"):
        importlib.reload(upconv.torch)
