"""Rewriting by profile: what obeys, what cannot and is named; the command."""

import json

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx

from tests.support.onnx_cases import random_case
from tests.support.onnx_rewriting import assert_close, listing, only_node, terms, values
from tests.support.onnx_texts import parsed
from tests.support.processes import called
from upconv.errors import EngineError, EngineRefusal
from upconv.onnx import rewrite
from upconv.onnx.rewriting import LIMITS, PROFILES

HARD = """g (float[1,2,5] x) => (float[N,2,L] y)
    <float[2,1,2] w = {1,2,3,4}, float[2] b = {5,6}>
    { [deconv] y = ConvTranspose<strides=[2], group=2, dilations=[3], pads=[0,2],
                                 output_padding=[1]>(x, w, b) }"""

LEFT = {
    "tflite": "kernel_shape=[1,4], output_padding=[0,0], pads=[0,0,0,0], strides=[1,2]",
    "coreml": "kernel_shape=[2], output_padding=[0], pads=[0,1], strides=[2]",
    "tensorrt": "kernel_shape=[1,2], output_padding=[0,0], pads=[0,0,0,1], strides=[1,2]",
    "webnn": "kernel_shape=[1,4], output_padding=[0,0], pads=[0,0,0,1], strides=[1,2]",
}
"""Profile -> the ConvTranspose that is left of `HARD`."""


@pytest.mark.parametrize("profile", LEFT)
def test_a_model_beyond_every_limit_comes_out_within_them(profile: str) -> None:
    before = parsed(HARD)
    found = rewrite(before, profile=profile)
    assert found.left == ()
    assert LEFT[profile] in listing(found.proto())
    x = {"x": np.random.default_rng(0).standard_normal((1, 2, 5)).astype(np.float32)}
    assert_close(values(before, x), values(found.proto(), x), terms(before))


@pytest.mark.parametrize("name", LIMITS)
def test_every_limit_is_needed_by_some_profile_and_sees_what_is_beyond_it(name: str) -> None:
    assert any(name in limits for limits in PROFILES.values())
    said, shape = BEYOND.get(name, ("strides=[2]", "1,1,5"))
    rank = shape.count(",") - 1
    w = "float[1,1" + ",3" * rank + "] w" if name == "constant" else ""
    body = (
        f"g (float[{shape}] x{', ' if w else ''}{w}) => (y) {{ y = ConvTranspose<{said}>(x, w) }}"
    )
    arrays = {} if w else {"w": np.ones((2 if "group" in said else 1, 1, *[3] * rank), np.float32)}
    assert LIMITS[name].broken_by(only_node(parsed(body, **arrays)))
    for pads in ("", ", pads=[0,0,1,1]"):  # VALID and SAME
        plain = parsed(
            f"g (float[1,1,5,5] x) => (y) {{ y = ConvTranspose<strides=[2,2]{pads}>(x, w) }}",
            w=np.ones((1, 1, 3, 3), np.float32),
        )
        assert not LIMITS[name].broken_by(only_node(plain))


BEYOND = {
    "no auto_pad": ('auto_pad="SAME_UPPER"', "1,1,5"),
    "2-D at most": ("strides=[1,1,1]", "1,1,5,5,5"),
    "3-D at most": ("strides=[1,1,1,1]", "1,1,5,5,5,5"),
    "no groups": ("group=2", "1,2,5"),
    "no dilation": ("dilations=[2]", "1,1,5"),
    "no output padding": ("strides=[2], output_padding=[1]", "1,1,5"),
    "VALID or SAME": ("strides=[2], pads=[1,0]", "1,1,5"),
}
"""Limit -> attributes and an input beyond it."""


@pytest.mark.parametrize("seed", range(12))
def test_random_models_obey_every_profile(seed: int) -> None:
    case = random_case(seed)
    try:
        wanted = values(case.model, {"x": case.x})
    except (EngineError, EngineRefusal):
        pytest.skip("ONNX Runtime refuses this model")
    for profile in PROFILES:
        found = rewrite(case.model, profile=profile, rule="onnxruntime")
        beyond = case.x.ndim == 5 and "2-D at most" in PROFILES[profile]
        assert bool(found.left) == beyond, (case, found.left)
        assert_close(wanted, values(found.proto(), {"x": case.x}), terms(case.model))


