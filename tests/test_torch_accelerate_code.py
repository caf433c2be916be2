"""What `accelerate` makes of code: whatever a graph cannot stand for runs as it is written."""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict

import pytest

torch = pytest.importorskip("torch")
from torch import fx, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from accelerated_models import (  # noqa: E402
    BOUND,
    Up,
    accelerated,
    example,
    fuses,
    same,
)
from upconv.torch import (  # noqa: E402
    accelerate,
    rewrite,
)
from upconv.torch.accelerate_swaps import is_swapped  # noqa: E402
from upconv.torch.fx_step import step  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread", "upconv_is_faster")


GAIN = 1.0


def test_plain_code_is_fused() -> None:
    model = accelerated()
    assert fuses(model)
    assert is_swapped(model)


def of_config(self, x):
    return torch.relu(self.bn(self.up(x))) * self.config.gain


def of_inner(self, x):
    return torch.relu(self.bn(self.up(x))) * self.inner.gain


def of_alias(self, x):
    inner = self.inner
    return torch.relu(self.bn(self.up(x))) * inner.gain


def of_class(self, x):
    return torch.relu(self.bn(self.up(x))) * self.gain


def of_global(self, x):
    return torch.relu(self.bn(self.up(x))) * GAIN


def of_scale(self, x):
    return torch.relu(self.bn(self.up(x))) * self.scale


def of_pair(self, x):
    return torch.relu(self.bn(self.up(x))) * self.pair[0].gain


CHANGES = {
    of_config: "model.config.gain = 3.0",
    of_inner: "model.inner.gain = 3.0",
    of_alias: "model.inner.gain = 3.0",
    of_class: "type(model).__bases__[0].gain = 3.0",
    of_global: "GAIN = 3.0",
    of_scale: "model.scale = 3.0",
    of_pair: "model.pair[0].gain = 3.0",
}


@pytest.mark.parametrize("forward", CHANGES)
def test_what_the_code_reads_may_change(forward, monkeypatch) -> None:
    """Each change is of one thing alone, so that no other tells of it."""
    monkeypatch.setitem(globals(), "GAIN", 1.0)
    model = accelerated(forward)
    x = example()
    with torch.no_grad():
        before = model(x)
        exec(CHANGES[forward], globals() | {"model": model})
        if forward is of_global:
            monkeypatch.setitem(globals(), "GAIN", 3.0)
        assert same(model(x), 3 * before)


def of_part(self, x):
    return self.parts[0](torch.relu(self.bn(self.up(x))))


@pytest.mark.parametrize("kind", [nn.ModuleList, nn.Sequential])
def test_a_part_that_is_picked_may_be_another(kind) -> None:
    own = type("Own", (Up,), {"forward": of_part})().eval()
    own.parts = kind()
    own.parts.append(nn.Identity())
    x = example()
    model = accelerate(own, x)
    assert fuses(model)
    with torch.no_grad():
        before = model(x)
        model.parts[0] = nn.Upsample(scale_factor=2)
        assert same(model(x), nn.Upsample(scale_factor=2)(before))


def test_a_change_that_the_code_does_not_read_is_no_error() -> None:
    model, x = Up().eval(), example()
    model.seen = (torch.ones(2), torch.ones(2))
    accelerate(model, x)
    with torch.no_grad():
        before = model(x)
        model.seen = (torch.ones(2), torch.ones(2))
        assert same(model(x), before)


def by_identity(self, x):
    y = torch.relu(self.bn(self.up(x)))
    return -y if x.dtype is torch.float64 else y


def by_kind(self, x):
    y = torch.relu(self.bn(self.up(x)))
    return y if isinstance(x, torch.Tensor) else -y


def by_chance(self, x):
    return torch.relu(self.bn(self.up(x))) * torch.rand(()).item()


def by_grad(self, x):
    y = torch.relu(self.bn(self.up(x)))
    return -y if x.grad is None else y


