"""Accelerated models whose parts are networks: values as PyTorch's, or left alone with a reason."""

from __future__ import annotations

import copy
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import upconv.torch as ut  # noqa: E402
from tests.support.small_models import Vocoder, close, dcgan, stirred  # noqa: E402
from upconv.torch import forwards, selection  # noqa: E402
from upconv.torch.forwards import Forward  # noqa: E402
from upconv.torch.snapshots import Snapshot, Unwatchable  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread", "upconv_is_faster"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning"),
]


class Block(nn.Module):
    """Convolution, activation, convolution, sum."""

    def __init__(self, channels, inplace=False):
        super().__init__()
        self.one = nn.Conv2d(channels, channels, 3, padding=1)
        self.two = nn.Conv2d(channels, channels, 3, padding=1)
        self.act = nn.ReLU(inplace=inplace)

    def forward(self, x):
        return x + self.two(self.act(self.one(x)))


class Base(nn.Module):
    """A block between two convolutions; subclasses compute something else around it."""

    def __init__(self):
        super().__init__()
        self.head, self.block = nn.Conv2d(3, 6, 3, padding=1), Block(6)
        self.tail = nn.ConvTranspose2d(6, 2, 4, 2, 1)

    def forward(self, x):
        return self.tail(self.block(self.head(x)))


class Skips(Base):
    def forward(self, x):
        y = functional.max_pool2d(self.head(x), 2)
        y = torch.cat([self.tail(self.block(y)), x], 1)
        return y[..., 1:, :]


class Tuple(Base):
    def forward(self, x):
        y = self.block(self.head(x))
        return self.tail(y), (y, 3, None)


class Dict(Base):
    def forward(self, x):
        y = self.block(self.head(x))
        return {"y": self.tail(y), "sizes": list(y.shape[2:])}


class Keywords(Base):
    def forward(self, x, *, scale=1.0, mask=None):
        y = self.tail(self.block(self.head(x))) * scale
        return y if mask is None else y * mask


class Loop(Base):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(6, inplace=True) for _ in range(3))

    def forward(self, x):
        y = self.head(x)
        for i, block in enumerate(self.blocks):
            y = block(y) if i % 2 else block(y).tanh()
        return self.tail(y)


class Shared(Base):
    def forward(self, x):
        y = self.block(self.block(self.head(x)))
        return self.tail(y) + functional.conv_transpose2d(y, self.tail.weight, None, 2, 1)


class Tied(Base):
    def __init__(self):
        super().__init__()
        self.block.two.weight = self.block.one.weight


class SizeDependent(Base):
    def forward(self, x):
        y = self.block(self.head(x))
        if x.shape[2] % 4 == 0:
            y = y * 2
        return self.tail(y)[:, :, : x.shape[2]]


class DataDependent(Base):
    def forward(self, x):
        y = self.head(x)
        if y.sum() > 0:
            y = -y
        return self.tail(y)


class InPlace(Base):
    def forward(self, x):
        y = self.head(x)
        view = y[:, 1:3]
        y += 1
        view.mul_(3)
        return self.tail(self.block(y)).clamp_(-1, 1)


class Counting(Base):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


class Buffered(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3, 1, 1))

    def forward(self, x):
        self.mean += x.mean((0, 2, 3))[:, None, None]
        return super().forward(x - self.mean)


