"""Formats of results and gradients, and calls of the operators' far corners, as PyTorch has them.

python -m pytest tests/test_torch_formats.py
"""

from __future__ import annotations

import copy
import itertools

import pytest

torch = pytest.importorskip("torch", reason="the face for PyTorch needs PyTorch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import upconv.torch  # noqa: E402
from upconv.errors import UpconvError  # noqa: E402

OPERATORS = torch.ops.upconv
SHAPES = [
    ((3, 6, 6), (6, 4, 2), 1),
    ((3, 6, 6), (6, 3, 2), 2),
    ((6, 6), (6, 3, 2), 1),
    ((3, 1, 6), (1, 3, 2), 1),
    ((3, 6, 1), (6, 1, 3), 1),
    ((0, 6, 6), (6, 4, 2), 1),
    ((2, 6, 6, 5), (6, 4, 2, 3), 1),
    ((2, 6, 6, 5), (6, 3, 2, 3), 2),
    ((6, 6, 5), (6, 4, 2, 3), 1),
    ((0, 6, 6, 5), (6, 4, 2, 3), 1),
    ((2, 1, 6, 5), (1, 4, 3, 3), 1),
    ((2, 6, 1, 1), (6, 4, 3, 3), 1),
    ((2, 6, 3, 4, 5), (6, 4, 2, 2, 2), 1),
    ((0, 6, 3, 4, 5), (6, 4, 2, 2, 2), 1),
]


def last(tensor, rank: int):
    """The same values with the channels' stride the smallest."""
    axis = tensor.dim() - rank - 1
    return tensor.movedim(axis, -1).contiguous().movedim(-1, axis)


def differentiated(module, x, w, groups: int, g_last: bool):
    """The strides of y, dx and dw."""
    rank = w.dim() - 2
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = getattr(module, f"conv_transpose{rank}d")(x, w, stride=2, groups=groups)
    g = torch.ones(y.shape)
    found = torch.autograd.grad(y, (x, w), last(g, rank) if g_last else g)
    return [each.stride() for each in (y, *found)], [y.detach(), *found]


@pytest.mark.parametrize(("x_shape", "w_shape", "groups"), SHAPES)
def test_results_and_gradients_have_the_format_that_pytorch_gives(x_shape, w_shape, groups) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(x_shape), torch.randn(w_shape)
    rank = w.dim() - 2
    for x_last, w_last, g_last in itertools.product((False, True), repeat=3):
        given = last(x, rank) if x_last else x, last(w, rank) if w_last else w
        strides, got = differentiated(upconv.torch, *given, groups, g_last)
        wanted_strides, wanted = differentiated(F, *given, groups, g_last)
        assert strides == wanted_strides, (x_last, w_last, g_last)
        for mine, theirs in zip(got, wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_module_packs_a_channels_last_weight_of_one_axis() -> None:
    torch.manual_seed(0)
    theirs = nn.ConvTranspose1d(6, 4, 2, stride=2).eval()
    theirs.weight = nn.Parameter(last(theirs.weight.detach(), 1))
    mine, x = upconv.torch.from_torch(theirs), torch.randn(3, 6, 6)
    with torch.no_grad():
        for _ in range(2):
            assert mine(x).stride() == theirs(x).stride() == (48, 1, 4)
            torch.testing.assert_close(mine(x), theirs(x), rtol=1e-5, atol=1e-5)


HOW = ([2, 1], [1, 0], [1, 0], [1, 2], 2)
CASES = [("conv_transpose_input_grad", (4, 3, 3, 3), [3, 5])]
CASES += [("conv_transpose_weight_grad", (2, 4, 3, 5), [3, 3])]


@pytest.mark.parametrize("form", [False, True])
@pytest.mark.parametrize(("name", "shape", "extra"), CASES)
def test_opcheck_of_gradients_in_a_format(name, shape, extra, form) -> None:
    torch.manual_seed(0)
    operands = (torch.randn(2, 6, 6, 9).double(), torch.randn(shape).double())
    for each in operands:
        each.requires_grad_()
    op = getattr(OPERATORS, name).default
    results = torch.library.opcheck(op, (*operands, extra, *HOW, form))
    assert set(results.values()) == {"SUCCESS"}
    assert op(*operands, extra, *HOW, form).is_contiguous() is not form


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("how", [([1], [0], [0], [1], 1), ([], [], [], [], 1)])
@pytest.mark.parametrize("name", ["", "_input_grad", "_weight_grad"])
def test_operators_refuse_operands_of_too_few_axes_in_words(name, how, device) -> None:
    op = getattr(OPERATORS, f"conv_transpose{name}")
    full = torch.randn(2, 3, 5, device=device), torch.randn(3, 4, 3, device=device)
    for shape, extra in itertools.product([(), (2,), (2, 3), (2, 3, 4, 5)], ([], [3])):
        few = torch.randn(shape, device=device)
        for operands in ((few, full[1]), (full[0], few)):
            with pytest.raises(UpconvError):
                op(*operands, extra if name else None, *how)


@pytest.mark.parametrize("extra", [1, 3])
@pytest.mark.parametrize("padding", [0, 3])
def test_an_empty_batch_has_any_output_padding(extra, padding) -> None:
    x, w = torch.randn(0, 3, 5, 5), torch.randn(3, 4, 3, 3)
    how = {"output_padding": extra, "padding": padding}
    wanted = F.conv_transpose2d(x, w, **how)
    got = upconv.torch.conv_transpose2d(x, w, **how)
    assert got.shape == wanted.shape
    assert got.stride() == wanted.stride()
    with pytest.raises(RuntimeError):
        upconv.torch.conv_transpose2d(torch.randn(1, 3, 5, 5), w, **how)


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_opcheck_of_a_layer_with_a_normalisation(rank: int, batch: int) -> None:
    """Its fake kernel tells the strides that the real one gives."""
    x, weight = torch.randn(batch, 6, *[4] * rank), torch.randn(6, 4, *[2] * rank)
    moved = weight.movedim(1, -1).contiguous().movedim(-1, 1)
    numbers = (torch.randn(4), torch.rand(4) + 1, None, None, 1e-5)
    ones = [1] * rank
    how = [2] * rank, [0] * rank, [0] * rank, ones, 1
    for each in (weight, moved):
        torch.library.opcheck(
            torch.ops.upconv.conv_transpose_norm.default,
            (x, each, None, *numbers, *how, None, "relu"),
            test_utils=("test_schema", "test_faketensor"),
        )


DEPTHS = [(1, 1, 4), (2, 2, 4), (4, 4, 4), (4, 4, 8), (4, 2, 4), (8, 1, 4)]


@pytest.mark.parametrize(("channels", "groups", "filters"), DEPTHS)
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_a_folded_weight_has_the_format_of_its_own(channels, groups, filters, kernel) -> None:
    """Where an axis has one entry, formats are told by strides alone."""
    torch.manual_seed(0)
    layer = nn.ConvTranspose2d(channels, filters, kernel, 2, groups=groups)
    plain = nn.Sequential(layer, nn.BatchNorm2d(filters), nn.ReLU()).eval()
    plain.to(memory_format=torch.channels_last)
    fused = upconv.torch.accelerate(copy.deepcopy(plain))
    operands = torch.randn(2, channels, 5, 4), layer.weight.detach(), None
    numbers = torch.randn(filters), torch.rand(filters) + 1, None, None, 1e-5
    how = [2, 2], [0, 0], [0, 0], [1, 1], groups
    torch.library.opcheck(
        OPERATORS.conv_transpose_norm.default,
        (*operands, *numbers, *how, None, "relu"),
        test_utils=("test_schema", "test_faketensor"),
    )
    for size in (5, 2):
        x = torch.randn(2, channels, size, size)
        with torch.no_grad():
            for given in (x, x.to(memory_format=torch.channels_last)):
                mine, theirs = fused(given), plain(given)
                assert mine.stride() == theirs.stride()
                torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_what_compilers_are_told_of_a_folded_weight_is_so() -> None:
    torch.manual_seed(0)
    layers = nn.ConvTranspose2d(1, 4, 3, 2), nn.BatchNorm2d(4), nn.ReLU()

    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Sequential(*layers)

        def forward(self, x):
            y = self.up(x)
            return y.permute(0, 2, 3, 1).view(len(x), -1, 4)

    plain = Viewed().eval().to(memory_format=torch.channels_last)
    compiled = torch.compile(
        upconv.torch.accelerate(copy.deepcopy(plain)), backend="aot_eager", fullgraph=True
    )
    x = torch.randn(2, 1, 5, 5)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), plain(x), rtol=1e-4, atol=1e-5)


