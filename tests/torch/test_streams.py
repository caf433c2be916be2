"""Streams of modules: values as of the module on the whole, and refusals that name the module."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import upconv.torch as ut  # noqa: E402
from upconv.errors import ArgumentError, DTypeError, EngineRefusal, ShapeError  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning"),
]


def pushed(stream, x, axis, cuts=(3, 1, 0, 5)):
    """The results of chunks of these lengths and of the rest, joined along the last axis."""
    sizes = [*cuts, x.shape[axis] - sum(cuts)]
    return [stream.push(part) for part in torch.split(x, sizes, axis)] + [stream.finish()]


def check(model, x, axis=-1, result_axis=-1, **options):
    """A stream has the values of the module; return the parts."""
    model = model.eval()
    stream = ut.stream(model, x, axis=axis, **options)
    parts = pushed(stream, x, axis)
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(torch.cat(parts, result_axis), expected, rtol=1e-4, atol=1e-5)
    return stream, parts


@pytest.mark.long
@pytest.mark.parametrize("name", ["hifigan", "vits", "dac", "encodec"])
def test_decoders_of_transformers(name: str) -> None:
    from tests.support.small_codecs import DECODERS

    model, x, axis = DECODERS[name]()
    stream, parts = check(model, x, axis)
    assert stream.progress.rate == 8
    most = 8 * x.shape[axis]
    assert sum(part.shape[-1] for part in parts[:-1]) == max(0, most - stream.latency)


class Recurrent(nn.Module):
    """An LSTM beside a residual connection, as in EnCodec; `keywords` are those of nn.LSTM."""

    def __init__(self, channels: int = 6, **keywords) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, channels, 3, padding=1)
        self.lstm = nn.LSTM(channels, channels, **keywords)
        self.up = nn.ConvTranspose1d(channels, 2, 4, 2, 1)

    def forward(self, x):
        y = self.first(x)
        order = (0, 2, 1) if self.lstm.batch_first else (2, 0, 1)
        z = self.lstm(y.permute(order))[0]
        return self.up(y + z.permute(*(order.index(i) for i in range(3))))


@pytest.mark.parametrize(
    "keywords", [{"num_layers": 2}, {"batch_first": True, "bias": False}, {"num_layers": 3}]
)
def test_an_lstm_in_a_stream(keywords) -> None:
    model = Recurrent(**keywords)
    stream, _ = check(model, torch.randn(2, 4, 23))
    assert stream.latency == 3  # that of the layers around it


class Block(nn.Module):
    """ConvNeXt's block: normalisation and two fully connected layers with the channels last."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Conv1d(channels, channels, 7, padding=3, groups=channels)
        self.norm, self.scale = nn.LayerNorm(channels), nn.Parameter(torch.randn(channels))
        self.up, self.down = nn.Linear(channels, 12), nn.Linear(12, channels)

    def forward(self, x):
        y = self.norm(self.mix(x).transpose(1, 2))
        y = self.scale * self.down(functional.gelu(self.up(y)))
        return x + y.transpose(1, 2)


