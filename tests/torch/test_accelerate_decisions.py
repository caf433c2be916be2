"""Saved decisions of `accelerate`: applied where they hold, refused or measured again elsewhere."""

import json

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import upconv.torch as ut  # noqa: E402
from tests.support.front_end_reports import unsealed  # noqa: E402
from tests.support.small_models import dcgan  # noqa: E402
from tests.torch.test_accelerate import layer_rows  # noqa: E402
from upconv.errors import ArgumentError, FileError  # noqa: E402
from upconv.front_end_reports import Report  # noqa: E402
from upconv.timing import Others  # noqa: E402
from upconv.torch import trials  # noqa: E402
from upconv.tuning import processor_model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")


@pytest.fixture
def saved(tmp_path, layers_are_faster):
    """A file of measured decisions about `dcgan()`."""
    path = tmp_path / "decisions.json"
    ut.report(ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))).save(path)
    return path


def refused(kind, match, path, example_inputs=None, **more) -> None:
    """The file is refused and kept, and PyTorch still computes the model."""
    model, before = dcgan(), path.read_bytes()
    with pytest.raises(kind, match=match):
        ut.accelerate(model, example_inputs, decisions=path, **more)
    assert [type(each) for each in model] == [type(each) for each in dcgan()]
    assert type(model) is nn.Sequential
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "name", ["torch", "model"]
)  # tests/core/test_front_end_reports.py has more
def test_decisions_for_something_else_are_refused_or_measured_again(name, saved) -> None:
    right, wrong, x = unsealed(saved), unsealed(saved), torch.randn(2, 6, 1, 1)
    wrong["conditions"][name] = "another"
    saved.write_text(json.dumps(wrong))
    expected = f"expected decisions measured with {name} .*remeasure=True"
    refused(ArgumentError, f"measured with {name} 'another'.*; {expected}", saved)
    model = ut.accelerate(dcgan(), x, decisions=saved, remeasure=True)
    again = unsealed(saved)
    assert again["conditions"] == right["conditions"]
    assert [row["details"] for row in again["rows"]] == [row["details"] for row in right["rows"]]
    assert ut.report(ut.accelerate(dcgan(), decisions=saved)) == ut.report(model)


def test_the_report_tells_of_other_processes(layers_are_faster, tmp_path, monkeypatch) -> None:
    words = "other processes used 1.8 of 2 processors"
    monkeypatch.setattr(Others, "words", lambda _: words)
    ut.report(ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1))).save(tmp_path / "d.json")
    assert words in str(ut.report(ut.accelerate(dcgan(), decisions=tmp_path / "d.json")))


def test_decisions_that_hold_are_not_measured_again(saved, monkeypatch) -> None:
    conditions = unsealed(saved)["conditions"]
    assert conditions["processor"] == processor_model() != ""
    assert conditions["threads"] == torch.get_num_threads()
    monkeypatch.setattr(trials, "measured", None)
    model = ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1), decisions=saved, remeasure=True)
    assert type(model[0]) is ut.ConvTranspose2d


def test_training_that_was_not_measured_is_refused_or_measured(saved) -> None:
    refused(ArgumentError, "training None; expected .* training 1", saved, training=True)
    both = {"decisions": saved, "training": True}
    ut.accelerate(dcgan(), torch.randn(2, 6, 1, 1), remeasure=True, **both)
    for more in (both, {"decisions": saved}):
        rows = layer_rows(ut.accelerate(dcgan(), **more))
        assert {row.details["training"] for row in rows} == {7}


def test_a_missing_file_is_written_where_that_is_asked_for(
    upconv_is_faster, tmp_path, monkeypatch
) -> None:
    path, x = tmp_path / "new.json", torch.randn(2, 6, 1, 1)
    with pytest.raises(FileError, match=r"There is no file .*new\.json"):
        ut.accelerate(dcgan(), decisions=path)
    first = ut.report(ut.accelerate(dcgan(), x, decisions=path, remeasure=True))
    assert [each.name for each in tmp_path.iterdir()] == ["new.json"]
    assert ut.report(ut.accelerate(dcgan(), decisions=path)) == first
    monkeypatch.setattr(trials, "measured", None)
    with pytest.raises(FileError, match=r"nowhere.*is not a directory"):  # before it measures
        ut.accelerate(dcgan(), x, decisions=tmp_path / "nowhere" / "d.json", remeasure=True)


def test_a_model_whose_decisions_cannot_be_written_is_restored(
    upconv_is_faster, tmp_path, monkeypatch
) -> None:
    def full(_report, path):
        raise FileError(f"Cannot write {path}: No space left on device.")

    monkeypatch.setattr(Report, "save", full)
    model, x = dcgan(), torch.randn(2, 6, 1, 1)
    with pytest.raises(FileError, match="No space left"):
        ut.accelerate(model, x, decisions=tmp_path / "d.json", remeasure=True)
    assert [type(each) for each in model] == [type(each) for each in dcgan()]
    with pytest.raises(ArgumentError, match="model is not accelerated"):
        ut.report(model)


def test_inputs_and_decisions_that_do_not_go_together_are_refused(saved) -> None:
    x = torch.randn(2, 6, 1, 1)
    refused(ArgumentError, "example_inputs is given with decisions; expected either", saved, x)
    for given in ((), (x,)):
        with pytest.raises(ArgumentError, match="remeasure is True; expected decisions, the file"):
            ut.accelerate(dcgan(), *given, remeasure=True)
    refused(ArgumentError, "remeasure is True; .* and example_inputs", saved, remeasure=True)
    refused(ArgumentError, "remeasure is 1", saved, x, remeasure=1)
    refused(ArgumentError, "example_inputs is an empty list", saved, [], remeasure=True)


DAMAGES = {  # tests/core/test_front_end_reports.py has more
    "a layer less": lambda content, first: content["rows"].pop(),
    "another layer": lambda content, first: first.update(name="other"),
    "empty details": lambda content, first: first.update(details={}),
    "bits": lambda content, first: first["details"].update(training=8),
    "type": lambda content, first: first["details"].update(inference="yes"),
    "layers": lambda content, first: first["details"].update(layers=[["0"]]),
    "number": lambda content, first: first["details"].update(earlier=[]),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_files_are_refused_and_kept(how, saved) -> None:
    content = unsealed(saved)
    DAMAGES[how](content, content["rows"][0])
    saved.write_text(json.dumps(content))
    x = torch.randn(2, 6, 1, 1)
    for more in ({}, {"example_inputs": x, "remeasure": True}):
        refused(FileError, r"Cannot read .*decisions\.json", saved, **more)
