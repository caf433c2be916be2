"""Random ConvTranspose models through every pass: the same values in ONNX Runtime and OpenVINO.

All that the operator can say in ranks 1 to 3, opsets 13 to the newest of ONNX Runtime; folding
passes get a random neighbour to fold, the others an activation. A model is read as ONNX Runtime
reads it, and what a pass writes must then mean the same to every runtime: in the long run OpenVINO
computes the rewritten model too, and is compared with ONNX Runtime on the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx

from onnx_cases import Case, in_half, in_int8, random_case, with_activation, with_crop, with_norm
from onnx_rewriting import assert_close, rewritten, terms, values
from upconv.dialects.onnx import Rule
from upconv.errors import EngineError, EngineRefusal
from upconv.onnx.passes import PASSES
from upconv.onnx.runtimes import Runtime

BY_THEIR_OWN_RULE = ("normalise:spec", "normalise:openvino")
SEEDS = 50
NAMES = [name for name in PASSES if name not in BY_THEIR_OWN_RULE]
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
def original(seed: int, kind: str, neighbour: str = "") -> np.ndarray | None:
    """What ONNX Runtime makes of a case; None where it takes none of it."""
    one = case(seed, kind, neighbour)
    try:
        [y] = values(one.model, {"x": one.x})
    except (EngineRefusal, EngineError):
        return None
    return y if y.size else None  # of an open size a fold may make a refusal of an empty output


def applied(name: str, kind: str, seeds: range) -> Iterator[tuple[int, Case, np.ndarray, object]]:
    """(seed, case, y, the rewritten model, None where the pass refuses)."""
    neighbour = NEIGHBOURS.get(name, "activation")
    for seed in seeds:
        one, y = case(seed, kind, neighbour), original(seed, kind, neighbour)
        if y is not None:
            after, [step] = rewritten(one.model, name, rule=Rule.ONNXRUNTIME)
            yield seed, one, y, after if step.fired else None


def agree(kind: str, one: Case, y: np.ndarray, z: np.ndarray, *, bits: bool = True) -> None:
    """bits: int8 bit for bit, as the sums of those models are exact; but for activations."""
    if kind == "int8" and bits:
        np.testing.assert_array_equal(y, z)
    else:
        assert_close([y], [z], terms(one.model))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_random_models_keep_their_values(name: str, kind: str) -> None:
    met = Counter()
    for seed, one, y, after in applied(name, kind, range(SEEDS)):
        met["all"] += 1
        if after is not None:
            met["fired"] += 1
            try:
                [z] = values(after, {"x": one.x})
                agree(kind, one, y, z)
            except (AssertionError, EngineError, EngineRefusal) as error:
                raise AssertionError(f"{name}, seed {seed}: {one}: {error}") from None
    assert met["all"] >= 0.9 * SEEDS, "ONNX Runtime refuses too many of the random models"
    least = 0.0 if name == "fold_batch_norm" and kind == "int8" else LEAST.get(name, 0.1)
    assert met["fired"] >= least * met["all"], met


@pytest.mark.parametrize("rule", ["spec", "openvino"])
def test_what_is_written_down_is_what_the_rule_reads(rule: str) -> None:
    """The evaluator reads the original by the rule; ONNX Runtime runs what says it explicitly."""
    fired = 0
    for seed in range(SEEDS):
        one = case(seed, "float32")
        after, [step] = rewritten(one.model, f"normalise:{rule}")
        if step.fired:
            fired += 1
            wanted = values(one.model, {"x": one.x}, Runtime("reference", rule=rule))
            found = values(after, {"x": one.x})
            assert_close(wanted, found, terms(one.model))
    assert fired >= 0.6 * SEEDS


# Minutes ------------------------------------------------------------------------------------------

MODELS, BLOCK = 3000, 100


def merged(models: list[onnx.ModelProto]) -> onnx.ModelProto:
    """One model with the outputs of all, for one x: OpenVINO takes long to compile a model."""
    whole, *others = (
        onnx.compose.add_prefix(model, f"m{i}/", rename_inputs=False)
        for i, model in enumerate(models)
    )
    for other in others:
        whole.graph.node.extend(other.graph.node)
        whole.graph.initializer.extend(other.graph.initializer)
        whole.graph.output.extend(other.graph.output)
    return whole


def rewritings(seed: int, kind: str) -> Iterator[tuple[str, np.ndarray, onnx.ModelProto]]:
    """(pass, y, the rewritten model) for every pass that applies."""
    for name in NAMES:
        for _, _, y, after in applied(name, kind, range(seed, seed + 1)):
            if after is not None:
                yield name, y, after


def compared(seed: int, kind: str, runtime: str) -> list[str]:
    """What differs, or is refused, in a runtime."""
    one = case(seed, kind)
    made = list(rewritings(seed, kind))
    if not made:  # ONNX Runtime lacks the activation in float16, say
        return []
    names, wanted, models = zip(*made, strict=True)
    found = values(merged(list(models)), {"x": one.x}, runtime)
    wrong = []
    for name, y, z in zip(names, wanted, found, strict=True):
        try:
            agree(kind, one, y, z, bits=runtime == "onnxruntime")
        except AssertionError as error:
            wrong.append(f"{name} in {runtime}, seed {seed}: {one}: {error}")
    return wrong


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("first", range(0, MODELS, BLOCK))
def test_three_thousand_models_in_every_runtime(first: int, kind: str) -> None:
    names = ("onnxruntime", "openvino:f32")
    runtimes = [name for name in names if Runtime.parse(name).missing() is None]
    wrong = []
    for seed in range(first, first + BLOCK):
        for runtime in runtimes if original(seed, kind) is not None else ():
            try:
                wrong += compared(seed, kind, runtime)
            except (EngineRefusal, EngineError) as error:
                wrong.append(f"seed {seed}: {case(seed, kind)}: {error}")
    case.cache_clear()
    original.cache_clear()
    assert not wrong, "\n".join(wrong)
