"""`upconv.torch.accelerate`: whole models, changed in place, that compute what they computed.

Speed is no matter here: where a test needs a decision, the clock is replaced.
"""

from __future__ import annotations

import copy
import io
import os
import pickle
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

from upconv.torch import (  # noqa: E402
    TensorArgumentError,
    TensorTypeError,
    accelerate,
    accelerate_trials,
    acceleration_report,
    fused_weights,
    restore,
)

BOUND = 2e-5
"""Results here are sums of about a hundred products of order 1 / 10, in float32."""


@pytest.fixture(autouse=True)
def one_thread():
    """PyTorch's threads wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def upconv_is_faster(monkeypatch):
    """Every trial says: the original takes 2 seconds, alone 1.5, fused 1."""
    clock = lambda *ways: [way() is None or seconds for way, seconds in zip(ways, (2.0, 1.0, 1.5))]  # noqa: E731, B905
    monkeypatch.setattr(accelerate_trials, "best_of", clock)


def stirred(model: nn.Module) -> nn.Module:
    """The model in eval mode, its normalisations having seen something."""
    for module in model.modules():
        if isinstance(module, fused_weights.NORMS) and module.track_running_stats:
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.eval()


def generator() -> nn.Sequential:
    """A small DCGAN."""
    return stirred(
        nn.Sequential(
            nn.ConvTranspose2d(6, 10, 3, bias=False),
            nn.BatchNorm2d(10),
            nn.ReLU(inplace=True),
            nn.Sequential(nn.ConvTranspose2d(10, 8, 4, 2, 1, groups=2), nn.Dropout(0.5)),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2),
            nn.ConvTranspose2d(8, 3, (4, 3), (2, 3), (1, 0)),
            nn.Tanh(),
        )
    )


class Skip(nn.Module):
    """A level of a U-Net: what comes in, next to what the inner level makes of it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return torch.cat([x, self.inner(x)], 1)


def volumes() -> nn.Sequential:
    """A small 3D U-Net."""
    for_channels = {"kernel_size": 3, "stride": 2, "padding": 1}

    def up(before: int, after: int) -> nn.Sequential:
        layer = nn.ConvTranspose3d(before, after, output_padding=1, **for_channels)
        return nn.Sequential(layer, nn.Sequential(nn.BatchNorm3d(after), nn.PReLU()))

    inner = nn.Sequential(nn.Conv3d(4, 6, **for_channels), nn.PReLU(), up(6, 4))
    return stirred(nn.Sequential(nn.Conv3d(2, 4, **for_channels), Skip(inner), up(8, 2)))


X = (3, 6, 2, 4)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= BOUND)


def pair(build, *shape):
    """An accelerated model, an equal one that never was, and an input."""
    model = build()
    return accelerate(model), restore(copy.deepcopy(model)), torch.randn(*shape)


