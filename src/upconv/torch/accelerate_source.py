"""Chains of calls in a function's source, each written as one call that knows all of it.

    x = functional.relu(self.norm(self.up(x)))
    x = _upconv_chain(0, functional.relu, self.norm, self.up, x)

    y = self.up(x)
    return torch.tanh(self.norm(y) + r)
    return _upconv_chain(1, self.up, x, lambda: (torch.tanh, self.norm, r))

Everything else stays as it was written, and so does the order in which things are evaluated: what
one statement reads by name is read when its turn comes, by the lambda. Only the name between two
statements is gone, where nothing else can read it. Tracebacks show the last statement of a row.

The source counts if compiling it gives the very code that the function has.

What lives here: reading and writing source. What never does: running chains.
"""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

CHAIN = "_upconv_chain"
"""The argument by which a written function is given what runs its chains."""

Place = tuple[int, int, int, int]
"""The line and column at which an expression begins in the source, and those at which it ends."""

_METHODS = ("relu", "tanh", "sigmoid")
_OWN_VARIABLES = {"locals", "vars", "eval", "exec", "dir"}
_UNUSUAL = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_APART = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_GUARDED = (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)


@dataclass(frozen=True, slots=True)
class Link:
    """One thing that is done to a value.

    what: "call", "add", or the name of a method. operand: the place of what is called or added
    among its statement's values, -1 for a method. args, kwargs: numbers and strings that are given
    as well. rest: the place of a function that reads further arguments; -1 if there are none.
    left: whether what is added stands on the left. statement: which one of a row it is.
    """

    what: str
    operand: int = -1
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    rest: int = -1
    left: bool = False
    statement: int = 0