def by_failing(self, x):
    y = torch.relu(self.bn(self.up(x)))
    try:
        return -y if bool(y.sum() >= 0) else y
    except TypeError:
        return y


def by_context(self, x):
    with torch.autocast("cpu"):
        return torch.relu(self.bn(self.up(x)))


def by_default(self, x):
    return torch.relu(self.bn(self.up(x))).to(torch.get_default_dtype())


@pytest.mark.parametrize(
    "forward",
    [by_identity, by_kind, by_chance, by_grad, by_failing, by_context, by_default],
)
def test_code_that_asks_more_than_values_is_itself(forward) -> None:
    own = type("Own", (Up,), {"forward": forward})
    model = own().eval()
    original, x = copy.deepcopy(model), example()
    accelerate(model, x)
    assert fuses(model) is (forward is not by_context)
    with torch.no_grad():
        for given in (x, x.double()) if forward is not by_default else (x,):
            if given.dtype is torch.float64:
                model.double(), original.double()
            for _ in range(2):
                torch.manual_seed(3)
                got = model(given)
                torch.manual_seed(3)
                wanted = original(given)
                assert got.dtype is wanted.dtype
                assert (got - wanted).abs().max() <= (0.05 if forward is by_context else BOUND)


class Told(Up):
    """Code that reads buffers, parameters in lists, sets, dicts, patterns and containers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ready", torch.tensor(False))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("factor", torch.tensor(2.0))
        self.scales = nn.ParameterList([nn.Parameter(torch.tensor(2.0))])
        self.bank, self.book = Bank(), nn.ModuleDict({"one": nn.Tanh(), "two": nn.Sigmoid()})


class Bank(nn.Module):
    """A container of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Tanh(), nn.ReLU()])

    def __getitem__(self, i):
        return self.parts[i]


def with_buffers(self, x):
    y = torch.relu(self.bn(self.up(x)))
    if self.ready:
        y = y * self.factor.item()
    self.calls.add_(1)
    return y


def with_parameters(self, x):
    return torch.relu(self.bn(self.up(x))) * self.scales[0]


def with_sets(self, x):
    y = torch.relu(self.bn(self.up(x)))
    if x.shape[0] in {1, 3}:
        y = y / 10
    match x.shape:
        case (3, *_):
            y = y * {3: 7.0}.get(x.shape[0], 1.0)
    return y


def with_writes(self, x):
    skip = h = x * 1
    h *= x.gt(0)
    y = torch.relu(self.bn(self.up(h)))
    y += skip.mean()
    return y


def with_containers(self, x):
    y = self.bank[0](self.bn(self.up(x)))
    for name, part in self.book.items():
        y = part(y) * len(name)
    return y


def with_default(self, x, gain=2.0, fill=float("nan")):
    return torch.nan_to_num(torch.relu(self.bn(self.up(x))), nan=fill) * gain


def with_parts(self, x):
    y = torch.relu(self.bn(self.up(x)))
    for p in self.bn.parameters():
        y = y * p.abs().mean().item()
    return self.get_submodule("inner")(y)


LATER = {
    with_buffers: lambda m: m.load_state_dict({**m.state_dict(), "ready": torch.tensor(True)}),
    with_parameters: lambda m: m.load_state_dict(
        {name: value * 2 for name, value in m.state_dict().items()}, assign=True
    ),
    with_sets: lambda m: m,
    with_writes: lambda m: m,
    with_containers: lambda m: (
        m.bank.parts.__setitem__(0, nn.GELU()),
        m.book.__setitem__("three", m.book.pop("one")),
    ),
    with_default: lambda _: setattr(with_default, "__defaults__", (5.0, 0.0)),
    with_parts: lambda m: (m.bn.weight.data.mul_(3), setattr(m, "inner", nn.Tanh())),
}


