"""Runtimes of ONNX models: their names, and models run in processes of their own."""

from .runtime import RUNTIMES, OpenModel, Runtime, ready, timed
from .worker import TIME_LIMIT, Worker, borrowed

__all__ = ["RUNTIMES", "TIME_LIMIT", "OpenModel", "Runtime", "Worker", "borrowed", "ready", "timed"]
