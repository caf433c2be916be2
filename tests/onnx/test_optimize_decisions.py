"""Decisions of `optimize`: saved, applied without measuring, refused where they do not hold."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="forms are run in it")

from tests.support.front_end_reports import unsealed
from tests.support.onnx_clock import decided_by
from tests.support.onnx_rewriting import values
from tests.support.onnx_texts import three
from upconv.errors import ArgumentError, EngineError, FileError
from upconv.onnx import optimize
from upconv.onnx.optimizing import candidates, select

FAST = {"sub_pixel:unfolded": 0.5, "whole": 0.7}
SIZES = {"W": (7,)}


def optimized(path: Path, **more: Any) -> Any:
    """The model with the decisions of a file."""
    return optimize(three(), input_shapes=SIZES, threads=1, float64=False, decisions=path, **more)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of decisions by made-up times."""
    path = tmp_path_factory.mktemp("measured") / "d.json"
    with pytest.MonkeyPatch.context() as patch:
        decided_by(patch)(FAST)
        optimized(path, remeasure=True)
    return path


@pytest.fixture
def saved(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; whatever measures after it fails."""
    monkeypatch.setattr(candidates, "timed", None)
    monkeypatch.setattr(select, "timed", None)
    return Path(shutil.copy(measured, tmp_path))


def test_saved_decisions_are_applied_and_verified_without_measuring(saved: Path) -> None:
    result = optimized(saved)
    assert [layer.chosen for layer in result.layers] == ["sub_pixel:unfolded"] * 3
    assert result.verified
    assert result.checks
    assert "ConvTranspose" not in {node.op_type for node in result.proto.graph.node}
    assert json.loads(json.dumps(result.report.as_json())).items() <= unsealed(saved).items()
    x = {"x": np.ones((1, 4, 7), np.float32)}
    [y], [z] = values(three(), x), values(result.proto, x)
    np.testing.assert_allclose(y, z, atol=1e-4)


def test_a_model_that_stayed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decided_by(monkeypatch)({})
    first = optimized(tmp_path / "d.json", remeasure=True)
    monkeypatch.setattr(candidates, "timed", None)
    again = optimized(tmp_path / "d.json")
    assert not first.rewritten
    assert not again.rewritten
    assert again.verified is None
    assert again.report == first.report


def test_decisions_of_elsewhere_are_refused_or_measured_again(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = unsealed(saved)
    for name in ("processor", "threads", "upconv", "runtime", "model", "shapes"):
        wrong = right | {"conditions": right["conditions"] | {name: "another"}}
        saved.write_text(json.dumps(wrong))
        said = f"{name} 'another'; expected .* {name} .*remeasure"
        with pytest.raises(ArgumentError, match=said):
            optimized(saved)
        assert unsealed(saved) == wrong
    decided_by(monkeypatch)(FAST)
    optimized(saved, remeasure=True)
    assert unsealed(saved)["conditions"] == right["conditions"]


def test_decisions_that_do_not_fit_are_refused(saved: Path, tmp_path: Path) -> None:
    right = unsealed(saved)
    odd = right["rows"][0] | {"by": "no_such_pass"}
    saved.write_text(json.dumps(right | {"rows": [odd]}))
    with pytest.raises(ArgumentError, match=r"with 'no_such_pass'; expected .*sub_pixel"):
        optimized(saved)
    saved.write_text(json.dumps(right | {"host": "openvino"}))
    with pytest.raises(FileError, match="for 'openvino'; expected one for onnxruntime"):
        optimized(saved)
    with pytest.raises(FileError, match="There is no file"):
        optimized(tmp_path / "none.json")
    with pytest.raises(ArgumentError, match="remeasure is True; expected decisions"):
        optimize(three(), input_shapes=SIZES, remeasure=True)


def test_what_is_not_equal_any_more_is_an_error(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(select.Selecting, "check", lambda *_: (select.Run("onnxruntime"),))
    with pytest.raises(EngineError, match=r"Not equal in onnxruntime.*remeasure=True"):
        optimized(saved)
