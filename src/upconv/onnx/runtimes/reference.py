"""ONNX's reference evaluator with some operators of upconv's own (`operators`): slow, and right.

    rule          whose reading of ConvTranspose: "spec", "onnxruntime" or "openvino"
    in_float64    the whole model in float64, whatever it says (`doubled`)

All values of a run are in memory together. NumPy and upconv count threads by themselves, so
`threads` changes nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from ...arrays import Array
from ...errors import EngineRefusal
from ..bodies import called
from ..checker import NEWEST_OPSET
from .base import REFUSED, Session, lacking, reported
from .dense import dense
from .doubled import doubled, wide
from .operators import evaluator_operators
from .protos import MOST_BYTES, require_whole, weight_bytes
from .values import Interface

_NAME = "reference"


@dataclass(frozen=True, slots=True)
class Reference:
    """The runtime "reference"."""

    rule: str = "spec"
    in_float64: bool = False
    name: str = _NAME

    def missing(self) -> str | None:
        """None where onnx's evaluator can be imported; else why not, and the command."""
        return lacking("onnx.reference", "pip install 'upconv[onnx]'")

    def session(self, model: onnx.ModelProto, *, threads: int) -> Session:
        """The model in the evaluator; `EngineRefusal` also for what float64 cannot stand in for."""
        from onnx.reference import ReferenceEvaluator

        require_whole(model)
        interface = Interface.of(model)
        with reported(_NAME, *REFUSED):
            whole = dense(_inlined(model))
            if self.in_float64:
                whole = doubled(whole)
            operators = evaluator_operators(self.rule, _opset(whole))
            evaluator = ReferenceEvaluator(whole, new_ops=operators)
        return _ReferenceSession(interface, evaluator, self.in_float64)


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its functions put in their callers' place: to them `new_ops` does not go."""
    if not model.functions:
        return model
    from onnx.inliner import inline_local_functions

    if weight_bytes(model) > MOST_BYTES:
        raise EngineRefusal("The reference evaluator takes no model with functions near 2 GiB.")
    inlined: onnx.ModelProto = inline_local_functions(model)
    return inlined


def _opset(model: onnx.ModelProto) -> int:
    found = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
    return int(found[0]) if found else NEWEST_OPSET


def _own(value: Any) -> Any:
    return value.copy() if isinstance(value, np.ndarray) else value


class _ReferenceSession(Session):
    def __init__(self, interface: Interface, evaluator: Any, in_float64: bool) -> None:
        super().__init__(_NAME, interface)
        self._evaluator, self._in_float64 = evaluator, in_float64

    def _run(self, feeds: dict[str, Array]) -> dict[str, Any]:
        given = {name: wide(array) for name, array in feeds.items()} if self._in_float64 else feeds
        with np.errstate(all="ignore"):  # infinities are the model's affair, here as elsewhere
            found = self._evaluator.run(None, given, intermediate=True)
        if self._in_float64:
            self._require_float64(found)
        # Copied: an Identity hands on the caller's own array, or a weight.
        return {value.name: _own(found[value.name]) for value in self.outputs}

    def _require_float64(self, found: Mapping[str, Any]) -> None:
        for node in self._evaluator.rt_nodes_:
            for name in node.output:
                value = found.get(name)
                if isinstance(value, np.ndarray) and value is not wide(value):
                    raise EngineRefusal(
                        f"The model cannot be run in float64: the {called(node.onnx_node)} makes"
                        f" {value.dtype} whatever goes in."
                    )

    def _bind(self, feeds: dict[str, Array]) -> Callable[[], None]:
        def again() -> None:
            self._run(feeds)

        again()
        return again

    def _release(self) -> None:
        self._evaluator = None