@dataclass(frozen=True, slots=True)
class Spot:
    """A chain: where it ends in the source, and its links in the order in which they are done.

    base: the place of the value that it begins with among those of the first statement, which are
    `width` in number. reads: of every statement, the names with their attributes that it reads when
    its turn comes, as ("self", "norm"); ("self", "parts", "[]") is an entry.
    """

    place: Place
    links: tuple[Link, ...]
    base: int
    width: int
    reads: tuple[tuple[tuple[str, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Written:
    """The code of a function with chains, and what each of them is."""

    code: CodeType
    spots: tuple[Spot, ...]


def written(forward: FunctionType, only: frozenset[Place] | None = None) -> Written | str:
    """A function with its chains, or those at some places, as calls; or why not, in words.

    >>> written(eval("lambda self, x: x"))
    'its source cannot be read'
    """
    code = forward.__code__
    if code.co_flags & _UNUSUAL or _OWN_VARIABLES & {*code.co_names}:
        return "its code does more than compute a result"
    try:
        text = "".join(linecache.getlines(code.co_filename, forward.__globals__))
        return _written(code, text, only)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OSError):
        return _UNREADABLE


_UNREADABLE = "its source cannot be read"


@lru_cache(maxsize=1024)
def _written(code: CodeType, text: str, only: frozenset[Place] | None) -> Written | str:
    alone = _alone(_parsed(text), code)
    if alone is None or _compiled(alone, code) != code:
        return _UNREADABLE
    tree = copy.deepcopy(alone)
    [function] = _definitions(tree, code)
    writer = _Writer(code, function, only)
    if not writer.spots:
        return "its code calls nothing on a result" if only is None else "its code changed"
    function.args.kwonlyargs.append(ast.arg(CHAIN))
    function.args.kw_defaults.append(None)
    made = _compiled(ast.fix_missing_locations(tree), code)
    if made is None or made.co_freevars != code.co_freevars:
        return _UNREADABLE
    return Written(made, tuple(writer.spots))


@lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _alone(tree: ast.Module, code: CodeType) -> ast.Module | None:
    """A module with nothing but the definition of a function's code, in the classes it stands in.

    None if there is no such definition, or if there are several.
    """
    for statement in tree.body:
        if (statement.end_lineno or 0) < code.co_firstlineno:
            continue
        found = _definitions(statement, code)
        if len(found) != 1:
            return None
        return ast.Module([*_imports(tree), _pruned(statement, found[0])], [])
    return None


def _pruned(statement: ast.stmt, function: ast.FunctionDef) -> ast.stmt:
    """A class without what stands beside a function; what is no class stays as it is."""
    if not isinstance(statement, ast.ClassDef):
        return statement
    pruned = copy.copy(statement)
    inner = next(each for each in statement.body if function in ast.walk(each))
    pruned.body = [_pruned(inner, function)]
    return pruned


def _imports(tree: ast.Module) -> list[ast.stmt]:
    """The imports of a module: calls of what is imported compile otherwise than methods."""
    apart = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    outside = (each for each in tree.body if not isinstance(each, apart))
    found = (each for statement in outside for each in ast.walk(statement))
    return [each for each in found if isinstance(each, ast.Import | ast.ImportFrom)]


def _definitions(tree: ast.AST, code: CodeType) -> list[ast.FunctionDef]:
    """The definitions that may be that of a function's code."""
    functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
    return [each for each in functions if _defines(each, code)]


def _compiled(tree: ast.Module, code: CodeType) -> CodeType | None:
    """The code of the same function in a tree."""
    module: CodeType = compile(tree, code.co_filename, "exec", dont_inherit=True)
    return _code_in(module, code)


def _code_in(module: CodeType, like: CodeType) -> CodeType | None:
    """The code of the same function in a module."""
    for inner in module.co_consts:
        if isinstance(inner, CodeType):
            alike = inner.co_qualname == like.co_qualname
            if alike and inner.co_firstlineno == like.co_firstlineno:
                return inner
            found = _code_in(inner, like)
            if found is not None:
                return found
    return None


def _defines(function: ast.FunctionDef, code: CodeType) -> bool:
    """Whether a definition is that of a function's code."""
    lines = (function.lineno, *(each.lineno for each in function.decorator_list))
    return function.name == code.co_name and min(lines) == code.co_firstlineno


class _Writer:
    """Writes the chains of one function as calls, in place; `spots` says what they are."""

    def __init__(
        self, code: CodeType, function: ast.FunctionDef, only: Collection[Place] | None
    ) -> None:
        self.local = {*code.co_varnames} - {*code.co_cellvars}
        self.only, self.spots = only, list[Spot]()
        self.uses = [each for each in ast.walk(function) if isinstance(each, ast.Name)]
        self.guards = 0
        function.body = self._block(function.body)

    def _visited(self, node: Any) -> Any:
        """A statement or expression with its chains written as calls."""
        if not isinstance(node, ast.AST) or isinstance(node, (*_APART, *_COMPREHENSIONS)):
            return node  # functions of their own have variables of their own
        chained = self._chained([node]) if isinstance(node, ast.expr) else None
        if chained is not None:
            return chained
        self.guards += isinstance(node, _GUARDED)
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                block = bool(value) and isinstance(value[0], ast.stmt)
                setattr(node, name, self._block(value) if block else [*map(self._visited, value)])
            else:
                setattr(node, name, self._visited(value))
        self.guards -= isinstance(node, _GUARDED)
        return node

    def _block(self, block: list[ast.stmt]) -> list[ast.stmt]:
        """Statements, those in a row that hand on one value in one.

        Not where an error is waited for: the names would be seen after it.
        """
        done: list[ast.stmt] = []
        left = list(block)
        while left:
            row = [left.pop(0)]
            while left and not self.guards and self._hands_on(row[-1], left[0]):
                row.append(left.pop(0))
            call = self._chained([_value_of(each) for each in row]) if len(row) > 1 else None
            if call is not None:
                last: Any = row.pop()
                last.value = call
                done.append(last)
            else:
                done += map(self._visited, row)
        return done

    def _hands_on(self, first: ast.stmt, second: ast.stmt) -> bool:
        """Whether a statement gives a name to a value that the next alone takes."""
        name, value = _named(first), _value_of(second)
        if name not in self.local or value is None or not _read(_value_of(first), self.local).links:
            return False
        read = _read(value, self.local)
        if not isinstance(read.base, ast.Name) or read.base.id != name or read.reads is None:
            return False
        uses = [each for each in ast.walk(value) if isinstance(each, ast.Name) and each.id == name]
        if len(uses) != 1:
            return False
        last = isinstance(second, ast.Return) or _named(second) == name
        return last or sum(each.id == name for each in self.uses) == 2

    def _chained(self, expressions: list[Any]) -> ast.expr | None:
        """One call in place of the chain that the expressions are; None if it is not wanted."""
        reads = [_read(each, self.local) for each in expressions]
        last = expressions[-1]
        place = last.lineno, last.col_offset, last.end_lineno, last.end_col_offset
        few = sum(len(read.links) for read in reads) < 2
        if few or (self.only is not None and place not in self.only):
            return None
        number, first = len(self.spots), reads[0]
        links = (replace(link, statement=i) for i, read in enumerate(reads) for link in read.links)
        names = tuple(read.reads or () for read in reads)
        self.spots.append(Spot(place, tuple(links), first.base_at, len(first.values), names))
        values = [*map(self._visited, first.values), *map(_later, reads[1:])]
        call = ast.Call(ast.Name(CHAIN, ast.Load()), [ast.Constant(number), *values], [])
        return ast.copy_location(call, last)


def _later(read: _Read) -> ast.expr:
    """What a later statement reads, when its turn comes; its value is there already."""
    values = list(read.values)
    values[read.base_at] = ast.Constant(None)
    return _when_called(values)


def _when_called(values: list[ast.expr]) -> ast.expr:
    """A function that gives values."""
    nothing = ast.arguments([], [], None, [], [], None, [])
    return ast.Lambda(nothing, ast.Tuple(values, ast.Load()))


def _named(statement: ast.stmt) -> str:
    """The one name that a statement gives to a value; "" if it does anything else."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            return name
    return ""


def _value_of(statement: ast.stmt) -> Any:
    if isinstance(statement, ast.Return) or _named(statement):
        return getattr(statement, "value", None)
    return None


@dataclass(slots=True)
class _Read:
    """What a chain in one expression consists of, its values in the order of their evaluation."""

    local: Collection[str]
    values: list[ast.expr] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    base_at: int = 0

    @property
    def base(self) -> ast.expr:
        """The value that the chain begins with."""
        return self.values[self.base_at]

    @property
    def reads(self) -> tuple[tuple[str, ...], ...] | None:
        """The names that all but the value it begins with are, or are read of; None if not all."""
        others = [value for i, value in enumerate(self.values) if i != self.base_at]
        found = [each for value in others for each in _dotted(value)]
        return None if () in found else tuple(found)

    def read(self, expression: ast.expr) -> None:
        """Take an expression apart, from its end to the value it begins with."""
        match expression:
            case ast.Call(func=ast.Attribute(value=inner, attr=name), args=[], keywords=[]) if (
                name in _METHODS and _is_link(inner)
            ):
                self.read(inner)
                self.links.append(Link(name))
            case ast.Call(func=called, args=[inner, *rest], keywords=named) if _is_link(expression):
                place = self._value(called)
                self.read(inner)
                told = all(map(_literal, rest))
                args = tuple(map(ast.literal_eval, rest)) if told else ()
                kwargs = tuple((str(each.arg), ast.literal_eval(each.value)) for each in named)
                more = -1 if told else self._value(_when_called(rest))
                self.links.append(Link("call", place, args, kwargs, more))
            case ast.BinOp(left=left, op=ast.Add(), right=right) if _is_link(right):
                place = self._value(left)
                self.read(right)
                self.links.append(Link("add", place, left=True))
            case ast.BinOp(left=left, op=ast.Add(), right=ast.Name(id=name) as right) if (
                name in self.local and _is_link(left)
            ):
                self.read(left)
                self.links.append(Link("add", self._value(right)))
            case _:
                self.base_at = self._value(expression)

    def _value(self, expression: ast.expr) -> int:
        self.values.append(expression)
        return len(self.values) - 1


def _is_link(expression: ast.expr) -> bool:
    """Whether an expression is a call on a value, with numbers, strings or names besides."""
    match expression:
        case ast.Call(args=[inner, *rest], keywords=named):
            literal = all(each.arg is not None and _literal(each.value) for each in named)
            told = () not in [name for each in rest for name in _dotted(each)]
            return literal and told and not isinstance(inner, ast.Starred)
    return False


def _dotted(expression: ast.expr) -> list[tuple[str, ...]]:
    """A name and what is read of it, of each of several; () for what is none."""
    match expression:
        case ast.Name(id=name):
            return [(name,)]
        case ast.Attribute(value=inner, attr=name):
            return [(*each, name) if each else () for each in _dotted(inner)]
        case ast.Subscript(value=inner, slice=ast.Constant() | ast.Name()):
            return [(*each, "[]") if each else () for each in _dotted(inner)]
        case ast.Lambda(body=ast.Tuple(elts=values)):  # of `_when_called`
            return [each for value in values for each in _dotted(value)]
    return [()] if not _literal(expression) else []


def _read(expression: ast.expr, local: Collection[str]) -> _Read:
    read = _Read(local)
    read.read(expression)
    return read


def _literal(value: ast.expr) -> bool:
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        value = value.operand
        return isinstance(value, ast.Constant) and type(value.value) in (int, float)
    return isinstance(value, ast.Constant)
