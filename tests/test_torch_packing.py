"""What is packed of a weight: how long it is kept, and what threads see of it."""

from __future__ import annotations

import copy
import gc
import io
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import upconv.torch  # noqa: E402
from upconv.torch import packing  # noqa: E402
from upconv.torch.fused_weights import Folded, Normalization, Source, folded  # noqa: E402


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


def wanted(layer, x) -> torch.Tensor:
    return functional.conv_transpose2d(x, layer.weight, layer.bias, layer.stride, groups=2)


def test_weights_may_be_swapped_and_swapped_back() -> None:
    layer, x = used(), torch.randn(2, 4, 5, 6)
    other = nn.Parameter(torch.randn_like(layer.weight))
    with torch.no_grad():
        for turn in range(4):
            torch.utils.swap_tensors(layer.weight, other)
            torch.testing.assert_close(layer(x), wanted(layer, x))
            if turn % 2:
                other.mul_(2)
                layer.weight.data.mul_(3)
                torch.testing.assert_close(layer(x), wanted(layer, x))


def test_swapped_weights_that_both_were_packed_are_not_confused() -> None:
    one, other, x = used(), used(), torch.randn(2, 4, 5, 6)
    with torch.no_grad():
        other.weight.mul_(2)
        assert not torch.equal(one(x), other(x))
        for _ in range(3):
            torch.utils.swap_tensors(one.weight, other.weight)
            for layer in (one, other):
                torch.testing.assert_close(layer(x), wanted(layer, x))
    numbers = id(one.weight), id(other.weight)
    del one, other, layer
    gc.collect()
    assert not packing._kept.keys() & set(numbers)


@pytest.fixture
def _conversions_swap():
    torch.__future__.set_swap_module_params_on_conversion(True)
    yield
    torch.__future__.set_swap_module_params_on_conversion(False)


@pytest.mark.usefixtures("_conversions_swap")
def test_modules_whose_conversions_swap_are_followed() -> None:
    layer, x = used(), torch.randn(2, 4, 5, 6)
    with torch.no_grad():
        layer.load_state_dict({name: t * 2 for name, t in layer.state_dict().items()})
        torch.testing.assert_close(layer(x), wanted(layer, x))
        layer.double()
        torch.testing.assert_close(layer(x.double()), wanted(layer, x.double()))


def test_what_is_packed_goes_at_once_with_its_weight() -> None:
    layer = used()
    number = id(layer.weight)
    assert number in packing._kept
    gc.disable()
    try:
        del layer.weight
        assert number not in packing._kept
    finally:
        gc.enable()


@pytest.mark.parametrize("weights_only", [True, False])
def test_used_parameters_are_saved_and_loaded_as_any_others(weights_only) -> None:
    layer, x = used(), torch.randn(2, 4, 5, 6)
    file = io.BytesIO()
    torch.save(layer.state_dict(keep_vars=True), file)
    file.seek(0)
    again = torch.load(file, weights_only=weights_only)
    assert torch.equal(again["weight"], layer.weight)
    other = used()
    other.weight = again["weight"]
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(other(x), wanted(other, x))
            other.weight.mul_(2)
        twin = copy.copy(other.weight)  # has the other's attributes, and its memory
        other.weight = twin
        twin.data = twin.data * 5
        torch.testing.assert_close(other(x), wanted(other, x))


def fold(weight: torch.Tensor, norm: Normalization) -> Folded:
    made = folded(Source((weight,)), None, norm, 1)
    factor = norm.gamma / torch.sqrt(norm.var + norm.eps)
    torch.testing.assert_close(made.weight, weight * factor[:, None])
    torch.testing.assert_close(made.bias, norm.beta - norm.mean * factor)
    assert folded(Source((weight,)), None, norm, 1) is made
    return made


def normalization() -> Normalization:
    return Normalization(*torch.rand(4, 3).add(0.5).unbind(), 1e-3)


@pytest.mark.parametrize("replaced", range(4))
def test_what_was_folded_goes_when_tensors_of_the_normalisation_are_replaced(replaced) -> None:
    torch.manual_seed(0)
    weight, norm = torch.randn(2, 3, 4), normalization()
    made = []
    for _ in range(12):
        norm = Normalization(*(each.clone() if i == replaced else each
                               for i, each in enumerate(norm[:4])), norm.eps)  # fmt: skip
        made.append(weakref.ref(fold(weight, norm).weight))
        gc.collect()
        assert [number for number, ref in enumerate(made) if ref() is not None] == [len(made) - 1]


