"""`accelerate`, `report` and `restore`: what is replaced, what is kept, and saved decisions."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import upconv.torch as ut  # noqa: E402
from small_models import MODELS, Vocoder, close, dcgan, stirred  # noqa: E402
from upconv.errors import ArgumentError  # noqa: E402
from upconv.torch import packing, sequences, swaps, trials  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def pair(name):
    build, shape = MODELS[name]
    model = stirred(build())
    return model, copy.deepcopy(model) if name != "vocoder" else twin(model), torch.randn(shape)


def twin(model):
    """A copy of a model that deepcopy refuses for its parametrizations' weights."""
    other = type(model)().eval()
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.usefixtures("upconv_is_faster")
@pytest.mark.parametrize("name", MODELS)
class TestEveryModel:
    def test_has_the_values_it_had_and_packs_once(self, name) -> None:
        model, plain, x = pair(name)
        keys = list(model.state_dict())
        assert ut.accelerate(model, x) is model
        assert len(ut.report(model).layers) == {"dcgan": 3, "unet": 4, "vocoder": 3}[name]
        assert all(layer.inference for layer in ut.report(model).layers)
        assert list(model.state_dict()) == keys
        with torch.no_grad():
            assert close(model(x), plain(x))
            before = packing.counts()
            for _ in range(3):
                assert close(model(x), plain(x))
        assert packing.counts() == before

    def test_follows_its_parameters(self, name) -> None:
        model, plain, x = pair(name)
        ut.accelerate(model, x)
        with torch.no_grad():
            model(x)
            for change in (lambda t: t.mul_(1.5), lambda t: t.data.copy_(t * 0.7)):
                for one, other in zip(model.parameters(), plain.parameters(), strict=True):
                    change(one)
                    change(other)
                assert close(model(x), plain(x))
            model.load_state_dict({k: v + 0.1 for k, v in plain.state_dict().items()})
            plain.load_state_dict({k: v + 0.1 for k, v in plain.state_dict().items()})
            assert close(model(x), plain(x))

    def test_is_restored(self, name) -> None:
        model, plain, x = pair(name)
        before = [type(each) for each in model.modules()]
        hooks = [len(each._forward_pre_hooks) for each in model.modules()]
        ut.accelerate(model, x)
        assert ut.restore(model) is model
        assert [type(each) for each in model.modules()] == before
        assert [len(each._forward_pre_hooks) for each in model.modules()] == hooks
        with torch.no_grad():
            assert torch.equal(model(x), plain(x))
        with pytest.raises(ArgumentError, match="model is not accelerated"):
            ut.report(model)

    def test_trains_as_before(self, name) -> None:
        """In train mode PyTorch's operators compute, unless training was asked for."""
        model, plain, x = pair(name)
        ut.accelerate(model, x)
        for each in (model, plain):
            torch.manual_seed(3)
            each.train()(x).square().mean().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)

    def test_trains_by_upconv_where_asked(self, name) -> None:
        model, plain, x = pair(name)
        ut.accelerate(model, x, training=True)
        assert {layer.training for layer in ut.report(model).layers} == {7}
        for each in (model, plain):
            torch.manual_seed(3)
            each.train()(x).square().mean().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert close(one.grad, other.grad, 1e-4)

    def test_decisions_are_saved_and_applied(self, name, tmp_path) -> None:
        model, plain, x = pair(name)
        ut.accelerate(model, x, training=True)
        ut.report(model).save(tmp_path / "decisions.json")
        ut.accelerate(plain, decisions=tmp_path / "decisions.json")
        assert [type(each) for each in plain.modules()] == [type(e) for e in model.modules()]
        with torch.no_grad():
            assert torch.equal(model(x), plain(x))
        assert ut.report(plain).layers == ut.report(model).layers

    def test_state_is_as_it_was(self, name) -> None:
        model, plain, x = pair(name)
        model.train()
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        seed = torch.random.get_rng_state()
        ut.accelerate(model, x, training=True)
        assert torch.equal(torch.random.get_rng_state(), seed)
        assert all(each.training for each in model.modules())
        assert all(bool((each.grad == 1).all()) for each in model.parameters())
        for one, other in zip(model.buffers(), plain.buffers(), strict=True):
            assert torch.equal(one, other)


