"""Lines of benchmarks fail where another engine computes their layer than they are named for."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import upconv
from upconv.errors import EngineError
from upconv.testing import require_engine

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A benchmark as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_plan_that_left_its_engine_is_named() -> None:
    pytest.importorskip("llvmlite", reason="the JIT engine needs llvmlite")
    weight = np.ones((1, 1, 2), np.float32)
    require_engine("up1", "jit", upconv.plan((1, 1, 3), weight, engine="jit"))
    weight[...] = np.nan  # goes to the reference engine
    plan = upconv.plan((1, 1, 3), weight, engine="jit")
    with pytest.raises(EngineError, match=r"up1 is computed by reference, .* named for jit"):
        require_engine("up1", "jit", plan)


def test_first_call_fails_at_a_planted_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite", reason="the JIT engine needs llvmlite")
    measure = script("first_call", monkeypatch).MEASURE
    layer = '["up1", 1, 2, 3, [5], [4], [2], [1], [0], [1], 1]'
    planted = measure.replace("w = np.ones(", "w = np.nan * np.ones(")
    for code, status, words in ((measure, 0, ""), (planted, 1, "up1 is computed by reference")):
        command = [sys.executable, "-c", code, layer, "jit", "1", "cold", "perf_counter"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, words in done.stderr) == (status, True), done.stderr


def test_a_table_is_not_made_of_a_bench_with_faults(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"faults": 1, "layers": []}')
    command = [sys.executable, str(BENCHMARKS / "table.py"), str(tmp_path / "a.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "faults" in done.stderr


def test_a_session_whose_layer_stayed_with_onnx_runtime_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
    pytest.importorskip("onnxruntime", reason="sessions run in it")
    pytest.importorskip("torch", reason="the benchmark's models are PyTorch's")
    from onnx_sessions import decoder, image
    from upconv.onnx import Session

    require = script("onnx_session", monkeypatch).require_layers
    source, feeds = decoder(), image()
    session = Session(source, measure=False)
    require("decoder", session, feeds)
    session._runner = Session(source, layers=["b"])._runner  # planted: e and h stay
    with pytest.raises(EngineError, match="decoder, e is computed by onnxruntime"):
        require("decoder", session, feeds)


def test_an_accelerated_layer_that_pytorch_computes_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch", reason="the benchmark needs PyTorch")
    from upconv.torch import swaps
    from upconv.torch.reports import LayerReport, Report

    module = script("torch_models", monkeypatch)
    model = torch.nn.Sequential(torch.nn.ConvTranspose1d(2, 3, 4, stride=2)).eval()
    example = (torch.randn(1, 2, 9),)
    [candidate] = swaps.candidates(model)
    candidate.install(inference=True, training=0)
    row = LayerReport("0", "ConvTranspose1d", (2, 3, 4), inference=True)
    vars(model)["_report"] = Report((row,))
    module.require_layers("model", model, example)
    swaps.remove(model[0])
    with pytest.raises(EngineError, match="model: one of 0 is computed by torch"):
        module.require_layers("model", model, example)
