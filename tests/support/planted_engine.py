"""A faulty engine, first in the table, for tests of the commands' messages about it."""

import pytest

from upconv.engines import ENGINES, _instances
from upconv.engines.reference import ReferenceEngine, ReferencePrimitive
from upconv.errors import EngineMissing


class Planted(ReferenceEngine):
    """The reference engine with a fault."""

    name = "planted"
    missing, refusal = "", None
    damage = staticmethod(lambda out: None)

    def __init__(self):
        if self.missing:
            raise EngineMissing(self.missing)

    def refuses(self, problem):
        return self.refusal

    def build(self, problem, threads, variant=""):
        return Damaged(problem)


class Damaged(ReferencePrimitive):
    def run(self, out, *operands, **more):
        super().run(out, *operands, **more)
        Planted.damage(out)


@pytest.fixture
def plant(monkeypatch, fresh_cache):
    """Put an engine with given faults before all others."""
    others, place = dict(ENGINES), f"{__name__}:Planted"

    def planted(**faults):
        for name, fault in faults.items():
            monkeypatch.setattr(Planted, name, fault)
        ENGINES.clear()
        ENGINES.update(planted=place, **others)

    yield planted
    ENGINES.clear()
    ENGINES.update(others)
    _instances.pop(place, None)
