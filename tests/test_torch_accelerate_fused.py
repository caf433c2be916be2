"""What `accelerate` computes with what follows: branches, followers, tools that read models."""

from __future__ import annotations

import copy
import inspect
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from accelerated_models import (  # noqa: E402
    Up,
    accelerated,
    example,
    fuses,
    same,
)
from upconv import UpconvError  # noqa: E402
from upconv.torch import (  # noqa: E402
    accelerate,
    accelerate_model,
    acceleration_report,
    restore,
)
from upconv.torch.accelerate_swaps import is_swapped  # noqa: E402
from upconv.torch.fused import Fused  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread", "upconv_is_faster")


class Joined(Up):
    """Two branches that meet in a sum: both could take it in."""

    def __init__(self) -> None:
        super().__init__()
        self.skip, self.sbn = nn.ConvTranspose2d(6, 5, 2, 2), nn.BatchNorm2d(5)

    def forward(self, x):
        return torch.relu(self.bn(self.up(x)) + self.sbn(self.skip(x)))


def test_a_layer_restored_by_itself_is_pytorchs(monkeypatch) -> None:
    model, x = accelerated(), example()
    restore(model.up)
    monkeypatch.setattr(Fused, "compute", None)
    with torch.no_grad():
        assert same(model(x), Up.forward(model, x))


def test_copies_of_models_are_fused_too(monkeypatch) -> None:
    counted, compute = [], Fused.compute
    monkeypatch.setattr(
        Fused, "compute", lambda self, *a: counted.append(self) or compute(self, *a)
    )
    model, x = accelerate(Up().eval(), example()), example()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        counted.clear()
        with torch.no_grad():
            assert same(other(x), model(x))
        assert [each.deconvolution for each in counted] == [other.up, model.up]
        assert all(each.names == ["BatchNorm2d", "ReLU"] for each in counted)


def test_two_branches_that_meet_are_both_fused() -> None:
    model, x = Joined().eval(), example()
    with torch.no_grad():
        before = model(x)
    accelerate(model, x)
    assert [layer.before.count("+") for layer in acceleration_report(model).layers] == [1, 3]
    with torch.no_grad():
        assert same(model(x), before)


def test_a_failure_leaves_the_model_as_it_was(monkeypatch) -> None:
    model, x = Joined().eval(), example()

    def failing(*_: object) -> None:
        raise RuntimeError("no clock")

    monkeypatch.setattr(accelerate_model, "_timed", failing)
    with pytest.raises(RuntimeError, match="no clock"):
        accelerate(model, x)
    assert not any(map(is_swapped, model.modules()))


class TestFollowers:
    def model(self, *followers: nn.Module) -> nn.Sequential:
        return nn.Sequential(nn.ConvTranspose2d(6, 5, 4, 2, 1), *followers).eval()

    @pytest.mark.parametrize("late", [False, True])
    @pytest.mark.parametrize("place", [0, 1])
    def test_a_forward_of_their_own_is_called(self, late: bool, place: int) -> None:
        model, x = self.model(nn.ReLU()), example()
        if late:
            accelerate(model)
        model[place].forward = lambda t: functional.pad(t, (1, 1, 1, 1)) * 7
        with torch.no_grad():
            wanted = copy.deepcopy(model[1])(copy.deepcopy(model[0])(x))
            assert same(model(x) if late else accelerate(model)(x), wanted)
        if not late and place:
            assert not fuses(model)

    def test_hooks_of_all_modules_see_each(self) -> None:
        model, seen = accelerate(self.model(nn.ReLU())), []
        hook = nn.modules.module.register_module_forward_hook(
            lambda module, *_: seen.append(type(module).__name__)
        )
        with torch.no_grad():
            model(example())
        hook.remove()
        assert "ReLU" in seen

    def test_an_activation_set_otherwise_is_still_done(self) -> None:
        model, x = accelerate(self.model(nn.GELU())), example()
        model[1].approximate = "tanh"
        with torch.no_grad():
            wanted = functional.gelu(model[0](x), approximate="tanh")
            assert same(model(x), wanted)

    @pytest.mark.parametrize("stride", [2, [2, 2]])
    def test_a_stride_set_later_counts(self, stride: object) -> None:
        model, x = accelerate(self.model(nn.ReLU())), example()
        with torch.no_grad():
            wanted = model(x)
            model[0].stride = stride
            assert same(model(x), wanted)

    def test_too_few_axes_are_refused_as_pytorch_does(self) -> None:
        with torch.no_grad(), pytest.raises(RuntimeError):
            accelerate(self.model(nn.ReLU()))(torch.randn(6))


class Keyed(nn.Module):
    def __init_subclass__(cls, *, key: int, **rest: object) -> None:
        super().__init_subclass__(**rest)


def test_a_class_that_cannot_be_derived_from_runs_its_own_code() -> None:
    class Own(Keyed, key=1):
        __init__, forward = Up.__init__, Up.forward

    Own.__init__ = lambda self: (Keyed.__init__(self), _fill(self))[0]
    model, x = Own().eval(), example()
    with torch.no_grad():
        before = model(x)
        assert same(accelerate(model, x)(x), before)
    assert not is_swapped(model)


def _fill(module: nn.Module) -> None:
    module.up, module.bn = nn.ConvTranspose2d(6, 5, 4, 2, 1), nn.BatchNorm2d(5)


def with_gain(self, x, gain=None):
    y = torch.relu(self.bn(self.up(x)))
    return y if gain is None else y * gain


class TestTracers:
    """Tools that read a model find the arguments and operators that they know."""

    def test_the_signature_is_the_models_own(self) -> None:
        assert list(inspect.signature(accelerated(with_gain).forward).parameters) == ["x", "gain"]

    @pytest.mark.parametrize("grad", [False, True])
    def test_exported_by_names(self, grad: bool) -> None:
        model, x = accelerated(with_gain), example()
        shapes = {"x": {0: torch.export.Dim("batch", max=64)}}
        with torch.set_grad_enabled(grad):
            program = torch.export.export(model, (x,), dynamic_shapes=shapes)
            x = torch.cat([x, x])
            assert same(program.module()(x), model(x))

    def test_exported_to_onnx(self) -> None:
        pytest.importorskip("onnxscript")
        model, x = accelerated(with_gain), example()
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's own
            exported = torch.onnx.export(model, (x,), dynamo=True, verbose=False)
            nodes = {node.op_type for node in exported.model.graph}
            assert "ConvTranspose" in nodes
            assert same(exported.call_reference({"x": x})[0], model(x))

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch's own
    def test_torchscript_is_refused_in_words(self) -> None:
        model = accelerated(with_gain)
        with pytest.raises(UpconvError, match="restored"):
            torch.jit.script(model)
        torch.jit.script(restore(model).up)
