"""`upconv.torch.accelerate`: whole models, changed in place, that compute what they computed.

Speed is no matter here: where a test needs a decision, the clock is replaced.
"""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

from accelerated_models import (  # noqa: E402
    X,
    generator,
    pair,
    same,
    stirred,
    volumes,
)
from upconv.torch import (  # noqa: E402
    accelerate,
    acceleration_report,
    restore,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")


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
