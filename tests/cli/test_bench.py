"""`upconv bench` as a process: verified rows, planted faults and layer files."""

import json
import re
import statistics
import subprocess
import sys
from functools import lru_cache

import pytest

import upconv
from tests.support.paths import ROOT
from tests.support.planted_engine import plant
from tests.support.processes import called, failed
from upconv import execution, roofline
from upconv.engine_choice import Selection
from upconv.engines import load
from upconv.errors import EngineError

pytest.importorskip("typer", reason="the command line needs typer")
pytest.importorskip("llvmlite", reason="the roofline needs llvmlite")

from upconv.cli.bench import _chosen_layers
from upconv.cli.bench_layers import PEERS, Candidate, read
from upconv.engines.jit import roofline as limits
from upconv.engines.jit.roofline import Limits

__all__ = ["plant"]  # a fixture

measure_once = lru_cache(limits.measure)


@pytest.fixture(autouse=True)
def one_roofline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands inside this process measure the roofline once: half a second of each."""
    monkeypatch.setattr(limits, "measure", measure_once)


SMALL = ["bench", "--only", "dcgan_first", "--peers", "none", "--seconds", "0"]
JSON = ["--output-format", "json"]
LAYER = {"name": "a", "n": 2, "ic": 6, "oc": 4, "size": [5, 7], "k": 3, "s": 2, "p": 1, "op": 1,
         "d": 1, "g": 2}  # fmt: skip


def rows(done):
    """(layer, contender) -> result, of a --json run."""
    fields = json.loads(done.stdout)
    return {
        (layer["name"], result["candidate"]): result
        for layer in fields["layers"]
        for result in layer["results"]
    }


# Results ------------------------------------------------------------------------------------------


def test_quick_verifies_every_engine_on_small_layers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(_chosen_layers(None, None, quick=True)) >= 5
    only = ("--only", "dcgan_first,dcgan_middle,centernet_dw")  # the second is no small one
    done = called("bench", "--quick", *only, "--peers", "none", "--seconds", 0, *JSON)
    assert (done.returncode, done.stderr) == (0, b""), done
    fields = json.loads(done.stdout)
    assert (fields["schema"], fields["command"], fields["faults"]) == (1, "bench", 0)
    assert fields["machine"]["versions"]["numpy"]
    assert fields["machine"]["cpu"]["name"]
    assert [layer["name"] for layer in fields["layers"]] == ["dcgan_first", "centernet_dw"]
    for result in rows(done).values():
        assert result["verified"] or result["reason"]
    for layer in fields["layers"]:
        reference = next(r for r in layer["results"] if r["candidate"] == "reference")
        assert reference["verified"]
        assert 0 < reference["error"] < layer["tolerance"]
        samples = reference["rounds_seconds"]
        assert len(samples) >= 3
        assert reference["best_seconds"] == min(samples) <= reference["median_seconds"]
        flop = 2 * layer["multiply_adds"]
        assert reference["gflops"] == pytest.approx(flop / reference["best_seconds"] / 1e9)
        assert reference["workspace_bytes"] >= 0
        floor = layer["roofline_seconds"]
        seconds = 2 * layer["multiply_adds"] / fields["roofline"]["flops"]
        assert floor >= seconds > 0
        assert reference["efficiency"] == pytest.approx(floor / reference["best_seconds"])
    means = fields["summary"]["reference"]
    efficiencies = [r["efficiency"] for (_, by), r in rows(done).items() if by == "reference"]
    assert means["efficiency"] == pytest.approx(statistics.geometric_mean(efficiencies))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("direction", "dtype"),
    [("forward", "float32"), ("input_grad", "float32"), ("weight_grad", "float64")],
)
def test_peers_that_are_installed_agree(tmp_path, direction, dtype):
    """Grouped, dilated, with output padding, in 1, 2 and 3 dimensions; who cannot says why."""
    grown = {**LAYER, "name": "c", "size": [3, 5, 4], "k": [3, 2, 3], "p": [1, 0, 1]}
    layers = [LAYER, {**LAYER, "name": "b", "size": [9], "g": 1, "d": 2}, grown]
    (tmp_path / "l.json").write_text(json.dumps({"about": "", "layers": layers}))
    done = called("bench", "--layers", tmp_path / "l.json", "--direction", direction, "--dtype",
                  dtype, "--seconds", 0, *JSON)  # fmt: skip
    assert done.returncode == 0, done
    problem = json.loads(done.stdout)["layers"][0]["problem"]
    assert direction in problem
    assert dtype in problem
    for (layer, _), result in rows(done).items():
        assert result["verified"] != bool(result["reason"]), (layer, result)
    assert rows(done)["a", "reference"]["verified"]
    peers = json.loads(done.stdout)["peers"]
    if "torch" in peers:
        assert rows(done)["a", "torch"]["verified"]
    if direction == "forward" and "openvino" in peers:
        assert rows(done)["a", "openvino"]["verified"]


def test_a_peer_that_is_missing_or_broken_is_a_dash(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(PEERS, "openvino", lambda *_: 1 / 0)
    done = called(*SMALL, "--peers", "torch,openvino")
    assert done.returncode == 0, done
    assert re.search(rb"(?m)^dcgan_first +torch +- +- +-", done.stdout)
    assert b"torch: not installed" in done.stderr
    assert b"openvino: ZeroDivisionError: division by zero\n" in done.stderr


def test_efficiency_is_of_upconvs_own_engines(monkeypatch):
    """Half the machine's rate is planted; a peer has none, and without a roofline nobody has."""
    limits = Limits(upconv.get_num_threads(), 1e9, 1e30)
    monkeypatch.setattr(roofline, "measured", lambda threads: limits)
    done = called(*SMALL, "--engines", "reference", *JSON)
    (layer,) = json.loads(done.stdout)["layers"]
    (result,) = layer["results"]
    assert layer["roofline_seconds"] == pytest.approx(2 * layer["multiply_adds"] / 1e9)
    assert result["efficiency"] == pytest.approx(layer["roofline_seconds"] / result["best_seconds"])
    monkeypatch.setattr(roofline, "measured", lambda threads: None)
    done = called(*SMALL, "--engines", "reference", *JSON)
    assert json.loads(done.stdout)["roofline"] is None
    assert rows(done)["dcgan_first", "reference"]["efficiency"] is None
    monkeypatch.setattr(roofline, "measured", lambda threads: limits)
    peer = lambda case, _: [Candidate("peer", "torch", lambda: None, lambda _: case.expected)]  # noqa: E731
    monkeypatch.setitem(PEERS, "torch", peer)
    done = called(*SMALL[:3], "--engines", "reference", "--peers", "torch", "--seconds", 0, *JSON)
    result, own = rows(done)["dcgan_first", "peer"], rows(done)["dcgan_first", "reference"]
    faster = own["best_seconds"] / result["best_seconds"]
    assert result["speeds"] == pytest.approx({"reference": faster, "torch": 1})
    assert own["speeds"] == pytest.approx({"reference": 1, "torch": 1 / faster})
    assert json.loads(done.stdout)["summary"]["peer"]["reference"] == pytest.approx(faster)
    assert result["efficiency"] is None
    assert result["best_seconds"] > 0


