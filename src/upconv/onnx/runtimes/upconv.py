"""`upconv.onnx.Session`, upconv's own kernels inside a model, as a runtime like the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...timing import Call
from ..session import Session
from .host import Feeds

if TYPE_CHECKING:
    from . import Runtime


class Model:
    """A model whose transposed convolutions are all computed by upconv; see `host.Backend`."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        self._session = Session(model, threads=runtime.threads, measure=False)
        self._names = list(outputs)

    def run(self, feeds: Feeds) -> list[Any]:
        """See `host.Backend`."""
        return self._session.run(self._names, feeds)

    def bind(self, feeds: Feeds) -> Call:
        """See `host.Backend`."""
        self.run(feeds)
        return lambda: self.run(feeds)
