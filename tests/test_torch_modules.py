"""ConvTranspose1d/2d/3d for PyTorch: parameters, packed weights and when they are packed anew.

python -m pytest tests/test_torch_modules.py
"""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
import threading
import weakref

import pytest

torch = pytest.importorskip("torch", reason="the face for PyTorch needs PyTorch")
from torch import nn  # noqa: E402

import upconv.torch  # noqa: E402
from processes import environment  # noqa: E402
from upconv.torch import packing  # noqa: E402

KINDS = {
    rank: (getattr(upconv.torch, name), getattr(nn, name))
    for rank, name in enumerate(("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"), 1)
}


def pair(rank: int = 2, *, bias: bool = True):
    """A layer of ours and PyTorch's with the same parameters, and an input."""
    torch.manual_seed(rank)
    ours, theirs = KINDS[rank]
    kwargs = {"stride": 2, "padding": 1, "output_padding": 1, "groups": 2, "bias": bias}
    original = theirs(4, 6, 3, **kwargs).eval()
    layer = ours(4, 6, 3, **kwargs).eval()
    assert layer.load_state_dict(original.state_dict()) is not None
    return layer, original, torch.randn(2, 4, *range(5, 5 + rank))


def assert_same(layer, original, x) -> None:
    with torch.no_grad():
        torch.testing.assert_close(layer(x), original(x), rtol=1e-5, atol=1e-5)


