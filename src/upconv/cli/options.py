"""Options: those that several commands share, each declared once, and how values are written.

The parsers turn text into what the library takes and know nothing of its meaning: whether a stride
of 0 makes sense is for the library to say. Text that cannot be read is a usage error.

A command's parameter is the option of its own that `declaring` is given by that name, or the one
that is shared. A command that takes the geometry of a transposed convolution ends in `**geometry`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from typer import Argument, BadParameter, Option

from ..problem import WeightLayout
from ..threads import get_num_threads, set_num_threads

Command = Callable[..., None]
Ends = int | tuple[int, int]


class Shape(tuple[int, ...]):
    """A tuple with a name, for `--help` to show."""


def shape(text: str) -> Shape:
    """A shape, as 1,64,32,32 or 1x64x32x32."""
    return Shape(_integer(part, text) for part in re.split(r"[,x]", text.strip()))


def sizes(text: str) -> int | tuple[int, ...]:
    """One integer for all axes, or one per axis."""
    values = shape(text)
    return values[0] if len(values) == 1 else tuple(values)


def padding(text: str) -> int | str | tuple[Ends, ...]:
    """One integer, one per axis, a begin:end pair per axis, or the name of a rule.

    >>> padding("1"), padding("1,2"), padding("0:1,-2:3"), padding("same_upper")
    (1, (1, 2), ((0, 1), (-2, 3)), 'same_upper')
    """
    if text[:1].isalpha() and "," not in text and ":" not in text:
        return text
    ends = tuple(_ends(part, text) for part in re.split(r"[,x]", text.strip()))
    return ends[0] if len(ends) == 1 and isinstance(ends[0], int) else ends


def names(text: str) -> tuple[str, ...]:
    """Names between commas, each once, and one at least."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not found:
        raise BadParameter(f"{text!r} names nothing; expected one name or more, as in a,b")
    return found


def dimensions(text: str) -> tuple[int | str, ...]:
    """A shape in which names stand for open sizes, as N,3,H,W."""
    if re.fullmatch(r"[0-9x]+", text):
        return shape(text)
    parts = [part.strip() for part in text.split(",")]
    return tuple(part if part.isidentifier() else _integer(part, text) for part in parts)


def shape_sets(given: Sequence[str] | None, parse: Any = shape) -> list[dict[str, Any]]:
    """Shapes by name, per set: a name given n times makes n sets, and one given once is in all.

    A name may hold colons itself.

    >>> shape_sets(["x:0:1,80,100", "x:0:1,80,400", "N:2"])
    [{'x:0': (1, 80, 100), 'N': (2,)}, {'x:0': (1, 80, 400), 'N': (2,)}]
    """
    found: dict[str, list[Any]] = {}
    for text in given or ():
        name, colon, size = text.rpartition(":")
        if not (name and colon):
            raise BadParameter(f"{text!r} is not NAME:SIZES", param_hint="--input-shape")
        found.setdefault(name, []).append(parse(size))
    many = max(map(len, found.values()), default=1)
    for name, sizes in found.items():
        if len(sizes) not in (1, many):
            words = f"{name!r} is given {len(sizes)} times, and another name {many} times"
            raise BadParameter(words, param_hint="--input-shape")
    return [{name: s[i if s[1:] else 0] for name, s in found.items()} for i in range(many)]


def input_shapes(given: Sequence[str] | None, parse: Any = shape) -> dict[str, Any]:
    """Shapes by name, each name once."""
    found, *others = shape_sets(given, parse)
    if others:
        raise BadParameter("a name is given twice", param_hint="--input-shape")
    return found


def use_threads(threads: int | None) -> None:
    """Compute on so many threads, NumPy's BLAS included; None leaves the number as it is."""
    from threadpoolctl import threadpool_limits

    if threads is not None:
        set_num_threads(threads)
    threadpool_limits(get_num_threads(), user_api="blas")


def _ends(part: str, text: str) -> Ends:
    begin, colon, end = part.partition(":")
    return (_integer(begin, text), _integer(end, text)) if colon else _integer(part, text)


