"""Runtimes: the same numbers from each, what they refuse, and what becomes of those that die."""

import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

import upconv
from tests.support.paths import ROOT
from upconv.errors import (
    ArgumentError,
    DTypeError,
    EngineError,
    EngineMissing,
    EngineRefusal,
    MemoryLimitError,
    ShapeError,
)

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="most are run in it")

from onnx import TensorProto

from tests.support.onnx_texts import normal, parsed
from tests.support.processes import environment
from upconv.installation import install_command
from upconv.onnx import models
from upconv.onnx.inputs import OPEN, feeds
from upconv.onnx.runtimes import RUNTIMES, Runtime, ready, worker
from upconv.onnx.runtimes import runtime as module

NAMES = ("onnxruntime", "openvino", "openvino:f32", "reference")
HERE = [name for name in NAMES if Runtime.parse(name).missing() is None]
WIDE = Runtime("reference", precision="f64")


@pytest.fixture(params=HERE)
def runtime(request):
    return Runtime.parse(request.param)


def run(runtime, model, given):
    with runtime.session(model) as session:
        return session.run(given)


def negative(op="Neg"):
    return parsed(f"g (float[N, 3] x) => (float[N, 3] y) {{y = {op}(x)}}")


# The value ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "value"), [
    ("onnxruntime", Runtime("onnxruntime")),
    ("onnxruntime:CUDA", Runtime("onnxruntime", provider="CUDA")),
    ("onnxruntime:tensorrt:1", Runtime("onnxruntime", provider="TensorRT", device="1")),
    ("openvino:f32", Runtime("openvino", precision="f32")),
    ("openvino:GPU.1:f16", Runtime("openvino", device="GPU.1", precision="f16")),
    ("reference:f64", WIDE),
])  # fmt: skip
def test_a_runtime_is_one_word(text, value):
    assert Runtime.parse(text) == value
    assert Runtime.parse(str(value)) == value


@pytest.mark.parametrize(("text", "words"), [
    ("tensorrt", "one of onnxruntime, openvino, reference, upconv"),
    ("onnxruntime:f32", "after onnxruntime: a provider \\(CPU, CUDA, TensorRT"),
    ("openvino:f64", "after openvino: a device"),
    ("reference:GPU", "after reference: f64 or nothing"),
    ("upconv:CUDA", "after upconv: nothing"),
])  # fmt: skip
def test_what_is_no_runtime_is_refused_in_words(text, words):
    with pytest.raises(ArgumentError, match=words):
        ready(text)


@pytest.mark.peers
def test_what_is_not_installed_is_refused_with_the_command(monkeypatch):
    with pytest.raises(EngineMissing, match=r"has no CUDA \(it has .*CPU\): pip install onnxrunt"):
        ready("onnxruntime:CUDA")
    if "openvino" in HERE:
        with pytest.raises(EngineRefusal, match=r"no device NPU here \(it has CPU"):
            run(Runtime.parse("openvino:NPU"), negative(), {"x": normal(0, 2, 3)})
    monkeypatch.setattr(module, "import_module", lambda name: __import__("no_such_module_at_all"))
    with pytest.raises(EngineMissing, match=r"openvino is not available.*pip install openvino$"):
        ready("openvino")
    assert RUNTIMES["onnxruntime"].missing().endswith(install_command("onnx"))


# A process of its own -----------------------------------------------------------------------------

# An older onnx's shape inference, which ONNX Runtime has a copy of, asserts at a negative size.
ABORTING = """g (float[1, 1, 2] x) => (y) {
  t = ConvTranspose <strides = [1], pads = [5, 5]> (x, w)
  s = Slice(t, zero, one, two)
  y = Neg(s)
}"""
FOREVER = """g (float[2] x, int64 n, bool c) => (float[2] y) {
  y = Loop (n, c, x) <body = b (int64 i, bool d, float[2] v) => (bool e, float[2] u) {
    e = Identity(d) u = Neg(v)
  }>
}"""


def test_a_model_that_ends_the_process_is_refused():
    model = parsed(ABORTING, w=normal(0, 1, 1, 1), zero=[0], one=[1], two=[2])
    with pytest.raises(EngineError, match=r"its process ended \(SIGABRT\): .*clamp"):
        run(RUNTIMES["onnxruntime"], model, {"x": normal(0, 1, 1, 2)})