@pytest.fixture
def packs(monkeypatch: pytest.MonkeyPatch) -> list:
    """The weights that were packed, in order."""
    found = []
    pack = packing.packed

    def counted(primitive, weight):
        found.append(weight)
        return pack(primitive, weight)

    monkeypatch.setattr(packing, "packed", counted)
    return found


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_a_module_is_pytorchs_in_everything_but_speed(rank: int, bias: bool) -> None:
    layer, original, x = pair(rank, bias=bias)
    assert isinstance(layer, type(original))
    assert list(layer.state_dict()) == list(original.state_dict())
    assert repr(layer) == repr(original)
    for mode in (True, False):
        assert_same(layer.train(mode), original, x)
        assert_same(layer, original, x[0])
    y = layer.train()(x)
    for mine, yours in zip(
        torch.autograd.grad(y.square().sum(), layer.parameters()),
        torch.autograd.grad(original(x).square().sum(), original.parameters()),
        strict=True,
    ):
        torch.testing.assert_close(mine, yours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_output_size_chooses_the_output_padding(rank: int) -> None:
    layer, original, x = pair(rank)
    for extra in (0, 1):
        size = [2 * n - 1 + extra for n in x.shape[2:]]
        for asked in (size, [2, 6, *size]):
            with torch.no_grad():
                torch.testing.assert_close(layer(x, asked), original(x, asked))
    with pytest.raises(ValueError, match="valid sizes range"):
        layer(x, [100] * rank)
    with pytest.raises(ValueError, match="output_size must have"):
        layer(x, [9] * (rank + 1))


def test_weights_are_packed_once_in_eval_mode_and_every_time_in_training(packs: list) -> None:
    layer, _, x = pair()
    with torch.no_grad():
        for _ in range(5):
            layer(x)
        assert len(packs) == 1
        layer.train()
        for _ in range(5):
            layer(x)
    assert len(packs) == 6


def test_autograd_and_graphs_use_what_is_packed(packs: list) -> None:
    layer, original, x = pair()
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        layer(x)
    y = layer(x)
    y.sum().backward()
    with torch.no_grad():
        compiled(x)
    assert len(packs) == 1
    original(x).sum().backward()
    torch.testing.assert_close(layer.weight.grad, original.weight.grad)
    torch._dynamo.reset()


def test_each_shape_is_prepared_and_only_so_many_are_kept(packs: list) -> None:
    layer, original, _ = pair()
    inputs = [torch.randn(1, 4, 5, size) for size in range(3, 3 + packing.MOST + 2)]
    for x in inputs:
        assert_same(layer, original, x)
        assert_same(layer, original, x)
    assert len(packs) == len(inputs)
    assert len(packing._kept[id(layer.weight)].calls) == packing.MOST


def test_strides_of_the_input_do_not_pack_again(packs: list) -> None:
    layer, original, x = pair()
    for form in (x, x.transpose(2, 3).contiguous().transpose(2, 3), torch.cat((x, x), 3)[..., :6]):
        assert_same(layer, original, form)
    assert len(packs) == 1
    last = x.to(memory_format=torch.channels_last)
    assert_same(layer, original, last)
    assert layer(last).is_contiguous(memory_format=torch.channels_last)


def test_what_is_packed_goes_with_its_weight() -> None:
    layer, _, x = pair()
    with torch.no_grad():
        layer(x)
    number, gone = id(layer.weight), weakref.ref(layer.weight)
    assert number in packing._kept
    del layer
    gc.collect()
    assert gone() is None
    assert number not in packing._kept


def swap(layer, weight) -> None:
    layer.weight.data = weight


def averaged(layer) -> None:
    """An exponential moving average over parameters, as trainers write it."""
    for p in layer.parameters():
        p.data.mul_(0.5).add_(torch.ones_like(p), alpha=0.5)


def stepped(layer) -> None:
    optimiser = torch.optim.SGD(layer.parameters(), 0.1)
    with torch.enable_grad():
        layer.weight.square().sum().backward()
    optimiser.step()


def swapped_twice(layer) -> None:
    """The second new memory may lie where the first lay."""
    for _ in range(2):
        swap(layer, layer.weight.data * 2)
        gc.collect()


CHANGES = {
    "in-place": lambda layer: layer.weight.mul_(2),
    "in-place, one element": lambda layer: layer.weight[0, 0, 0, 0].add_(1),
    "in inference mode": lambda layer: torch.inference_mode()(lambda: layer.weight.mul_(2))(),
    "copy_": lambda layer: layer.weight.copy_(torch.ones_like(layer.weight)),
    "load_state_dict": lambda layer: layer.load_state_dict(pair()[0].double().state_dict()
                                                           | {"weight": torch.ones(4, 3, 3, 3)}),
    "optimiser": stepped,
    "a moving average": averaged,
    "data swapped": lambda layer: swap(layer, torch.ones_like(layer.weight)),
    "data swapped twice": swapped_twice,
    "data transposed": lambda layer: swap(layer, layer.weight.data.transpose(2, 3)),
    "data written": lambda layer: layer.weight.data.copy_(torch.ones_like(layer.weight)),
    "NumPy": lambda layer: layer.weight.detach().numpy().__imul__(2),
    "another parameter": lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight * 2)),
    "bias in-place": lambda layer: layer.bias.add_(1),
    "bias data written": lambda layer: layer.bias.data.add_(1),
    "bias data swapped": lambda layer: setattr(layer.bias, "data", torch.ones(6)),
    "another bias": lambda layer: setattr(layer, "bias", nn.Parameter(torch.ones(6))),
    "no bias": lambda layer: setattr(layer, "bias", None),
    "another stride": lambda layer: setattr(layer, "stride", (3, 3)),
    "vector_to_parameters": lambda layer: nn.utils.vector_to_parameters(
        torch.ones(4 * 3 * 9 + 6), layer.parameters()),
}  # fmt: skip
NOT_OF_WEIGHTS = ("bias", "another", "no bias")


