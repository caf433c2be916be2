"""Parts whose operations move axes: (N, *size, C) for linear layers, and vectors of channels."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

import upconv.torch  # noqa: E402
from tests.support.small_models import Of, close  # noqa: E402
from tests.torch.test_parts import handed, remaining  # noqa: E402
from upconv.torch import partition  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.skipif(torch.__version__ < "2.6", reason="older PyTorch captures modules whole"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning"),
]


def convnext(m, x):
    """A depthwise convolution, and linear layers over the last axis."""
    y = m.norm(m.depthwise(x).permute(0, 2, 3, 1))
    y = m.scale * m.narrow(F.gelu(m.wide(y)))
    return m.up(x + y.permute(0, 3, 1, 2))


def excited(m, x):
    """Squeeze and excitation: a factor per channel from fully connected layers."""
    y = m.conv(x)
    s = F.adaptive_avg_pool2d(y, 1).flatten(1)
    s = torch.sigmoid(m.up(F.relu(m.down(s))))
    return y * s.view(-1, 8, 1, 1)


def gated(m, x):
    """Gated linear units over channels, in both orders of axes."""
    y = F.glu(m.one(x).permute(0, 2, 3, 1), -1).chunk(2, -1)[1]
    return m.two(y.permute(0, 3, 1, 2))


def recurrent(m, x):
    """An LSTM, which stays with PyTorch, between two parts."""
    y, _ = m.lstm(F.relu(m.one(x.flatten(2))).permute(2, 0, 1))
    return m.two(m.linear(y).permute(1, 2, 0))


def tokens(m, x):
    """(N, T, C) from an operation that no network knows, transposed for a convolution."""
    return m.conv(F.gelu(torch.fft.fft(x.flatten(2).transpose(1, 2)).real).transpose(1, 2))


def permuted(m, x):
    """A result whose axes are in another order."""
    y = m.conv(x)
    return y, m.norm(y.permute(0, 2, 3, 1))


CONVNEXT = Of(
    convnext, depthwise=nn.Conv2d(8, 8, 7, padding=3, groups=8), norm=nn.LayerNorm(8),
    wide=nn.Linear(8, 24), narrow=nn.Linear(24, 8), scale=nn.Parameter(torch.rand(8)),
    up=nn.ConvTranspose2d(8, 3, 2, 2),
)  # fmt: skip
WHOLE = {
    "convnext": CONVNEXT,
    "excited": Of(excited, conv=nn.Conv2d(8, 8, 3), down=nn.Linear(8, 2), up=nn.Linear(2, 8)),
    "gated": Of(gated, one=nn.Conv2d(8, 12, 1), two=nn.ConvTranspose2d(3, 4, 2, 2)),
}
PERMUTED = Of(permuted, conv=nn.Conv2d(8, 4, 3), norm=nn.LayerNorm(4))
RECURRENT = Of(
    recurrent, one=nn.Conv1d(8, 6, 3), lstm=nn.LSTM(6, 6), linear=nn.Linear(6, 4),
    two=nn.ConvTranspose1d(4, 2, 4, 2),
)  # fmt: skip
DIVIDED = {
    "recurrent": (RECURRENT, 2),
    "tokens": (Of(tokens, conv=nn.Conv1d(8, 4, 3)), 1),
    "permuted": (PERMUTED, 1),
}
"""name -> (model, number of parts)."""


@pytest.mark.parametrize(
    ("how", "dynamic"), [("export", False), ("export", True), ("dynamo", False)]
)
@pytest.mark.parametrize("name", WHOLE)
def test_one_part_computes_the_model(name, dynamic, how) -> None:
    model, x = WHOLE[name].eval(), torch.randn(2, 8, 6, 9)
    call, made, left = handed(model, x, how, dynamic)
    assert ([part.layers for part in made], left) == ([model_layers(model)], {})
    if how == "export":
        assert remaining(call) == []
    with torch.no_grad():
        for shape in ((2, 8, 6, 9), (3, 8, 7, 5)) if dynamic else ((2, 8, 6, 9),):
            x = torch.randn(shape)
            assert close(call(x), model(x))
    assert made[0].reason == ""


def model_layers(model) -> int:
    kind = nn.modules.conv._ConvNd
    return sum(isinstance(module, kind) for module in model.modules())


@pytest.mark.parametrize("how", ["export", "dynamo"])
@pytest.mark.parametrize("name", DIVIDED)
def test_parts_end_where_axes_are_in_another_order(name, how) -> None:
    if (name, how) == ("recurrent", "dynamo"):
        pytest.skip("Dynamo captures no LSTM")
    model, count = DIVIDED[name]
    x = torch.randn(2, 8, 6, 9)
    call, made, _ = handed(model, x, how)
    assert len(made) == count
    assert sum(part.layers for part in made) == model_layers(model)
    with torch.no_grad():
        pairs = zip(tree_leaves(call(x)), tree_leaves(model(x)), strict=True)
    assert all(close(one, other) for one, other in pairs)


def test_many_such_ends_leave_every_move_to_pytorch(monkeypatch) -> None:
    monkeypatch.setattr(partition, "_MAX_CHOICES", 0)
    model, x = PERMUTED, torch.randn(2, 8, 6, 9)
    call, made, left = handed(model, x)
    assert [part.operations for part in made] == [("conv2d",)]
    assert len(left) == 2
    with torch.no_grad():
        assert all(map(close, call(x), model(x)))


def test_bfloat16() -> None:
    model, x = copy.deepcopy(CONVNEXT).bfloat16(), torch.randn(2, 8, 6, 9).bfloat16()
    call, made, left = handed(model, x)
    assert (len(made), left) == (1, {})
    with torch.no_grad():
        result, expected = call(x), model.float()(x.float())
    assert result.dtype is torch.bfloat16
    assert close(result.float(), expected, 0.05)


def with_conv(function, **layers):
    """A function of a module with a convolution of 4 channels."""
    return Of(function, conv=nn.Conv2d(4, 4, 3, padding=1), **layers)


def attention(m, x):
    q, k, v = m.linear(m.conv(x).permute(0, 2, 3, 1)).chunk(3, -1)
    return torch.softmax(q @ k.transpose(2, 3), -1) @ v


def crossing(m, x):
    """A permuted value that a part without a convolution gives to one with a convolution."""
    pooled = F.max_pool2d(x, 2).permute(0, 2, 3, 1)
    y = m.conv(torch.fft.fft(pooled).real.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    return (m.linear(pooled) + y).permute(0, 3, 1, 2)


def pooled(m, x):
    return F.adaptive_avg_pool2d(m.conv(x), 1).flatten(1)


UNUSUAL = {
    "attention": with_conv(attention, linear=nn.Linear(4, 12)),
    "crossing": with_conv(crossing, linear=nn.Linear(4, 4)),
    "weight of the input": with_conv(lambda m, x: F.linear(pooled(m, x), pooled(m, x))),
    "norm of the input": with_conv(
        lambda m, x: m.conv(
            F.layer_norm(m.conv(x).permute(0, 2, 3, 1), (4,), pooled(m, x)[0]).permute(0, 3, 1, 2)
        )
    ),
    "norm of positions": with_conv(lambda m, x: F.layer_norm(m.conv(x).transpose(1, 3), (6, 4))),
    "norm of sizes alike": with_conv(lambda m, x: F.layer_norm(m.conv(x), (6, 6))),
    "gate of positions": with_conv(lambda m, x: F.glu(m.conv(x), 2)),
    "vector": with_conv(lambda m, x: m.conv(x) * pooled(m, x)[0].t().view(1, 4, 1, 1)),
    "expanded": with_conv(
        lambda m, x: m.conv(m.conv(x) * pooled(m, x)[..., None, None].expand_as(x))
    ),
    "many positions": with_conv(
        lambda m, x: m.linear(m.conv(x).reshape(2, -1)), linear=nn.Linear(144, 3)
    ),
    "view": with_conv(
        lambda m, x: m.linear(m.line(x[:, :, 0]).transpose(1, 2)).mT.transpose(1, 2).view(12, 4),
        linear=nn.Linear(4, 4), line=nn.Conv1d(4, 4, 1),
    ),
    "order": with_conv(
        lambda m, x: m.conv(x).permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3).transpose(
            1, 2).view(12, 4, 6),
    ),
    "named cat": with_conv(lambda m, x: torch.cat(tensors=[m.conv(x), x], dim=1)),
    "named split": with_conv(
        lambda m, x: torch.split(m.conv(x), split_size_or_sections=2, dim=1)[1]
    ),
    "named chunk": with_conv(lambda m, x: m.conv(x).chunk(chunks=2, dim=1)[0]),
}  # fmt: skip


@pytest.mark.parametrize("how", ["export", "dynamo"])
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_uses_of_axes(name, how) -> None:
    """Each part's network accepts its calls, and the values are PyTorch's."""
    model, x = UNUSUAL[name].eval(), torch.randn(2, 4, 6, 6)
    call, made, left = handed(model, x, how)
    with torch.no_grad():
        assert close(call(x), model(x))
    assert [part.reason for part in made] == [""] * len(made)
    assert sum(part.layers for part in made) >= 1
    if name.startswith("named"):
        assert left == {}


@pytest.mark.usefixtures("upconv_is_faster")
@pytest.mark.parametrize("name", UNUSUAL)
def test_unusual_uses_of_axes_in_an_accelerated_model(name) -> None:
    model = UNUSUAL[name].eval()
    with torch.no_grad():
        expected = model(x := torch.randn(2, 4, 6, 6))
        assert close(upconv.torch.accelerate(copy.deepcopy(model), x)(x), expected)


def test_a_size_that_a_layer_refuses_is_left_to_the_model(upconv_is_faster) -> None:
    """Its trace with open sizes meets a reshape that has no meaning for them."""
    model = with_conv(
        lambda m, x: m.linear(m.conv(x).reshape(1, 144)), linear=nn.Linear(144, 3)
    ).eval()
    fast = upconv.torch.accelerate(copy.deepcopy(model), torch.randn(1, 4, 6, 6))
    with torch.no_grad():
        for size in ((4, 9), (9, 4), (6, 6)):
            x = torch.randn(1, 4, *size)
            assert close(fast(x), model(x))


def test_a_transposed_input_that_a_convolution_reads_does_not_lose_it() -> None:
    model = with_conv(
        lambda m, x: F.relu(m.conv(m.norm(x).transpose(1, 2))), norm=nn.BatchNorm2d(4)
    ).eval()
    call, made, _ = handed(model, x := torch.randn(2, 4, 4, 6))
    assert [part.operations for part in made] == [("conv2d", "relu")]
    with torch.no_grad():
        assert close(call(x), model(x))


def test_a_long_head_does_not_divide_the_model() -> None:
    head = nn.Sequential(*[nn.Linear(4, 4) for _ in range(12)])
    model = with_conv(lambda m, x: m.head(pooled(m, x)), head=head).eval()
    call, made, left = handed(model, x := torch.randn(2, 4, 6, 6))
    assert len(made) == 1
    assert "too many" not in " ".join(left.values())
    with torch.no_grad():
        assert close(call(x), model(x))


def test_a_part_needs_a_convolution() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm(6)).eval()
    _, made, _ = handed(model, torch.randn(2, 3, 6))
    assert made == []
