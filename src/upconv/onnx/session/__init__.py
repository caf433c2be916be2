"""`Session`: run a model in ONNX Runtime, with upconv for the parts that it computes faster."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self

import onnx_ir as ir

from ... import memory
from ...argument_checks import boolean
from ...arrays import Array
from ...errors import ArgumentError, EngineError, EngineRefusal, brief
from ...front_end_reports import Report, Row, conditions, restored
from ...terminal import Progress, shown
from ...threads import resolved
from ...timing import Others
from ..inputs import dtype_of, fitting, inputs_of
from ..inputs import feeds as drawn
from ..models import Source, digest, from_model
from .choosing import HOST, Assembly, decided, measured, unmeasured
from .interface import PROVIDER, ModelMetadata, NodeArg, require_defaults, require_processor
from .native import Native

__all__ = ["NodeArg", "Report", "Row", "Session"]


class Session:
    """A model ready to run on the processor, with the interface of `InferenceSession`.

    ONNX Runtime runs the model. Where this is faster, upconv computes parts of the main graph that
    contain convolutions, as networks, with ONNX Runtime's memory and threads. The constructor
    measures them on random inputs, in a few seconds. If the whole model is not faster, or computes
    other values, ONNX Runtime runs the original model. `report()` has the decisions and reasons.

    model: a path, the bytes of a file, a ModelProto or an `onnx_ir.Model`.
    sess_options, providers, provider_options: as for `InferenceSession`; only the number of threads
        is read from the options, and the only provider is the processor's.
    threads: by default the number in `sess_options`, else `upconv.get_num_threads()`.
    input_shapes: the shapes to measure at, `{"mel": (1, 80, 100)}`, or a list of such dicts, whose
        total time decides. A dynamic size is 32, or 1 on the first axis of an input.
    feeds: inputs to measure on instead of random ones, as for `run`, or a list of such inputs.
    measure: False makes upconv compute all parts, without measuring or checking them.
    layers: the names of the parts that upconv computes, from another session's report; nothing is
        measured. With an empty list, ONNX Runtime runs the original model.
    decisions: a file written by `report().save`; its decisions are applied without measuring.
        Decisions for another model, processor, version, number of threads or, if stated, shape are
        refused.
    remeasure: if the file of `decisions` is missing or was measured under other conditions, measure
        and write it.
    progress: called with the name of a step, its number from 1, and the number of steps. Without
        it, a line on stderr shows the progress if stderr is a terminal.

    Inputs may change their shapes from run to run. `run` may be called from many threads at once.
    The child of a fork must create its own session.

    Raises `FileError` and `ModelError` for a model that cannot be read; `EngineRefusal` for a model
    that ONNX Runtime refuses, and for inputs or outputs that are not tensors of numbers;
    `ArgumentError` for arguments or decisions that do not fit the model or the machine.

    >>> import numpy as np, onnx
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 1, L] x) => (float[N, 1, M] y)'
    >>> text += "<float[1, 1, 2] w = {1, 1}> { y = ConvTranspose<strides = [2]>(x, w) }"
    >>> session = Session(onnx.parser.parse_model(text), measure=False)
    >>> session.run(None, {"x": np.array([[[1, 2, 3]]], np.float32)})
    [array([[[1., 1., 2., 2., 3., 3.]]], dtype=float32)]
    """

    @memory.bounded("the session")
    def __init__(
        self,
        model: Source,
        sess_options: Any = None,
        providers: Any = None,
        provider_options: Any = None,
        *,
        threads: int | None = None,
        input_shapes: Any = None,
        feeds: Any = None,
        measure: bool = True,
        layers: Sequence[str] | None = None,
        decisions: str | os.PathLike[str] | None = None,
        remeasure: bool = False,
        progress: Progress | None = None,
    ) -> None:
        require_processor(providers, provider_options)
        if threads is None:
            require_defaults("sess_options", sess_options, "SessionOptions")
            threads = getattr(sess_options, "intra_op_num_threads", None) or None
        self._threads = resolved(threads)
        measure = boolean("measure", measure)
        if decisions is not None and (layers is not None or not measure):
            other = "measure" if layers is None else "layers"
            raise ArgumentError(other, "given with decisions", "one of the two")
        if remeasure and decisions is None:
            raise ArgumentError("remeasure", "True", "decisions, the file to write")
        import onnxruntime

        self._process = os.getpid()
        loaded = from_model(model)
        self._inputs = tuple(map(_value, inputs_of(loaded)))
        self._outputs = tuple(map(_value, loaded.graph.outputs))
        self._metadata = ModelMetadata.of(loaded)
        here = conditions(self._threads, onnxruntime=onnxruntime.__version__, model=digest(loaded))
        measures, stated = layers is None and measure, bool(input_shapes or feeds)
        draw = partial(self._examples, input_shapes, feeds)
        examples = draw() if measures and (stated or decisions is None) else []
        saved = None
        if decisions is not None:
            now = here | ({"shapes": _shapes(examples)} if stated else {})
            saved = restored(decisions, HOST, now, remeasure)
        self._assembly = assembly = Assembly(loaded, self._threads)
        self._plain: Native | None = None
        self._runner: Native | None
        others = Others()
        if saved is not None:
            self._runner, self._report = decided(assembly, saved), saved
            return
        if measures:
            examples = examples or draw()
            with shown(progress) as say:
                self._runner, report = measured(assembly, examples, say)
        else:
            self._runner, report = unmeasured(assembly, layers)
        shapes = {"shapes": _shapes(examples)} if examples else {}
        load = others.words() if measures else ""
        self._report = replace(report, conditions=here | shapes, load=load)
        if decisions is not None:
            self._report.save(decisions)

    def report(self) -> Report:
        """Return the decisions about each layer and the whole model, with their reasons."""
        return self._report

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that `run` requires."""
        return [*map(NodeArg.of, self._inputs)]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs, in the order in which `run` returns them."""
        return [*map(NodeArg.of, self._outputs)]

    def get_providers(self) -> list[str]:
        """Return the processor's execution provider, as ONNX Runtime calls it."""
        return [PROVIDER]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata from the model's file."""
        return self._metadata

    @memory.bounded("the data of the model")
    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Run the model; return the named outputs, or all, as arrays that the caller owns.

        input_feed: an array for each input by its name, or numbers in lists.
        run_options: as for `InferenceSession`; options beyond logging are refused.

        Raises `ArgumentError` (`DTypeError`, `ShapeError`) for names and arrays that do not fit
        the model, and `EngineError` if it fails on them or the session is closed.
        """
        require_defaults("run_options", run_options, "RunOptions")
        runner = self._runner
        if runner is None:
            raise EngineError("This session is closed. Create another one.")
        if os.getpid() != self._process:
            raise EngineError(
                "This session was created before a fork, and ONNX Runtime's threads do not exist"
                " in the child. Create a session there."
            )
        names, arrays = self._known(output_names), self._arrays(input_feed)
        try:
            return runner.run(names, arrays)
        except EngineError:
            refused = runner.refused
            if not refused:
                raise
            return self._without_upconv(refused).run(names, arrays)

    def close(self) -> None:
        """Release the model; a run in another thread finishes as usual."""
        self._runner = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        by_upconv = [row.upconv for row in self._report.rows]
        return f"<Session with {sum(by_upconv)} of {len(by_upconv)} parts by upconv>"

    def _without_upconv(self, refused: Mapping[str, str]) -> Native:
        """Return the original model for shapes that parts refuse; report the reasons."""
        rows = (
            replace(row, why=f"ONNX Runtime computed some shapes: {refused[row.name]}")
            if row.name in refused
            else row
            for row in self._report.rows
        )
        self._report = replace(self._report, rows=tuple(rows))
        if self._plain is None:
            self._plain = self._assembly.plain()
        return self._plain

    def _known(self, names: Any) -> list[str]:
        if names is None or names == []:
            return self._assembly.outputs
        several = isinstance(names, Sequence) and not isinstance(names, str)
        if not (several and all(name in self._assembly.outputs for name in names)):
            listed = ", ".join(map(brief, self._assembly.outputs))
            raise ArgumentError("output_names", brief(names), f"a list of some of {listed}")
        return list(names)

    def _arrays(self, feeds: Any) -> dict[str, Array]:
        if not isinstance(feeds, Mapping):
            got = f"of type {type(feeds).__name__}"
            raise ArgumentError("input_feed", got, "a dict of arrays by the names of inputs")
        return fitting(self._inputs, feeds)

    def _examples(self, shapes: Any, feeds: Any) -> list[dict[str, Array]]:
        if feeds is not None and shapes is not None:
            raise ArgumentError("input_shapes", "given with feeds", "one of the two")
        name, stated = ("input_shapes", shapes or {}) if feeds is None else ("feeds", feeds)
        sets = stated if isinstance(stated, list | tuple) else [stated]
        if not sets or not all(isinstance(entry, Mapping) for entry in sets):
            raise ArgumentError(name, brief(stated), "a dict by the names of inputs, or several")
        draw = partial(drawn, self._inputs) if feeds is None else self._arrays
        return [draw(entry) for entry in sets]


def _shapes(examples: Sequence[Mapping[str, Array]]) -> str:
    """Describe the input shapes by name, as a condition of a report."""
    sets = ([f"{name} {list(x.shape)}" for name, x in example.items()] for example in examples)
    return "; ".join(", ".join(one) for one in sets)


def _value(value: ir.Value) -> ir.Value:
    """Copy the declaration of a value, without its model."""
    dtype = dtype_of(value)
    if dtype is None or dtype.kind == "c":
        words = f"{brief(value.name)} is not a tensor of real numbers"
        raise EngineRefusal(f"{words}: run the model in onnxruntime.InferenceSession.")
    return ir.Value(name=value.name, type=value.type, shape=value.shape)
