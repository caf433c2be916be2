"""Chains in code: what was seen once is done at once where the same comes again, and only there."""

from __future__ import annotations

import copy
import gc
import importlib
import linecache
import sys
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from accelerated_models import same  # noqa: E402
from upconv.torch import accelerate, acceleration_report, restore  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_torch_thread", "upconv_is_faster")


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.conv = nn.ConvTranspose2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.bn, self.act, self.flag = nn.BatchNorm2d(4), nn.ReLU(), False

    def post(self, y):
        return y * 2


class Sized(Base):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 4, 3, 2, 1)

    def forward(self, x):
        size = [2 * n - (not self.flag) for n in x.shape[2:]]
        return F.relu(self.up(x, size))


class Keywords(Base):
    def forward(self, x):
        a, b = (self.conv, self.up) if self.flag else (self.up, self.conv)
        return F.leaky_relu(b(F.leaky_relu(a(x), negative_slope=0.1)), negative_slope=0.5)


class Methods(Base):
    def forward(self, x):
        a, b = (self.conv, self.up) if self.flag else (self.up, self.conv)
        return b(a(x).relu()).tanh()


class AddedFirst(Base):
    def forward(self, x):
        r = torch.ones_like(x) if self.flag else 1.0
        a, b = (self.up, self.conv) if self.flag else (self.conv, self.up)
        return F.relu(b(a(x) + r))


class OnePlace(Base):
    def forward(self, x):
        a, b = (self.conv, self.up) if self.flag else (self.up, self.conv)
        return F.relu(a(x)) + b(x)


class Changing(Base):
    @property
    def computed(self):
        if self.flag:
            self.up.weight.mul_(2)
        return self.act

    def forward(self, x):
        y = self.up(x)
        return self.computed(y)


class Loop(Base):
    def __init__(self) -> None:
        super().__init__()
        self.ups = nn.ModuleList(nn.ConvTranspose2d(4, 4, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(3))

    def forward(self, x):
        for i in range(2 + self.flag):
            x = self.ups[i](x)
            x = self.norms[i](x)
            x = torch.tanh(x)
        return x


CASES = [Sized, Keywords, Methods, AddedFirst, OnePlace, Changing, Loop]


@pytest.mark.parametrize("kind", CASES)
def test_what_comes_in_another_way_is_done_as_written(kind) -> None:
    model, x = kind().eval(), torch.randn(1, 4, 6, 6)
    original = copy.deepcopy(model)
    accelerate(model, x)
    with torch.no_grad():
        assert same(model(x), original(x))
        model.flag = original.flag = True
        for given in (x, torch.randn(2, 4, 5, 7)):
            assert same(model(given), original(given))


def names(model: nn.Module) -> list[str]:
    return [layer.before for layer in acceleration_report(model).layers]


def test_each_turn_of_a_loop_is_fused_with_what_followed_it() -> None:
    model = accelerate(Loop().eval(), torch.randn(1, 4, 6, 6))
    fused = "ConvTranspose2d + BatchNorm2d + Tanh"
    assert names(model) == ["ConvTranspose2d", fused, fused, "ConvTranspose2d"]


class Residual(Base):
    def forward(self, x):
        r = None if self.flag else x
        return F.relu(self.up(x) + r)


def test_a_residual_that_is_none_is_the_error_that_it_was() -> None:
    model, x = Residual().eval(), torch.randn(1, 4, 6, 6)
    accelerate(model, x)
    assert names(model) == ["ConvTranspose2d + residual + ReLU"]
    model.flag = True
    with torch.no_grad(), pytest.raises(TypeError, match="NoneType"):
        model(x)


class Odd:
    """Adding it to a tensor changes a module."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def __radd__(self, other):
        self.model.act = nn.Tanh()
        return other

    @classmethod
    def __torch_function__(cls, *_: object, **__: object):
        return NotImplemented


class Added(Base):
    def forward(self, x):
        r = Odd(self) if self.flag else x
        y = self.up(x) + r
        return self.act(y)


def test_nothing_is_read_before_what_may_change_it() -> None:
    model, x = Added().eval(), torch.randn(1, 4, 6, 6)
    original = copy.deepcopy(model)
    accelerate(model, x)
    assert names(model) == ["ConvTranspose2d + residual + ReLU"]
    with torch.no_grad():
        model.flag = original.flag = True
        assert same(model(x), original(x))


class Parent(Base):
    def forward(self, y):
        return y * 2


class Inherits(Parent):
    def forward(self, x):
        y = self.up(x)
        return super().forward(y)


class Walrus(Base):
    def forward(self, x):
        y = self.up(x)
        y = (f := self.act)(y)
        return y * (2 if f is self.act else 3)


NET = {}


class Static(Base):
    @staticmethod
    def forward(x):
        return F.relu(NET["up"](x))


class Defaults(Base):
    def forward(self, x, *, gain=1.0):
        return F.relu(self.up(x)) * gain


@pytest.mark.parametrize("kind", [Inherits, Walrus, Static])
def test_code_that_no_chain_stands_for_is_accelerated_unfused(kind) -> None:
    model, x = kind().eval(), torch.randn(1, 4, 6, 6)
    NET["up"] = model.up
    with torch.no_grad():
        wanted = model(x)
        assert same(accelerate(model, x)(x), wanted)


def test_keyword_defaults_are_the_functions_own(monkeypatch) -> None:
    model, x = Defaults().eval(), torch.randn(1, 4, 6, 6)
    accelerate(model, x)
    assert names(model) == ["ConvTranspose2d + ReLU"]
    with torch.no_grad():
        wanted = 5 * model(x)
        monkeypatch.setitem(Defaults.forward.__kwdefaults__, "gain", 5.0)
        assert same(model(x), wanted)


MODULE = """
import torch
from torch import nn
from torch.nn import functional as F

class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 4, 3, padding=1)
    def forward(self, x):
        return {}
