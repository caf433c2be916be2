"""Weight gradients of volumes with zeros beyond a stride in front: libdnnl's own kernel errs there,
and writes beyond its memory; in processes of their own, which may end."""

import pytest

from upconv.engines import load
from upconv.errors import EngineMissing

try:
    load("onednn")
except EngineMissing as missing:
    pytest.skip(str(missing), allow_module_level=True)

from tests.support.processes import printed

GRID = """
import numpy as np, upconv
from itertools import product
rng = np.random.default_rng(0)
seen = 0
for depth, k, s in product((3, 4, 6), (2, 4, 5, 7), (1, 2, 3)):
    for begin, end in product(range(0, k), (0, 1)):
        how = dict(stride=(s, 1, 1), padding=((begin, end), 0, 0))
        try:
            shape = upconv.output_shape((1, 16, depth, 3, 3), (16, 16, k, 1, 1), **how)
        except upconv.UpconvError:
            continue
        x = rng.standard_normal((1, 16, depth, 3, 3)).astype("f")
        g, w = rng.standard_normal(shape).astype("f"), np.zeros((16, 16, k, 1, 1), "f")
        found, wanted = (
            upconv.conv_transpose_backward(g, x, w, needs="weight", engine=engine, **how).weight
            for engine in ("onednn", "reference")
        )
        what = f"{depth} {k} {s} {begin} {end}"
        np.testing.assert_allclose(found, wanted, atol=1e-3, err_msg=what)
        seen += 1
assert seen > 100, seen
"""

LAYER = """
import numpy as np, upconv
rng = np.random.default_rng(0)
x, w = rng.standard_normal((2, 16, 5, 12, 12)).astype("f"), np.zeros((16, 16, 7, 7, 7), "f")
g = rng.standard_normal((2, 16, 3, 6, 6)).astype("f")
how = dict(stride=2, padding=3, needs="weight")
found, wanted = (
    upconv.conv_backward(g, x, w, engine=engine, **how).weight for engine in (None, "reference")
)
np.testing.assert_allclose(found, wanted, atol=1e-2)
"""


@pytest.mark.parametrize("code", [GRID, LAYER], ids=["every geometry of an axis", "a layer"])
@pytest.mark.parametrize("threads", ["1", "2"])
def test_every_crop_in_front(code: str, threads: str) -> None:
    printed(code, UPCONV_NUM_THREADS=threads)
