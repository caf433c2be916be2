"""`upconv stream`: results of files and pipes, figures on stderr, and errors in one line."""

import wave
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("typer", reason="the command line needs typer")

import upconv.onnx as uo  # noqa: E402
from tests.support.processes import called, failed, ran  # noqa: E402

TEXT = """<ir_version: 8, opset_import: ["": 17]> g (float[1, 3, T] mel) => (float[1, 1, M] y) {
    a = ConvTranspose<strides = [4], pads = [2, 2]>(mel, w)
    y = Tanh(a)
}"""
RNG = np.random.default_rng(0)


@pytest.fixture
def mel(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    proto = onnx.parser.parse_model(TEXT)
    weight = RNG.standard_normal((3, 1, 8), np.float32) / 4
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, "model.onnx")
    array = RNG.standard_normal((1, 3, 50), np.float32)
    np.save("mel.npy", array)
    np.ascontiguousarray(array[0].T).tofile("mel.f32")
    return array


def _expected(mel):
    stream = uo.stream("model.onnx")
    return np.concatenate([stream.push(mel), stream.finish()], -1)


def test_files_of_every_kind(mel) -> None:
    expected = _expected(mel)
    done = called("stream", "model.onnx", "mel.npy", "y.npy", "--chunk", "20ms", "--rate", "800")
    assert done.returncode == 0, done
    assert b"0.25 s of audio" in done.stderr
    assert b"real-time factor" in done.stderr
    np.testing.assert_allclose(np.load("y.npy"), expected, atol=1e-6)
    for source, target in (("mel.npy", "y.wav"), ("mel.f32", "y.raw")):
        words = ("stream", "model.onnx", source, target, "--chunk", "7", "--rate", "800")
        assert called(*words).returncode == 0
    np.testing.assert_allclose(np.fromfile("y.raw", "<f4"), expected.ravel(), atol=1e-6)
    with wave.open("y.wav") as audio:
        assert (audio.getframerate(), audio.getnframes()) == (800, 200)
        samples = np.frombuffer(audio.readframes(200), "<i2")
    clipped = np.clip(expected, -1, 1).ravel()
    np.testing.assert_allclose(samples / 32767, clipped, atol=1e-4)


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f2", ">f4", "<i2"])
def test_other_types_of_numbers(mel, dtype: str) -> None:
    """NumPy writes float64 by default. The range of samples that are integers is not known."""
    np.save("mel.npy", mel.astype(dtype))
    done = called("stream", "model.onnx", "mel.npy", "y.npy", "--chunk", "7")
    if dtype == "<i2":
        assert "mel.dtype is int16; expected float16" in failed(done, 2)
        return
    assert done.returncode == 0, done
    np.testing.assert_allclose(
        np.load("y.npy"), _expected(mel), atol=1e-2 if "2" in dtype else 1e-6
    )
    said = f"the input is {np.dtype(dtype).name}; it is computed in float32"
    assert (said in done.stderr.decode()) == ("4" not in dtype)


def test_a_time_is_the_nearest_number_of_positions() -> None:
    from upconv.cli.stream import _positions

    assert [_positions(f"{ms}ms", 24_000, Fraction(256)) for ms in (1, 10, 20, 40)] == [1, 1, 2, 4]
    assert _positions("7", None, Fraction(256)) == 7


def test_pipes(mel) -> None:
    words = ("stream", "model.onnx", "-", "-", "--chunk", "7", "--format", "s16")
    done = ran(*words, stdin=Path("mel.f32").read_bytes())
    assert done.returncode == 0, done
    samples = np.frombuffer(done.stdout, "<i2") / 32767
    np.testing.assert_allclose(samples, np.clip(_expected(mel), -1, 1).ravel(), atol=1e-4)
    assert b"200 samples in" in done.stderr


def test_samples_of_16_bits(mel) -> None:
    """What one `--format s16` writes another command reads, number by number."""
    samples = (np.clip(mel[0].T, -1, 1) * 32767).round().astype("<i2")
    Path("mel.s16").write_bytes(samples.tobytes())
    expected = _expected(np.ascontiguousarray(samples.T[None] / np.float32(32767), np.float32))
    for source, stdin in (("mel.s16", b""), ("-", samples.tobytes())):
        how = ("--chunk", "7", "--input-format", "s16")
        done = called("stream", "model.onnx", source, "-", *how, stdin=stdin)
        assert done.returncode == 0, done
        np.testing.assert_allclose(np.frombuffer(done.stdout, "<f4"), expected.ravel(), atol=1e-6)


def in_fours(*words: str) -> list[str]:
    return [*words, "--chunk", "4"]


REFUSED = {
    "a time without a rate": (["mel.npy", "y.npy", "--chunk", "9ms"], "9ms is a time: --rate must"),
    "neither chunk nor rate": (["mel.npy", "y.npy"],
     "--rate: the default chunk of 20ms needs it; or give --chunk as a number of positions"),
    "no chunk": (["mel.npy", "y.npy", "--chunk", "0"], "expected positions"),
    "wav without a rate": (in_fours("mel.npy", "y.wav"), "a .wav file needs it"),
    "the input as the output": (in_fours("mel.npy", "mel.npy", "-f"), "input"),
    "no such file": (in_fours("no.npy", "y.npy"), "Cannot read"),
    "cut off": (in_fours("cut.f32", "y.npy"), "after the last position"),
    "cut off within 16 bits": (in_fours("cut.f32", "y.npy", "--input-format", "s16"),
     "3 bytes after the last"),
    "16 bits in a .npy": (in_fours("mel.npy", "y.npy", "--input-format", "s16"),
     "a .npy file states its own"),
    "sound of another format": (in_fours("mel.npy", "y.MP3"),
     "'y.MP3' ends in .mp3, which the command does not write; it writes .npy, .wav, raw numbers"),
    "arrays as the result": (in_fours("mel.npy", "y.npz"), "ends in .npz"),
    "sound as the input": (in_fours("mel.wav", "y.npy"),
     "'mel.wav' ends in .wav, which the command does not read; it reads .npy, raw numbers"),
    "text as the input": (in_fours("mel.csv", "y.npy"), "ends in .csv"),
    "axis": (in_fours("mel.npy", "y.npy", "--axis", "1"), "dynamic along axis 1"),
    "shape": (in_fours("flat.npy", "y.npy"), "of 3 axes"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_errors_are_one_line_and_leave_no_file(mel, name: str) -> None:
    Path("cut.f32").write_bytes(bytes(12 * 5 + 3))
    np.save("flat.npy", mel[0])
    before = sorted(Path().iterdir())
    arguments, words = REFUSED[name]
    assert words in failed(called("stream", "model.onnx", *arguments), 2)
    assert sorted(Path().iterdir()) == before
