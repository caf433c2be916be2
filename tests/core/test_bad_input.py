"""Bad input of every kind ends in an `UpconvError` that names argument, value and remedy."""

# One row per kind reads better than one kind per page.
# ruff: noqa: E501

from collections.abc import Callable

import numpy as np
import pytest

import upconv
from upconv import ArgumentError, DTypeError, Gradients, MemoryLimitError, ShapeError

X, W, B = np.ones((2, 6, 5), "f"), np.ones((6, 4, 3), "f"), np.ones(4, "f")
X2, W2 = np.ones((1, 6, 5, 7), "f"), np.ones((6, 4, 3, 2), "f")
Y = upconv.conv_transpose(X, W)
T, P, BACK = upconv.conv_transpose, upconv.plan, upconv.conv_transpose_backward

# (name of the kind, the call, kind of error, what the message must say)
KINDS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    # Arrays
    ("x a list", lambda: T([[1.0]], W), DTypeError, "x is [[1.0]] (list); expected an array, or an object with __array__ or __dlpack__. For numbers in a list write np.asarray(x, dtype=np.float32)."),
    ("x a float", lambda: T(1.5, W), DTypeError, "x is 1.5 (float); expected an array"),
    ("x None", lambda: T(None, W), DTypeError, "x is None (NoneType)"),
    ("x a string", lambda: T("x.npy", W), DTypeError, "x is 'x.npy' (str)"),
    ("x a class", lambda: T(np.ndarray, W), DTypeError, "x is <class 'numpy.ndarray'> (type)"),
    ("x integers", lambda: T(X.astype("i4"), W), DTypeError, "x.dtype is int32; expected float16, bfloat16, float32 or float64. Integers are not supported: convert with .astype(np.float32)."),
    ("x unsigned", lambda: T(X.astype("u1"), W), DTypeError, "x.dtype is uint8"),
    ("x booleans", lambda: T(X.astype(bool), W), DTypeError, "x.dtype is bool"),
    ("x complex", lambda: T(X.astype("c8"), W), DTypeError, "x.dtype is complex64; expected float16, bfloat16, float32 or float64. The operator is linear: pass the real and the imaginary part"),
    ("x objects", lambda: T(X.astype(object), W), DTypeError, "x.dtype is object"),
    ("x of strings", lambda: T(np.full((1, 6, 5), "1"), W), DTypeError, "x.dtype is <U1"),
    ("x of dates", lambda: T(np.zeros((1, 6, 5), "M8[s]"), W), DTypeError, "x.dtype is datetime64[s]"),
    ("x extended", lambda: T(X.astype(np.longdouble), W), DTypeError, "x.dtype is"),
    ("x raw bytes", lambda: T(X.astype("f2").view("V2"), W), DTypeError, "x.dtype is |V2; expected float16, bfloat16, float32 or float64. NumPy reads bfloat16 files as raw bytes: convert with .view(ml_dtypes.bfloat16)."),
    ("x structured", lambda: T(np.zeros((1, 6, 5), "f4,f4"), W), DTypeError, "x.dtype is [("),
    ("x masked", lambda: T(np.ma.array(X), W), DTypeError, "x is a masked array; expected an array without a mask. Fill it first: x.filled(0)."),
    ("x on a device", lambda: T(OnDevice(), W), DTypeError, "x is an object of type OnDevice on DLPack device (2, 0); expected a PyTorch or CuPy array there. Install CuPy (cupy-cuda13x, or cupy-cuda12x), or copy it to the CPU first."),
    ("x failing", lambda: T(Failing(), W), DTypeError, "x is an object of type Failing whose __array__ failed (RuntimeError('not today')); expected an array that NumPy can read"),
    ("weight a list", lambda: T(X, [[[1.0]]]), DTypeError, "weight is [[[1.0]]] (list)"),
    ("weight mixed dtype", lambda: T(X, W.astype("d")), DTypeError, "weight.dtype is float64; expected float32, the dtype of x. Convert one of them, as in weight.astype('float32')."),
    ("bias mixed dtype", lambda: T(X, W, B.astype("d")), DTypeError, "bias.dtype is float64; expected float32, the dtype of weight"),
    ("residual mixed dtype", lambda: T(X, W, residual=Y.astype("d")), DTypeError, "residual.dtype is float64"),
    ("bias a number", lambda: T(X, W, 0.0), DTypeError, "bias is 0.0 (float)"),
    # Shapes
    ("x too flat", lambda: T(np.ones(5, "f"), W), ShapeError, "x.shape is (5,); expected 3 axes (NCX, with 1 spatial axis like the kernel), or 2 without the batch."),
    ("x too deep", lambda: T(X2, W), ShapeError, "x.shape is (1, 6, 5, 7); expected 3 axes"),
    ("x without a spatial axis", lambda: T(X, W2), ShapeError, "x.shape is (2, 6, 5), with 1 spatial axis; expected 2, like the weight (6, 4, 3, 2): 4 axes (NCX), or 3 without the batch. Add the missing axis, as in x[..., None], or use another weight."),
    ("x without spatial axes", lambda: T(X[..., 0], W), ShapeError, "x.shape is (2, 6), with 0 spatial axes; expected 1, like the weight (6, 4, 3): 3 axes (NCX), or 2 without the batch."),
    ("x of conv without a spatial axis", lambda: upconv.conv(X, np.ones((4, 3, 3, 2), "f"), groups=2), ShapeError, "x.shape is (2, 6, 5), with 1 spatial axis; expected 2, like the weight (4, 3, 3, 2)"),
    ("x a scalar array", lambda: T(np.float32(3), W), ShapeError, "x.shape is ()"),
    ("weight too flat", lambda: T(X, np.ones((6, 4), "f")), ShapeError, "weight.shape is (6, 4); expected at least 3 axes: two of channels and a kernel (IOX)."),
    ("weight with an empty kernel", lambda: T(X, np.ones((6, 4, 0), "f")), ShapeError, "weight.shape is (6, 4, 0); expected no axis of size 0."),
    ("weight without channels", lambda: T(X, np.ones((6, 0, 3), "f")), ShapeError, "weight.shape is (6, 0, 3)"),
    ("x without channels", lambda: T(np.ones((1, 0, 5), "f"), W), ShapeError, "x.shape is (1, 0, 5); expected at least 1 channel (NCX)."),
    ("channels differ", lambda: T(X, np.ones((7, 4, 3), "f")), ShapeError, "weight.shape is (7, 4, 3), with 7 on axis I of IOX; expected 6 there, the channels of x (2, 6, 5). Check that the weight is in the order 'IOX' (I input, O output channels)."),
    ("channels swapped", lambda: T(X, np.ones((4, 6, 3), "f")), ShapeError, "Axes I and O look swapped: use weight_layout='OIX', or transpose the weight."),
    ("channels of NXC", lambda: T(X, W, layout="NXC"), ShapeError, "expected 5 there, the channels of x (2, 6, 5). If the channels of x are its first axis after N, use layout='NCX'."),
    ("channels last without a layout", lambda: T(np.ones((2, 5, 6), "f"), W), ShapeError, "expected 5 there, the channels of x (2, 5, 6). If the channels of x are its last axis, use layout='NXC'."),
    ("a plan resized to other channels", lambda: upconv.plan((1, 6, 5), W).resized((1, 4, 5)), ShapeError, "input_shape is (1, 4, 5); expected as many channels as in (1, 6, 5)."),
    ("stride a large array", lambda: T(X, W, stride=np.ones((3, 300))), DTypeError, "stride is an array of shape (3, 300) (ndarray)"),
    ("bias too long", lambda: T(X, W, np.ones(6, "f")), ShapeError, "bias.shape is (6,); expected (4,), one value per output channel."),
    ("bias not flat", lambda: T(X, W, np.ones((1, 4, 1), "f")), ShapeError, "bias.shape is (1, 4, 1)"),
    ("bias of one group", lambda: T(X, W, B, groups=2), ShapeError, "bias.shape is (4,); expected (8,)"),
    ("residual of x's shape", lambda: T(X, W, residual=X), ShapeError, "residual.shape is (2, 6, 5); expected (2, 4, 7), the shape of the result."),
    ("grad of another shape", lambda: BACK(Y[..., 1:], X, W), ShapeError, "grad.shape is (2, 4, 6); expected (2, 4, 7), the shape of the forward result. Pass the keywords of the forward call."),
    ("grad mixed dtype", lambda: BACK(Y.astype("d"), X, W), DTypeError, "grad.dtype is float64; expected float32, the dtype of x"),
    ("conv channels", lambda: upconv.conv(X, W), ShapeError, "weight.shape is (6, 4, 3), with 4 on axis I of OIX; expected 6 there, the channels of x (2, 6, 5). Axes I and O look swapped: use weight_layout='IOX'"),
    ("conv kernel too long", lambda: upconv.conv(X, np.ones((4, 6, 9), "f"), padding=1), ShapeError, "spatial axis 0: the padded input is 7 positions = 5 + 1 + 1; expected at least the dilated kernel's extent, 9. Pad more, or use a smaller kernel or dilation."),
    # Numbers
    ("stride zero", lambda: T(X, W, stride=0), ArgumentError, "stride is 0; expected an integer >= 1."),
    ("stride negative", lambda: T(X2, W2, stride=(2, -1)), ArgumentError, "stride[1] is -1; expected an integer >= 1."),
    ("stride a float", lambda: T(X, W, stride=2.0), DTypeError, "stride is 2.0 (float); expected an int, or a tuple of ints."),
    ("stride a bool", lambda: T(X, W, stride=True), DTypeError, "stride is True (bool)"),
    ("stride None", lambda: T(X, W, stride=None), ArgumentError, "stride is None; expected an int, or one int per spatial axis (the weight has 1)."),
    ("stride a string", lambda: T(X, W, stride="2"), ArgumentError, "stride is '2'"),
    ("stride too many", lambda: T(X, W, stride=(2, 2)), ArgumentError, "stride is (2, 2); expected an int, or one int per spatial axis (the weight has 1)."),
    ("stride too few", lambda: T(X2, W2, stride=(2,)), ArgumentError, "stride is (2,); expected an int, or one int per spatial axis (the weight has 2)"),
    ("stride empty", lambda: T(X, W, stride=()), ArgumentError, "stride is ()"),
    ("stride nested", lambda: T(X, W, stride=[[2]]), ArgumentError, "stride is ((2,),)"),
    ("stride endless", lambda: T(X, W, stride=endless()), DTypeError, "stride[0][0] is"),
    ("stride an array of floats", lambda: T(X, W, stride=np.array([2.0])), DTypeError, "stride[0] is 2.0 (float); expected an int"),
    ("stride enormous", lambda: T(X, W, stride=2**70), ArgumentError, "stride is 1180591620717411303424; expected an integer <= 2**48"),
    ("dilation zero", lambda: T(X, W, dilation=0), ArgumentError, "dilation is 0; expected an integer >= 1."),
    ("dilation a float", lambda: T(X, W, dilation=[1.5]), DTypeError, "dilation[0] is 1.5 (float)"),
    ("groups zero", lambda: T(X, W, groups=0), ArgumentError, "groups is 0; expected an integer >= 1."),
    ("groups negative", lambda: T(X, W, groups=-2), ArgumentError, "groups is -2"),
    ("groups not a divisor", lambda: T(X, W, groups=4), ArgumentError, "groups is 4; expected a divisor of the 6 input channels."),
    ("groups a tuple", lambda: T(X, W, groups=(2,)), DTypeError, "groups is (2,) (tuple); expected an integer."),
    ("groups a float", lambda: T(X, W, groups=2.0), DTypeError, "groups is 2.0 (float)"),
    ("padding half a pair", lambda: T(X, W, padding=((1,),)), ArgumentError, "padding[0] is (1,); expected an int or a (begin, end) pair of ints."),
    ("padding a flat pair", lambda: T(X, W, padding=(1, 2)), ArgumentError, "padding is (1, 2); expected an int, or one int or (begin, end) pair per spatial axis (the weight has 1), or 'valid', 'same_upper' or 'same_lower'. For one axis write ((begin, end),)."),
    ("padding three per axis", lambda: T(X, W, padding=((1, 2, 3),)), ArgumentError, "padding[0] is (1, 2, 3)"),
    ("padding a float", lambda: T(X, W, padding=0.5), DTypeError, "padding is 0.5 (float)"),
    ("padding None", lambda: T(X, W, padding=None), ArgumentError, "padding is None"),
    ("padding same", lambda: T(X, W, padding="same"), ArgumentError, "padding is 'same'; expected an int, or one int or (begin, end) pair per spatial axis (the weight has 1), or 'valid', 'same_upper' or 'same_lower'. 'same' alone does not say which end gets the odd position."),
    ("padding shouted", lambda: T(X, W, padding="SAME_UPPER"), ArgumentError, "padding is 'SAME_UPPER'"),
    ("padding too large", lambda: T(X, W, padding=4), ShapeError, "spatial axis 0: the output size is -1 = (5 - 1)*1 + 1*(3 - 1) + 1 - 4 - 4; expected at least 0. Crop less, or use a larger input or kernel."),
    ("padding too large on axis 1", lambda: T(X2, W2, padding=(0, 9)), ShapeError, "spatial axis 1: the output size is -10"),
    ("padding enormous", lambda: T(X, W, padding=-(2**60)), ArgumentError, "padding[0] is -1152921504606846976; expected an integer >= -281474976710656"),
    ("output_padding negative", lambda: T(X, W, output_padding=-1), ArgumentError, "output_padding is -1; expected an integer >= 0."),
    ("output_padding too many", lambda: T(X, W, output_padding=(0, 1)), ArgumentError, "output_padding is (0, 1)"),
    ("output_size negative", lambda: T(X, W, output_size=-1), ArgumentError, "output_size is -1; expected an integer >= 0."),
    ("output_size with channels", lambda: T(X, W, output_size=(2, 4, 7)), ArgumentError, "output_size is (2, 4, 7); expected an int, or one int"),
    ("output_size and output_padding", lambda: T(X, W, output_size=9, output_padding=1), ArgumentError, "output_padding is 1; expected 0 when output_size is given (9). output_size fixes the end"),
    ("output too large for memory", lambda: T(X, W, output_size=10**12), MemoryLimitError, "the result, of shape (2, 4, 1000000000000), needs 29.1 TiB; this process may use"),
    ("output beyond 64 bits", lambda: T(X2, W2, output_size=2**47), MemoryLimitError, "this process may use"),
    # Words
    ("layout unknown", lambda: T(X, W, layout="NCHW"), ArgumentError, "layout is 'NCHW'; expected one of 'NCX', 'NXC'."),
    ("layout None", lambda: T(X, W, layout=None), ArgumentError, "layout is None"),
    ("weight_layout unknown", lambda: T(X, W, weight_layout="OIHW"), ArgumentError, "weight_layout is 'OIHW'; expected one of 'IOX', 'OIX', 'XIO', 'XOI', 'IXO', 'OXI'."),
    ("activation unknown", lambda: T(X, W, activation="swish"), ArgumentError, "activation is 'swish'; expected None or one of 'relu', 'leaky_relu', 'tanh', 'sigmoid', 'silu', 'gelu', 'relu6', 'hard_swish'; leaky_relu also as ('leaky_relu', slope), or ('prelu', slopes)."),
    ("prelu without slopes", lambda: T(X, W, activation="prelu"), ArgumentError, "activation is 'prelu'; expected None or one of"),
    ("slopes of other channels", lambda: T(X, W, activation=("prelu", np.ones(3, np.float32))), ShapeError, "slopes.shape is (3,); expected (4,), one value per output channel. One slope for all channels is activation=('leaky_relu', slope)."),
    ("slopes a number", lambda: T(X, W, activation=("prelu", 0.2)), DTypeError, "slopes is 0.2 (float); expected an array"),
    ("slopes of another dtype", lambda: T(X, W, activation=("prelu", np.ones(2))), DTypeError, "slopes.dtype is float64; expected float32, the dtype of weight."),
    ("prelu in a stream", lambda: upconv.stream(W, activation=("prelu", np.ones(2))), ArgumentError, "Only conv, conv_transpose, their plans and explain take it"),
    ("activation a function", lambda: T(X, W, activation=np.tanh), DTypeError, "activation is <ufunc 'tanh'> (ufunc); expected None or one of 'relu'"),
    ("activation with a slope it has not", lambda: T(X, W, activation=("relu", 0.1)), ArgumentError, "'relu' alone: it has no slope"),
    ("slope not a number", lambda: T(X, W, activation="leaky_relu:steep"), ArgumentError, "activation slope is 'steep'; expected a finite number."),
    ("slope not finite", lambda: T(X, W, activation=("leaky_relu", float("nan"))), ArgumentError, "activation slope is nan; expected a finite number. It is the factor"),
    ("engine unknown", lambda: T(X, W, engine="cuda"), ArgumentError, "engine is 'cuda'; expected one of"),
    ("engine a number", lambda: T(X, W, engine=3), DTypeError, "engine is 3 (int); expected None, a name, or an object with name, fingerprint, refuses, variants, build."),
    ("needs unknown", lambda: BACK(Y, X, W, needs=("input",)), ArgumentError, "needs is ('input',); expected some of ('x', 'weight', 'bias')."),
    ("needs a number", lambda: BACK(Y, X, W, needs=3), ArgumentError, "needs is 3"),
    # Results
    ("out a list", lambda: T(X, W, out=[]), DTypeError, "out is of type list; expected a numpy.ndarray or None."),
    ("out of another shape", lambda: T(X, W, out=np.empty((1, 2, 4, 7), "f")), ShapeError, "out.shape is (1, 2, 4, 7); expected (2, 4, 7). Results are never broadcast."),
    ("out of another dtype", lambda: T(X, W, out=Y.astype("d")), DTypeError, "out.dtype is float64; expected float32."),
    ("out in the other byte order", lambda: T(X, W, out=Y.astype(">f4")), DTypeError, "out.dtype is >f4; expected float32."),
    ("out read-only", lambda: T(X, W, out=np.broadcast_to(np.float32(0), Y.shape)), ArgumentError, "out is read-only; expected a writeable array. Pass a copy."),
    ("out overlapping itself", lambda: T(X, W, out=_folded(Y.shape)), ArgumentError, "in which elements share memory; expected an array whose elements are separate."),
    ("out masked", lambda: T(X, W, out=np.ma.array(Y)), DTypeError, "out is of type MaskedArray"),
    ("gradients out a tuple", lambda: BACK(Y, X, W, out=(X, W, B)), DTypeError, "out is of type tuple; expected an upconv.Gradients or None."),
    ("gradients on one array", lambda: _shared(), ArgumentError, "out is one in which x and weight share memory; expected separate arrays."),
    ("accumulating into nothing", lambda: BACK(Y, X, W, accumulate=True), ArgumentError, "accumulate is True; expected an array to add into in out.x. Pass out=Gradients(...)."),
    ("accumulate not a bool", lambda: BACK(Y, X, W, accumulate="no"), DTypeError, "accumulate is 'no'; expected a bool."),
    # Plans, shapes, threads
    ("plan of an array", lambda: P(X, W), DTypeError, "input_shape is of type ndarray; expected a tuple of ints. Pass the array's shape, as in x.shape."),
    ("conv_plan of an array", lambda: upconv.conv_plan(X, W), DTypeError, "input_shape is of type ndarray; expected a tuple of ints. Pass the array's shape"),
    ("explain of an array", lambda: upconv.explain(X, W), DTypeError, "input_shape is of type ndarray; expected a tuple of ints. Pass the array's shape"),
    ("output_shape of an array", lambda: upconv.output_shape(X, W.shape), DTypeError, "input_shape is of type ndarray; expected a tuple of ints. Pass the array's shape"),
    ("output_shape of a weight", lambda: upconv.output_shape(X.shape, W), DTypeError, "weight_shape is of type ndarray; expected a tuple of ints. Pass the array's shape"),
    ("plan of a long array", lambda: P(np.zeros(999, np.float32), W), DTypeError, "input_shape is of type ndarray; expected a tuple of ints. Pass the array's shape"),
    ("plan of a number", lambda: P(5, W), DTypeError, "input_shape is 5; expected a tuple of ints."),
    ("plan of a shape with a float", lambda: P((2, 6, 5.0), W), DTypeError, "input_shape[2] is 5.0 (float)"),
    ("plan of a negative shape", lambda: P((2, 6, -5), W), ShapeError, "input_shape[2] is -5; expected an integer >= 0"),
    ("plan of an unknown dtype", lambda: P(X.shape, W, dtype="float8"), DTypeError, "dtype is 'float8'; expected float16, bfloat16, float32 or float64."),
    ("plan of an integer dtype", lambda: P(X.shape, W, dtype=int), DTypeError, "dtype is <class 'int'>; expected float16"),
    ("plan with a residual that is a word", lambda: P(X.shape, W, residual="yes"), DTypeError, "residual is a str; expected None, a bool or an array."),
    ("plan with a residual of another shape", lambda: P(X.shape, W, residual=X), ShapeError, "residual.shape is (2, 6, 5); expected (2, 4, 7)"),
    ("plan on no threads", lambda: P(X.shape, W, threads=0), ArgumentError, "threads is 0; expected an integer from 1 to 4096."),
    ("output_shape of a weight's rank", lambda: upconv.output_shape((1, 6, 5), (6, 4)), ShapeError, "weight.shape is (6, 4)"),
    ("explain with a residual that is a word", lambda: upconv.explain(X.shape, W, residual="no"), DTypeError, "residual is a str"),
    ("explain with a residual of another shape", lambda: upconv.explain(X.shape, W, residual=X), ShapeError, "residual.shape is (2, 6, 5); expected (2, 4, 7)"),
    ("explain by no engine", lambda: upconv.explain(X.shape, W, engine=object()), DTypeError, "engine is <object object"),
    ("explain of too flat a shape", lambda: upconv.explain((1, 2), W2), ShapeError, "input_shape is (1, 2); expected 4 axes"),
    ("explain of a hole in a shape", lambda: upconv.explain((1, 6, None), W), DTypeError, "input_shape[2] is None (NoneType); expected an integer."),
    # Results in chunks, matrices, streams
    ("dask with too many chunks", lambda: _lazy("conv_transpose", output_padding=2**31), ArgumentError, "chunks is None, which makes 536870914 tasks; expected at most 1048576 tasks for a result. Pass larger chunks"),
    ("dask with no positions in a chunk", lambda: _lazy("conv_transpose", chunks=0), ArgumentError, "chunks is 0; expected chunks of the result's spatial axes (8, 8), in a form that Dask accepts. Dask says: ZeroDivisionError("),
    ("dask with chunks below zero", lambda: _lazy("conv_transpose", chunks=-5), ArgumentError, "chunks is -5; expected chunks"),
    ("dask with single positions of a huge result", lambda: _lazy("conv_transpose", output_size=2**40, chunks=1), ArgumentError, "chunks is 1, which makes 1099511627776 tasks"),
    ("dask without a weight", lambda: _lazy("conv_transpose", weight=None), DTypeError, "weight is None (NoneType); expected an array"),
    ("a matrix too large for memory", lambda: _linear("as_matrix", (1, 2, 6, 6), W4, output_padding=2**40), MemoryLimitError, "a matrix of 1944 products needs over a million EiB"),
    ("an operator's order an array", lambda: _linear("operator", (1, 2, 6, 6), W4, weight_layout=X), DTypeError, "weight_layout[0][0] is [1.0, 1.0, 1.0, 1.0, 1.0] (list)"),
    ("an operator of which kind is unsaid", lambda: _linear("operator", (1, 2, 6, 6), W4, transposed=X), DTypeError, "transposed is an array of shape (2, 6, 5)"),
    ("deconvolve by an array", lambda: _linear("deconvolve", np.ones((1, 3, 8, 8)), W4, method=X), ArgumentError, "method is an array of shape (2, 6, 5)"),
    ("deconvolve damped to nothing", lambda: _linear("deconvolve", np.ones((1, 3, 8, 8)), W4, damp=1e308), ArgumentError, "damp is 1e+308; expected a finite number from 0 to 1e+150."),
    ("a sum's chunk without channels", lambda: upconv.streaming.add((), "relu").push(np.float32(1)), ShapeError, "chunk.shape is (); expected (N, C, n)."),
    ("an array where a word belongs", lambda: T(X, W, activation=X), DTypeError, "activation is an array of shape (2, 6, 5)"),
    ("threads none at all", lambda: upconv.set_num_threads(0), ArgumentError, "n is 0; expected an integer from 1 to 4096."),
    ("threads a bool", lambda: upconv.set_num_threads(True), ArgumentError, "n is True"),
]  # fmt: skip


