"""Random geometries against PyTorch in float64: forward and all gradients, both operators.

In the suite the engine that is chosen does 100 of each operator, and the reference engine, with
which nothing is compiled, 300: the rules of geometry are those of all engines. The former does all
2,000 here:

    python -m pytest tests/engines/test_against_torch.py -m ""
"""

import random
from collections.abc import Iterator

import numpy as np
import pytest

import upconv
from tests.support.repeating import seeds, single
from upconv import testing

torch = pytest.importorskip("torch", reason="PyTorch is the oracle here and is not installed")
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread")

GEOMETRIES, BATCHES = 2_000, 20
PARTS = [(None, 0), *(("reference", part) for part in range(1, 4))]
LONG = [pytest.param(None, part, marks=pytest.mark.long) for part in range(1, BATCHES)]
CLOSE = 1e-12


def batch(part: int) -> Iterator[int]:
    """The seeds of one part of all geometries."""
    count = GEOMETRIES // BATCHES
    return seeds(part * count, (part + 1) * count)


def geometry(rng: random.Random) -> dict:
    """A layer that PyTorch accepts: it wants at least one output position."""
    while True:
        rank, groups = rng.randint(1, 3), rng.randint(1, 3)
        most = {1: 9, 2: 6, 3: 4}[rank]

        def each(low: int, high: int, rank: int = rank) -> list[int]:
            return [rng.randint(low, high) for _ in range(rank)]

        size, kernel, stride, dilation = each(1, most), each(1, most), each(1, 5), each(1, 3)
        padding = each(0, 5)
        extra = [rng.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True)]
        spans = zip(size, kernel, stride, dilation, padding, extra, strict=True)
        if all((n - 1) * s + d * (k - 1) + 1 - 2 * p + e >= 1 for n, k, s, d, p, e in spans):
            return {
                "rank": rank,
                "batch": rng.randint(1, 3),
                "channels": (groups * rng.randint(1, 3), rng.randint(1, 3)),
                "size": size,
                "kernel": kernel,
                "keywords": {
                    "stride": stride,
                    "padding": padding,
                    "output_padding": extra,
                    "dilation": dilation,
                    "groups": groups,
                },
            }


def convolution_geometry(rng: random.Random) -> dict:
    """A layer of ordinary convolution that PyTorch accepts, with larger inputs."""
    while True:
        g = geometry(rng)
        g["size"], keywords = [n + 4 for n in g["size"]], g["keywords"]
        del keywords["output_padding"]
        spans = zip(g["size"], g["kernel"], keywords["dilation"], keywords["padding"], strict=True)
        if all(n + 2 * p >= d * (k - 1) + 1 for n, k, d, p in spans):
            return g


def assert_close(got: np.ndarray, wanted) -> bool:
    """Returns whether the result, though right, says little."""
    wanted = wanted.detach().numpy()
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max(initial=0) <= CLOSE * max(1, np.abs(wanted).max(initial=0))
    return testing.mistrusted(got)


def assert_trusted(results: list[bool]) -> None:
    """At most an eighth of the results say little; 4 to 10 of 100 do, of the geometries above."""
    alike = sum(results)
    assert single() or 8 * alike <= len(results), f"{alike} of {len(results)} are mostly one number"


def compare(operator: str, engine: str | None, part: int) -> None:
    """The results and all gradients of an operator, by PyTorch's name for it."""
    transposed, alike = operator == "conv_transpose", list[bool]()
    backward = getattr(upconv, f"{operator}_backward")
    for seed in batch(part):
        g = (geometry if transposed else convolution_geometry)(random.Random(seed))
        draw, keywords = np.random.default_rng(seed).standard_normal, g["keywords"]
        (i, per_group), groups = g["channels"], keywords["groups"]
        outputs = per_group * groups
        shape = (i, per_group) if transposed else (outputs, i // groups)
        x, w = draw((g["batch"], i, *g["size"])), draw((*shape, *g["kernel"]))
        b = draw(outputs)
        tx, tw, tb = (torch.tensor(array, requires_grad=True) for array in (x, w, b))
        ty = getattr(F, f"{operator}{g['rank']}d")(tx, tw, tb, **keywords)
        y = getattr(upconv, operator)(x, w, b, engine=engine, **keywords)
        alike.append(assert_close(y, ty))
        grad = draw(tuple(ty.shape))
        ty.backward(torch.tensor(grad))
        grads = backward(grad, x, w, engine=engine, **keywords)
        alike += [assert_close(grads.x, tx.grad), assert_close(grads.weight, tw.grad)]
        assert_close(grads.bias, tb.grad)
    assert_trusted(alike)


@pytest.mark.parametrize(("engine", "part"), PARTS + LONG)
def test_transposed_convolution(engine: str | None, part: int) -> None:
    compare("conv_transpose", engine, part)


@pytest.mark.parametrize(("engine", "part"), PARTS)
def test_convolution(engine: str | None, part: int) -> None:
    compare("conv", engine, part)


@pytest.mark.parametrize("test", [test_transposed_convolution, test_convolution])
def test_results_of_zeros_are_not_enough(test, monkeypatch: pytest.MonkeyPatch) -> None:
    class Zeros:
        standard_normal = staticmethod(np.zeros)

    monkeypatch.setattr(np.random, "default_rng", lambda _: Zeros)
    monkeypatch.setitem(test.__globals__, "BATCHES", GEOMETRIES // 10)
    with pytest.raises(AssertionError, match=r"^30 of 30 are mostly one number"):
        test("reference", 1)


@pytest.mark.parametrize("name", ["relu", "leaky_relu", "tanh", "sigmoid", "silu", "gelu"])
def test_activations(name: str) -> None:
    values = np.linspace(-12, 12, 4001).reshape(1, 1, -1)
    one = np.ones((1, 1, 1))
    wanted = getattr(F, name, None) or getattr(torch, name)
    assert_close(upconv.conv_transpose(values, one, activation=name), wanted(torch.tensor(values)))


def test_tensors_are_taken_without_a_copy() -> None:
    x, w = torch.randn(2, 3, 5), torch.randn(3, 2, 4)
    wanted = F.conv_transpose1d(x, w, stride=2).numpy()
    np.testing.assert_allclose(upconv.conv_transpose(x, w, stride=2), wanted, atol=1e-5)
    x.requires_grad_()
    with pytest.raises(upconv.DTypeError, match=r"^x is an object of type Tensor whose .* failed"):
        upconv.conv_transpose(x, w)
