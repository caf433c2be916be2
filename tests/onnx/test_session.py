"""Sessions: the values of ONNX Runtime, what is measured and reported, errors, how they end."""

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="sessions run in it")

import onnx
import onnxruntime

from tests.support.onnx_cases import random_case
from tests.support.onnx_sessions import decoder, image, measure_once, plain, same, weight
from tests.support.onnx_texts import parsed
from tests.support.processes import printed, python
from tests.support.repeating import seeds, single
from upconv import conv_transpose, measuring
from upconv.errors import (
    ArgumentError,
    DTypeError,
    EngineError,
    EngineRefusal,
    MemoryLimitError,
    ShapeError,
)
from upconv.network import Network
from upconv.onnx import Session
from upconv.onnx.session.abi import library

TWO = '<ir_version: 8, opset_import: ["": 17, "n": 1]> g (float[2] x) => (float[2] y)'


ENDLESS = np.broadcast_to(np.float32(1), (1 << 20, 16, 1 << 10, 1 << 6))


@pytest.fixture(scope="module")
def source() -> onnx.ModelProto:
    return decoder()


@pytest.fixture
def session(source: onnx.ModelProto) -> Session:
    return Session(source, threads=2, measure=False)


# Values -------------------------------------------------------------------------------------------


def test_a_model_has_the_values_of_onnx_runtime(source: onnx.ModelProto, session: Session) -> None:
    feeds = image()
    same(session.run(None, feeds), plain(source, feeds))
    [skip] = session.run(["skip"], feeds)
    np.testing.assert_allclose(skip, plain(source, feeds)[1], 1e-5, 1e-5)
    kinds = [each.kind for each in session.report().rows if each.upconv]
    assert kinds == [
        "Conv, PRelu, ConvTranspose, LeakyRelu",
        "2 ConvTranspose, PRelu, BatchNormalization, Tanh",
    ]


@pytest.mark.parametrize("first", [0, 25, pytest.param(50, marks=pytest.mark.long)])
def test_random_models_have_the_values_of_onnx_runtime(first: int) -> None:
    met = 0
    for seed in seeds(first, first + 25):
        case = random_case(seed, opset=13 + seed % 10)
        try:
            wanted = plain(case.model, {"x": case.x})
        except Exception:  # ONNX Runtime refuses it
            with pytest.raises((EngineError, ArgumentError)):
                Session(case.model).run(None, {"x": case.x})
            continue
        found = Session(case.model, measure=False)
        met += any(each.upconv for each in found.report().rows)
        same(found.run(None, {"x": case.x}), wanted)
    assert met >= 15 or single()


def test_all_layers_and_none_compute_the_same(source: onnx.ModelProto) -> None:
    """Conv too, by name; and a model without a layer."""
    wanted = plain(source, feeds := image())
    names = [each.name for each in Session(source, measure=False).report().rows]
    for chosen in (names, names[:1], []):
        made = Session(source, layers=chosen)
        same(made.run(None, feeds), wanted)
        report = made.report()
        assert [each.name for each in report.rows if each.upconv] == chosen
        assert report.why == ("" if chosen else "no part was chosen")
    assert len(names) == 2
    nothing = Session(parsed(f"{TWO} {{ y = Neg(x) }}"))
    assert nothing.report().why == "upconv computes none of its convolutions"
    assert nothing.run(None, {"x": np.float32([1, 2])})[0].tolist() == [-1, -2]


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_types_that_onnx_runtime_has_no_kernel_for(dtype: str) -> None:
    kind = {"float64": "double"}.get(dtype, dtype)
    text = f"""<ir_version: 10, opset_import: ["": 22]> g ({kind}[N, 3, L] x) => ({kind}[N, 2, M] y)
    {{ y = ConvTranspose <strides = [2]> (x, w) }}"""
    w, x = weight(3, 2, 4).astype(dtype), weight(2, 3, 9).astype(dtype)
    found = Session(parsed(text, w=w), measure=False)
    [y] = found.run(None, {"x": x})
    assert found.report().rows[0].upconv
    assert y.dtype == x.dtype
    assert np.array_equal(y, conv_transpose(x, w, stride=2))