def changed(name: str):
    layer, _, x = pair()
    with torch.no_grad():
        before = layer(x)
        CHANGES[name](layer)
        after = layer(x)
    original = nn.ConvTranspose2d(4, 6, 3, layer.stride, 1, 1, 2, bias=layer.bias is not None)
    with torch.no_grad():
        original.weight.copy_(layer.weight)
        if layer.bias is not None:
            original.bias.copy_(layer.bias)
        wanted = original(x)
    return before, after, wanted


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_change_of_parameters_goes_unseen(name: str) -> None:
    before, after, wanted = changed(name)
    assert before.shape != wanted.shape or not torch.allclose(before, wanted)
    torch.testing.assert_close(after, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in CHANGES if not name.startswith(NOT_OF_WEIGHTS)])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_test_above_sees_stale_weights(monkeypatch, name: str) -> None:
    """Planted: a weight that is never looked at again."""
    monkeypatch.setattr(packing.Kept, "still", packing.Kept.belongs)
    _, after, wanted = changed(name)
    assert not torch.allclose(after, wanted)


def test_a_write_that_pytorch_does_not_count_can_be_told() -> None:
    layer = upconv.torch.ConvTranspose1d(64, 64, 8).eval()
    x = torch.randn(1, 64, 9)
    with torch.no_grad():
        before = layer(x)
        layer.weight.data[0, 1, 3] += 1  # not one of the 64 that are looked at
        upconv.torch.forget(layer.weight)
        after = layer(x)
        wanted = nn.functional.conv_transpose1d(x, layer.weight, layer.bias)
    assert not torch.allclose(before, wanted, atol=1e-3)
    torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-4)


def test_training_never_uses_a_packed_weight() -> None:
    """Not even after a write to one element behind PyTorch's back."""
    layer = upconv.torch.ConvTranspose1d(64, 64, 8).eval()
    x = torch.randn(1, 64, 9)
    with torch.no_grad():
        layer(x)
        layer.train()
        layer.weight.data[0, 1, 3] += 1
        torch.testing.assert_close(
            layer(x), nn.functional.conv_transpose1d(x, layer.weight, layer.bias),
            rtol=1e-4, atol=1e-4,
        )  # fmt: skip


def test_weights_made_in_inference_mode_are_right_though_never_kept(packs: list) -> None:
    with torch.inference_mode():
        layer, original, x = pair()
        for _ in range(2):
            torch.testing.assert_close(layer(x), original(x))
            layer.weight.mul_(2)
            original.weight.mul_(2)
    assert len(packs) == 2


