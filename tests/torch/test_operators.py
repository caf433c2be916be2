"""The operators of `torch.ops.upconv`: values, derivatives, and what PyTorch asks of operators."""

import warnings

import pytest

torch = pytest.importorskip("torch")
from torch.autograd import gradcheck, gradgradcheck  # noqa: E402

import upconv.torch as ut  # noqa: E402
from tests.support.small_models import close  # noqa: E402
from upconv.errors import DTypeError, ShapeError  # noqa: E402
from upconv.torch import compute, tensors  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

OPS = torch.ops.upconv
FUNCTIONAL = torch.nn.functional
CASES = {
    "transposed": ((2, 6, 5, 4), (6, 4, 3, 2), ([2, 1], [1, 0], [1, 2], True, [1, 0], 1)),
    "transposed, groups": ((2, 6, 7), (6, 2, 3), ([3], [1], [1], True, [0], 3)),
    "ordinary": ((2, 6, 5, 7), (4, 6, 3, 2), ([2, 1], [1, 1], [1, 2], False, [0, 0], 1)),
    "ordinary, groups": ((1, 6, 4, 5), (9, 2, 2, 3), ([1] * 2, [1, 0], [1] * 2, False, [0] * 2, 3)),
    "3d": ((1, 4, 4, 5, 3), (3, 4, 2, 3, 1), ([1, 2, 1], [1, 0, 0], [1] * 3, False, [0] * 3, 1)),
    "depthwise": ((2, 6, 9), (6, 1, 3), ([1], [1], [1], False, [0], 6)),
}  # fmt: skip


def operands(case, dtype=torch.float64, graded=True):
    x, weight, how = CASES[case]
    outputs = weight[1] * how[5] if how[3] else weight[0]
    tensors = [torch.randn(shape, dtype=dtype) for shape in (x, weight, (outputs,))]
    return [each.requires_grad_(graded) for each in tensors], how


@pytest.mark.parametrize("case", CASES)
class TestEveryCase:
    def test_the_result_is_pytorchs(self, case) -> None:
        (x, w, b), how = operands(case, torch.float32, graded=False)
        expected = torch.convolution(x, w, b, *how)
        assert close(OPS.convolution(x, w, b, *how), expected)
        for _ in range(3):  # the second call packs, the third finds what was packed
            assert close(
                OPS.fused_convolution(x, w, None, *how), torch.convolution(x, w, None, *how)
            )

    def test_what_follows_is_fused(self, case) -> None:
        (x, w, b), how = operands(case, torch.float32, graded=False)
        y = torch.convolution(x, w, b, *how)
        residual = torch.randn_like(y)
        fused = OPS.fused_convolution(x, w, b, *how, residual, "leaky_relu:0.3")
        assert close(fused, FUNCTIONAL.leaky_relu(y + residual, 0.3))
        for name in ("relu", "relu6", "tanh", "sigmoid", "silu", "gelu", "hard_swish"):
            function = getattr(FUNCTIONAL, {"hard_swish": "hardswish"}.get(name, name))
            assert close(OPS.fused_convolution(x, w, b, *how, None, name), function(y))
        assert close(compute.activated(y, "leaky_relu:0.3"), FUNCTIONAL.leaky_relu(y, 0.3))

    def test_derivatives_of_both_orders_are_right(self, case) -> None:
        tensors, how = operands(case)
        assert gradcheck(lambda *each: OPS.convolution(*each, *how), tensors)
        assert gradgradcheck(lambda *each: OPS.convolution(*each, *how), tensors, fast_mode=True)

    @pytest.mark.parametrize("ours", range(8))
    def test_each_result_may_be_pytorchs(self, case, ours) -> None:
        tensors, how = operands(case)
        y = torch.convolution(*tensors, *how)
        g = torch.randn_like(y)
        expected = torch.autograd.grad(y, tensors, g)
        made = torch.autograd.grad(OPS.convolution(*tensors, *how, ours), tensors, g)
        assert all(close(one, other, 1e-12) for one, other in zip(made, expected, strict=True))

    def test_opcheck_has_no_complaint(self, case) -> None:
        tensors, how = operands(case)
        x, w, b = tensors
        g = torch.randn_like(torch.convolution(x, w, b, *how)).requires_grad_()
        plain = [each.detach() for each in tensors]
        told = {
            OPS.convolution: (x, w, b),
            OPS.convolution_input_grad: (g, w, list(x.shape[2:])),
            OPS.convolution_weight_grad: (g, x, list(w.shape[2:])),
            OPS.fused_convolution: plain,
        }
        # Tracing for autograd takes seconds, and asks nothing of the geometry.
        traced = {} if case == "transposed" else {"test_utils": ("test_schema", "test_faketensor")}
        for operator, given in told.items():
            torch.library.opcheck(operator.default, (*given, *how), **traced)

    def test_channels_last_in_channels_last_out(self, case) -> None:
        (x, w, b), how = operands(case, torch.float32)
        if x.dim() == 3:  # PyTorch has no such format for one spatial axis
            return
        form = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
        x = x.detach().to(memory_format=form).requires_grad_()
        expected = torch.convolution(x, w, b, *how)
        y = OPS.convolution(x, w, b, *how)
        assert close(y, expected)
        assert y.is_contiguous(memory_format=form)
        g = torch.randn_like(y)
        made, told = (torch.autograd.grad(each, (x, w, b), g) for each in (y, expected))
        assert all(close(one, other, 1e-4) for one, other in zip(made, told, strict=True))

    def test_strided_operands_are_taken_as_they_are(self, case) -> None:
        (x, w, b), how = operands(case, torch.float32, graded=False)
        strided = torch.stack([x, x], -1)[..., 0]
        assert close(OPS.convolution(strided, w, b, *how), torch.convolution(x, w, b, *how))

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_sixteen_bits(self, case, dtype) -> None:
        (x, w, b), how = operands(case, torch.float32, graded=False)
        low = [each.to(dtype) for each in (x, w, b)]
        expected = torch.convolution(*(each.float() for each in low), *how)
        assert close(OPS.convolution(*low, *how).float(), expected, 0.02)

    def test_other_devices_run_pytorchs_operator(self, case) -> None:
        tensors, how = operands(case)
        y = torch.convolution(*tensors, *how)
        meta = [each.detach().to("meta").requires_grad_() for each in tensors]
        made = OPS.convolution(*meta, *how)
        assert made.shape == y.shape
        made.sum().backward()
        assert [each.grad.shape for each in meta] == [each.shape for each in tensors]
        fused = OPS.fused_convolution(
            *(each.detach() for each in meta), *how, made.detach(), "relu"
        )
        assert fused.device.type == "meta"


