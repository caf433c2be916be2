"""`accelerate`, `report` and `restore`: what is replaced, and what is kept."""

import copy
import io
import sys

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import upconv.torch as ut  # noqa: E402
from tests.support.made_up_clock import MadeUpClock  # noqa: E402
from tests.support.small_models import MODELS, Vocoder, close, dcgan, two_of  # noqa: E402
from upconv.errors import ArgumentError, DTypeError  # noqa: E402
from upconv.measuring import Choice, Outcome  # noqa: E402
from upconv.torch import acceleration, packing, selection, swaps, trials  # noqa: E402
from upconv.torch.forwards import Forward  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")


def pair(name):
    build, shape = MODELS[name]
    return *two_of(build), torch.randn(shape)


def classes(model):
    """Each module's class; a parametrized one has its own, and its name and base are compared."""
    kinds = [type(each) for each in model.modules()]
    return [(kind.__name__, kind.__bases__) for kind in kinds]


def hook_classes(model):
    return [[*map(type, each._forward_pre_hooks.values())] for each in model.modules()]


def layer_rows(model):
    """The rows of the layers in a model's report, parts left out."""
    return [row for row in ut.report(model).rows if "inference" in row.details]


@pytest.mark.usefixtures("layers_are_faster")
@pytest.mark.parametrize("name", MODELS)
class TestEveryModel:
    def test_has_the_values_it_had_and_packs_once(self, name) -> None:
        model, plain, x = pair(name)
        keys = list(model.state_dict())
        assert ut.accelerate(model, x) is model
        assert len(layer_rows(model)) == {"dcgan": 3, "unet": 4, "vocoder": 3}[name]
        assert all(row.details["inference"] for row in layer_rows(model))
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
        before, hooks = classes(model), hook_classes(model)
        ut.accelerate(model, x)
        assert ut.restore(model) is model
        assert classes(model) == before
        assert hook_classes(model) == hooks
        with torch.no_grad():
            assert torch.equal(model(x), plain(x))
        with pytest.raises(ArgumentError, match="model is not accelerated"):
            ut.report(model)

    @pytest.mark.parametrize("training", [False, True])
    def test_trains_as_before_or_by_upconv_where_asked(self, name, training) -> None:
        """In train mode PyTorch's operators compute, unless training was asked for."""
        model, plain, x = pair(name)
        ut.accelerate(model, x, training=training)
        if training:
            assert {row.details["training"] for row in layer_rows(model)} == {7}
        for each in (model, plain):
            torch.manual_seed(3)
            each.train()(x).square().mean().backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert close(one.grad, other.grad, 1e-4 if training else 0.0)

    def test_decisions_are_saved_and_applied(self, name, tmp_path) -> None:
        model, plain, x = pair(name)
        ut.accelerate(model, x, training=True)
        ut.report(model).save(tmp_path / "decisions.json")
        ut.accelerate(plain, decisions=tmp_path / "decisions.json")
        assert classes(plain) == classes(model)
        with torch.no_grad():
            assert torch.equal(model(x), plain(x))
        assert ut.report(plain) == ut.report(model)

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


@pytest.mark.usefixtures("layers_are_faster")
@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", NORMS)
class TestParametrizations:
    def both(self, kind, **more):
        model, plain = two_of(lambda: normed(kind))
        x = torch.randn(2, 3, 9)
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
    shapes = [torch.randn(1, 5, length) for length in (7, 12, 9)]
    ut.accelerate(model, [shapes[0], (shapes[1],), {"x": shapes[2]}])
    assert ut.report(model).rows[0].by == "upconv"
    for wrong in ([], None, shapes * 2):
        with pytest.raises(ArgumentError, match="example_inputs"):
            ut.accelerate(model, wrong)
    for wrong, kind in (
        (shapes[0].shape, "a tuple of int"),
        (shapes[0].numpy(), "of type ndarray"),
    ):
        with pytest.raises(ArgumentError, match=f"{kind}; expected .* torch.from_numpy"):
            ut.accelerate(model, wrong)
    with pytest.raises(ArgumentError, match="model is of type list"):
        ut.accelerate([], shapes[0])


