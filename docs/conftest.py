"""pytest collects the pages here; scripts are run by tests/test_docs.py."""

collect_ignore_glob = ["conf.py", "pictures/*.py", "_build/*"]
