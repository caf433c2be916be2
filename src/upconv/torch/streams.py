"""`stream`: run a whole module chunk by chunk along an axis, as one network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_unflatten

from ..argument_checks import integer
from ..arrays import Array
from ..errors import ArgumentError, DTypeError, brief
from ..network.axes import declared_axes
from ..network.model_streams import Captured, ModelStream, Signature, stream_of_model
from ..signatures import AlgorithmName, NetworkPrecision
from .tensors import array, thread_count
from .tracing import Trace


def stream(
    model: Any, example: Any, *, axis: int = -1, chunk: int | None = None,
    precision: NetworkPrecision = "float32", threads: int | None = None,
    algorithm: AlgorithmName = "auto",
) -> ModuleStream:  # fmt: skip
    """Stream a module along an axis of its inputs: `push` each chunk as it comes, then `finish`.

    model: a module, in eval mode, whose operations are local along the axis. Its parameters are
        copied. example: the model's arguments: a float32 tensor, a tuple of positional arguments or
        a dict of keywords. Only the batch and the size along the axis may differ from the example.
    axis: the axis of every input. chunk: the input length for which kernels are chosen; None takes
        the length of the first push. precision, threads, algorithm: as in `Network.stream`.

    The results are those of the model on the whole input. No value is computed twice.

    Raises `EngineRefusal` for a model that cannot be streamed. The message names the module.

    >>> import torch
    >>> model = nn.Sequential(nn.Conv1d(2, 4, 3, padding=1), nn.Tanh()).eval()
    >>> speech = stream(model, torch.zeros(1, 2, 50))
    >>> speech.push(torch.zeros(1, 2, 10)).shape, speech.finish().shape
    (torch.Size([1, 4, 9]), torch.Size([1, 4, 1]))
    """
    if not isinstance(model, nn.Module):
        raise ArgumentError("model", f"of type {type(model).__name__}", "a torch.nn.Module")
    if "_report" in vars(model):
        raise ArgumentError("model", "accelerated", "the original", "Call restore(model) first.")
    names, tensors = _listed(example)
    signature, length = _signature(names, tensors, axis)

    def capture(batch: int, size: int) -> Captured:
        def arguments(inputs: list[Any]) -> tuple[Any, Any]:
            if isinstance(example, Mapping):
                return (), dict(zip(names, inputs, strict=True))
            return inputs, {}

        return Trace(model, signature.declared(batch, size)).captured(signature.axes, arguments)

    options = {"chunk": chunk, "precision": precision, "algorithm": algorithm}
    threads = thread_count() if threads is None else threads
    return stream_of_model(ModuleStream, capture, signature, length, threads=threads, **options)


class ModuleStream(ModelStream):
    """A stream of a module, made by `stream`; see `ModelStream`."""

    __slots__ = ("_tensors",)

    def __init__(self, *arguments: Any) -> None:
        """Start a stream; call `stream` instead."""
        self._tensors = True  # whether the latest chunks, and so the results, are tensors
        super().__init__(*arguments)

    def push(self, *chunks: Any) -> Any:
        """Return all new results that no later input can change.

        chunks: a float32 tensor or array for each input of the example, in order. All have the same
        length along the axis, which may be 0. The results are tensors if any chunk is a tensor.
        """
        return super().push(*chunks)

    def _begun(self) -> Self:
        other = super()._begun()
        other._tensors = self._tensors
        return other

    def converted(self, chunks: Sequence[Any]) -> list[Array]:
        """Convert the chunks of a push to the network's inputs."""
        self._tensors = any(isinstance(chunk, torch.Tensor) for chunk in chunks)
        return self.arrays(
            [_array(chunk) if isinstance(chunk, torch.Tensor) else chunk for chunk in chunks]
        )

    def given_back(self, results: Any) -> Any:
        """Return the results in the structure of the model's result."""
        leaves, indices, spec = self.captured.structure
        leaves = list(leaves)
        for index, result in zip(indices, self.results(results), strict=True):
            leaves[index] = torch.from_numpy(result) if self._tensors else result
        return tree_unflatten(leaves, spec)


def _array(tensor: Any) -> Array:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise DTypeError("a chunk", f"a tensor on {tensor.device}", "one on the CPU")
    if tensor.dtype is not torch.float32:
        raise DTypeError("a chunk", f"{tensor.dtype}", "float32", "Convert it.")
    if not tensor.numel():  # it may have no memory
        return np.empty(tensor.shape, np.float32)
    return array(tensor.detach())


def _listed(example: Any) -> tuple[list[str], list[Any]]:
    """Return the names and the tensors of an example."""
    if isinstance(example, Mapping):
        names, tensors = list(example), list(example.values())
    else:
        tensors = list(example) if isinstance(example, (tuple, list)) else [example]
        names = ["x"] if len(tensors) == 1 else [f"x{i}" for i in range(len(tensors))]
    if not tensors:
        raise ArgumentError("example", "empty", "at least one tensor")
    for name, tensor in zip(names, tensors, strict=True):
        if not isinstance(tensor, torch.Tensor):
            remedy = "Wrap the model in a module that holds other arguments."
            raise DTypeError(f"example, {name!r}", brief(tensor), "a tensor", remedy)
        if tensor.dtype is not torch.float32:
            remedy = "Call model.float(), and convert the example."
            raise DTypeError(f"example, {name!r}", f"of {tensor.dtype}", "float32", remedy)
    return names, tensors


def _signature(names: list[str], tensors: list[Any], axis: int) -> tuple[Signature, int]:
    """Return the inputs' shapes, with 0 along the stream's axis, and the example's length."""
    shapes, axes, lengths = {}, {}, set()
    for name, tensor in zip(names, tensors, strict=True):
        number = integer("axis", axis, -tensor.dim(), tensor.dim() - 1) % max(1, tensor.dim())
        shape = list(tensor.shape)
        lengths.add(shape[number])
        shape[number] = 0
        shapes[name], axes[name] = tuple(shape), declared_axes(len(shape), number)
    if len(lengths) > 1 or lengths == {0}:
        got, expected = f"of {sorted(lengths)} positions along axis {axis}", "of one length"
        raise ArgumentError("example", got, expected)
    return Signature(shapes, axes), lengths.pop()
