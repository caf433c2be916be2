"""pytest collects the pages here; scripts are run by tests/test_docs.py."""

from importlib.util import find_spec

collect_ignore_glob = ["conf.py", "pictures/*.py", "_build/*"]
_ONNX = ("onnx", "onnx_ir", "onnxruntime")
for face, needs in {"pytorch": ("torch",), "onnx": _ONNX, "mxnet": _ONNX}.items():
    if not all(map(find_spec, needs)):
        collect_ignore_glob.append(f"{face}*.md")
