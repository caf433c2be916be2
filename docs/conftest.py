"""The top-level conftest.py collects pages; tests/docs/test_scripts.py runs the scripts."""

collect_ignore_glob = ["conf.py", "_build/*"]
collect_ignore_glob += [
    f"{folder}/*.py" for folder in ("explorer", "extensions", "gallery", "pictures")
]