@pytest.mark.parametrize("noticed", [False, True])
def test_an_abort_is_an_error_and_the_next_session_works(noticed):
    opened = RUNTIMES["onnxruntime"].session
    with closing(worker.Worker()) as process, opened(negative(), worker=process) as session:
        os.kill(process._process.pid, signal.SIGABRT)
        if noticed:  # the process may end before the next call, or during it
            process._process.wait()
        with pytest.raises(EngineError, match=r"onnxruntime failed: its process ended \(SIGABRT"):
            session.run({"x": normal(0, 2, 3)})
        with pytest.raises(EngineError, match="has ended; open another session"):
            session.run({"x": normal(0, 2, 3)})
    assert run(RUNTIMES["onnxruntime"], negative(), {"x": normal(0, 2, 3)})["y"].shape == (2, 3)


def test_a_run_that_does_not_come_back_is_ended():
    given = {"x": normal(0, 2), "n": np.array(1 << 60), "c": np.array(True)}
    opened = RUNTIMES["onnxruntime"].session
    with closing(worker.Worker(1.0)) as process, opened(parsed(FOREVER), worker=process) as session:
        with pytest.raises(EngineError, match="did not return within 1 s and was ended"):
            session.run(given)
        assert not process.usable


def test_too_much_memory_is_an_error_and_the_process_lives():
    model = parsed("""g (float[4] x) => (y) {
        s = Constant<value_ints = [1099511627776, 4]>() y = Expand(x, s)
    }""")  # fmt: skip
    for name, kind in (("onnxruntime", EngineError), ("reference", MemoryLimitError)):
        with pytest.raises((MemoryLimitError, kind)):
            run(RUNTIMES[name], model, {"x": normal(0, 4)})


BOUND = """
import numpy as np
from upconv import memory
from upconv.onnx.runtimes import host
memory.available_bytes = lambda: 1 << 30
host.Host.infer = lambda self, size: np.ones(size, np.int8).nbytes
host.main()
"""


def test_the_worker_is_bound_in_memory():
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    command = [sys.executable, "-c", BOUND]
    with subprocess.Popen(command, env=environment(), start_new_session=True, **pipes) as started:
        for size, kind in ((1 << 20, "value"), (1 << 31, "MemoryLimitError")):
            started.stdin.write(pickle.dumps(("infer", (size,))))
            started.stdin.flush()
            assert pickle.load(started.stdout)[0] == kind
        started.stdin.close()


ORPHAN = """
import numpy as np, sys
from tests.support.onnx_texts import parsed
from upconv.onnx.runtimes import RUNTIMES
from tests.onnx.test_runtimes import FOREVER
with RUNTIMES["onnxruntime"].session(parsed(FOREVER)) as session:
    print(session.worker._process.pid, flush=True)
    session.run({"x": np.ones(2, "f"), "n": np.array(1 << 60), "c": np.array(True)})
"""


def test_nothing_outlives_who_started_it():
    path = str(ROOT)
    env = environment(PYTHONPATH=os.pathsep.join([*sys.path, path]))
    started = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env
    )
    with started:
        pid = int(started.stdout.readline())
        time.sleep(0.5)
        started.send_signal(signal.SIGKILL)
        started.wait(120)
    for _ in range(1200):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("the worker is still there")


def test_workers_are_used_again_and_not_after_a_fork(monkeypatch):
    with worker.borrowed() as first:
        pass
    with worker.borrowed() as again:
        assert again is first
    monkeypatch.setattr(first, "owner", -1)
    with worker.borrowed() as other:
        assert other is not first
    monkeypatch.undo()
    first.close()


# Values -------------------------------------------------------------------------------------------

UP = """g (float[N, 6, H, W] x) => (float[N, 12, U, V] y) {
  t = ConvTranspose <strides = [2, 3], pads = [0, 1, 1, 2], group = 3> (x, w, b)
  y = Relu(t)
}"""