@pytest.mark.usefixtures("upconv_is_faster")
class TestRuns:
    def test_what_is_computed_together(self) -> None:
        model = ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))
        assert type(model) is sequences.Sequential
        assert [layer.followers for layer in ut.report(model).layers] == [
            ("BatchNorm2d", "ReLU"),
            ("BatchNorm2d", "LeakyReLU"),
            ("Tanh",),
        ]
        with torch.profiler.profile() as seen, torch.no_grad():
            model(torch.randn(2, 6, 1, 1))
        names = [event.key for event in seen.events()]
        assert names.count("upconv::fused_convolution") == 3
        assert not any("batch_norm" in name or "relu" in name for name in names)

    def test_survive_pickle_and_deepcopy(self) -> None:
        model, x = dcgan(), torch.randn(2, 6, 1, 1)
        ut.accelerate(model, x)
        with torch.no_grad():
            expected = model(x)
            for each in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
                assert type(each[0]) is ut.ConvTranspose2d
                assert torch.equal(each(x), expected)
                assert close(ut.restore(each)(x), expected)

    def test_a_module_that_is_exchanged_ends_the_run(self) -> None:
        model, x = dcgan(), torch.randn(2, 6, 1, 1)
        ut.accelerate(model, x)
        model[2], model[8] = nn.Sigmoid(), nn.Identity()
        plain = ut.restore(copy.deepcopy(model))
        with torch.no_grad():
            assert close(model(x), plain(x))

    def test_hooks_and_training_modules_are_called(self) -> None:
        model, x = dcgan(), torch.randn(2, 6, 1, 1)
        calls = []
        model[1].register_forward_hook(lambda *_: calls.append(1))
        ut.accelerate(model, x)
        calls.clear()
        with torch.no_grad():
            model(x)
            assert calls == [1]
            model[4].train()
            torch.manual_seed(1)
            made = model(x)
            torch.manual_seed(1)
            model[4].running_mean.copy_(model[4].running_mean)
            assert made.shape == (2, 3, 16, 16)

    def test_autocast_and_inference_mode(self) -> None:
        model, x = dcgan(), torch.randn(2, 6, 1, 1)
        plain = copy.deepcopy(model)
        ut.accelerate(model, x)
        with torch.inference_mode():
            assert close(model(x), plain(x))
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            assert close(model(x).float(), plain(x).float(), 0.1)
        with torch.no_grad():
            mapped = torch.vmap(model)(x.unsqueeze(1))
            assert close(mapped[:, 0], plain(x))
        assert close(torch.func.functional_call(model, dict(plain.named_parameters()), x), plain(x))


@pytest.mark.usefixtures("upconv_is_faster")
def test_several_inputs_and_every_form_of_them() -> None:
    model = Vocoder().eval()
    shapes = [torch.randn(1, 5, length) for length in (7, 12)]
    ut.accelerate(model, [shapes[0], (shapes[1],), {"x": shapes[1]}])
    assert "of 3 inputs" in ut.report(model).layers[0].why
    for wrong in ([], None):
        with pytest.raises(ArgumentError, match="example_inputs"):
            ut.accelerate(model, wrong)
    with pytest.raises(ArgumentError, match="model is of type list"):
        ut.accelerate([], shapes[0])


def test_a_layer_stays_only_where_it_pays_on_all_inputs(monkeypatch) -> None:
    model, inputs = Vocoder().eval(), [torch.randn(1, 5, length) for length in (7, 12)]
    told = iter([True, False])

    def measured(_model, found, _example):
        pays = next(told)
        return {each: trials.Times(2.0, 1.0 if pays else 3.0) for each in found}

    monkeypatch.setattr(trials, "measured", measured)
    ut.accelerate(model, inputs)
    assert not any(layer.replaced for layer in ut.report(model).layers)
    assert type(model.last) is nn.Conv1d


