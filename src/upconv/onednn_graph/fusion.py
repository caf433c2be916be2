"""What is fused: a convolution with the operations behind it, into one plan or one call.

A chain is a convolution whose result has one reader, whose result has one reader, and so on. upconv
ends a result in this order: bias, residual, activation. So a chain is

    convolution, then any of {BiasAdd, BatchNormInference}, then Add, then an activation

with each part optional: ReLU before Add ends it. Behind ConvTranspose and ConvolutionBackwardData
constant weights become a `Plan`. A batch norm is folded into the weights, so it is only fused there
and where its own operands, and all biases before it, are constant; all else is one call of
`conv_transpose` or `conv` with its weight packed in that call. Nothing is fused that would have to
be rounded beyond the type's range, or whose Add broadcasts the convolution's result.

What lives here: chains and the steps made of them. What never does: running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .. import memory
from ..arrays import Array
from ..normalization import fold_batch_norm
from ..plans import plan
from . import elementwise
from .convolutions import Convolved
from .logical_tensors import Shape
from .operations import Operation
from .steps import Call, Elementwise, Ends, EngineChoice, Planned, Step, total

ANCHORS = ("ConvTranspose", "ConvolutionBackwardData", "Convolution")
"""The operations that others are fused into."""

_PLANNED = ("ConvTranspose", "ConvolutionBackwardData")
_LINEAR = ("BiasAdd", "BatchNormInference")


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A convolution and the operations fused into it, in order."""

    anchor: Operation
    tail: tuple[Operation, ...] = ()

    @property
    def output(self) -> int:
        """The id of what the last of them makes."""
        return (self.tail[-1] if self.tail else self.anchor).output

    @property
    def own_bias(self) -> tuple[int, ...]:
        """The id of the convolution's own bias, if it has one."""
        slots = zip(self.anchor.schema.inputs, self.anchor.inputs, strict=False)
        return tuple(tensor.id for slot, tensor in slots if slot.name == "bias")

    @property
    def biases(self) -> tuple[int, ...]:
        """Ids of all biases, the convolution's own first."""
        added = [op.inputs[1].id for op in self.tail if op.kind == "BiasAdd"]
        return (*self.own_bias, *added)

    @property
    def normalised(self) -> bool:
        """Whether there is a batch norm in it."""
        return any(op.kind == "BatchNormInference" for op in self.tail)

    @property
    def residual(self) -> int | None:
        """The id of the other summand of its Add."""
        made = self.anchor.output
        for op in self.tail:
            if op.kind == "Add":
                return next(tensor.id for tensor in op.inputs if tensor.id != made)
            made = op.output
        return None

    @property
    def frozen(self) -> tuple[int, ...]:
        """Ids of the tensors that must be constant for a plan."""
        norms = [op for op in self.tail if op.kind == "BatchNormInference"]
        statistics = [tensor.id for op in norms for tensor in op.inputs[1:]]
        return (self.anchor.inputs[1].id, *self.biases, *statistics)

    @property
    def planned(self) -> bool:
        """Whether it will be a plan: constant weights behind a deconvolution."""
        constant = {
            tensor.id: tensor.constant for op in (self.anchor, *self.tail) for tensor in op.inputs
        }
        return self.anchor.kind in _PLANNED and all(constant[id_] for id_ in self.frozen)

    def with_next(self, op: Operation) -> Chain | None:
        """This chain with the one reader of its result in it, or None where it does not belong."""
        kinds = [one.kind for one in self.tail]
        if any(kind in elementwise.ACTIVATIONS for kind in kinds):
            return None
        longer = Chain(self.anchor, (*self.tail, op))
        if op.kind in elementwise.ACTIVATIONS:
            return longer
        if "Add" in kinds:
            return None
        if op.kind == "Add":
            return longer if longer.residual is not None else None
        same_format = op.kind in _LINEAR and (
            op.attributes["data_format"] == self.anchor.attributes["data_format"]
        )
        if not same_format or op.inputs[0].id != self.output:
            return None
        return longer if longer.planned or not longer.normalised else None

    def without_last(self) -> Chain:
        """This chain without its last operation."""
        return Chain(self.anchor, self.tail[:-1])