class Numbered(Base):
    """Buffers of one integer decide shapes, as in EnCodec's convolutions."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kernel", torch.tensor(4))
        self.register_buffer("step", torch.tensor(3))

    def forward(self, x):
        y = self.block(self.head(x))
        count = torch.ceil((y.shape[3] - self.kernel) / self.step + 1).to(torch.int64)
        extra = (count - 1) * self.step + self.kernel - y.shape[3]
        if extra < 3:
            y = functional.pad(y, (1, extra, 0, 0))
        return self.tail(y)


class Constant(Base):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.rand(6, 1, 1))
        self.shift = torch.rand(1, 6, 1, 1)

    def forward(self, x):
        y = self.block(self.head(x)) * self.scale.exp() + self.shift
        return self.tail(y + torch.arange(6.0).view(6, 1, 1))


class Embedded(Base):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 3)

    def forward(self, x):
        tokens = (x[:, 0] * 10).abs().long().clamp(max=10)
        return super().forward(self.table(tokens).permute(0, 3, 1, 2))


class Attending(Base):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        y = self.head(x)
        rows = y.flatten(2).transpose(1, 2)
        rows = self.attention(rows, rows, rows)[0]
        return self.tail(self.block(rows.transpose(1, 2).reshape(y.shape)))


class Recurrent(Base):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 4, batch_first=True)

    def forward(self, x):
        y = super().forward(x).mean(2).transpose(1, 2)
        return self.lstm(y)[0]


class Spectral(Base):
    def forward(self, x):
        y = super().forward(x).mean(1).flatten(1)
        return torch.stft(y, 16, window=torch.hann_window(16), return_complex=True)


class Random(Base):
    def forward(self, x):
        return super().forward(x) + torch.rand(1) + torch.randn_like(x).mean()


class Autocast(Base):
    def forward(self, x):
        y = self.block(self.head(x))
        with torch.autocast("cpu", torch.bfloat16):
            z = self.block(y)
        return self.tail(y + z.float())


class Returned(Base):
    def forward(self, x):
        return x, self.tail(self.block(self.head(x))), self.tail.weight


class Norms(nn.Sequential):
    def __init__(self):
        rows = []
        for a, norm in ((3, nn.BatchNorm2d(6)), (6, nn.InstanceNorm2d(6)), (6, nn.GroupNorm(2, 6))):
            rows += [nn.Conv2d(a, 6, 3, padding=1, bias=False), norm, nn.PReLU(6), nn.Dropout2d()]
        super().__init__(*rows, nn.Upsample(scale_factor=2), nn.Conv2d(6, 8, 1), nn.PixelShuffle(2))


class OldNorm(Base):
    def __init__(self):
        super().__init__()
        nn.utils.weight_norm(self.head)
        nn.utils.spectral_norm(self.tail)


class NewNorm(Base):
    def __init__(self):
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.head)
        nn.utils.parametrizations.spectral_norm(self.block.one)
        nn.utils.parametrizations.weight_norm(self.tail)


class Hooked(Base):
    def __init__(self):
        super().__init__()
        self.block.register_forward_hook(doubled)


def doubled(module, args, result):
    return 2 * result


class OwnLayer(Base):
    def __init__(self):
        super().__init__()
        self.head = Padded(3, 6, 3)


class Padded(nn.Conv2d):
    def forward(self, x):
        return super().forward(functional.pad(x, (1, 1, 1, 1), "reflect"))


class Listed(Base):
    """Modules that are not the model's children, and a configuration."""

    def __init__(self):
        super().__init__()
        self.hidden = [Block(6).eval()]

    def forward(self, x):
        return self.tail(self.hidden[0](self.head(x)))


MODELS = {
    each.__name__: each
    for each in (
        Base, Skips, Tuple, Dict, Keywords, Loop, Shared, Tied, SizeDependent, DataDependent,
        InPlace, Counting, Buffered, Numbered, Constant, Embedded, Attending, Recurrent, Spectral,
        Random, Autocast, Returned, Norms, OldNorm, NewNorm, Hooked, OwnLayer, Listed,
    )
}  # fmt: skip
LEFT_ALONE = {
    "DataDependent": "torch.export cannot follow its forward",
    "Counting": "its forward changes the model or its inputs",
    "Buffered": "its forward changes the model or its inputs",
    "Hooked": "an inner Block has hooks",
    "OldNorm": "has hooks",
    "Listed": "a Block is kept outside the model's children",
}


