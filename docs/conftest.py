"""pytest collects the pages here; scripts are run by tests/test_docs.py."""

from importlib.util import find_spec

collect_ignore_glob = ["conf.py", "pictures/*.py", "_build/*"]
_NEEDS = {
    "pytorch": ("torch",),
    "onnx": ("onnx", "onnx_ir", "onnxruntime"),
    "volumes": ("dask",),
    "linear": ("scipy",),
}
for face, needs in _NEEDS.items():
    if not all(map(find_spec, needs)):
        collect_ignore_glob.append(f"{face}*.md")
