"""`upconv.onnx.Session` as a runtime like the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..session import Session
from .host import Backend, Feeds

if TYPE_CHECKING:
    from . import Runtime


class Model(Backend):
    """A model whose transposed convolutions are all computed by upconv."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        self._session = Session(model, threads=runtime.threads, measure=False)
        self._names = list(outputs)

    def run(self, feeds: Feeds) -> list[Any]:
        """See `Backend`."""
        return self._session.run(self._names, feeds)
