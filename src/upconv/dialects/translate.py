"""From one framework's configuration to another's: exact, or impossible and what comes nearest.

A translation reads the source into a `Layer`, says that in the target's words, and reads those
words again: it is exact because the axes agree, not because two tables do. No input size is needed
unless the configuration names an absolute output size, since everything else crops alike whatever
the input size: full - I*s = ek - s. Such layers are read at a size that stands for every size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from inspect import Parameter, signature
from typing import Any

from ..errors import ArgumentError, ShapeError, TranslationError, brief
from ..geometry import LIMIT
from . import jax, keras, mxnet, onednn_graph, onnx, torch, values
from .layer import Layer

_SIZE_NAMES = ("input_size", "size")
_ANY_SIZE = LIMIT
"""Read in place of an input size that was not given: so large that no crop exceeds its output."""


class Verdict(Enum):
    """Whether the target can say what the source says."""

    EXACT = "exact"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True, slots=True)
class Translation:
    """What `translate` found.

    `config` holds the target's attributes when the verdict is EXACT. Otherwise `reason` says why
    there are none, `nearest` holds the closest legal attributes (None: there are none either) and
    `difference` what they change. `weight` says in words what to do with the weight array: first
    transpose by `weight_permutation`, then reverse the axes `weight_reversed`; `data` says the same
    for input and output. Empty texts and tuples ask for nothing.

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


def _length(attribute: object) -> int:
    """The axes of a sequence; 0 for what could be of any rank."""
    return len(values.entries(attribute) or ())


@dataclass(frozen=True, slots=True)
class Dialect:
    """One row of the table: how to read a dialect, say a layer in it, and come close to one.

    `per_axis` names the attributes whose sequences have one entry per axis, the kernel first;
    `absolute` the one that names an output size ("": none has), in effect where `is_set` says so of
    its value; `kernel_rank` tells the axes of a kernel.
    """

    read: Callable[..., Layer]
    write: Callable[[Layer], dict[str, Any]]
    nearest: Callable[[Layer], Layer]
    per_axis: tuple[str, ...]
    absolute: str = ""
    is_set: Callable[[object], bool] = lambda value: value is not None
    kernel_rank: Callable[[object], int] = _length


DIALECTS: dict[str, Dialect] = {
    "torch": Dialect(
        torch.from_torch,
        torch.to_torch,
        torch.LIMITS.nearest,
        ("kernel_size", "stride", "padding", "output_padding", "dilation"),
        "output_size",
    ),
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
        is_set=mxnet.has_target,
        kernel_rank=mxnet.kernel_rank,
    ),
    "onednn_graph": Dialect(
        onednn_graph.from_onednn_graph,
        onednn_graph.to_onednn_graph,
        onednn_graph.LIMITS.nearest,
        ("kernel",),
        "dst_shape",
    ),
    "keras": Dialect(
        keras.from_keras,
        keras.to_keras,
        keras.nearest_keras,
        ("kernel_size", "strides", "output_padding", "dilation_rate"),
        "output_shape",
    ),
    "jax": Dialect(jax.from_jax, jax.to_jax, lambda layer: replace(layer, groups=1), ("kernel",)),
}


def translate(config: Mapping[str, Any], source: str, target: str) -> Translation:
    """The configuration of dialect `source` in the words of dialect `target`.

    `config` holds the keywords of `from_<source>`, the kernel among them, and may hold the spatial
    input size as "input_size": it must where an attribute names an absolute output size, and where
    ints leave the number of axes open. Dialects: torch, onnx, mxnet, onednn_graph, keras and jax,
    or as their frameworks write them: PyTorch, ONNX, MXNet, oneDNN Graph, Keras and JAX. The result
    holds for every input size if none was given.

    Raises `ArgumentError` for an unknown dialect or attribute, and whatever `from_<source>` raises.

    >>> same = {"kernel_size": (3,), "strides": 2, "padding": "same"}
    >>> translate(same, "keras", "onnx").config["pads"]
    (0, 1)
    >>> found = translate(same, "keras", "torch")
    >>> found.verdict.value, found.difference
    ('impossible', '1 more position at the end of axis 0; cropped off, the result is exact')
    """
    origin, goal = _dialect("source", source), _dialect("target", target)
    if not isinstance(config, Mapping):
        raise ArgumentError("config", brief(config), "a mapping from attribute names to values")
    attributes = {key: value for key, value in config.items() if key not in _SIZE_NAMES}
    _check_names(attributes, source, origin)
    layer = origin.read(_size(config, attributes, source, origin), **attributes)
    try:
        said = goal.write(layer)
    except TranslationError as error:
        return _impossible(layer, str(error), goal)
    found = _reread(layer, said, goal)
    assert (found.axes, found.groups) == (layer.axes, layer.groups)  # noqa: S101 - our own invariant
    return Translation(Verdict.EXACT, said, **_array_steps(layer, found))


def _impossible(layer: Layer, reason: str, goal: Dialect) -> Translation:
    try:
        closest = goal.nearest(layer)
        said = goal.write(closest)
    except (TranslationError, ShapeError):  # nothing is near, or it would have no output
        return Translation(Verdict.IMPOSSIBLE, reason=reason)
    return Translation(
        Verdict.IMPOSSIBLE,
        reason=reason,
        nearest=said,
        difference=_difference(layer, closest),
        **_array_steps(layer, _reread(layer, said, goal)),
    )


def _reread(layer: Layer, said: dict[str, Any], goal: Dialect) -> Layer:
    return goal.read(tuple(axis.size for axis in layer.axes), **said)


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
    """The input size given, or one that stands for every size."""
    given = [name for name in _SIZE_NAMES if config.get(name) is not None]
    if given:
        if len(given) > 1:
            raise ArgumentError("config", "with both input_size and size", "one of them")
        return config[given[0]]
    if origin.absolute in attributes and origin.is_set(attributes[origin.absolute]):
        raise ArgumentError(
            "input_size",
            "not given",
            f"the spatial input size, because {origin.absolute} is an absolute size",
            "Add 'input_size' to the config: the translation then holds for that size.",
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
    """What `closest` changes, in words."""
    changes = [
        (here - there, f"at the {place} of axis {i}")
        for i, (ours, theirs) in enumerate(zip(layer.crops, closest.crops, strict=True))
        for here, there, place in zip(ours, theirs, ("begin", "end"), strict=True)
        if here != there
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


def _array_steps(layer: Layer, found: Layer) -> dict[str, Any]:
    """The fields of a Translation that say what to do with arrays."""
    rank = len(layer.axes)
    permutation = _then_back(layer.weight_layout.to_iox(rank), found.weight_layout.to_iox(rank))
    start = found.weight_layout.value.index("X")
    flipped = tuple(range(start, start + rank)) if layer.flipped != found.flipped else ()
    moved = permutation if permutation != tuple(range(rank + 2)) else ()
    steps = [f"transpose {moved}"] if moved else []
    steps += [f"reverse axes {flipped}"] if flipped else []
    data = ""
    if layer.layout is not found.layout:
        to_ncx = layer.layout.to_ncx(rank), found.layout.to_ncx(rank)
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
    """The permutation `there`, followed by the inverse of the permutation `back`."""
    return tuple(there[back.index(place)] for place in range(len(there)))
