"""Pages are collected by the conftest.py above; scripts are run by tests/docs/test_scripts.py."""

collect_ignore_glob = ["conf.py", "_build/*"]
collect_ignore_glob += [
    f"{folder}/*.py" for folder in ("explorer", "extensions", "gallery", "pictures")
]