class TestSequences:
    def test_a_generator_computes_the_same_fused(self) -> None:
        model, plain, x = pair(generator, *X)
        with torch.no_grad():
            assert same(model(x), plain(x))
            assert same(model(x[:1]), plain(x[:1]))  # another batch
            last = x.to(memory_format=torch.channels_last)
            assert same(model(last), plain(last))
        names = [layer.before for layer in acceleration_report(model).layers]
        assert names == [
            "ConvTranspose2d + BatchNorm2d + ReLU",
            "ConvTranspose2d + Dropout + BatchNorm2d + LeakyReLU",
            "ConvTranspose2d + Tanh",
        ]

    def test_what_is_fused_is_not_run_by_pytorch(self, monkeypatch) -> None:
        model, _, x = pair(generator, *X)
        for name in ("batch_norm", "leaky_relu", "conv_transpose2d"):
            monkeypatch.setattr(functional, name, lambda *_, **__: pytest.fail("was called"))
        monkeypatch.setattr(torch, "tanh", lambda *_: pytest.fail("was called"))
        with torch.no_grad():
            model(x)

    def test_without_fuse_nothing_is_taken_in(self) -> None:
        model = accelerate(generator(), fuse=False)
        assert [layer.after for layer in acceleration_report(model).layers] == ["upconv"] * 3
        assert type(model) is nn.Sequential

    def test_hooks_and_slices_see_what_they_saw(self) -> None:
        model, plain, x = pair(generator, *X)
        seen: list[torch.Tensor] = []
        with torch.no_grad():
            assert same(model[:1](x), plain[:1](x))
            handle = model[0].register_forward_hook(lambda _, __, y: seen.append(y.clone()))
            assert same(model(x), plain(x))
            assert same(seen[0], plain[0](x))
            handle.remove()
            model(x)
        assert len(seen) == 1

    def test_a_changed_sequence_computes_what_it_holds(self) -> None:
        model, plain, x = pair(generator, *X)
        for each in (model, plain):
            each[2] = nn.Sigmoid()
            each.append(nn.ReLU())
        with torch.no_grad():
            assert same(model(x), plain(x))

    @pytest.mark.parametrize(
        "follower",
        [
            nn.BatchNorm2d(4, track_running_stats=False),
            nn.InstanceNorm2d(4),
            nn.PReLU(4),
            nn.GELU("tanh"),
            nn.ELU(),
        ],
        ids=lambda module: type(module).__name__,
    )
    def test_other_followers_stay(self, follower) -> None:
        model = stirred(nn.Sequential(nn.ConvTranspose2d(3, 4, 2), follower))
        plain, x = copy.deepcopy(model), torch.randn(2, 3, 5, 4)
        accelerate(model)
        with torch.no_grad():
            assert same(model(x), plain(x))
        assert acceleration_report(model).layers[0].before == "ConvTranspose2d"

    @pytest.mark.parametrize("rank", [1, 2, 3])
    def test_ranks_and_unbatched_inputs(self, rank) -> None:
        kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[rank - 1]
        model, plain, x = pair(
            lambda: nn.Sequential(kind(3, 4, 3, 2), nn.PReLU()).eval(), 2, 3, *range(4, 4 + rank)
        )
        with torch.no_grad():
            assert same(model(x), plain(x))
            assert same(model(x[0]), plain(x[0]))
            size = [2 * n + 2 for n in range(4, 4 + rank)]
            assert same(model[0](x, output_size=size), plain[0](x, output_size=size))


class TestParameters:
    @pytest.mark.parametrize("way", ["copy_", ".data", "swap", "load", "statistics", "slope"])
    def test_changes_are_followed(self, way) -> None:
        def build() -> nn.Module:
            up = nn.ConvTranspose1d(3, 4, 4, 2)
            return stirred(nn.Sequential(up, nn.BatchNorm1d(4), nn.PReLU()))

        model, plain, x = pair(build, 2, 3, 7)
        with torch.no_grad():
            before = model(x)
            for each in (model, plain):
                if way == "copy_":
                    each[0].weight.copy_(each[0].weight.flip(0) * 2)
                elif way == ".data":
                    each[0].weight.data.mul_(0.5)
                elif way == "swap":
                    each[0].weight = nn.Parameter(each[0].weight * 3)
                elif way == "load":
                    each.load_state_dict({k: v * 2 for k, v in each.state_dict().items()})
                elif way == "statistics":
                    each[1].running_mean += 1
                    each[1].running_var *= 4
                else:
                    each[2].weight.fill_(-0.7)
            assert same(model(x), plain(x))
            assert not same(model(x), before)

    @pytest.mark.parametrize(
        ("build", "shape"), [(lambda: generator(), X), (lambda: volumes(), (1, 2, 4, 4, 4))]
    )
    def test_training_is_pytorchs_and_evaluation_follows_it(self, build, shape) -> None:
        model, plain, x = pair(build, *shape)
        losses = []
        for each in (model, plain):
            each.train()
            torch.manual_seed(3)
            optimiser = torch.optim.Adam(each.parameters(), 0.01)
            taken = []
            for _ in range(20):
                optimiser.zero_grad()
                loss = (each(x) - 0.3).square().mean()
                loss.backward()
                optimiser.step()
                taken.append(loss.item())
            losses.append(taken)
            each.eval()
        assert losses[0] == losses[1]
        with torch.no_grad():
            assert same(model(x), plain(x))

    def test_gradients_in_eval_mode(self) -> None:
        model, plain, x = pair(generator, *X)
        grads = []
        for each in (model, plain):
            x = x.detach().requires_grad_()
            (first,) = torch.autograd.grad(each(x).square().sum(), x, create_graph=True)
            first.square().sum().backward()  # a second derivative too
            grads.append((first.detach(), x.grad, each[0].weight.grad, each[6].bias.grad))
        for one, other in zip(*grads, strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-4 * float(other.abs().max()))

    def test_state_dict_is_the_originals(self) -> None:
        model, plain, _ = pair(generator, *X)
        assert list(model.state_dict()) == list(plain.state_dict())
        assert [n for n, _ in model.named_modules()] == [n for n, _ in plain.named_modules()]
        plain.load_state_dict(model.state_dict())


