"""A session's arguments and return values, as in ONNX Runtime's `InferenceSession`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ...errors import ArgumentError, DTypeError, brief

PROVIDER = "CPUExecutionProvider"
_REMOTE = "AzureExecutionProvider"  # in all wheels; it runs only its own operators
_FREE = (
    *("intra_op_num_threads", "inter_op_num_threads", "logid", "log_severity_level"),
    *("log_verbosity_level", "only_execute_path_to_fetches", "use_deterministic_compute"),
)
_INSTEAD = "Use onnxruntime.InferenceSession, or keep the default."


@dataclass(frozen=True, slots=True)
class NodeArg:
    """An input or output as ONNX Runtime describes it.

    type: such as "tensor(float)". shape: for each axis, a size, a dynamic size's name, or None.
    """

    name: str
    type: str
    shape: list[Any]

    @classmethod
    def of(cls, value: ir.Value) -> NodeArg:
        """Describe a value."""
        kind = (value.dtype or ir.DataType.UNDEFINED).name.lower()
        shape = [n if isinstance(n, int) else n.value for n in value.shape or ()]
        return cls(str(value.name), f"tensor({kind})", shape)


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """The metadata in a model's file, under ONNX Runtime's names."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    version: int
    custom_metadata_map: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: ir.Model) -> ModelMetadata:
        """Return the metadata of a model."""
        return cls(
            model.producer_name or "",
            model.graph.name or "",
            model.domain or "",
            model.doc_string or "",
            model.model_version or 0,
            dict(model.metadata_props),
        )


def require_defaults(argument: str, options: Any, name: str) -> None:
    """Refuse options of this ONNX Runtime class that a session does not support."""
    if options is None:
        return
    import onnxruntime

    kind = getattr(onnxruntime, name)
    if not isinstance(options, kind):
        raise DTypeError(argument, brief(options), f"onnxruntime.{name}, or None")
    plain = kind()
    for option in dir(plain):
        default = getattr(plain, option)
        if option.startswith("_") or callable(default) or option in _FREE:
            continue
        value = getattr(options, option)
        if value != default:
            expected = f"{default!r}: a Session supports nothing else"
            raise ArgumentError(f"{argument}.{option}", brief(value), expected, _INSTEAD)


def require_processor(providers: Any, options: Any) -> None:
    """Refuse installed execution providers other than the processor's."""
    import onnxruntime

    listed = [PROVIDER] if providers is None else providers
    if not isinstance(listed, Sequence) or isinstance(listed, str):
        expected = "a list of names, or of (name, options)"
        raise DTypeError("providers", brief(providers), expected)
    names = []
    for entry in (*listed, *((PROVIDER, settings) for settings in options or ())):
        name, more = entry if isinstance(entry, tuple) and len(entry) == 2 else (entry, {})
        names.append(name)
        if name == PROVIDER and (not isinstance(more, Mapping) or more):
            raise ArgumentError("providers", brief(entry), f"{PROVIDER} without options")
    others = set(map(str, names)) & set(onnxruntime.get_available_providers()) - {PROVIDER, _REMOTE}
    if PROVIDER not in names or others:
        expected = f"[{PROVIDER!r}]: upconv computes on the processor"
        remedy = "Use onnxruntime.InferenceSession for other devices."
        raise ArgumentError("providers", brief(providers), expected, remedy)
