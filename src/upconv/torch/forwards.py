"""`Forward`: the `forward` of an accelerated model, which runs a captured graph when it can.

It is an attribute of the model, so the model keeps its class, and PyTorch still calls the model's
hooks. A call runs the captured graph, not the original forward through the modules, if

1. no gradient is recorded, and no autocast, trace, compiler, transform or mode is active,
2. all inputs are plain values and different, dense tensors on the CPU,
3. a capture for inputs of this structure exists and is valid for their sizes,
4. the model has not changed since it was captured (see `Snapshot`).

The first call with a new structure captures the model, up to `_MAX_CAPTURES` times. That call also
runs the original forward, and later calls use the graph if the results agree.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from threading import Lock
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map_only

from ..errors import UpconvError
from ..measuring import disagreement
from .captures import Capture, PartKey, keys_of
from .functional import recorded
from .parts import Part
from .snapshots import Snapshot, Unwatchable
from .tensors import Tensor, arrays_of, channels_last
from .trials import Verdict

_MAX_CAPTURES = 4
_MAX_SIGNATURES = 512

_LONG_CAPTURE = 10.0
"""After a capture with fixed sizes that took this many seconds, open sizes would take minutes."""

Key = tuple[Any, ...]
_CONSTANTS = (type(None), bool, int, float, str, torch.dtype, torch.device)


class Forward:
    """The forward of an accelerated model.

    refused: names of layers that no part may contain. slower: keys of parts that stay with PyTorch
    because it is faster there. reason: why the latest call was not captured; "" if it was. A
    copy of the model starts without captures.
    """

    def __init__(
        self,
        model: Any,
        refused: frozenset[str] = frozenset(),
        slower: Collection[PartKey] = (),
    ) -> None:
        self._model, self._refused, self._slower = model, refused, {*slower}
        self._begin()

    def _begin(self) -> None:
        self.reason = ""
        self._snapshot: Snapshot | None = None
        self._dtype = torch.get_default_dtype()
        self._captures: list[tuple[Key, Capture | None]] = []
        self._by_signature: dict[Key, Capture | None] = {}
        self._lock = Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"_model": self._model, "_refused": self._refused, "_slower": self._slower}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._begin()

    @property
    def __code__(self) -> Any:
        """The signature from which `torch.export` reads the names of arguments."""
        return type(self._model).forward.__code__

    @property
    def original(self) -> Any:
        """The forward of the model's class."""
        return type(self._model).forward.__get__(self._model)

    __wrapped__ = original
    """The signature that `inspect.signature` reads."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's result."""
        if torch.compiler.is_compiling() or not self._is_plain():
            return self.original(*args, **kwargs)
        inputs: list[Tensor] = []
        try:
            structure = _structure((args, kwargs), inputs)
        except Unwatchable:
            return self.original(*args, **kwargs)
        key = (structure, *((x.dtype, x.shape, x.stride()) for x in inputs))
        try:
            capture = self._by_signature[key]
        except KeyError:
            return self._first(key, inputs, args, kwargs)
        if capture is not None and self._snapshot is not None and self._snapshot.holds():
            state = capture.state()
            if state is not None and not recorded(*state, *inputs):
                return capture(state, inputs)
        return self.original(*args, **kwargs)

    def serves(self, args: Any, kwargs: Any) -> bool:
        """Whether a capture exists for inputs like these."""
        inputs: list[Tensor] = []
        form = _form(_structure((args, kwargs), inputs), inputs)
        return any(key == form and graph and graph.takes(inputs) for key, graph in self._captures)

    def add_capture(self, args: Any, kwargs: Any) -> Capture:
        """Add a capture for inputs like these, to be used without comparing its results."""
        inputs: list[Tensor] = []
        capture = self.capture(args, kwargs)
        self._captures.append((_form(_structure((args, kwargs), inputs), inputs), capture))
        return capture

    def measured(self, seconds: float) -> dict[Part, Verdict]:
        """Measure parts in captures that have several; later captures omit slower ones too."""
        verdicts: dict[Part, Verdict] = {}
        for _, capture in self._captures:
            if capture is not None and len(capture.parts) > 1:
                keys = keys_of(capture.parts)
                verdicts |= capture.measured(seconds / len(self._captures))
                self._slower |= {key for part, key in keys.items() if verdicts[part].why}
        return verdicts

    def watch(self) -> None:
        """Record the model's current state as the captured one."""
        self._snapshot = Snapshot(self._model)

    def capture(self, args: Any, kwargs: Any) -> Capture:
        """Return a new capture for these inputs; raise `Unwatchable` if that fails.

        The first graph has fixed sizes: all operations know them, and export is fast. The next one
        is for all other sizes, unless its networks would compute less or the first took long.
        """
        inputs: list[Tensor] = []
        form = _form(_structure((args, kwargs), inputs), inputs)
        if not inputs:
            raise Unwatchable("its inputs contain no tensor")

        def call(*flat: Tensor) -> Any:
            tensors = iter(flat)
            positional, keywords = tree_map_only(
                torch.Tensor, lambda _: next(tensors), (args, kwargs)
            )
            return self.original(*positional, **keywords)

        capture = partial(Capture, self._model, call, inputs, self._refused, self._slower)
        fixed = next((graph for known, graph in self._captures if known == form and graph), None)
        if fixed is None or fixed.seconds > _LONG_CAPTURE:
            return capture(open_sizes=False)
        opened = capture(open_sizes=True)
        is_complete = len(opened.parts) <= len(fixed.parts) and opened.layers >= fixed.layers
        is_last = len(self._captures) == _MAX_CAPTURES - 1
        return opened if is_complete or is_last else capture(open_sizes=False)

    def _is_plain(self) -> bool:
        """Whether no mode is active that a graph would ignore, or that must see all modules."""
        return not (
            torch.is_autocast_enabled("cpu")
            or torch.jit.is_tracing()
            or torch._C._are_functorch_transforms_active()
            or forward_ad._current_level >= 0
            or torch._C._len_torch_dispatch_stack()
            or torch._C._len_torch_function_stack()
            or torch.get_default_dtype() is not self._dtype
        )

    def _first(self, key: Key, inputs: list[Tensor], args: Any, kwargs: Any) -> Any:
        """Return the result for inputs of new sizes; capture the model if necessary."""
        form = _form(key[0], inputs)
        for known, capture in self._captures:
            if known == form and (capture is None or capture.takes(inputs)):
                self._remember(key, capture)
                return self(*args, **kwargs)
        if len(self._captures) >= _MAX_CAPTURES:
            self._remember(key, None)
        elif self._may_capture() and self._lock.acquire(blocking=False):
            try:
                return self._with_new_capture(key, form, inputs, args, kwargs)
            finally:
                self._lock.release()
        return self.original(*args, **kwargs)

    def _may_capture(self) -> bool:
        """Whether the model can be captured now: it runs inference and has not changed."""
        if torch.is_grad_enabled() or self._model.training:
            return False
        return self._snapshot is None or self._snapshot.holds()

    def _with_new_capture(
        self, key: Key, form: Key, inputs: list[Tensor], args: Any, kwargs: Any
    ) -> Any:
        """Return the original forward's result, after comparing a new capture's with it."""
        capture, random = None, torch.get_rng_state()
        watch = Watch(self._model, inputs)
        result = self.original(*args, **kwargs)
        after = torch.get_rng_state()
        try:
            snapshot = watch.unchanged()
            capture = self.capture(args, kwargs)
            self.reason = self._difference(capture, inputs, result, random)
            self._snapshot = self._snapshot or snapshot
        except Unwatchable as error:
            self.reason = str(error)
        torch.set_rng_state(after)
        capture = None if self.reason else capture
        self._captures.append((form, capture))
        self._remember(key, capture)
        return result

    def _difference(self, capture: Capture, inputs: Any, expected: Any, random: Tensor) -> str:
        """Return how a graph's results differ from the expected ones; "" if they agree."""
        if not capture.parts:
            return "a network can compute no part of its graph"
        torch.set_rng_state(random)
        try:
            results = capture(capture.state() or [], inputs)
        except UpconvError as error:
            return str(error)
        return difference(results, expected)

    def _remember(self, key: Key, capture: Capture | None) -> None:
        if len(self._by_signature) >= _MAX_SIGNATURES:
            self._by_signature = {}
        self._by_signature[key] = capture


