"""Plans: ordinary and transposed convolutions with weights packed once for repeated calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy import ndarray

from .arrays import Array, Operand, as_operand, as_shape, converted, copied, described
from .devices import DeviceArray, same_place
from .engine_choice import Algorithm
from .engines.base import Engine
from .errors import DTypeError, EngineError, ShapeError
from .execution import (
    PackedCall,
    Packings,
    PreparedCall,
    delivered,
    engine_for,
    prepared_problem,
    result_array,
)
from .keywords import Keywords
from .problem import Problem
from .shape_checks import Request, activation_of
from .signatures import AlgorithmName, Layout, Padding, PrecisionName, Sizes, WeightOrder
from .threads import resolved


def plan(
    input_shape: Sequence[int],
    weight: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    output_padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    output_size: Any = None,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "IOX",
    activation: Any = None,
    residual: Any = None,
    engine: str | Engine | None = None,
    algorithm: AlgorithmName = "auto",
    precision: PrecisionName | None = None,
    dtype: Any = None,
    threads: int | None = None,
    tune: bool | None = None,
) -> Plan:
    """Plan `conv_transpose` for one input shape, with its weight packed once.

    The plan is called as `plan(x, residual=None, out=None)`.

    input_shape: the shape of x, with or without N. weight, bias and the other keywords: as in
        `conv_transpose`.
    residual: True, or an array of the result's shape, makes a plan that is called with a residual.
    dtype: the dtype to compute in; weight and bias are converted to it (default: the weight's).
    threads: the plan's number of threads (default: the current `get_num_threads()`).
    tune: True uses the fastest engine and variant on record, or measures them (half a second) and
        stores the fastest on disk. False chooses by cost models, without reading measurements. None
        follows `UPCONV_TUNE` (1 or 0; default 0), which is read once.

    Raises the same errors as `conv_transpose`.

    >>> import numpy as np
    >>> double = plan((1, 1, 3), np.ones((1, 1, 2), np.float32), stride=2)
    >>> double(np.array([[[1, 2, 3]]], np.float32))
    array([[[1., 1., 2., 2., 3., 3.]]], dtype=float32)
    """
    keywords = Keywords.of(
        stride, padding, output_padding, dilation, groups, output_size, layout, weight_layout,
        precision,
    )  # fmt: skip
    layer = input_shape, weight, bias, keywords, activation, residual
    return _make_plan(False, *layer, engine, algorithm, dtype, threads, tune)


def conv_plan(
    input_shape: Sequence[int],
    weight: Any,
    bias: Any = None,
    *,
    stride: Sizes = 1,
    padding: Padding = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: Layout = "NCX",
    weight_layout: WeightOrder = "OIX",
    activation: Any = None,
    residual: Any = None,
    engine: str | Engine | None = None,
    algorithm: AlgorithmName = "auto",
    precision: PrecisionName | None = None,
    dtype: Any = None,
    threads: int | None = None,
    tune: bool | None = None,
) -> Plan:
    """Plan `conv` for one input shape, with its weight packed once; call it like `plan`'s result.

    input_shape: the shape of x, with or without N. weight, bias, stride, padding, dilation, groups
        and the layouts: as in `conv`. All other arguments: as in `plan`.

    Raises the same errors as `conv`.

    >>> import numpy as np
    >>> edges = conv_plan((1, 1, 4), np.array([[[-1, 1]]], np.float32), padding=((0, 1),))
    >>> edges(np.array([[[1, 2, 4, 8]]], np.float32))
    array([[[ 1.,  2.,  4., -8.]]], dtype=float32)
    """
    geometry = stride, padding, 0, dilation, groups, None
    keywords = Keywords.of(*geometry, layout, weight_layout, precision)
    layer = input_shape, weight, bias, keywords, activation, residual
    return _make_plan(True, *layer, engine, algorithm, dtype, threads, tune)


def _make_plan(
    convolves: bool, input_shape: Sequence[int], weight: Any, bias: Any, keywords: Keywords,
    activation: Any, residual: Any, engine: str | Engine | None, algorithm: str, dtype: Any,
    threads: int | None, tune: bool | None,
) -> Plan:  # fmt: skip
    """Plan an ordinary or a transposed convolution."""
    (activation, slopes), choice = activation_of(activation, dtype), Algorithm.of(algorithm)
    weight = converted("weight", weight, dtype)
    bias = None if bias is None else converted("bias", bias, dtype)
    x = Operand(as_shape("input_shape", input_shape), weight.dtype)
    request = Request(x, described(weight), described(bias), keywords, activation, convolves)
    fixed = request, engine, resolved(threads), weight, bias
    return Plan(*fixed, residual, tune, choice, slopes=slopes)


class _Form(NamedTuple):
    """A plan's call with or without a residual, and its unpacked copies of arrays."""

    call: PackedCall
    weight: Array
    bias: Array | None
    slopes: Array | None


class Plan:
    """A convolution ready to run: made by `upconv.plan` or `upconv.conv_plan`, called with x.

    A plan holds copies of the weight and the bias, so later changes to the caller's arrays do not
    affect it. Many threads may call it at once. `close`, or the end of a `with` block, releases
    its memory; a closed plan raises `EngineError`. Copying or unpickling makes a new plan.

    >>> import numpy as np, upconv
    >>> with upconv.plan((1, 1, 3), np.ones((1, 1, 2), np.float32), stride=2) as plan:
    ...     plan(np.array([[[1, 2, 3]]], np.float32))
    array([[[1., 1., 2., 2., 3., 3.]]], dtype=float32)
    """

    def __init__(
        self,
        request: Request,
        engine: str | Engine | None,
        threads: int,
        weight: Array,
        bias: Array | None,
        residual: object,
        tune: bool | None = None,
        algorithm: Algorithm = Algorithm.DIRECT,
        packings: Packings | None = None,
        slopes: Array | None = None,
    ) -> None:
        """Prepare `request` on copies of its arrays; call `upconv.plan` instead.

        packings: from another plan that already owns these copies.
        """
        self._request = request
        # Arrays of this type pass the fast check in `_operand`; None for arrays on a device.
        self._kind = None if isinstance(weight, DeviceArray) else ndarray
        self._engine = engine_for(engine, weight=weight, bias=bias, slopes=slopes)
        self._threads = threads
        self._residual = residual = request.takes_residual(residual)
        self._tune = tune
        self._algorithm = algorithm
        if packings is None:
            weight = copied("the plan's weight", weight)
            bias = None if bias is None else copied("the plan's bias", bias)
            slopes = None if slopes is None else copied("the plan's slopes", slopes)
        self._packings = packings or Packings()
        form = self._prepare(residual, weight, bias, slopes)
        # Everything that `close` drops is in one attribute: another thread may close at any time.
        self._forms = {residual: form}
        self._signature, self._engine_name = form.call.signature, form.call.engine
        self._workspace_bytes = form.call.primitive.workspace_bytes

    @property
    def problem(self) -> Problem:
        """The problem this plan solves."""
        return self._signature.problem

    @property
    def engine(self) -> str:
        """Name of the engine that runs this plan; "reference" if the weight is not finite."""
        return self._engine_name

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The required shape of x."""
        return self._request.x.shape

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the result."""
        return self._signature.shape

    @property
    def workspace_bytes(self) -> int:
        """Scratch memory of one running call in bytes."""
        return self._workspace_bytes

    def __call__(self, x: Any, residual: Any = None, out: Array | None = None) -> Array:
        """Run on x, which has the shape `input_shape`.

        residual: an array of `output_shape`. A plan made with a residual requires one. Other plans
        accept one, and prepare for it in the first such call. out: as in `conv_transpose`.

        Raises the same errors as `conv_transpose`.
        """
        if residual is None and self._residual:
            expected = f"an array of shape {self.output_shape}: the plan was made with one"
            raise DTypeError("residual", "None", expected, "Pass it, or plan without a residual.")
        form = self._forms.get(residual is not None) or self._form(residual is not None)
        signature = form.call.signature
        x = self._operand("x", x, self._request.x.shape)
        if residual is not None:
            residual = self._operand("residual", residual, signature.shape)
        target = result_array(signature, out, (x, residual))
        form.call.run(target, x, form.bias, residual, form.slopes)
        return delivered(target, out)

    def resized(self, input_shape: Sequence[int]) -> Plan:
        """Plan the same layer for another input shape, on the same copies of weight and bias.

        For most layers the packing order does not depend on the shape. The weight is then not
        packed again: plans for many lengths share one copy. Each plan must be closed separately.

        Raises the same errors as `plan`.

        >>> import numpy as np, upconv
        >>> three = upconv.plan((1, 1, 3), np.ones((1, 1, 2), np.float32), stride=2)
        >>> three.resized((1, 1, 2))(np.array([[[4, 5]]], np.float32))
        array([[[4., 4., 5., 5.]]], dtype=float32)
        """
        shape = as_shape("input_shape", input_shape)
        x = Operand(shape, self._request.x.dtype)
        try:
            return Plan(*self._arguments(self._request._replace(x=x), self._packings))
        except ShapeError as error:
            if error.argument != "weight.shape":
                raise
            expected = f"as many channels as in {self.input_shape}"
            remedy = "The plan keeps its weight; make another plan for other channels."
            raise ShapeError("input_shape", str(shape), expected, remedy) from None

    def close(self) -> None:
        """Release primitives and weights; calls that are already running finish normally."""
        self._forms = {}

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self._arguments(self._request, None)
        if self._kind is None:
            message = "A plan on a GPU cannot be copied or pickled. Make a new one from its weight."
            raise EngineError(message)
        return Plan, arguments

    def __repr__(self) -> str:
        return f"<Plan {self.problem} on {self.engine}>"

    def _arguments(self, request: Request, packings: Packings | None) -> tuple[Any, ...]:
        """Return the arguments for another plan of this layer."""
        _, weight, bias, slopes = self._form(self._residual)
        fixed = request, self._engine, self._threads, weight, bias
        return *fixed, self._residual, self._tune, self._algorithm, packings, slopes

    def _form(self, residual: bool) -> _Form:
        """Return the plan's form with or without a residual; two threads may both prepare it."""
        forms = self._forms
        first = forms.get(self._residual)
        if first is None:
            raise EngineError("This plan is closed. Make a new one with upconv.plan.")
        form = forms.get(residual) or self._prepare(residual, *first[1:])
        return forms.setdefault(residual, form)

    def _prepare(
        self, residual: bool, weight: Array, bias: Array | None, slopes: Array | None
    ) -> _Form:
        signature = self._request.signature(residual=residual)
        fixed = self._engine, self._threads
        if self._tune is None and signature.batched:
            call = prepared_problem(signature.problem, *fixed, self._algorithm)
        else:
            call = PreparedCall(signature, *fixed, self._tune, self._algorithm)
        return _Form(call.pack(weight, self._packings), weight, bias, slopes)

    def _operand(self, name: str, value: Any, shape: tuple[int, ...]) -> Array:
        dtype = self._request.weight.dtype
        if type(value) is self._kind and value.dtype is dtype and value.shape == shape:
            return value  # the checks below would agree, in five times the time
        array = as_operand(name, value)
        if isinstance(array, DeviceArray) or self._kind is None:
            same_place({"the plan's weight": self._form(self._residual).weight, name: array})
        if array.shape != shape:
            expected, remedy = f"{shape}, as planned", "Make a plan for this shape."
            raise ShapeError(f"{name}.shape", str(array.shape), expected, remedy)
        if array.dtype != dtype:
            expected = f"{dtype}, as planned"
            remedy = "Convert it, or make a new plan."
            raise DTypeError(f"{name}.dtype", str(array.dtype), expected, remedy)
        return array
