"""`Capture`: a model's forward without gradients as a graph, in which networks compute parts.

`torch.export` runs the forward on fake tensors, and `parts.hand_over` replaces the largest parts of
its graph. The remaining nodes are ATen operators, in order.

A capture is valid for inputs with one structure, at all sizes that satisfy export's guards. Each
call reads the model's current parameters and buffers.
"""

from __future__ import annotations

import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, redirect_stderr
from functools import partial
from io import StringIO
from typing import Any

import torch
from torch.export import Dim
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import tree_unflatten

from ..errors import brief
from . import trials
from .nodes import is_convolution
from .operators import FUSED
from .parts import Part, hand_over
from .snapshots import Unwatchable
from .tensors import Tensor
from .trials import Verdict

_NAMES = {"math": math, "max": max, "min": min, "abs": abs, "int": int, "float": float}
"""Names that the expressions of export's guards use."""


class Capture:
    """The graph of a model's forward for inputs like the examples.

    forward: takes the tensors among the inputs. refused: names of layers that no part may contain.
    slower: keys of parts that stay with PyTorch because their networks were measured as slower.
    open_sizes: whether to accept sizes other than the examples', if export allows that.
    parts: the parts that networks compute. left: why PyTorch computes the other nodes, by name.
    seconds: how long the capture took.

    Raises `Unwatchable` for a forward that cannot be captured.
    """

    def __init__(
        self,
        model: Any,
        forward: Callable[..., Any],
        examples: Sequence[Tensor],
        refused: frozenset[str],
        slower: Collection[PartKey],
        open_sizes: bool,
    ) -> None:
        begin = time.perf_counter()
        exported, self._numbers = _exported(model, forward, examples, open_sizes)
        program = _checked(exported)
        self._guard = _guard(program, examples)
        self._result = program.call_spec.out_spec
        module = program.graph_module
        state = _erase_unused(module.graph, _state(program, model))
        self._readers = list(state.values())
        self._kinds = [_kind(read()) for read in self._readers]
        filtered = {
            node: "filter_fn excludes it"
            for node in module.graph.nodes
            if node.op == "call_function" and is_convolution(node) and layer_of(node) in refused
        }
        self.parts, self.left = hand_over(module, weights=state, refused=filtered)
        self._module = module
        keys = keys_of(self.parts)
        self._leave([part for part, key in keys.items() if key in slower])
        self.seconds = time.perf_counter() - begin

    @property
    def layers(self) -> int:
        """The number of convolutions that the parts compute."""
        return sum(part.layers for part in self.parts)

    def measured(self, seconds: float) -> dict[Part, Verdict]:
        """Measure all parts within `seconds` in total, and leave the slower ones to PyTorch."""
        inputs = self._module.graph.find_nodes(op="placeholder")
        known = dict(zip(inputs, self.state() or [], strict=False))
        limit = min(1.0, seconds / max(1, len(self.parts)))
        verdicts = {part: trials.measured_part(part, known, limit) for part in self.parts}
        self._leave([part for part, verdict in verdicts.items() if verdict.why])
        return verdicts

    def _leave(self, parts: list[Part]) -> None:
        """Put PyTorch's nodes back in place of some parts."""
        for part in parts:
            part.put_back()
            self.parts.remove(part)
        self._module.graph.lint()
        self._module.recompile()

    def takes(self, inputs: Sequence[Tensor]) -> bool:
        """Whether the graph is valid for inputs of these sizes."""
        try:
            return bool(self._guard({"flat": inputs}))
        except (IndexError, NameError, TypeError, ZeroDivisionError):
            return False

    def state(self) -> list[Tensor] | None:
        """Return the model's tensors that the graph reads; None if the graph does not fit them."""
        if not all(number.holds() for number in self._numbers):
            return None
        tensors = [read() for read in self._readers]
        return tensors if [*map(_kind, tensors)] == self._kinds else None

    def __call__(self, state: list[Tensor], inputs: Sequence[Tensor]) -> Any:
        """Return the model's result; `state` holds the tensors that `Capture.state` returned."""
        return tree_unflatten(self._module.forward(*state, *inputs), self._result)