def test_what_is_no_tensor_of_numbers_is_refused() -> None:
    text = """g (seq(float[1, 1, 3]) s) => (float[1, 1, 6] y)
    <int64 i = {0}> { y = SequenceAt(s, i) }"""
    with pytest.raises(EngineRefusal, match="'s' is not a tensor of real numbers: run the model"):
        Session(parsed(text))


def test_layers_that_are_not_ours() -> None:
    """In a branch; with a weight or bias that is fed, a dequantised one; slopes per position."""
    text = """<ir_version: 10, opset_import: ["": 21]>
    g (float[1, 1, 3] x, float[1, 1, 2] fed, float[1] bias, bool choose)
      => (float[1, 1, 4] y, float[1, 1, 4] z, float[1, 1, 4] v, float[1, 1, 4] p)
    <float[4] slopes = {2, 3, 4, 5}, int8[1, 1, 2] q = {3, 4}, float scale = {0.5}>
    {
      y = ConvTranspose(x, fed)
      v = ConvTranspose(x, w, bias)
      ours = ConvTranspose(x, w)
      p = PRelu(ours, slopes)
      d = DequantizeLinear(q, scale)
      e = ConvTranspose(x, d)
      z = If (choose) <
        then_branch = yes () => (float[1, 1, 4] t) { t = ConvTranspose(x, w) },
        else_branch = no () => (float[1, 1, 4] n) { n = Identity(e) }
      >
    }"""
    made = parsed(text, w=weight(1, 1, 2))
    found = Session(made, measure=False)
    rows = {each.name: each for each in found.report().rows}
    assert [each.kind for each in rows.values() if each.upconv] == ["ConvTranspose"]
    assert "'fed' is an input of its graph" in rows["y"].why
    assert "'bias' is an input of its graph" in rows["v"].why
    assert "computed by a DequantizeLinear node" in rows["e"].why
    feeds = {"x": weight(1, 1, 3), "fed": weight(1, 1, 2), "bias": weight(1)}
    feeds["choose"] = np.array(True)
    same(found.run(None, feeds), plain(made, feeds))


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
def test_a_weight_that_is_not_finite_stays_with_onnx_runtime() -> None:
    """No machine code computes with it; upconv's reference engine would, on one thread."""
    text = """g (float[1, 1, 3] x) => (float[1, 1, M] y)
    { y = ConvTranspose <strides = [2]> (x, w) }"""
    source = parsed(text, w=np.float32([[[1, np.inf, 3]]]))
    session = Session(source, measure=False)
    [row] = session.report().rows
    assert not row.upconv
    assert "inf" in row.why
    feeds = {"x": weight(1, 1, 3)}
    np.testing.assert_array_equal(session.run(None, feeds), plain(source, feeds))


# As ONNX Runtime's --------------------------------------------------------------------------------


def test_inputs_and_outputs_are_told_as_onnx_runtime_tells_them(
    source: onnx.ModelProto, session: Session
) -> None:
    theirs = onnxruntime.InferenceSession(source.SerializeToString())
    told, wanted = (
        [(v.name, v.type, v.shape) for v in (*one.get_inputs(), *one.get_outputs())]
        for one in (session, theirs)
    )
    assert told == wanted


def test_a_session_takes_what_onnx_runtimes_own_takes(source: onnx.ModelProto) -> None:
    options, run_options = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    source.metadata_props.add(key="rate", value="16000")
    feeds = image()
    for providers in (None, ["CPUExecutionProvider"], [("CPUExecutionProvider", {})]):
        session = Session(source, options, providers, measure=False)
        assert session.report().conditions["threads"] == 1
        same(session.run(None, feeds, run_options), plain(source, feeds))
    assert Session(source, options, threads=2, layers=[]).report().conditions["threads"] == 2
    every = onnxruntime.get_available_providers()
    theirs = onnxruntime.InferenceSession(source.SerializeToString(), options, every)
    session = Session(source, options, ["CPUExecutionProvider", *every], measure=False)
    assert session.get_providers() == ["CPUExecutionProvider"] == theirs.get_providers()[-1:]
    told, expected = session.get_modelmeta(), theirs.get_modelmeta()
    for name in ("producer_name", "graph_name", "domain", "description", "custom_metadata_map"):
        assert getattr(told, name) == getattr(expected, name)


