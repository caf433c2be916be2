"""`accelerate`, `report` and `restore`: what is replaced, what is kept, and saved decisions."""

from __future__ import annotations

import copy
import io
import json
import pickle
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import upconv.torch as ut  # noqa: E402
from small_models import MODELS, Vocoder, close, dcgan, stirred  # noqa: E402
from upconv.errors import ArgumentError, FileError  # noqa: E402
from upconv.torch import acceleration, packing, reports, sequences, swaps, trials  # noqa: E402
from upconv.tuning import processor_model  # noqa: E402

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


def classes(model):
    """Each module's class; a parametrized one has its own, and its name and base are compared."""
    kinds = [type(each) for each in model.modules()]
    return [(kind.__name__, kind.__bases__) for kind in kinds]


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
        before = classes(model)
        hooks = [len(each._forward_pre_hooks) for each in model.modules()]
        ut.accelerate(model, x)
        assert ut.restore(model) is model
        assert classes(model) == before
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
        assert classes(plain) == classes(model)
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
def test_a_normalisation_without_a_batch_axis_is_pytorchs() -> None:
    """`BatchNorm1d` takes (F, L) for a batch of F with L channels; other ranks are refused."""
    plain = stirred(nn.Sequential(nn.Conv1d(3, 4, 1), nn.BatchNorm1d(4)))
    model, square = ut.accelerate(copy.deepcopy(plain), torch.randn(2, 3, 5)), torch.randn(3, 4)
    with torch.no_grad():
        assert close(model(square), plain(square))
        for each in (model, plain):
            with pytest.raises(RuntimeError, match="running_mean"):
                each(torch.randn(3, 5))
        with pytest.raises(ValueError, match="expected 4D input"):
            ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))(torch.randn(6, 1, 1))


@pytest.mark.usefixtures("upconv_is_faster")
@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("name", ["dcgan", "vocoder"])
def test_a_traced_model_follows_its_parameters(name, warm) -> None:
    model, plain, x = pair(name)
    ut.accelerate(model, x)
    with torch.no_grad():
        for _ in range(warm):
            model(x)
        traced = torch.jit.trace(model, x)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            one.mul_(1.5)
            other.mul_(1.5)
        assert close(traced(x), plain(x))


@pytest.mark.usefixtures("upconv_is_faster")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_folded_normalisation_is_rounded_once(dtype) -> None:
    """In 16 bits the folded weight and bias are float64's, rounded to the nearest."""
    model = stirred(nn.Sequential(nn.ConvTranspose2d(6, 4, 3, groups=2), nn.BatchNorm2d(4)))
    model, x = model.to(dtype), torch.randn(1, 6, 5, 4, dtype=dtype)
    layer, norm = copy.deepcopy(model).double()
    with torch.no_grad():
        ut.accelerate(model, x)(x)
        weight, bias = vars(model[0])["_folded"][1]
        scale = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        expected = layer.weight * scale.reshape(2, 1, 2, 1, 1).repeat_interleave(3, 0).flatten(0, 1)
        offset = (layer.bias - norm.running_mean) * scale + norm.bias
    half = torch.finfo(dtype).eps / 2 * 1.001
    for one, other in ((weight, expected), (bias, offset)):
        assert one.dtype is dtype
        assert torch.allclose(one.double(), other.reshape(one.shape), half, 1e-6)


def normed(kind: str) -> nn.Sequential:
    """Two layers whose weights are computed of other tensors."""
    norm = {
        "weight norm": nn.utils.parametrizations.weight_norm,
        "old weight norm": nn.utils.weight_norm,
        "spectral norm": nn.utils.parametrizations.spectral_norm,
        "orthogonal": nn.utils.parametrizations.orthogonal,
    }[kind]
    return nn.Sequential(
        norm(nn.ConvTranspose1d(3, 4, 4, 2)), nn.ReLU(), norm(nn.Conv1d(4, 4, 3))
    ).eval()


NORMS = ["weight norm", "old weight norm", "spectral norm", "orthogonal"]