def _kind(tensor: Any) -> Any:
    if not isinstance(tensor, torch.Tensor):
        return None
    return tensor.dtype, tensor.shape, tensor.is_cpu


class _Number:
    """A buffer that holds one integer, such as a stride, and its value at the capture."""

    def __init__(self, buffers: dict[str, Any], name: str) -> None:
        self._buffers, self._name, self._dtype = buffers, name, buffers[name].dtype
        self._value = buffers[name].item()

    def holds(self) -> bool:
        """Whether the buffer still has its value."""
        buffer = self._buffers.get(self._name)
        return buffer is not None and buffer.numel() == 1 and buffer.item() == self._value

    def exchange(self) -> Callable[[], None]:
        """Replace the buffer with a constant; return a function that puts the buffer back."""
        buffer = self._buffers[self._name]
        self._buffers[self._name] = torch.tensor(self._value, dtype=self._dtype)
        return partial(self._buffers.__setitem__, self._name, buffer)


def _numbers(model: Any) -> list[_Number]:
    """Return the buffers with one integer, except batch counts, which only training reads."""
    counting = torch.nn.modules.batchnorm._NormBase
    return [
        _Number(module._buffers, name)
        for module in model.modules()
        if not isinstance(module, counting)
        for name, buffer in module._buffers.items()
        if buffer is not None and not buffer.dim() and buffer.dtype in (torch.int32, torch.int64)
    ]


class _Flat(torch.nn.Module):  # type: ignore[misc]  # PyTorch is untyped here
    """A module that calls a model with tensors as its only arguments.

    numbers: buffers whose values the graph may depend on. During the trace they are constants,
    because the trace knows the values of constants only, and of results computed from them.
    """

    def __init__(self, model: Any, call: Callable[..., Any], numbers: list[_Number]) -> None:
        super().__init__()
        self.model, self.call, self.numbers, self.training = model, call, numbers, False

    def forward(self, *flat: Tensor) -> Any:
        with ExitStack() as ends:
            for number in self.numbers:
                ends.callback(number.exchange())
            return self.call(*flat)


def _exported(
    model: Any, forward: Callable[..., Any], examples: Sequence[Tensor], open_sizes: bool
) -> tuple[Any, list[_Number]]:
    """Export a forward; return the program and the numbers that its graph depends on.

    If open sizes fail, a second attempt fixes the sizes and the numbers.

    Recurrent layers are traced step by step, which fixes the length in any case. Open sizes make
    this trace far slower: a GRU over 255 positions took 32 s instead of 1.2 s (PyTorch 2.13).
    """
    reason, recurrent = "", any(isinstance(m, torch.nn.RNNBase) for m in model.modules())
    for is_open in (True, False) if open_sizes and not recurrent else (False,):
        # Use new tensors, because the user's may be parameters or share memory. Each attempt needs
        # its own, because export marks the dynamic sizes on the tensor.
        inputs = tuple(torch.empty_strided(x.shape, x.stride(), dtype=x.dtype) for x in examples)
        shapes = (tuple(map(_open_sizes, inputs)),) if is_open else None
        numbers = [] if is_open else _numbers(model)
        module = _Flat(model, forward, numbers)
        try:
            with warnings.catch_warnings(), redirect_stderr(StringIO()), torch.no_grad():
                warnings.simplefilter("ignore")  # after a failure export prints the partial graph
                program = torch.export.export(module, inputs, strict=False, dynamic_shapes=shapes)
                return program, numbers
        except Exception as error:  # a model's code may raise any error on fake tensors
            reason = f"{type(error).__name__}: {brief((str(error).splitlines() or [''])[0])}"
    raise Unwatchable(f"torch.export cannot trace its forward, {reason}")


def _open_sizes(x: Tensor) -> dict[int, Any]:
    return {axis: Dim.AUTO if size > 1 else Dim.STATIC for axis, size in enumerate(x.shape)}


