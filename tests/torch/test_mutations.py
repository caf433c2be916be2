"""Models that change after they were accelerated: each change alone, and many in random order.

A change is made to an accelerated model and to its twin of PyTorch's own classes. Values,
gradients, buffers, what hooks see, and errors must stay alike.
"""

import copy
import pickle
import random
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.modules import module as module_hooks  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402

import upconv.torch as ut  # noqa: E402
from tests.support.small_models import close, stirred  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread", "upconv_is_faster", "no_global_hooks"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning"),
]

SEEN: list[tuple[str, float]] = []
"""What hooks and replaced methods were given, of the model that runs."""


@pytest.fixture
def no_global_hooks():
    yield
    for name in ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks"):
        getattr(module_hooks, name).clear()


def generator() -> nn.Sequential:
    """Runs of every kind, one after the other and inside each other."""
    model = stirred(
        nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3, 2, 1, bias=False),
            nn.BatchNorm2d(4),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4, 4, 3, padding=1, groups=2),
            nn.Dropout(0.5),
            nn.BatchNorm2d(4),
            nn.SiLU(),
            nn.Sequential(nn.ConvTranspose2d(4, 4, 2, 2), nn.Identity(), nn.ReLU(inplace=True)),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.GELU(),
        )
    )
    model[9].affine, model[9].weight, model[9].bias = False, None, None
    return model


class Watch:
    """A hook of any kind, or a `forward`, that notes its module and the sum of a tensor."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *arguments):
        values = [each for each in arguments[1:] if not isinstance(each, dict)]
        values = [each[0] if isinstance(each, tuple) else each for each in values]
        SEEN.append((self.name, *(float(each.detach().double().sum()) for each in values)))


class Doubled:
    """A `forward` for an instance: twice the class's."""

    def __init__(self, module) -> None:
        self.module = [module]

    def __call__(self, x):
        (module,) = self.module
        SEEN.append(("forward", float(x.detach().double().sum())))
        return 2 * type(module).forward(module, x)


class Mine(nn.LeakyReLU):
    def forward(self, x):
        return x.abs()


class Twice(nn.Module):
    def forward(self, weight):
        return 2 * weight


def put(i, make):
    """The module at a position is replaced."""

    def change(model):
        model[i % len(model)] = make().eval()

    return change


def on(i, name, value):
    """An attribute of the module at a position is set."""
    return lambda model: setattr(model[i % len(model)], name, value)


def changed(name, model):
    """A change with its own random numbers."""
    torch.manual_seed(3)
    with torch.no_grad():
        CHANGES[name](model)


def hooked(i, kind, **more):
    def change(model):
        getattr(model[i % len(model)], f"register_{kind}")(Watch(f"{kind} {i}"), **more)

    return change


def weights(change):
    def every(model):
        for each in model.parameters():
            change(each)

    return every


def at(i, change):
    return lambda model: change(model[i % len(model)])


def swapped(model):
    model[0], model[3] = model[3], model[0]
    model[3].stride, model[3].padding = 1, (1, 1)  # numbers, as PyTorch takes them
    with torch.no_grad():
        model[3].weight.mul_(0.5)


def parameter(model):
    model[0].weight = nn.Parameter(model[0].weight.detach() * 0.5)


def plain_weight(model):
    weight = model[3].weight.detach() * 0.5
    del model[3].weight
    model[3].weight = weight.requires_grad_()


def shared(model):
    model[9], model[5] = model[1], model[1]


def unparametrized(model):
    parametrizations.weight_norm(model[3])
    parametrize.remove_parametrizations(model[3], "weight")


CHANGES = {
    **{
        f"hook {k} {i}": hooked(i, k)
        for k in ("forward_hook", "forward_pre_hook")
        for i in range(2)
    },
    **{f"backward hook {i}": hooked(i, "full_backward_hook") for i in range(2)},
    "backward pre-hook": hooked(1, "full_backward_pre_hook"),
    "hook with keywords": hooked(0, "forward_hook", with_kwargs=True),
    "pre-hook with keywords": hooked(0, "forward_pre_hook", with_kwargs=True),
    "hook on dropout": hooked(4, "forward_hook"),
    "hook on identity": lambda model: model[7][1].register_forward_hook(Watch("identity")),
    "hook on the whole": lambda model: model.register_forward_hook(Watch("whole")),
    "another slope": on(2, "negative_slope", 0.9),
    "another activation": put(2, lambda: nn.LeakyReLU(0.7)),
    "another kind": put(2, nn.Sigmoid),
    "a subclass": put(2, Mine),
    "eps": on(1, "eps", 0.7),
    "approximate": on(10, "approximate", "tanh"),
    "circular": on(3, "padding_mode", "circular"),
    "padding": on(3, "padding", 2),
    "padding same": on(3, "padding", "same"),
    "padding valid": on(8, "padding", "valid"),
    "stride": on(0, "stride", 1),
    "dilation": on(3, "dilation", (2, 1)),
    "no bias": on(3, "bias", None),
    **{f"forward {i}": at(i, lambda m: setattr(m, "forward", Doubled(m))) for i in (0, 1)},
    "no statistics": put(1, lambda: nn.BatchNorm2d(4, track_running_stats=False)),
    "statistics off": on(1, "track_running_stats", False),
    "one statistic": on(1, "running_var", None),
    "no factor": on(1, "weight", None),
    "no term": on(1, "bias", None),
    "another norm": put(1, lambda: stirred(nn.BatchNorm2d(4))),
    "instance norm": put(1, lambda: nn.InstanceNorm2d(4, track_running_stats=True)),
    "narrow norm": put(1, lambda: stirred(nn.BatchNorm2d(1))),
    "norm of another rank": put(1, lambda: stirred(nn.BatchNorm1d(4))),
    "statistics written": at(1, lambda m: m.running_mean.add_(1)),
    "statistics replaced": lambda model: setattr(model[1], "running_var", torch.ones(4)),
    "statistics by data": at(1, lambda m: m.running_var.data.mul_(2)),
    "shared norm": shared,
    "swapped": swapped,
    "inserted": lambda model: model.insert(1, nn.Tanh()),
    "removed": lambda model: model.pop(2),
    "first removed": lambda model: model.__delitem__(0) or model.insert(0, nn.Conv2d(3, 4, 1)),
    "appended": lambda model: model.append(nn.Tanh()),
    "written": weights(lambda p: p.data.mul_(0.7)),
    "replaced data": weights(lambda p: setattr(p, "data", torch.randn_like(p) * 0.3)),
    "loaded": lambda m: m.load_state_dict({k: v + 0.1 for k, v in m.state_dict().items()}),
    "parameter": parameter,
    "tensor for a parameter": plain_weight,
    "frozen": lambda model: model.requires_grad_(False),
    "one trains": at(1, lambda m: m.train()),
    "dropout trains": at(4, lambda m: m.train()),
    "all train": lambda model: model.train(),
    "train and eval": lambda model: model.train().eval(),
    "double": lambda model: model.double(),
    "layer in float64": at(3, lambda m: m.double()),
    "channels last": lambda model: model.to(memory_format=torch.channels_last),
    "meta": lambda model: model.to("meta"),
    "weight norm": at(3, lambda m: parametrizations.weight_norm(m)),
    "old weight norm": at(3, lambda m: nn.utils.weight_norm(m)),
    "spectral norm": at(3, lambda m: parametrizations.spectral_norm(m) and None),
    "parametrized norm": at(
        1, lambda m: parametrize.register_parametrization(m, "weight", Twice())
    ),
    "unparametrized": unparametrized,
}
COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda model: pickle.loads(pickle.dumps(model))}


