"""Clearing the JIT engine's caches, for tests that count code or replace the compiler."""

import sys


def forget(named: str = "code") -> None:
    """Clear the JIT engine's caches with this word in their names; primitives keep their code."""
    for name, module in list(sys.modules.items()):
        if name.startswith("upconv.engines.jit."):
            for function in vars(module).values():
                if hasattr(function, "cache_clear") and named in function.__name__:
                    function.cache_clear()
