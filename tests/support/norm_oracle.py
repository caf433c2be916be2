"""Batch normalisation by its definition, in extended precision: nobody's code but this file's."""

from dataclasses import dataclass

import numpy as np

from upconv import batch_norm, batch_norm_backward

WIDE = np.longdouble


def normal(shape: tuple[int, ...], dtype: object = np.float32, seed: int = 0) -> np.ndarray:
    values = np.random.default_rng([seed, *shape]).standard_normal(shape) * 1.5 + 0.5
    return values.astype(dtype)


@dataclass
class Case:
    """Operands of one normalisation and how it is called."""

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

    def normalised(self) -> np.ndarray:
        return (self.x.astype(WIDE) - self.along(self.moments()[0])) * self.along(self.invstd())

    def y(self) -> np.ndarray:
        return self.normalised() * self.along(self.gamma) + self.along(self.beta)

    def gradients(self) -> dict[str, np.ndarray]:
        g, xh = self.grad.astype(WIDE), self.normalised()
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
        """All results of both directions, to the rounding of their types."""
        done = self.run(statistics="mxnet", momentum=0.75, **keywords)
        unit = np.finfo(np.float64 if self.x.dtype == np.float64 else np.float32).eps
        mean, var = self.moments()
        old = 0.75 if self.training else 1.0
        close(done.y, self.y(), 8 * unit, self.x.dtype)
        close(done.saved_mean, mean, 4 * unit)
        close(done.saved_invstd, self.invstd(), 4 * unit)
        close(done.moving_mean, old * self.mean.astype(WIDE) + (1 - old) * mean, 4 * unit)
        close(done.moving_var, old * self.var.astype(WIDE) + (1 - old) * var, 4 * unit)
        grads = self.run_backward(done, **keywords)
        for name, wanted in self.gradients().items():
            kind = self.x.dtype if name == "x" else self.gamma.dtype
            close(getattr(grads, name), wanted, 16 * unit * (1 + self.count**0.5 / 8), kind)


def close(got: np.ndarray, wanted: np.ndarray, part: float, dtype=np.float64) -> None:
    """Equal up to a part of the largest value, and the rounding of the type it is stored in."""
    assert got.shape == wanted.shape
    if not wanted.size:
        return
    scale = max(1.0, float(np.abs(wanted).max()))
    stored = {"float16": 2**-10, "bfloat16": 2**-7}.get(np.dtype(dtype).name, 0.0)
    allowed = part * scale + stored * np.abs(wanted)
    wrong = np.abs(got.astype(WIDE) - wanted) > allowed
    assert not wrong.any(), (got[wrong][:3], wanted[wrong][:3])