def twins(name, dtype=torch.float32):
    made = []
    for _ in range(2):  # deepcopy refuses the weights of the old weight norm
        torch.manual_seed(3)
        made.append(stirred(MODELS[name]()).to(dtype))
    return made


def run(model, *args, **keywords):
    """The leaves of a result, with the same random numbers in every call."""
    torch.manual_seed(5)
    try:
        with torch.no_grad():
            result = model(*args, **keywords)
    except RuntimeError as error:
        return [type(error)]
    return torch.utils._pytree.tree_leaves(result)


def alike(model, plain, *args, bound=3e-5, **keywords) -> None:
    for _ in range(2):
        ours, theirs = run(model, *args, **keywords), run(plain, *args, **keywords)
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            if not isinstance(other, torch.Tensor):
                assert one == other
            else:
                assert one.dtype is other.dtype
                one, other = (
                    torch.view_as_real(each) if each.is_complex() else each for each in (one, other)
                )
                assert close(one.double(), other.double(), bound)


def graphs(model):
    """How many graphs an accelerated model has."""
    forward = vars(model).get("forward")
    return len([each for _, each in forward._captures if each]) if forward else 0


@pytest.mark.parametrize("name", MODELS)
class TestModels:
    def test_has_pytorchs_values_at_all_sizes(self, name) -> None:
        model, plain = twins(name)
        ut.accelerate(model, torch.randn(2, 3, 8, 12))
        assert graphs(model) == (name not in LEFT_ALONE)
        report = ut.report(model)
        parts = [row for row in report.rows if row.name.startswith("part") and row.by == "upconv"]
        assert bool(parts) == (name not in LEFT_ALONE)
        for shape in ((2, 3, 8, 12), (3, 3, 8, 12), (1, 3, 8, 12), (2, 3, 12, 20), (2, 3, 10, 7)):
            alike(model, plain, torch.randn(shape))
        alike(model, plain, torch.randn(2, 3, 8, 12).to(memory_format=torch.channels_last))
        alike(model, plain, torch.randn(2, 3, 12, 8).transpose(2, 3))

    def test_trains_and_restores(self, name) -> None:
        model, plain = twins(name)
        x = torch.randn(2, 3, 8, 12)
        keys = list(model.state_dict())
        assert type(ut.accelerate(model, x)) is MODELS[name]
        assert list(model.state_dict()) == keys
        for each in (model, plain):
            torch.manual_seed(1)
            leaves = torch.utils._pytree.tree_leaves(each.train()(x))
            sum(leaf.abs().square().mean() for leaf in leaves if torch.is_tensor(leaf)).backward()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            assert one.grad is None or torch.equal(one.grad, other.grad)
        alike(ut.restore(model).eval(), plain.eval(), x)
        assert "forward" not in vars(model)

    def test_in_double_and_half_and_inference_mode(self, name) -> None:
        for dtype, bound in ((torch.float64, 1e-9), (torch.bfloat16, 0.15)):
            model, plain = twins(name, dtype)
            x = torch.randn(2, 3, 8, 12, dtype=dtype)
            if run(copy.deepcopy(plain) if name == "Buffered" else plain, x) == [RuntimeError]:
                continue  # PyTorch has no such operator for the type
            with torch.inference_mode():
                ut.accelerate(model, x)
                alike(model, plain, x, bound=bound)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone_has_a_reason(name, monkeypatch) -> None:
    monkeypatch.setattr(selection.trials.Samples, "ratio", None)
    model, _ = twins(name)
    ut.accelerate(model, torch.randn(2, 3, 8, 12))
    assert LEFT_ALONE[name] in ut.report(model).why
    assert "forward" not in vars(model)


