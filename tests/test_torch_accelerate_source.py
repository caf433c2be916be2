"""Functions written anew compute what they computed, in the order in which they did."""

from __future__ import annotations

import ast
import itertools
import random
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from upconv.torch import accelerate_source
from upconv.torch.accelerate_chains import Chains
from upconv.torch.accelerate_source import CHAIN, written

COUNTER = itertools.count()


def compiled(text: str, folder: Path, **names: object) -> dict:
    """The names that a module of this text defines."""
    path = folder / f"module_{next(COUNTER)}.py"
    path.write_text(textwrap.dedent(text))
    spelled: dict = dict(names)
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), spelled)
    return spelled


def made(forward) -> str:
    """The source of a function with its chains, as far as it can be told."""
    tree = None
    original = ast.fix_missing_locations

    def keep(node):
        nonlocal tree
        tree = node
        return original(node)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ast, "fix_missing_locations", keep)
        accelerate_source._written.cache_clear()
        assert not isinstance(written(forward), str)
    [function] = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef) and CHAIN in [a.arg for a in each.args.kwonlyargs]
    ]
    return "\n".join(ast.unparse(each) for each in function.body)


FORMS = {
    "nested": ("return f(self.norm(self.up(x)))", "_upconv_chain(0, f, self.norm, self.up, x)"),
    "a row": (
        "y = self.up(x)\nz = self.norm(y)\nreturn f(z)",
        "_upconv_chain(0, self.up, x, lambda: (self.norm, None), lambda: (f, None))",
    ),
    "rebound": (
        "x = self.up(x)\nx = self.norm(x)\nself.last = x\nreturn x",
        "x = _upconv_chain(0, self.up, x, lambda: (self.norm, None))",
    ),
    "a sum": ("return f(self.up(x) + x)", "_upconv_chain(0, f, self.up, x, x)"),
    "a sum on the left": (
        "return f(g() + self.up(x))",
        "_upconv_chain(0, f, g(), self.up, x)",
    ),
    "further arguments": (
        "return f(g(self.up(x), 0.5, key=-1), self.slope)",
        "_upconv_chain(0, f, g, self.up, x, lambda: (self.slope,))",
    ),
    "a method": ("return self.up(x).relu()", "_upconv_chain(0, self.up, x)"),
    "in a loop": (
        "for up, norm in self.parts:\n    x = norm(up(x))\nreturn x",
        "x = _upconv_chain(0, norm, up, x)",
    ),
    "a chain in the value of another": (
        "return f(self.norm(g(h(x), f(g(x)), 1)))",
        "_upconv_chain(0, f, self.norm, g(h(x), _upconv_chain(1, f, g, x), 1))",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_chains_are_written_as_calls(form: str, tmp_path: Path) -> None:
    text, wanted = FORMS[form]
    body = textwrap.indent(text, "    ")
    assert wanted in made(compiled(f"def forward(self, x):\n{body}\n", tmp_path)["forward"])


@pytest.mark.parametrize(
    "text",
    [
        "y = self.up(x)\n    z = self.norm(y)\n    return y, z",  # the name is read again
        "y = self.up(x)\n    return self.norm(y, y)",
        "y = self.up(x)\n    h = lambda: y\n    y = self.norm(y)\n    return h",
        "y = self.up(x)\n    g()\n    return self.norm(y)",
        "try:\n        y = self.up(x)\n        y = self.norm(y)\n    finally:\n        g(y)",
        "with g():\n        y = self.up(x)\n        y = self.norm(y)\n    return y",
        "y = z = self.up(x)\n    return self.norm(y)",
        "y: int\n    y = self.up(x)\n    return self.norm(*y)",
        "return self.norm(self.up(x, y=g()))",
        "return self.norm([f(self.up(v)) for v in x])",
        "return self.up(x) + self.norm",
        "y = self.norm(self.up)\n    return locals()",
        "yield f(self.up(x))",
        "return self.norm(up := x)",
    ],
)
def test_what_is_no_chain_is_left(text: str, tmp_path: Path) -> None:
    forward = compiled(f"def forward(self, x):\n    {text}\n", tmp_path)["forward"]
    assert isinstance(written(forward), str)


def test_source_that_is_not_the_codes_is_not_believed(tmp_path: Path) -> None:
    text = "def forward(self, x):\n    return f(g(x))\n"
    names = compiled(text, tmp_path)
    assert not isinstance(written(names["forward"]), str)
    path = Path(names["forward"].__code__.co_filename)
    names = compiled(text, tmp_path)
    path = Path(names["forward"].__code__.co_filename)
    path.write_text(text.replace("f(g(x))", "g(f(x))"))
    assert written(names["forward"]) == "its source cannot be read"
    exec("def forward(self, x):\n    return f(g(x))\n", names)
    assert written(names["forward"]) == "its source cannot be read"


class Odd(Exception):
    """What a recorder may raise."""


class Recorder:
    """Logs all that is read of it, called and added, and fails once, at a chosen event."""

    def __init__(self, log: list, name: str) -> None:
        self.__dict__.update(_log=log, _name=name)

    def _event(self, text: str) -> Recorder:
        log = self.__dict__["_log"]
        if len(log) == log_end(log):
            raise Odd(text)
        log.append(text)
        return Recorder(log, f"r{len(log)}")

    def __getattr__(self, name: str) -> Recorder:
        return self._event(f"{self._name}.{name}")

    def __getitem__(self, key: object) -> Recorder:
        return self._event(f"{self._name}[{key}]")

    def __call__(self, *args: object, **kwargs: object) -> Recorder:
        return self._event(f"{self._name}({args}, {kwargs})")

    def __add__(self, other: object) -> Recorder:
        return self._event(f"{self._name}+{other}")

    def __repr__(self) -> str:
        return self._name


class Log(list):
    end = -1


def log_end(log: Log) -> int:
    return log.end


class Programs:
    """Random functions made of what chains are made of, and of what they are not."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.deep = 0

    def callee(self) -> str:
        names = ("f", "g", "self.up", "self.norm.inner", "self.parts[0]", "self.parts[n]", "y")
        return self.random.choice(names)

    def value(self) -> str:
        if self.deep > 3:
            return self.random.choice(("x", "y", "z"))
        self.deep += 1
        kinds: list[Callable[[], str]] = [
            lambda: self.random.choice(("x", "y", "z", "self.shape")),
            lambda: f"{self.callee()}({self.value()})",
            lambda: f"{self.callee()}({self.value()})",
            lambda: f"{self.callee()}({self.value()}, 0.5)",
            lambda: f"{self.callee()}({self.value()}, self.slope, y)",
            lambda: f"{self.callee()}({self.value()}, key=-2)",
            lambda: f"{self.callee()}({self.value()}, {self.value()})",
            lambda: f"{self.value()} + {self.random.choice(('x', 'y', 'self.bias'))}",
            lambda: f"({self.value()} + {self.value()})",
            lambda: f"{self.callee()}({self.value()}).relu()",
            lambda: f"[{self.value()}, {self.value()}]",
        ]
        made = self.random.choice(kinds)()
        self.deep -= 1
        return made

    def statements(self, depth: int = 0) -> list[str]:
        lines: list[str] = []
        for _ in range(self.random.randint(1, 5)):
            name = self.random.choice("xyz")
            roll = self.random.random()
            if roll < 0.35:
                lines.append(f"{name} = {self.callee()}({self.random.choice('xyz')})")
            elif roll < 0.7:
                lines.append(f"{name} = {self.value()}")
            elif roll < 0.76 and depth < 2:
                inner = [f"    {line}" for line in self.statements(depth + 1)]
                heads = ("if self.flag:", "for n in (1, 2):", "with self.context() as n:")
                lines += (
                    ["try:", *inner, "except Odd:", "    z = x"]
                    if roll < 0.72
                    else [
                        self.random.choice(heads[:2]),
                        *inner,
                    ]
                )
            elif roll < 0.8:
                lines.append(f"self.use({name})")
            else:
                lines.append(f"{name} = {self.callee()}({self.callee()}({name}))")
        return lines

    def text(self) -> str:
        lines = [*self.statements(), f"return {self.random.choice((self.value(), 'x, y, z'))}"]
        return "def forward(self, x, y=3):\n    n = 0\n    z = x\n    " + "\n    ".join(lines)


def outcome(forward, end: int) -> tuple[list, str]:
    log = Log()
    log.end = end
    names = getattr(forward, "func", forward).__globals__
    names.update(f=Recorder(log, "f"), g=Recorder(log, "g"), Odd=Odd)
    try:
        result = repr(forward(Recorder(log, "self"), Recorder(log, "x"), Recorder(log, "y")))
    except (Odd, TypeError, AttributeError, UnboundLocalError) as error:
        # Of what has no attributes: the words differ, for a chain calls from elsewhere.
        result = f"{type(error).__name__}"
    return list(log), result


def rewritten(forward):
    return _All(())._written(forward)


class _All(Chains):
    """Chains at every place, none of which is done in one go."""

    def _places(self) -> None:
        return None


def check(seeds: range, folder: Path) -> int:
    changed = 0
    for seed in seeds:
        forward = compiled(Programs(seed).text(), folder)["forward"]
        function = rewritten(forward)
        if function is None:
            continue
        changed += 1
        events, wanted = outcome(forward, -1)
        assert outcome(function, -1) == (events, wanted), seed
        for end in {0, 1, len(events) // 2, len(events) - 1}:
            assert outcome(function, end) == outcome(forward, end), (seed, end)
    return changed


def test_random_functions_do_the_same_in_the_same_order(tmp_path: Path) -> None:
    assert check(range(400), tmp_path) > 200


@pytest.mark.long
def test_many_random_functions_do_the_same_in_the_same_order(tmp_path: Path) -> None:
    assert check(range(400, 40_000), tmp_path) > 20_000


def test_the_test_above_sees_what_comes_too_early(tmp_path: Path, monkeypatch) -> None:
    """Of several statements, all is read at once."""
    from upconv.torch import accelerate_chains

    right = accelerate_chains._Reading.__init__

    def early(self, spot, values):
        right(self, spot, values)
        self.held[1:] = [list(thunk()) for thunk in self.thunks]

    monkeypatch.setattr(accelerate_chains._Reading, "__init__", early)
    with pytest.raises(AssertionError):
        check(range(60), tmp_path)
