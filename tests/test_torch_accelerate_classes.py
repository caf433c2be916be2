"""Classes of people: what they ask of themselves, what is made of them, how they are pickled."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.utils import parametrizations  # noqa: E402

from accelerated_models import Up, example, fuses, same  # noqa: E402
from upconv.torch import accelerate, accelerate_swaps, acceleration_report, restore  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread", "upconv_is_faster")


class OwnSuper(Up):
    """Every method here would call itself without end from a class that was made from this one."""

    def train(self, mode: bool = True):
        super(self.__class__, self).train(mode)
        return self


class TypedSuper(Up):
    def forward(self, x):
        return super(type(self), self).forward(x) + 1


class NamedSuper(Up):
    def train(self, mode: bool = True):
        own = type(self)
        super(own, self).train(mode)
        return self


class Climbs(Up):
    def train(self, mode: bool = True):
        return type(self).__mro__[1].train(self, mode)


class OldSuper(Up):
    """Its class by name: nothing to be afraid of."""

    def train(self, mode: bool = True):
        assert type(self).__name__ == "OldSuper"
        return super(OldSuper, self).train(mode)  # noqa: UP008


class HandsSuperOn(Up):
    """Who knows what is done with it: this is left alone."""

    def which(self):
        return super


class PlainSuper(Up):
    def forward(self, x):
        x = x * {"PlainSuper": 1.0}[type(self).__name__]  # pytest rewrites what it asserts
        return torch.tanh(self.bn(self.up(x)))

    def train(self, mode: bool = True):
        return super().train(mode)


@pytest.mark.parametrize(
    "build", [OwnSuper, TypedSuper, NamedSuper, Climbs, HandsSuperOn, OldSuper, PlainSuper]
)
def test_code_that_asks_for_its_own_class_finds_it(build) -> None:
    plain, x = build().train().eval(), example()
    model = accelerate(copy.deepcopy(plain), x)
    assert fuses(model) is (build in (OldSuper, PlainSuper))
    assert type(model).__name__ == type(model).__qualname__ == build.__name__
    with torch.no_grad():
        assert same(model.train().eval()(x), plain(x))


def test_registries_of_classes_keep_the_class_that_they_know() -> None:
    known = {}

    class Registered(Up):
        def __init_subclass__(cls) -> None:
            known[cls.__name__] = cls

    class Own(Registered):
        pass

    model = accelerate(Own().eval(), example())
    assert fuses(model)
    assert known["Own"] is Own
    assert type(restore(model)) is Own


class Final(nn.ConvTranspose2d):
    def __init_subclass__(cls, **_: object) -> None:
        raise TypeError("final")


class Registered(nn.ConvTranspose2d):
    def __init_subclass__(cls, *, name: str) -> None:
        cls.name = name


class Named(Registered, name="up"):
    pass


class Unique(type):
    names: ClassVar[set[str]] = set()

    def __new__(cls, name, bases, space):
        if name in cls.names:
            raise TypeError(f"{name} exists already")
        cls.names.add(name)
        return super().__new__(cls, name, bases, space)


class Once(nn.ConvTranspose2d, metaclass=Unique):
    pass


@pytest.mark.parametrize("inputs", [(), (torch.randn(2, 6, 4, 5),)])
@pytest.mark.parametrize("kind", [Final, Named, Once])
def test_layers_that_no_class_can_be_made_from_are_refused_in_words(kind, inputs) -> None:
    Unique.names.add("AcceleratedOnce")
    model = nn.Sequential(kind(6, 5, 4, 2, 1), nn.ReLU()).eval()
    for _ in range(2):
        (told,) = acceleration_report(accelerate(model, *inputs)).layers
        assert told.after == "as it was"
        assert "no class that does the same" in told.why
        assert type(model[0]) is kind


def test_a_sequence_that_no_class_can_be_made_from_is_not_fused() -> None:
    class Last(nn.Sequential):
        def __init_subclass__(cls) -> None:
            raise TypeError("final")

    model = accelerate(Last(nn.ConvTranspose2d(6, 5, 4, 2, 1), nn.ReLU()).eval())
    (told,) = acceleration_report(model).layers
    assert (told.after, type(model)) == ("upconv", Last)
    assert "no class that does the same" in told.why


class Guarded(Up):
    def __setattr__(self, name, value):
        if name.startswith("__"):
            raise AttributeError(name)
        super().__setattr__(name, value)


def test_a_class_with_a_setattr_of_its_own_is_turned_and_turned_back() -> None:
    model = accelerate(Guarded().eval(), example())
    assert accelerate_swaps.is_swapped(model)
    assert type(restore(model)) is Guarded


def loaded(kind, state):
    made = kind()
    made.load_state_dict(state)
    return made.eval()


class Reduces(Up):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()

    def __reduce__(self):
        return loaded, (Reduces, self.state_dict())


class Asked(Up):
    def __new__(cls, number: int, *, word: str):
        made = super().__new__(cls)
        object.__setattr__(made, "made_with", (number, word))
        return made

    def __init__(self, number: int, *, word: str) -> None:
        super().__init__()

    def __getnewargs_ex__(self):
        return (3,), {"word": "w"}


@pytest.mark.parametrize("build", [Reduces, lambda: Asked(3, word="w")])
def test_a_class_is_pickled_as_it_wants(build) -> None:
    model, x = accelerate(build().eval(), example()), example()
    again = pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        assert same(again(x), model(x))
    assert type(restore(again)) is type(restore(model))
    assert getattr(again, "made_with", None) == getattr(model, "made_with", None)


def test_names_of_parametrized_classes_are_pytorchs() -> None:
    model = accelerate(nn.Sequential(nn.ConvTranspose2d(6, 5, 4, 2, 1)).eval())
    parametrizations.weight_norm(model[0])
    assert type(restore(model)[0]).__name__ == "ParametrizedConvTranspose2d"


class Unrolled(nn.Module):
    """One layer at two places, with different things behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(6, 6, 3, 1, 1)

    def forward(self, x):
        y = torch.relu(self.up(x))
        return self.up(y) + y


