"""The report as one HTML file: no script, no network, nothing outside itself.

Names come out of models and are not trusted. Three walls stand between them and the reader:

1. every text is made harmless (`names`) on its way into the template, forgotten or not;
2. the template escapes everything it is given (autoescape), but two texts of ours: the style sheet
   and the marks of a drawing, whose class has escaped them;
3. the page's Content-Security-Policy allows one style sheet, named by its hash, and nothing else:
   no script, no request, no form, not even a style attribute.

What lives here: the file. What never does: what is in it.
"""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._version import __version__
from ...errors import EngineMissing
from ...files import published, reported, require_free
from .. import names
from ..optimizing.results import Optimization
from . import conclusions, figures, views

if TYPE_CHECKING:
    from jinja2 import Environment

_TEMPLATES = "templates"


def as_html(optimization: Optimization) -> str:
    """The report of an optimisation as the text of one HTML file, to be stored as UTF-8.

    Raises `EngineMissing` where Jinja is not installed.

    >>> found = Optimization("<b>", "none", 1, 17, (), (), (), None, (), "", 9, 9, "x", (), 1.0)
    >>> "&lt;b&gt;" in as_html(found), "<b>" in as_html(found)
    (True, False)
    """
    style = _style()
    return (
        environment()
        .get_template("page.html")
        .render(
            page=views.page(optimization),
            style=style,
            style_hash=b64encode(sha256(style.encode()).digest()).decode(),
            version=__version__,
        )
    )


def write_report(optimization: Optimization, path: str | Path, *, force: bool = False) -> None:
    """Write the report to `path`, whole or not at all; `force` overwrites what is there.

    Raises `FileError` where it cannot be written, `EngineMissing` where Jinja is not installed.
    """
    target = Path(path)
    with reported(str(path)):
        require_free(str(path), target, force=force, inputs=())
        html = as_html(optimization).encode()
        with published(target, force=force) as file:
            file.write(html)


@cache
def environment() -> Environment:
    """The templates' environment: autoescape on, unknown names are errors."""
    try:
        import jinja2
    except ImportError:
        raise EngineMissing("The report needs Jinja: pip install 'upconv[onnx]'") from None
    made = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__, _TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(figures=figures, names=names, conclusions=conclusions)
    made.filters["shape"] = _shape
    return made


def _harmless(value: Any) -> Any:
    """What every expression of the template goes through; markup of ours is left alone."""
    return value if hasattr(value, "__html__") else names.clipped(str(value))


def _style() -> str:
    """The style sheet, which is ours: text in a style element must not be escaped."""
    file = resources.files(__package__).joinpath(_TEMPLATES, "page.css")
    return file.read_text(encoding="utf-8")


def _shape(sizes: tuple[int, ...]) -> str:
    """A shape in people's signs.

    >>> _shape((1, 8, 32, 32))
    '1×8×32×32'
    """
    return figures.TIMES.join(map(str, sizes))
