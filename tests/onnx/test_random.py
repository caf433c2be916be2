"""Random ConvTranspose models through every pass: the same values in ONNX Runtime and OpenVINO.

All that the operator can say in ranks 1 to 3, opsets 13 to the newest of ONNX Runtime; folding
passes get a random neighbour to fold, the others an activation. A model is read as ONNX Runtime
reads it, and what a pass writes must then mean the same to every runtime: in the long run OpenVINO
computes the rewritten model too, and is compared with ONNX Runtime on the original.
"""

from collections import Counter
from functools import cache

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx
import onnx_ir as ir

from tests.support.onnx_cases import (
    Case,
    in_half,
    in_int8,
    random_case,
    with_activation,
    with_crop,
    with_norm,
)
from tests.support.onnx_rewriting import assert_close, rewritten, terms, values
from tests.support.repeating import only, seeds, single
from upconv.dialects.onnx import Rule
from upconv.errors import EngineError, EngineRefusal
from upconv.onnx.models import from_model
from upconv.onnx.passes import PASSES
from upconv.onnx.runtimes import Runtime

SEEDS = 36
NAMES = [name for name in PASSES if not name.startswith("normalise:")]  # those have rules of theirs
KINDS = ("float32", "float16", "int8")
LEAST = {"fold_pad": 0.15, "fold_slice": 0.3, "sub_pixel:folded": 0.03}
"""Pass -> the part of random models at which it must fire at least; a tenth for the others."""

NEIGHBOURS = {"fold_batch_norm": "norm", "fold_pad": "Pad", "fold_slice": "Slice"}


@cache
def case(seed: int, kind: str, neighbour: str = "") -> Case:
    made = random_case(seed)
    if neighbour in ("Pad", "Slice"):
        made = with_crop(made, seed, neighbour)
    elif neighbour:
        made = (with_norm if neighbour == "norm" else with_activation)(made, seed)
    if kind == "float16":
        return in_half(made)
    return in_int8(made, seed) if kind == "int8" else made


@cache
def loaded(seed: int, kind: str, neighbour: str = "") -> ir.Model:
    """The model of a case, read once for all passes."""
    return from_model(case(seed, kind, neighbour).model)


@cache
def original(seed: int, kind: str, neighbour: str = "") -> np.ndarray | None:
    """What ONNX Runtime makes of a case; None where it takes none of it."""
    one = case(seed, kind, neighbour)
    try:
        [y] = values(loaded(seed, kind, neighbour), {"x": one.x})
    except (EngineRefusal, EngineError):
        return None
    return y if y.size else None  # of an open size a fold may make a refusal of an empty output


def applied(name: str, kind: str, seed: int) -> tuple[np.ndarray, onnx.ModelProto] | None:
    """What a random model gives, and the model by a pass; None where the pass, or ONNX Runtime,
    refuses it."""
    neighbour = NEIGHBOURS.get(name, "activation")
    y = original(seed, kind, neighbour)
    if y is None:
        return None
    after, [step] = rewritten(loaded(seed, kind, neighbour), name, rule=Rule.ONNXRUNTIME)
    return (y, after) if step.fired else None


def agree(kind: str, one: Case, y: np.ndarray, z: np.ndarray, *, bits: bool = True) -> None:
    """bits: int8 bit for bit, as the sums of those models are exact; but for activations."""
    if kind == "int8" and bits:
        np.testing.assert_array_equal(y, z)
    else:
        assert_close([y], [z], terms(one.model))


@pytest.mark.parametrize("rule", ["spec", "openvino"])
def test_what_is_written_down_is_what_the_rule_reads(rule: str) -> None:
    """The evaluator reads the original by the rule; ONNX Runtime runs what says it explicitly."""
    fired = 0
    for seed in seeds(SEEDS):
        one = case(seed, "float32")
        after, [step] = rewritten(one.model, f"normalise:{rule}")
        if step.fired:
            fired += 1
            wanted = values(one.model, {"x": one.x}, Runtime("reference", rule=rule))
            found = values(after, {"x": one.x})
            assert_close(wanted, found, terms(one.model))
    assert fired >= 0.6 * SEEDS or single()