W4 = np.ones((2, 3, 3, 3), "f")


def _lazy(function: str, weight: object = W4, **keywords: object) -> object:
    """A function of `upconv.dask` on an array in chunks of four by four positions."""
    da = pytest.importorskip("dask.array", reason="needs the extra dask")
    x = da.ones((1, 2, 6, 6), chunks=(1, 2, 4, 4), dtype="f4")
    return getattr(pytest.importorskip("upconv.dask"), function)(x, weight, **keywords)


def _linear(function: str, *arguments: object, **keywords: object) -> object:
    pytest.importorskip("scipy", reason="needs the extra science")
    return getattr(pytest.importorskip("upconv.linear"), function)(*arguments, **keywords)


class OnDevice:
    def __dlpack__(self, **keywords):
        raise AssertionError("never asked: the device is wrong")

    def __dlpack_device__(self):
        return (2, 0)


class Failing:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("not today")


def endless() -> list:
    value: list = []
    value.append(value)
    return value


def _folded(shape: tuple[int, ...]) -> np.ndarray:
    memory = np.zeros(100, "f")
    return np.lib.stride_tricks.as_strided(memory, shape, (4, 4, 4))


def _shared() -> Gradients:
    memory = np.zeros(200, "f")
    out = Gradients(x=memory[:60].reshape(X.shape), weight=memory[50:122].reshape(W.shape))
    return BACK(Y, X, W, out=out)