@pytest.mark.filterwarnings("ignore:Using padding")
@pytest.mark.parametrize(
    "name", [f"conv{kind}{n}d" for kind in ("", "_transpose") for n in (1, 2, 3)]
)
def test_samples_of_pytorchs_own_tests(name) -> None:
    """OpInfo's: unbatched, padded by words, grouped, empty, strided."""
    pytest.importorskip("expecttest", reason="PyTorch's own tests need it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    (info,) = [each for each in op_db if each.name == f"nn.functional.{name}"]
    function = ut.conv_transpose if "transpose" in name else ut.conv
    count = 0
    for dtype in (torch.float32, torch.float64):
        for sample in info.sample_inputs("cpu", dtype, requires_grad=False):
            expected = info.op(sample.input, *sample.args, **sample.kwargs)
            made = function(sample.input, *sample.args, **sample.kwargs)
            assert made.dtype is expected.dtype
            assert close(made, expected), sample
            count += 1
    assert count >= 10


def test_errors_are_pytorchs_own() -> None:
    x, w = torch.zeros(1, 3, 5), torch.zeros(4, 2, 3)
    with pytest.raises(RuntimeError, match="expected input"):
        ut.conv(x, w)
    with pytest.raises(RuntimeError, match="expected input"):
        ut.conv_transpose(x, w)
    with pytest.raises(RuntimeError):
        ut.conv(x.long(), w)
    with pytest.raises(RuntimeError, match="output padding must be smaller"):
        ut.conv_transpose(x, torch.zeros(3, 2, 3), output_padding=4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.complex64, torch.int64])
def test_a_bias_of_another_dtype_is_pytorchs_to_refuse(dtype) -> None:
    x, w, b = torch.ones(1, 2, 5), torch.ones(3, 2, 3), torch.ones(3, dtype=dtype)
    with pytest.raises(RuntimeError, match=r"Input type .* and bias type"):
        ut.conv(x, w, b)
    if dtype.is_complex:
        with pytest.raises(RuntimeError, match="can't be cast"):
            ut.conv_transpose(x, w.transpose(0, 1), b)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel:UserWarning")
def test_words_of_padding_are_pytorchs() -> None:
    x, w = torch.randn(1, 2, 7), torch.randn(3, 2, 3)
    for padding in ("same", "valid"):
        for kernel in (w, w[..., :2]):
            expected = FUNCTIONAL.conv1d(x, kernel, padding=padding)
            assert close(ut.conv(x, kernel, padding=padding), expected)
    assert close(
        ut.conv(x, w, stride=2, padding="valid"), FUNCTIONAL.conv1d(x, w, None, 2, "valid")
    )
    for stride in (2, (2,), [2]):
        with pytest.raises(RuntimeError, match="not supported for strided"):
            ut.conv(x, w, stride=stride, padding="same")
    with pytest.raises(RuntimeError, match="Invalid padding string"):
        ut.conv(x, w, padding="full")
    with pytest.raises(TypeError, match="conv_transpose1d"):
        ut.conv_transpose(x, w.transpose(0, 1), padding="same")