@pytest.mark.parametrize("forward", LATER)
def test_code_is_run_and_not_remembered(forward) -> None:
    model = type("Own", (Told,), {"forward": forward})().eval()
    original = copy.deepcopy(model)
    defaults = forward.__defaults__
    try:
        accelerate(model, example())
        assert fuses(model)
        for each in (model, original):
            LATER[forward](each)
            each.calls.zero_()
        inputs = (example(), torch.randn(1, 6, 4, 5), torch.randn(3, 6, 4, 5))
        with torch.no_grad():
            for x in inputs:
                assert same(model(x.clone()), original(x.clone()))
        assert same(model.calls, original.calls)
    finally:
        forward.__defaults__ = defaults


def test_nothing_of_pytorch_is_changed_while_models_are_accelerated() -> None:
    """Others may be served at the same time."""
    wrong, stop, other, x = [], threading.Event(), nn.Sequential(nn.ReLU()).eval(), example()

    def serve() -> None:
        while not stop.is_set():
            try:
                other(x)
            except Exception as error:
                wrong.append(error)

    server = threading.Thread(target=serve)
    server.start()
    try:
        copies = [copy.deepcopy(accelerated()) for _ in range(3)]
        with torch.no_grad():
            for each in copies:
                each(x)
    finally:
        stop.set()
        server.join()
    assert not wrong


class Doubles(nn.Module):
    def forward(self, x):
        return x.mul_(2)


def in_unknown_module(self, x):
    y = self.up(x)
    return torch.relu(self.bn(y)) + self.inner(x).sum()


def unknown_between(self, x):
    y = self.up(x)
    shift = self.inner(x).sum()
    return self.bn(y) + shift


def function_between(self, x):
    y = self.up(x)
    shift = functional.relu(x, True).sum()
    return self.bn(y) + shift


def name_between(self, x):
    y = self.up(x)
    shift = torch.relu_(x).sum()
    return self.bn(y) + shift


def out_between(self, x):
    y = self.up(x)
    shift = torch.mul(x, 2.0, out=x).sum()
    return self.bn(y) + shift


class Leaves(fx.Tracer):
    def is_leaf_module(self, m, module_qualified_name) -> bool:
        return True


@pytest.mark.parametrize(
    "forward", [unknown_between, function_between, name_between, out_between, in_unknown_module]
)
def test_what_is_written_over_in_between_is_read_before(forward) -> None:
    """A graph has no proof on examples: what it is made of must be right."""
    model = type("Own", (Up,), {"forward": forward})().eval()
    model.inner = Doubles()
    graph = rewrite(fx.GraphModule(model, Leaves().trace(model)))
    assert any(node.target is step for node in graph.graph.nodes)
    x = example()
    with torch.no_grad():
        assert same(graph(x.clone()), model(x.clone()))


def test_another_forward_of_the_class_is_seen() -> None:
    model = accelerated()
    x = example()
    with torch.no_grad():
        before = model(x)
        original = type(model).__bases__[0]
        original.forward = lambda self, x: -torch.relu(self.bn(self.up(x)))
        assert same(model(x), -before)


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


def test_a_result_written_elsewhere_is_not_fused_away() -> None:
    def into(self, x, out):
        torch.tanh(self.up(x), out=out)
        return out

    x = example()
    model = type("Own", (Up,), {"forward": into})().eval()
    out = torch.zeros(2, 5, 8, 10)
    with torch.no_grad():
        rewrite(fx.symbolic_trace(model))(x, out)
        assert same(out, torch.tanh(model.up(x)))


def test_a_slope_that_is_no_number_is_left() -> None:
    def sloped(self, x, slope):
        return functional.leaky_relu(self.up(x), slope)

    model = type("Own", (Up,), {"forward": sloped})().eval()
    x = example()
    with torch.no_grad():
        wanted = model(x, 0.3)
        assert same(rewrite(fx.symbolic_trace(copy.deepcopy(model)))(x, 0.3), wanted)
        assert same(accelerate(model, (x, 0.3))(x, 0.3), wanted)