OLD = pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")


class TestWeightNormalisations:
    @pytest.mark.parametrize(
        "norm",
        [
            parametrizations.weight_norm,
            parametrizations.spectral_norm,
            pytest.param(lambda m: nn.utils.weight_norm(m), marks=OLD),
            lambda m: nn.utils.spectral_norm(m),
        ],
        ids=["weight_norm", "spectral_norm", "old weight_norm", "old spectral_norm"],
    )
    def test_are_respected(self, norm) -> None:
        def build() -> nn.Module:
            up = norm(nn.ConvTranspose1d(3, 4, 4, 2))
            model = stirred(nn.Sequential(up, nn.BatchNorm1d(4), nn.ReLU()))
            with torch.no_grad():  # PyTorch copies models with old weight_norm only after a call
                model(torch.zeros(1, 3, 2))
            return model

        model, plain, x = pair(build, 2, 3, 7)
        assert acceleration_report(model).layers[0].before.startswith("ConvTranspose1d + Batch")
        with torch.no_grad():
            assert same(model(x), plain(x))
            for each in (model, plain):
                for parameter in each[0].parameters():
                    parameter.mul_(1.5).add_(0.1)
            assert same(model(x), plain(x))
            assert same(copy.deepcopy(model)(x), plain(x))
        for each in (model, plain):
            each.train()(x).square().sum().backward()
        assert torch.equal(model[1].weight.grad, plain[1].weight.grad)

    def test_removing_it_afterwards_works(self) -> None:
        model = nn.Sequential(parametrizations.weight_norm(nn.ConvTranspose1d(3, 4, 4, 2))).eval()
        original, x = type(model[0]), torch.randn(1, 3, 5)
        with torch.no_grad():
            y = accelerate(model)(x)
            restore(model)
            assert type(model[0]) is original
            accelerate(model)
            parametrize.remove_parametrizations(model[0], "weight")
            assert same(model(x), y)
        assert type(restore(model)[0]) is nn.ConvTranspose1d

    def test_other_parametrizations_are_refused_in_words(self) -> None:
        class Noisy(nn.Module):
            def forward(self, weight):
                return weight * torch.rand(())

        model = nn.Sequential(nn.ConvTranspose1d(3, 4, 4))
        parametrize.register_parametrization(model[0], "weight", Noisy())
        (layer,) = acceleration_report(accelerate(model)).layers
        assert layer.engine == "pytorch"
        assert layer.why == "its weight is made by Noisy, which may depend on anything"


