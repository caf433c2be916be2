"""What happens to a model after `accelerate`: parametrizations, classes, hooks, copies, tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn.modules.module import register_module_forward_hook  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from accelerated_models import same, stirred  # noqa: E402
from upconv import UpconvError  # noqa: E402
from upconv.torch import accelerate, acceleration_report, forget, restore  # noqa: E402
from upconv.torch.accelerate_runs import Example, difference  # noqa: E402
from upconv.torch.accelerate_swaps import is_swapped  # noqa: E402
from upconv.torch.fused import Fused  # noqa: E402
from upconv.torch.observers import SHOWS_MODES  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

Change = Callable[[nn.Module], object]


def up() -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(4, 3, 4, 2, 1)


def nested() -> nn.Sequential:
    return stirred(nn.Sequential(nn.Sequential(up(), nn.BatchNorm2d(3)), nn.LeakyReLU(0.2)))


def example() -> torch.Tensor:
    return torch.randn(2, 4, 5, 3)


def both(model: nn.Module) -> tuple[nn.Module, nn.Module]:
    """An accelerated copy that has computed once, and the model."""
    model.eval()
    fast = accelerate(copy.deepcopy(model))
    with torch.no_grad():
        fast(example())
    return fast, model


def agree(fast: nn.Module, plain: nn.Module, x: torch.Tensor | None = None) -> bool:
    x = example() if x is None else x
    with torch.no_grad():
        one, other = fast(x), plain(x)
    return bool(torch.allclose(one, other, atol=2e-5, equal_nan=True))


class Half(nn.Module):
    def forward(self, weight):
        return weight / 2


class Doubled(nn.ConvTranspose2d):
    def forward(self, x, output_size=None):
        return super().forward(x, output_size) * 2


class Watching(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        y = function(*args, **(kwargs or {}))
        return y * 2 if function is torch.conv_transpose2d else y


class TestParametrizations:
    def test_of_one_tensor_are_computed(self) -> None:
        made = parametrizations.orthogonal(up(), use_trivialization=False)
        fast, plain = both(nn.Sequential(made, nn.ReLU()))
        assert acceleration_report(fast).layers[0].after == "upconv, fused"
        assert agree(fast, plain)

    @pytest.mark.parametrize("first", [False, True])
    def test_registered_later_are_computed(self, first) -> None:
        layer = parametrizations.weight_norm(up()) if first else up()
        fast, plain = both(nn.Sequential(layer, nn.ReLU()))
        for model in (fast, plain):
            parametrize.register_parametrization(model[0], "weight", Half())
        assert agree(fast, plain)

    @pytest.mark.parametrize("again", [False, True])
    def test_registered_later_survive_restore_and_accelerate(self, again) -> None:
        fast, plain = both(stirred(nn.Sequential(up(), nn.BatchNorm2d(3))))
        for model in (fast, plain):
            parametrizations.weight_norm(model[0])
        assert agree(fast, plain)
        if again:
            (layer,) = acceleration_report(accelerate(fast)).layers
            assert layer.after == "upconv, fused"
            assert agree(fast, plain)
        restore(fast)
        assert not is_swapped(fast[0])
        assert agree(fast, plain)
        parametrize.remove_parametrizations(fast[0], "weight")
        assert type(fast[0]) is nn.ConvTranspose2d
        assert agree(fast, plain)

    def test_one_more_of_another_tensor_survives_restore(self) -> None:
        model, x = nn.Sequential(parametrizations.weight_norm(up())).eval(), example()
        parametrize.register_parametrization(accelerate(model)[0], "bias", Half())
        with torch.no_grad():
            y = model(x)
            assert same(restore(model)(x), y)
        assert not is_swapped(model[0])

    def test_a_class_that_cannot_be_made_anew_computes_as_the_original(self) -> None:
        fast, plain = both(nn.Sequential(up(), nn.ReLU()))

        class Later(type(fast[0])):
            def forward(self, x, output_size=None):
                return super().forward(x, output_size) * 2

        fast[0].__class__, plain[0].__class__ = Later, Doubled
        assert agree(fast, plain)
        assert agree(restore(fast), plain)
        (layer,) = acceleration_report(accelerate(fast)).layers
        assert layer.why == "its class was made from an accelerated one"
        assert agree(fast, plain)


def _forward_hook(model: nn.Module) -> None:
    model[0].register_forward_hook(lambda _, __, y: y + 1)


def _forward_of_the_inner(model: nn.Module) -> None:
    model[0].forward = lambda x, old=model[0].forward: old(x) + 1


def _class_of_the_inner(model: nn.Module) -> None:
    class Plus(nn.Sequential):
        def forward(self, x):
            return super().forward(x) + 1

    model[0].__class__ = Plus


def _class_of_the_layer(model: nn.Module) -> None:
    model[0][0].__class__ = Doubled


def _statistics_gone(model: nn.Module) -> None:
    model[0][1].running_mean = model[0][1].running_var = None


def _infinite_slope(model: nn.Module) -> None:
    model[1].negative_slope = float("inf")


def _one_statistic(model: nn.Module) -> None:
    model[0][1].running_mean.data[1] = 9


CHANGES: list[Change] = [
    _forward_hook,
    _forward_of_the_inner,
    _class_of_the_inner,
    _class_of_the_layer,
    _statistics_gone,
    _infinite_slope,
    _one_statistic,
]


class TestChanges:
    @pytest.mark.parametrize("change", CHANGES)
    def test_are_seen(self, change) -> None:
        fast, plain = both(nested())
        for model in (fast, plain):
            change(model)
        assert agree(fast, plain)

    @pytest.mark.parametrize("change", CHANGES)
    def test_are_seen_by_compiled_code(self, change) -> None:
        if change is _forward_hook and not SHOWS_MODES:
            pytest.skip("PyTorch 2.4 compiles no module with hooks beside code that asks for them")
        fast, plain = both(nested())
        for model in (fast, plain):
            change(model)
        torch._dynamo.reset()
        assert agree(torch.compile(fast, backend="aot_eager", fullgraph=True), plain)

    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("name", ["register_full_backward_hook", "pre"])
    def test_backward_hooks_of_an_inner_sequence_are_called(self, training, name) -> None:
        fast, plain = both(nested())
        x, gradients = example(), []
        for model in (fast, plain):
            model.train(training)
            if name == "pre":
                model[0].register_full_backward_pre_hook(lambda _, g: (g[0] * 10,))
            else:
                model[0].register_full_backward_hook(lambda _, g, __: (g[0] * 10,))
            given = x.clone().requires_grad_()
            model(given).sum().backward()
            gradients.append(given.grad)
        assert torch.allclose(*gradients, rtol=1e-4, atol=1e-4)

    def test_hooks_of_all_modules_see_inner_sequences(self) -> None:
        fast, plain = both(nested())
        seen: list[nn.Module] = []
        handle = register_module_forward_hook(lambda module, _, __: seen.append(module))
        try:
            assert agree(fast, plain)
        finally:
            handle.remove()
        assert len(seen) == 2 * len(list(plain.modules()))

    def test_a_layer_restored_by_itself_is_pytorchs(self, monkeypatch) -> None:
        fast, plain = both(nested())
        restore(fast[0][0])
        monkeypatch.setattr(Fused, "compute", lambda *_: pytest.fail("upconv computed it"))
        assert agree(fast, plain)

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_slope_that_is_no_number_is_pytorchs(self, value) -> None:
        fast, plain = both(nn.Sequential(up(), nn.PReLU()))
        for model in (fast, plain):
            model[1].weight.data.fill_(value)
        assert agree(fast, plain)


class TestCopies:
    def test_a_replica_computes_with_its_own_modules(self) -> None:
        fast, plain = both(nn.Sequential(up(), nn.ReLU()))
        new = up().eval()
        replicas = [model._replicate_for_data_parallel() for model in (fast, plain)]
        for replica in replicas:
            replica._modules["0"] = new
        assert agree(*replicas)

    def test_a_shallow_copy_computes_with_what_it_holds(self) -> None:
        fast, plain = both(nn.Sequential(up(), nn.ReLU()))
        new, layers, models = up().eval(), [], []
        for model in (fast, plain):
            layer = copy.copy(model[0])
            layer._parameters = {**layer._parameters, "weight": new.weight}
            layers.append(layer)
            other = copy.copy(model)
            other._modules = {**model._modules, "0": new}
            models.append(other)
        assert agree(*layers)
        assert agree(*models)
        assert agree(fast, plain)


class Loud(nn.Sequential):
    def __call__(self, x):
        return super().__call__(x) + 1


class Backwards(nn.Sequential):
    def __iter__(self):
        return iter(list(self._modules.values())[::-1])


class LoudUp(nn.ConvTranspose2d):
    def __call__(self, x):
        return super().__call__(x) + 1


class Padded(nn.ConvTranspose2d):
    def _output_padding(self, *_: object, **__: object) -> list[int]:
        return [1, 1]


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(Loud(up()), nn.ReLU()),
        lambda: Backwards(nn.ReLU(), nn.ConvTranspose2d(4, 4, 2), nn.Tanh()),
        lambda: nn.Sequential(LoudUp(4, 3, 2), nn.ReLU()),
        lambda: nn.Sequential(Padded(4, 3, 3, 2)),
    ],
    ids=["Sequential.__call__", "__iter__", "ConvTranspose2d.__call__", "_output_padding"],
)
def test_methods_of_subclasses_are_called(build) -> None:
    assert agree(*both(build()))


class Subclass(torch.Tensor):
    """A tensor that computes twice what others do."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        y = super().__torch_function__(function, types, args, kwargs or {})
        return y * 2 if function is torch.conv_transpose2d else y


