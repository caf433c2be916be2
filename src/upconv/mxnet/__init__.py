"""MXNet's operator and the API around it, without MXNet: `import upconv.mxnet as mx`.

Arrays (`mx.nd`, `mx.np`, `mx.npx`), gradients (`mx.autograd`), graphs (`mx.sym`), layers
(`mx.gluon`) and models (`load`, `to_onnx`). upconv computes transposed convolution, convolution
and batch normalization; docs/mxnet.md lists the operators and the differences from MXNet.

>>> import upconv.mxnet as mx
>>> x, w = mx.nd.array([[[1, 2, 3]]]), mx.nd.array([[[1, 10, 100]]])
>>> mx.nd.Deconvolution(x, w, kernel=(3,), stride=(2,), pad=(1,), adj=(1,), num_filter=1).asnumpy()
array([[[ 10., 102.,  20., 203.,  30., 300.]]], dtype=float32)
"""

import sys

from . import (
    autograd,
    base,
    convert,
    executor,
    gluon,
    initializer,
    model,
    ndarray,
    np,
    npx,
    random,
    symbol,
    test_utils,
)
from .attribute_scopes import AttrScope
from .base import (
    Context,
    Device,
    MXNetError,
    cpu,
    current_context,
    current_device,
    gpu,
    is_np_shape,
    np_shape,
    num_gpus,
    use_np,
)
from .model import Model, load
from .to_onnx import to_onnx

__getattr__ = base.absent("")
random.uniform, random.normal = ndarray.random.uniform, ndarray.random.normal  # type: ignore
nd, sym, init = ndarray, symbol, initializer
context = device = util = base
numpy, numpy_extension = np, npx
"""MXNet's other names for these modules."""
for _name in "nd sym init context device util numpy numpy_extension".split():  # noqa: SIM905
    sys.modules[f"{__name__}.{_name}"] = globals()[_name]

__all__ = [
    "AttrScope", "Context", "Device", "MXNetError", "Model", "autograd", "base", "context",
    "convert", "cpu", "current_context", "current_device", "device", "executor", "gluon", "gpu",
    "init", "initializer", "is_np_shape", "load", "model", "nd", "ndarray", "np", "np_shape", "npx",
    "num_gpus", "numpy", "numpy_extension", "random", "sym", "symbol", "test_utils", "to_onnx",
    "use_np", "util",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
