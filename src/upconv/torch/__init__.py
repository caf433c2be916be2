"""PyTorch's convolutions, transposed and ordinary, computed by upconv on the CPU.

    up = upconv.torch.ConvTranspose2d(64, 32, 4, stride=2, padding=1)
    model = upconv.torch.accelerate(model, example_inputs)
    fast = torch.compile(model, backend="upconv")

Needs PyTorch 2.4 or later: `pip install '.[torch]'` in a checkout of upconv.
"""

from __future__ import annotations

from importlib.util import find_spec

from ..errors import EngineMissing
from ..front_end_reports import Report, Row
from ..installation import install_command

if find_spec("torch") is None:
    raise EngineMissing(f"upconv.torch needs PyTorch: {install_command('torch')}")

from .acceleration import accelerate, report, restore
from .functional import conv, conv_transpose
from .graphs import rewrite
from .modules import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .packing import forget
from .streams import ModuleStream, stream
from .thread_pool import borrow_pool

borrow_pool()

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "ModuleStream",
    "Report",
    "Row",
    "accelerate",
    "conv",
    "conv_transpose",
    "forget",
    "report",
    "restore",
    "rewrite",
    "stream",
]


def __dir__() -> list[str]:
    return __all__
