"""`upconv.onnx.Session`, upconv's own kernels inside a model, as a runtime like the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import EngineRefusal
from .timing import Call

if TYPE_CHECKING:
    from .host import Feeds
    from .runtime import Runtime


class Own:
    """A model in upconv's session; see `host.Backend`."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        import upconv.onnx

        make = getattr(upconv.onnx, "Session", None)
        if make is None:
            raise EngineRefusal("upconv.onnx has no Session here")
        self._session, self._names = make(model, threads=runtime.threads), list(outputs)

    def run(self, feeds: Feeds) -> list[Any]:
        """See `host.Backend`."""
        return [value.copy() for value in self._session.run(self._names, feeds)]

    def bind(self, feeds: Feeds) -> Call:
        """See `host.Backend`."""
        session, names = self._session, self._names
        session.run(names, feeds)
        return lambda: session.run(names, feeds)
