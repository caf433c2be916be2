"""PyTorch's face of upconv: its functions and modules for transposed convolution, faster.

    import upconv.torch
    y = upconv.torch.conv_transpose2d(x, weight, bias, stride=2)
    layer = upconv.torch.from_torch(torch.nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1))

Needs PyTorch 2.4 or later: `pip install 'upconv[torch]'`. The operators are registered with PyTorch
(`torch.ops.upconv`), so autograd, `torch.compile`, `torch.export`, `torch.func` and
`torch.autocast` know them.

What lives here: names, and the check that PyTorch is there. `import upconv` never comes here.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import EngineMissing

if find_spec("torch") is None:
    raise EngineMissing("upconv.torch needs PyTorch: pip install 'upconv[torch]'")

from .accelerate_model import accelerate, acceleration_report, restore
from .accelerate_report import AccelerationReport, LayerReport
from .functional import conv_transpose, conv_transpose1d, conv_transpose2d, conv_transpose3d
from .fx_rewrite import rewrite
from .modules import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d, from_torch
from .packing import forget
from .refusals import TensorArgumentError, TensorShapeError, TensorTypeError
from .team import borrow_team

borrow_team()

__all__ = [
    "AccelerationReport",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "LayerReport",
    "TensorArgumentError",
    "TensorShapeError",
    "TensorTypeError",
    "accelerate",
    "acceleration_report",
    "conv_transpose",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "forget",
    "from_torch",
    "restore",
    "rewrite",
]