def test_functional_call_uses_the_weights_it_is_given() -> None:
    layer, original, x = pair()
    assert_same(layer, original, x)
    weights = {"weight": layer.weight.detach() * 2, "bias": layer.bias.detach() + 1}
    with torch.no_grad():
        got = torch.func.functional_call(layer, weights, (x,))
        torch.testing.assert_close(got, torch.func.functional_call(original, weights, (x,)))
    assert_same(layer, original, x)


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "torch.save"])
def test_copies_compute_the_same_and_keep_nothing_packed(way: str) -> None:
    layer, original, x = pair()
    assert_same(layer, original, x)
    if way == "torch.save":
        file = io.BytesIO()
        torch.save(layer, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
    else:
        again = copy.deepcopy(layer) if way == "deepcopy" else pickle.loads(pickle.dumps(layer))
    assert id(again.weight) not in packing._kept
    assert_same(again, original, x)
    with torch.no_grad():
        again.weight.zero_()
    assert_same(layer, original, x)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_from_torch_shares_parameters(rank: int) -> None:
    _, original, x = pair(rank)
    original.register_forward_hook(lambda module, args, y: y + 1)
    layer = upconv.torch.from_torch(original)
    assert type(layer) is KINDS[rank][0]
    assert layer.weight is original.weight
    assert not layer.training
    assert_same(layer, original, x)
    layer.train()
    assert not original.training
    layer.weight = nn.Parameter(torch.zeros_like(layer.weight))
    assert original.weight.any()
    assert upconv.torch.from_torch(layer) is layer


@pytest.mark.parametrize(
    "norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm,
             nn.utils.weight_norm, nn.utils.spectral_norm],
    ids=["weight_norm", "spectral_norm", "old weight_norm", "old spectral_norm"],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_from_torch_keeps_parametrizations(norm) -> None:
    torch.manual_seed(0)
    original = norm(nn.ConvTranspose2d(4, 6, 3, stride=2)).eval()
    layer = upconv.torch.from_torch(original)
    assert isinstance(layer, upconv.torch.ConvTranspose2d)
    assert list(layer.state_dict()) == list(original.state_dict())
    x = torch.randn(1, 4, 5, 6)
    assert_same(layer, original, x)
    with torch.no_grad():
        for p in original.parameters():
            p.mul_(1.5)
    assert_same(layer, original, x)
    assert_same(copy.deepcopy(layer), original, x)
    layer.train()(x).sum().backward()
    assert all(p.grad is not None for p in original.parameters())


def test_from_torch_refuses_what_is_something_else() -> None:
    class Mine(nn.ConvTranspose2d):
        pass

    for module in (nn.Conv2d(1, 1, 1), Mine(1, 1, 1), "layer", None):
        with pytest.raises(upconv.torch.TensorTypeError, match="ConvTranspose3d"):
            upconv.torch.from_torch(module)


def test_many_threads_may_call_one_module() -> None:
    layer, original, _ = pair()
    inputs = [torch.randn(1 + i % 3, 4, 5, 6) for i in range(12)]
    with torch.no_grad():
        wanted = [original(x) for x in inputs]
    wrong, start = [], threading.Barrier(6)

    def work(first: int) -> None:
        start.wait()
        with torch.no_grad():
            for turn in range(30):
                i = (first + turn) % len(inputs)
                if not torch.allclose(layer(inputs[i]), wanted[i], atol=1e-5):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


WORKERS = """
import torch, upconv.torch
from torch.utils.data import DataLoader, Dataset

class Upsampled(Dataset):
    def __init__(self, layer, inputs):
        self.layer, self.inputs = layer, inputs
    def __len__(self):
        return len(self.inputs)
    def __getitem__(self, i):
        with torch.no_grad():
            return self.layer(self.inputs[i])

original = torch.nn.ConvTranspose1d(16, 8, 4, 2).eval()
layer = upconv.torch.from_torch(original)
inputs = [torch.randn(4, 16, 17 + i % 2) for i in range(8)]
with torch.no_grad():
    layer(inputs[0])  # the parent's pool of threads and packed weight exist before the fork
    wanted = [original(x) for x in inputs]
loader = DataLoader(Upsampled(layer, inputs), batch_size=None, num_workers=2,
                    multiprocessing_context="fork", timeout=60)
for got, expected in zip(loader, wanted, strict=True):
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
with torch.no_grad():
    torch.testing.assert_close(layer(inputs[0]), wanted[0], rtol=1e-5, atol=1e-5)
print("fine")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_workers_of_a_data_loader_may_use_a_module_that_the_parent_used() -> None:
    """In a process of its own: other tests' libraries may mind forks."""
    command = [sys.executable, "-c", WORKERS]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=180, check=False
    )
    assert done.stdout == "fine\n", done.stderr[-2000:]


@pytest.mark.parametrize("converted", [False, True])
def test_a_parametrization_removed_of_one_layer_stays_of_the_other(converted: bool) -> None:
    """`converted`: of the layer from `from_torch`, else of PyTorch's."""
    torch.manual_seed(0)
    original = nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(4, 6, 3))
    layer, x = upconv.torch.from_torch(original), torch.randn(2, 4, 5, 5)
    wanted = original(x).detach()
    plain, other = (layer, original) if converted else (original, layer)
    nn.utils.parametrize.remove_parametrizations(plain, "weight")
    assert isinstance(plain.weight, nn.Parameter)
    for each in (plain, other):
        torch.testing.assert_close(each(x), wanted, rtol=1e-5, atol=1e-5)
    other.parametrizations.weight.original0.data.mul_(2)
    other.bias.data.zero_()
    scaled = nn.functional.conv_transpose2d(x, 2 * plain.weight)
    torch.testing.assert_close(other(x), scaled, rtol=1e-4, atol=1e-5)