def test_what_a_session_does_not_have_is_refused(source: onnx.ModelProto) -> None:
    options, run_options = onnxruntime.SessionOptions(), onnxruntime.RunOptions()
    options.enable_profiling = run_options.terminate = True
    with pytest.raises(ArgumentError, match=r"sess_options.enable_profiling is True; expected"):
        Session(source, options)
    with pytest.raises(DTypeError, match=r"sess_options is 3; expected onnxruntime.SessionOptions"):
        Session(source, 3)
    for providers in (["CUDAExecutionProvider"], [("CPUExecutionProvider", {"a": 1})]):
        with pytest.raises(ArgumentError, match=r"providers is .*; expected"):
            Session(source, providers=providers)
    with pytest.raises(DTypeError, match="providers is 'CPU'"):
        Session(source, providers="CPU")
    with pytest.raises(ArgumentError, match=r"run_options.terminate is True"):
        Session(source, layers=[]).run(None, image(), run_options)


def test_arrays_of_any_strides_and_byte_order_and_lists_are_taken(
    source: onnx.ModelProto, session: Session
) -> None:
    x = image()["x"]
    wanted = plain(source, {"x": x})
    spread = np.repeat(x, 2, axis=3)[..., ::2]
    for each in (np.asfortranarray(x), spread, x.astype(">f4"), x.tolist(), [*x]):
        same(session.run([], {"x": each}), wanted)
    text = "g (int64 i) => (int64 j) { j = Neg(i) }"
    flag = Session(parsed(text))
    assert flag.run(None, {"i": 3}) == [-3]
    with pytest.raises(DTypeError, match="an array of float64; expected int64"):
        flag.run(None, {"i": 3.5})


_TOO_LARGE = """
import sys
import numpy as np
from tests.support.onnx_texts import parsed
from upconv.errors import MemoryLimitError
from upconv.onnx import Session
for how in ({"measure": False}, {"layers": []}):
    session = Session(parsed(sys.argv[1]), **how)
    try:
        session.run(None, {"x": np.ones((1, 1, 1 << 26), np.float32)})
    except MemoryLimitError as error:
        assert "needs too much memory" in str(error)
        [y] = session.run(None, {"x": np.ones((1, 1, 2), np.float32)})
        print(y.shape, y.any())
"""


def test_a_result_that_does_not_fit_is_refused_and_the_next_run_is_right() -> None:
    """In a process of its own: ONNX Runtime then reserves what no fork could copy."""
    text = """g (float[1, 1, L] x) => (float[1, O, M] y) {
        s = Constant <value = int64[3] {1, 65536, 1}> ()
        w = ConstantOfShape (s)
        y = ConvTranspose (x, w)
    }"""
    assert printed(_TOO_LARGE, text).splitlines() == ["(1, 65536, 2) False"] * 2


def test_results_are_the_callers_own(session: Session) -> None:
    feeds = image()
    first = session.run(None, feeds)
    kept = [each.copy() for each in first]
    second = session.run(None, image())
    assert all(np.array_equal(a, b) for a, b in zip(first, kept, strict=True))
    assert not any(np.shares_memory(a, b) for a in first for b in second)
    first[0][...] = 0  # writable
    session.close()
    del session
    assert np.isfinite(kept[0] + second[0]).all()
    [y] = Session(parsed(f"{TWO} {{ y = Identity(x) }}")).run(None, {"x": kept[0][0, 0, 0, :2]})
    assert not np.shares_memory(y, kept[0])


