"""Option types that several commands share, parsers of their values, and the help layout.

A command's parameter has one of these types, or its own module declares the option. The parsers
turn text into library arguments without checking their meaning: the library refuses a stride of 0.
Text that cannot be parsed is a usage error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import BadParameter, Option
from typer.core import TyperCommand

from ..problem import Direction, DType
from ..threads import get_num_threads, set_num_threads

Ends = int | tuple[int, int]


def shape(text: str) -> tuple[int, ...]:
    """Parse a shape, such as 1,64,32,32 or 1x64x32x32."""
    return tuple(_integer(part, text) for part in re.split(r"[,x]", text.strip()))


def sizes(text: str) -> int | tuple[int, ...]:
    """Parse one integer for all axes, or one per axis."""
    values = shape(text)
    return values[0] if len(values) == 1 else values


def padding(text: str) -> int | str | tuple[Ends, ...]:
    """Parse one integer, one per axis, a begin:end pair per axis, or the name of a rule.

    >>> padding("1"), padding("1,2"), padding("0:1,-2:3"), padding("same_upper")
    (1, (1, 2), ((0, 1), (-2, 3)), 'same_upper')
    """
    if text[:1].isalpha() and "," not in text and ":" not in text:
        return text
    ends = tuple(_ends(part, text) for part in re.split(r"[,x]", text.strip()))
    return ends[0] if len(ends) == 1 and isinstance(ends[0], int) else ends


def names(text: str) -> tuple[str, ...]:
    """Parse at least one comma-separated name; duplicates count once."""
    unique = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not unique:
        raise BadParameter(f"{text!r} contains no name; expected at least one, as in a,b")
    return unique


def dimensions(text: str) -> tuple[int | str, ...]:
    """Parse a shape in which names stand for dynamic sizes, such as N,3,H,W."""
    if re.fullmatch(r"[0-9x]+", text):
        return shape(text)
    parts = [part.strip() for part in text.split(",")]
    return tuple(part if part.isidentifier() else _integer(part, text) for part in parts)


def shape_sets(texts: Sequence[str] | None, parse: Any = shape) -> list[dict[str, Any]]:
    """Parse sets of named shapes: n shapes of a name make n sets; a single shape joins every set.

    A name may contain colons.

    >>> shape_sets(["x:0:1,80,100", "x:0:1,80,400", "N:2"])
    [{'x:0': (1, 80, 100), 'N': (2,)}, {'x:0': (1, 80, 400), 'N': (2,)}]
    """
    shapes: dict[str, list[Any]] = {}
    for text in texts or ():
        name, colon, size = text.rpartition(":")
        if not (name and colon):
            raise BadParameter(f"{text!r} is not NAME:SIZES", param_hint="--input-shape")
        shapes.setdefault(name, []).append(parse(size))
    count = max(map(len, shapes.values()), default=1)
    for name, sizes in shapes.items():
        if len(sizes) not in (1, count):
            words = f"{name!r} has {len(sizes)} shapes, and another name has {count}"
            raise BadParameter(words, param_hint="--input-shape")
    return [{name: s[i if s[1:] else 0] for name, s in shapes.items()} for i in range(count)]


def input_shapes(texts: Sequence[str] | None, parse: Any = shape) -> dict[str, Any]:
    """Parse named shapes; each name may have one shape."""
    first, *others = shape_sets(texts, parse)
    if others:
        raise BadParameter("a name has two shapes", param_hint="--input-shape")
    return first


def use_threads(threads: int | None) -> None:
    """Set the number of threads (None: unchanged), also for NumPy's BLAS."""
    from threadpoolctl import threadpool_limits

    if threads is not None:
        set_num_threads(threads)
    threadpool_limits(get_num_threads(), user_api="blas")


def _ends(part: str, text: str) -> Ends:
    begin, colon, end = part.partition(":")
    return (_integer(begin, text), _integer(end, text)) if colon else _integer(part, text)


def _integer(part: str, text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", part.strip()):
        raise BadParameter(f"{text!r}; expected integers of at most 20 digits, such as 2 or 2,3")
    return int(part)


RUNTIMES = "onnxruntime, onnxruntime:CUDA, openvino, openvino:f32, openvino:GPU, upconv, reference"

Activation = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="relu, relu6, leaky_relu (or leaky_relu:0.2), tanh, sigmoid, silu, gelu, hard_swish.",
    ),
]
LayerDirection = Annotated[Direction, Option(help="Compute the result or a gradient.")]
ElementType = Annotated[DType, Option(help="Element type of the arrays.")]
Force = Annotated[bool, Option("--force", "-f", help="Overwrite the output if it exists.")]
InputShapes = Annotated[
    list[str] | None,
    Option(
        metavar="NAME:SIZES",
        help="Shape of an input, such as x:1,80,100, or size of a symbolic dimension, such as"
        " N:2; may be repeated.",
    ),
]
Inputs = Annotated[
    Path | None, Option(metavar="FILE", help="Inputs by name (.npz) instead of random ones.")
]
OutputFormat = Annotated[
    Literal["text", "json"], Option(help="Print text or a JSON document on stdout.")
]
Seed = Annotated[int, Option(min=0, metavar="N", help="Seed of the random inputs.")]
Threads = Annotated[
    int | None,
    Option(min=1, max=4096, metavar="N", help="Threads (default: see `upconv doctor`)."),
]


class Command(TyperCommand):
    """A command whose help shows `IN` where typer shows `{IN}` and `IN <path>`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; an error without a context gets this command's context."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if getattr(error, "ctx", ctx) is None:  # an option without its value
                error.ctx = ctx  # type: ignore[attr-defined]
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name in the usage line."""
        named = [(param.metavar, param.required) for param in self._parameters("argument")]
        return ["[OPTIONS]", *(name if required else f"[{name}]" for name, required in named)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, each with its help."""
        arguments = [(param.metavar, param.help or "") for param in self._parameters("argument")]
        options = [param.get_help_record(ctx) for param in self._parameters("option", ctx)]
        for title, rows in (("Arguments", arguments), ("Options", list(filter(None, options)))):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _parameters(self, kind: str, ctx: Any = None) -> list[Any]:
        """Return the parameters of a kind; with a context, `--help` is one of the options."""
        params: list[Any] = self.params if ctx is None else self.get_params(ctx)
        return [param for param in params if param.param_type_name == kind]
