"""Parts of PyTorch's graphs as networks: every row of the table, weights that change, refusals."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from tests.support.small_models import Of, close  # noqa: E402
from upconv.errors import EngineError  # noqa: E402
from upconv.torch import network_rules, parts, windows  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    pytest.mark.skipif(torch.__version__ < "2.6", reason="older PyTorch captures modules whole"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
]

CONV = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
UP = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
NORM = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
INSTANCE = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
SIZE = {1: (10,), 2: (6, 8), 3: (6, 6, 8)}


class Rows(nn.Module):
    """A convolution to 8 channels, then every function of the table of its result."""

    def __init__(self, rank, rows):
        super().__init__()
        self.conv = CONV[rank](4, 8, 3, padding=1)
        self.rows = [(name, row) for name, (row, _) in rows.items()]
        self.each = nn.ModuleList(nn.ModuleDict(layers) for _, layers in rows.values())

    def forward(self, x):
        y = self.conv(x)
        pairs = zip(self.rows, self.each, strict=True)
        return {
            name: row(Namespace(self.training, layers), y + 0.0) for (name, row), layers in pairs
        }


class Namespace:
    """A module's layers as attributes."""

    def __init__(self, training, layers):
        self.training = training
        for name, layer in layers.items():
            setattr(self, name, layer)


class Table(nn.Module):
    """A parameter or a buffer of some shape."""

    def __init__(self, *shape):
        super().__init__()
        self.register_buffer("values", torch.rand(shape) + 0.5)

    def forward(self):
        return self.values


def handed(model, x, how="export", dynamic=False):
    """A model's captured graph as a call, its parts, and why nodes were left."""
    model = model.eval()
    if how == "export":
        axes = {0: torch.export.Dim.AUTO, **dict.fromkeys(range(2, x.dim()), torch.export.Dim.AUTO)}
        shapes = (axes,) if dynamic else None
        exported = torch.export.export(model, (x,), strict=False, dynamic_shapes=shapes)
        module = exported.module()
        for node in list(module.graph.find_nodes(op="call_module")):
            module.graph.erase_node(node)
        return module, *parts.hand_over(module)
    handed_over = []

    def backend(graph, _):
        handed_over.extend(parts.hand_over(graph))
        return graph

    torch.compiler.reset()
    call = torch.compile(model, backend=backend, fullgraph=True, dynamic=dynamic)
    with torch.no_grad():
        call(x)
    return call, *handed_over


def remaining(module) -> list[str]:
    names = [str(node.target) for node in module.graph.nodes if node.op.startswith("call_")]
    return [name for name in names if "upconv.network" not in name and "getitem" not in name]


def randomised(model):
    for each in [*model.parameters(), *model.buffers()]:
        if each.is_floating_point() and sum(size > 1 for size in each.shape) == 1:
            with torch.no_grad():
                each.uniform_(0.2, 1.2)
    return model.eval()