@pytest.mark.parametrize("direction", ["forward", "input_grad", "weight_grad"])
def test_a_row_that_another_engine_computes_is_a_fault(plant, monkeypatch, direction):
    """Planted: what is asked of the engine goes to the reference engine."""
    plant()
    reference = Selection(load("reference"))
    monkeypatch.setattr(execution, "selected", lambda *_, **__: reference)
    done = called(*SMALL, "--direction", direction, *JSON)
    result = rows(done)["dcgan_first", "planted"]
    assert (done.returncode, result["fault"], result["best_seconds"]) == (1, True, None)
    assert result["reason"].startswith("dcgan_first is computed by reference, but its result")


def test_the_table_of_the_benchmarks_page(tmp_path):
    """Best times of two benches, and efficiency over the lower floor."""
    root = ROOT
    for name, seconds, floor in (("a", 4e-3, 2e-3), ("b", 5e-3, 1e-3)):
        result = {"candidate": "reference", "best_seconds": seconds}
        layer = {"name": "up", "input_shape": [1, 2], "roofline_seconds": floor}
        layer["results"] = [result]
        (tmp_path / name).write_text(json.dumps({"layers": [layer]}))
    command = [sys.executable, str(root / "benchmarks" / "table.py"), "a", "b"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    heading, _, up, mean = done.stdout.splitlines()
    assert heading.startswith("| layer | input | reference | torch |")
    assert heading.endswith("| reference efficiency |")
    assert up == "| up | 1x2 | 4.00 | - | - | - | - | 0.25 |"
    assert mean.endswith("| 1.00 | - | - | - | - | 0.25 |")


# Planted faults -----------------------------------------------------------------------------------


def too_large(out):
    out *= 1.01


def shifted(out):
    out[..., 1:, 1:] = out[..., :-1, :-1].copy()


def not_a_number(out):
    out.flat[3] = float("nan")


def broken(out):
    raise EngineError("the planted engine broke")


@pytest.mark.parametrize(
    ("damage", "shown"),
    [(too_large, "WRONG"), (shifted, "WRONG"), (not_a_number, "WRONG"), (broken, "FAILED")],
)
def test_a_wrong_engine_is_a_finding(plant, damage, shown):
    plant(damage=staticmethod(damage))
    done = called(*SMALL)
    assert done.returncode == 1, done
    assert re.search(rf"(?m)^dcgan_first +planted +-.* {shown}$", done.stdout.decode())
    assert b"planted: " in done.stderr
    assert re.search(rb"(?m)^dcgan_first +reference +[0-9.]+ .*e-0[678]$", done.stdout)


def test_a_wrong_engine_in_json_and_in_doctor(plant):
    plant(damage=staticmethod(too_large))
    done = called(*SMALL, *JSON)
    assert done.returncode == 1
    result = rows(done)["dcgan_first", "planted"]
    assert (result["verified"], result["fault"], result["best_seconds"]) == (False, True, None)
    assert result["error"] == pytest.approx(0.01, rel=1e-2)
    done = called("doctor")
    assert done.returncode == 1
    assert b"FINDING" in done.stdout


EXPLAINED = ["explain", "1,2,3", "2,1,3", "--engine", "planted"]


def test_an_engine_that_refuses_is_left_out_with_its_reason(plant):
    plant(refusal="it is Sunday")
    done = called(*SMALL)
    assert (done.returncode, done.stderr) == (0, b"planted: it is Sunday\n")
    done = called(*EXPLAINED)
    assert done.returncode == 2
    assert b"planted: it is Sunday" in done.stdout


def test_an_engine_that_is_missing(plant):
    plant(missing="steam is not here: pip install 'steam'")
    done = called(*SMALL)
    assert done.returncode == 0
    assert b"planted: steam is not here" in done.stderr
    for args in ([*SMALL, "--engines", "planted"], EXPLAINED):
        done = called(*args)
        assert done.returncode == 2
        assert done.stderr == b"error: steam is not here: pip install 'steam'\n"
    assert b"not available: steam is not here" in called("doctor").stdout


# Layer files --------------------------------------------------------------------------------------

BAD_LAYERS = {
    "no JSON": ("{", "not JSON"),
    "deep": ("[" * 100_000, "not JSON"),
    "a long number": ('{"layers": [' + "9" * 5000 + "]}", "not JSON"),
    "no list": ('{"layers": {}}', "list of layers"),
    "empty": ('{"layers": []}', "list of layers"),
    "no object": ('{"layers": [3]}', "layers[0] is 3"),
    **{
        name: (json.dumps({"layers": [{**LAYER, **change}]}), words)
        for name, change, words in [
            ("a float", {"k": 2.5}, "layers[0] (a): k is 2.5"),
            ("a bool", {"s": True}, "s is True"),
            ("a text", {"ic": "6"}, "ic is '6'"),
            ("zero", {"s": 0}, "s is 0"),
            ("absurd", {"size": [10**12, 7]}, "this process may use"),
            ("too large", {"size": [10**8, 10**4]}, "this process may use"),
            ("too many axes", {"size": [1] * 9}, "'size'"),
            ("wrong rank", {"p": [1, 2, 3]}, "p is (1, 2, 3) (3 of them); expected one"),
            ("groups", {"g": 4}, "groups is 4; expected a divisor"),
            ("no output", {"p": 9}, "layers[0] (a): "),
            ("unknown", {"stride": 2}, "'stride' is unknown"),
            ("no name", {"name": ""}, "'name' is ''"),
        ]
    },
    "missing": (json.dumps({"layers": [{k: v for k, v in LAYER.items() if k != "k"}]}), "'k'"),
    "twice": (json.dumps({"layers": [LAYER, LAYER]}), "'a' is used twice"),
}


@pytest.mark.parametrize("name", BAD_LAYERS)
def test_bad_layer_files_end_in_a_message(tmp_path, monkeypatch, name):
    content, words = BAD_LAYERS[name]
    (tmp_path / "l.json").write_text(content)
    monkeypatch.chdir(tmp_path)
    done = called("bench", "--layers", "l.json", "--peers", "none", "--seconds", 0)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b""), done
    assert said.startswith("error: l.json")
    assert words in said
    assert said.count("\n") == 1


def test_what_a_layer_leaves_out_has_the_usual_values(tmp_path):
    said = LAYER | {"op": 0, "d": 1, "g": 1, "conv": False}
    files = tmp_path / "said.json", tmp_path / "short.json"
    short = {key: said[key] for key in ("name", "n", "ic", "oc", "size", "k", "s", "p")}
    for file, layer in zip(files, (said, short), strict=True):
        file.write_text(json.dumps({"layers": [layer]}))
    assert read(files[0]) == read(files[1])


@pytest.mark.parametrize("name", ["missing.json", "."])
def test_layer_files_that_are_no_files(tmp_path, name):
    done = called("bench", "--layers", tmp_path / name)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: ")


@pytest.mark.parametrize(
    ("names", "words"),
    [("nothing", "'nothing'"), ("", "contains no name"), (" ,", "contains no name")],
)
@pytest.mark.parametrize(
    ("option", "known"),
    [("--only", "unet_up1"), ("--engines", "reference"), ("--peers", "onnxruntime")],
)
def test_names_that_are_not_there_are_wrong_usage(option, known, names, words):
    said = failed(called("bench", "--quick", "--seconds", "0", option, names), 2)
    assert words in said
    assert (known if names == "nothing" else option) in said