def test_of_many_normalisations_of_one_weight_the_newest_are_kept() -> None:
    torch.manual_seed(0)
    weight, norms = torch.randn(2, 3, 4), [normalization() for _ in range(3 * packing.MOST)]
    made = [weakref.ref(fold(weight, norm).weight) for norm in norms]
    gc.collect()
    living = [ref() is not None for ref in made]
    assert living == [False] * 2 * packing.MOST + [True] * packing.MOST


def test_what_was_folded_goes_with_its_weight() -> None:
    torch.manual_seed(0)
    weight, norm = torch.randn(2, 3, 4), normalization()
    made = weakref.ref(fold(weight, norm).weight)
    assert made() is not None
    gc.disable()
    try:
        del weight
        assert made() is None
    finally:
        gc.enable()


def test_a_replaced_bias_does_not_make_a_normalised_weight_anew() -> None:
    torch.manual_seed(0)
    parts = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    source, made = Source(parts, lambda: parts[0] * parts[1]), []
    for _ in range(3):
        bias = torch.randn(3)
        weight, used_bias = folded(source, bias, None, 1)
        assert used_bias is bias
        made.append(weight)
    assert made[0] is made[1] is made[2]
    parts[1].mul_(2)
    torch.testing.assert_close(folded(source, None, None, 1).weight, made[0] * 2)


def large() -> upconv.torch.ConvTranspose2d:
    """A used layer of which few elements are looked at."""
    torch.manual_seed(1)
    layer = upconv.torch.ConvTranspose2d(24, 32, 3, stride=2, groups=2).eval()
    assert layer.weight.numel() > packing._WHOLE
    with torch.no_grad():
        layer(torch.randn(2, 24, 5, 6))
    return layer


def unseen(layer) -> tuple[int, ...]:
    """The place of an element that is not looked at, of a contiguous weight."""
    weight = layer.weight
    seen = set(packing._places(tuple(weight.shape), weight.stride()).tolist())
    first = next(i for i in range(weight.numel()) if i not in seen)
    return tuple(int(i) for i in np.unravel_index(first, weight.shape))


def test_one_element_of_a_large_weight_is_followed_by_the_version() -> None:
    layer, x = large(), torch.randn(2, 24, 5, 6)
    place = unseen(layer)
    with torch.no_grad():
        layer.weight[place].add_(5)
        torch.testing.assert_close(layer(x), wanted(layer, x))


def test_one_element_in_memory_that_processes_share_is_followed_without() -> None:
    layer, x = large(), torch.randn(2, 24, 5, 6)
    place = unseen(layer)
    layer.share_memory()
    with torch.no_grad():
        layer(x)
        # What another process has: the same memory, and versions of its own.
        other = torch.empty(0).set_(layer.weight.untyped_storage(), 0, layer.weight.shape)
        before = layer.weight._version
        other[place].add_(5)
        assert layer.weight._version == before
        torch.testing.assert_close(layer(x), wanted(layer, x))


def test_a_packed_call_runs_on_as_many_threads_as_are_asked_for_now() -> None:
    before = torch.get_num_threads()
    layer, x = large(), torch.randn(2, 24, 5, 6)
    try:
        with torch.no_grad():
            for count in (2, 1, 2):
                torch.set_num_threads(count)
                torch.testing.assert_close(layer(x), wanted(layer, x))
    finally:
        torch.set_num_threads(before)
    calls = packing.kept(layer.weight).calls.values()
    assert sorted(made.threads for made in calls) == [1, 2]


def test_autocast_packs_a_weight_once() -> None:
    layer, x = large(), torch.randn(2, 24, 5, 6)
    packed, pack = [], packing.packed
    packing.packed = lambda *arguments: packed.append(arguments) or pack(*arguments)
    try:
        with torch.no_grad(), torch.autocast("cpu"):
            for _ in range(3):
                y = layer(x)
            assert len(packed) == 1
            torch.testing.assert_close(y, wanted(layer, x), rtol=2e-2, atol=2e-2)
            layer.weight[unseen(layer)].add_(50)
            y = layer(x)
            assert len(packed) == 2
        with torch.no_grad():  # within, PyTorch's own cache of casts does not see the change
            torch.testing.assert_close(y.float(), wanted(layer, x), rtol=2e-2, atol=0.2)
        with torch.autocast("cpu"):
            layer(x).float().sum().backward()
        assert layer.weight.grad.abs().sum() > 0
    finally:
        packing.packed = pack


def test_what_is_folded_follows_eps() -> None:
    torch.manual_seed(2)
    weight, norm = torch.randn(2, 3, 4), normalization()
    one = fold(weight, norm).weight
    assert not torch.equal(one, fold(weight, norm._replace(eps=0.5)).weight)
    assert torch.equal(one, fold(weight, norm).weight)
