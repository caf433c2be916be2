"""What `accelerate` leaves of a model's state and says of it; modules set otherwise afterwards."""

from __future__ import annotations

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import prune  # noqa: E402

import upconv.torch  # noqa: E402
from accelerated_models import Up, accelerated, example, same, stirred  # noqa: E402
from upconv.torch import (  # noqa: E402
    TensorArgumentError,
    TensorTypeError,
    accelerate,
    accelerate_choices,
    accelerate_model,
    accelerate_runs,
    accelerate_trials,
    acceleration_report,
    from_torch,
    fused,
    restore,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")


class Counting(nn.Module):
    """A model that counts its calls, in place and by new tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(6, 5, 4, 2, 1)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.tensor([float("nan"), 1.0]))
        self.register_buffer("none", None)

    def forward(self, x):
        self.calls += 1
        self.mean = self.mean + x.mean()
        return self.up(x)


class TestState:
    @pytest.mark.parametrize("fails", [False, True])
    def test_buffers_are_put_back(self, fails: bool, monkeypatch) -> None:
        model = Counting().eval()
        calls, mean = model.calls, model.mean
        if fails:
            monkeypatch.setattr(accelerate_model, "_timed", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                accelerate(model, example())
        else:
            accelerate(model, example())
        assert model.calls is calls
        assert model.mean is mean
        assert (int(calls), float(mean[1])) == (0, 1.0)
        model(example())
        assert int(model.calls) == 1

    def test_generators_of_other_devices_are_not_seeded(self, monkeypatch) -> None:
        seeds = []
        for name in ("cuda", "xpu", "mps"):
            if hasattr(getattr(torch, name, None), "manual_seed_all"):
                monkeypatch.setattr(getattr(torch, name), "manual_seed_all", seeds.append)
        state = torch.get_rng_state()
        accelerate(Up().eval(), example())
        torch.set_rng_state(state)
        torch.rand(1)
        assert seeds == []

    def test_results_in_objects_are_compared(self) -> None:
        class Output:
            def __init__(self, y):
                self.y, self.me = y, self

        one, other = Output([torch.ones(2)]), Output([torch.zeros(2)])
        assert accelerate_runs.difference(one, one) == 0
        assert accelerate_runs.difference(one, other) > 1

    @pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:The PyTorch API of nested")
    @pytest.mark.parametrize(
        "kind", ["sparse", "csr", "nested", "jagged", "mkldnn", "meta", "class"]
    )
    def test_results_of_any_kind_are_compared(self, kind) -> None:
        ways = {
            "sparse": lambda y: y.to_sparse(),
            "csr": lambda y: y[0, 0].to_sparse_csr(),
            "nested": lambda y: torch.nested.nested_tensor([y[0], y[1, :, :3]]),
            "jagged": lambda y: torch.nested.nested_tensor([y[0], y[1]], layout=torch.jagged),
            "mkldnn": lambda y: y.to_mkldnn(),
            "meta": lambda y: y.to("meta"),
            "class": lambda y: Counting,
        }
        one, other = (ways[kind](torch.full((2, 3, 4, 5), value)) for value in (1.0, 2.0))
        assert accelerate_runs.difference(one, one) == 0
        assert (accelerate_runs.difference(one, other) > 1) is (kind not in ("meta", "class"))

    def test_what_a_model_carries_on_from_call_to_call_is_no_difference(self) -> None:
        class Stream(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up = nn.ConvTranspose1d(6, 5, 4, 2, 1)
                self.register_buffer("tail", torch.zeros(2, 5, 2))

            def forward(self, x):
                y = self.up(x)
                y = torch.cat([y[..., :2] + self.tail, y[..., 2:]], -1)
                self.tail = y[..., -2:].clone()
                return y

        model = Stream().eval()
        (told,) = acceleration_report(accelerate(model, torch.randn(2, 6, 3))).layers
        assert "differs" not in told.why
        assert not model.tail.any()

    def test_results_without_tensors_are_told_of(self) -> None:
        class Shape(Up):
            def forward(self, x):
                return tuple(super().forward(x).shape)

        model = accelerate(Shape().eval(), example())
        assert "no tensors that could be compared" in str(acceleration_report(model))
        assert "no tensors" not in str(acceleration_report(accelerated()))


@pytest.mark.usefixtures("upconv_is_faster")
class TestLater:
    """Modules that are set otherwise after the model was accelerated."""

    def test_a_normalisation_that_trains_alone_is_pytorchs(self) -> None:
        model, x = accelerated(), example()
        plain = restore(copy.deepcopy(model))
        for each in (model, plain):
            each.bn.train()
        with torch.no_grad():
            assert same(model(x), plain(x))
            assert same(model.bn.running_mean, plain.bn.running_mean)
            for each in (model, plain):
                each.bn.eval()
            assert same(model(x), plain(x))

    def test_eps_is_followed(self) -> None:
        model, x = accelerated(), example()
        plain = restore(copy.deepcopy(model))
        with torch.no_grad():
            for eps in (1e-5, 0.7, 1e-5):
                model.bn.eps = plain.bn.eps = eps
                assert same(model(x), plain(x))

    def test_an_input_without_batch_is_no_batch_to_a_normalisation(self) -> None:
        plain = stirred(nn.Sequential(nn.ConvTranspose1d(6, 4, 4, 2), nn.BatchNorm1d(4)))
        model = accelerate(copy.deepcopy(plain), torch.randn(2, 6, 5))
        x = torch.randn(6, 1)  # a result of (4, 4): a batch of 4 to the normalisation
        with torch.no_grad():
            assert same(model(x), plain(x))

    def test_a_slope_is_followed_by_compiled_code(self) -> None:
        plain = nn.Sequential(nn.ConvTranspose2d(6, 5, 4, 2, 1), nn.PReLU()).eval()
        model, x = accelerate(copy.deepcopy(plain), example()), example()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            for slope in (0.25, -3.0):
                plain[1].weight.fill_(slope)
                model[1].weight.fill_(slope)
                assert same(compiled(x), plain(x))

    def test_autocast_is_followed_by_compiled_code(self) -> None:
        plain = stirred(nn.Sequential(nn.ConvTranspose2d(6, 5, 4, 2, 1), nn.BatchNorm2d(5)))
        model, x = accelerate(copy.deepcopy(plain), example()), example()
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        with torch.no_grad():
            assert same(compiled(x), plain(x))
            with torch.autocast("cpu"):
                wanted, got = plain(x), compiled(x)
        assert got.dtype is wanted.dtype is torch.bfloat16
        torch.testing.assert_close(got, wanted, rtol=2e-2, atol=2e-2)

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
    def test_eval_mode_with_gradients_packs_once_and_lets_others_see(self) -> None:
        model, x = accelerated(), example().requires_grad_()
        plain = restore(copy.deepcopy(model))
        for each in (model, plain):
            (found,) = torch.autograd.grad(each(x).square().sum(), x)
            each.found = found
        torch.testing.assert_close(model.found, plain.found, rtol=1e-4, atol=1e-4)
        tangent = torch.randn_like(x)
        results = [torch.func.jvp(each, (x.detach(),), (tangent,)) for each in (model, plain)]
        for mine, theirs in zip(*results, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


class TestDecisions:
    def test_a_model_that_became_slower_is_given_back(self, monkeypatch) -> None:
        """Layers win their trials, the whole model loses."""

        def clock(*ways):
            return [way() is None or told for way, told in zip(ways, (2.0, 1.0, 1.5), strict=False)]

        def seconds(self, model):
            return 2.0 if any("upconv" in str(vars(m).keys()) for m in model.modules()) else 1.0

        monkeypatch.setattr(accelerate_trials, "best_of", clock)
        monkeypatch.setattr(accelerate_runs.Example, "seconds", seconds)
        model = accelerated()
        report = acceleration_report(model)
        assert "not faster" in report.note
        assert [each.after for each in report.layers] == ["as it was"]
        assert type(model.up) is nn.ConvTranspose2d

    @pytest.mark.parametrize(("slower", "pairs"), [(True, (1, 1.5)), (False, (1, 1.01))])
    def test_what_slower_means(self, slower, pairs) -> None:
        assert accelerate_model._slower([pairs] * 5) is slower
        assert not accelerate_model._slower([pairs, *[(1, 1)] * 4])

    @pytest.mark.parametrize(("together", "taken"), [(1.0, 1), (1.5, 0)])
    def test_fusing_that_is_clearly_slower_is_not_done(self, together, taken) -> None:
        alone = accelerate_trials.Trial(before=2.0, after=1.2, alone=1.2, calls=1)
        other = accelerate_trials.Trial(before=2.0, after=together, alone=1.2, calls=1)
        layer = nn.ConvTranspose2d(1, 1, 2)
        ways = fused.Fused(layer), fused.Fused(layer, (nn.ReLU(),))
        choice = accelerate_choices.Choice("up", ways, None)
        assert accelerate_choices.chosen(choice, (alone, other)).taken == taken


class TestWords:
    def test_upconvs_own_modules_are_told_of(self) -> None:
        model = nn.Sequential(upconv.torch.ConvTranspose2d(1, 1, 2))
        (told,) = acceleration_report(accelerate(model)).layers
        assert (told.after, told.engine) == ("as it was", "upconv")
        assert "upconv's own" in told.why

    def test_a_layer_with_hooks_is_not_said_to_be_fused(self) -> None:
        plain = stirred(nn.Sequential(nn.ConvTranspose2d(6, 5, 4, 2, 1), nn.BatchNorm2d(5)))
        prune.l1_unstructured(plain[0], "weight", 0.5)
        (told,) = acceleration_report(accelerate(plain)).layers
        assert (told.before, told.after) == ("ConvTranspose2d", "upconv")
        assert "hooks" in told.why

    def test_autocast_is_told_of(self) -> None:
        with torch.autocast("cpu"):
            (told,) = acceleration_report(accelerated()).layers
        assert (told.after, told.why) == ("as it was", "its input is under autocast")

    def test_from_torch_refuses_what_would_not_be_called(self) -> None:
        layer = nn.ConvTranspose2d(1, 1, 2)
        layer.forward = lambda x: x
        with pytest.raises(TensorTypeError, match="a forward of its own"):
            from_torch(layer)
        with pytest.raises(TensorTypeError, match="restore"):
            from_torch(accelerate(nn.ConvTranspose2d(1, 1, 2)))

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
    def test_own_modules_are_refused_by_torchscript_in_words(self) -> None:
        with pytest.raises(TensorArgumentError, match=r"upconv\.torch\.ConvTranspose2d"):
            torch.jit.script(nn.Sequential(upconv.torch.ConvTranspose2d(1, 1, 2)))

    @pytest.mark.parametrize("kind", ["sparse", "mkldnn"])
    def test_modules_refuse_other_layouts_in_words(self, kind) -> None:
        x = torch.ones(1, 3, 4, 4)
        x = x.to_sparse() if kind == "sparse" else x.to_mkldnn()
        for mode in (True, False):
            layer = upconv.torch.ConvTranspose2d(3, 2, 2).train(mode)
            with pytest.raises(TensorTypeError, match="input is a tensor of layout"):
                layer(x)
