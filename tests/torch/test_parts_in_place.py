"""Values that graphs of PyTorch write in place, where parts are networks."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from tests.support.small_models import Of, close  # noqa: E402
from tests.torch import test_parts  # noqa: E402

pytestmark = test_parts.pytestmark


def _view_is_written(m, x):
    y = m.one(x)
    y[:, :2].mul_(3.0)
    return m.two(y)


def _input_is_written(m, x):
    x = x.clone()
    y = m.one(x)
    x.add_(1.0)
    return m.two(x) + y


def _buffer_is_written(m, x):
    y = m.one(x) * m.count
    m.count.add_(1.0)
    return m.two(y) * m.count


def _read_before_and_after(m, x):
    y = m.one(x)
    z = torch.tanh(y)
    y.relu_()
    return m.two(z) + y


def _items_are_set(m, x):
    y = m.one(x)
    y[:, 1:3, 2] = 0.5
    return m.two(y)


@pytest.mark.parametrize("how", ["export", "dynamo"])
@pytest.mark.parametrize(
    "function",
    [_view_is_written, _input_is_written, _buffer_is_written, _read_before_and_after,
     _items_are_set],
)  # fmt: skip
def test_values_written_in_place_are_pytorchs(function, how) -> None:
    layers = {name: nn.Conv1d(4, 4, 3, padding=1) for name in ("one", "two")}
    model, x = Of(function, **layers, count=torch.ones(4, 1)).eval(), torch.randn(2, 4, 9)
    call, _, _ = test_parts.handed(model, x, how)
    with torch.no_grad():
        for _ in range(2):
            model.count.fill_(2.0)
            expected = model(x.clone())
            model.count.fill_(2.0)
            assert close(call(x.clone()), expected)


@pytest.mark.parametrize("how", ["export", "dynamo"])
def test_an_activation_in_place_behind_a_dropout_joins_its_part(how) -> None:
    """MONAI's blocks: what the dropout gives in eval mode is the memory of its operand."""
    model = nn.Sequential(
        nn.Conv1d(4, 4, 3), nn.InstanceNorm1d(4), nn.Dropout(0.1, True), nn.LeakyReLU(inplace=True),
        nn.Conv1d(4, 2, 3),
    ).eval()  # fmt: skip
    x = torch.randn(2, 4, 9)
    call, made, _ = test_parts.handed(model, x, how)
    with torch.no_grad():
        assert len(made) == 1
        assert close(call(x), model(x))
