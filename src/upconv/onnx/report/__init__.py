"""The report of an optimisation: one self-contained HTML file, and a table for terminals.

Both are made from `optimizing.results.Optimization` alone; the same as JSON is its `as_json`.
"""

from __future__ import annotations

from .html import as_html, write_report

__all__ = ["as_html", "write_report"]