@pytest.mark.parametrize("name", [*HERE, "reference:f64"])
def test_every_runtime_computes_a_deconvolution(name):
    x, w, b = normal(0, 2, 6, 5, 7), normal(1, 6, 4, 3, 2), normal(2, 12)
    model = parsed(UP, w=w, b=b)
    wanted = upconv.conv_transpose(
        *(a.astype(np.float64) for a in (x, w, b)),
        stride=(2, 3), padding=((0, 1), (1, 2)), groups=3, activation="relu", engine="reference",
    )  # fmt: skip
    before = model.SerializeToString()
    got = run(Runtime.parse(name), model, {"x": x})
    assert list(got) == ["y"]
    dtype = np.dtype(np.float64 if "f64" in name else np.float32)
    assert got["y"].dtype == dtype
    allowed = 16 * np.finfo(dtype).eps * np.abs(wanted).max()
    np.testing.assert_allclose(got["y"], wanted, rtol=0, atol=allowed)
    assert model.SerializeToString() == before


def test_outputs_keep_their_places_and_dynamic_shapes_work_twice(runtime):
    model = parsed("g (float[N, 3] x) => (float[N, 3] b, float[N, 3] a) {a = Neg(x) b = Abs(x)}")
    with runtime.session(model) as session:
        for n in (2, 5, 0):
            x = normal(n, n, 3)
            got = session.run({"x": x})
            assert list(got) == ["b", "a"]
            np.testing.assert_array_equal(got["a"], -x)
            np.testing.assert_array_equal(got["b"], abs(x))


def test_outputs_are_the_callers_own(runtime):
    model = parsed(
        "g (float[2] x) => (float[2] y, float[2] w) {y = Identity(x)}", w=np.ones(2, "f")
    )
    x = normal(0, 2)
    x.flags.writeable = False
    with runtime.session(model) as session:
        first = session.run({"x": x})
        kept = x.copy()
        first["y"][:] = 7
        first["w"][:] = 7
        np.testing.assert_array_equal(x, kept)
        second = session.run({"x": x})
    np.testing.assert_array_equal(second["y"], x)
    np.testing.assert_array_equal(second["w"], 1)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_narrow_floats_go_in_and_come_out(runtime, kind):
    code = TensorProto.DataType.Value(kind.upper())
    model = parsed(
        f"g ({kind}[N, 3] x) => ({kind}[N, 3] y, float[N, 3] z) "
        f"{{z = Cast<to = 1>(x) t = Neg(z) y = Cast<to = {code}>(t)}}"
    )
    x = normal(1, 2, 3).astype(kind)
    if (runtime.name, kind) == ("onnxruntime", "bfloat16"):  # its Python interface has no such type
        with pytest.raises(EngineError, match="failed"):
            run(runtime, model, {"x": x})
        return
    got = run(runtime, model, {"x": x})
    assert got["y"].dtype == np.dtype(kind)
    np.testing.assert_array_equal(got["y"].astype(np.float32), -x.astype(np.float32))
    np.testing.assert_array_equal(got["z"], x.astype(np.float32))


# Refusals -----------------------------------------------------------------------------------------


def test_feeds_that_do_not_fit_are_refused_in_words(runtime):
    model = parsed("g (float[N, 3] x) => (float[N, 3] y) {y = Neg(x)}")
    x = normal(0, 2, 3)
    with runtime.session(model) as session:
        for given, kind, words in (
            ({}, ArgumentError, r"feeds\['x'\] is missing; expected an array, float32\[N,3\]"),
            ({"x": x, "z": x}, ArgumentError, "given for 'z'; expected the model's inputs: 'x'"),
            ({"x": x.astype(np.float64)}, DTypeError, "an array of float64; expected float32"),
            ({"x": x.T}, ShapeError, r"\(3, 2\); expected float32\[N,3\]"),
        ):
            for call in (session.run, session.bind):
                with pytest.raises(kind, match=words):
                    call(given)


def test_a_model_that_the_runtime_does_not_take_is_a_refusal_in_one_line(runtime):
    model = parsed("g (float[2] x) => (float[2] y) {y = Neg(x)}")
    model.graph.node[0].op_type = "Nonsense"
    with pytest.raises(EngineRefusal, match=r"refuses the model: .*Nonsense") as caught:
        run(runtime, model, {})
    assert "\n" not in str(caught.value)


def test_a_failing_run_is_an_engine_error_in_one_line(runtime):
    model = parsed("g (float[N, K] a, float[L, M] b) => (y) {y = MatMul(a, b)}")
    with runtime.session(model) as session:
        with pytest.raises(EngineError) as caught:
            session.run({"a": normal(0, 4, 3), "b": normal(0, 4, 3)})
        assert not isinstance(caught.value, EngineRefusal)
        assert str(caught.value).startswith(f"{runtime} failed: ")
        assert "\n" not in str(caught.value)