def test_results_are_given_back(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    api, given = library(), list[str]()
    original = api.release
    monkeypatch.setattr(api, "release", lambda *a: given.append(a[0]) or original(*a))
    results = session.run(None, image())
    before = given.count("Value")
    del results
    assert given.count("Value") == before + 2


def test_shapes_change_from_run_to_run(source: onnx.ModelProto, session: Session) -> None:
    """More shapes than programs are kept of."""
    rounds = [image(1 + height % 2, height, 6) for height in (4, 9, *range(4, 40))]
    for feeds in rounds:
        same(session.run(None, feeds), plain(source, feeds))


def test_many_threads_run_at_once(source: onnx.ModelProto, session: Session) -> None:
    cases = [image(1, 3 + i, 6) for i in range(8)] * 20
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda feeds: session.run(None, feeds), cases))
    wanted = [plain(source, feeds) for feeds in cases[:8]] * 20
    for y, z in zip(found, wanted, strict=True):
        same(y, z)


# Measuring ----------------------------------------------------------------------------------------


def test_what_was_measured_is_reported_and_used_again(
    source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_once(monkeypatch)
    shapes = [{"x": (1, 16, 4, 4)}, {"H": (6,), "W": (3,)}]
    first = Session(source, threads=2, input_shapes=shapes)
    report = first.report()
    assert not report.why
    assert report.conditions["shapes"] == "x [1, 16, 4, 4]; x [1, 16, 6, 3]"
    assert report.after < report.before
    assert "computed by" in str(report)
    chosen = [each["name"] for each in report.as_json()["rows"] if each["by"] == "upconv"]
    monkeypatch.setattr(measuring, "sampled", None)  # nothing is measured
    again = Session(source, layers=chosen)
    assert [each.name for each in again.report().rows if each.upconv] == chosen != []
    same(again.run(None, feeds := image()), plain(source, feeds))


@pytest.mark.parametrize(("gain", "ways"), [(2.0, 1), (1.2, 3)])
def test_ways_are_timed_in_turn_until_one_leads_by_far(
    source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, gain: float, ways: int
) -> None:
    """Each way, and then each part left out, is `gain` times as fast as the best one before it."""
    measure_once(monkeypatch, gain)
    steps = list[str]()
    session = Session(source, progress=lambda what, *_: steps.append(what))
    report, timed = session.report(), [step for step in steps if "with " in step]
    assert len(timed) == ways
    assert report.ratio.median == pytest.approx((gain + 0.01) ** len(steps))
    assert report.before == pytest.approx(report.after * report.ratio.median)
    assert any(row.upconv for row in report.rows)
    assert (len(steps) > ways) == any("faster without" in row.why for row in report.rows)
    same(session.run(None, feeds := image()), plain(source, feeds))


@pytest.mark.parametrize(("gain", "wrong"), [(0.5, 1.0), (2.0, 1.01), (2.0, 0.0)])
def test_a_model_that_is_not_faster_or_computes_something_else_stays(
    source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch, gain: float, wrong: float
) -> None:
    """wrong: by what weights are off; 0 for layers that no network takes."""
    original = Network.conv_transpose

    def changed(network: Network, x: Any, w: Any, *rest: Any, **how: Any) -> Any:
        if not wrong:
            raise EngineRefusal("no network")
        return original(network, x, w * wrong, *rest, **how)

    measure_once(monkeypatch, gain)
    monkeypatch.setattr(Network, "conv_transpose", changed)
    found = Session(source)
    report = found.report()
    assert not any(each.upconv for each in report.rows if "Transpose" in each.kind)
    if wrong == 1.0:
        assert "not faster" in report.why
    else:
        why = "of the largest value" if wrong else "no network"
        assert any(why in each.why for each in report.rows)
    same(found.run(None, feeds := image()), plain(source, feeds))


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "feeds", "kind", "said"),
    [
        (None, {}, ArgumentError, "feeds['x'] is missing"),
        (None, None, ArgumentError, "a dict of arrays"),
        (None, {"x": image()["x"], "z": 1}, ArgumentError, "given for 'z'"),
        (None, {"x": np.zeros((1, 16, 5, 5))}, DTypeError, "float64; expected float32"),
        (None, {"x": np.zeros((1, 3, 5, 5), np.float32)}, ShapeError, "(1, 3, 5, 5)"),
        (["nothing"], image(), ArgumentError, "['nothing']; expected a list of some of 'y'"),
        ("y", image(), ArgumentError, "a list of some"),
        ([["y"]], image(), ArgumentError, "a list of some"),
        (
            None,
            {"x": [[1, 2], [3]]},
            DTypeError,
            "feeds['x'] is [[1, 2], [3]] (NumPy says",
        ),
        (None, {"x": [["a"]]}, DTypeError, "an array of <U1; expected float32"),
        (None, {"x": None}, DTypeError, "feeds['x'] is None"),
        (None, {"x": np.ma.masked_array(np.zeros(3), True)}, DTypeError, "a masked array"),
        (None, {"x": image()["x"][0]}, ShapeError, "(16, 5, 7); expected float32[N,16,H,W]"),
        (None, {"x": ENDLESS}, MemoryLimitError, "feeds['x'] needs 4 TiB"),
    ],
)
def test_wrong_calls(
    session: Session, names: Any, feeds: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind) as caught:
        session.run(names, feeds)
    assert said in str(caught.value)