def _integer(part: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", part.strip()):
        raise BadParameter(f"{text!r}; expected integers, such as 2 or 2,3")
    return int(part)


RUNTIMES = "onnxruntime, onnxruntime:CUDA, openvino, openvino:f32, openvino:GPU, upconv, reference"

_SHARED: dict[str, Any] = {
    "input_": Argument(
        metavar="INPUT",
        parser=shape,
        help="Shape of the input, such as 1,64,32,32 or 1x64x32x32; the batch may be left out.",
    ),
    "weight": Argument(metavar="WEIGHT", parser=shape, help="Shape of the weight: 64,16,4,4."),
    "activation": Option(
        metavar="NAME", help="relu, leaky_relu (or leaky_relu:0.2), tanh, sigmoid, silu or gelu."
    ),
    "direction": Option(help="The result, or which gradient of the layer."),
    "dtype": Option(help="Element type to work in."),
    "engine": Option(metavar="NAME", help="Use this engine instead of letting upconv choose."),
    "force": Option("--force", "-f", help="Overwrite the output if it exists."),
    "input_shape": Option(
        metavar="NAME:SIZES",
        help="The shape of an input, as x:1,80,100, or the size of a symbolic dimension, as N:2;"
        " may be repeated.",
    ),
    "inputs": Option(metavar="FILE", help="Inputs by name, .npz, in place of random ones."),
    "seed": Option(min=0, metavar="N", help="Seed of the random inputs."),
    "threads": Option(min=1, max=4096, metavar="N", help="Threads (default: see `upconv doctor`)."),
}
"""What a parameter of any command is."""


def _keyword(name: str, default: object, kind: Any, **how: Any) -> inspect.Parameter:
    annotation = Annotated[kind, Option(**how)]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def _per_axis(name: str, default: str | None, letter: str, words: str) -> inspect.Parameter:
    words += ": an integer, or one per axis: 2 or 2,3."
    return _keyword(name, default, Any, parser=sizes, metavar=letter, help=words)


def _order(name: str, words: str, *orders: str) -> inspect.Parameter:
    return _keyword(name, orders[0], Literal[orders], case_sensitive=False, help=words)


_PADDING = (
    "What is cut off the full result: 1, or 1,2 (per axis), or 0:1,2:3 (begin:end per axis;"
    " negative values add), or valid, same_upper, same_lower."
)
_GEOMETRY = (
    _per_axis("stride", "1", "S", "Stride"),
    _keyword("padding", "0", Any, parser=padding, metavar="P", help=_PADDING),
    _per_axis("output_padding", "0", "P", "Added at the end of the result"),
    _per_axis("dilation", "1", "D", "Dilation"),
    _keyword("groups", 1, int, metavar="G", help="Number of groups."),
    _per_axis("output_size", None, "SIZE", "Spatial size of the result"),
    _order("layout", "Order of the axes of input and result.", "NCX", "NXC"),
    _order("weight_layout", "Order of the axes of the weight.", *(o.value for o in WeightLayout)),
)
"""The keywords of `upconv.conv_transpose`."""

OUTPUT_FORMAT = _keyword(
    "output_format",
    "text",
    Literal["text", "json"],
    help="What to print on stdout: text, or a document.",
)


def declaring(command: Command, own: dict[str, Any], *more: inspect.Parameter) -> Command:
    """`command` with an option for each parameter, in a signature for typer to read."""
    signature = inspect.signature(command, eval_str=True)
    found: list[inspect.Parameter] = []
    for each in signature.parameters.values():
        option = own.get(each.name) or _SHARED.get(each.name)
        if each.kind is each.VAR_KEYWORD:
            found += _GEOMETRY
        elif option is None:
            found.append(each)
        else:
            found.append(each.replace(annotation=Annotated[each.annotation, option]))
    spelled = signature.replace(parameters=[*found, *more])
    command.__signature__ = spelled  # type: ignore[attr-defined]  # inspect's own protocol
    return command