# Large models, settings ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in HERE if name != "openvino:f32"])
def test_a_model_too_large_for_a_message_goes_through_a_folder(name, monkeypatch, tmp_path):
    """The limit is lowered; 2 GiB of weights would take the test's time."""
    monkeypatch.setattr(models, "INLINE_BYTES", 1000)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    w, x = normal(1, 64, 64), normal(2, 3, 64)
    model = parsed("g (float[N, 64] x) => (float[N, 64] y) {y = MatMul(x, w)}", w=w)
    before = model.SerializeToString()
    with Runtime.parse(name).session(model) as session:
        assert [path.name for path in tmp_path.glob("upconv-*/*")] != []
        np.testing.assert_allclose(session.run({"x": x})["y"], x @ w, rtol=0, atol=1e-1)
    assert list(tmp_path.iterdir()) == []
    assert model.SerializeToString() == before
    model.graph.node[0].op_type = "Nonsense"
    with pytest.raises(EngineRefusal):
        run(Runtime.parse(name), model, {})
    assert list(tmp_path.iterdir()) == []


# Random inputs ------------------------------------------------------------------------------------

MANY = """g (float[N, 3, H, 3] x, float16[N, H] y, uint8[1000] p, int64[1000] i, bool[1000] c,
           bfloat16[?, ?] z) => (o) {o = Neg(x)}"""


def test_feeds_have_the_stated_sizes_values_and_seed():
    model = parsed(MANY)
    drawn = feeds(model, {"H": (5,), "x": (2, 3, 5, 3)})
    assert {name: array.shape for name, array in drawn.items()} == {
        "x": (2, 3, 5, 3), "y": (2, 5), "p": (1000,), "i": (1000,), "c": (1000,),
        "z": (1, OPEN),
    }  # fmt: skip
    types = ["float32", "float16", "uint8", "int64", "bool", "bfloat16"]
    assert [str(array.dtype) for array in drawn.values()] == types
    assert set(drawn["i"]) == {0, 1}
    assert set(drawn["c"]) == {False, True}
    assert drawn["p"].min() < 10
    assert drawn["p"].max() > 245
    assert 0.5 < np.std(drawn["x"]) < 1.5
    for name, again in feeds(model, {"H": (5,), "x": (2, 3, 5, 3)}).items():
        np.testing.assert_array_equal(again, drawn[name])
    assert not np.array_equal(feeds(model, seed=1)["i"], drawn["i"])


@pytest.mark.parametrize(("text", "sizes", "kind", "words"), [
    (MANY, {"q": (1,)}, ArgumentError, "given for 'q'; expected inputs or symbols: 'c', 'i'"),
    (MANY, {"N": (1, 2)}, ShapeError, "one size: it is a dimension"),
    (MANY, {"x": (2, 4, 5, 3)}, ShapeError, r"\(2, 4, 5, 3\); expected float32\[N,3,H,3\]"),
    (MANY, {"x": (2, 3)}, ShapeError, "expected float32"),
    (MANY, {"x": (2, 3, 4, 3), "y": (3, 4)}, ShapeError, r"float16\[N,H\], here \[2,4\]"),
    (MANY, {"x": (-2, 3, 4, 3)}, ShapeError, "sizes"),
    (MANY, {"H": (1 << 40,)}, MemoryLimitError, "drawing the random inputs of the model needs"),
    ("g (string[2] x) => (y) {y = Identity(x)}", {}, DTypeError, "STRING"),
    ("g (seq(float[2]) x) => (y) {y = Identity(x)}", {}, DTypeError, "Sequence"),
    ("g (complex64[2] x) => (y) {y = Identity(x)}", {}, DTypeError, "complex64"),
    ("g (float x) => (y) {y = Identity(x)}", {}, None, ""),
])  # fmt: skip
def test_feeds_that_cannot_be(text, sizes, kind, words):
    model = parsed(text)
    if kind is None:
        del model.graph.input[0].type.tensor_type.shape.dim[:]
        model.graph.input[0].type.tensor_type.ClearField("shape")
        kind, words = ShapeError, "not declared by the model; expected a shape. Give it in sizes"
        assert feeds(model, {"x": ()})["x"].shape == ()
    with pytest.raises(kind, match=words):
        feeds(model, sizes)
