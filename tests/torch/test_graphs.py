"""Compiled and exported graphs: no break, the same values, and what is fused."""

import gc

import pytest

torch = pytest.importorskip("torch")
from importlib.metadata import entry_points  # noqa: E402

from torch import nn  # noqa: E402

import upconv.torch as ut  # noqa: E402
from tests.support.small_models import MODELS, Of, UNet3d, close, dcgan, stirred  # noqa: E402
from upconv import measuring  # noqa: E402
from upconv.errors import DTypeError  # noqa: E402
from upconv.torch import graphs, network_rules, packing  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread"),
    # PyTorch's of itself.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning"),
]


OLD = torch.__version__ < "2.5"  # compares as a version


@pytest.fixture(autouse=True)
def _nothing_compiled():
    torch.compiler.reset()
    graphs._measured.cache_clear()
    yield
    torch.compiler.reset()


def compiled(model, **options):
    settings = {"backend": graphs.backend, "options": {"then": "aot_eager"}, "fullgraph": True}
    return torch.compile(model, **{**settings, **options})


def calls(graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_has_one_graph_and_its_values(name, upconv_is_faster) -> None:
    build, shape = MODELS[name]
    model, x = stirred(build()), torch.randn(shape)
    with torch.no_grad():
        expected = model(x)
        fast = compiled(model)
        for _ in range(3):
            assert close(fast(x), expected)


@pytest.mark.parametrize("name", ["dcgan", "unet"])
def test_gradients_of_a_compiled_model(name, upconv_is_faster) -> None:
    build, shape = MODELS[name]
    model, x = stirred(build()), torch.randn(shape)
    fast = compiled(model)
    loss = fast(x).square().mean()
    made = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.autograd.grad(model(x).square().mean(), list(model.parameters()))
    assert all(close(one, other, 1e-4) for one, other in zip(made, expected, strict=True))


@pytest.mark.parametrize(
    "activation",
    [
        torch.relu, torch.relu_, nn.functional.silu, nn.functional.gelu, torch.Tensor.tanh_,
        nn.functional.relu6, nn.functional.hardswish,
        lambda y: nn.functional.leaky_relu(y, 0.3, inplace=True),
    ],
)  # fmt: skip
def test_activations_of_every_spelling_are_fused(activation) -> None:
    model = Of(lambda m, x: activation(m.up(x)), up=nn.ConvTranspose1d(3, 4, 4, 2)).eval()
    x = torch.randn(2, 3, 9)
    with torch.no_grad():
        expected = model(x)
        program = graphs.rewrite(torch.export.export(model, (x,)))
        assert calls(program.graph) == ["upconv.fused_convolution.default"]
        assert close(program.module()(x), expected)


def test_inductor_takes_the_rest_and_shapes_may_change(upconv_is_faster) -> None:
    model = nn.Sequential(nn.ConvTranspose1d(3, 4, 4, 2), nn.LeakyReLU(0.2), nn.Conv1d(4, 2, 3))
    fast = torch.compile(model.eval(), backend=graphs.backend, fullgraph=True, dynamic=True)
    with torch.no_grad():
        for length in (9, 12, 15, 9, 12, 15):
            x = torch.randn(2, 3, length)
            assert close(fast(x), model(x))
        before = packing.counts()
        fast(x)
        assert packing.counts() == before


@pytest.mark.skipif(OLD, reason="PyTorch 2.4's Dynamo does not look into modules")
def test_weights_of_a_compiled_model_stay_packed_however_many(
    monkeypatch, upconv_is_faster
) -> None:
    monkeypatch.setattr(packing, "_MAX_BYTES", 0)  # more than the table holds
    # float64, which networks do not compute: each convolution is one operator.
    model = nn.Sequential(*(nn.Conv1d(4, 4, 3) for _ in range(3))).eval().double()
    fast, x, held = compiled(model), torch.randn(2, 4, 20).double(), len(packing._by_address)
    with torch.no_grad():
        expected = model(x)
        assert close(fast(x), expected)
        before = packing.counts()
        assert close(fast(x), expected)
        assert packing.counts() == before
        model[1].weight.mul_(2.0)
        assert close(fast(x), model(x))
        assert packing.counts() == before + 1
    del fast
    torch.compiler.reset()
    gc.collect()
    assert len(packing._by_address) <= held


@pytest.mark.skipif(OLD, reason="PyTorch 2.4's Dynamo does not look into modules")
def test_what_follows_in_code_is_fused(upconv_is_faster) -> None:
    seen = []

    def spy(module, _inputs):
        seen.extend(calls(module.graph))
        return module.forward

    torch._dynamo.register_backend(spy, name="spy_of_upconv")

    def block(m, x):
        return torch.tanh(x + m.conv(nn.functional.leaky_relu(x, 0.1)))

    model, x = Of(block, conv=nn.Conv1d(4, 4, 3, padding=1)).eval(), torch.randn(1, 4, 9)
    fast = compiled(model, options={"then": "spy_of_upconv"})
    with torch.no_grad():
        assert close(fast(x), model(x))
    assert [name for name in seen if "getitem" not in name] == ["upconv.network.default"]


def test_a_layer_stays_pytorchs_where_that_is_faster(monkeypatch) -> None:
    monkeypatch.setattr(graphs.trials, "is_faster", lambda *_: False)
    before = packing.counts()
    model, x = nn.Conv2d(3, 4, 3).eval(), torch.randn(1, 3, 8, 8)
    with torch.no_grad():
        fast = compiled(model)
        fast(x)
        measured = packing.counts()
        fast(x)
    assert before <= measured == packing.counts()


@pytest.mark.skipif(OLD, reason="PyTorch 2.4's Dynamo does not look into modules")
def test_a_part_that_is_not_faster_or_differs_stays_and_the_log_says_why(
    monkeypatch, caplog
) -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.Tanh()).eval()
    x = torch.randn(1, 3, 9)
    caplog.set_level("INFO", "upconv.torch")
    with torch.no_grad():
        monkeypatch.setattr(measuring, "required_gain", lambda _: float("inf"))
        assert close(compiled(model)(x), model(x))
        assert "stays with PyTorch: it is not faster" in caplog.text
        torch.compiler.reset()
        sigmoid = lambda network, x: network.activation(x, "sigmoid")  # noqa: E731
        monkeypatch.setitem(network_rules.ROWS, "tanh", sigmoid)
        assert close(compiled(model)(x), model(x))
        assert "stays with PyTorch: its result 1 differs" in caplog.text