def table_of(rank):
    """name -> (function of the module and a value of 8 channels, layers that it uses)."""
    flat = {
        "relu": lambda m, y: F.relu(y), "relu_": lambda m, y: F.relu(y, inplace=True),
        "method": lambda m, y: y.relu_(), "leaky": lambda m, y: F.leaky_relu(y, 0.3, True),
        "tanh": lambda m, y: torch.tanh(y), "sigmoid": lambda m, y: y.sigmoid(),
        "silu": lambda m, y: F.silu(y), "gelu": lambda m, y: F.gelu(y),
        "elu": lambda m, y: F.elu(y, 0.7), "hardswish": lambda m, y: F.hardswish(y),
        "softplus": lambda m, y: F.softplus(y), "number": lambda m, y: 2 - 3 * y / 7 + 0.5,
        "neg": lambda m, y: -y, "rsub": lambda m, y: torch.rsub(y, 1.5),
        "alpha": lambda m, y: torch.add(y, torch.tanh(y), alpha=0.5),
        "sub": lambda m, y: torch.tanh(y) - y, "mul": lambda m, y: torch.tanh(y) * y,
        "cat": lambda m, y: torch.cat([y, torch.tanh(y)], 1),
        "cat from behind": lambda m, y: torch.cat([y, y], dim=1 - y.dim()),
        "chunk": lambda m, y: torch.mul(*y.chunk(2, 1)),
        "split": lambda m, y: torch.tanh(y.split([3, 5], 1)[1]),
        "split alike": lambda m, y: sum(y.split(2, 1)),
        "slice": lambda m, y: y[:, 2:6], "slice from behind": lambda m, y: y[:, -3:],
        "narrow": lambda m, y: y.narrow(1, 1, 3), "positions": lambda m, y: y[..., 1:-2],
        "clone": lambda m, y: y.clone().contiguous().detach() * 2,
        "dropout": lambda m, y: F.dropout(y, 0.4, m.training),
        "zeros": lambda m, y: F.pad(y, (1, 2)), "cut": lambda m, y: F.pad(y, (-1, 2)),
        "reflect": lambda m, y: F.pad(y, (1, 2) * rank, mode="reflect"),
        "replicate": lambda m, y: F.pad(y, (2, 1) * rank, mode="replicate"),
        "nearest": lambda m, y: F.interpolate(y, scale_factor=2),
        "linear": lambda m, y: F.interpolate(y, scale_factor=2.0, mode=LINEAR[rank]),
        "sizes": lambda m, y: F.interpolate(y, [3 * n for n in SIZE[rank]]),
        "odd sizes": lambda m, y: F.interpolate(y, [n + 3 for n in SIZE[rank]], mode=LINEAR[rank]),
        "half": lambda m, y: F.interpolate(y, scale_factor=1.5),
        "half linear": lambda m, y: F.interpolate(y, scale_factor=1.5, mode=LINEAR[rank]),
        "corners": lambda m, y: F.interpolate(
            y, scale_factor=2, mode=LINEAR[rank], align_corners=True),
        "corners of sizes": lambda m, y: F.interpolate(
            y, [n + 5 for n in SIZE[rank]], mode=LINEAR[rank], align_corners=True),
        "smaller": lambda m, y: F.interpolate(y, 4, mode=LINEAR[rank]),
        "glu": lambda m, y: F.glu(y, 1),
        "max pool": lambda m, y: getattr(F, f"max_pool{rank}d")(y, 3, 2, 1),
        "max pool alone": lambda m, y: getattr(F, f"max_pool{rank}d")(y, 2),
        "avg pool": lambda m, y: getattr(F, f"avg_pool{rank}d")(y, 3, 2, 1),
        "avg pool no pad": lambda m, y: getattr(F, f"avg_pool{rank}d")(
            y, 3, 2, 1, count_include_pad=False),
    }  # fmt: skip
    layers = {
        "transposed": UP[rank](8, 6, 4, stride=2, padding=1),
        "bare": UP[rank](8, 6, 3, 2, bias=False),
        "groups": CONV[rank](8, 8, 3, groups=4, dilation=2, stride=2), "same": CONV[rank](
            8, 4, 4, padding="same"), "valid": CONV[rank](8, 4, 2, padding="valid"),
        "output padding": UP[rank](8, 8, 3, 2, 1, output_padding=1, groups=2),
        "batch norm": NORM[rank](8), "plain batch norm": NORM[rank](8, affine=False, eps=0.1),
        "instance norm": INSTANCE[rank](8), "affine": INSTANCE[rank](8, affine=True, eps=1e-3),
        "saved": INSTANCE[rank](8, track_running_stats=True), "group norm": nn.GroupNorm(4, 8),
        "prelu": nn.PReLU(8), "one slope": nn.PReLU(), "leaky layer": nn.LeakyReLU(0.2, True),
    }  # fmt: skip
    rows = {name: (function, {}) for name, function in flat.items()}
    rows |= {name: (lambda m, y: m.layer(y), {"layer": each}) for name, each in layers.items()}
    rows["per channel"] = (
        lambda m, y: y * m.scale() + m.offset(),
        {"scale": Table(1, 8, *(1,) * rank), "offset": Table(8, *(1,) * rank)},
    )
    rows["divided"] = (
        lambda m, y: m.one() + y / m.scale(),
        {"scale": Table(8, *(1,) * rank), "one": Table()},
    )
    if rank == 2:
        rows["pixel shuffle"] = (lambda m, y: F.pixel_shuffle(y, 2), {})
    return rows


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("how", ["export", "dynamo"])
def test_rows_compute_what_pytorch_computes(rank, how) -> None:
    model = randomised(Rows(rank, table_of(rank)))
    x = torch.randn(2, 4, *SIZE[rank])
    with torch.no_grad():
        call, made, left = handed(model, x, how)
        assert not left
        if how == "export":
            assert remaining(call) == []
        # Memory in another order: channels last where PyTorch has a name for it.
        strided = x.transpose(0, 1).contiguous().transpose(0, 1)
        for each in (x, strided if rank == 1 else x.to(memory_format=LAST[rank])):
            expected, results = model(each), call(each)
            wrong = [name for name in expected if not close(results[name], expected[name])]
            assert wrong == []
    assert [part.reason for part in made] == [""] * len(made)