@pytest.mark.usefixtures("upconv_is_faster")
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", NORMS)
class TestParametrizations:
    def both(self, kind, **more):
        torch.manual_seed(2)
        model = normed(kind)
        torch.manual_seed(2)
        plain, x = normed(kind), torch.randn(2, 3, 9)
        return ut.accelerate(model, x, **more), plain, x

    @pytest.mark.parametrize("training", [False, True])
    def test_are_computed_once_in_each_step(self, kind, training) -> None:
        """`spectral_norm` iterates in every computation, and its buffers say how often."""
        model, plain, x = self.both(kind, training=training)
        for each in (model, plain):
            for _ in range(3):
                each.train()(x).square().sum().backward()
            with torch.no_grad():
                each(x)
        state, expected = model.state_dict(), plain.state_dict()
        for name, value in expected.items():
            assert torch.equal(state[name], value)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert close(one.grad, other.grad, 1e-4)

    def test_are_removed_and_registered_after_acceleration(self, kind) -> None:
        model, plain, x = self.both(kind)
        with torch.no_grad():
            expected = plain(x)
            for layer in (model[0], model[2]):
                if kind == "old weight norm":
                    nn.utils.remove_weight_norm(layer)
                else:
                    nn.utils.parametrize.remove_parametrizations(layer, "weight")
            assert [type(model[0]), type(model[2])] == [ut.ConvTranspose1d, ut.Conv1d]
            assert close(model(x), expected)
            model[0].weight.mul_(1.5)
            expected = ut.restore(copy.deepcopy(model))(x)
            assert close(model(x), expected)
            nn.utils.parametrizations.weight_norm(model[0])
            assert close(model(x), expected)
            assert close(ut.restore(model)(x), expected)
            assert "parametrizations.weight.original0" in model[0].state_dict()

    def test_weights_made_in_inference_mode_serve_gradients(self, kind) -> None:
        model, plain, x = self.both(kind, training=True)
        with torch.inference_mode():
            model(x)
        for each in (model, plain):
            each.requires_grad_(False)
        gradients = []
        for each in (model, plain):
            with torch.no_grad():
                each(x)
            leaf = x.clone().requires_grad_()
            gradients += torch.autograd.grad(each(leaf).square().sum(), leaf)
        assert close(*gradients, 1e-4)

    def test_writes_to_the_computed_weight_last_until_the_next_call(self, kind) -> None:
        model, plain, x = self.both(kind)
        with torch.no_grad():
            model(x)
            for each in (model, plain):
                each[0].weight.data.fill_(3.0)
                each[2].weight.data.fill_(3.0)
            assert close(model(x), plain(x))


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

    def measured(_model, found, *_):
        pays = next(told)
        return {each: trials.Times(2.0, 1.0 if pays else 3.0) for each in found}

    monkeypatch.setattr(trials, "measured", measured)
    ut.accelerate(model, inputs)
    assert not any(layer.replaced for layer in ut.report(model).layers)
    assert type(model.last) is nn.Conv1d


@pytest.mark.parametrize("after", [1062.0, 1073.0, 2000.0])
def test_a_model_that_is_not_faster_is_given_back(after, upconv_is_faster, monkeypatch) -> None:
    monkeypatch.setattr(trials, "best_of", lambda *_: [1062.0, after])
    model = ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))
    assert type(model) is nn.Sequential
    assert type(model[0]) is nn.ConvTranspose2d
    assert {layer.why for layer in ut.report(model).layers} == {"the whole model was not faster"}
    line = f"The whole model: 1062.00 ms before, {after:.2f} after: not faster, so it is unchanged."
    assert str(ut.report(model)).endswith(line)


def test_the_whole_is_compared_on_all_inputs_and_only_if_a_layer_is_taken(monkeypatch) -> None:
    shapes = []

    class Noted(Vocoder):
        def forward(self, x):
            shapes.append(x.shape[-1])
            return super().forward(x)

    def measured(_model, found, *_):
        return {each: trials.Times(2.0, 1.0 if faster else 3.0, timed=True) for each in found}

    def best_of(calls, _seconds, _last, switch):
        for i, call in enumerate(calls):
            switch(i)
            call()
            layers.append(type(model.first).__name__)
        return [2.0, 1.0]

    monkeypatch.setattr(trials, "measured", measured)
    monkeypatch.setattr(trials, "best_of", best_of)
    inputs, layers, model = [torch.randn(1, 5, length) for length in (7, 12)], [], Noted().eval()
    faster = False
    report = ut.report(ut.accelerate(model, inputs))
    assert shapes == []
    assert "unchanged" in str(report)
    faster = True
    report = ut.report(ut.accelerate(model, inputs))
    assert shapes == [7, 12, 7, 12]
    assert str(report).endswith("The whole model: 2.00 ms before, 1.00 after.")


