"""ONNX Runtime, in the worker's process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnxruntime

from ...errors import EngineRefusal
from ...timing import Call
from .host import Backend, Feeds

if TYPE_CHECKING:
    from . import Runtime


def options(threads: int) -> Any:
    """ONNX Runtime's options for one session on so many threads, which spin as its default is."""
    made = onnxruntime.SessionOptions()
    made.intra_op_num_threads, made.inter_op_num_threads = threads, 1
    made.log_severity_level = 4  # only what is fatal
    return made


class Model(Backend):
    """A model in a session of ONNX Runtime."""

    def __init__(self, model: bytes | str, runtime: Runtime, outputs: Sequence[str]) -> None:
        from . import PROVIDERS

        provider, _ = PROVIDERS[runtime.provider]
        settings = {"device_id": runtime.device} if runtime.device else {}
        self._session = onnxruntime.InferenceSession(
            model, options(runtime.threads or 1), providers=[(provider, settings)]
        )
        self._names = list(outputs)
        took = self._session.get_providers()[0]
        if took != provider:  # it takes the CPU without a word where a driver is missing
            raise EngineRefusal(f"its {runtime.provider} does not work here; {took} took the model")

    def run(self, feeds: Feeds) -> list[Any]:
        """See `Backend`."""
        return list(self._session.run(self._names, feeds))

    def bind(self, feeds: Feeds) -> Call:
        """Outputs are bound again for each call: a model may be wrong about their shapes."""
        session, binding = self._session, self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)

        def call() -> None:
            for name in self._names:
                binding.bind_output(name, "cpu")
            session.run_with_iobinding(binding)

        call()
        return call