@pytest.mark.parametrize("change", ["hook", "pre hook", "forward", "hook of all"])
def test_a_residual_alone_is_not_added_where_others_look(change) -> None:
    plain = Unrolled().eval()
    x = example()
    model = accelerate(copy.deepcopy(plain), x)
    for each in (model, plain):
        if change == "hook":
            each.up.register_forward_hook(lambda *_: torch.zeros(2, 6, 4, 5))
        elif change == "pre hook":
            each.up.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
        elif change == "forward":
            each.up.forward = torch.zeros_like
    seen = []
    hooks = [nn.modules.module.register_module_forward_hook(lambda m, *_: seen.append(m))]
    with torch.no_grad():
        results = [each(x) for each in (model, plain)]
    for hook in hooks:
        hook.remove()
    assert same(*results)
    assert seen == [model.up, model.up, model, plain.up, plain.up, plain]


def test_a_weight_that_a_hook_makes_is_there_for_others() -> None:
    built = []
    for _ in range(2):
        with pytest.warns(FutureWarning):
            layer = nn.utils.weight_norm(nn.ConvTranspose1d(6, 5, 4, 2, 1))
        built.append(nn.Sequential(layer, nn.Tanh()).eval())
    plain, model = built
    accelerate(model)
    x = torch.randn(2, 6, 9)
    with torch.no_grad():
        for factor in (1, 2):
            model.load_state_dict({k: v * factor for k, v in plain.state_dict().items()})
            plain.load_state_dict(model.state_dict())
            assert same(model(x), plain(x))
            assert same(model[0].weight, plain[0].weight)


@pytest.mark.parametrize("kind", ["traced", "scripted", "frozen"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_parts_of_torchscript_are_left_alone(kind) -> None:
    part = nn.Sequential(nn.Conv2d(6, 6, 1), nn.ReLU()).eval()
    part = torch.jit.trace(part, example()) if kind == "traced" else torch.jit.script(part)
    part = torch.jit.freeze(part) if kind == "frozen" else part
    for model in (nn.Sequential(part, nn.ConvTranspose2d(6, 5, 4), nn.ReLU()), part):
        for inputs in ((), (example(),)):
            report = acceleration_report(accelerate(model, *inputs))
            assert [told.replaced for told in report.layers] == [True] * len(report.layers)
        restore(model)


def test_what_refuses_a_rank_is_asked() -> None:
    plain = nn.Sequential(nn.ConvTranspose2d(6, 5, 4), nn.Dropout1d(), nn.ReLU()).eval()
    for model in (plain, accelerate(copy.deepcopy(plain))):
        with pytest.raises(RuntimeError, match="dropout1d"), torch.no_grad():
            model(example())


def test_what_module_compile_compiled_is_left_alone() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(6, 5, 4), nn.ReLU()).eval()
    model.compile(backend="eager")
    with torch.no_grad():
        wanted = model(example())
        (told,) = acceleration_report(accelerate(model, example())).layers
        assert "accelerate before that" in told.why
        assert model(example()).shape == wanted.shape
    torch._dynamo.reset()
