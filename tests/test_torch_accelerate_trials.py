"""How `accelerate` decides: what code calls, trials, the whole model, the report."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from accelerated_models import (  # noqa: E402
    Block,
    Outer,
    X,
    generator,
    same,
    stirred,
)
from upconv.torch import (  # noqa: E402
    TensorArgumentError,
    TensorTypeError,
    accelerate,
    accelerate_trials,
    acceleration_report,
    fused_weights,
    restore,
)

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.mark.usefixtures("upconv_is_faster")
class TestCode:
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
        assert last.before == "ConvTranspose2d + ReLU"
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

    @pytest.mark.parametrize("flag", ["no", 1, None, torch.ones(2)])
    @pytest.mark.parametrize("name", ["fuse", "report"])
    def test_flags_are_true_or_false(self, name, flag) -> None:
        with pytest.raises(TensorArgumentError, match=f"{name} is .*; expected True or False"):
            accelerate(generator(), **{name: flag})

    def test_the_report_is_printed(self, capsys) -> None:
        accelerate(generator(), report=True)
        head, first, *_, note = capsys.readouterr().out.splitlines()
        assert head.split()[:4] == ["layer", "before", "after", "engine"]
        assert first.startswith("0      ConvTranspose2d + BatchNorm2d + ReLU")
        assert note == "Not measured: pass example_inputs for proof and times."