class Clock:
    """A clock that only runs of a model move, a second each."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(trials, "rest", lambda: None)
        for module in (trials, acceleration):
            monkeypatch.setattr(module, "time", self)

    def perf_counter(self) -> float:
        return self.now

    def model(self):
        model = dcgan()
        model.register_forward_pre_hook(self.tick)
        return model

    def tick(self, *_) -> None:
        self.now += 1.0


@pytest.mark.parametrize(
    ("seconds", "training"), [(0, False), (12, False), (60, False), (60, True)]
)
def test_seconds_bound_the_measuring(seconds, training, monkeypatch) -> None:
    clock = Clock(monkeypatch)
    monkeypatch.setattr(trials, "GAIN", 2.0)
    monkeypatch.setattr(
        trials, "choice", lambda cases: trials.Ours.ALL if cases else trials.Ours(0)
    )
    x = [torch.randn(2, 6, 1, 1), torch.randn(1, 6, 1, 1)]
    model = ut.accelerate(clock.model(), x, seconds=seconds, training=training)
    # A round of two runs, and where a layer was taken four runs of both inputs' comparison.
    assert seconds / 2 <= clock.now <= seconds + (2 + 8) * (1 + training)
    late = {layer.why for layer in ut.report(model).layers} == {"no time was left"}
    assert late == (seconds == 0)
    assert not late or type(model[0]) is nn.ConvTranspose2d
    for wrong in (-1, "1", float("nan")):
        with pytest.raises(ArgumentError, match="seconds is "):
            ut.accelerate(model, x, seconds=wrong)


@pytest.mark.usefixtures("upconv_is_faster")
def test_progress_is_told_to_a_function_or_a_terminal(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    steps, terminal, file = [], Terminal(), io.StringIO()
    x = torch.randn(2, 6, 1, 1)
    monkeypatch.setattr(sys, "stderr", terminal)
    ut.accelerate(dcgan(), x, training=True, progress=lambda *step: steps.append(step))
    assert {what for what, _, _ in steps} == {
        "layers, input 1 of 1, round",
        "the whole model",
        "training, layer",
        "the whole training step",
    }
    assert [i for what, i, of in steps if what == "training, layer" and of == 3] == [1, 2, 3]
    assert terminal.getvalue() == ""
    ut.accelerate(dcgan(), x)
    assert "upconv measures: the whole model, 1 of 1" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[K")
    monkeypatch.setattr(sys, "stderr", file)
    ut.accelerate(dcgan(), x)
    assert file.getvalue() == ""


@pytest.mark.usefixtures("upconv_is_faster")
@pytest.mark.parametrize("name", ["processor", "threads", "upconv", "torch"])
def test_decisions_that_were_measured_elsewhere_are_told(name, tmp_path) -> None:
    path, x = tmp_path / "decisions.json", torch.randn(2, 6, 1, 1)
    ut.report(ut.accelerate(dcgan(), x)).save(path)
    ut.accelerate(dcgan(), decisions=path)
    content = json.loads(path.read_text())
    assert content["processor"] == processor_model() != ""
    content[name] = 17 if name == "threads" else "another"
    path.write_text(json.dumps(content))
    with pytest.warns(RuntimeWarning, match=f"were measured with {name} .* \\(here "):
        model = ut.accelerate(dcgan(), decisions=path)
    assert type(model[0]) is ut.ConvTranspose2d
    assert getattr(ut.report(model), name) == content[name]


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
    "threads": lambda content, first: content.update(threads="2"),
    "processor": lambda content, first: content.pop("processor"),
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
    with pytest.raises(FileError, match="missing"):
        ut.accelerate(model, decisions=tmp_path / "missing.json")
    with pytest.raises(FileError, match="is a directory"):
        ut.accelerate(model, decisions=tmp_path)
    with pytest.raises(FileError, match="Cannot write"):
        reports.Report().save(tmp_path / "none" / "decisions.json")


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
    assert report.before > 0 or not any(layer.replaced for layer in report.layers)
    assert "times as fast" in str(report) or "not faster" in str(report)
