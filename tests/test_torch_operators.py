"""PyTorch's own sample inputs for conv_transpose1d/2d/3d: values, derivatives, registrations.

python -m pytest tests/test_torch_operators.py
"""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="the face for PyTorch needs PyTorch")
pytest.importorskip("expecttest", reason="PyTorch's own test cases need expecttest")

import upconv.torch  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db

NAMES = [f"conv_transpose{rank}d" for rank in (1, 2, 3)]
INFOS = {op.name.rpartition(".")[2]: op for op in op_db if op.name.rpartition(".")[2] in NAMES}
SAMPLES = [(name, i) for name in NAMES for i in range(12 if name == NAMES[1] else 10)]
# conv_transpose_backward's second derivatives are linear in each operand, so exact up to rounding.
CHECK = {"check_batched_grad": True, "fast_mode": True}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


def sample(name: str, number: int, dtype: torch.dtype, requires_grad: bool = False):
    torch.manual_seed(number)
    found = list(INFOS[name].sample_inputs("cpu", dtype, requires_grad))
    assert len(found) == sum(each == name for each, _ in SAMPLES)
    return found[number]


def function(name: str):
    return getattr(upconv.torch, name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_forward_is_pytorchs(name: str, number: int, dtype: torch.dtype) -> None:
    case = sample(name, number, dtype)
    got = function(name)(case.input, *case.args, **case.kwargs)
    # PyTorch's own sums of 16-bit numbers are rounded more often: float64 is the judge.
    wide = [None if arg is None else arg.double() for arg in (case.input, *case.args)]
    wanted = getattr(torch.nn.functional, name)(*wide, **case.kwargs)
    assert got.dtype is dtype
    assert got.stride() == wanted.stride()
    assert bool(((got.double() - wanted).abs() <= bound(name, wide, case.kwargs, dtype)).all())


def bound(name: str, operands: list, kwargs: dict, dtype: torch.dtype):
    """Sums of n products err by at most n roundings of their magnitudes, and one of the result."""
    magnitudes = [None if each is None else each.abs() for each in operands]
    total = getattr(torch.nn.functional, name)(*magnitudes, **kwargs)
    terms = operands[1][:, 0].numel()
    summed = torch.finfo(torch.float64 if dtype is torch.float64 else torch.float32).eps
    return total * (terms * summed + torch.finfo(dtype).eps)


# PyTorch's reference refuses dilation beyond the stride with that much output padding, as its own
# list of expected failures says.
BROKEN = [(name, i) for name in NAMES[1:] for i in (2, 3)]
REFERRED = [
    pytest.param(
        *each,
        marks=pytest.mark.xfail(
            each in BROKEN,
            raises=RuntimeError,
            reason="the reference fails: https://github.com/pytorch/pytorch/issues/86356",
        ),
    )
    for each in SAMPLES
]


@pytest.mark.parametrize(("name", "number"), REFERRED)
def test_forward_is_the_reference_value(name: str, number: int) -> None:
    """PyTorch's reference for the operator: the input gradient of a convolution."""
    case = sample(name, number, torch.float64)
    arrays = [None if arg is None else arg.numpy() for arg in (case.input, *case.args)]
    kwargs = dict(case.kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = INFOS[name].ref(*arrays, **kwargs)
    got = function(name)(case.input, *case.args, **case.kwargs)
    torch.testing.assert_close(got, torch.as_tensor(wanted), rtol=1e-12, atol=1e-10)


@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_strided_operands_make_no_difference(name: str, number: int) -> None:
    case = sample(name, number, torch.float64)
    spread = case.noncontiguous()
    got = function(name)(spread.input, *spread.args, **spread.kwargs)
    torch.testing.assert_close(got, function(name)(case.input, *case.args, **case.kwargs))


def differentiable(name: str, number: int):
    case = sample(name, number, torch.float64, requires_grad=True)
    operands = [each for each in (case.input, *case.args) if each is not None]

    def call(*tensors):
        rest = () if len(tensors) == 3 else (None,)
        return function(name)(*tensors, *rest, **case.kwargs)

    return call, operands


@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_gradcheck(name: str, number: int) -> None:
    call, operands = differentiable(name, number)
    assert torch.autograd.gradcheck(
        call, operands, check_forward_ad=True, check_batched_forward_grad=True, **CHECK
    )


@pytest.mark.parametrize(("name", "number"), SAMPLES)
def test_gradgradcheck(name: str, number: int) -> None:
    call, operands = differentiable(name, number)
    assert torch.autograd.gradgradcheck(call, operands, check_fwd_over_rev=True, **CHECK)


OPERATORS = torch.ops.upconv
HOW = ([2, 1], [1, 0], [1, 0], [1, 2], 2)
SHAPES = {"g": (2, 6, 6, 9), "x": (2, 4, 3, 5), "w": (4, 3, 3, 3)}


def operand(role: str, *, last: bool = False, graded: bool = True):
    torch.manual_seed(ord(role))
    made = torch.randn(SHAPES[role], dtype=torch.float64)
    made = made.to(memory_format=torch.channels_last) if last else made
    return made.requires_grad_(graded)


@pytest.mark.parametrize("graded", [False, True])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("name", "roles", "extra"),
    [
        ("conv_transpose", "xw", None),
        ("conv_transpose", "xw", torch.arange(6.0, dtype=torch.float64)),
        ("conv_transpose_input_grad", "gw", [3, 5]),
        ("conv_transpose_weight_grad", "gx", [3, 3]),
    ],
)
def test_opcheck(name: str, roles: str, extra, last: bool, graded: bool) -> None:
    operands = [operand(role, last=last, graded=graded) for role in roles]
    op = getattr(OPERATORS, name).default
    results = torch.library.opcheck(op, (*operands, extra, *HOW))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("graded", [False, True])
def test_opcheck_of_a_call_with_all_there_is(graded: bool) -> None:
    more = (torch.arange(6.0, dtype=torch.float64), *HOW, operand("g"), "leaky_relu:0.2", True)
    operands = operand("x", graded=graded), operand("w", graded=graded)
    results = torch.library.opcheck(OPERATORS.conv_transpose.default, (*operands, *more))
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("activation", ["", "relu", "leaky_relu:0.2", "tanh", "sigmoid", "silu"])
def test_what_is_fused_is_what_follows(activation: str) -> None:
    """With a derivative the ends are PyTorch's own operators, without one they are fused."""
    tensors = operand("x"), operand("w"), torch.arange(6.0, dtype=torch.float64), operand("g")
    x, w, b, residual = tensors
    with torch.no_grad():
        fused = OPERATORS.conv_transpose(x, w, b, *HOW, residual, activation)
    unfused = OPERATORS.conv_transpose(x, w, b, *HOW, residual, activation)
    assert unfused.requires_grad
    torch.testing.assert_close(fused, unfused.detach(), rtol=1e-6, atol=1e-6)
    plain = OPERATORS.conv_transpose(x, w, b, *HOW)
    assert activation in ("", "x") or not torch.allclose(fused, plain + residual)


@pytest.mark.parametrize("roles", ["xw", "gw", "gx"])
def test_the_three_operators_are_one_form(roles: str) -> None:
    """t(g, x, w) is one number, whichever operand is made from the others."""
    g, x, w = (operand(role, graded=False) for role in "gxw")
    made = {
        "xw": lambda: (OPERATORS.conv_transpose(x, w, None, *HOW) * g).sum(),
        "gw": lambda: (OPERATORS.conv_transpose_input_grad(g, w, [3, 5], *HOW) * x).sum(),
        "gx": lambda: (OPERATORS.conv_transpose_weight_grad(g, x, [3, 3], *HOW) * w).sum(),
    }
    wanted = torch.nn.functional.conv_transpose2d(x, w, None, *HOW[:3], HOW[4], HOW[3])
    torch.testing.assert_close(made[roles](), (wanted * g).sum())