def test_a_slower_model_is_given_back(upconv_is_faster, monkeypatch) -> None:
    monkeypatch.setattr(trials, "best_of", lambda ways, _=0: [1.0, 2.0])
    model = ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))
    assert type(model) is nn.Sequential
    assert {layer.why for layer in ut.report(model).layers} == {"the whole model was not faster"}
    assert "The whole model: 1.00 ms before, 2.00 after." in str(ut.report(model))


def test_wrong_results_are_not_taken(upconv_is_faster, monkeypatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(trials, "_differ", lambda *_: True)
        model = ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))
    assert {layer.why for layer in ut.report(model).layers} == {"results differ"}
    assert not any(layer.replaced for layer in ut.report(model).layers)
    a, infinite = torch.ones(3), torch.tensor([1.0, float("inf"), float("nan")])
    assert not trials._differ(a, a + 1e-6)
    assert not trials._differ(infinite, infinite.clone())
    for other in (torch.tensor([1.0, 1.0, 1.1]), infinite, a[:2], a.double()):
        assert trials._differ(a, other)


@pytest.mark.usefixtures("upconv_is_faster")
def test_what_is_not_taken() -> None:
    class Mine(nn.Conv1d):
        pass

    class Double(nn.Module):
        def forward(self, weight):
            return 2 * weight

    odd = nn.Conv1d(2, 2, 1)
    nn.utils.parametrize.register_parametrization(odd, "weight", Double())
    model = nn.Sequential(Mine(2, 2, 1), odd)
    assert swaps.candidates(model) == []
    assert swaps.candidates(nn.Conv1d(2, 2, 1, device="meta")) == []
    padded = nn.Conv1d(2, 2, 3, padding=1, padding_mode="reflect")
    assert swaps.candidates(nn.Sequential(padded, nn.Conv1d(2, 2, 2, padding="same"))) == []
    ut.accelerate(model, torch.randn(1, 2, 4))


DAMAGES = {
    "format": lambda content, first: content.update(format="another"),
    "version": lambda content, first: content.update(version=2),
    "no layers": lambda content, first: content.pop("layers"),
    "a field less": lambda content, first: first.pop("kind"),
    "a field more": lambda content, first: first.update(run="rm"),
    "type": lambda content, first: first.update(inference=1),
    "bits": lambda content, first: first.update(training=8),
    "shape": lambda content, first: first.update(weight=[1, 2, "3", 4]),
    "twice": lambda content, first: content["layers"].append(first),
    "name": lambda content, first: first.update(name="elsewhere"),
    "other weight": lambda content, first: first.update(weight=[7, *first["weight"][1:]]),
    "other kind": lambda content, first: first.update(kind="Conv2d"),
    "other followers": lambda content, first: first.update(followers=[]),
    "cut": lambda content, first: None,
}


@pytest.mark.usefixtures("upconv_is_faster")
@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_and_foreign_decisions_are_refused(how, tmp_path) -> None:
    path = tmp_path / "decisions.json"
    ut.report(ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))).save(path)
    content = json.loads(path.read_text())
    DAMAGES[how](content, content["layers"][0])
    path.write_text(json.dumps(content)[: -20 if how == "cut" else None])
    model = dcgan()
    with pytest.raises(ArgumentError, match="decisions is "):
        ut.accelerate(model, decisions=path)
    assert type(model) is nn.Sequential
    assert type(model[0]) is nn.ConvTranspose2d
    path.write_bytes(b"\x00\xff[")
    with pytest.raises(ArgumentError, match="no JSON"):
        ut.accelerate(model, decisions=path)
    with pytest.raises(OSError, match="missing"):
        ut.accelerate(model, decisions=tmp_path / "missing.json")


def test_measuring_is_in_place_and_takes_what_is_faster() -> None:
    """With the real clock: whatever is chosen, values agree and the report is whole."""
    model, x = dcgan(12, 16), torch.randn(4, 12, 1, 1)
    with torch.no_grad():
        expected = model(x)
        ut.accelerate(model, x)
        assert close(model(x), expected)
    report = ut.report(model)
    assert len(report.layers) == 3
    assert all(layer.before > 0 and layer.after > 0 for layer in report.layers)
    assert report.before > 0
    assert "times as fast" in str(report) or "not faster" in str(report)