def outcome(model, x, graded):
    """Everything a call shows: the result or the error, gradients, buffers and hooks' notes."""
    SEEN.clear()
    torch.manual_seed(1)
    try:
        with torch.set_grad_enabled(graded), warnings.catch_warnings():
            y = model(x.to(next(model.parameters())))
            if y.requires_grad:
                y.square().sum().backward()
    except (RuntimeError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        return type(error), [], []
    tensors = [y.detach(), *(buffer for _, buffer in sorted(model.named_buffers()))]
    tensors += [each.grad for _, each in sorted(model.named_parameters()) if each.grad is not None]
    model.zero_grad()
    return None, [each.detach().clone() for each in tensors], list(SEEN)


def alike(model, plain, x, graded=False) -> None:
    """Fail unless both models do the same, twice (what is packed is used the second time)."""
    for _ in range(1 if graded else 2):
        ours, theirs = outcome(model, x, graded), outcome(plain, x, graded)
        assert ours[0] is theirs[0]
        assert len(ours[1]) == len(theirs[1])
        for one, other in zip(ours[1], theirs[1], strict=True):
            assert one.shape == other.shape
            assert one.is_meta or close(one.double(), other.double(), 3e-5)
        assert [note[0] for note in ours[2]] == [note[0] for note in theirs[2]]
        for one, other in zip(ours[2], theirs[2], strict=True):
            assert one[1:] == pytest.approx(other[1:], rel=1e-3, abs=1e-2)


def twins():
    plain, x = generator(), torch.randn(2, 3, 5, 4)
    model = ut.accelerate(copy.deepcopy(plain), x)
    assert [row.layers for row in ut.report(model).rows if row.by == "upconv"] == [4]
    outcome(model, x, False), outcome(plain, x, False)
    return model, plain, x


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_followed(name) -> None:
    model, plain, x = twins()
    for each in (model, plain):
        changed(name, each)
    alike(model, plain, x)
    alike(model, plain, x, graded=True)
    alike(ut.restore(model), plain, x)


@pytest.mark.parametrize("name", CHANGES)
def test_what_there_was_before_is_kept(name) -> None:
    """The same changes, made before the model is accelerated."""
    plain, x = generator(), torch.randn(2, 3, 5, 4)
    changed(name, plain)
    if outcome(copy.deepcopy(plain), x, False)[0] is not None:
        return
    model = copy.deepcopy(plain)
    alike(ut.accelerate(model, x.to(next(model.parameters()))), plain, x)


@pytest.mark.parametrize("seed", range(12))
def test_changes_in_random_order_are_followed(seed) -> None:
    draw = random.Random(seed)
    model, plain, x = twins()
    names = []
    for _ in range(5):
        names.append(draw.choice([name for name in CHANGES if name != "meta"]))
        print(names)
        failures = []
        for each in (model, plain):
            try:
                changed(names[-1], each)
                failures.append(None)
            except Exception as error:
                failures.append(type(error))
        assert failures[0] is failures[1]
        alike(model, plain, x, draw.random() < 0.3)


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
def test_copies_are_accelerated_and_follow_their_own_changes(copied) -> None:
    model, plain, x = twins()
    other, twin = copied(model), copied(plain)
    for name in ("another slope", "written", "statistics written", "hook forward_hook 0"):
        alike(other, twin, x)
        changed(name, other)
        changed(name, twin)
        alike(other, twin, x)
    alike(model, plain, x)


@pytest.mark.parametrize("kind", ["forward_pre_hook", "forward_hook", "full_backward_hook"])
def test_hooks_of_all_modules_are_called(kind) -> None:
    model, plain, x = twins()
    handle = getattr(module_hooks, f"register_module_{kind}")(lambda m, *_: SEEN.append((repr(m),)))
    alike(model, plain, x, True)
    alike(model, plain, x, False)
    handle.remove()
    alike(model, plain, x)
