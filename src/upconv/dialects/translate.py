"""Translation of one framework's configuration to another's: exact, or else the nearest one.

A translation reads the source into a `Layer`, writes it in the target's attributes, and reads these
again. It is exact because the axes agree. Only an absolute output size needs the input size. Other
attributes give the same crops at every input size, since full - I*s = ek - s; such layers are read
at one size that represents all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from inspect import Parameter, signature
from typing import Any

from ..errors import ArgumentError, ShapeError, TranslationError, brief
from ..geometry import LIMIT
from . import arguments, jax, keras, mxnet, onednn_graph, onnx, torch
from .layer import Layer
from .mxnet_attributes import KINDS

_SIZE_NAMES = ("input_size", "size")
_ANY_SIZE = LIMIT
"""The input size for a configuration without one, so large that no crop exceeds the output."""


class Verdict(Enum):
    """Whether the target has attributes for the layer."""

    EXACT = "exact"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Translation:
    """The result of `translate`.

    config: the target's attributes when the verdict is EXACT. Otherwise `reason` says why there are
    none, `nearest` holds the closest valid attributes (or None), and `difference` their effect.
    weight: the steps for the weight array in words: first transpose by `weight_permutation`, then
    reverse the axes `weight_reversed`. data: the steps for input and output. Empty means no step.

    >>> translate({"kernel_size": (3,), "stride": 2}, "torch", "onnx").config["strides"]
    (2,)
    """

    verdict: Verdict
    config: dict[str, Any] | None = None
    reason: str = ""
    nearest: dict[str, Any] | None = None
    difference: str = ""
    weight: str = ""
    weight_permutation: tuple[int, ...] = ()
    weight_reversed: tuple[int, ...] = ()
    data: str = ""

    def __str__(self) -> str:
        steps = [step for step in (self.weight, self.data) if step]
        if self.verdict is Verdict.EXACT:
            return "; ".join([f"exact: {self.config}", *steps])
        if self.nearest is None:
            return f"impossible: {self.reason}"
        return "; ".join(
            [f"impossible: {self.reason} Nearest: {self.nearest}", self.difference, *steps]
        )


@dataclass(frozen=True, slots=True)
class Dialect:
    """One dialect: functions that read attributes, write them, and return the nearest layer.

    per_axis: the attributes whose sequences have one entry per axis, the kernel first. absolute:
    the attribute with an output size ("": none), which counts if `is_set(value)` is true.
    kernel_rank: returns a kernel's number of axes, 0 if it fits any number.
    """

    read: Callable[..., Layer]
    write: Callable[[Layer], dict[str, Any]]
    nearest: Callable[[Layer], Layer]
    per_axis: tuple[str, ...]
    absolute: str = ""
    is_set: Callable[[object], bool] = lambda value: value is not None
    kernel_rank: Callable[[object], int] = lambda kernel: len(arguments.entries(kernel) or ())


_TORCH = ("kernel_size", "stride", "padding", "output_padding", "dilation")
_KERAS = ("kernel_size", "strides", "output_padding", "dilation_rate")
DIALECTS: dict[str, Dialect] = {
    "torch": Dialect(torch.from_torch, torch.to_torch, torch.LIMITS.nearest, _TORCH, "output_size"),
    "onnx": Dialect(
        onnx.from_onnx,
        onnx.to_onnx,
        onnx.LIMITS[onnx.Rule.SPEC].nearest,
        ("kernel_shape",),
        "output_shape",
    ),
    "mxnet": Dialect(
        mxnet.from_mxnet,
        mxnet.to_mxnet,
        mxnet.LIMITS.nearest,
        ("kernel",),
        "target_shape",
        is_set=lambda shape: any(KINDS["shape"]("target_shape", shape)),
        kernel_rank=lambda kernel: len(KINDS["shape"]("kernel", kernel)),
    ),
    "onednn_graph": Dialect(
        onednn_graph.from_onednn_graph,
        onednn_graph.to_onednn_graph,
        onednn_graph.LIMITS.nearest,
        ("kernel",),
        "dst_shape",
    ),
    "keras": Dialect(keras.from_keras, keras.to_keras, keras.nearest_keras, _KERAS, "output_shape"),
    "jax": Dialect(jax.from_jax, jax.to_jax, lambda layer: replace(layer, groups=1), ("kernel",)),
}


def translate(config: Mapping[str, Any], source: str, target: str) -> Translation:
    """Translate a configuration of dialect `source` to dialect `target`.

    config: the keywords of `from_<source>`, including the kernel, and optionally the spatial input
        size as "input_size". This is required with an absolute output size, and if ints leave the
        number of axes open. Without it, the result is valid for every input size.
    source, target: torch, onnx, mxnet, onednn_graph, keras, jax; or PyTorch, ONNX, MXNet,
        oneDNN Graph, Keras, JAX.

    Raises `ArgumentError` for an unknown dialect or attribute, and the errors of `from_<source>`.

    >>> same = {"kernel_size": (3,), "strides": 2, "padding": "same"}
    >>> translate(same, "keras", "onnx").config["pads"]
    (0, 1)
    >>> result = translate(same, "keras", "torch")
    >>> result.verdict.value, result.difference
    ('impossible', '1 more position at the end of axis 0; cropped off, the result is exact')
    """
    origin, goal = _dialect("source", source), _dialect("target", target)
    if not isinstance(config, Mapping):
        raise ArgumentError("config", brief(config), "a mapping from attribute names to values")
    attributes = {key: value for key, value in config.items() if key not in _SIZE_NAMES}
    _check_names(attributes, source, origin)
    layer = origin.read(_size(config, attributes, source, origin), **attributes)
    try:
        written = goal.write(layer)
    except TranslationError as error:
        return _impossible(layer, str(error), goal)
    result = _reread(layer, written, goal)
    assert (result.axes, result.groups) == (layer.axes, layer.groups)  # noqa: S101 - our invariant
    return Translation(Verdict.EXACT, written, **_array_steps(layer, result))


def _impossible(layer: Layer, reason: str, goal: Dialect) -> Translation:
    try:
        closest = goal.nearest(layer)
        written = goal.write(closest)
    except (TranslationError, ShapeError):  # there is no nearest layer, or it has no output
        return Translation(Verdict.IMPOSSIBLE, reason=reason)
    return Translation(
        Verdict.IMPOSSIBLE,
        reason=reason,
        nearest=written,
        difference=_difference(layer, closest),
        **_array_steps(layer, _reread(layer, written, goal)),
    )


def _reread(layer: Layer, written: dict[str, Any], goal: Dialect) -> Layer:
    return goal.read(tuple(axis.size for axis in layer.axes), **written)


def _dialect(argument: str, name: object) -> Dialect:
    word = name.lower().replace(" ", "_") if isinstance(name, str) else ""
    dialect = DIALECTS.get("torch" if word == "pytorch" else word)
    if dialect is None:
        raise ArgumentError(argument, brief(name), "one of " + ", ".join(map(repr, DIALECTS)))
    return dialect


def _check_names(attributes: Mapping[str, Any], source: str, origin: Dialect) -> None:
    parameters = {
        name: parameter
        for name, parameter in signature(origin.read).parameters.items()
        if name != "size" and parameter.kind is not Parameter.VAR_KEYWORD
    }
    for name in attributes:
        if name not in parameters:
            allowed = ", ".join([*parameters, "input_size"])
            raise ArgumentError(f"a key of the {source} config", brief(name), f"one of {allowed}")
    for name, parameter in parameters.items():
        if parameter.default is Parameter.empty and name not in attributes:
            raise ArgumentError(
                f"the {source} config", f"without {name!r}", f"one that has {name!r}"
            )


def _size(
    config: Mapping[str, Any], attributes: Mapping[str, Any], source: str, origin: Dialect
) -> object:
    """Return a configuration's input size, or a size that represents all."""
    names = [name for name in _SIZE_NAMES if config.get(name) is not None]
    if names:
        if len(names) > 1:
            raise ArgumentError("config", "with both input_size and size", "one of them")
        return config[names[0]]
    if origin.absolute in attributes and origin.is_set(attributes[origin.absolute]):
        raise ArgumentError(
            "input_size",
            "not given",
            f"the spatial input size, because {origin.absolute} is an absolute size",
            "Add 'input_size' to the config; the translation then holds for that size.",
        )
    kernel, *_ = origin.per_axis
    rank = max(origin.kernel_rank(attributes.get(name)) for name in origin.per_axis)
    if not rank:
        raise ArgumentError(
            f"{kernel} of the {source} config",
            brief(attributes[kernel]),
            "a tuple with one entry per spatial axis",
            "An int fits any number of axes: give a tuple, or add 'input_size'.",
        )
    return (_ANY_SIZE,) * rank


