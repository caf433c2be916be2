"""The files that a model is read from: its own, and those that hold data outside it.

What lives here: naming them, for who must not write over them. What never does: checking them,
which reading the model does (`models`).
"""

from __future__ import annotations

import os
from pathlib import Path

from google.protobuf.message import DecodeError
from onnx import ModelProto, TensorProto

from .. import memory
from ..errors import brief
from ..files import opened, reported
from .bodies import bodies, tensors
from .soundness import require_bounded


def input_files(path: str | os.PathLike[str]) -> tuple[Path, ...]:
    """The model's file first, then the others; what is no model is one file.

    Raises `FileError` for what cannot be read, `ModelError` for what is nested too deep.
    """
    name = os.fspath(path)
    with reported(name, "read"):
        whole = Path(name).absolute()
        with opened(whole) as file:
            memory.require(2 * os.fstat(file.fileno()).st_size, f"the model {brief(name)}")
            data = file.read()
    try:
        proto = ModelProto.FromString(data)
    except DecodeError:
        return (whole,)
    require_bounded(proto)
    locations = [
        entry.value
        for body in bodies(proto)
        for placed in tensors(body)
        if placed.tensor.data_location == TensorProto.EXTERNAL
        for entry in placed.tensor.external_data
        if entry.key == "location" and "\0" not in entry.value
    ]
    return (whole, *(whole.parent / location for location in dict.fromkeys(locations)))
