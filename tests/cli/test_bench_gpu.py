"""`upconv bench --device cuda` on a GPU that is made up: both sides compute the same."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer

torch = pytest.importorskip("torch")

from tests.support.made_up_gpu import MadeUpCudnn  # noqa: E402
from upconv.cli import bench_gpu  # noqa: E402
from upconv.cli.bench_layers import read  # noqa: E402
from upconv.devices import DeviceArray  # noqa: E402
from upconv.devices import torch as torch_library  # noqa: E402
from upconv.problem import DataLayout, Direction, DType  # noqa: E402

FIELDS = ("name", "n", "ic", "oc", "size", "k", "s", "p", "op", "d", "g", "conv")
ROWS = [
    ("one axis", 2, 4, 3, [9], 4, 2, 1, 0, 1, 1, False),
    ("output padding", 1, 4, 6, [5, 7], 3, 2, 1, 1, 1, 2, False),
    ("dilated", 1, 2, 3, [5, 4], 3, 1, 2, 0, 2, 1, False),
    ("volume", 1, 2, 3, [3, 4, 5], 2, 2, 0, 0, 1, 1, False),
    ("ordinary", 1, 4, 6, [9, 8], 3, 2, 1, 0, 1, 2, True),
]
LAYERS = [dict(zip(FIELDS, row, strict=True)) for row in ROWS]


class OnProcessor(torch_library.Torch):
    """PyTorch's tensors of main memory as if they lay on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self._devices = [torch.device("cpu")]

    def array(self, argument: str, native) -> DeviceArray:
        kind = np.dtype(str(native.dtype).removeprefix("torch."))
        shape, strides = tuple(native.shape), native.stride()
        return DeviceArray(self, native, shape, strides, kind, native.data_ptr(), 0)

    def from_host(self, array: np.ndarray, device: int):
        return torch.from_numpy(np.array(array))

    def seconds(self, run, count: int, device: int) -> float:
        run()
        return 1e-5


@pytest.fixture(autouse=True)
def processor(monkeypatch: pytest.MonkeyPatch, fresh_cache) -> None:
    library, engine = OnProcessor(), MadeUpCudnn()
    engine.library = library
    monkeypatch.setattr(bench_gpu, "library", lambda name: library)
    monkeypatch.setattr(bench_gpu, "Cudnn", lambda **settings: engine)
    monkeypatch.setattr(bench_gpu, "_on_device", lambda torch, call: (call(), 2e-5)[1])
    monkeypatch.setattr(bench_gpu, "_peak", lambda torch, dtype: (1e12, 1e11))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "made up")


@pytest.fixture
def layers(tmp_path: Path):
    file = tmp_path / "layers.json"
    file.write_text(json.dumps({"layers": LAYERS}))
    return read(file)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("layout", DataLayout)
def test_both_compute_the_same(layers, layout: DataLayout, direction: Direction) -> None:
    for layer in layers:
        problem = layer.problem(DType.FLOAT32, direction).replace(layout=layout)
        line = bench_gpu._line(torch, layer, problem)
        assert not line.reason, line
        assert line.error is not None
        assert line.error <= 1, (layer, line)
        assert not line.wrong


def test_a_wrong_result_is_seen(layers, monkeypatch: pytest.MonkeyPatch) -> None:
    peer = bench_gpu._peer

    def wrong(torch, problem, arrays):
        return lambda: peer(torch, problem, arrays)() + 0.1

    monkeypatch.setattr(bench_gpu, "_peer", wrong)
    assert bench_gpu._line(torch, layers[1], layers[1].problem(DType.FLOAT32)).wrong


def test_the_table_and_the_document(layers, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"tf32": False, "output_format": "text"}
    with pytest.raises(typer.Exit) as end:
        bench_gpu.measure(layers[:2], Direction.FORWARD, DType.FLOAT32, **options)
    assert end.value.exit_code == 0
    text = capsys.readouterr().out
    assert "one axis" in text
    assert "geometric mean  NXC" in text
    options["output_format"] = "json"
    with pytest.raises(typer.Exit) as end:
        bench_gpu.measure(layers[:2], Direction.FORWARD, DType.FLOAT32, **options)
    assert end.value.exit_code == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["layout"] for row in document["layers"]} == {"NCX", "NXC"}
    assert document["gpu"] == "made up"
    assert all(row["error"] <= 1 for row in document["layers"])
