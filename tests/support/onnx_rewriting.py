"""Rewriting, listing and comparing models, for the tests of upconv.onnx's passes."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from upconv.dialects.onnx import Rule
from upconv.onnx.inputs import feeds
from upconv.onnx.models import from_model, to_proto
from upconv.onnx.nodes import ConvTransposeNode, conv_transpose_nodes
from upconv.onnx.passes import PASSES, Pass, Step
from upconv.onnx.passes.base import run
from upconv.onnx.runtimes import Runtime

_SHOWN = 24  # entries of a constant that a listing shows


def rewritten(
    model: onnx.ModelProto | ir.Model, *passes: str | Pass, rule: Rule | None = None
) -> tuple[onnx.ModelProto, list[Step]]:
    """Return a copy of a model after some passes, checked by onnx's own checker."""
    copy = from_model(model)
    chosen = [PASSES[one] if isinstance(one, str) else one for one in passes]
    steps = run(copy, chosen, rule=rule)
    after = to_proto(copy)
    if all(step.fired for step in steps):  # onnx infers some output_shape wrongly
        onnx.checker.check_model(after, full_check=True)
    return after, steps


def refusal(model: onnx.ModelProto, name: str | Pass, rule: Rule | None = None) -> str:
    """Return why a pass does not fire at a model's only ConvTranspose, and changes nothing."""
    after, [step] = rewritten(model, name, rule=rule)
    assert step.refusal is not None, f"{name} fired"
    assert listing(after) == listing(to_proto(from_model(model)))
    return step.refusal


def only_node(model: onnx.ModelProto) -> ConvTransposeNode:
    """Return a model's only ConvTranspose, even if onnx's checker refuses the model."""
    [conv] = conv_transpose_nodes(ir.from_proto(model))
    assert isinstance(conv, ConvTransposeNode)
    return conv


def refused(model: onnx.ModelProto, name: str) -> str:
    """Return why a pass refuses a model's only ConvTranspose."""
    reason = PASSES[name].refuses(only_node(model))
    assert reason is not None, f"{name} fired"
    return reason


def listing(model: onnx.ModelProto) -> str:
    """List a model's nodes, one per line, with small constants inline and short names."""
    constants = {tensor.name: _shown(tensor) for tensor in model.graph.initializer}
    return "\n".join(_line(node, constants) for node in model.graph.node)


def _line(node: onnx.NodeProto, constants: Mapping[str, str]) -> str:
    inputs = ", ".join(constants.get(name, _short(name)) for name in node.input)
    attributes = ", ".join(
        f"{a.name}={_text(onnx.helper.get_attribute_value(a))}"
        for a in sorted(node.attribute, key=lambda a: a.name)
    )
    outputs = ", ".join(map(_short, node.output))
    return f"{outputs} = {node.op_type}({inputs})" + (f" {attributes}" if attributes else "")


def _short(name: str) -> str:
    return name.rsplit("/")[-1].removesuffix("_output")


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return str(value).replace(" ", "")


def _shown(tensor: onnx.TensorProto) -> str:
    array = numpy_helper.to_array(tensor)
    shape = "x".join(map(str, array.shape))
    if array.size > _SHOWN:
        return f"[{shape}]"
    entries = ",".join(
        "end" if entry > 2**62 else f"{entry:g}" for entry in array.reshape(-1).tolist()
    )
    return f"{{{entries}}}" if array.ndim == 1 else f"[{shape}]{{{entries}}}"


def values(
    model: onnx.ModelProto | ir.Model,
    given: Mapping[str, np.ndarray],
    runtime: str | Runtime = "onnxruntime",
) -> list[np.ndarray]:
    """Return a model's outputs in a runtime."""
    chosen = Runtime.parse(runtime) if isinstance(runtime, str) else runtime
    with chosen.session(model) as session:
        return list(session.run(given).values())


def assert_close(wanted: Sequence[np.ndarray], found: Sequence[np.ndarray], terms: int) -> None:
    """Assert that outputs have equal counts, shapes and dtypes, and values that agree.

    A sum of n products, in any order, errs by about sqrt(n) units of rounding of the sum of their
    magnitudes, which for random numbers is about sqrt(n) times the sum itself.
    """
    assert len(wanted) == len(found)
    for one, other in zip(wanted, found, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        unit = float(np.finfo(one.dtype).eps) if one.dtype != np.float16 else 2.0**-10
        largest = np.abs(one.astype(np.float64)).max(initial=1.0)
        allowed = unit * (4 + 2 * np.sqrt(terms)) * np.sqrt(terms) * largest
        worst = np.abs(one.astype(np.float64) - other.astype(np.float64)).max(initial=0.0)
        assert worst <= allowed, f"off by {worst:.3g}, {allowed:.3g} allowed"


def terms(model: onnx.ModelProto) -> int:
    """Bound the length of a model's sums: the elements of its largest constant per output."""
    arrays = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    return max((a.size // a.shape[1] for a in arrays if a.ndim > 2), default=1)


def assert_same_values(
    before: onnx.ModelProto,
    after: onnx.ModelProto,
    sizes: Mapping[str, Sequence[int]] | None = None,
    runtime: str | Runtime = "onnxruntime",
) -> None:
    """Assert that both models agree on the same random inputs."""
    given = feeds(before, sizes)
    wanted = values(before, given, runtime)
    assert_close(wanted, values(after, given, runtime), terms(before))
