"""Lines of benchmarks fail where another engine computes their layer than they are named for."""

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import upconv
from tests.support.paths import ROOT
from tests.support.processes import python
from upconv.errors import EngineError
from upconv.testing import require_engine

BENCHMARKS = ROOT / "benchmarks"


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A benchmark as a module."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their modules up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch", reason="the benchmark's models are PyTorch's")
    return script("models", monkeypatch)


def test_a_plan_that_left_its_engine_is_named() -> None:
    pytest.importorskip("llvmlite", reason="the JIT engine needs llvmlite")
    weight = np.ones((1, 1, 2), np.float32)
    require_engine("up1", "jit", upconv.plan((1, 1, 3), weight, engine="jit"))
    weight[...] = np.nan  # goes to the reference engine
    plan = upconv.plan((1, 1, 3), weight, engine="jit")
    with pytest.raises(EngineError, match=r"up1 is computed by reference, .* named after jit"):
        require_engine("up1", "jit", plan)


def test_first_call_fails_at_a_planted_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llvmlite", reason="the JIT engine needs llvmlite")
    measure = script("first_call", monkeypatch).MEASURE
    layer = '["up1", 1, 2, 3, [5], [4], [2], [1], [0], [1], 1]'
    planted = measure.replace("w = np.ones(", "w = np.nan * np.ones(")
    for code, status, words in ((measure, 0, ""), (planted, 1, "up1 is computed by reference")):
        done = python(code, layer, "jit", "1", "cold", "perf_counter")
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
    from tests.support.onnx_sessions import decoder, image
    from upconv.onnx import Session

    require = script("onnx_session", monkeypatch).require_layers
    source, feeds = decoder(), image()
    session = Session(source, measure=False)
    require("decoder", session, feeds)
    session._runner = Session(source, layers=["a ... c"])._runner  # planted: the second stays
    with pytest.raises(EngineError, match=r"decoder, e .* is computed by onnxruntime"):
        require("decoder", session, feeds)


def test_models_name_who_is_wrong_who_fails_and_who_is_faster(models: ModuleType) -> None:
    """Rows are made of what workers send; these workers are made up."""
    from contenders import Model, Ready, Setting

    def worker(name: str, offset: float, milliseconds: float) -> Any:
        ready = Ready(np.array([1.0 + offset, -2.0]), (1, 1, 2), 3.0)
        return models.Worker(name, None, None, ready, [9.0, milliseconds / 1e3], 5.0)

    workers = [
        worker("torch", 0, 4),
        worker("inductor", 0.1, 1),  # wrong: its time does not count
        worker("openvino", 1e-5, 3),
        worker("accelerate", 0, 2),
        worker("backend", 0, 6),
        models.Worker("session", None, None, failure="its process ended with code -11"),
    ]
    model = Model("A model", object, (1, 2, 3), rate=100)
    row = models.row("a", model, workers, workers[0].ready, Setting(1))
    assert (row["best_peer"], row["best_of_upconv"]) == ("openvino", "accelerate")
    assert row["ratio"] == pytest.approx(1.5)
    assert row["wrong"] == ["inductor"]
    assert row["error"]["inductor"] == pytest.approx(0.05)
    assert row["failed"] == {"session": "its process ended with code -11"}
    assert row["times_real_time"]["accelerate"] == pytest.approx(10)
    assert models.summary([row, row | {"model": "b", "ratio": 2 / 3}]) == {
        "models": 2,
        "geometric_mean": pytest.approx(1),
        "behind": {"b": 2 / 3},
        "wrong": {"a": ["inductor"], "b": ["inductor"]},
    }


def test_models_writes_its_page_and_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.syspath_prepend(BENCHMARKS.parent / "docs" / "pictures")
    import models_page
    import whole_models

    row = {
        "label": "A vocoder", "kind": "audio", "input": [1, 80, 32],
        "ms": {"torch": 40.0, "openvino": 18.0, "accelerate": 20.0, "session": 25.0},
        "startup_s": {"torch": 0.04, "session": 2.0}, "memory_mib": {"torch": 12.3}, "ratio": 0.9,
        "audio_s": 0.5, "times_real_time": {"openvino": 27.8, "accelerate": 25.0},
        "best_peer": "openvino", "best_of_upconv": "accelerate",
    }  # fmt: skip
    other = row | {"label": "A volume", "kind": "volumes", "input": [1, 1, 8, 8, 8], "ratio": 1.6}
    words = {"processor": "A processor", "processors": 2, "date": "2026-01-02", "python": "3.11"}
    words |= {"versions": {"torch": "2.13"}, "threads": 2, "precision": "float32"}
    document = {"conditions": words, "rows": [row, other]}
    page = models_page.written(f"a\n{models_page.BEGIN}\nold\n{models_page.END}\nz\n", [document])
    assert page.startswith("a\n")
    assert page.endswith("\nz\n")
    assert "old" not in page
    assert (
        "| A vocoder | 1 x 80 x 32 | 40.0 | **18.0** | 20.0 | 25.0 | 0.90 | 27.8 | 25.0 |" in page
    )
    assert "1.20 times as long" in page
    assert "Behind: A vocoder 0.90." in page
    assert "| A vocoder | 0.0 | 2.0 |" in page
    monkeypatch.setattr(whole_models, "PAGE", SimpleNamespace(read_text=lambda encoding: page))
    [first, second], threads = whole_models.lines()
    assert (first.label, first.kind, second.kind, threads) == ("A vocoder", "audio", "volumes", 2)
    assert first.ratios == {"torch": 2.0, "openvino": 0.9}
    assert whole_models.models().svg() == models_page.drawing([document])


