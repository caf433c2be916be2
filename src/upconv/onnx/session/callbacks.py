"""What ONNX Runtime calls of an operator, as machine code.

Python's functions are no good here: Ctrl-C may be raised before their first line, where nothing
catches it. ctypes then prints it, and returns whatever lies on the stack. So the answers to
questions about an operator are functions that return a constant, and `compute` hands Python a place
for its answer. Where that stays empty, the operator has failed: ONNX Runtime must not go on without
its output.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import c_void_p as pointer
from typing import Any

from ...engines.jit.compile import Code
from ...engines.jit.cpu import host
from ...engines.jit.emit import Module
from .abi import DONE, VERSION, Library

_FIELDS = """CreateKernel GetName GetExecutionProviderType GetInputType GetInputTypeCount
    GetOutputType GetOutputTypeCount KernelCompute KernelDestroy GetInputCharacteristic
    GetOutputCharacteristic GetInputMemoryType GetVariadicInputMinArity GetVariadicInputHomogeneity
    GetVariadicOutputMinArity GetVariadicOutputHomogeneity CreateKernelV2 KernelComputeV2
    InferOutputShapeFn GetStartVersion GetEndVersion GetMayInplace ReleaseMayInplace GetAliasMap
    ReleaseAliasMap"""

_COMPUTE = ctypes.CFUNCTYPE(None, pointer, pointer, ctypes.POINTER(ctypes.c_int64))

_TEXT = """
@attribute = private constant [6 x i8] c"layer\\00"
@message = private constant [12 x i8] c"interrupted\\00"

define i64 @CreateKernelV2(ptr %op, ptr %api, ptr %info, ptr %kernel) {{
  %ask = inttoptr i64 {get_attribute} to ptr
  %status = call i64 %ask(ptr %info, ptr @attribute, ptr %kernel)
  ret i64 %status
}}

define i64 @KernelComputeV2(i64 %kernel, i64 %context) {{
  %answer = alloca i64
  store i64 0, ptr %answer
  %compute = inttoptr i64 {compute} to ptr
  call void %compute(i64 %kernel, i64 %context, ptr %answer)
  %said = load i64, ptr %answer
  %nothing = icmp eq i64 %said, 0
  br i1 %nothing, label %failed, label %returned
failed:
  %create = inttoptr i64 {create_status} to ptr
  %status = call i64 %create(i32 1, ptr @message)
  ret i64 %status
returned:
  %done = icmp eq i64 %said, {done}
  %given = select i1 %done, i64 0, i64 %said
  ret i64 %given
}}

define void @KernelDestroy(i64 %kernel) {{
  ret void
}}
"""


class _CustomOp(ctypes.Structure):
    """OrtCustomOp of `VERSION`: functions, null where ONNX Runtime has a default."""

    _fields_ = (("version", ctypes.c_uint32), *((name, pointer) for name in _FIELDS.split()))


class _Text(Module):
    """Functions in LLVM's own language: these return something, which the emitter's do not."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def text(self) -> str:
        """The module."""
        return self._text


class Operators:
    """Operators with one input and one output, whose kernels are the numbers in "layer".

    compute: called with a kernel, ONNX Runtime's context, and the place for the answer. kinds: the
    operators' names, and the element type of both values as ONNX numbers it.
    """

    def __init__(
        self, api: Library, compute: Callable[[int, int, Any], None], kinds: Mapping[str, int]
    ) -> None:
        self._compute = _COMPUTE(compute)
        text = _TEXT.format(
            get_attribute=api.address_of("KernelInfoGetAttribute_int64"),
            create_status=api.address_of("CreateStatus"),
            compute=ctypes.cast(self._compute, pointer).value,
            done=DONE,
        )
        self._names = [ctypes.create_string_buffer(name.encode()) for name in kinds]
        answers = [
            _answers(ctypes.addressof(name), code)
            for name, code in zip(self._names, kinds.values(), strict=True)
        ]
        for i, each in enumerate(answers):
            text += "".join(f"define i64 @{k}_{i}() {{ ret i64 {v} }}\n" for k, v in each.items())
        shared = ("CreateKernelV2", "KernelComputeV2", "KernelDestroy")
        own = [f"{name}_{i}" for i, each in enumerate(answers) for name in each]
        self._code = Code(_Text(text), (*shared, *own), host())
        at = self._code.addresses
        self._made = [
            _CustomOp(
                version=VERSION,
                **{name: at[name] for name in shared},
                **{name: at[f"{name}_{i}"] for name in each},
            )
            for i, each in enumerate(answers)
        ]

    @property
    def addresses(self) -> list[int]:
        """Where the operators are, for as long as this object lives."""
        return [ctypes.addressof(op) for op in self._made]


def _answers(name: int, code: int) -> dict[str, int]:
    return {
        "GetName": name,
        "GetExecutionProviderType": 0,  # null: the processor
        "GetInputType": code,
        "GetInputTypeCount": 1,
        "GetOutputType": code,
        "GetOutputTypeCount": 1,
        "GetInputCharacteristic": 0,  # required
        "GetOutputCharacteristic": 0,
        "GetInputMemoryType": 0,  # the processor's
    }