class Watch:
    """A detector of calls that change the model, its tensors or their inputs."""

    def __init__(self, model: Any, inputs: Any) -> None:
        tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        self._tensors = [*model.parameters(), *model.buffers(), *tensors]
        self._versions = self._now()
        self._reason = ""
        try:
            self._snapshot = Snapshot(model)
        except Unwatchable as error:
            self._reason = str(error)

    def unchanged(self) -> Snapshot:
        """Return the model's snapshot; raise `Unwatchable` if the model has changed."""
        if self._reason:
            raise Unwatchable(self._reason)
        if not self._snapshot.holds() or self._versions != self._now():
            raise Unwatchable("its forward changes the model or its inputs")
        return self._snapshot

    def _now(self) -> list[int]:
        return [-1 if tensor.is_inference() else tensor._version for tensor in self._tensors]


def difference(results: Any, expected: Any) -> str:
    """Return how two results of a model differ by more than rounding; "" if they agree."""
    pairs = [tree_leaves(results), tree_leaves(expected)]
    others = [[leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)] for leaves in pairs]
    if others[0] != others[1]:
        return "values other than tensors differ"
    return disagreement(arrays_of(pairs[0]), arrays_of(pairs[1]))


def _structure(value: Any, inputs: list[Tensor]) -> Any:
    """Return a hashable form of the inputs without tensors; append the tensors to `inputs`."""
    kind = type(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if not value.is_cpu or value.layout is not torch.strided:
            raise Unwatchable(f"an input is on {value.device} or not dense")
        if any(value is tensor for tensor in inputs) or value.is_conj() or value.is_neg():
            raise Unwatchable("inputs are the same tensor, or views with a pending operation")
        inputs.append(value)
        return torch.Tensor
    if kind is tuple or kind is list:
        return kind, *(_structure(item, inputs) for item in value)
    if kind is dict:
        return kind, *((name, _structure(item, inputs)) for name, item in value.items())
    if kind in _CONSTANTS:
        return "constant", kind, value
    raise Unwatchable(f"an input is of type {kind.__name__}")


def _form(structure: Any, inputs: list[Tensor]) -> Key:
    """Return a capture's key: structure, dtypes, memory layouts, and sizes capped at 2."""
    return structure, *(
        (x.dtype, tuple(min(size, 2) for size in x.shape), _layout(x)) for x in inputs
    )


def _layout(x: Tensor) -> Any:
    """Return a tensor's memory format, or its strides if the format is not standard."""
    if x.is_contiguous():
        return "contiguous"
    return "channels last" if channels_last(x) else x.stride()