def test_a_model_follows_its_parameters() -> None:
    for name in ("NewNorm", "Norms", "Tied", "Constant"):
        model, plain = twins(name)
        x = torch.randn(2, 3, 8, 12)
        ut.accelerate(model, x)
        alike(model, plain, x)
        for change in (lambda t: t.mul_(1.5), lambda t: t.data.copy_(t * 0.7)):
            with torch.no_grad():
                for one, other in zip(model.parameters(), plain.parameters(), strict=True):
                    change(one)
                    change(other)
            alike(model, plain, x)
        state = {k: v + 0.1 for k, v in plain.state_dict().items() if v.is_floating_point()}
        model.load_state_dict(state, strict=False)
        plain.load_state_dict(state, strict=False)
        alike(model, plain, x)
        alike(model.double(), plain.double(), x.double(), bound=1e-6)
        alike(model.float(), plain.float(), x)


def test_keywords_and_constants_are_part_of_the_structure() -> None:
    model, plain = twins("Keywords")
    x, mask = torch.randn(2, 3, 8, 12), torch.rand(2, 1, 16, 24)
    ut.accelerate(model, [(x,), {"x": x, "mask": mask}])
    assert graphs(model) == 2
    for keywords in (
        {},
        {"scale": 2.0},
        {"mask": mask},
        {"scale": 3, "mask": mask},
        {"scale": mask},
    ):
        alike(model, plain, x, **keywords)
    assert graphs(model) <= forwards._MOST_CAPTURES
    for scale in range(9):
        alike(model, plain, x, scale=scale)
    alike(model, plain, x, scale=mask.double())


def test_a_buffer_of_one_integer_may_change() -> None:
    model, plain = twins("Numbered")
    x = torch.randn(2, 3, 8, 12)
    ut.accelerate(model, x)
    for step in (2, 5, 3):
        model.step.fill_(step)
        plain.step.fill_(step)
        alike(model, plain, x)
    model.kernel, plain.kernel = torch.tensor(5), torch.tensor(5)
    alike(model, plain, x)


def test_a_model_that_is_not_captured_prints_nothing(capfd) -> None:
    ut.accelerate(twins("DataDependent")[0], torch.randn(2, 3, 8, 12), progress=lambda *_: None)
    assert "forward" not in capfd.readouterr().err


def test_one_tensor_twice_and_a_parameter_as_input() -> None:
    class Sum(Base):
        def forward(self, x, y):
            return super().forward(x) - super().forward(y)

    model, plain = Sum().eval(), Sum().eval()
    plain.load_state_dict(model.state_dict())
    x, y = torch.randn(2, 3, 8, 12), torch.randn(2, 3, 8, 12)
    ut.accelerate(model, (x, y))
    alike(model, plain, x, y)
    alike(model, plain, x, x)
    alike(model, plain, y, x)
    with torch.no_grad():
        weight = model.head.weight
        alike(model, plain, weight, torch.randn(6, 3, 3, 3))


CHANGES = {
    "attribute": lambda model: setattr(model.block, "factor", 3),
    "child": lambda model: setattr(model.block, "act", nn.Tanh()),
    "hook": lambda model: model.block.register_forward_hook(doubled) and None,
    "in a list": lambda model: model.plan.append(1),
    "in a configuration": lambda model: setattr(model.config, "factor", 4),
    "in a dict": lambda model: model.table.update(a=5),
    "in a nested dict": lambda model: model.table["b"].update(c=5),
}


class Configured(Base):
    def __init__(self):
        super().__init__()
        self.config, self.plan, self.table = Config(), [1, 2], {"a": 1, "b": {"c": 2}}
        self.block.factor = 1

    def forward(self, x):
        y = self.block(self.head(x)) * self.block.factor * self.config.factor
        return self.tail(y) * len(self.plan) * self.table["a"] * self.table["b"]["c"]


class Config:
    def __init__(self):
        self.factor = 1


