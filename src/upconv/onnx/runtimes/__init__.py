"""Runtimes for ONNX models by name, and models that run in separate processes."""

from .runtime import RUNTIMES, OpenModel, Runtime, ready, timed
from .worker import TIME_LIMIT, Worker, borrowed

__all__ = ["RUNTIMES", "TIME_LIMIT", "OpenModel", "Runtime", "Worker", "borrowed", "ready", "timed"]
