"""Bad input to batch normalisation and to folding ends in an `UpconvError` with all it needs."""

# One row per kind reads better than one kind per page.
# ruff: noqa: E501

from collections.abc import Callable

import numpy as np
import pytest

import upconv
from upconv import ArgumentError, BatchNormGradients, BatchNormResult, DTypeError, ShapeError

X = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("f")
C, ONES = np.zeros(3, "f"), np.ones(3, "f")
N, BACK, FOLD = upconv.batch_norm, upconv.batch_norm_backward, upconv.fold_batch_norm
W = np.ones((6, 4, 3), "f")
F4, V4 = np.zeros(4, "f"), np.ones(4, "f")


def train(x: object = X, *rest: object, **keywords: object) -> object:
    return N(x, *rest, training=True, **keywords)


KINDS: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    ("x a list", lambda: train([[1.0]]), DTypeError, "x is [[1.0]] (list); expected an array"),
    ("x integers", lambda: train(X.astype(int)), DTypeError,
     "x.dtype is int64; expected float16, bfloat16, float32 or float64. Integers are not supported"),
    ("x complex", lambda: train(X.astype("c8")), DTypeError, "x.dtype is complex64"),
    ("x masked", lambda: train(np.ma.array(X)), DTypeError, "x is a masked array"),
    ("x a scalar", lambda: train(np.float32(1)), ShapeError, "axis is 1; expected an axis of x."),
    ("x too flat", lambda: train(X[0, 0]), ShapeError,
     "axis is 1; expected an axis of x, whose shape is (4,): from -1 to 0. It is the axis of the channels: 1 in (N, C, *size), -1 in (N, *size, C)."),
    ("axis too low", lambda: train(axis=-4), ShapeError,
     "axis is -4; expected an axis of x, whose shape is (2, 3, 4): from -3 to 2."),
    ("axis a float", lambda: train(axis=1.0), DTypeError, "axis is 1.0 (float)"),
    ("axis a bool", lambda: train(axis=True), DTypeError, "axis is True (bool)"),
    ("axis None", lambda: train(axis=None), DTypeError,
     "axis is None; expected an integer. It is the axis of the channels."),
    ("axis two", lambda: train(axis=(0, 1)), DTypeError, "axis"),
    ("axis enormous", lambda: train(axis=2**70), ShapeError,
     "axis is 1180591620717411303424; expected"),
    ("no channels", lambda: train(X[:, :0]), ShapeError,
     "x.shape is (2, 0, 4); expected at least 1 channel on axis 1. Only the other axes may be empty."),
    ("gamma too long", lambda: train(X, np.ones(4, "f")), ShapeError,
     "gamma.shape is (4,); expected (3,), one value per channel on axis 1 of x. x is (2, 3, 4); axis= is the axis of its channels."),
    ("beta not flat", lambda: train(X, None, np.ones((3, 1), "f")), ShapeError,
     "beta.shape is (3, 1); expected (3,)"),
    ("gamma a number", lambda: train(X, 1.0), DTypeError,
     "gamma is 1.0 (float); expected an array"),
    ("gamma too wide", lambda: train(X, np.ones(3)), DTypeError,
     "gamma.dtype is float64; expected float32, as x is float32. Convert it, as in gamma.astype('float32')."),
    ("mean of integers", lambda: train(X, mean=np.ones(3, int)), DTypeError, "mean.dtype is int64"),
    ("gamma of another 16 bits", lambda: train(X.astype("e"), np.ones(3)), DTypeError,
     "gamma.dtype is float64; expected float16 or float32, as x is float16."),
    ("mean missing", lambda: N(X, var=ONES), DTypeError,
     "mean is None; expected an array with one value per channel. Without training, or with use_global_stats, it normalizes x."),
    ("var missing", lambda: train(X, mean=C, use_global_stats=True), DTypeError,
     "var is None; expected an array with one value per channel."),
    ("one element in training", lambda: train(X[:1, :, :1]), ShapeError,
     "x.shape is (1, 3, 1), with 1 element per channel; expected more than 1 for the unbiased variance of statistics='torch'. Train on more elements, or use statistics='mxnet', whose variance is then 0."),
    ("eps negative", lambda: train(eps=-1e-5), ArgumentError,
     "eps is -1e-05; expected a finite number >= 0. It is added to the variance; the default of PyTorch is 1e-5, of MXNet 1e-3."),
    ("eps NaN", lambda: train(eps=np.nan), ArgumentError,
     "eps is nan; expected a finite number >= 0."),
    ("eps infinite", lambda: train(eps=np.inf), ArgumentError, "eps is inf"),
    ("eps a string", lambda: train(eps="1e-5"), DTypeError, "eps is '1e-5' (str)"),
    ("eps None", lambda: train(eps=None), DTypeError, "eps is None (NoneType)"),
    ("eps a bool", lambda: train(eps=True), DTypeError, "eps is True (bool)"),
    ("eps complex", lambda: train(eps=np.complex64(1)), DTypeError, "eps is"),
    ("eps enormous", lambda: train(eps=10**400), ArgumentError, "eps is 1000"),
    ("momentum above 1", lambda: train(momentum=1.5), ArgumentError,
     "momentum is 1.5; expected a finite number from 0 to 1. It weighs the new statistics with statistics='torch', the old ones with 'mxnet'."),
    ("momentum negative", lambda: N(X, mean=C, var=ONES, momentum=-0.1), ArgumentError,
     "momentum is -0.1"),
    ("momentum a list", lambda: train(momentum=[0.1]), DTypeError, "momentum is [0.1] (list)"),
    ("statistics unknown", lambda: train(statistics="keras"), ArgumentError,
     "statistics is 'keras'; expected one of 'torch', 'mxnet'. It names the rule by which moving statistics are updated."),
    ("statistics None", lambda: train(statistics=None), ArgumentError,
     "statistics is None; expected one of"),
    ("training a word", lambda: N(X, training="yes"), DTypeError,
     "training is 'yes'; expected a bool."),
    ("fix_gamma a number", lambda: train(fix_gamma=1), DTypeError,
     "fix_gamma is 1; expected a bool."),
    ("use_global_stats None", lambda: train(use_global_stats=None), DTypeError,
     "use_global_stats is None"),
    ("out a list", lambda: train(out=[1]), DTypeError,
     "out is of type list; expected an upconv.BatchNormResult or None."),
    ("out of another shape", lambda: train(out=X[0].copy()), ShapeError,
     "out.shape is (3, 4); expected (2, 3, 4). Results are never broadcast."),
    ("out of another type", lambda: train(out=X.astype("d")), DTypeError,
     "out.dtype is float64; expected float32."),
    ("out read-only", lambda: train(out=_frozen(X)), ArgumentError,
     "out is read-only; expected a writeable array."),
    ("out overlapping itself", lambda: train(out=np.lib.stride_tricks.as_strided(X.copy(), X.shape, (0, 16, 4))), ArgumentError,
     "out is an array with strides (0, 16, 4) in which elements share memory"),
    ("saved mean of x's type", lambda: train(out=BatchNormResult(saved_mean=C)), DTypeError,
     "out.saved_mean.dtype is float32; expected float64."),
    ("moving mean of nothing", lambda: train(out=BatchNormResult(moving_mean=C)), ArgumentError,
     "out.moving_mean is an array; expected None if mean is None. Give both or neither."),
    ("one array for two", lambda: train(X, mean=C, var=ONES, out=BatchNormResult(moving_mean=C, moving_var=C)), ArgumentError,
     "out is one in which moving_mean and moving_var share memory; expected separate arrays."),
    ("grad of another shape", lambda: BACK(X[:1], C, ONES, X), ShapeError,
     "grad.shape is (1, 3, 4); expected (2, 3, 4), the shape of x. It is the gradient of y."),
    ("grad of another type", lambda: BACK(X.astype("d"), C, ONES, X), DTypeError,
     "grad.dtype is float64; expected float32, the dtype of x."),
    ("saved mean missing", lambda: BACK(X, None, ONES, X), DTypeError,
     "saved_mean is None; expected an array with one value per channel. In training it comes from the forward result: result.saved_mean, result.saved_invstd."),
    ("saved deviation missing", lambda: BACK(X, C, None, X), DTypeError, "saved_invstd is None"),
    ("saved of another shape", lambda: BACK(X, np.zeros(4), ONES, X), ShapeError,
     "saved_mean.shape is (4,); expected (3,)"),
    ("moving missing", lambda: BACK(X, C, ONES, X, training=False), DTypeError,
     "mean is None; expected an array with one value per channel. Without training"),
    ("gamma of another shape", lambda: BACK(X, C, ONES, X, V4), ShapeError, "gamma.shape is (4,)"),
    ("needs unknown", lambda: BACK(X, C, ONES, X, needs=("weight",)), ArgumentError,
     "needs is ('weight',); expected some of ('x', 'gamma', 'beta'). Name the gradients you want, as in needs=('x',)."),
    ("needs endless", lambda: BACK(X, C, ONES, X, needs=iter(int, 1)), ArgumentError, "needs is"),
    ("out an array", lambda: BACK(X, C, ONES, X, out=X.copy()), DTypeError,
     "out is of type ndarray; expected an upconv.BatchNormGradients or None. Write out=upconv.BatchNormGradients(x=..., gamma=..., beta=...)."),
    ("nothing to add to", lambda: BACK(X, C, ONES, X, accumulate=True), ArgumentError,
     "accumulate is True; expected an array to add into in out.x. Pass out=BatchNormGradients(...)."),
    ("out.gamma of another type", lambda: BACK(X, C, ONES, X, out=BatchNormGradients(gamma=np.ones(3))), DTypeError,
     "out.gamma.dtype is float64; expected float32."),
    ("no axis", lambda: BACK(X, C, ONES, X, axis=3), ShapeError, "axis is 3"),
    ("weight a list", lambda: FOLD([1], mean=F4, var=V4), DTypeError, "weight is [1] (list)"),
    ("weight too flat", lambda: FOLD(W[0], mean=F4, var=V4), ShapeError,
     "weight.shape is (4, 3); expected at least 3 axes (IOX), none of size 0. Two axes are channels; the others belong to the kernel."),
    ("weight empty", lambda: FOLD(W[:0], mean=F4, var=V4), ShapeError, "weight.shape is (0, 4, 3)"),
    ("weight layout unknown", lambda: FOLD(W, mean=F4, var=V4, weight_layout="IOHW"), ArgumentError,
     "weight_layout is 'IOHW'; expected one of 'IOX'"),
    ("groups zero", lambda: FOLD(W, mean=F4, var=V4, groups=0), ArgumentError,
     "groups is 0; expected a divisor of the 6 input channels of weight (6, 4, 3). Groups are equal blocks of channels"),
    ("groups not a divisor", lambda: FOLD(W, mean=F4, var=V4, groups=4), ArgumentError,
     "groups is 4; expected a divisor of the 6 input channels"),
    ("groups of a convolution", lambda: FOLD(W, mean=F4, var=V4, groups=3, transposed=False), ArgumentError,
     "groups is 3; expected a divisor of the 4 output channels"),
    ("parameters of one group", lambda: FOLD(W, mean=F4, var=V4, groups=2), ShapeError,
     "mean.shape is (4,); expected (8,), one value per output channel of weight (6, 4, 3) with groups=2. Axis O of a transposed layer's weight has the channels of one group (weight_layout)."),
    ("mean missing in a fold", lambda: FOLD(W, var=V4), DTypeError,
     "mean is None; expected an array with one value per channel. Folding is for inference, which normalizes with the moving statistics."),
    ("variance zero", lambda: FOLD(W, mean=F4, var=F4, eps=0), ArgumentError,
     "var[0] + eps is 0; expected a number > 0. A variance is not negative; with eps > 0 it may be 0."),
    ("variance negative", lambda: FOLD(W, mean=F4, var=np.array([1, 1, -2, 1], "f")), ArgumentError,
     "var[2] + eps is -1.99999; expected a number > 0."),
    ("variance NaN", lambda: FOLD(W, mean=F4, var=np.full(4, np.nan, "f")), ArgumentError,
     "var[0] + eps is nan"),
    ("bias of another type", lambda: FOLD(W, np.ones(4), mean=F4, var=V4), DTypeError,
     "bias.dtype is float64; expected float32, as weight is float32."),
    ("transposed a word", lambda: FOLD(W, mean=F4, var=V4, transposed="no"), DTypeError,
     "transposed is 'no'; expected a bool."),
]  # fmt: skip