class TestObjects:
    def test_restore_is_exact(self) -> None:
        model = generator()
        classes = [type(module) for module in model.modules()]
        attributes = [sorted(vars(module)) for module in model.modules()]
        restore(accelerate(accelerate(model)))
        assert [type(module) for module in model.modules()] == classes
        assert [sorted(vars(module)) for module in model.modules()] == attributes

    def test_pickles_saves_and_copies(self) -> None:
        model, plain, x = pair(generator, *X)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        others = (
            copy.deepcopy(model),
            pickle.loads(pickle.dumps(model)),
            torch.load(file, weights_only=False),
        )
        for other in others:
            assert type(other) is type(model)
            with torch.no_grad():
                other[1].bias.add_(1)  # its own, not the model's
                plain[1].bias.add_(1)
                assert same(other(x), plain(x))
                plain[1].bias.sub_(1)
                assert same(model(x), plain(x))
            assert type(restore(other)) is nn.Sequential
        assert type(model) is not nn.Sequential

    def test_shared_layers_stay_shared(self) -> None:
        up, act = nn.ConvTranspose1d(4, 4, 2), nn.ReLU()
        model = nn.Sequential(up, act, nn.Sequential(up, nn.Tanh()), act).eval()
        plain, x = copy.deepcopy(model), torch.randn(2, 4, 5)
        accelerate(model)
        assert model[0] is model[2][0]
        with torch.no_grad():
            assert same(model(x), plain(x))
            model[0].bias.add_(1)
            assert not same(model(x), plain(x))

    def test_a_subclass_with_a_forward_of_its_own_stays(self) -> None:
        class Odd(nn.ConvTranspose1d):
            def forward(self, x):
                return -super().forward(x)

        class Plain(nn.ConvTranspose1d):
            pass

        model = accelerate(
            nn.ModuleList([Odd(1, 1, 2), Plain(1, 1, 2), nn.LazyConvTranspose1d(1, 2)])
        )
        odd, plain, lazy = acceleration_report(model).layers
        assert odd.why == "Odd has a forward of its own"
        assert plain.engine == "upconv"
        assert lazy.why.startswith("LazyConvTranspose1d has a forward") or "no weight" in lazy.why

    def test_a_model_that_is_one_layer(self) -> None:
        model = nn.ConvTranspose2d(2, 3, 2, 2).eval()
        plain, x = copy.deepcopy(model), torch.randn(1, 2, 3, 4)
        assert accelerate(model) is model
        with torch.no_grad():
            assert same(model(x), plain(x))
        assert type(pickle.loads(pickle.dumps(model))) is type(model)

    def test_data_parallel_wraps_it(self) -> None:
        model, plain, x = pair(generator, *X)
        with torch.no_grad():
            assert same(nn.DataParallel(model)(x), plain(x))

    def test_ddp_wraps_it(self, tmp_path) -> None:
        """In a process of its own: gloo's threads may hang when their last user goes."""
        if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
            pytest.skip("this PyTorch has no gloo")
        script = tmp_path / "ddp.py"
        script.write_text(_DDP.format(store=str(tmp_path / "store")), encoding="utf-8")
        path = os.pathsep.join(filter(None, sys.path))
        done = subprocess.run(
            [sys.executable, str(script)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
        assert done.stdout.strip() == "the same", done.stderr

    def test_other_devices_and_dtypes_are_pytorchs(self) -> None:
        model = nn.Sequential(
            nn.ConvTranspose1d(1, 1, 2, device="meta"), nn.ConvTranspose1d(1, 1, 2).double()
        )
        meta, double = acceleration_report(accelerate(model)).layers
        assert meta.why == "it is on meta: left to PyTorch's own operator"
        assert "pass example_inputs" in double.why
        moved = accelerate(generator())
        plain = restore(copy.deepcopy(moved)).double()
        with torch.no_grad():
            x = torch.randn(*X, dtype=torch.float64)
            assert same(moved.double()(x), plain(x))
            assert moved.to("meta")(x.to("meta")).shape == plain(x).shape

    def test_autocast_is_pytorchs(self) -> None:
        model, plain, x = pair(generator, *X)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(model(x), plain(x))

    def test_vmap_and_inference_mode(self) -> None:
        model, plain, x = pair(generator, *X)
        with torch.inference_mode():
            assert same(model(x), plain(x))
        with torch.no_grad():
            assert same(torch.func.vmap(model)(x[:, None]), torch.func.vmap(plain)(x[:, None]))


_DDP = """
import copy, os
import torch
from torch import distributed, nn
from upconv.torch import accelerate, restore

distributed.init_process_group("gloo", init_method=r"file://{store}", rank=0, world_size=1)
torch.set_num_threads(1)
layers = nn.ConvTranspose2d(6, 8, 4, 2), nn.BatchNorm2d(8), nn.ReLU()
model = accelerate(nn.Sequential(*layers))
plain, x = restore(copy.deepcopy(model)), torch.randn(2, 6, 4, 3)
wrapped = nn.parallel.DistributedDataParallel(model)
for each in (wrapped, plain):
    each.train()(x).square().mean().backward()
same = torch.allclose(model[0].weight.grad, plain[0].weight.grad, atol=1e-6)
with torch.no_grad():
    same = same and torch.allclose(wrapped.eval()(x), plain.eval()(x), atol=1e-5)
print("the same" if same else "different", flush=True)
os._exit(0)
"""


class Block(nn.Module):
    """Code of its own: functions, a residual, one module called twice, an option."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(6, 8, 4, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.again = nn.ConvTranspose2d(8, 8, 3, 1, 1)
        self.act = nn.GELU()
        self.slope = 0.2

    def forward(self, x: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        y = functional.relu(self.norm(self.up(x)))
        z = functional.leaky_relu(self.again(y) + y, self.slope)
        if scale is not None:
            z = z * scale
        return self.act(z)


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.last = nn.ConvTranspose2d(8, 2, 2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 1e9:  # what no tracer follows
            return x
        return functional.relu(self.last(self.block(x) + self.block(x, 2.0)))


@pytest.mark.usefixtures("upconv_is_faster")
class TestTracedCode:
    @staticmethod
    def both():
        model = stirred(Outer())
        plain, x = copy.deepcopy(model), torch.randn(2, 6, 5, 4)
        return accelerate(model, (x,)), plain, x

    def test_is_fused_where_it_can_be_followed(self) -> None:
        model, plain, x = self.both()
        up, again, last = acceleration_report(model).layers
        assert up.before == "ConvTranspose2d + BatchNorm2d + ReLU"
        assert again.before == "ConvTranspose2d + residual + LeakyReLU"
        assert last.before == "ConvTranspose2d"
        assert "Outer cannot be traced (TraceError)" in last.why
        assert (up.seconds_before, up.seconds_after, up.engine) == (2.0, 1.0, "jit")
        with torch.no_grad():
            assert same(model(x), plain(x))
            assert same(model.block(x, 3.0), plain.block(x, 3.0))
            assert same(model.block(x=x), plain.block(x=x))

    def test_changed_attributes_and_modules_are_seen(self) -> None:
        model, plain, x = self.both()
        for each in (model, plain):
            each.block.slope = -0.4
        with torch.no_grad():
            assert same(model(x), plain(x))
            for each in (model, plain):
                each.block.norm = nn.Identity()
            assert same(model(x), plain(x))

    def test_training_copies_and_pickles(self) -> None:
        model, plain, x = self.both()
        assert torch.equal(copy.deepcopy(model).train()(x), copy.deepcopy(plain).train()(x))
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            with torch.no_grad():
                assert same(other(x), plain(x))
            assert type(restore(other).block) is Block
        assert torch.equal(restore(model)(x), plain(x))


class TestTrials:
    def test_a_slower_layer_stays(self, monkeypatch) -> None:
        monkeypatch.setattr(accelerate_trials, "best_of", lambda *_: [1.0, 0.99, 2.0])
        model, x = generator(), torch.randn(*X)
        accelerate(model, x)
        assert type(model) is nn.Sequential
        assert {type(module) for module in model} & {nn.ConvTranspose2d}
        for layer in acceleration_report(model).layers:
            assert layer.why == "upconv takes 0.99 of its time, more than 0.95"
            assert (layer.engine, layer.seconds_before, layer.seconds_after) == (
                "pytorch",
                1.0,
                None,
            )

    @pytest.mark.usefixtures("upconv_is_faster")
    def test_a_wrong_fold_is_found_and_left(self, monkeypatch) -> None:
        right = fused_weights._fold

        def wrong(weight, bias, norm, groups):
            made = right(weight, bias, norm, groups)
            return made._replace(bias=made.bias + 1e-3)

        monkeypatch.setattr(fused_weights, "_fold", wrong)
        model, x = generator(), torch.randn(*X)
        plain = copy.deepcopy(model)
        accelerate(model, x)
        first, second, third = acceleration_report(model).layers
        assert (first.before, second.before) == ("ConvTranspose2d", "ConvTranspose2d")
        assert third.before == "ConvTranspose2d + Tanh"
        with torch.no_grad():
            assert same(model(x), plain(x))

    @pytest.mark.usefixtures("upconv_is_faster")
    def test_a_wrong_layer_is_found_and_left(self, monkeypatch) -> None:
        from upconv.torch import fused

        right = fused.forward
        monkeypatch.setattr(
            fused, "forward", lambda *args, **named: right(*args, **named).roll(1, -1)
        )
        model, x = generator(), torch.randn(*X)
        accelerate(model, x)
        for layer in acceleration_report(model).layers:
            assert layer.engine == "pytorch"
            assert "times what rounding explains" in layer.why

    @pytest.mark.usefixtures("upconv_is_faster")
    def test_a_layer_whose_whole_model_differs_is_given_back(self, monkeypatch) -> None:
        monkeypatch.setattr(accelerate_trials, "disagreement", lambda *_: "")
        from upconv.torch import fused

        right = fused.forward

        def wrong(x, *args, **named):
            y = right(x, *args, **named)
            return y + 1 if y.shape[1] == 3 else y

        monkeypatch.setattr(fused, "forward", wrong)
        model, x = generator(), torch.randn(*X)
        accelerate(model, x)
        *firsts, last = acceleration_report(model).layers
        assert all(layer.engine == "jit" for layer in firsts)
        assert last.why.startswith("with it the model's result differs by")

    def test_modes_random_state_and_uncalled_layers(self) -> None:
        class Partly(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.used, self.unused = nn.ConvTranspose1d(2, 2, 2), nn.ConvTranspose1d(2, 2, 2)
                self.frozen = nn.BatchNorm1d(2).eval()

            def forward(self, x, *, twice=False):
                return self.frozen(self.used(x)) * (2 if twice else 1) + torch.rand(1)

        model, x = Partly(), torch.randn(1, 2, 4)
        state = torch.get_rng_state()
        accelerate(model, {"x": x, "twice": True})
        assert torch.equal(state, torch.get_rng_state())
        assert model.training
        assert not model.frozen.training
        unused = acceleration_report(model).layers[1]
        assert unused.why == "the model did not call it on the example inputs"

    def test_bad_arguments_are_refused_and_change_nothing(self) -> None:
        model = generator()
        with pytest.raises(TensorTypeError, match=r"model is .*int.*; expected a torch.nn.Module"):
            accelerate(3)
        with pytest.raises(TensorArgumentError, match="example_inputs is 3; expected a tensor"):
            accelerate(model, 3)
        with pytest.raises(TensorArgumentError, match="model raises RuntimeError"):
            accelerate(model, torch.randn(1, 2, 3, 4))
        assert type(model) is nn.Sequential
        assert all(type(module).__module__.startswith("torch.nn") for module in model.modules())

    def test_the_report_is_printed(self, capsys) -> None:
        accelerate(generator(), report=True)
        head, first, *_, note = capsys.readouterr().out.splitlines()
        assert head.split()[:4] == ["layer", "before", "after", "engine"]
        assert first.startswith("0      ConvTranspose2d + BatchNorm2d + ReLU")
        assert note == "Not measured: pass example_inputs for proof and times."


class TestCompile:
    def test_without_graph_breaks(self) -> None:
        model, plain, x = pair(generator, *X)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            assert same(compiled(x), plain(x))
            for each in (model, plain):
                each[1].running_mean.add_(1)
                each[3][0].weight.mul_(2)
            assert same(compiled(x), plain(x))
            from torch.export import export

            targets = {str(node.target) for node in export(model, (x,)).graph.nodes}
        assert {"upconv.conv_transpose_norm.default", "upconv.conv_transpose.default"} <= targets
        trained = torch.compile(model.train(), fullgraph=True, backend="aot_eager")(x)
        torch.manual_seed(0)
        assert trained.requires_grad