@pytest.mark.parametrize("name", CHANGES)
def test_what_code_reads_may_change(name) -> None:
    torch.manual_seed(1)
    model = Configured().eval()
    plain, x = copy.deepcopy(model), torch.randn(2, 3, 8, 12)
    ut.accelerate(model, x)
    alike(model, plain, x)
    assert graphs(model) == 1
    for each in (model, plain):
        CHANGES[name](each)
    alike(model, plain, x)
    alike(model, plain, torch.randn(2, 3, 10, 12))


def test_copies_and_pickles_are_accelerated_and_apart() -> None:
    model, x = dcgan(), torch.randn(2, 6, 1, 1)
    plain = copy.deepcopy(model)
    ut.accelerate(model, x)
    for each in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert isinstance(vars(each)["forward"], Forward)
        assert graphs(each) == 0
        alike(each, plain, x)
        assert graphs(each) == 1
        with torch.no_grad():
            each[0].weight.mul_(2)
        assert not close(run(each, x)[0], run(plain, x)[0])
    alike(model, plain, x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_traces_compilers_and_transforms_see_the_modules() -> None:
    model, x = dcgan(), torch.randn(2, 6, 1, 1)
    plain = copy.deepcopy(model)
    ut.accelerate(model, x)
    expected = run(plain, x)[0]
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert close(torch.jit.trace(model, x)(x), expected)
        assert close(torch.compile(model, backend="eager", fullgraph=True)(x), expected)
        program = torch.export.export(model, (x,), strict=False)
        assert close(program.module()(x), expected)
        assert not any("upconv" in str(node.target) for node in program.graph.nodes)
        assert close(torch.vmap(model)(x.unsqueeze(1))[:, 0], expected)
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x).dtype is plain(x).dtype
    with torch.inference_mode():
        assert close(model(x), expected)
    assert close(torch.func.functional_call(model, dict(plain.named_parameters()), x), expected)
    leaf = x.clone().requires_grad_()
    assert model(leaf).requires_grad
    with torch.profiler.profile() as seen, torch.no_grad():
        model(x)
    assert "upconv::network" in {event.key for event in seen.events()}


def test_hooks_of_the_model_are_called_around_the_graph() -> None:
    model, calls, x = dcgan(), [], torch.randn(2, 6, 1, 1)
    ut.accelerate(model, x)
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    run(model, x)
    assert calls == [1]
    handle.remove()


def test_decisions_apply_parts_without_inputs(tmp_path) -> None:
    model, x = Vocoder().eval(), torch.randn(2, 5, 11)
    ut.report(ut.accelerate(model, x)).save(tmp_path / "d.json")
    other = Vocoder().eval()
    other.load_state_dict(model.state_dict())
    plain = Vocoder().eval()
    plain.load_state_dict(model.state_dict())
    ut.accelerate(other, decisions=tmp_path / "d.json")
    assert graphs(other) == 0
    alike(other, plain, x)
    assert graphs(other) == 1


def test_a_graph_with_other_results_is_not_used(monkeypatch) -> None:
    """A wrong row of the table of operations, at both times when a graph is compared."""
    from upconv.torch import parts

    right = parts.Part.run
    monkeypatch.setattr(parts.Part, "run", lambda *args: [each * 1.01 for each in right(*args)])
    model, x = dcgan(), torch.randn(2, 6, 1, 1)
    plain = copy.deepcopy(model)
    ut.accelerate(model, x)
    assert "differs by" in ut.report(model).rows[0].why
    assert graphs(model) == 0
    vars(model)["forward"] = forward = Forward(model)
    alike(model, plain, x)
    assert "differs by" in forward.reason
    assert graphs(model) == 0


def test_a_snapshot_sees_what_a_model_keeps() -> None:
    model = Configured().eval()
    snapshot = Snapshot(model)
    assert snapshot.holds()
    model.train()
    assert not snapshot.holds()
    model.eval()
    assert snapshot.holds()
    model.config.more = 1
    assert not snapshot.holds()
    with pytest.raises(Unwatchable, match="an inner Block has hooks"):
        Snapshot(Hooked())
