"""Parts that are slower than PyTorch's functions stay with PyTorch, and the others do not."""

import copy

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import upconv.torch as ut  # noqa: E402
from tests.support.small_models import Of, close  # noqa: E402
from upconv.torch import captures, trials  # noqa: E402
from upconv.torch.forwards import Forward  # noqa: E402
from upconv.torch.trials import Verdict  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture(autouse=True)
def first_is_slower(upconv_is_faster, monkeypatch) -> None:
    def measured(part, *_):
        why = "it is slower, a test says" if "one" in captures.layers_of(part) else ""
        return Verdict(0.002, 0.003 if why else 0.001, why)

    monkeypatch.setattr(trials, "measured_part", measured)


def halves() -> nn.Module:
    """Two layers in two parts."""
    layers = {"one": nn.Conv1d(3, 4, 3), "two": nn.ConvTranspose1d(4, 2, 4, 2)}
    return Of(lambda m, x: m.two(torch.fft.fft(m.one(x)).real).tanh(), **layers).eval()


def parts_of(model):
    report = ut.report(model)
    return [(row.by, row.before, row.after) for row in report.rows if "layers" in row.details]


def test_slower_parts_are_left_out_at_all_sizes() -> None:
    model = halves()
    plain, x = copy.deepcopy(model), torch.randn(2, 3, 9)
    ut.accelerate(model, x)
    assert parts_of(model) == [("upconv", 0.002, 0.001), ("PyTorch", 0.002, 0.003)]
    rows = ut.report(model).rows
    layers = {row.name: row.by for row in rows if "inference" in row.details}
    assert layers == {"one": "PyTorch", "two": "part 1"}
    with torch.no_grad():
        for size in (9, 12, 15):
            x = torch.randn(2, 3, size)
            assert close(model(x), plain(x))
    names = [captures.layers_of(p) for _, c in model.forward._captures for p in c.parts]
    assert names == [("two",), ("two",)]


def test_slower_parts_are_left_out_by_saved_decisions(tmp_path) -> None:
    model, x = halves(), torch.randn(2, 3, 9)
    path = tmp_path / "decisions.json"
    ut.report(ut.accelerate(model, x)).save(path)
    again = ut.accelerate(copy.deepcopy(ut.restore(model)), decisions=path)
    with torch.no_grad():
        assert close(again(x), model(x))
    names = [captures.layers_of(p) for _, c in again.forward._captures for p in c.parts]
    assert names == [("two",)]


def test_a_model_whose_parts_are_all_slower_is_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(trials, "measured_part", lambda *_: Verdict(0.1, 0.2, "it is slower"))
    monkeypatch.setattr(trials.Samples, "ratio", None)
    model = ut.accelerate(halves(), torch.randn(2, 3, 9))
    assert {by for by, _, _ in parts_of(model)} == {"PyTorch"}
    assert "forward" not in vars(model)


def test_parts_with_equal_layers_are_told_apart(monkeypatch, tmp_path) -> None:
    verdicts = iter([Verdict(0.1, 0.2, "it is slower"), Verdict(0.2, 0.1, "")])
    monkeypatch.setattr(trials, "measured_part", lambda *_: next(verdicts))
    twice = Of(lambda m, x: m.one(torch.fft.fft(m.one(x)).real), one=nn.Conv1d(3, 3, 3))
    model, x = twice.eval(), torch.randn(2, 3, 9)
    fast = ut.accelerate(copy.deepcopy(model), x)
    assert [by for by, _, _ in parts_of(fast)] == ["PyTorch", "upconv"]
    ut.report(fast).save(tmp_path / "decisions.json")
    again = ut.accelerate(copy.deepcopy(model), decisions=tmp_path / "decisions.json")
    with torch.no_grad():
        for each in (fast, again):
            assert close(each(x), model(x))
            ((_, capture),) = each.forward._captures
            assert len(capture.parts) == 1
    longer = torch.randn(2, 3, 12)
    with torch.no_grad():
        assert close(fast(longer), model(longer))
    assert [len(capture.parts) for _, capture in fast.forward._captures] == [1, 1]


def test_the_graph_survives_a_new_count_of_batches(upconv_is_faster) -> None:
    """BatchNorm counts batches in a buffer that inference does not read."""
    model = nn.Sequential(nn.Conv1d(3, 3, 3), nn.BatchNorm1d(3), nn.ConvTranspose1d(3, 3, 2)).eval()
    x = torch.randn(2, 3, 9)
    ut.accelerate(model, x)
    state = model.state_dict()
    model.load_state_dict({name: value + 1 for name, value in state.items()})
    ((_, capture),) = model.forward._captures
    assert capture.state() is not None


def masked(m, x):
    """The size of a part's input depends on the data."""
    kept = torch.nonzero(x[0, 0] > 0)[:, 0]
    torch._check(kept.shape[0] >= 2)
    torch._check(kept.shape[0] <= x.shape[2])
    return m.two(x[..., kept])


def test_a_part_whose_sizes_depend_on_data_stays_with_pytorch(monkeypatch) -> None:
    model, x = Of(masked, two=nn.ConvTranspose1d(3, 2, 2, 2)).eval(), torch.rand(2, 3, 9) + 0.1
    monkeypatch.undo()  # measure with the real clock
    capture = Forward(model).capture((x,), {})
    (verdict,) = capture.measured(0.1).values()
    assert verdict.why == "its sizes depend on data"
    with torch.no_grad():
        for size in (5, 9):
            x[0, 0, size:] = -1.0
            results = capture(capture.state(), [x])
            assert close(results, model(x))


@pytest.mark.parametrize("truth", [True, False])
def test_a_part_that_is_closer_to_float32_than_pytorch_does_not_differ(monkeypatch, truth) -> None:
    monkeypatch.undo()  # measure with the real clock
    model, x = nn.Sequential(nn.Conv1d(3, 3, 3)).eval().bfloat16(), torch.randn(2, 3, 9).bfloat16()
    capture = Forward(model).capture((x,), {})
    (part,) = capture.parts
    right = part.by_pytorch

    def wrong(inputs, weights):
        results = right(inputs, weights)
        is_float = results[0].dtype is torch.float32
        return results if truth and is_float else [1.5 * y for y in results]

    part.by_pytorch = wrong
    (verdict,) = capture.measured(0.1).values()
    assert ("differs" in verdict.why) != truth
