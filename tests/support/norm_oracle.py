"""Batch normalization by its definition, in extended precision, independent of upconv."""

from dataclasses import dataclass

import numpy as np

from upconv import batch_norm, batch_norm_backward

WIDE = np.longdouble


def normal(shape: tuple[int, ...], dtype: object = np.float32, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * 1.5 + 0.5
    return values.astype(dtype)


@dataclass
class Case:
    """Operands and keywords of one normalization."""

    x: np.ndarray
    axis: int = 1
    eps: float = 1e-3
    training: bool = True
    offset: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        channels = self.x.shape[self.axis]
        kind = np.float32 if self.x.dtype.itemsize < 4 else self.x.dtype
        self.gamma = rng.standard_normal(channels).astype(kind)
        self.beta = rng.standard_normal(channels).astype(kind)
        self.mean = rng.standard_normal(channels).astype(kind)
        self.var = (rng.random(channels) + 0.5).astype(kind)
        self.grad = rng.standard_normal(self.x.shape).astype(self.x.dtype)

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(i for i in range(self.x.ndim) if i != self.axis % self.x.ndim)

    @property
    def count(self) -> int:
        return int(np.prod([self.x.shape[i] for i in self.others], dtype=np.int64))

    def along(self, vector: np.ndarray) -> np.ndarray:
        shape = [1] * self.x.ndim
        shape[self.axis] = -1
        return vector.astype(WIDE).reshape(shape)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        if not self.training:
            return self.mean.astype(WIDE), self.var.astype(WIDE)
        x = self.x.astype(WIDE)
        mean = x.sum(self.others) / self.count
        return mean, ((x - self.along(mean)) ** 2).sum(self.others) / self.count

    def invstd(self) -> np.ndarray:
        return 1 / np.sqrt(self.moments()[1] + WIDE(self.eps))

    def normalized(self) -> np.ndarray:
        return (self.x.astype(WIDE) - self.along(self.moments()[0])) * self.along(self.invstd())

    def y(self) -> np.ndarray:
        return self.normalized() * self.along(self.gamma) + self.along(self.beta)

    def gradients(self) -> dict[str, np.ndarray]:
        g, xh = self.grad.astype(WIDE), self.normalized()
        inner = g
        if self.training:
            mean_g = g.mean(self.others, keepdims=True)
            inner = g - mean_g - xh * (g * xh).mean(self.others, keepdims=True)
        return {
            "x": inner * self.along(self.gamma) * self.along(self.invstd()),
            "gamma": (g * xh).sum(self.others),
            "beta": g.sum(self.others),
        }

    @property
    def operands(self) -> tuple[np.ndarray, ...]:
        return self.x, self.gamma, self.beta, self.mean, self.var

    def run(self, **keywords):
        how = {"axis": self.axis, "eps": self.eps, "training": self.training} | keywords
        return batch_norm(*self.operands, **how)

    def run_backward(self, done, **keywords):
        how = {"axis": self.axis, "eps": self.eps, "training": self.training} | keywords
        saved = done.saved_mean, done.saved_invstd
        return batch_norm_backward(self.grad, *saved, *self.operands, **how)

    def check(self, **keywords) -> None:
        """Check all results of both directions within their rounding bounds."""
        done = self.run(statistics="mxnet", momentum=0.75, **keywords)
        (mean, var), bounds = self.moments(), Bounds(self)
        within(done.y, self.y(), bounds.y(), self.x.dtype)
        within(done.saved_mean, mean, bounds.mean)
        within(done.saved_invstd, self.invstd(), bounds.invstd * self.invstd())
        old = 0.75 if self.training else 1.0
        for got, before, batch, bound in (
            (done.moving_mean, self.mean, mean, bounds.mean),
            (done.moving_var, self.var, var, bounds.var),
        ):
            terms = old * before.astype(WIDE), (1 - old) * batch
            within(got, sum(terms), bounds.moved(terms, (1 - old) * bound))
        grads = self.run_backward(done, **keywords)
        wanted, allowed = self.gradients(), bounds.gradients()
        for name, value in wanted.items():
            kind = self.x.dtype if name == "x" else self.gamma.dtype
            within(getattr(grads, name), value, allowed[name], kind)


class Bounds:
    """Bounds on the rounding errors of a case's results.

    With n elements in a channel, v their variance, g the gradient of y and a pivot p, float64 sums

        mean = p + sum(x - p) / n        v = sum((x - p)**2) / n - (mean - p)**2

    have errors of about (n + 2) u mean(|x - p|) + u |mean| and (4 n + 11) u (v + (mean - p)**2).
    The pivot is an element of the channel, and at most ten deviations from the mean. Hence

        r = 1 / sqrt(v + eps) has the relative error d_r = d_v / (2 (v + eps)) + 3 u
        y = s (x - mean) + beta, s = gamma r, has the error |s| d_mean + d_r |s (x - mean)|

    and the rounding of the computation's type: no number is rounded more than eight times. Small
    variances therefore magnify the error of a mean, and results near zero keep their terms' errors.
    Squares of rounding errors are neglected, except where the mean may be large.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.unit = np.finfo(np.float64).eps / 2
        double = case.x.dtype == np.float64
        self.kind_unit = np.finfo(np.float64 if double else np.float32).eps / 2
        mean, var = case.moments()
        self.deviation = np.abs(case.x.astype(WIDE) - case.along(mean))
        # Errors of long sums cancel and grow like a square root (Higham and Mary, 2019).
        self.depth = min(case.count, 8 * case.count**0.5)
        self.mean = self.var = np.zeros_like(var)
        if case.training:
            pivot = np.minimum(self.deviation.max(case.others, initial=0), 10 * np.sqrt(var))
            spread = np.sqrt(var) + pivot
            self.mean = self.unit * (np.abs(mean) + (self.depth + 2) * spread)
            self.var = self.unit * (4 * self.depth + 11) * (var + pivot**2)
        self.invstd = self.var / (2 * (var + case.eps)) + 3 * self.unit
        # The mean is rounded when subtracted; its own error is added elsewhere.
        self.reach = self.deviation + case.along(self.kind_unit * np.abs(mean))
        self.scale = np.abs(case.gamma.astype(WIDE) * case.invstd())

    def y(self) -> np.ndarray:
        along = self.case.along
        terms = along(self.scale) * self.reach + along(np.abs(self.case.beta))
        return along(8 * self.kind_unit + self.invstd) * terms + along(self.scale * self.mean)

    def moved(self, terms: tuple[np.ndarray, ...], batch: np.ndarray) -> np.ndarray:
        """Bound a sum of old and new statistics, if the new ones contribute an error of `batch`."""
        rounded = 8 * self.unit * sum(map(np.abs, terms)) + self.kind_unit * np.abs(sum(terms))
        return rounded + batch

    def gradients(self) -> dict[str, np.ndarray]:
        case, along = self.case, self.case.along
        n, r, units = max(case.count, 1), case.invstd(), 8 * self.kind_unit + 2 * self.invstd
        g = np.abs(case.grad.astype(WIDE))
        sums = {name: np.abs(value) for name, value in case.gradients().items() if name != "x"}
        sizes, products = g.sum(case.others), (g * self.deviation).sum(case.others)
        beta = (self.depth + 1) * self.unit * sizes
        gamma = r * ((self.depth + 3) * self.unit * products + self.mean * sizes)
        gamma += sums["gamma"] * (self.invstd + 2 * self.unit)
        x = along(units * self.scale) * g
        if case.training:
            slope, constant = self.scale * r * sums["gamma"] / n, self.scale * sums["beta"] / n
            x = x + along(units * slope + self.scale * r * gamma / n) * self.reach
            x = x + along(units * constant + self.scale * beta / n + slope * self.mean)
        rounded = {name: self.kind_unit * value for name, value in sums.items()}
        return {"x": x, "gamma": gamma + rounded["gamma"], "beta": beta + rounded["beta"]}


STORED = {"float16": (2.0**-11, 2.0**-25), "bfloat16": (2.0**-8, 0.0)}
"""Type -> relative and absolute rounding error of a stored result."""


def within(got: np.ndarray, wanted: np.ndarray, bound: np.ndarray, dtype=np.float64) -> None:
    """Assert equality up to a bound for each element, and the rounding of the stored type."""
    assert got.shape == wanted.shape
    relative, absolute = STORED.get(np.dtype(dtype).name, (0.0, 0.0))
    allowed = bound + relative * (np.abs(wanted) + bound) + absolute
    wrong = ~(np.abs(got.astype(WIDE) - wanted) <= allowed)
    assert not wrong.any(), (got[wrong][:3], wanted[wrong][:3], (allowed + 0 * wanted)[wrong][:3])


def close(got: np.ndarray, wanted: np.ndarray, part: float, dtype=np.float64) -> None:
    """Assert equality up to a part of the largest value, and the rounding of the stored type."""
    assert got.shape == wanted.shape
    if not wanted.size:
        return
    scale = max(1.0, float(np.abs(wanted).max()))
    stored = {"float16": 2**-10, "bfloat16": 2**-7}.get(np.dtype(dtype).name, 0.0)
    allowed = part * scale + stored * np.abs(wanted)
    wrong = np.abs(got.astype(WIDE) - wanted) > allowed
    assert not wrong.any(), (got[wrong][:3], wanted[wrong][:3])