def steps(
    operations: Sequence[Operation],
    convolved: Mapping[int, Convolved],
    shapes: Mapping[int, Shape],
    constants: Mapping[int, Array],
    engine: EngineChoice,
) -> list[Step]:
    """The steps of a partition's operations, as many as can be in the first.

    `convolved` is by operation id, `shapes` and `constants` by tensor id.
    """
    first, rest = operations[0], list(operations[1:])
    if first.id not in convolved:
        return [Elementwise(first, shapes[first.output])]
    made = convolved[first.id]
    chain = _longest(Chain(first, tuple(rest)), made, shapes)
    head = _fused(chain, made, constants, engine)
    while head is None:
        chain = chain.without_last()
        head = _fused(chain, made, constants, engine)
    left = rest[len(chain.tail) :]
    return [head, *(Elementwise(op, shapes[op.output]) for op in left)]


def _longest(chain: Chain, made: Convolved, shapes: Mapping[int, Shape]) -> Chain:
    """The part before an Add that does not leave the convolution's shape as it is."""
    for place, op in enumerate(chain.tail):
        if shapes[op.output] != made.result:
            return Chain(chain.anchor, chain.tail[:place])
    return chain


def _fused(
    chain: Chain, made: Convolved, constants: Mapping[int, Array], engine: EngineChoice
) -> Step | None:
    """One step for a whole chain; None where a folded weight or bias would not be finite."""
    last = chain.tail[-1] if chain.tail else chain.anchor
    activation = None
    if last.kind in elementwise.ACTIVATIONS:
        activation = elementwise.activation_of(last)
    if not chain.planned:
        ends = Ends(chain.biases, chain.residual, activation)
        return Call(chain.anchor, made, ends, chain.output, engine)
    parameters = _folded(chain, made, constants)
    if parameters is None:
        return None
    weight, bias = parameters
    prepared = plan(
        made.x,
        weight,
        bias,
        **made.layer.keywords(),
        activation=activation,
        residual=chain.residual is not None,
        engine=engine,
    )
    x = chain.anchor.inputs[0].id
    return Planned(prepared, x, Ends(residual=chain.residual), chain.output)


def _folded(
    chain: Chain, made: Convolved, constants: Mapping[int, Array]
) -> tuple[Array, Array | None] | None:
    """Weight and bias with every BiasAdd and batch norm in them, rounded to their type once.

    None where a batch norm makes something that is not finite of what was.
    """
    given = made.weight_in(constants[chain.anchor.inputs[1].id])
    biases = [constants[id_] for id_ in chain.biases]
    if not chain.normalised:
        return given, total(biases)
    memory.require(2 * 8 * given.size, "a weight with a batch norm folded into it")
    weight, bias = given.astype(np.float64), None
    for own in chain.own_bias:
        bias = constants[own].astype(np.float64)
    for op in (one for one in chain.tail if one.kind in _LINEAR):
        operands = [constants[tensor.id].astype(np.float64) for tensor in op.inputs[1:]]
        if op.kind == "BiasAdd":
            bias = operands[0] if bias is None else bias + operands[0]
            continue
        epsilon = op.attributes["epsilon"]
        if not (np.isfinite(operands[-1]) & (operands[-1] + epsilon > 0)).all():
            return None
        weight, bias = fold_batch_norm(
            weight,
            bias,
            *operands,
            eps=epsilon,
            groups=made.layer.groups,
            weight_layout=made.layer.weight_layout.value,
        )
    rounded = tuple(_rounded(array, given) for array in (weight, bias) if array is not None)
    if not all(np.isfinite(array.astype(np.float32)).all() for array in rounded):
        return None
    return rounded[0], rounded[1]


def _rounded(array: Array, like: Array) -> Array:
    with np.errstate(all="ignore"):
        result: Array = array.astype(like.dtype)
    return result