def test_a_layer_is_taken_only_where_it_surely_pays() -> None:
    assert trials.Samples([2.0] * 3, [1.0] * 3).verdict() == (2.0, 1.0, "")
    assert "it is not faster: " in trials.Samples([2.0] * 3, [2.1] * 3).verdict().why
    assert "it is not faster: " in trials.Samples([2.0, 9, 1], [1.0, 8, 2]).verdict().why
    assert trials.Samples([2.0] * 3).verdict() == (2.0, None, "no time was left")
    assert trials.Samples([0.0], [0.0]).verdict() == (None, None, "not called")
    assert trials.Samples([2.0] * 3, [1.0] * 3, "it differs").verdict().why == "it differs"


@pytest.mark.usefixtures("layers_are_faster")
@pytest.mark.parametrize(
    ("seconds", "undecided"), [(0.002, ""), (0.003, ""), (0.001, "there was time for 2 rounds")]
)
def test_a_model_that_is_not_faster_is_given_back(seconds, undecided, monkeypatch) -> None:
    why = "it is not faster beyond the noise"

    def choose(ways, **_):
        outcomes = Outcome(ways[0].name, 0.002), Outcome(ways[1].name, seconds, why=why)
        return Choice(ways[0].name, outcomes, 2, undecided)

    monkeypatch.setattr(selection, "choose", choose)
    model = ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))
    assert classes(model) == classes(dcgan())
    assert "forward" not in vars(model)
    assert {row.by for row in ut.report(model).rows} == {"PyTorch"}
    line = str(ut.report(model)).splitlines()[-1]
    assert line.startswith(f"PyTorch runs the model as it is: {undecided}")


def test_a_report_says_that_the_runs_were_spent(monkeypatch) -> None:
    def choose(ways, **_):
        outcomes = Outcome(ways[0].name, 0.002), Outcome(ways[1].name, 0.003, why="slow")
        return Choice(ways[0].name, outcomes, 20)

    monkeypatch.setattr(selection, "choose", choose)
    model = ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))
    whys = {row.why for row in layer_rows(model)}
    assert whys == {"too few of the model's 30 runs were left"}


@pytest.mark.usefixtures("upconv_is_faster")
def test_a_part_of_one_layer_is_named_by_it() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(6, 8, 4, 2), nn.ReLU()).eval()
    rows = ut.report(ut.accelerate(model, torch.randn(2, 6, 5, 5))).rows
    assert rows[0].name == "part 1: 0"


@pytest.fixture
def clock(monkeypatch) -> MadeUpClock:
    return MadeUpClock(monkeypatch, trials, acceleration, selection)


def ticking(clock, seconds):
    """A model whose every run takes some seconds."""
    model = dcgan()
    model.register_forward_pre_hook(lambda *_: clock.advance(seconds))
    return model


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("captured", [True, False])
def test_the_model_runs_at_most_thirty_times(count, captured, clock, monkeypatch) -> None:
    if not captured:
        monkeypatch.setattr(Forward, "capture", unwatchable)
    budget = trials.Budget(10_000.0, selection.MAX_RUNS, lambda *_: None)
    monkeypatch.setattr(acceleration, "Budget", lambda *_: budget)
    inputs = [torch.randn(n, 6, 1, 1) for n in range(1, count + 1)]
    ut.accelerate(ticking(clock, 0.01), inputs)
    assert round(clock.now / 0.01) == 30 - budget.runs <= 30


def unwatchable(*_):
    raise selection.Unwatchable("a test says so")


@pytest.mark.parametrize("seconds", [0, 12])
def test_seconds_bound_the_measuring(seconds, clock) -> None:
    x = torch.randn(2, 6, 1, 1)
    model = ut.accelerate(ticking(clock, 1.0), x, seconds=seconds)
    assert clock.now <= seconds + 3
    if not seconds:
        assert classes(model) == classes(dcgan())
    for wrong in (-1, "1", float("nan")):
        with pytest.raises(ArgumentError, match="seconds is "):
            ut.accelerate(model, x, seconds=wrong)


