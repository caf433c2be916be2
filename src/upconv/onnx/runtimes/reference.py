"""ONNX's reference evaluator with some operators of upconv's own (`backend`): slow, and right.

With the precision f64 the whole model is computed in float64, whatever it says (`float64`): what
another runtime makes of it is held against that. All values of a run are in memory together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator
from onnx_ir.passes.common import InlinePass

from ...errors import EngineRefusal
from ..backend import called, evaluator_operators
from .float64 import is_narrow, to_float64
from .timing import Call, Feeds

if TYPE_CHECKING:
    from .runtime import Runtime


class Reference:
    """A model in the evaluator; see `host.Backend`."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        proto = onnx.load(model) if isinstance(model, str) else onnx.load_from_string(model)
        whole = ir.from_proto(proto)
        if whole.functions:  # `new_ops` does not go into functions
            InlinePass()(whole)
        self._wide = runtime.precision == "f64"
        if self._wide:
            to_float64(whole)
        operators = evaluator_operators(runtime.rule, whole.opset_imports.get("", 1))
        self._evaluator = ReferenceEvaluator(ir.to_proto(whole), new_ops=operators)
        self._names = list(outputs)

    def run(self, feeds: Feeds) -> list[Any]:
        """The outputs, copied: an Identity hands on the caller's own array, or a weight."""
        given = {name: _widened(array) for name, array in feeds.items()} if self._wide else feeds
        with np.errstate(all="ignore"):  # infinities are the model's affair, here as elsewhere
            found = self._evaluator.run(None, given, intermediate=True)
        if self._wide:
            self._require_float64(found)
        return [np.copy(v) if isinstance(v := found[n], np.ndarray) else v for n in self._names]

    def bind(self, feeds: Feeds) -> Call:
        """See `host.Backend`."""
        self.run(feeds)
        return lambda: self.run(feeds)

    def _require_float64(self, found: dict[str, Any]) -> None:
        for node in self._evaluator.rt_nodes_:
            for name in node.output:
                value = found.get(name)
                if isinstance(value, np.ndarray) and is_narrow(value.dtype):
                    raise EngineRefusal(
                        f"The model cannot be run in float64: the {called(node.onnx_node)} makes"
                        f" {value.dtype} whatever goes in."
                    )


def _widened(array: Any) -> Any:
    return array.astype(np.float64) if is_narrow(array.dtype) else array
