"""pytest collects the pages here; scripts are run by tests/test_docs.py."""

from importlib.util import find_spec

collect_ignore_glob = ["conf.py", "pictures/*.py", "_build/*"]
if find_spec("torch") is None:
    collect_ignore_glob.append("pytorch*.md")