def test_weights_that_say_no_rank_are_refused() -> None:
    x = torch.randn(1, 2, 7)
    for function in (ut.conv, ut.conv_transpose):
        with pytest.raises(
            DTypeError, match=r"weight is of type NoneType; expected a torch\.Tensor"
        ):
            function(x, None)
        with pytest.raises(ShapeError, match="weight is of 2 axes; expected 3, 4 or 5 axes"):
            function(x, torch.ones(2, 2))
        with pytest.raises(TypeError, match="conv"):
            function(None, torch.ones(2, 2, 3))


def test_complex_and_integer_tensors_are_pytorchs() -> None:
    x, w = torch.randn(1, 2, 5, dtype=torch.complex64), torch.randn(2, 2, 3, dtype=torch.complex64)
    made, expected = ut.conv(x, w), FUNCTIONAL.conv1d(x, w)
    assert torch.equal(torch.view_as_real(made), torch.view_as_real(expected))
    counts, ones = torch.arange(5).reshape(1, 1, 5), torch.ones(1, 1, 2, dtype=torch.int64)
    assert torch.equal(ut.conv(counts, ones), FUNCTIONAL.conv1d(counts, ones))


def test_negated_and_freed_tensors() -> None:
    x, w = torch.randn(1, 2, 5, dtype=torch.complex64), torch.randn(2, 3, 2)
    negated = x.conj().imag
    assert negated.is_neg()
    assert close(ut.conv_transpose(negated, w), FUNCTIONAL.conv_transpose1d(negated.clone(), w))
    freed = torch.zeros(1, 2, 5)
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError):
        ut.conv_transpose(freed, w)


def test_weights_that_are_not_finite_are_pytorchs() -> None:
    x, w = torch.randn(1, 2, 5), torch.randn(2, 3, 2)
    w[0, 0, 0] = float("inf")
    for _ in range(3):
        made, expected = ut.conv_transpose(x, w), FUNCTIONAL.conv_transpose1d(x, w)
        assert torch.equal(made.isfinite(), expected.isfinite())


def test_autocast_computes_in_the_lower_precision() -> None:
    x, w, b = torch.randn(2, 3, 8), torch.randn(3, 4, 4), torch.randn(4)
    with torch.autocast("cpu", torch.bfloat16):
        for graded in (False, True):
            made = ut.conv_transpose(x, w.requires_grad_(graded), b, stride=2)
            expected = FUNCTIONAL.conv_transpose1d(x, w, b, stride=2)
            assert made.dtype is expected.dtype is torch.bfloat16
            assert close(made.float(), expected.float(), 0.02)
        doubles = [each.detach().double() for each in (x, w, b)]
        assert ut.conv_transpose(*doubles).dtype is torch.float64


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_transforms_of_torch_func_and_forward_mode() -> None:
    x, w = torch.randn(3, 2, 5, dtype=torch.float64), torch.randn(2, 3, 2, dtype=torch.float64)

    def ours(w):
        return ut.conv_transpose(x, w, stride=2).sin().sum()

    def pytorchs(w):
        return FUNCTIONAL.conv_transpose1d(x, w, stride=2).sin().sum()

    for transform in (torch.func.grad, torch.func.hessian, torch.func.jacfwd):
        assert close(transform(ours)(w), transform(pytorchs)(w), 1e-12)
    mapped = torch.vmap(lambda x: ut.conv(x, w.transpose(0, 1)))(x.unsqueeze(1))
    assert close(mapped[:, 0], FUNCTIONAL.conv1d(x, w.transpose(0, 1)), 1e-12)


def test_the_profiler_shows_them() -> None:
    layer = ut.ConvTranspose2d(3, 4, 2).eval()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        with torch.no_grad():
            layer(torch.zeros(1, 3, 4, 4))
        layer(torch.zeros(1, 3, 4, 4)).sum().backward()
    names = {event.key for event in seen.key_averages()}
    expected = {
        "upconv::fused_convolution",
        "upconv::convolution",
        "upconv::convolution_weight_grad",
    }
    assert expected <= names


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (1, 1, 4, 1), (2, 1, 1, 5, 1), (2, 0, 3, 5), (2, 3, 0, 5)]
)
def test_strides_of_results_are_known_without_a_tensor(shape, last) -> None:
    made = tensors.new_result(shape, torch.empty(0), last)
    assert tensors.dense_strides(shape, last) == made.stride()