def test_wrong_sessions(source: onnx.ModelProto, session: Session) -> None:
    with pytest.raises(ArgumentError, match="threads"):
        Session(source, threads=0)
    with pytest.raises(ArgumentError, match="input_shapes"):
        Session(source, input_shapes=[3])
    with pytest.raises(ArgumentError, match="one of the two"):
        Session(source, input_shapes={"x": (1, 16, 3, 3)}, feeds=image())
    for names in ("b", ["elsewhere"], 3, [["b"]]):
        with pytest.raises(ArgumentError, match=r"layers is .*some of 'a ... c', 'e ... y'"):
            Session(source, layers=names)
    with pytest.raises(ArgumentError, match="feeds"):
        Session(source, feeds=[])
    with pytest.raises(DTypeError, match="decisions is 3"):
        Session(source, decisions=3)
    with pytest.raises(DTypeError, match="progress is 3"):
        Session(source, progress=3)
    session.close()
    with pytest.raises(EngineError, match="closed"):
        session.run(None, image())
    with pytest.raises(EngineRefusal, match="failed"):
        Session(parsed(f"{TWO} {{ y = n.Other(x) }}"))


def test_what_an_operator_raises_is_told(
    source: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(source, measure=False)
    monkeypatch.setattr(Network, "program", lambda *_, **how: how["no such"])
    with pytest.raises(EngineError, match="KeyError: 'no such'"):
        session.run(None, image())


# Endings ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_fork_is_told_to_make_its_own(session: Session) -> None:
    child = os.fork()
    if not child:
        try:
            session.run(None, image())
        except EngineError as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


INTERRUPTED = """
import numpy as np
from tests.support.interrupts import interrupted_everywhere
from tests.support.onnx_sessions import decoder, image
from upconv.onnx import Session
session, feeds = Session(decoder(), measure=False), image(1, 5, 5)
wanted, kept = session.run(None, feeds), []  # what frees a result ignores KeyboardInterrupt
assert interrupted_everywhere(lambda: kept.append(session.run(None, feeds))) > 20
for _ in range(3):
    assert all(map(np.array_equal, session.run(None, feeds), wanted))
"""


ENDING = """
import atexit, threading, time
from tests.support.onnx_sessions import decoder, image
from upconv.onnx import Session
session, feeds = Session(decoder(), measure=False), image()

def forever():
    while True:
        session.run(None, feeds)

atexit.register(session.run, None, feeds)
threading.excepthook = lambda *_: None
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
kept = session.run(None, feeds)
"""


@pytest.mark.parametrize("script", [INTERRUPTED, ENDING], ids=["interrupted", "ended"])
def test_interrupts_end_runs_and_the_interpreter_ends_while_a_session_runs(script: str) -> None:
    done = python(script)
    assert (done.returncode, done.stderr) == (0, "")