class Causal(nn.Module):
    """Pads by itself; the end is cut in terms of the length."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.conv, self.up = nn.Conv1d(4, 6, 5, dilation=2), nn.ConvTranspose1d(6, 4, 6, 3)
        self.norm = nn.utils.parametrizations.weight_norm(self.up)
        self.mode = mode

    def forward(self, x):
        length = x.shape[-1]
        y = functional.elu(self.conv(functional.pad(x, (8, 0), self.mode)))
        y = self.norm(y)[..., : 3 * length]
        return y * torch.sigmoid(y.select(1, 0).unsqueeze(1))


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(4, 4, 3, padding=1), nn.Conv1d(4, 4, 1)

    def forward(self, x):
        y = self.one(x)
        y += self.two(y)
        return torch.cat([y.relu_(), x], 1)


@pytest.mark.parametrize(
    "model",
    [Block(4), Causal("constant"), Causal("reflect"), Causal("replicate"), InPlace()],
    ids=["block", "zeros", "reflect", "replicate", "in place"],
)
def test_models_that_move_axes_and_pad(model: nn.Module) -> None:
    check(model, torch.randn(2, 4, 23))


def test_reflected_ends() -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 5, padding=2, padding_mode="reflect"), nn.GELU())
    check(model, torch.randn(1, 4, 23))


def test_positions_first_and_two_axes() -> None:
    check(nn.Sequential(nn.Linear(4, 5), nn.Tanh()), torch.randn(2, 23, 4), 1, 1)
    check(nn.Conv2d(3, 2, 3, padding=1), torch.randn(1, 3, 23, 5), 2, 2)


def test_several_inputs_and_results() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 4, 3, padding=1)

        def forward(self, x, pitch):
            y = self.conv(x) * pitch
            return {"speech": y, "energy": y.abs(), "rate": 24000}

    model, x, pitch = Two(), torch.randn(1, 4, 9), torch.randn(1, 1, 9)
    stream = ut.stream(model, {"x": x, "pitch": pitch})
    parts = [stream.push(x[..., :4], pitch[..., :4]), stream.push(x[..., 4:], pitch[..., 4:])]
    parts.append(stream.finish())
    expected = model(x, pitch)
    assert [part["rate"] for part in parts] == [24000] * 3
    for name in ("speech", "energy"):
        torch.testing.assert_close(torch.cat([part[name] for part in parts], -1), expected[name])


def test_arrays_states_and_the_batch() -> None:
    model, x = Causal("constant").eval(), np.random.default_rng(0).standard_normal((3, 4, 9))
    x = x.astype(np.float32)
    stream = ut.stream(model, torch.zeros(1, 4, 20))
    first = stream.push(x[..., :5])
    assert isinstance(first, np.ndarray)
    assert first.shape == (3, 4, 15)
    other, saved = stream.copy(), stream.to_bytes()
    rest = [s.push(x[..., 5:]).tobytes() for s in (stream, other, stream.from_bytes(saved))]
    assert rest == [rest[0]] * 3
    stream.reset()
    assert stream.push(x[..., :5]).tobytes() == first.tobytes()


def test_a_batch_of_streams_that_join_and_leave() -> None:
    model = Causal("constant").eval()
    batch = ut.stream(model, torch.zeros(1, 4, 20), chunk=3).batch()
    signals = [torch.randn(1, 4, 24), torch.randn(1, 4, 21)]
    parts = [[batch.push({batch.join(): signals[0][..., :3]})[0]], []]
    batch.join()
    for start in range(0, 21, 3):
        late = signals[1][..., start : start + 3].numpy()
        results = batch.push({0: signals[0][..., start + 3 : start + 6], 1: late})
        assert isinstance(results[1], np.ndarray)
        parts[0].append(results[0])
        parts[1].append(torch.from_numpy(results[1]))
    for number, x in enumerate(signals):
        rest = batch.leave(number).finish()
        assert isinstance(rest, np.ndarray) == number  # as the chunks of this member are
        result = torch.cat([*parts[number], torch.as_tensor(rest)], -1)
        torch.testing.assert_close(result, model(x).detach(), rtol=1e-4, atol=1e-5)


def test_a_change_of_the_model_does_not_reach_a_stream() -> None:
    model, x = nn.Conv1d(2, 2, 3, padding=1).eval(), torch.randn(1, 2, 9)
    stream, expected = ut.stream(model, x), model(x).detach()
    with torch.no_grad():
        model.weight.zero_()
    parts = [stream.push(x), stream.finish()]
    torch.testing.assert_close(torch.cat(parts, -1), expected)


class Calls(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.conv, self.function = nn.Conv1d(4, 4, 3, padding=1), function

    def forward(self, x):
        return self.function(self.conv(x))


def _shared(y):
    part = y[:, :2]
    y += 1.0
    return part


def _attention(y):
    return functional.scaled_dot_product_attention(y, y, y)


def _recurrent(y):
    return nn.GRU(4, 4)(y.permute(2, 0, 1))[0]


def _last_state(y):
    return nn.LSTM(4, 4)(y.permute(2, 0, 1))[1]


def _started(y):
    state = torch.ones(1, y.shape[0], 4)
    return nn.LSTM(4, 4)(y.permute(2, 0, 1), (state, state))[0]


def _across(y):
    return nn.LSTM(4, 4, batch_first=True)(y.transpose(1, 2).transpose(0, 1))[0]


REFUSED = {
    "recurrent": (Calls(_recurrent), "gru: the only recurrent layer of a network is the LSTM"),
    "both directions": (Recurrent(bidirectional=True), "lstm in lstm: it runs in both directions"),
    "projected": (Recurrent(proj_size=2), "lstm in lstm: its results are projected"),
    "the last state": (
        Calls(_last_state),
        "results: the state of a recurrent layer is known only",
    ),
    "a state": (Calls(_started), "lstm: its initial state is not 0"),
    "over the batch": (Calls(_across), "lstm: it does not run along time"),
    "norm over time": (nn.Sequential(nn.Conv1d(4, 4, 1), nn.GroupNorm(2, 4)), "norm at 1: its"),
    "instance norm": (nn.Sequential(nn.Conv1d(4, 4, 1), nn.InstanceNorm1d(4)), "norm at 1: its"),
    "attention": (Calls(_attention), "scaled_dot_product_attention: attention reads all"),
    "mean": (Calls(lambda y: y.mean(-1, keepdim=True)), "reads|depend"),
    "length": (Calls(lambda y: y[..., :5]), "a different operation for inputs of 23 and 24"),
    "far": (Calls(lambda y: y if y.shape[-1] < 1000 else -y), "1000003 positions"),
    "data": (Calls(lambda y: y if y.sum() > 0 else -y), "mean|sum|item|scalar|dense"),
    "shared": (Calls(_shared), "writes in place to memory that other tensors share"),
    "matrix": (Calls(lambda y: y @ y.transpose(1, 2)), "no such operation"),
    "cumsum": (Calls(lambda y: y.cumsum(-1)), "cumsum.*no such operation"),
    "positions": (nn.Sequential(nn.Conv1d(4, 4, 1), nn.Linear(23, 2)), "linear in 1: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_module(name: str) -> None:
    model, words = REFUSED[name]
    with pytest.raises(EngineRefusal, match=words) as error:
        ut.stream(model.eval(), torch.randn(1, 4, 23))
    assert str(error.value).startswith("A stream cannot compute")
    assert "whole inputs" in str(error.value)


def test_dropout_in_training_is_refused() -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Dropout(0.5)).train()
    with pytest.raises(EngineRefusal, match="dropout"):
        ut.stream(model, torch.randn(1, 4, 23))


def test_bad_arguments() -> None:
    model, x = nn.Conv1d(4, 4, 1).eval(), torch.zeros(1, 4, 9)
    for arguments, kind, words in (
        ((lambda x: x, x), ArgumentError, "torch.nn.Module"),
        ((model, np.zeros((1, 4, 9))), DTypeError, "a tensor"),
        ((model, x.double()), DTypeError, "model.float"),
        ((model, ()), ArgumentError, "at least one"),
        ((model, (x, x[..., :3])), ArgumentError, "of one length"),
    ):
        with pytest.raises(kind, match=words):
            ut.stream(*arguments)
    with pytest.raises(ArgumentError, match="axis"):
        ut.stream(model, x, axis=3)
    stream = ut.stream(model, x)
    with pytest.raises(ShapeError, match=r"\(1, 3, 9\)"):
        stream.push(x[:, :3])
    with pytest.raises(DTypeError, match="float32"):
        stream.push(x.double())
    with pytest.raises(ArgumentError, match="number of chunks"):
        stream.push(x, x)