@pytest.mark.usefixtures("layers_are_faster")
def test_progress_is_told_to_a_function_or_a_terminal(monkeypatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    steps, terminal, file = [], Terminal(), io.StringIO()
    x = torch.randn(2, 6, 1, 1)
    monkeypatch.setattr(sys, "stderr", terminal)
    ut.accelerate(dcgan(), x, training=True, progress=lambda *step: steps.append(step))
    assert {what for what, _, _ in steps} == {
        "capturing the model",
        "measuring the layers, round",
        "measuring training, layer",
    }
    assert [i for what, i, of in steps if "training, layer" in what and of == 3] == [1, 2, 3]
    assert terminal.getvalue() == ""
    ut.accelerate(dcgan(), x)
    lines = terminal.getvalue().split("\r")
    assert any(line.startswith("capturing the model (1 of 1)") for line in lines)
    assert lines[-2].isspace()  # the line is cleared
    monkeypatch.setattr(sys, "stderr", file)
    ut.accelerate(dcgan(), x)
    assert file.getvalue() == ""
    with pytest.raises(DTypeError, match="progress is 3; expected a function"):
        ut.accelerate(dcgan(), x, progress=3)


def test_wrong_results_are_not_taken(layers_are_faster, monkeypatch) -> None:
    from upconv.torch import modules

    right = modules.convolved
    monkeypatch.setattr(modules, "convolved", lambda *args: right(*args) * 1.01)
    model = ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))
    assert all("differs by" in row.why for row in layer_rows(model))
    assert {row.by for row in ut.report(model).rows} == {"PyTorch"}


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


def test_whatever_is_chosen_values_agree() -> None:
    """With the real clock."""
    model, x = dcgan(12, 16), torch.randn(4, 12, 1, 1)
    with torch.no_grad():
        expected = model(x)
        ut.accelerate(model, x)
        assert close(model(x), expected)
    report = ut.report(model)
    assert len(report.rows) >= 3
    assert report.why or report.before > report.after > 0


def test_a_filter_leaves_layers_out(upconv_is_faster) -> None:
    calls, x = [], torch.randn(2, 6, 1, 1)

    def only_last(name, module):
        calls.append((name, type(module)))
        return name == "7"

    model = ut.accelerate(dcgan(), x, filter_fn=only_last)
    assert calls == [(name, nn.ConvTranspose2d) for name in "037"]
    part, *rows = ut.report(model).rows
    assert (part.layers, part.details["layers"]) == (1, ["7"])
    assert [row.name for row in rows if "inference" in row.details] == ["7"]


def test_a_module_in_training_mode_inside_a_model_in_eval_mode(upconv_is_faster) -> None:
    """Copies of einops' layers are in training mode, whatever the model's is."""
    layers = nn.Conv1d(4, 8, 3), nn.Identity(), nn.ReLU(), nn.Conv1d(8, 4, 3)
    model, x = nn.Sequential(*layers).eval(), torch.randn(1, 4, 30)
    model[1].train()
    with torch.no_grad():
        expected = model(x)
        ut.accelerate(model, x)
        assert model[1].training
        forward = vars(model).get("forward")
        assert forward is not None
        assert forward._snapshot.holds()
        assert torch.allclose(model(x), expected, atol=1e-5)


def test_a_model_in_bfloat16_is_judged_by_float32_where_pytorch_is_rough(monkeypatch) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Conv1d(48, 48, 7, padding=3), nn.ReLU())]
    model = nn.Sequential(*layers).eval().bfloat16()
    chosen = selection.Selection.__new__(selection.Selection)
    x = torch.randn(1, 48, 300).bfloat16()
    vars(chosen).update(model=model, timed=((x,), {}), layers=[], _selected=[])
    (truth,) = chosen._in_float32()
    with torch.no_grad():
        exact = copy.deepcopy(model).float()(x.float())
    assert truth.dtype == "float32"
    assert torch.equal(torch.from_numpy(truth), exact)
    assert chosen._is_16_bit()
    monkeypatch.setattr(copy, "deepcopy", lambda _: (_ for _ in ()).throw(RuntimeError))
    assert chosen._in_float32() == []
