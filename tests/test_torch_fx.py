"""`upconv.torch.rewrite`: graphs with upconv's operators compute what they computed."""

from __future__ import annotations

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")
from torch import fx, nn  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.fx.passes.fake_tensor_prop import FakeTensorProp  # noqa: E402
from torch.nn import functional  # noqa: E402

from upconv.torch import TensorTypeError, accelerate, rewrite  # noqa: E402

BOUND = 2e-5
pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

PLAIN, NORM = "upconv.conv_transpose.default", "upconv.conv_transpose_norm.default"


class Net(nn.Module):
    """Two up-sampling blocks and a functional layer, with everything that can be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(6, 8, 4, 2, 1)
        self.norm = nn.BatchNorm2d(8)
        self.skip = nn.Conv2d(6, 64, 1)
        self.again = nn.ConvTranspose2d(8, 4, 3, 2, 1, 1, groups=2, bias=False)
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 2) / 5)
        nn.init.normal_(self.norm.running_mean)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, x):  # fx pickles no annotations that are strings
        y = functional.relu(self.norm(self.up(x)))
        r = functional.pixel_shuffle(self.skip(x), 4)
        z = functional.leaky_relu(r + self.again(y), 0.2)
        return torch.tanh(functional.conv_transpose2d(z, self.weight, stride=(3, 2), dilation=2))


@pytest.fixture
def net():
    torch.manual_seed(5)
    return Net().eval()


@pytest.fixture
def x():
    torch.manual_seed(6)
    return torch.randn(2, 6, 5, 4)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and bool((one - other).abs().max() <= BOUND)


def targets(graph: fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "call_function"]


class TestExported:
    @pytest.mark.parametrize("decomposed", [False, True])
    def test_everything_is_fused_and_the_same(self, net, x, decomposed) -> None:
        with torch.no_grad():
            program = torch.export.export(net, (x,))
            program = program.run_decompositions() if decomposed else program
            assert rewrite(program) is program
            program.graph.lint()
            assert same(program.module()(x), net(x))
        ours = [node for node in program.graph.nodes if "upconv" in str(node.target)]
        assert [str(node.target) for node in ours] == [NORM, PLAIN, PLAIN]
        after = [str(user.target) for node in ours for user in node.users]
        assert after == [PLAIN, PLAIN, "output"]

    def test_parameters_of_the_program_are_followed(self, net, x) -> None:
        with torch.no_grad():
            program = rewrite(torch.export.export(net, (x,)))
            first = program.module()(x)
            for model in (net, program.module()):
                model.norm.running_mean.add_(1) if model is net else None
            state = {name: value * 1.5 for name, value in net.state_dict().items() if value.ndim}
            module = program.module()
            module.load_state_dict(state, strict=False)
            net.load_state_dict(state, strict=False)
            assert same(module(x), net(x))
            assert not same(module(x), first)

    @pytest.mark.parametrize("decomposed", [False, True])
    @pytest.mark.parametrize("first", [nn.Identity(), nn.Conv2d(6, 6, 1)], ids=["float32", "cast"])
    def test_autocast_is_pytorchs(self, net, x, decomposed, first) -> None:
        model = nn.Sequential(first, net.up, net.norm, nn.LeakyReLU(0.2)).eval()
        program = torch.export.export(model, (x,))
        program = rewrite(program.run_decompositions() if decomposed else program)
        assert NORM in targets(program.graph)
        for recorded in (False, True):
            with torch.set_grad_enabled(recorded), torch.autocast("cpu"):
                wanted, got = model(x), program.module()(x)
            assert got.dtype is wanted.dtype is torch.bfloat16
            assert torch.allclose(got, wanted, rtol=0.05, atol=0.05)

    def test_dynamic_sizes(self, net, x) -> None:
        sizes = {0: torch.export.Dim("n"), 2: torch.export.Dim("h"), 3: torch.export.Dim("w")}
        with torch.no_grad():
            program = rewrite(torch.export.export(net, (x,), dynamic_shapes=(sizes,)))
            other = torch.randn(3, 6, 7, 9)
            assert same(program.module()(other), net(other))

    def test_without_fuse_one_node_is_one_node(self, net, x) -> None:
        program = rewrite(torch.export.export(net, (x,)), fuse=False)
        found = targets(program.graph)
        assert [t for t in found if "upconv" in t] == [PLAIN] * 3
        assert "aten.relu.default" in found
        with torch.no_grad():
            assert same(program.module()(x), net(x))

    def test_results_that_go_elsewhere_are_not_fused(self, x) -> None:
        class Both(Net):
            def forward(self, x):
                y = self.up(x)
                return functional.relu(y) + y.mean()

        both = Both().eval()
        program = rewrite(torch.export.export(both, (x,)))
        assert "aten.relu.default" in targets(program.graph)
        with torch.no_grad():
            assert same(program.module()(x), both(x))

    @pytest.mark.parametrize("shape", [(4,), (2, 1, 10, 8), ()])
    def test_what_is_spread_over_the_result_is_no_residual(self, x, shape) -> None:
        class Spread(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up = nn.ConvTranspose2d(6, 8, 2, 2)

            def forward(self, x, r):
                return torch.relu(self.up(x) + (r.reshape(-1)[0] if r.shape == (4,) else r))

        model, r = Spread().eval(), torch.randn(shape)
        program = rewrite(torch.export.export(model, (x, r)))
        assert any("add" in target for target in targets(program.graph))
        with torch.no_grad():
            assert same(program.module()(x, r), model(x, r))

    def test_other_dtypes_devices_and_convolutions_stay(self) -> None:
        class Mixed(nn.Module):
            def forward(self, x, w, c):
                return functional.conv_transpose1d(x, w), functional.conv1d(c, w)

        complex_x = torch.randn(1, 2, 5, dtype=torch.complex64)
        w = torch.randn(2, 2, 3, dtype=torch.complex64)
        program = rewrite(torch.export.export(Mixed(), (complex_x, w, complex_x)))
        assert not [t for t in targets(program.graph) if "upconv" in t]

    def test_training_normalisations_stay(self, net, x) -> None:
        program = rewrite(torch.export.export(net.train(), (x,)))
        assert [t for t in targets(program.graph) if "upconv" in t] == [PLAIN] * 3


class TestTraced:
    def test_everything_is_fused_and_the_same(self, net, x) -> None:
        graph = fx.symbolic_trace(net)
        keys = list(graph.state_dict())
        assert rewrite(graph) is graph
        assert [node.op for node in graph.graph.nodes].count("call_module") == 1  # the convolution
        assert list(graph.state_dict()) == keys
        with torch.no_grad():
            assert same(graph(x), net(x))
            for other in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
                assert same(other(x), net(x))
                other.norm.running_mean.add_(1)
                other.up.weight.mul_(2)
                changed = copy.deepcopy(net)
                changed.load_state_dict(other.state_dict())
                assert same(other(x), changed(x))

    def test_gradients_are_the_same(self, net, x) -> None:
        graph = rewrite(fx.symbolic_trace(copy.deepcopy(net)))
        for model in (net, graph):
            model(x).square().sum().backward()
        for name, parameter in net.named_parameters():
            other = graph.get_parameter(name).grad
            assert torch.allclose(other, parameter.grad, rtol=1e-3, atol=1e-3)

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # PyTorch's own
    @pytest.mark.parametrize("frozen", [False, True])
    def test_forward_mode_derivatives_are_the_same(self, net, x, frozen) -> None:
        net.requires_grad_(not frozen)
        graph = rewrite(fx.symbolic_trace(copy.deepcopy(net)))
        torch.manual_seed(7)
        t = torch.randn_like(x)
        for recorded in (False, True):
            with torch.set_grad_enabled(recorded):
                (y, dy), (other, tangent) = (
                    torch.func.jvp(model, (x,), (t,)) for model in (net, graph)
                )
                assert dy.abs().max() > 0.01
                assert same(other, y)
                assert torch.allclose(tangent, dy, rtol=1e-3, atol=1e-4)
                with forward_ad.dual_level():
                    result = forward_ad.unpack_dual(graph(forward_ad.make_dual(x, t)))
                    assert torch.allclose(result.tangent, dy, rtol=1e-3, atol=1e-4)

    @pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # PyTorch's own
    @pytest.mark.parametrize("way", ["jacfwd", "jacrev"])
    def test_jacobians_of_frozen_graphs_are_the_same(self, net, x, way) -> None:
        net.requires_grad_(False)
        graph = rewrite(fx.symbolic_trace(copy.deepcopy(net)))
        jacobian = getattr(torch.func, way)
        of = [jacobian(lambda x, model=model: model(x)[0, 0, 3, :2])(x) for model in (net, graph)]
        assert of[0].abs().max() > 0.01
        assert torch.allclose(of[1], of[0], rtol=1e-3, atol=1e-4)

    def test_inputs_without_batch_and_hooks(self) -> None:
        model = nn.Sequential(nn.ConvTranspose1d(2, 3, 4), nn.Tanh()).eval()
        x = torch.randn(2, 5)
        with torch.no_grad():
            assert same(rewrite(fx.symbolic_trace(model))(x), model(x))
            model[0].register_forward_hook(lambda _, __, y: y + 1)
            assert same(rewrite(fx.symbolic_trace(model))(x), model(x))

    def test_a_write_in_between_is_not_passed(self) -> None:
        class Writes(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up = nn.ConvTranspose1d(2, 2, 1)

            def forward(self, x):
                x = x + 0
                y = self.up(x)
                x.mul_(2)
                return torch.relu(y) + x

        model, x = Writes().eval(), torch.randn(1, 2, 5)
        with torch.no_grad():
            assert same(rewrite(fx.symbolic_trace(model))(x), model(x))

    def test_compiles_whole(self, net, x) -> None:
        graph = rewrite(fx.symbolic_trace(net))
        compiled = torch.compile(graph, fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            assert same(compiled(x), net(x))


def test_what_is_no_graph_is_refused() -> None:
    with pytest.raises(TensorTypeError, match=r"program is .*; expected a torch.fx.GraphModule"):
        rewrite(nn.ReLU())


def test_operators_whose_arguments_are_named_are_rewritten() -> None:
    aten = torch.ops.aten
    graph = fx.Graph()
    x, weight, mean, var = [graph.placeholder(name) for name in ("x", "weight", "mean", "var")]
    named = {"bias": None, "stride": [2, 2], "padding": [1, 1], "dilation": [1, 1]}
    named |= {"transposed": True, "output_padding": [0, 0], "groups": 1}
    y = graph.call_function(aten.convolution.default, (x, weight), named)
    norm = {"input": y, "weight": None, "bias": None, "running_mean": mean, "running_var": var}
    norm |= {"training": False, "momentum": 0.1, "eps": 1e-3, "cudnn_enabled": False}
    graph.output(graph.call_function(aten.batch_norm.default, (), norm))
    module = fx.GraphModule({}, graph)
    inputs = torch.randn(2, 3, 4, 5), torch.randn(3, 2, 4, 4), torch.randn(2), torch.rand(2) + 0.5
    expected = module(*inputs)
    rewrite(module)
    assert [node.op for node in module.graph.nodes].count("call_function") == 1
    assert torch.allclose(module(*inputs), expected, atol=1e-4)


class TestOdd:
    """What could be taken for something it is not."""

    def rewritten(self, model, *inputs):
        """The exported model's targets, once it has computed the same rewritten."""
        program = torch.export.export(model, inputs)
        with torch.no_grad():
            wanted = model(*inputs)
            assert same(rewrite(program).module()(*inputs), wanted)
        return targets(program.graph)

    def test_a_scaled_sum_is_no_residual(self, x) -> None:
        class Scaled(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up = nn.ConvTranspose2d(6, 4, 2, 2)

            def forward(self, x, r):
                return torch.relu(torch.add(self.up(x), r, alpha=2))

        assert PLAIN in self.rewritten(Scaled().eval(), x, torch.randn(2, 4, 10, 8))

    def test_a_residual_of_another_dtype_is_none(self, x) -> None:
        model = Sum().eval()
        found = self.rewritten(model, x, torch.randn(2, 4, 10, 8, dtype=torch.float64))
        assert any("add" in target for target in found)

    def test_a_normalisation_by_the_batch_stays(self, x) -> None:
        class Trains(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up, self.norm = nn.ConvTranspose2d(6, 4, 2, 2), nn.BatchNorm2d(4)

            def forward(self, x):
                numbers = self.norm.running_mean.clone(), self.norm.running_var.clone()
                return functional.batch_norm(self.up(x), *numbers, training=True)

        assert NORM not in self.rewritten(Trains().eval(), x)

    def test_a_normalisation_module_that_trains_stays(self, x) -> None:
        model = nn.Sequential(nn.ConvTranspose2d(6, 4, 2, 2), nn.BatchNorm2d(4)).eval()
        model[1].train()
        plain = copy.deepcopy(model)
        graph = rewrite(fx.symbolic_trace(model))
        assert "call_module" in [node.op for node in graph.graph.nodes]
        assert same(graph(x), plain(x))
        assert torch.equal(model[1].running_mean, plain[1].running_mean)

    def test_a_normalisation_of_another_rank_is_refused_as_pytorch_does(self, x) -> None:
        model = nn.Sequential(nn.ConvTranspose2d(6, 4, 2, 2), nn.BatchNorm3d(4)).eval()
        graph = rewrite(fx.symbolic_trace(model))
        for each in (model, graph, accelerate(model)):
            with pytest.raises(ValueError, match="expected 5D input"), torch.no_grad():
                each(x)

    def test_other_results_of_a_normalisation_are_kept(self, x) -> None:
        class Several(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.up, self.norm = nn.ConvTranspose2d(6, 4, 2, 2), nn.BatchNorm2d(4)

            def forward(self, x):
                n = self.norm
                numbers = n.weight, n.bias, n.running_mean, n.running_var, 0.1, n.eps
                op = torch.ops.aten._native_batch_norm_legit_no_training
                y, mean, _ = op(self.up(x), *numbers)
                return y + mean.sum()

        assert NORM not in self.rewritten(Several().eval(), x)

    def test_a_weight_that_is_computed_is_packed_in_every_call(self, x) -> None:
        class Computed(nn.Module):
            def forward(self, x, w):
                return functional.conv_transpose2d(x, w * 2)

        w = torch.randn(6, 4, 3, 3)
        program = torch.export.export(Computed(), (x, w))
        (node,) = [n for n in rewrite(program).graph.nodes if str(n.target) == PLAIN]
        assert node.args[-1] is False
        module = program.module()
        for factor in (1, 3):
            assert same(module(x, w * factor), functional.conv_transpose2d(x, w * factor * 2))

    def test_a_traced_graph_that_knows_its_shapes(self, x) -> None:
        model = nn.Sequential(nn.ConvTranspose2d(6, 4, 2, 2), nn.BatchNorm2d(4), nn.ReLU()).eval()
        graph = with_shapes(fx.symbolic_trace(model), x)
        rewrite(graph)
        assert [node.op for node in graph.graph.nodes].count("call_function") == 1
        assert same(graph(x), model(x))
        assert same(graph(x[0:1]), model(x[0:1]))

    def test_a_traced_graph_that_knows_the_shape_of_a_residual(self, x) -> None:
        model, r = Sum().eval(), torch.randn(2, 4, 10, 8)
        graph = with_shapes(fx.symbolic_trace(model), x, r)
        assert same(rewrite(graph)(x, r), model(x, r))

    def test_a_layer_with_a_parametrization_stays(self, x) -> None:
        layer = nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(6, 4, 2, 2))
        model = nn.Sequential(layer, nn.ReLU()).eval()
        graph = rewrite(fx.symbolic_trace(model))
        graph.delete_all_unused_submodules()
        for scale in (1, 2):
            with torch.no_grad():
                layer.parametrizations.weight.original0.mul_(scale)
            assert same(graph(x), model(x))


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(6, 4, 2, 2)

    def forward(self, x, r):
        return torch.relu(self.up(x) + r)


def with_shapes(graph: fx.GraphModule, *inputs: torch.Tensor) -> fx.GraphModule:
    """A traced graph whose nodes know what they give, as passes of PyTorch leave it."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    FakeTensorProp(graph, mode).propagate(*inputs)
    return graph