def _frozen(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


@pytest.mark.parametrize(
    ("call", "kind", "message"), [row[1:] for row in KINDS], ids=[row[0] for row in KINDS]
)
def test_a_refusal_says_what_where_and_what_to_do(call, kind, message: str) -> None:
    with pytest.raises(upconv.UpconvError) as caught:
        call()
    assert type(caught.value) is kind
    assert message in str(caught.value)


def test_a_refused_call_writes_nothing() -> None:
    mean, var, out = C.copy(), ONES.copy(), np.full_like(X, 7)
    with pytest.raises(ArgumentError):
        train(X, mean=mean, var=var, out=BatchNormResult(out, moving_mean=mean), eps=-1)
    with pytest.raises(ShapeError):
        train(X, mean=mean, var=var, out=BatchNormResult(out, moving_mean=np.ones(4, "f")))
    assert (mean == 0).all()
    assert (out == 7).all()


def test_what_would_not_fit_is_refused_before_it_is_tried() -> None:
    wide = np.broadcast_to(np.float32(1), (1, 10**13))
    with pytest.raises(
        upconv.MemoryLimitError, match="computing statistics of 10000000000000 channels needs"
    ):
        train(wide, statistics="mxnet")
    with pytest.raises(
        upconv.MemoryLimitError, match=r"the result, of shape \(1, 10000000000000\), n"
    ):
        N(wide, mean=np.zeros(1, "f"), var=np.ones(1, "f"), axis=0)
    with pytest.raises(upconv.MemoryLimitError, match="the gradient of x, of shape"):
        BACK(wide, np.zeros(1), np.ones(1), wide, axis=0)
    heavy = np.broadcast_to(np.float32(1), (10**6, 10**6, 3))
    with pytest.raises(upconv.MemoryLimitError, match="the folded weight needs"):
        FOLD(heavy, mean=np.zeros(10**6, "f"), var=np.ones(10**6, "f"))