def test_models_measures_each_contender_in_a_process(models: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("llvmlite", reason="the JIT engine needs llvmlite")
    import torch
    from contenders import Model, Setting

    layers = partial(torch.nn.ConvTranspose1d, 2, 3, 4, stride=2)
    chosen = {
        "small": Model("Small", layers, (1, 2, 9), rate=8000),
        "absent": Model("Absent", layers, (1, 2, 9), package="no_such_package"),
        "unfit": Model("Unfit", layers, (1, 5, 9)),
    }
    names = ["torch", "accelerate", "channels-last"]
    race = models.Race(names, Setting(1), 0.01, str(tmp_path))
    lines: list[str] = []
    [row] = models.measured(chosen, race, lines.append)
    assert row["output"] == [1, 3, 20]
    assert row["ms"].keys() == row["startup_s"].keys() == {"torch", "accelerate"}
    assert min(row["ms"].values()) > 0
    assert row["error"]["accelerate"] < 1e-5
    assert row["audio_s"] == 20 / 8000
    text = "\n".join(lines)
    assert "channels-last is left out: PyTorch has no channels-last format of this rank" in text
    assert "absent is left out: no_such_package is not installed" in text
    assert "unfit is left out: PyTorch does not run the model: RuntimeError" in text


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_contenders_of_models_give_what_pytorch_gives(
    precision: str, training: bool, models: ModuleType
) -> None:
    pytest.importorskip("llvmlite", reason="the JIT engine needs llvmlite")
    import contenders
    import torch
    from contenders import Model, Setting

    def build() -> Any:
        conv = torch.nn.ConvTranspose2d(6, 4, 3, stride=2)
        return torch.nn.Sequential(conv, torch.nn.ReLU(), torch.nn.Conv2d(4, 3, 3))

    model, results = Model("Small", build, (2, 6, 5, 7)), []
    for name, setting in (
        ("torch", Setting(1, training=training)),
        ("torch", Setting(1, precision, training)),
        ("channels-last", Setting(1, precision, training)),
        ("accelerate", Setting(1, precision, training)),
    ):
        task = contenders.built(model, setting)
        with torch.inference_mode(not training):
            call, ready = contenders.prepared(name, task)
            assert len(contenders.sample(call, 0.001)) >= 1
        results.append(ready.values)
    bound = {"float32": 1e-5, "bfloat16": 5e-2}[precision]
    for values in results[1:]:
        assert np.abs(values - results[0]).max() < bound * np.abs(results[0]).max()


def test_models_have_the_sizes_that_they_are_known_for(models: ModuleType) -> None:
    """Shapes alone are computed; numbers are the millions of parameters that papers tell."""
    import torch

    sizes = {
        "hifigan_v1": (13.92, (1, 1, 32 * 256)), "hifigan_v3": (1.46, (1, 1, 128 * 256)),
        "vocos": (None, (1, 1, 94 * 256)), "dcgan": (None, (16, 3, 64, 64)),
        "pix2pix": (None, (1, 3, 256, 256)), "fsrcnn": (None, (1, 1, 540, 720)),
        "edsr": (None, (1, 3, 128, 192)), "pose": (34.0, (1, 17, 64, 48)),
        "unet2d": (None, (1, 2, 192, 256)), "centernet": (None, (1, 84, 64, 80)),
        "pointpillars": (None, (1, 384, 64, 56)), "vae": (None, (1, 3, 128, 160)),
        "nnunet3d": (None, (1, 2, 40, 48, 48)),
    }  # fmt: skip
    own = {name for name, model in models.MODELS.items() if not model.package}
    assert own == sizes.keys()
    with torch.device("meta"), torch.no_grad():
        for name, (count, shape) in sizes.items():
            module = models.MODELS[name].build().eval()
            assert module(torch.randn(models.MODELS[name].shape)).shape == shape, name
            millions = sum(each.numel() for each in module.parameters()) / 1e6
            assert count is None or millions == pytest.approx(count, abs=0.05), name