class Sum(nn.Module):
    """A residual on either side of the sum."""

    def __init__(self, left: bool) -> None:
        super().__init__()
        self.up, self.left = nn.ConvTranspose2d(8, 8, 2, 2), left

    def forward(self, x, r):
        if self.left:
            return torch.relu(r + self.up(x))
        return torch.relu(self.up(x) + r)


@pytest.mark.usefixtures("upconv_is_faster")
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_sum_has_the_format_of_what_stands_first(batch: int, left: bool) -> None:
    torch.manual_seed(0)
    plain = Sum(left).eval()
    x, r = torch.randn(batch, 8, 8, 8), torch.randn(batch, 8, 16, 16)
    wide = torch.randn(batch, 16, 16, 16)
    others = r, last(r, 2), wide[:, :8], r[:1].expand(batch, -1, -1, -1), r.transpose(2, 3)
    fused = upconv.torch.accelerate(copy.deepcopy(plain), (x, r))
    assert "residual" in upconv.torch.acceleration_report(fused).layers[0].before
    for given, added in itertools.product((x, last(x, 2)), others):
        exported = torch.export.export(plain, (given, added))
        rewritten = upconv.torch.rewrite(exported).module()
        with torch.no_grad():
            wanted = plain(given, added)
            for model in (fused, rewritten):
                got = model(given, added)
                assert got.stride() == wanted.stride()
                torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("upconv_is_faster")
