"""The report of an optimisation: one self-contained HTML file, and a table for terminals.

Both are made from `optimizing.results.Optimization` alone; the same as JSON is its `as_json`.
"""

from __future__ import annotations

from .html import as_html, write_report
from .text import as_text

__all__ = ["as_html", "as_text", "write_report"]
