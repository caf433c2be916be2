"""`optimize`: a model in, a faster one out, proven equal; or the same one.

    read     the model and inputs for it (`work`)
    try      fold neighbours, then every form of every deconvolution alone (`measuring`, `trials`)
    settle   prove and measure the whole, going back where it does not hold (`settling`)
    write    the result, or the model as it was

With a profile nothing is tried: what it forbids is rewritten, and the result proven.

What lives here: the way in and the way out.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...files import reported, require_free
from ...tuning import processor_model
from ..models import Source, save, to_proto
from .measuring import prepared, tried
from .memories import installed
from .obeying import obeying
from .results import Optimization
from .settling import Done, settled
from .work import Progress, Work, settings


def optimize(
    model: Source,
    output: str | os.PathLike[str] | None = None,
    *,
    target: str = "onnxruntime",
    profile: str | None = None,
    threads: int | None = None,
    sizes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    seed: int = 0,
    seconds: float = 1.0,
    float64: bool = True,
    fresh: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> Optimization:
    """Rewrite the deconvolutions of a model where that makes it faster, prove it, and write it.

    model: a path, the bytes of a file, an `onnx.ModelProto` or an `onnx_ir.Model`; not changed.
    output: where the result goes, whole or not at all; a model that nothing makes faster is written
        as it is. None writes nothing. The model is in the result's `proto` too.
    target: "onnxruntime" or "openvino", in which it is measured and proven; "none" measures nothing
        and needs a `profile`.
    profile: such as "npu" (no ConvTranspose is left) or "no-groups,no-dilation"; see `profiles`.
        Rewrites whatever breaks it, at any cost, and proves the result.
    threads: of the runtime; None takes `upconv.get_num_threads()`.
    sizes: shapes of inputs by name, sizes of symbols, where the model leaves them open.
    inputs: arrays to run the model on instead of random ones.
    seed: of the random ones.
    seconds: spent on each different layer, and five times as much on the whole model.
    float64: prove it in float64 too, in a slow evaluator.
    fresh: measure again what is remembered from earlier calls.
    force: overwrite `output`.
    progress: called with what is done, how much of it and of how much.

    Raises `ModelError`, `FileError`, `ArgumentError`, `EngineMissing`, `EngineRefusal` where the
    runtime does not take the model itself, `MemoryLimitError`.

    >>> import onnx
    >>> text = '<ir_version: 8, opset_import: ["": 17]> g (float[1, 2, 3] x) => (float[1, 1, 6] y)'
    >>> text += "<float[2, 1, 2] w = {1, 2, 3, 4}> { y = ConvTranspose<strides = [2]>(x, w) }"
    >>> found = optimize(onnx.parser.parse_model(text), target="none", profile="npu")
    >>> found.proven, [node.op_type for node in found.proto.graph.node]
    (True, ['Conv', 'Reshape', 'Transpose', 'Reshape'])
    """
    began = time.perf_counter()
    asked = settings(target, profile, threads, seed, seconds, float64, fresh)
    if output is not None:
        _require_place(output, model, force=force)  # before minutes are spent
    work = Work.begin(model, asked, sizes, inputs, progress)
    done = _measured(work) if profile is None else obeying(work, profile)
    found = _told(work, done, time.perf_counter() - began)
    if output is not None:
        written = save(done.model, output, force=force)
        found = replace(found, written=str(written[0]))
    return found


def _require_place(output: str | os.PathLike[str], model: Source, *, force: bool) -> None:
    name = os.fspath(output)
    inputs = [Path(model)] if isinstance(model, str | os.PathLike) else []
    with reported(name):
        require_free(name, Path(name).resolve(), force=force, inputs=inputs)


def _measured(work: Work) -> Done:
    given = prepared(work)
    return settled(work, given, tried(work, given.model))


def _told(work: Work, done: Done, seconds: float) -> Optimization:
    after = to_proto(done.model)
    packages = ("onnx", "onnx-ir", "numpy", work.runtime.name)
    versions = {"upconv": __version__, **{name: installed(name) for name in packages}}
    return Optimization(
        model=work.name,
        target=work.settings.target,
        threads=work.settings.threads,
        opset=work.original.opset_imports.get("", 0),
        inputs=tuple((name, str(a.dtype), a.shape) for name, a in work.feeds.items()),
        prepared=done.prepared,
        layers=done.layers,
        whole=done.whole,
        proofs=done.proof.outputs,
        verdict=done.verdict,
        bytes_before=work.before.ByteSize(),
        bytes_after=after.ByteSize(),
        machine=processor_model(),
        versions=tuple((name, text) for name, text in versions.items() if text != "none"),
        seconds=seconds,
        remarks=done.remarks,
        broken=done.broken,
        proto=after,
    )
