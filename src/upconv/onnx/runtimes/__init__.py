"""Runtimes: what runs ONNX models here, each in a process of its own, and random inputs for models.

    with ready("onnxruntime").session(model) as session:
        outputs = session.run(feeds(model))

`Runtime` says which one, on what and how; `worker` starts the process that it runs in, and `host`
is what that does.
"""

from __future__ import annotations

from .inputs import feeds
from .runtime import RUNTIMES, Runtime, Session, ready, timed
from .worker import Worker

__all__ = ["RUNTIMES", "Runtime", "Session", "Worker", "feeds", "ready", "timed"]
