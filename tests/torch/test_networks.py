"""Accelerated models whose parts are networks: values as PyTorch's, or left alone with a reason."""

import copy
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import upconv.torch as ut  # noqa: E402
from tests.support.captured_models import (  # noqa: E402
    LEFT_ALONE,
    MODELS,
    Base,
    Hooked,
    alike,
    doubled,
    graphs,
    run,
)
from tests.support.small_models import Vocoder, close, dcgan, two_of  # noqa: E402
from upconv.torch import captures, forwards, selection  # noqa: E402
from upconv.torch.forwards import Forward  # noqa: E402
from upconv.torch.snapshots import Snapshot, Unwatchable  # noqa: E402

pytestmark = [
    pytest.mark.usefixtures("one_torch_thread", "upconv_is_faster"),
    pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning"),
]


@pytest.mark.parametrize("name", MODELS)
class TestModels:
    def test_has_pytorchs_values_at_all_sizes_trains_and_restores(self, name) -> None:
        model, plain = two_of(MODELS[name])
        keys = list(model.state_dict())
        assert type(ut.accelerate(model, torch.randn(2, 3, 8, 12))) is MODELS[name]
        assert list(model.state_dict()) == keys
        assert graphs(model) == (name not in LEFT_ALONE)
        report = ut.report(model)
        parts = [row for row in report.rows if row.name.startswith("part") and row.by == "upconv"]
        assert bool(parts) == (name not in LEFT_ALONE)
        for shape in ((2, 3, 8, 12), (3, 3, 8, 12), (1, 3, 8, 12), (2, 3, 12, 20), (2, 3, 10, 7)):
            alike(model, plain, torch.randn(shape))
        alike(model, plain, torch.randn(2, 3, 8, 12).to(memory_format=torch.channels_last))
        alike(model, plain, torch.randn(2, 3, 12, 8).transpose(2, 3))

        x = torch.randn(2, 3, 8, 12)
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
            model, plain = two_of(MODELS[name], dtype)
            x = torch.randn(2, 3, 8, 12, dtype=dtype)
            if run(copy.deepcopy(plain) if name == "Buffered" else plain, x) == [RuntimeError]:
                continue  # PyTorch has no such operator for the type
            with torch.inference_mode():
                ut.accelerate(model, x)
                alike(model, plain, x, bound=bound)


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_left_alone_has_a_reason(name, monkeypatch) -> None:
    monkeypatch.setattr(selection.trials.Samples, "ratio", None)
    model, _ = two_of(MODELS[name])
    ut.accelerate(model, torch.randn(2, 3, 8, 12))
    assert LEFT_ALONE[name] in ut.report(model).why
    assert "forward" not in vars(model)


CAPTURES = {
    "Loop": [False, True],
    "Resized": [False, True, False],  # the operations that read a size would be lost
    "Recurrent": [False, False],  # its steps fix their number, and take long with open sizes
}


@pytest.mark.parametrize("name", CAPTURES)
def test_the_first_graph_has_fixed_sizes_and_the_next_open_ones_if_nothing_is_lost(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    export, seen = torch.export.export, []

    def counted(*arguments, dynamic_shapes, **keywords):
        seen.append(dynamic_shapes is not None)
        return export(*arguments, dynamic_shapes=dynamic_shapes, **keywords)

    monkeypatch.setattr(torch.export, "export", counted)
    model, plain = two_of(MODELS[name])
    ut.accelerate(model, torch.randn(2, 3, 8, 12))
    assert (graphs(model), seen) == (1, [False])
    alike(model, plain, torch.randn(2, 3, 12, 16))
    assert (graphs(model), seen) == (2, CAPTURES[name])
    alike(model, plain, torch.randn(2, 3, 16, 20))
    assert graphs(model) == (2 if name == "Loop" else 3)


def test_the_last_graph_has_open_sizes_even_if_something_is_lost() -> None:
    model, plain = two_of(MODELS["Resized"])
    ut.accelerate(model, torch.randn(2, 3, 8, 12))
    for size in (12, 16, 20, 24, 28):
        alike(model, plain, torch.randn(2, 3, size, size))
    graph = [graph for _, graph in model.forward._captures]
    assert len(graph) == forwards._MAX_CAPTURES
    takes = [[g.takes([torch.randn(2, 3, n, n)]) for n in (20, 24, 28)] for g in graph[1:]]
    assert takes == [[False] * 3, [False] * 3, [True] * 3]


def test_open_sizes_are_not_tried_after_a_long_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwards, "_LONG_CAPTURE", 0.0)
    monkeypatch.setattr(captures, "_open_sizes", None)
    model, plain = two_of(MODELS["Loop"])
    ut.accelerate(model, torch.randn(2, 3, 8, 12))
    alike(model, plain, torch.randn(2, 3, 12, 16))
    assert graphs(model) == 2


def test_a_model_follows_its_parameters() -> None:
    for name in ("NewNorm", "Norms", "Tied", "Constant"):
        model, plain = two_of(MODELS[name])
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
    model, plain = two_of(MODELS["Keywords"])
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
    assert graphs(model) <= forwards._MAX_CAPTURES
    for scale in range(9):
        alike(model, plain, x, scale=scale)
    alike(model, plain, x, scale=mask.double())


def test_a_buffer_of_one_integer_may_change() -> None:
    model, plain = two_of(MODELS["Numbered"])
    x = torch.randn(2, 3, 8, 12)
    ut.accelerate(model, x)
    for step in (2, 5, 3):
        model.step.fill_(step)
        plain.step.fill_(step)
        alike(model, plain, x)
    model.kernel, plain.kernel = torch.tensor(5), torch.tensor(5)
    alike(model, plain, x)


def test_a_model_that_is_not_captured_prints_nothing(capfd) -> None:
    ut.accelerate(
        two_of(MODELS["DataDependent"])[0], torch.randn(2, 3, 8, 12), progress=lambda *_: None
    )
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
    x = torch.randn(2, 5, 11)
    ut.report(ut.accelerate(Vocoder().eval(), x)).save(tmp_path / "d.json")
    model, plain = two_of(Vocoder)
    ut.accelerate(model, decisions=tmp_path / "d.json")
    assert graphs(model) == 0
    alike(model, plain, x)
    assert graphs(model) == 1


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
