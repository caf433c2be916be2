"""What is asked of the optimiser, checked, and what all of its steps need.

What lives here: settings and the state of one optimisation. What never does: decisions.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from ...arrays import Array
from ...dialects import values
from ...dialects.onnx import Rule
from ...errors import ArgumentError, brief
from ...threads import get_num_threads
from ..models import Source, from_model, to_proto
from ..passes.profiles import limits
from ..runtimes import Reference, Runtime, ready
from ..runtimes.feeds import feeds as drawn
from .memories import Memories
from .proving import Proof, proof
from .results import WholeResult
from .wholes import compared

TARGETS = ("onnxruntime", "openvino", "none")
"""Runtimes that a model can be optimised for; "none" measures nothing and obeys a profile."""

_MOST_SECONDS = 3600.0
_WHOLE = 5.0
"""How much longer than one layer the whole model is measured."""

_LOOK_AGAIN = 3.0
"""How much longer again, where it seems to be faster but might not be."""

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done and how much there is."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How to optimise; see `optimize`. Raises `ArgumentError` for what cannot be."""

    target: str
    profile: str | None
    threads: int
    seed: int
    seconds: float
    float64: bool
    fresh: bool

    def __post_init__(self) -> None:
        if self.target not in TARGETS:
            raise ArgumentError("target", brief(self.target), f"one of {', '.join(TARGETS)}")
        if self.profile is not None:
            limits(self.profile)
        elif self.target == "none":
            raise ArgumentError("profile", "None", "a profile where the target is none")
        values.integer("threads", self.threads, low=1)
        if not (isinstance(self.seconds, int | float) and 0 < self.seconds <= _MOST_SECONDS):
            allowed = f"a number above 0, at most {_MOST_SECONDS:.0f}"
            raise ArgumentError("seconds", brief(self.seconds), allowed)

    @property
    def rule(self) -> Rule:
        """By whose reading nodes are rewritten: the target's."""
        return Rule.SPEC if self.target == "none" else Rule(self.target)

    @property
    def runtime(self) -> Runtime:
        """Where models are run; raises `EngineMissing`."""
        if self.target == "none":
            return Reference(rule=self.rule.value)
        return ready(self.target, "target")


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """One optimisation under way: the model as it came, and inputs for it."""

    name: str
    settings: Settings
    original: ir.Model
    before: onnx.ModelProto
    runtime: Runtime
    feeds: Mapping[str, Array]
    say: Progress

    @classmethod
    def begin(
        cls,
        model: Source,
        settings: Settings,
        sizes: Mapping[str, Sequence[int]] | None,
        inputs: Mapping[str, Any] | None,
        progress: Progress | None,
    ) -> Work:
        """Read the model and draw its inputs."""
        runtime = settings.runtime
        original = from_model(model)
        before = to_proto(original)
        own = {name: np.asarray(value) for name, value in (inputs or {}).items()}
        shapes = {**(sizes or {}), **{name: array.shape for name, array in own.items()}}
        arrays = {**drawn(before, shapes, seed=settings.seed), **own}
        name = os.fspath(model) if isinstance(model, str | os.PathLike) else before.graph.name
        return cls(name, settings, original, before, runtime, arrays, progress or _silent)

    @property
    def memories(self) -> Memories:
        """What was measured before in this runtime."""
        return Memories(self.runtime.name, self.settings.threads, self.settings.fresh)

    def prove(self, model: ir.Model) -> Proof:
        """The comparison of a model with the original."""
        self.say("proving the whole model", 0, 1)
        found = proof(
            self.before,
            to_proto(model),
            self.runtime,
            self.feeds,
            self.settings.rule,
            in_float64=self.settings.float64,
        )
        self.say("proving the whole model", 1, 1)
        return found

    def compare(self, before: onnx.ModelProto, after: ir.Model) -> WholeResult:
        """The times of two models in the runtime; longer where the first look does not decide."""
        self.say("measuring the whole model", 0, 1)
        other, seconds = to_proto(after), _WHOLE * self.settings.seconds
        found = self._timed(before, other, seconds)
        if found.ratio.low <= 1 < found.ratio.median:
            found = self._timed(before, other, _LOOK_AGAIN * seconds)
        self.say("measuring the whole model", 1, 1)
        return found

    def _timed(
        self, before: onnx.ModelProto, after: onnx.ModelProto, seconds: float
    ) -> WholeResult:
        threads = self.settings.threads
        return compared(before, after, self.runtime, self.feeds, threads=threads, seconds=seconds)


def settings(
    target: str,
    profile: str | None,
    threads: int | None,
    seed: int,
    seconds: float,
    float64: bool,
    fresh: bool,
) -> Settings:
    """The settings, `threads` being upconv's own where none are given."""
    count = get_num_threads() if threads is None else threads
    return Settings(target, profile, count, seed, seconds, float64, fresh)


def _silent(what: str, done: int, whole: int) -> None:
    """Nobody wants to know."""
