"""An emitter of LLVM IR as text, which lets kernels read like loops.

Writing text is ten times as fast as building objects, and the time to the first result matters.
Values are in static single assignment form from the start: a loop lists the values that change in
it, so no pass has to find them.

    with f.loop(0, count, carried=[total]) as loop:     total = init
        x = f.load(FLOAT, f.at(p, loop.index, FLOAT))   for index in range(0, count):
        loop.next([loop.carried[0] + x])                    total = total + p[index]
    (total,) = loop.results
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from .cpu import Cpu
from .ir_instructions import Instructions
from .values import (
    BYTES,
    I16,
    I32,
    I64,
    LINE,
    PTR,
    Operand,
    Value,
    as_value,
    compared,
    listed,
    spelled,
    split,
    vector,
)


def signature(parameters: str) -> dict[str, str]:
    """Return a function's parameters: a star marks an address, the others are 64-bit integers.

    >>> signature("dst* count")
    {'dst': 'ptr', 'count': 'i64'}
    """
    return {name.rstrip("*"): PTR if name[-1] == "*" else I64 for name in parameters.split()}


class Loop:
    """The values that a loop's body sees, and the carried values after the loop."""

    def __init__(self, index: Value, carried: list[Value]) -> None:
        self.index = index
        self.carried = carried
        self.following = carried
        self.results: list[Value] = []

    def next(self, values: Sequence[Value]) -> None:
        """Set the values that the next iteration carries."""
        self.following = list(values)


class Function(Instructions):
    """A function that is being emitted; the module collects it when its `with` block ends."""

    def __init__(self, module: Module, name: str, parameters: dict[str, str], exported: bool):
        super().__init__(module.declare, module.cpu)
        self.name = name
        self.parameters = {
            key: Value(kind, f"%{key}", self._do) for key, kind in parameters.items()
        }
        self._exported = exported
        self._block = "entry"

    def __getitem__(self, parameter: str) -> Value:
        return self.parameters[parameter]

    def _start(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    def _jump(self, label: str) -> None:
        self.append(f"br label %{label}")

    def _branch(self, condition: Value, yes: str, no: str) -> None:
        self.append(f"br i1 {condition.name}, label %{yes}, label %{no}")

    def text(self) -> str:
        """Return the finished function's IR."""
        arguments = ", ".join(
            f"{v.type}{' noundef' if v.type != PTR else ''} {v.name}"
            for v in self.parameters.values()
        )
        linkage = "" if self._exported else "internal "
        body = "\n".join([self._lines[0], *self._allocas, *self._lines[1:], "  ret void"])
        return f"define {linkage}void @{self.name}({arguments}) #0 {{\n{body}\n}}\n"

    # Control ------------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, start: Operand, stop: Operand, step: Operand = 1, carried: Sequence[Value] = ()
    ) -> Iterator[Loop]:
        """Emit `for index in range(start, stop, step)`, with values carried between iterations."""
        before, body, done = self._block, self._fresh("body"), self._fresh("done")

        def merged(first: str, following: Value) -> str:
            return f"phi {following.type} [ {first}, %{before} ], [ {following.name}, %{latch} ]"

        self._branch(compared("slt", as_value(start, self._do), stop), body, done)
        self._start(body)
        index = Value(I64, f"%{self._fresh('i')}", self._do)
        values = [Value(v.type, f"%{self._fresh('c')}", self._do) for v in carried]
        phi_line = len(self._lines)
        loop = Loop(index, values)
        yield loop
        advanced = index + step
        latch = self._block
        pairs = list(zip((first.name for first in carried), loop.following, strict=True))
        entries = zip((index, *values), [(spelled(I64, start), advanced), *pairs], strict=True)
        self._lines[phi_line:phi_line] = [f"  {v.name} = {merged(*pair)}" for v, pair in entries]
        self._branch(advanced < stop, body, done)
        self._start(done)
        loop.results = [self._do(pair[1].type, merged(*pair)) for pair in pairs]

    @contextmanager
    def forever(self) -> Iterator[str]:
        """Emit a loop that only `leave` ends; pass it the label that this yields."""
        body, done = self._fresh("body"), self._fresh("done")
        self._jump(body)
        self._start(body)
        yield done
        self._jump(body)
        self._start(done)

    def leave(self, loop: str, condition: Value) -> None:
        """Leave a `forever` loop if a condition holds."""
        on = self._fresh("on")
        self._branch(condition, loop, on)
        self._start(on)

    @contextmanager
    def when(self, condition: Value, *, holds: bool = True) -> Iterator[None]:
        """Emit `if condition`."""
        yes, done = self._fresh("yes"), self._fresh("done")
        self._branch(condition, *((yes, done) if holds else (done, yes)))
        self._start(yes)
        yield
        self._jump(done)
        self._start(done)

    def unless(self, condition: Value) -> AbstractContextManager[None]:
        """Emit `if not condition`."""
        return self.when(condition, holds=False)

    def store_below(
        self, value: Value, address: Value, count: Value, mask: Value | None = None
    ) -> None:
        """Write the first `count` lanes; their mask is `mask`, if known.

        Without AVX-512, a store under a mask takes up to 18 cycles (Zen 3, 2026-11-28), so a full
        vector is stored without one.
        """
        element, lanes = split(value.type)
        mask = mask or self.lanes_below(count, lanes)
        if self._cpu is not None and self._cpu.vector_bytes == LINE:
            self.store_lanes(value, address, mask)
            return
        if BYTES[element] == 2 and element != I16:  # bfloat16 cannot cross into another block
            value = self.convert("bitcast", value, vector(I16, lanes))
        is_full = count >= lanes
        with self.when(is_full):
            self.store(value, address)
        with self.unless(is_full | (count <= 0)):
            self.store_lanes(value, address, mask)

    def call(self, target: Value | str, *arguments: Operand) -> None:
        """Call a function of this module by name, or any function by its address."""
        name = f"@{target}" if isinstance(target, str) else target.name
        self.append(f"call void {name}({listed(map(as_value, arguments))})")

    def call_foreign(self, name: str, *arguments: Operand) -> Value:
        """Call a C function, which returns an int, by its name from `compile.provided`."""
        self._declare(f"declare i32 @{name}(...)")
        return self._do(I32, f"call i32 (...) @{name}({listed(map(as_value, arguments))})")


class Module:
    """Functions compiled together for a processor."""

    def __init__(self, cpu: Cpu | None = None) -> None:
        self.cpu = cpu
        self._functions: list[str] = []
        self._declarations: dict[str, None] = {}

    def declare(self, line: str) -> None:
        """Declare an intrinsic or a C function."""
        self._declarations[line] = None

    @contextmanager
    def function(
        self, name: str, parameters: dict[str, str], *, exported: bool = True
    ) -> Iterator[Function]:
        """Emit a function without a result in a `with` block."""
        function = Function(self, name, parameters, exported)
        yield function
        self._functions.append(function.text())

    def text(self) -> str:
        """Return the module's IR."""
        attributes = self.cpu.attributes if self.cpu else "nounwind"
        marks = f"attributes #0 = {{ {attributes} }}\n!0 = !{{i32 1}}\n"
        return "\n".join([*self._declarations, *self._functions, marks])