class TestTensors:
    @pytest.mark.parametrize("name", ["weight", "bias"])
    def test_subclasses_of_tensor_compute_themselves(self, name) -> None:
        fast, plain = both(nested())
        for model in (fast, plain):
            own = getattr(model[0][0], name).detach().clone().as_subclass(Subclass)
            setattr(model[0][0], name, nn.Parameter(own, requires_grad=False))
        assert agree(fast, plain)

    def test_statistics_of_a_subclass_are_pytorchs(self, monkeypatch) -> None:
        fast, plain = both(nested())
        for model in (fast, plain):
            model[0][1].running_mean = model[0][1].running_mean.clone().as_subclass(Subclass)
        monkeypatch.setattr(Fused, "compute", lambda *_: pytest.fail("upconv computed it"))
        fast[0][0].__dict__.pop("_upconv")  # the layer alone may be upconv's
        assert agree(fast, plain)

    def test_other_layouts_are_pytorchs(self) -> None:
        if not torch.backends.mkldnn.is_available():
            pytest.skip("this PyTorch has no oneDNN")
        fast, plain = both(nn.Sequential(up(), nn.ReLU()))
        x = example().to_mkldnn()
        with torch.no_grad():
            assert same(fast(x).to_dense(), plain(x).to_dense())

    def test_function_modes_see_pytorchs_functions(self) -> None:
        fast, plain = both(nested())
        with Watching():
            assert agree(fast, plain)

    def test_function_modes_see_pytorchs_functions_in_compiled_code(self) -> None:
        if not SHOWS_MODES:
            pytest.skip("this PyTorch's compiler cannot be asked")
        fast, plain = both(nested())
        torch._dynamo.reset()
        with Watching():
            assert agree(torch.compile(fast, backend="aot_eager"), plain)

    def test_a_default_device_is_no_reason(self, monkeypatch) -> None:
        fast, plain = both(nn.Sequential(up()))
        with torch.device("cpu"):
            assert agree(fast, plain)
            monkeypatch.setattr(nn.functional, "conv_transpose2d", lambda *_: pytest.fail("called"))
            with torch.no_grad():
                fast(example())