@pytest.mark.skipif(OLD, reason="PyTorch 2.4's Dynamo does not look into modules")
def test_gradients_inside_a_block_without_them_stay(upconv_is_faster) -> None:
    def inside(m, x):
        with torch.enable_grad():
            return m.conv(x)

    model, x = Of(inside, conv=nn.Conv1d(3, 4, 3)), torch.randn(1, 3, 9)
    with torch.no_grad():
        fast = torch.compile(model, backend=graphs.backend, options={"then": "eager"})
        y = fast(x)
    y.sum().backward()
    assert model.conv.weight.grad is not None


def test_the_backend_is_found_by_its_name_and_refuses_unknown_options() -> None:
    (found,) = entry_points(group="torch_dynamo_backends", name="upconv") or [None]
    if found is None:
        pytest.skip("upconv was installed before it had this entry point")
    assert found.load() is graphs.backend
    with pytest.raises(DTypeError, match="no option but 'then'"):
        graphs.backend(None, [], options={"fast": True})


@pytest.mark.parametrize("name", ["dcgan", "unet", "vocoder"])
@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.filterwarnings("ignore:The tensor attribute self.up.weight:UserWarning")
def test_exported_programs_are_rewritten(name, decomposed) -> None:
    build, shape = MODELS[name]
    model, x = stirred(build()), torch.randn(shape)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        program = program.run_decompositions() if decomposed else program
        assert ut.rewrite(program) is program
        names = calls(program.graph)
        assert "upconv.fused_convolution.default" in names
        assert not [each for each in names if "aten.conv" in each]
        assert close(program.module()(x), model(x))


def test_a_graph_of_another_kind_is_refused() -> None:
    with pytest.raises(DTypeError, match=r"expected a torch\.export\.ExportedProgram"):
        ut.rewrite(dcgan())


@pytest.mark.skipif(OLD, reason="PyTorch 2.4's Dynamo cannot compare classes of modules")
def test_accelerated_models_compile_and_export(upconv_is_faster) -> None:
    for build, shape in ((dcgan, (2, 6, 1, 1)), (UNet3d, (1, 1, 6, 4, 8))):
        model, x = stirred(build()), torch.randn(shape)
        with torch.no_grad():
            expected = model(x)
            ut.accelerate(model, x)
            fast = torch.compile(model, backend="aot_eager", fullgraph=True)
            assert close(fast(x), expected)
            assert close(fast(x), expected)
            program = torch.export.export(model, (x,))
            assert close(program.module()(x), expected)
        y = torch.compile(model.train(), backend="aot_eager", fullgraph=True)(x)
        y.sum().backward()


def test_functions_compile_with_dynamic_shapes() -> None:
    weight = torch.randn(3, 4, 4)
    fast = torch.compile(
        lambda x, w: ut.conv_transpose(x, w, stride=2), fullgraph=True, dynamic=True,
        backend="aot_eager",
    )  # fmt: skip
    for length in (5, 8, 13):
        x = torch.randn(2, 3, length)
        assert close(fast(x, weight), nn.functional.conv_transpose1d(x, weight, stride=2))


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("name", ["stride", "padding", "dilation", "output_padding", "output_size"])
def test_what_depends_on_an_open_size_stays_with_pytorch(name: str, recording: bool) -> None:
    """It is a node of the graph, not a number that could be measured."""

    def upsampled(m, x):
        size = x.shape[2]
        if name == "output_size":
            return m.up(x, output_size=(3 * size + 5,))
        keywords = {"stride": 3, name: size // 8 - name.endswith("padding")}
        return nn.functional.conv_transpose1d(x, m.up.weight, **keywords)

    model = Of(upsampled, up=nn.ConvTranspose1d(3, 4, 4, 3, dilation=2))
    fast = compiled(model, dynamic=True)
    with torch.set_grad_enabled(recording):
        for length in (17, 25):
            x = torch.randn(2, 3, length)
            assert close(fast(x), model(x))
