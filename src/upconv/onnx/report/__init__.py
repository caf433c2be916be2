"""The report of an optimisation: one self-contained HTML file, and a table for terminals.

Both are made from the JSON form of an `Optimization` alone.
"""

from __future__ import annotations

from .page import as_html, write_report
from .text import as_text

__all__ = ["as_html", "as_text", "write_report"]
