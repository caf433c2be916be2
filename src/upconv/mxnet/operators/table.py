"""The table of operators, shared by arrays, symbols and loaded models.

A shape is a tuple in which 0 is an unknown size; None is an unknown shape. Arrays are NumPy's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ...dialects.mxnet_attributes import Attributes, declared, parsed
from ...errors import ShapeError, UpconvError

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
Types = Sequence[Any]


@dataclass(slots=True)
class Call:
    """One computation of an operator.

    p: its attributes. training: MXNet's flag. wanted: which inputs need a gradient. inputs,
    outputs: all arrays of the forward pass.
    """

    p: Attributes
    training: bool = False
    wanted: tuple[bool, ...] = ()
    inputs: Sequence[Array] = ()
    outputs: Sequence[Array] = ()


class Operator:
    """An operator: its computation, its gradients, and its interface.

    forward(call, *inputs): compute the outputs, an array or a list.
    backward(call, *grads): compute the inputs' gradients from the outputs', None for an input
        without one.
    inputs: names, or (name + "{}",) for any number. absent(p): the names of inputs that these
        attributes exclude. auxiliary: the names of the states, which are not learned.
    shapes(p, inputs, outputs): infer input and output shapes as far as possible, as `same_shape`
        and `following` do. Without it, the operator runs on zeros.
    types(p, inputs, outputs): infer element types; None for an unknown type.
    outputs(p): the outputs' names; visible(p): the number of outputs that a caller sees.
    check(p): raise an error for attributes that contradict each other.
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        backward: Callable[..., Sequence[Array | None]] | None = None,
        inputs: str = "data",
        attributes: str = "",
        shapes: Callable[..., tuple[Shapes, Shapes]] | None = None,
        types: Callable[..., tuple[Types, Types]] | None = None,
        absent: Callable[[Attributes], tuple[str, ...]] = lambda p: (),
        auxiliary: tuple[str, ...] = (),
        outputs: Callable[[Attributes], Sequence[str]] = lambda p: ("output",),
        visible: Callable[[Attributes], int] = lambda p: 1,
        check: Callable[[Attributes], None] = lambda p: None,
    ) -> None:
        self.name, self.forward, self.backward = name, forward, backward
        self.inputs, self.attributes = tuple(inputs.split()), declared(attributes)
        self.shapes, self.absent, self.auxiliary = shapes, absent, auxiliary
        self.types = types or same_type
        self.outputs, self.visible, self.check = outputs, visible, check
        self.variadic = inputs.endswith("{}")

    def parse(self, arguments: Mapping[str, Any], inputs: int) -> Attributes:
        """Parse a call's attributes, given its number of inputs; raise `ArgumentError`."""
        if "num_args" in self.attributes:
            arguments = {"num_args": inputs, **arguments}
        p = parsed(self.attributes, arguments)
        self.check(p)
        return p

    def named_inputs(self, p: Attributes) -> tuple[str, ...]:
        """Return the inputs' names in a call with these attributes."""
        if self.variadic:
            return tuple(self.inputs[0].format(i) for i in range(p.num_args))
        absent = self.absent(p)
        return tuple(name for name in self.inputs if name not in absent)

    def bind(self, values: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Sort a call's arguments into inputs, None for a missing one, and attributes.

        Positional arguments are the inputs, then the attributes in the order of declaration.
        """
        if self.variadic:
            is_list = len(values) == 1 and isinstance(values[0], (list, tuple))
            return list(values[0] if is_list else values), dict(named)
        names = (*self.inputs, *self.attributes)
        arguments = dict(zip(names, values, strict=False))
        twice = [name for name in named if name in arguments]
        if twice or len(values) > len(names):
            raise TypeError(f"{twice} given twice, or more than {len(names)} positional arguments.")
        arguments |= named
        inputs = [arguments.pop(name, None) for name in self.inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        return inputs, arguments

    def run(self, call: Call) -> Sequence[Array]:
        """Compute all outputs and keep them in the call."""
        outputs = self.forward(call, *call.inputs)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        call.outputs = tuple(map(np.asarray, outputs))
        return call.outputs

    def infer(self, p: Attributes, inputs: Shapes, outputs: Shapes) -> tuple[Shapes, Shapes]:
        """Infer the shapes of inputs and outputs, as far as the known ones determine them."""
        if self.shapes is not None:
            return self.shapes(p, inputs, outputs)
        shapes = [shape for shape in inputs if shape is not None]
        if len(shapes) < len(inputs):
            return inputs, []
        # Try two values for unknown sizes; a size of the result that differs is unknown too.
        guesses = (2, 3) if any(0 in shape for shape in shapes) else (1,)
        try:
            first, *second = (self._tried(p, shapes, guess) for guess in guesses)
        except (UpconvError, ValueError):
            if len(guesses) == 1:
                raise
            return inputs, []
        pairs = zip(first, *second or [first], strict=True)
        return inputs, [tuple(a if a == b else 0 for a, b in zip(*p, strict=True)) for p in pairs]

    def _tried(self, p: Attributes, shapes: list[Shape], guess: int) -> list[Shape]:
        """Return the outputs' shapes for zeros, with `guess` for unknown sizes."""
        zero = np.zeros((), np.float32)  # repeated without taking memory
        zeros = [np.broadcast_to(zero, [size or guess for size in shape]) for shape in shapes]
        return [x.shape for x in self.run(Call(p, inputs=zeros))]


OPERATORS: dict[str, Operator] = {}
"""Operators by all their names."""


def define(names: str, forward: Any, backward: Any = None, **rest: Any) -> None:
    """Add an operator to the table under all its names; see `Operator`."""
    first, *others = names.split()
    operator = Operator(first, forward, backward, **rest)
    OPERATORS.update(dict.fromkeys((first, *others), operator))


def unified(name: str, first: Shape | None, second: Shape | None) -> Shape | None:
    """Merge two descriptions of one shape; raise `ShapeError` if they contradict each other."""
    if first is None or second is None:
        return second if first is None else first
    result = tuple(a or b for a, b in zip(first, second, strict=False))
    agree = all(b in (0, a) for a, b in zip(result, second, strict=False))
    if not agree or len(first) != len(second):
        raise ShapeError(name, str(second), f"a shape that fits {first}")
    return result


def channels_last(p: Attributes) -> bool:
    """Return whether the channels are the last axis in an operator's layout."""
    return (getattr(p, "layout", None) or "NCX")[-1] == "C"


def same_shape(p: Attributes, inputs: Shapes, outputs: Shapes = ()) -> tuple[Shapes, Shapes]:
    """Infer shapes if all inputs and the first output have the same shape."""
    shape: Shape | None = None
    for i, other in enumerate((*inputs, *outputs[:1])):
        shape = unified(f"the shape of input {i}", shape, other)
    return [shape] * len(inputs), [shape]


def same_type(p: Attributes, inputs: Types, outputs: Types) -> tuple[Types, Types]:
    """Infer types if all values share one; an attribute `dtype` sets the outputs' type."""
    kind = getattr(p, "dtype", None)
    first = next((t for t in (*inputs, *(() if kind else outputs)) if t is not None), None)
    return [first] * len(inputs), [kind or first] * len(outputs)


def following(follow: Callable[..., Any], out: Callable[..., Any]) -> Callable[..., Any]:
    """Return `shapes` for an operator whose data determine all other shapes.

    The outputs may determine the batch. follow(p, data): infer the shapes of the other inputs, some
    of which may be absent. out(p, data): infer the shapes of the outputs.
    """

    def shapes(p: Attributes, inputs: Shapes, outputs: Shapes = ()) -> tuple[Shapes, Shapes]:
        data, *rest = inputs
        if data is None:
            return inputs, []
        if outputs and outputs[0]:
            data = (data[0] or outputs[0][0], *data[1:])
        pairs = zip(rest, follow(p, data), strict=False)
        known = [unified(f"the shape of input {i}", f, s) for i, (s, f) in enumerate(pairs, 1)]
        return [data, *known], out(p, data)

    return shapes
