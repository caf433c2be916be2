"""Trace a module's forward into a network, by running its code on tensors without data.

PyTorch computes values that depend only on parameters and buffers, such as `weight_norm` and sizes
held in buffers. ATen operators on traced tensors add nodes according to the table of operations.
Some functions add nodes before PyTorch decomposes them into operators.

A trace has the sizes of one input. `model_streams` compares the traces of several inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_flatten, tree_map_only

from ..errors import ArgumentError, UpconvError, brief
from ..network import Network
from ..network.axes import Arranged
from ..network.model_streams import Captured
from ..network.stream_schedule import refused
from . import arranging
from .operators import FUSED

_COPIES = ("detach", "clone", "alias", "lift_fresh", "_to_copy")


class Traced(torch.Tensor):  # type: ignore[misc]  # PyTorch is untyped here
    """A tensor without data that represents a network's value.

    family: the traced tensors that share its memory.
    """

    trace: Trace
    arranged: Arranged
    family: list[Traced]

    @staticmethod
    def of(trace: Trace, arranged: Arranged) -> Traced:
        """Return a traced tensor for one of the network's values."""
        size, kind = arranged.shape, {"dtype": torch.float32, "device": "cpu"}
        result: Traced = torch.Tensor._make_wrapper_subclass(Traced, size, **kind)
        result.trace, result.arranged, result.family = trace, arranged, [result]
        return result

    @classmethod
    def __torch_function__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, row = kwargs or {}, arranging.FUNCTIONS.get(getattr(func, "__name__", ""))
        if row is not None:
            return _traced(args, kwargs)[0].trace.add(func.__name__, row, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _traced(args, kwargs)[0].trace.operator(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"<Traced {tuple(self.shape)}>"


class Trace:
    """A network under construction, and the stack of modules whose forwards are running."""

    def __init__(self, model: Any, declared: Mapping[str, Any]) -> None:
        self._network, self._model = Network(declared), model
        self._modules: list[str] = []

    def captured(
        self, axes: Mapping[str, Any], arguments: Callable[[list[Traced]], tuple[Any, Any]]
    ) -> Captured:
        """Return the network of the model's forward.

        axes: each input's axes. arguments: makes the forward's arguments from the traced inputs.
        """
        values = zip(self._network.inputs.values(), axes.values(), strict=True)
        inputs = [Traced.of(self, Arranged(value, input_axes)) for value, input_axes in values]
        args, kwargs = arguments(inputs)
        with torch.no_grad(), self._watched():
            try:
                results = self._model(*args, **kwargs)
            except UpconvError:
                raise
            except Exception as error:  # a model's code may raise any error on tensors without data
                reason = f"{type(error).__name__}: {brief(str(error))}"
                self._refuse(f"{type(self._model).__name__}'s forward", reason)
        leaves, structure = tree_flatten(results)
        if any(isinstance(leaf, arranging.LastState) for leaf in leaves):
            reason = "the state of a recurrent layer is known only at the end. Return its results"
            self._refuse(f"{type(self._model).__name__}'s results", reason)
        outputs = [leaf for leaf in leaves if isinstance(leaf, Traced)]
        if not outputs or len(outputs) < sum(isinstance(leaf, torch.Tensor) for leaf in leaves):
            raise ArgumentError("the model's result", brief(results), "tensors from the inputs")
        self._network.output(*(output.arranged.value for output in outputs))
        numbers = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Traced)]
        kept = [None if isinstance(leaf, Traced) else leaf for leaf in leaves]
        arrangement = tuple(output.arranged.axes for output in outputs)
        return Captured(self._network, arrangement, (kept, numbers, structure))

    def add(self, name: str, row: arranging.Row, args: Any, kwargs: Any) -> Any:
        """Add a row's nodes to the network; return its traced results."""
        self._network.at(self._modules[-1] or type(self._model).__name__)
        args, kwargs = tree_map_only(Traced, lambda x: x.arranged, (tuple(args), dict(kwargs)))
        args = (*(kwargs.pop(word) for word in ("input", "self") if word in kwargs), *args)
        try:
            results = row(self._network, *args, **kwargs)
        except (UpconvError, TypeError, ValueError) as error:
            self._refuse(name, str(error).rstrip("."))
        return tree_map_only(Arranged, lambda x: Traced.of(self, x), results)

    def operator(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the results of an ATen operator, which may be views or writes in place."""
        space, _, name = func._schema.name.partition("::")
        if space != "aten" and func is not FUSED:
            self._refuse(str(func), "upconv's networks have no such operation")
        aliases = [(i, argument.alias_info) for i, argument in enumerate(func._schema.arguments)]
        written = [i for i, alias in aliases if alias is not None and alias.is_write]
        if name.endswith("_like") or name.startswith("new_"):  # depends only on a shape
            return func(torch.empty(()).expand(args[0].shape), *args[1:], **kwargs)
        if name in _COPIES and kwargs.get("dtype") in (None, torch.float32):
            result = Traced.of(self, args[0].arranged)
        else:
            row = arranging.row_of(name.removesuffix("_") if written else name)
            if row is None:
                self._refuse(name, "upconv's networks have no such operation")
            result = self.add(name, row, args, kwargs)
        if written:
            return self._written(name, [args[i] for i in written if i < len(args)], result)
        if any(alias is not None for _, alias in aliases):
            family = _traced(args, kwargs)[0].family
            for view in tree_flatten(result)[0]:
                view.family = family
                family.append(view)
        return result

    def _written(self, name: str, targets: list[Any], result: Traced) -> Traced:
        """Update the tensor that an operator writes to, and return it."""
        if len(targets) != 1 or not isinstance(targets[0], Traced) or len(targets[0].family) > 1:
            self._refuse(name, "it writes in place to memory that other tensors share")
        if targets[0].shape != result.shape:
            self._refuse(name, "its result differs in shape from the tensor that it writes to")
        targets[0].arranged = result.arranged
        return targets[0]

    def _refuse(self, name: str, why: str) -> NoReturn:
        module = next(filter(None, reversed(self._modules)), "")
        where = f"{name} in {module}" if module else name
        raise refused(where, why) from None

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Maintain the stack of running modules with hooks."""

        def enter(name: str, *_: object) -> None:
            self._modules.append(name)

        def leave(*_: object) -> None:
            self._modules.pop()

        with ExitStack() as hooks:
            for name, module in self._model.named_modules():
                before = partial(enter, name)
                hooks.enter_context(module.register_forward_pre_hook(before, prepend=True))
                hooks.enter_context(module.register_forward_hook(leave))
            yield


def _traced(args: Any, kwargs: Any) -> list[Traced]:
    return [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Traced)]
