"""Models whose forwards do things that graphs may not capture, and comparisons of two copies."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.support.small_models import close  # noqa: E402


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


class Resized(Base):
    """Resizes to the size of a skip, as U-Nets do."""

    def forward(self, x):
        skip = self.head(x)
        y = functional.interpolate(self.block(skip[..., 1:, 1:]), skip.shape[2:])
        return self.tail(y + skip)


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
        Base, Skips, Tuple, Dict, Keywords, Loop, Shared, Tied, SizeDependent, Resized,
        DataDependent, InPlace, Counting, Buffered, Numbered, Constant, Embedded, Attending,
        Recurrent, Spectral, Random, Autocast, Returned, Norms, OldNorm, NewNorm, Hooked, OwnLayer,
        Listed,
    )
}  # fmt: skip
LEFT_ALONE = {
    "DataDependent": "torch.export cannot trace its forward",
    "Counting": "its forward changes the model or its inputs",
    "Buffered": "its forward changes the model or its inputs",
    "Hooked": "an inner Block has hooks",
    "OldNorm": "has hooks",
    "Listed": "a Block is kept outside the model's children",
}


def run(model, *args, **keywords):
    """Return the leaves of a result; every call uses the same random numbers."""
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
    """Return the number of graphs in an accelerated model."""
    forward = vars(model).get("forward")
    return len([each for _, each in forward._captures if each]) if forward else 0