def _difference(layer: Layer, closest: Layer) -> str:
    """Describe in words how `closest` differs from the layer."""
    changes = [
        (crop - other, f"at the {side} of axis {i}")
        for i, (crops, others) in enumerate(zip(layer.crops, closest.crops, strict=True))
        for crop, other, side in zip(crops, others, ("start", "end"), strict=True)
        if crop != other
    ]
    words = ", ".join(
        f"{abs(n)} {'more' if n > 0 else 'fewer'} position{'s' * (abs(n) > 1)} {where}"
        for n, where in changes
    )
    if changes and all(more > 0 for more, _ in changes):
        words += "; cropped off, the result is exact"
    if layer.groups != closest.groups:
        words += "; " if words else ""
        words += (
            f"{layer.groups} groups become 1: write the weight as one block-diagonal weight, zeros"
            " between the groups"
        )
    return words


def _array_steps(layer: Layer, result: Layer) -> dict[str, Any]:
    """Return the fields of a `Translation` that hold the steps for arrays."""
    rank = len(layer.axes)
    permutation = _then_back(layer.weight_layout.to_iox(rank), result.weight_layout.to_iox(rank))
    start = result.weight_layout.value.index("X")
    flipped = tuple(range(start, start + rank)) if layer.flipped != result.flipped else ()
    moved = permutation if permutation != tuple(range(rank + 2)) else ()
    steps = [f"transpose {moved}"] if moved else []
    steps += [f"reverse axes {flipped}"] if flipped else []
    data = ""
    if layer.layout is not result.layout:
        to_ncx = layer.layout.to_ncx(rank), result.layout.to_ncx(rank)
        data = (
            f"transpose the input {_then_back(*to_ncx)} and the output {_then_back(*to_ncx[::-1])}"
        )
    return {
        "weight": ", then ".join(steps),
        "weight_permutation": moved,
        "weight_reversed": flipped,
        "data": data,
    }


def _then_back(there: tuple[int, ...], back: tuple[int, ...]) -> tuple[int, ...]:
    """Return the permutation `there`, followed by the inverse of the permutation `back`."""
    return tuple(there[back.index(axis)] for axis in range(len(there)))
