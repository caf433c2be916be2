"""`upconv.onnx.Session`, upconv's own kernels inside a model, as a runtime like the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...timing import Call
from ..session import Session
from .host import Feeds

if TYPE_CHECKING:
    from . import Runtime


class Upconv:
    """A model in upconv's session; see `host.Backend`.

    It measures on the inputs that it is bound to; one that is run alone computes every transposed
    convolution itself.
    """

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        self._model, self._threads, self._names = model, runtime.threads, list(outputs)
        self._session: Session | None = None

    def run(self, feeds: Feeds) -> list[Any]:
        """See `host.Backend`."""
        if self._session is None:
            self._session = Session(self._model, threads=self._threads, measure=False)
        return self._session.run(self._names, feeds)

    def bind(self, feeds: Feeds) -> Call:
        """See `host.Backend`."""
        session = self._session = Session(self._model, threads=self._threads, feeds=feeds)
        session.run(self._names, feeds)
        return lambda: session.run(self._names, feeds)

    def report(self) -> dict[str, Any]:
        """What was decided about the layers."""
        return {} if self._session is None else self._session.report().as_json()