# Every pass ---------------------------------------------------------------------------------------

MODELS, BLOCK = 3000, 100


def merged(models: list[onnx.ModelProto]) -> onnx.ModelProto:
    """One model with the outputs of all, for one x: runtimes take long to compile a model."""
    whole, *others = (
        onnx.compose.add_prefix(model, f"m{i}/", rename_inputs=False)
        for i, model in enumerate(models)
    )
    for other in others:
        whole.graph.node.extend(other.graph.node)
        whole.graph.initializer.extend(other.graph.initializer)
        whole.graph.output.extend(other.graph.output)
    return whole


def differences(seeds: range, kind: str, runtimes: list[str], met: Counter[str]) -> list[str]:
    """What differs, or is refused, of all passes at some models; counts where they fire."""
    wrong = []
    for seed in seeds:
        one, found = case(seed, kind), {name: applied(name, kind, seed) for name in NAMES}
        made = {name: pair for name, pair in found.items() if pair is not None}
        met.update([*made, *["all"] * (original(seed, kind) is not None)])
        groups = [(runtime, [*made]) for runtime in runtimes if made]
        while groups:
            runtime, names = groups.pop()
            try:
                whole = ir.from_proto(merged([made[name][1] for name in names]))
                results = values(whole, {"x": one.x}, runtime)
            except (EngineRefusal, EngineError) as error:
                if runtime == "onnxruntime" or "SIGSEGV" not in str(error):
                    wrong.append(f"{runtime}, seed {seed}: {one}: {error}")
                elif len(names) > 1:  # a fault of the runtime: find the model that it falls over
                    groups += [(runtime, [name]) for name in names]
                else:
                    met["crashed"] += 1
                continue
            for name, z in zip(names, results, strict=True):
                try:
                    agree(kind, one, made[name][0], z, bits=runtime == "onnxruntime")
                except AssertionError as error:
                    wrong.append(f"{name} in {runtime}, seed {seed}: {one}: {error}")
    case.cache_clear()
    loaded.cache_clear()
    original.cache_clear()
    return wrong


@pytest.mark.parametrize("kind", KINDS)
def test_random_models_keep_their_values(kind: str) -> None:
    met = Counter[str]()
    wrong = differences(only(range(SEEDS)), kind, ["onnxruntime"], met)
    assert not wrong, "\n".join(wrong)
    if single():
        return
    assert met["all"] >= 0.9 * SEEDS, "ONNX Runtime refuses too many of the random models"
    for name in NAMES:
        least = 0.0 if name == "fold_batch_norm" and kind == "int8" else LEAST.get(name, 0.1)
        assert met[name] >= least * met["all"], (name, met)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, MODELS, BLOCK))
def test_three_thousand_models_in_every_runtime(first: int, kind: str) -> None:
    names = ("onnxruntime", "openvino:f32")
    runtimes = [name for name in names if Runtime.parse(name).missing() is None]
    met = Counter[str]()
    wrong = differences(only(range(first, first + BLOCK)), kind, runtimes, met)
    assert not wrong, "\n".join(wrong)
    assert met["crashed"] <= 1, "OpenVINO 2026.4 ends with SIGSEGV at one form of seed 185"


@pytest.mark.parametrize("change", [1.01, 0.5])
def test_a_wrong_rewriting_is_seen(change: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: every second weight of what the passes make is off."""

    def wrong(name: str, kind: str, seed: int) -> tuple[np.ndarray, onnx.ModelProto] | None:
        found = right(name, kind, seed)
        for tensor in found[1].graph.initializer if found else ():
            array = onnx.numpy_helper.to_array(tensor).copy()
            if array.ndim > 2:
                array.reshape(-1)[::2] *= np.float32(change)
                tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))
        return found

    right = applied
    monkeypatch.setitem(globals(), "applied", wrong)
    met = Counter[str]()
    assert len(differences(range(3), "float32", ["onnxruntime"], met)) > met.total() / 2