class TestMemory:
    def test_every_number_of_a_normalisation_is_looked_at(self) -> None:
        model = nn.Sequential(nn.ConvTranspose2d(2, 256, 2), nn.BatchNorm2d(256))
        fast, plain = accelerate(copy.deepcopy(model.eval())), model
        x = torch.randn(1, 2, 3, 3)
        assert agree(fast, plain, x)
        for each in (fast, plain):
            each[1].running_mean.data[1] = 50
        assert agree(fast, plain, x)

    def test_forget_tells_of_larger_ones(self) -> None:
        model = nn.Sequential(nn.ConvTranspose2d(2, 2048, 2), nn.BatchNorm2d(2048))
        fast, plain = accelerate(copy.deepcopy(model.eval())), model
        x = torch.randn(1, 2, 3, 3)
        assert agree(fast, plain, x)
        for each in (fast, plain):
            each[1].running_mean.data[1] = 50
        forget(fast[1].running_mean)
        assert agree(fast, plain, x)

    def test_restore_leaves_nothing_in_tensors(self) -> None:
        fast, _ = both(nested())
        tensors = [*fast.parameters(), *fast.buffers()]
        assert any(vars(tensor) for tensor in tensors)
        restore(fast)
        assert not any(vars(tensor) for tensor in tensors)


class TestExamples:
    def test_results_of_other_dtypes_differ(self) -> None:
        ones = torch.ones(2)
        assert difference(ones, ones.double()) == float("inf")

    def test_complex_results_may_differ_by_rounding(self) -> None:
        z = torch.complex(torch.ones(3), torch.zeros(3))
        assert 0 < difference(z, z * (1 + 1e-6)) <= 1
        assert difference(z, z * 1j) > 1

    def test_a_model_that_writes_to_its_input_leaves_the_example(self) -> None:
        class Writing(nn.Module):
            def forward(self, x, more):
                return x.mul_(2) + more["same"]

        x = torch.ones(2)
        example = Example.of((x, {"same": x}))
        assert torch.equal(example.run(Writing()), torch.full((2,), 4.0))
        example.seconds(Writing())
        assert torch.equal(x, torch.ones(2))

    @pytest.mark.parametrize("before", [False, True])
    def test_a_wrong_example_leaves_the_model_as_it_was_before_all(self, before) -> None:
        model = nested()
        if before:
            accelerate(model)
        with pytest.raises(UpconvError, match="example_inputs is 3"):
            accelerate(model, 3)
        assert not any(map(is_swapped, model.modules()))
