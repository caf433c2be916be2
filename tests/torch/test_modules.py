"""The modules: PyTorch's, with weights packed once, whatever happens to them."""

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import upconv.torch as ut  # noqa: E402
from tests.support.processes import printed  # noqa: E402
from tests.support.small_models import close  # noqa: E402
from upconv.torch import packing  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

LAYERS = {
    "Conv1d": ((3, 4, 3), {"padding": 1, "dilation": 2}, (2, 3, 9)),
    "Conv2d": ((4, 6, (3, 2)), {"stride": 2, "groups": 2}, (2, 4, 7, 6)),
    "Conv3d": ((2, 3, 3), {"padding": "same", "bias": False}, (1, 2, 4, 5, 3)),
    "ConvTranspose1d": ((3, 4, 4), {"stride": 2, "padding": 1}, (2, 3, 9)),
    "ConvTranspose2d": ((4, 6, (3, 2)), {"stride": 2, "groups": 2}, (2, 4, 5, 4)),
    "ConvTranspose3d": ((2, 3, 2), {"stride": 2, "bias": False}, (1, 2, 4, 5, 3)),
}


def twins(name: str, **more):
    arguments, keywords, shape = LAYERS[name]
    ours = getattr(ut, name)(*arguments, **keywords, **more).eval()
    theirs = getattr(nn, name)(*arguments, **keywords, **more).eval()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs, torch.randn(shape)


