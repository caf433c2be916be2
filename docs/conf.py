"""Sphinx: `make docs`, or `sphinx-build -W docs docs/_build` with the extra `docs` installed.

The pages are plain Markdown that reads well on a forge. The modules in `extensions/` add whatever
else Sphinx needs.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src")]

from repository import repository  # noqa: E402

import upconv  # noqa: E402

project = "upconv"
author = "the upconv authors"
project_copyright = f"{author}, Apache-2.0"
release = upconv.__version__
extensions = [
    "myst_parser",
    "contents",
    "docstrings",
    "gallery",
    "explorer_page",
    "breaks",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "pictures", "gallery/*.py", "explorer"]

myst_heading_anchors = 3

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
smartquotes = False

# Copy only the text to type, without prompts and outputs.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = f"{project} {release}"
if address := repository(HERE):
    link = {"name": "Repository", "url": address, "html": "Repository", "class": ""}
    html_theme_options = {"footer_icons": [link]}
html_static_path = ["static"]
html_css_files = ["site.css"]
pygments_style = "tango"
pygments_dark_style = "monokai"
html_copy_source = False
html_show_sourcelink = False
