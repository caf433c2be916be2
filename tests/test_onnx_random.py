"""Random ConvTranspose models through every pass: the same values in ONNX Runtime and OpenVINO.

All that the operator can say in ranks 1 to 3, opsets 7 to the newest that ONNX Runtime has; folding
passes get a random neighbour to fold. A model is read as ONNX Runtime reads it, and what a pass
writes must then mean the same to every runtime: in the long run OpenVINO computes the rewritten
model too, and is compared with ONNX Runtime on the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

pytest.importorskip("onnx", reason="the models are ONNX's")
pytest.importorskip("onnx_ir", reason="upconv.onnx needs it")
pytest.importorskip("onnxruntime", reason="values are compared in ONNX Runtime")

import onnx

from onnx_cases import Case, random_case, with_crop, with_norm
from onnx_rewriting import assert_close, rewritten, terms, values
from upconv.dialects.onnx import Rule
from upconv.errors import EngineError, EngineRefusal
from upconv.onnx.passes import PASSES
from upconv.onnx.runtimes import RUNTIMES, Runtime

BY_THEIR_OWN_RULE = ("normalise:spec", "normalise:openvino")
SEEDS = 100
NAMES = [name for name in PASSES if name not in BY_THEIR_OWN_RULE]
LEAST = {"fold_pad": 0.15, "fold_slice": 0.3, "sub_pixel:folded": 0.05}
"""Pass -> the part of random models at which it must fire at least; a tenth for the others."""


@cache
def case(seed: int, neighbour: str = "") -> Case:
    made = random_case(seed)
    if neighbour == "norm":
        return with_norm(made, seed)
    return with_crop(made, seed, neighbour) if neighbour else made


@cache
def original(seed: int, neighbour: str = "") -> np.ndarray | None:
    """What ONNX Runtime makes of a case; None where it takes none of it."""
    one = case(seed, neighbour)
    try:
        [y] = values(one.model, {"x": one.x})
    except (EngineRefusal, EngineError):
        return None
    return y if y.size else None  # of an open size a fold may make a refusal of an empty output


NEIGHBOURS = {"fold_batch_norm": "norm", "fold_pad": "Pad", "fold_slice": "Slice"}


def applied(name: str, seeds: range) -> Iterator[tuple[int, Case, np.ndarray, object]]:
    """(seed, case, y, the rewritten model, None where the pass refuses)."""
    neighbour = NEIGHBOURS.get(name, "")
    for seed in seeds:
        one, y = case(seed, neighbour), original(seed, neighbour)
        if y is not None:
            after, [step] = rewritten(one.model, name, rule=Rule.ONNXRUNTIME)
            yield seed, one, y, after if step.fired else None


@pytest.mark.parametrize("name", NAMES)
def test_random_models_keep_their_values(name: str) -> None:
    met = Counter()
    for seed, one, y, after in applied(name, range(SEEDS)):
        met["all"] += 1
        if after is not None:
            met["fired"] += 1
            try:
                assert_close([y], values(after, {"x": one.x}), terms(one.model))
            except AssertionError as error:
                raise AssertionError(f"{name}, seed {seed}: {one}: {error}") from None
    assert met["all"] >= 0.9 * SEEDS, "ONNX Runtime refuses too many of the random models"
    assert met["fired"] >= LEAST.get(name, 0.1) * met["all"], met


@pytest.mark.parametrize("rule", ["spec", "openvino"])
def test_what_is_written_down_is_what_the_rule_reads(rule: str) -> None:
    """The evaluator reads the original by the rule; ONNX Runtime runs what says it explicitly."""
    fired = 0
    for seed in range(SEEDS):
        one = case(seed)
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


def rewritings(seed: int) -> Iterator[tuple[str, np.ndarray, onnx.ModelProto]]:
    """(pass, y, the rewritten model) for every pass that applies."""
    for name in NAMES:
        for _, _, y, after in applied(name, range(seed, seed + 1)):
            if after is not None:
                yield name, y, after


def compared(seed: int, runtime: str) -> list[str]:
    """What differs, or is refused, in a runtime."""
    one = case(seed)
    names, wanted, models = zip(*rewritings(seed), strict=True)
    found = values(merged(list(models)), {"x": one.x}, runtime)
    wrong = []
    for name, y, z in zip(names, wanted, found, strict=True):
        try:
            assert_close([y], [z], terms(one.model))
        except AssertionError as error:
            wrong.append(f"{name} in {runtime}, seed {seed}: {one}: {error}")
    return wrong


@pytest.mark.long
@pytest.mark.parametrize("first", range(0, MODELS, BLOCK))
def test_three_thousand_models_in_every_runtime(first: int) -> None:
    runtimes = [name for name in ("onnxruntime", "openvino") if RUNTIMES[name].missing() is None]
    wrong = []
    for seed in range(first, first + BLOCK):
        for runtime in runtimes if original(seed) is not None else ():
            try:
                wrong += compared(seed, runtime)
            except (EngineRefusal, EngineError) as error:
                wrong.append(f"seed {seed}: {case(seed)}: {error}")
    case.cache_clear()
    original.cache_clear()
    assert not wrong, "\n".join(wrong)