def test_a_residual_that_is_spread_over_the_result_is_added_as_pytorch_does() -> None:
    torch.manual_seed(0)
    plain = Sum(False).eval()
    x = torch.randn(2, 8, 8, 8)
    fused = upconv.torch.accelerate(copy.deepcopy(plain), (x, torch.randn(2, 8, 16, 16)))
    shapes = (1, 8, 16, 16), (8, 1, 1), (16,), (), (2, 8, 1, 16), (3, 2, 8, 16, 16)
    with torch.no_grad():
        for r in map(torch.randn, shapes):
            torch.testing.assert_close(fused(x, r), plain(x, r), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("wrong", range(6))
def test_operands_that_do_not_fit_a_normalisation_are_refused_in_words(wrong, device) -> None:
    op = OPERATORS.conv_transpose_norm.default
    shapes = [(2, 6, 5, 5), (6, 2, 3, 3), (4,), (4,), (4,), (4,)]
    assert op(*normalised(shapes, device)).shape == (2, 4, 7, 7)
    shapes[wrong] = (2, 7, 5, 5) if not wrong else (7, 2, 3, 3) if wrong == 1 else (9,)
    with pytest.raises(UpconvError):
        op(*normalised(shapes, device))


def normalised(shapes, device):
    x, weight, mean, var, gamma, beta = (torch.ones(shape, device=device) for shape in shapes)
    how = [1, 1], [0, 0], [0, 0], [1, 1], 2
    return x, weight, None, mean, var, gamma, beta, 1e-5, *how