def _checked(program: Any) -> Any:
    """Return the program if its graph does what the forward does; else raise `Unwatchable`."""
    outputs = program.graph_signature.output_specs
    if any(output.kind is not OutputKind.USER_OUTPUT for output in outputs):
        raise Unwatchable("its forward replaces its buffers")
    for node in program.graph.nodes:
        if node.op == "call_function" and node.target is FUSED:
            node.target = torch.ops.aten.convolution.default  # a layer that `accelerate` swapped
    return program


def _guard(program: Any, examples: Sequence[Tensor]) -> Callable[[Any], object]:
    """Return a predicate that tells whether the graph is valid for the inputs' sizes."""
    conditions = [f"L['flat'][{i}].dim() == {x.dim()}" for i, x in enumerate(examples)]
    written = getattr(program, "_guards_code", None)  # PyTorch 2.9 and later
    inputs = [node for node, spec in _placeholders(program) if spec.kind is InputKind.USER_INPUT]
    for i, node in enumerate(inputs):
        for axis, size in enumerate(node.meta["val"].shape):
            actual = f"L['flat'][{i}].size()[{axis}]"
            if isinstance(size, int) or written is None:
                conditions.append(f"{actual} == {examples[i].shape[axis]}")
            elif (bounds := program.range_constraints.get(size.node.expr)) is not None:
                conditions.append(f"{actual} >= {max(2, int(bounds.lower))}")
                if getattr(bounds.upper, "is_Integer", False):
                    conditions.append(f"{actual} <= {int(bounds.upper)}")
    text = " and ".join(f"({condition})" for condition in [*conditions, *(written or ())])
    # Export writes its guards as Python expressions that contain only sizes.
    guard: Callable[[Any], object] = eval(f"lambda L: {text}", dict(_NAMES))  # noqa: S307
    return guard


def _placeholders(program: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the inputs of a program's graph, each with its specification."""
    nodes = program.graph.find_nodes(op="placeholder")
    return zip(nodes, program.graph_signature.input_specs, strict=True)


def _state(program: Any, model: Any) -> dict[Any, Callable[[], Any]]:
    """Return a reader for every placeholder that is not an input.

    The reader returns the tensor that the module holds when the reader is called.
    """
    readers: dict[Any, Callable[[], Any]] = {}
    for node, spec in _placeholders(program):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            path, _, name = spec.target.removeprefix("model.").rpartition(".")
            module = model.get_submodule(path)
            holder = module._parameters if spec.kind is InputKind.PARAMETER else module._buffers
            readers[node] = partial(holder.get, name)
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            readers[node] = partial(program.constants.get, spec.target)
        elif spec.kind is not InputKind.USER_INPUT:
            raise Unwatchable(f"torch.export adds a {spec.kind.name.lower()} to its graph")
    return readers


_CHECKS = (torch.ops.aten._assert_tensor_metadata.default, torch.ops.aten.detach_.default)
"""Operators that export adds; the caller cannot see their effects."""


def _erase_unused(graph: Any, readers: dict[Any, Any]) -> dict[Any, Any]:
    graph.eliminate_dead_code(lambda node: node.is_impure() and node.target not in _CHECKS)
    for node in [node for node in readers if not node.users]:
        graph.erase_node(node)
        del readers[node]
    return readers


PartKey = tuple[int, tuple[str, ...]]
"""The layers of a part, and the number of earlier parts of its capture with the same layers."""


def keys_of(parts: Sequence[Part]) -> dict[Part, PartKey]:
    """Return the key of each part of a capture."""
    seen: Counter[tuple[str, ...]] = Counter()
    keys = {}
    for part in parts:
        layers = layers_of(part)
        keys[part] = seen[layers], layers
        seen[layers] += 1
    return keys


def layers_of(part: Part) -> tuple[str, ...]:
    """Return the names of the layers that own a part's convolutions."""
    return tuple(layer_of(node) for node in part.module.graph.nodes if is_convolution(node))


def layer_of(node: Any) -> str:
    """Return the name of the layer whose forward a node belongs to."""
    names = [name for name, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return str(names[-1]).removeprefix("model.") if names else ""
