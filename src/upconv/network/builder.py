"""`Network`, the builder: a model written call by call and checked at once.

Each call checks channels, ranks and weights. Once the sizes are known, `graph` checks these too; an
error names the line of the call that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ..arrays import as_array
from ..checks import by_name, frozen
from ..engine_choice import Algorithm
from ..errors import ArgumentError, ShapeError
from ..keywords import rounds
from ..problem import DType
from ..signatures import AlgorithmName, NetworkPrecision
from ..threads import resolved
from . import graph as ir
from .kinds import described_shape
from .layers import Layers
from .operands import one_each
from .values import Nodes, Value

if TYPE_CHECKING:
    from .boxes import BoxPrograms
    from .compile import Compiler
    from .program import Program, Programs
    from .streams import NetworkStream


Result = TypeVar("Result")


class Network(Layers):
    """A network of layers: its inputs, the values that calls add, and its outputs.

    inputs: (N, C, *size) by name. The batch and the sizes may be open: write None, or a name that
    stands for the same extent wherever it occurs.

    Weights and numbers per channel may be float16, bfloat16, float32 or float64. They are copied
    as float32. Each method returns a new `Value`; `output` ends the network.

    Raises `ArgumentError` (`ShapeError`, `DTypeError`) for arguments that do not fit together.

    >>> import numpy as np
    >>> network = Network({"x": (1, 2, None)})
    >>> x = network.inputs["x"]
    >>> y = network.conv(x, np.ones((2, 2, 3)), padding=1, activation="relu")
    >>> network.output(x + y)
    >>> network.graph(x=(1, 2, 5)).shapes
    {0: (1, 2, 5), 1: (1, 2, 5), 2: (1, 2, 5)}
    """

    def __init__(self, inputs: Mapping[str, Sequence[int | str | None]]) -> None:
        super().__init__(Nodes(inputs))
        self._programs: Programs | None = None

    @property
    def inputs(self) -> dict[str, Value]:
        """The inputs by name, in order."""
        return dict(self._nodes.inputs)

    def __repr__(self) -> str:
        count, declared = len(self._nodes.nodes), self._nodes.declared.items()
        inputs = ", ".join(f"{name} {described_shape(shape)}" for name, shape in declared)
        return f"<Network of {count} node{'s' * (count != 1)}, inputs {inputs}>"

    @property
    def nodes(self) -> tuple[ir.Node, ...]:
        """The nodes in the order of the calls."""
        return tuple(self._nodes.nodes)

    # Outputs, programs and streams ----------------------------------------------------------------

    def output(self, *values: Value) -> None:
        """Set the outputs of the network, in order. No later call can add a layer."""
        if not values:
            raise ArgumentError("the number of outputs", "0", "at least one value")
        for i, value in enumerate(values):
            self._nodes.check(f"values[{i}]", value)
        numbers: list[int] = []
        for value in values:
            # Each output gets its own array, separate from the inputs.
            shared = value.number in numbers or value.number < len(self._nodes.inputs)
            numbers.append((self._nodes.insert(ir.Convert(), value) if shared else value).number)
        self._nodes.outputs = tuple(numbers)

    def graph(self, /, **shapes: Any) -> ir.Graph:
        """Return the graph for known sizes, without nodes that no output needs.

        shapes: (N, C, *size) of each input that has open extents, by name.
        """
        if not self._nodes.outputs:
            remedy = "Call network.output(value) after the last layer."
            raise ArgumentError("the number of outputs", "0", "at least 1", remedy)
        return self._nodes.sized(shapes)

    def at(self, line: str) -> None:
        """Set the line that errors in later calls name; "" means the caller's line in Python."""
        self._nodes.line = line

    def redeclared(self, inputs: Mapping[str, Sequence[int | str | None]]) -> Network:
        """Return the network for inputs of other shapes, which have the same names in order."""
        other = Network(inputs)
        other._nodes.replay(self._nodes)
        return other

    def compile(
        self, shapes: Mapping[str, Sequence[int]] | None = None, *,
        precision: NetworkPrecision = "float32", threads: int | None = None,
        algorithm: AlgorithmName = "auto",
    ) -> Program:  # fmt: skip
        """Compile a program with packed weights for known sizes; call `program.run(*arrays)`.

        shapes: (N, C, *size) of each input that has open extents, by name. precision: "float32" or
        "bfloat16", the type of all intermediate values. threads: default: the current
        `get_num_threads()`. algorithm: as in `conv_transpose`. Programs of other sizes share the
        packed weights.

        Raises the errors of `graph`, and `MemoryLimitError` if the values do not fit in memory.
        """
        options = _options(precision, threads, algorithm)
        return self._sized(
            by_name("shapes", shapes), lambda programs, known: programs.compiled(known, options)
        )

    def __call__(
        self, *arrays: Any, precision: NetworkPrecision = "float32", threads: int | None = None
    ) -> Any:
        """Run on arrays of any valid sizes; programs for the latest sizes are kept.

        arrays: one for each input, in the order in which the inputs were declared.

        The results and errors are those of `Program.run`.
        """
        names = self._nodes.inputs
        one_each("the number of inputs", arrays, names)
        pairs = zip(names, arrays, strict=True)
        shapes = {name: as_array(name, array).shape for name, array in pairs}
        return self.program(shapes, precision=precision, threads=threads).run(*arrays)

    def program(
        self, shapes: Mapping[str, ir.Shape], *, precision: NetworkPrecision = "float32",
        threads: int | None = None,
    ) -> Program:  # fmt: skip
        """Return the program that `__call__` uses for arrays of these shapes; do not close it."""
        options = _options(precision, threads, "auto")
        known = by_name("shapes", shapes)
        program = None if self._programs is None else self._programs.find(known, options)
        if program is None:
            program = self._sized(known, lambda programs, sizes: programs.kept(sizes, options))
        return program

    def stream(
        self, axis: int = -1, *, chunk: int | None = None, precision: NetworkPrecision = "float32",
        threads: int | None = None, algorithm: AlgorithmName = "auto",
        shapes: Mapping[str, Sequence[int | None]] | None = None,
    ) -> NetworkStream:  # fmt: skip
        """Stream this network along a spatial axis: `push(chunk)` for each chunk, then `finish()`.

        axis: an axis of the arrays (N, C, *size) that is open in every input. chunk: the input
        length to choose kernels for (default: the length of the first push). shapes: the shapes of
        inputs with other open sizes, by name, with None at `axis`. The others: as in `compile`.

        Results equal those of the network on the whole input up to rounding. Nothing is computed
        twice. docs/network.md states when the bits do not depend on the chunks.

        Raises `ArgumentError` for an axis that is not open. If an operation reads all positions, as
        instance norm does, raises an `EngineRefusal` that names its line.
        """
        from .stream_sources import source_of
        from .streams import NetworkStream

        options, sizes = _options(precision, threads, algorithm), by_name("shapes", shapes)
        declared = self._nodes.declared
        return NetworkStream(source_of(declared, self._compiler, axis, chunk, options, sizes))

    def boxes(
        self, shapes: Mapping[str, ir.Shape], *, precision: NetworkPrecision = "float32",
        algorithm: AlgorithmName = "direct",
    ) -> BoxPrograms:  # fmt: skip
        """Return the programs that compute parts of the results, as `upconv.dask.run` needs them.

        They raise `EngineRefusal` rather than divide an operation that reads all positions.
        """
        from .boxes import BoxPrograms

        options = _options(precision, None, algorithm)
        return BoxPrograms.of(self._compiler(by_name("shapes", shapes)), shapes, options)

    def _compiler(self, shapes: dict[str, Any]) -> Compiler:
        return self._sized(shapes, lambda programs, _: programs.compiler)

    def draw(self) -> str:
        """Draw the network in the order of the calls; return an SVG file as a string."""
        from .draw import drawing

        return drawing(self._nodes.graph())

    def _sized(
        self, shapes: dict[str, Any], make: Callable[[Programs, dict[str, ir.Shape]], Result]
    ) -> Result:
        """Call `make` with the network's programs and the shapes of all inputs."""
        from .program import Programs  # the builder itself needs no engine

        self._programs = self._programs or Programs(self.graph(**shapes))
        known = dict(zip(self._nodes.inputs, self._nodes.input_shapes(shapes), strict=True))
        try:
            return make(self._programs, known)
        except ShapeError:
            self.graph(**shapes)  # raises an error with the line of the call that does not fit
            raise


def _options(precision: Any, threads: int | None, algorithm: str) -> ir.Options:
    rounded = rounds(frozen("precision", precision), DType.FLOAT32)
    dtype = DType.BFLOAT16 if rounded else DType.FLOAT32
    return ir.Options(dtype, resolved(threads), Algorithm.of(algorithm))
