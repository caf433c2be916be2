"""The engines of batch normalisation, in order of preference, and choosing one for a problem.

They are tables of their own because a normalisation is no `Problem`, but they go by the names of
`upconv.engines()`: an engine that has no row here refuses in words.
"""

from __future__ import annotations

from ...errors import ArgumentError, EngineRefusal, brief
from .. import ENGINES, made
from .problem import Moments, Normalization, NormEngine, NormPrimitive, Totals

__all__ = ["NORMALIZERS", "Moments", "NormEngine", "NormPrimitive", "Normalization", "Totals"]

NORMALIZERS: dict[str, str] = {
    "reference": "upconv.engines.normalization.blockwise:BlockNormalizer",
    "onednn": "upconv.engines.normalization.onednn:OnednnNormalizer",
}
"""Name -> "module:Class", the preferred first: NumPy's sums in float64 before speed."""


def normalizer(name: str, argument: str = "engine") -> NormEngine:
    """The engine of batch norm called `name`, made once per process.

    Raises `ArgumentError` for an unknown name, `EngineRefusal` for an engine that has no row here,
    and `EngineMissing` when its third party is absent.

    >>> normalizer("reference").name
    'reference'
    """
    if name not in NORMALIZERS and name not in ENGINES:
        expected = f"one of {', '.join(NORMALIZERS)}"
        raise ArgumentError(argument, brief(name), expected, "Leave it out to let upconv choose.")
    if name not in NORMALIZERS:
        able = ", ".join(NORMALIZERS)
        raise EngineRefusal(f"Engine {name!r} has no batch normalisation; these have: {able}.")
    engine: NormEngine = made(NORMALIZERS[name])
    return engine
