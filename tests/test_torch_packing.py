"""What is packed of a weight: how long it is kept, and what threads see of it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import upconv.torch  # noqa: E402
from upconv.torch import packing  # noqa: E402


def used() -> upconv.torch.ConvTranspose2d:
    """A layer after a call in eval mode."""
    torch.manual_seed(0)
    layer = upconv.torch.ConvTranspose2d(4, 6, 3, stride=2, groups=2).eval()
    with torch.no_grad():
        layer(torch.randn(2, 4, 5, 6))
    return layer


def test_a_bias_is_its_own_though_another_thread_uses_the_weight_with_another() -> None:
    layer = used()
    one, other = torch.arange(6.0), torch.arange(6.0) + 10

    class Interrupted:
        """A tensor whose reader loses its turn to another thread while it asks."""

        def is_contiguous(self) -> bool:
            found.view(other)
            return one.is_contiguous()

        def __getattr__(self, name: str):
            return getattr(one, name)

    found = packing.kept(layer.weight)
    with torch.no_grad():
        found.view(one)
        assert found.view(Interrupted()).tolist() == one.tolist()


def test_calls_may_be_looked_through_while_another_thread_prepares_one() -> None:
    layer = used()
    found = packing.kept(layer.weight)
    (made,) = found.calls.values()
    for number, seen in enumerate(found.calls.values()):
        found.keep(number, seen)
    assert list(found.calls)[1:] == [0]
    for number in range(packing.MOST + 2):
        found.keep(number, made)
    assert list(found.calls) == list(range(2, packing.MOST + 2))
