"""pytest collects the pages here; scripts are run by tests/test_docs.py."""

from importlib.util import find_spec

collect_ignore_glob = ["conf.py", "_build/*"]
collect_ignore_glob += [
    f"{folder}/*.py" for folder in ("explorer", "extensions", "gallery", "pictures")
]
_ONNX = ("onnx", "onnx_ir", "onnxruntime")
_NEEDS = {
    "pytorch": ("torch",),
    "onnx": _ONNX,
    "mxnet": _ONNX,
    "volumes": ("dask",),
    "linear": ("scipy",),
}
for face, needs in _NEEDS.items():
    if not all(map(find_spec, needs)):
        collect_ignore_glob += [f"{face}*.md", f"tutorials/{face}*.md"]