def test_what_cannot_obey_is_named_with_the_reason() -> None:
    model = parsed(
        """g (float[1,2,5] x, float[2,1,3] w) => (float[1,1,7] y)
        { [up] y = ConvTranspose<dilations=[2]>(x, w) }"""
    )
    found = rewrite(model, profile="webnn")
    one, two, three = found.left
    assert one.startswith("up: it has one spatial axis: its weight is not constant")
    assert two.startswith("up: it has dilation: its weight is not constant")
    assert three == "up: its weight or bias is computed"


# The command --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(parsed(HARD), tmp_path / "in.onnx")
    return tmp_path


def test_the_command_writes_what_the_passes_make(folder) -> None:
    done = called("rewrite", "in.onnx", "out.onnx", "--passes", "normalise,sub_pixel")
    assert done.returncode == 0, done
    assert [line.split() for line in done.stdout.decode().splitlines()] == [
        ["node", "pass", "result"], ["deconv", "normalise", "done"], ["deconv", "sub_pixel", "done"]
    ]  # fmt: skip
    kinds = [node.op_type for node in onnx.load("out.onnx").graph.node]
    assert "ConvTranspose" not in kinds
    done = called("rewrite", "in.onnx", "in.onnx", "--dry-run")
    assert (done.returncode, b"nothing written" in done.stderr) == (0, True)
    assert called("rewrite", "in.onnx", "out.onnx").returncode == 2
    assert called("rewrite", "in.onnx", "out.onnx", "--force").returncode == 0


@pytest.mark.parametrize("how", [(), ("--passes", "fold_pad"), ("--profile", "tflite")])
def test_the_command_says_that_there_is_nothing_to_rewrite(folder, how) -> None:
    onnx.save(parsed("g (float[1,1,5,5] x) => (y) { y = Relu(x) }"), folder / "plain.onnx")
    done = called("rewrite", "plain.onnx", "out.onnx", *how)
    said = "nothing to rewrite: the model stays as it is\nwrote out.onnx\n"
    assert (done.returncode, done.stderr.decode()) == (0, said)
    assert [node.op_type for node in onnx.load("out.onnx").graph.node] == ["Relu"]
    applied = called("rewrite", "in.onnx", "out.onnx", "--force")
    assert b"nothing to rewrite" not in applied.stderr


def test_the_command_obeys_a_profile_or_names_what_does_not(folder) -> None:
    done = called(
        "rewrite", "in.onnx", "out.onnx", "--profile", "tflite", "--output-format", "json"
    )
    assert done.returncode == 0, done
    told = json.loads(done.stdout)
    assert told["written"] == "out.onnx"
    assert told["left"] == []
    assert {"node": "deconv", "pass": "to_rank", "refusal": None} in told["steps"]
    three = parsed(
        "g (float[1,1,5,5,5] x) => (y) { [up] y = ConvTranspose(x, w) }",
        w=np.ones((1, 1, 3, 3, 3), np.float32),
    )
    onnx.save(three, folder / "three.onnx")
    done = called("rewrite", "three.onnx", "three_out.onnx", "--profile", "tflite")
    assert done.returncode == 1, done
    assert b"breaks the profile: up: it has more than two spatial axes" in done.stdout
    assert not (folder / "three_out.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--passes", "sub_pixel", "--profile", "webnn"), "both were given"),
        (("--passes", "subpixel"), "expected one of replace_deconv"),
        (("--profile", "tf"), "expected one of tflite"),
    ],
)
def test_wrong_usage_is_told(folder, arguments, words) -> None:
    done = called("rewrite", "in.onnx", "out.onnx", *arguments)
    assert done.returncode == 2, done
    assert words in " ".join(done.stderr.decode().split())
    assert not (folder / "out.onnx").exists()
