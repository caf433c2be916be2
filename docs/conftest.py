"""pytest collects the pages here; scripts are run by tests/test_docs.py."""

from importlib.util import find_spec

collect_ignore_glob = ["conf.py", "_build/*"]
collect_ignore_glob += [
    f"{folder}/*.py" for folder in ("explorer", "extensions", "gallery", "pictures")
]
for face, needs in {"pytorch": ("torch",), "onnx": ("onnx", "onnx_ir", "onnxruntime")}.items():
    if not all(map(find_spec, needs)):
        collect_ignore_glob += [f"{face}*.md", f"tutorials/{face}*.md"]