def test_there_are_many_kinds() -> None:
    assert len({name for name, *_ in KINDS}) == len(KINDS) >= 60


@pytest.mark.parametrize(("name", "call", "kind", "message"), KINDS, ids=[k[0] for k in KINDS])
def test_bad_input(name: str, call: Callable, kind: type[Exception], message: str) -> None:
    with pytest.raises(upconv.UpconvError) as caught:
        call()
    assert isinstance(caught.value, kind)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400, "a message is read, not scrolled"
    if isinstance(caught.value, ArgumentError):
        assert caught.value.remedy.endswith((".", "?")), "a message says what to do"


def test_arguments_are_named_by_keyword_or_not_taken() -> None:
    with pytest.raises(TypeError):
        T(X, W, B, 2)
    with pytest.raises(TypeError, match="strides"):
        T(X, W, strides=2)


def test_a_wrong_value_is_not_hidden_by_an_earlier_right_one() -> None:
    """1, True and 1.0 are equal and hash alike: a remembered signature must not confuse them."""
    T(X, W, stride=1, padding=((1, 1),))
    for how in (
        {"stride": True},
        {"stride": 1.0},
        {"padding": ((1.0, 1),)},
        {"padding": [(True, 1)]},
    ):
        with pytest.raises(DTypeError):
            T(X, W, **how)