"""


@pytest.fixture
def written_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    counter = iter(range(100))

    def make(result: str, more: str = ""):
        name = f"upconv_written_{tmp_path.name}_{next(counter)}"
        (tmp_path / f"{name}.py").write_text(MODULE.replace("{}", result) + more)
        importlib.invalidate_caches()
        monkeypatch.delitem(sys.modules, name, raising=False)
        return importlib.import_module(name)

    return make


@pytest.mark.parametrize("way", ["code", "forward"])
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("F.relu(self.up(x))", "F.relu(self.up(x)) * 2"),
        ("F.leaky_relu(self.up(x), 0.1)", "F.leaky_relu(self.up(x), 0.7)"),
        ("F.gelu(self.up(x), approximate='none')", "F.gelu(self.up(x), approximate='tanh') + 1"),
        ("self.up(x).relu()", "self.up(x).tanh()"),
    ],
)  # fmt: skip
def test_code_that_is_edited_and_loaded_again_counts(written_module, way, before, after) -> None:
    old, new = written_module(before), written_module(after)
    model, x = old.Up().eval(), torch.randn(1, 4, 6, 6)
    accelerate(model, x)
    with torch.no_grad():
        model(x)
        if way == "code":
            old.Up.forward.__code__ = new.Up.forward.__code__
        else:
            old.Up.forward = new.Up.forward
        assert same(model(x), new.Up.forward(copy.deepcopy(restore(copy.deepcopy(model))), x))


@pytest.mark.parametrize("more", ["break", "def f(:", "'" + "' + '".join("a" * 3000) + "'"])
def test_a_file_that_cannot_be_read_any_more_is_left(written_module, more: str) -> None:
    module = written_module("F.relu(self.up(x))")
    with Path(module.__file__).open("a") as file:
        file.write(f"\n{more}\n")
    linecache.checkcache()
    model, x = module.Up().eval(), torch.randn(1, 4, 6, 6)
    with torch.no_grad():
        wanted = model(x)
        assert same(accelerate(model, x)(x), wanted)


def test_classes_go_when_their_models_do() -> None:
    def once() -> weakref.ref:
        own = type("Own", (OnePlace,), {})
        accelerate(own().eval(), torch.randn(1, 4, 6, 6))
        return weakref.ref(own)

    alive = [once() for _ in range(5)]
    gc.collect()
    assert [each() for each in alive] == [None] * 5
