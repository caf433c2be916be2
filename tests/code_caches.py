"""Forgetting compiled code, for tests that count it or replace the compiler."""

from __future__ import annotations

import sys


def forget() -> None:
    """Empty the JIT engine's caches of code; what primitives hold lives on."""
    for name, module in list(sys.modules.items()):
        if name.startswith("upconv.engines.jit."):
            for function in vars(module).values():
                if hasattr(function, "cache_clear") and "code" in function.__name__:
                    function.cache_clear()