@pytest.mark.parametrize("name", LAYERS)
class TestEveryModule:
    def test_is_pytorchs(self, name) -> None:
        ours, theirs, x = twins(name)
        assert isinstance(ours, type(theirs))
        assert repr(ours) == repr(theirs)
        with torch.no_grad():
            assert close(ours(x), theirs(x))
            assert close(ours(x[0]), theirs(x[0]))  # without a batch axis
        g = torch.randn_like(theirs(x))
        for layer in (ours, theirs):
            layer.train()(x.requires_grad_()).backward(g)
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert close(one.grad, other.grad, 1e-4)

    def test_packs_once_for_five_shapes_in_rotation(self, name) -> None:
        ours, theirs, x = twins(name)
        inputs = [torch.randn(*x.shape[:-1], x.shape[-1] + i) for i in range(5)]
        with torch.no_grad():
            for each in inputs:
                ours(each)
            before = packing.counts()
            for each in inputs * 3:
                assert close(ours(each), theirs(each))
        assert packing.counts() == before

    def test_survives_pickle_deepcopy_and_load(self, name) -> None:
        ours, _, x = twins(name)
        with torch.no_grad():
            expected = ours(x)
            file = io.BytesIO()
            torch.save(ours, file)
            file.seek(0)
            copies = [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
            copies.append(torch.load(file, weights_only=False))
            for each in copies:
                assert torch.equal(each(x), expected)
                each.weight.add_(1)
                assert not torch.equal(each(x), expected)
            assert torch.equal(ours(x), expected)

    def test_moves_to_other_dtypes_and_devices(self, name) -> None:
        ours, theirs, x = twins(name)
        with torch.no_grad():
            ours(x)
            assert close(ours.double()(x.double()), theirs.double()(x.double()), 1e-12)
            assert ours.to("meta")(x.double().to("meta")).shape == theirs(x.double()).shape


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_no_tensor_is_refused_by_pytorch(name) -> None:
    ours, theirs, _ = twins(name)
    for wrong in (None, 3.0, "x", [1.0]):
        messages = []
        for each in (ours, theirs):
            with pytest.raises(TypeError) as caught:
                each(wrong)
            messages.append(str(caught.value).split("(")[0])
        assert messages[0] == messages[1]


def by_optimiser(layer, new) -> None:
    layer.weight.grad = new
    torch.optim.SGD([layer.weight], 0.5).step()


WAYS = {
    "in place": lambda layer, new: layer.weight.copy_(new),
    "data": lambda layer, new: layer.weight.data.copy_(new),
    "new data": lambda layer, new: setattr(layer.weight, "data", new),
    "numpy": lambda layer, new: np.copyto(layer.weight.detach().numpy(), new.numpy()),
    "load_state_dict": lambda layer, new: layer.load_state_dict(
        {**layer.state_dict(), "weight": new}
    ),
    "swap_tensors": lambda layer, new: torch.utils.swap_tensors(layer.weight, nn.Parameter(new)),
    "parameter": lambda layer, new: setattr(layer, "weight", nn.Parameter(new)),
    "optimiser": by_optimiser,
}
# Those that PyTorch allows in inference mode.
INFERRED = ("data", "numpy", "parameter")
CHANGES = [(how, kind) for how in WAYS for kind in ("plain", "shared")]


@pytest.mark.parametrize(("how", "kind"), CHANGES + [(how, "inference") for how in INFERRED])
def test_changes_of_a_weight_are_seen_and_packed_once(how, kind) -> None:
    if kind == "inference":
        with torch.inference_mode():
            layer, theirs, x = twins("ConvTranspose2d")
    else:
        layer, theirs, x = twins("ConvTranspose2d")
    if kind == "shared":
        layer.share_memory()
    with torch.inference_mode(kind == "inference"), torch.no_grad():
        layer(x)
        WAYS[how](layer, torch.randn_like(layer.weight))
        theirs.weight.data = layer.weight.detach().clone()
        assert close(layer(x), theirs(x))
        before = packing.counts()
        for _ in range(3):
            assert close(layer(x), theirs(x))
        assert packing.counts() == before


def test_packed_weights_end_with_their_module() -> None:
    packing.forget()
    layer, _, x = twins("Conv2d")
    with torch.no_grad():
        layer(x)
    pointer = layer.weight.data_ptr()
    assert packing._by_address[pointer].calls
    layer.train()
    assert pointer not in packing._by_address
    with torch.no_grad():
        layer.eval()(x)
    assert pointer in packing._by_address
    del layer
    assert pointer not in packing._by_address


def test_packed_weights_of_bare_tensors_are_bounded(monkeypatch) -> None:
    packing.forget()
    monkeypatch.setattr(packing, "_MAX_BYTES", 1000)
    x = torch.randn(1, 2, 5)
    weights = [torch.randn(2, 3, 4) for _ in range(20)]  # 96 bytes each
    with torch.no_grad():
        for weight in weights * 2:
            ut.conv_transpose(x, weight)
        assert len(packing._latest) < 20
        shapes = [torch.randn(1, 2, 5 + i) for i in range(100)]
        for each in shapes:
            ut.conv_transpose(each, weights[0])
        packed = packing.look_up(weights[0])
        assert packed.held <= 1000 + 96
        assert len(packed.calls) <= 64
    packing.forget()
    assert not packing._latest


def test_output_size_is_pytorchs() -> None:
    ours, theirs, x = twins("ConvTranspose2d")
    for size in ([12, 9], (2, 6, 11, 8)):
        assert close(ours(x, output_size=size), theirs(x, output_size=size))
    for each in (ours, theirs):
        with pytest.raises(ValueError, match="requested an output size"):
            each(x, output_size=[30, 9])


@pytest.mark.parametrize("mode", ["reflect", "circular", "replicate"])
def test_padding_modes_are_pytorchs(mode) -> None:
    layer = ut.Conv2d(3, 4, 3, padding=1, padding_mode=mode)
    theirs = nn.Conv2d(3, 4, 3, padding=1, padding_mode=mode)
    theirs.load_state_dict(layer.state_dict())
    x = torch.randn(2, 3, 6, 5)
    assert close(layer(x), theirs(x))


def test_checkpointing_and_parametrizations() -> None:
    layer, theirs, x = twins("Conv1d")
    x.requires_grad_()
    y = checkpoint(layer.train(), x, use_reentrant=False)
    y.sum().backward()
    theirs(x.detach()).sum().backward()
    assert close(layer.weight.grad, theirs.weight.grad, 1e-4)
    for each in (layer, theirs):
        nn.utils.parametrizations.weight_norm(each)
    assert close(layer(x), theirs(x))


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_scripting_is_refused_and_tracing_works() -> None:
    layer, _, x = twins("Conv1d")
    with torch.no_grad():
        traced = torch.jit.trace(layer, x)
        assert torch.equal(traced(x), layer(x))
    with pytest.raises(RuntimeError, match=r"torch\.jit\.script cannot compile modules"):
        torch.jit.script(layer)


_DDP = """
import os, sys
import torch, upconv.torch as ut
from torch import nn
rank, store = int(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
torch.manual_seed(0)
layers = [nn.ConvTranspose2d(3, 4, 4, 2, 1), nn.ReLU(), nn.Conv2d(4, 2, 3)]
plain, model = nn.Sequential(*layers), nn.Sequential(*map(__import__("copy").deepcopy, layers))
model[0].__class__, model[2].__class__ = ut.ConvTranspose2d, ut.Conv2d
x = torch.randn(2, 3, 5, 4)
wrapped = nn.parallel.DistributedDataParallel(model)
wrapped(x[rank : rank + 1]).square().mean().backward()
plain(x).square().mean().backward()
same = torch.allclose(model[0].weight.grad, plain[0].weight.grad, atol=1e-6)
print("the same" if same else "different", flush=True)
os._exit(0)
"""


def test_ddp_in_two_processes(tmp_path) -> None:
    """In processes of their own: gloo's threads may hang when their last user goes."""
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("this PyTorch has no gloo")
    with ThreadPoolExecutor(2) as pool:
        told = pool.map(lambda rank: printed(_DDP, rank, tmp_path / "store"), range(2))
    assert list(told) == ["the same"] * 2


def test_packing_counts_for_weights_that_are_not_kept(monkeypatch):
    """What a training pays in each step, Winograd's transform of the weight included."""
    asked, prepared = [], packing.prepared

    def spy(problem, threads, *, once=True):
        asked.append(once)
        return prepared(problem, threads, once=once)

    monkeypatch.setattr(packing, "prepared", spy)
    layer, x = ut.Conv2d(96, 96, 3, padding=1), torch.randn(1, 96, 24, 24, requires_grad=True)
    y = layer.train()(x)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert asked
    assert all(asked)
    wanted = nn.functional.conv2d(x, layer.weight, layer.bias, padding=1)
    assert close(y, wanted, 1e-4)
    assert close(grad, *torch.autograd.grad(wanted.sum(), x), 1e-4)
    asked.clear()
    with torch.no_grad():
        y = layer.eval()(x)
    assert asked == [False]
    assert close(y, wanted, 1e-4)
