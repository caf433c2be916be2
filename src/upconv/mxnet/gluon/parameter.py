"""Parameters of layers; the first forward call may determine their shapes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from ...errors import brief
from ..base import (
    DeferredInitializationError,
    MXNetError,
    MXNetValueError,
    raised_by,
    require,
    require_processor,
)
from ..initializer import Constant, InitDesc, Uniform, create
from ..ndarray import NDArray
from ..np import ndarray
from ..operators import Shape, unified
from ..params import read_params, write_params
from ..symbol import Symbol, var
from ..tape import REQUESTS


class Parameter:
    """An array with a gradient; a size of 0 or -1 in `shape` is unknown.

    `data()` raises `DeferredInitializationError` until the shape is known, and `RuntimeError`
    before `initialize()`.
    """

    def __init__(
        self, name: str = "weight", grad_req: str = "write", shape: Any = None,
        dtype: Any = np.float32, lr_mult: float = 1.0, wd_mult: float = 1.0, init: Any = None,
        allow_deferred_init: bool = False, differentiable: bool = True, stype: str = "default",
        grad_stype: str = "default",
    ) -> None:  # fmt: skip
        self.name, self.init, self.dtype = name, init, dtype
        self.lr_mult, self.wd_mult = lr_mult, wd_mult
        self._variable: Symbol | None = None
        sizes = (shape,) if isinstance(shape, int) else shape
        with raised_by(f"the shape of {name}"):
            self._shape: Shape | None = None if sizes is None else tuple(max(0, s) for s in sizes)
        self._array: NDArray | None = None
        self._pending: Any = None  # the initializer, until the shape is known
        self.grad_req = grad_req if differentiable else "null"

    @property
    def grad_req(self) -> str:
        """The treatment of the gradient: null, write or add."""
        return self._grad_req

    @grad_req.setter
    def grad_req(self, word: str) -> None:
        require(word in REQUESTS, f"grad_req is {brief(word)}; expected null, write or add")
        self._grad_req = word
        if self._array is not None:
            self._array.attach_grad(word)

    @property
    def shape(self) -> Shape | None:
        """The shape, with 0 for an unknown size."""
        return self._shape

    @shape.setter
    def shape(self, shape: Any) -> None:
        self._shape = unified(f"the shape of {self.name}", self._shape, tuple(shape))
        self._make()

    def initialize(
        self, init: Any = None, ctx: Any = None, default_init: Any = None,
        force_reinit: bool = False, device: Any = None,
    ) -> None:  # fmt: skip
        """Create the array, now or as soon as its shape is known."""
        require_processor(ctx or device)
        if self._array is not None and not force_reinit:
            words = f"Parameter {self.name} is initialized; force_reinit=True initializes it again."
            warnings.warn(words, stacklevel=3)
            return
        initializers = (x for x in (init, self.init, default_init) if x is not None)
        self._pending = create(next(initializers, Uniform()))
        self._make()

    def _make(self) -> None:
        if self._pending is not None and self._shape is not None and 0 not in self._shape:
            array = NDArray(np.zeros(self._shape, self.dtype))
            self._pending._init_weight(InitDesc(self.name), array)
            self._hold(array.value)

    def _hold(self, values: Any) -> None:
        self._pending, self._array = None, ndarray(np.array(values, self.dtype))
        self._array.attach_grad(self.grad_req)

    def data(self, ctx: Any = None) -> Any:
        """Return the array."""
        if self._array is None and self._pending is None:
            raise MXNetError(f"Parameter {self.name} is not initialized; call initialize().")
        if self._array is None:
            raise DeferredInitializationError(
                f"The shape of {self.name} is {self._shape}; the first forward call completes it."
            )
        return self._array

    def var(self, name: str | None = None) -> Symbol:
        """Return the parameter's variable in graphs; a name creates a new one."""
        if self._variable is None or name is not None:
            mults = {"lr_mult": self.lr_mult, "wd_mult": self.wd_mult}
            self._variable = var(name or self.name, None, self._shape, dtype=self.dtype, **mults)
        return self._variable

    def grad(self, ctx: Any = None) -> Any:
        """Return the gradient."""
        if self.grad_req == "null":
            raise MXNetError(f"Parameter {self.name} has grad_req null and therefore no gradient.")
        return self.data().grad

    def list_data(self) -> list[Any]:
        """Return a list with the array on the only device."""
        return [self.data()]

    def zero_grad(self) -> None:
        """Set the gradient to zero."""
        self.data().zero_grad()

    def set_data(self, data: Any) -> None:
        """Set the values, which also determine an unknown shape."""
        values = np.array(data, self.dtype)
        old = self._shape or values.shape
        fits = len(old) == values.ndim and all(
            a in (0, b) for a, b in zip(old, values.shape, strict=False)
        )
        require(fits, f"the values of {self.name} have shape {values.shape}; expected {old}")
        self._shape = values.shape
        if self._array is None:
            self._hold(values)
        else:
            self._array[:] = values

    def cast(self, dtype: Any) -> None:
        """Convert the elements to another type."""
        self.dtype = dtype
        if self._array is not None:
            self._hold(self._array.value)

    def __repr__(self) -> str:
        return f"Parameter {self.name} (shape={self._shape}, dtype={np.dtype(self.dtype)})"


class ParameterDict(dict[str, Parameter]):
    """Parameters by name."""

    def initialize(self, *values: Any, **named: Any) -> None:
        """Initialize all parameters; see `Parameter.initialize`."""
        for parameter in {id(p): p for p in self.values()}.values():
            parameter.initialize(*values, **named)

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        for parameter in self.values():
            parameter.zero_grad()

    def setattr(self, name: str, value: Any) -> None:
        """Set an attribute of all parameters."""
        for parameter in self.values():
            setattr(parameter, name, value)

    def get(self, name: str, default: Any = None, **named: Any) -> Any:
        """Return the parameter of this name; if there is none, create it with these arguments."""
        if name not in self and named:
            self[name] = Parameter(name, **named)
        return super().get(name, default)

    def get_constant(self, name: str, value: Any = None) -> Any:
        """Return the parameter of this name; if absent, create a constant with these values."""
        shape = np.shape(value)
        return self.get(name, grad_req="null", shape=shape, init=Constant(np.asarray(value)))

    def save(self, filename: Any) -> None:
        """Write the values to a .params file."""
        write_params(filename, {k: p.data().asnumpy() for k, p in self.items()}, force=True)

    def load(
        self, filename: Any, ctx: Any = None, allow_missing: bool = False,
        ignore_extra: bool = False, **unused: Any,
    ) -> None:  # fmt: skip
        """Read values by name from a .params file; the prefixes `arg:` and `aux:` are ignored.

        Raises `MXNetValueError` for a name that the file lacks, unless `allow_missing`, and for one
        that only the file has, unless `ignore_extra`.
        """
        values = {name.split(":", 1)[-1]: value for name, value in read_params(filename).items()}
        wrong = [] if allow_missing else [(n, "lacks") for n in self if n not in values]
        wrong += [] if ignore_extra else [(n, "has") for n in values if n not in self]
        for name, verb in wrong:
            raise MXNetValueError(f"{filename} {verb} {name!r}; expected {', '.join(self)}.")
        for name in values.keys() & self.keys():
            self[name].set_data(values[name])