def net():
    """A small decoder with a skip, every kind of weight, and layers that work in place."""

    def decoder(m, x):
        y = m.act(m.norm(m.down(x)))
        y = F.relu(m.up(y), inplace=True)
        y = m.mix(torch.cat([y, x], 1)) * m.scale
        y += 0.5
        return torch.tanh(y), y

    return randomised(
        Of(
            decoder,
            down=nn.Conv2d(3, 8, 4, stride=2, padding=1),
            norm=nn.BatchNorm2d(8),
            act=nn.PReLU(8),
            up=nn.ConvTranspose2d(8, 5, 4, stride=2, padding=1),
            mix=nn.Conv2d(8, 4, 3, padding=1),
            scale=torch.rand(4, 1, 1),
        )
    )


def both_close(one, other, bound=2e-5):
    return all(close(a, b, bound) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("how", ["export", "dynamo"])
def test_one_part_serves_every_size(how) -> None:
    model = net()
    call, made, left = handed(model, torch.randn(2, 3, 8, 12), how, dynamic=how == "export")
    assert (len(made), left) == (1, {})
    assert made[0].layers == 3
    with torch.no_grad():
        for shape in ((2, 3, 8, 12), (3, 3, 10, 6), (2, 3, 8, 12), (5, 3, 4, 4)):
            x = torch.randn(shape)
            assert both_close(call(x), model(x))
    assert made[0].reason == ""


CHANGES = {
    "in place": lambda model: model.up.weight.mul_(-1.5),
    "loaded": lambda model: model.load_state_dict(
        {name: value * 1.25 for name, value in model.state_dict().items()}
    ),
    "unseen": lambda model: model.mix.weight.data.add_(0.25),
    "statistics": lambda model: model.norm.running_mean.add_(0.5),
    "exchanged": lambda model: setattr(
        model.mix.weight, "data", torch.randn_like(model.mix.weight)
    ),
    "by NumPy": lambda model: model.scale.numpy().__imul__(2),
}


@pytest.mark.parametrize("how", ["export", "dynamo"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_weights_are_seen(change, how) -> None:
    model, x = net(), torch.randn(1, 3, 8, 8)
    call, made, _ = handed(model, x, how)
    with torch.no_grad():
        before = model(x)
        assert both_close(call(x), before)
        network = next(iter(made[0]._networks.values())).network
        call(x)
        assert next(iter(made[0]._networks.values())).network is network
        change(model)
        expected = model(x)
        assert not both_close(expected, before, 1e-3)
        assert both_close(call(x), expected)


def test_weights_made_in_inference_mode_are_probed() -> None:
    with torch.inference_mode():
        model, x = net(), torch.randn(1, 3, 8, 8)
        call, _, _ = handed(model, x)
        assert both_close(call(x), model(x))
        model.up.weight.mul_(2)
        assert both_close(call(x), model(x))


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm])
@pytest.mark.filterwarnings("ignore:The tensor attributes:UserWarning")
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_computed_weights_belong_to_the_part(norm) -> None:
    model = nn.Sequential(norm(nn.Conv1d(4, 6, 3)), nn.ReLU(), norm(nn.ConvTranspose1d(6, 2, 4)))
    x = torch.randn(1, 4, 9)
    call, made, left = handed(model, x)
    assert (len(made), left, remaining(call)) == (1, {}, [])
    with torch.no_grad():
        assert close(call(x), model(x))
        next(model.parameters()).add_(1.0)
        assert close(call(x), model(x))


@pytest.mark.parametrize("last", [False, True])
def test_bfloat16(last) -> None:
    model, x = net().bfloat16(), torch.randn(2, 3, 8, 12).bfloat16()
    x = x.to(memory_format=torch.channels_last) if last else x
    call, made, _ = handed(model, x)
    with torch.no_grad():
        results, expected = call(x), model(x)
    assert len(made) == 1
    assert all(each.dtype is torch.bfloat16 for each in results)
    assert all(each.is_contiguous(memory_format=torch.channels_last) == last for each in results)
    assert both_close([each.float() for each in results], [each.float() for each in expected], 0.05)


REFUSED = {
    "float64": (lambda m, y: y.double() * 2, "float32 or bfloat16"),
    "third": (lambda m, y: F.interpolate(y, scale_factor=1.3), "known integer sizes"),
    "exact": (lambda m, y: F.interpolate(y, (9, 12), mode="nearest-exact"), "no such operation"),
    "antialias": (
        lambda m, y: F.interpolate(y, (9, 12), mode="bilinear", antialias=True),
        "no such operation",
    ),
    "cubic": (lambda m, y: F.interpolate(y, (9, 12), mode="bicubic"), "no such operation"),
    "sum": (lambda m, y: y.mean((1, 2), keepdim=True), "the channels or all positions"),
    "softmax": (lambda m, y: F.softmax(y, -1), "1, the channels"),
    "value": (lambda m, y: F.pad(y, (1, 1), value=2.0), "zeros at the ends"),
    "channels": (lambda m, y: F.pad(y, (0, 0, 0, 0, 1, 1)), "zeros at the ends"),
    "batch": (lambda m, y: torch.cat([y, y]), "1, the channels"),
    "fft": (lambda m, y: torch.fft.fft(y).real, "no such operation"),
    "steps": (lambda m, y: y[..., ::2], "the step of a slice"),
    "dynamic weight": (lambda m, y: F.conv2d(y, y[:, :, :2, :2]), "computed from the input"),
    "softplus": (lambda m, y: F.softplus(y, beta=2), "beta"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_network_cannot_do_is_left_with_a_reason(name) -> None:
    function, reason = REFUSED[name]
    model = Rows(2, {"refused": (function, {})}).eval()
    x = torch.randn(2, 4, 6, 8)
    call, made, left = handed(model, x)
    assert len(made) == 1
    assert reason in " ".join(left.values())
    with torch.no_grad():
        assert close(call(x)["refused"], model(x)["refused"])


@pytest.mark.parametrize("how", ["export", "dynamo"])
def test_a_size_of_the_graph_is_no_operand_of_a_part(how) -> None:
    """PyTorch's partitioner does not end where `getitem` slices a tensor by such a size."""
    layers = {"one": nn.Conv1d(4, 4, 3), "two": nn.Conv1d(4, 4, 3)}
    model = Of(lambda m, x: m.two(F.relu(m.one(x))[..., : x.shape[2] - 3]), **layers).eval()
    x = torch.randn(2, 4, 9)
    call, made, left = handed(model, x, how, dynamic=True)
    assert [part.layers for part in made] == [1, 1]
    assert "a size that is not known" in " ".join(left.values())
    with torch.no_grad():
        for size in (9, 12):
            x = torch.randn(2, 4, size)
            assert close(call(x), model(x))


def test_nearest_positions_are_pytorchs_or_refused() -> None:
    """PyTorch rounds their float32 positions, and some are not those of integer arithmetic."""
    refused = 0
    for before in range(1, 40):
        x = torch.arange(before, dtype=torch.float32).reshape(1, 1, before)
        for after in range(1, 120):
            exact = [[[out * before // after for out in range(after)]]]
            same = F.interpolate(x, after).tolist() == exact
            assert windows._is_nearest_exact(before, after) <= same
            refused += not same
    assert refused  # the refusal is needed


def test_training_layers_are_left() -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.BatchNorm1d(4), nn.Dropout(0.5)).train()
    exported = torch.export.export(model, (torch.randn(2, 4, 9),), strict=False).module()
    _, left = parts.hand_over(exported)
    told = " ".join(left.values())
    assert "the batch's statistics" in told
    assert "in training" in told


def test_pytorch_computes_what_no_network_takes_and_the_part_says_why() -> None:
    model = nn.Sequential(nn.Conv1d(4, 4, 3), nn.ReLU(inplace=True)).eval()
    call, (part,), _ = handed(model, torch.randn(2, 4, 9), dynamic=True)
    with torch.no_grad():
        model[0].weight[0, 0, 0] = float("nan")
        x = torch.randn(2, 4, 9)
        assert torch.equal(call(x), model(x)) or call(x).isnan().any()
        assert "finite" in part.reason
        model[0].weight.fill_(0.5)
        assert close(call(x), model(x))


def test_a_gradient_is_refused_in_words() -> None:
    model, x = net(), torch.randn(1, 3, 8, 8)
    call, _, _ = handed(model, x)
    with pytest.raises(EngineError, match="has no gradient"):
        call(x)[0].sum().backward()


def test_a_part_is_put_back() -> None:
    model, x = net(), torch.randn(1, 3, 8, 8)
    call, (part,), _ = handed(model, x)
    part.put_back()
    call.graph.lint()
    call.recompile()
    assert not [name for name in map(str, call.graph.nodes) if "network" in name]
    with torch.no_grad():
        assert both_close(call(x), model(x), 0.0)


def test_parts_end_with_their_graph_and_keys_repeat() -> None:
    model, x = net(), torch.randn(1, 3, 8, 8)
    call, made, _ = handed(model, x)
    again, others, _ = handed(net(), x)
    assert made[0].key.split("-")[0] == others[0].key.split("-")[0]
    assert made[0].key != others[0].key
    key = made[0].key
    del made, others, call, again
    gc.collect()
    with pytest.raises(EngineError, match="was deleted"):
        torch.ops.upconv.network([x], [], key)


def test_threads_share_a_part() -> None:
    model = net()
    inputs = [torch.randn(n + 1, 3, 8, 8) for n in range(4)]
    call, _, _ = handed(model, inputs[1], dynamic=True)
    with torch.no_grad():
        expected = [model(x) for x in inputs]

    @torch.no_grad()
    def work(n):
        return all(both_close(call(inputs[n]), expected[n]) for _ in range(5))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


@st.composite
def graphs_of_steps(draw):
    """Steps of a random graph: the name of a function, and the values that it takes."""
    count = draw(st.integers(2, 9))
    names = st.sampled_from(sorted(STEPS))
    return [
        (draw(names), draw(st.integers(0, number)), draw(st.integers(0, number)))
        for number in range(count)
    ]


STEPS = {
    "conv": lambda m, x, y: m.conv(x), "up": lambda m, x, y: F.avg_pool1d(m.up(x), 2),
    "norm": lambda m, x, y: m.norm(x), "instance": lambda m, x, y: F.instance_norm(x),
    "add": lambda m, x, y: x + y, "mul": lambda m, x, y: x * torch.sigmoid(y),
    "cat": lambda m, x, y: m.mix(torch.cat([x, y], 1)), "tanh": lambda m, x, y: torch.tanh(x),
    "relu_": lambda m, x, y: F.relu(x + 1, inplace=True), "view": lambda m, x, y: x[:, :2].repeat(
        1, 2, 1), "fft": lambda m, x, y: torch.fft.fft(x).real / 8, "in_place": lambda m, x, y: (
        (x * 1).add_(y)), "written": lambda m, x, y: x.mul_(0.5) + y, "mean": lambda m, x, y: (
        x - y.mean(2, keepdim=True)), "matmul": lambda m, x, y: x @ m.square,
    "unused": lambda m, x, y: (m.conv(y), x)[1], "flip": lambda m, x, y: x.flip(1),
}  # fmt: skip


class Random(nn.Module):
    """The steps of a random graph, each on two of the values so far."""

    def __init__(self, steps):
        super().__init__()
        self.steps = steps
        self.conv, self.mix = nn.Conv1d(4, 4, 3, padding=1), nn.Conv1d(8, 4, 1)
        self.up, self.norm = nn.ConvTranspose1d(4, 4, 4, 2, 1), nn.BatchNorm1d(4)
        self.square = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x):
        values = [x * 0.5]
        for name, first, second in self.steps:
            values.append(STEPS[name](self, values[first], values[second]))
        return values[-1], values[len(values) // 2]


@pytest.mark.parametrize("how", ["export", "dynamo"])
@settings(max_examples=12)
@given(steps=graphs_of_steps(), seed=st.integers(0, 99))
def test_random_graphs(how, steps, seed) -> None:
    torch.manual_seed(seed)
    model, x = randomised(Random(steps)), torch.randn(2, 4, 8)
    with torch.no_grad():
        call, _, _ = handed(model, x, how)
        expected = model(x.clone())
        for _ in range(2):
            assert both_close(call(x.clone()), expected, 1e-4)


def test_a_wrong_row_is_caught(monkeypatch) -> None:
    monkeypatch.setitem(
        network_rules.ROWS, "tanh", lambda network, x: network.activation(x, "sigmoid")
    )
    model, x = net(), torch.randn(1, 3, 8, 8)
    call, _, _ = handed(model, x)
    with torch.no_grad():
        assert not both_close(call(x), model(x))
