"""What `accelerate` makes of code: whatever a graph cannot stand for runs as it is written."""

from __future__ import annotations

import copy
import types
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")
from torch import fx, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from upconv.torch import (  # noqa: E402
    accelerate,
    accelerate_model,
    accelerate_trials,
    acceleration_report,
    rewrite,
)
from upconv.torch.accelerate_swaps import is_swapped  # noqa: E402

BOUND = 2e-5
GAIN = 1.0


@pytest.fixture(autouse=True)
def fused_wherever_it_can_be(monkeypatch):
    """Every trial says that fused is fastest, and the whole model faster too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    clock = lambda *ways: [way() is None or seconds for way, seconds in zip(ways, (2.0, 1.0, 1.5))]  # noqa: E731, B905
    monkeypatch.setattr(accelerate_trials, "best_of", clock)
    monkeypatch.setattr(accelerate_model, "_slower", lambda _: False)
    monkeypatch.setattr(accelerate_model, "_SECONDS", 0.01)
    yield
    torch.set_num_threads(before)


class Up(nn.Module):
    """A deconvolution with a normalisation, to be called by code of its own."""

    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.up, self.bn = nn.ConvTranspose2d(6, 5, 4, 2, 1), nn.BatchNorm2d(5)
        nn.init.uniform_(self.bn.running_var, 0.5, 2)
        nn.init.normal_(self.bn.running_mean)
        self.config, self.log, self.scale = types.SimpleNamespace(gain=1.0), [], 1.0
        self.inner = nn.Identity()
        self.inner.gain = 1.0

    def forward(self, x):
        return torch.relu(self.bn(self.up(x)))


def example() -> torch.Tensor:
    return torch.randn(2, 6, 4, 5)


def near(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= BOUND)


def accelerated(forward=None) -> nn.Module:
    own = type("Own", (Up,), {} if forward is None else {"forward": forward})
    return accelerate(own().eval(), example())


def fuses(model: nn.Module) -> bool:
    return " + " in acceleration_report(model).layers[0].before


def test_plain_code_is_fused() -> None:
    model = accelerated()
    assert fuses(model)
    assert is_swapped(model)


def of_config(self, x):
    return torch.relu(self.bn(self.up(x))) * self.config.gain


def of_inner(self, x):
    return torch.relu(self.bn(self.up(x))) * self.inner.gain


def of_class(self, x):
    return torch.relu(self.bn(self.up(x))) * self.gain


def of_global(self, x):
    return torch.relu(self.bn(self.up(x))) * GAIN


def of_scale(self, x):
    return torch.relu(self.bn(self.up(x))) * self.scale


@pytest.mark.parametrize("forward", [of_config, of_inner, of_class, of_global, of_scale])
def test_what_the_code_reads_may_change(forward, monkeypatch) -> None:
    model = accelerated(forward)
    x = example()
    with torch.no_grad():
        before = model(x)
        model.config.gain = model.inner.gain = model.scale = 3.0
        type(model).gain = 3.0
        monkeypatch.setitem(globals(), "GAIN", 3.0)
        assert near(model(x), 3 * before)


def test_another_forward_of_the_class_is_seen() -> None:
    model = accelerated()
    x = example()
    with torch.no_grad():
        before = model(x)
        original = type(model).__bases__[0]
        original.forward = lambda self, x: -torch.relu(self.bn(self.up(x)))
        assert near(model(x), -before)


def test_what_the_code_keeps_is_of_the_call() -> None:
    def keeping(self, x):
        self.features = torch.relu(self.bn(self.up(x)))
        self.log.append(self.features)
        return self.features

    model = accelerated(keeping)
    assert {type(each) for each in model.log} == {torch.Tensor}
    model.log.clear()
    with torch.no_grad():
        out = model(example())
    assert model.features is out
    assert len(model.log) == 1


def test_containers_keep_their_type() -> None:
    def named(self, x):
        return OrderedDict(out=torch.relu(self.bn(self.up(x))))

    with torch.no_grad():
        assert type(accelerated(named)(example())) is OrderedDict


class Joined(Up):
    """Two branches that meet in a sum: both could take it in."""

    def __init__(self) -> None:
        super().__init__()
        self.skip, self.sbn = nn.ConvTranspose2d(6, 5, 2, 2), nn.BatchNorm2d(5)

    def forward(self, x):
        return torch.relu(self.bn(self.up(x)) + self.sbn(self.skip(x)))


def test_two_branches_that_meet_are_both_fused() -> None:
    model, x = Joined().eval(), example()
    with torch.no_grad():
        before = model(x)
    accelerate(model, x)
    assert [layer.before.count("+") for layer in acceleration_report(model).layers] == [3, 1]
    with torch.no_grad():
        assert near(model(x), before)


def test_a_failure_leaves_the_model_as_it_was(monkeypatch) -> None:
    model, x = Joined().eval(), example()

    def failing(*_: object) -> None:
        raise RuntimeError("no clock")

    monkeypatch.setattr(accelerate_model, "_timed", failing)
    with pytest.raises(RuntimeError, match="no clock"):
        accelerate(model, x)
    assert not any(map(is_swapped, model.modules()))


class TestFollowers:
    def model(self, *followers: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.ConvTranspose2d(6, 5, 4, 2, 1), *followers).eval()

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize("place", [0, 1])
    def test_a_forward_of_their_own_is_called(self, late: bool, place: int) -> None:
        model, x = self.model(nn.ReLU()), example()
        if late:
            accelerate(model)
        model[place].forward = lambda t: functional.pad(t, (1, 1, 1, 1)) * 7
        with torch.no_grad():
            wanted = copy.deepcopy(model[1])(copy.deepcopy(model[0])(x))
            assert near(model(x) if late else accelerate(model)(x), wanted)
        if not late and place:
            assert not fuses(model)

    def test_hooks_of_all_modules_see_each(self) -> None:
        model, seen = accelerate(self.model(nn.ReLU())), []
        hook = nn.modules.module.register_module_forward_hook(
            lambda module, *_: seen.append(type(module).__name__)
        )
        with torch.no_grad():
            model(example())
        hook.remove()
        assert "ReLU" in seen

    def test_an_activation_set_otherwise_is_still_done(self) -> None:
        model, x = accelerate(self.model(nn.GELU())), example()
        model[1].approximate = "tanh"
        with torch.no_grad():
            wanted = functional.gelu(model[0](x), approximate="tanh")
            assert near(model(x), wanted)

    @pytest.mark.parametrize("stride", [2, [2, 2]])
    def test_a_stride_set_later_counts(self, stride: object) -> None:
        model, x = accelerate(self.model(nn.ReLU())), example()
        with torch.no_grad():
            wanted = model(x)
            model[0].stride = stride
            assert near(model(x), wanted)

    def test_too_few_axes_are_refused_as_pytorch_does(self) -> None:
        with torch.no_grad(), pytest.raises(RuntimeError):
            accelerate(self.model(nn.ReLU()))(torch.randn(6))


def test_a_result_written_elsewhere_is_not_fused_away() -> None:
    def into(self, x, out):
        torch.tanh(self.up(x), out=out)
        return out

    x = example()
    model = type("Own", (Up,), {"forward": into})().eval()
    out = torch.zeros(2, 5, 8, 10)
    with torch.no_grad():
        rewrite(fx.symbolic_trace(model))(x, out)
        assert near(out, torch.tanh(model.up(x)))


def test_a_slope_that_is_no_number_is_left() -> None:
    def sloped(self, x, slope):
        return functional.leaky_relu(self.up(x), slope)

    model = type("Own", (Up,), {"forward": sloped})().eval()
    x = example()
    with torch.no_grad():
        wanted = model(x, 0.3)
        assert near(rewrite(fx.symbolic_trace(copy.deepcopy(model)))(x, 0.3), wanted)
        assert near(accelerate(model, (x, 0.3))(x, 0.3), wanted)


class Keyed(nn.Module):
    def __init_subclass__(cls, *, key: int, **rest: object) -> None:
        super().__init_subclass__(**rest)


def test_a_class_that_cannot_be_derived_from_runs_its_own_code() -> None:
    class Own(Keyed, key=1):
        __init__, forward = Up.__init__, Up.forward

    Own.__init__ = lambda self: (Keyed.__init__(self), _fill(self))[0]
    model, x = Own().eval(), example()
    with torch.no_grad():
        before = model(x)
        assert near(accelerate(model, x)(x), before)
    assert not is_swapped(model)


def _fill(module: nn.Module) -> None:
    module.up, module.bn = nn.ConvTranspose2d(6, 5, 4, 2, 1), nn.BatchNorm2d(5)
