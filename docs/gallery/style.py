"""Colours of the plots, for light pages and for dark ones.

Hues are Okabe and Ito's, which people with any colour vision can tell apart.
"""

from __future__ import annotations

from typing import Any

HUES = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#0072b2")
SCHEMES = {
    "light": {"paper": "#ffffff", "ink": "#1c2128", "rule": "#8c959f", "map": "Blues"},
    "dark": {"paper": "#15181d", "ink": "#e8ebef", "rule": "#7b8591", "map": "Blues_r"},
}


def settings(scheme: str) -> dict[str, Any]:
    """Return matplotlib's parameters for a scheme."""
    paper, ink, rule, colours = SCHEMES[scheme].values()
    return {
        "axes.edgecolor": rule,
        "axes.facecolor": paper,
        "axes.labelcolor": ink,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlesize": 11,
        "figure.constrained_layout.use": True,
        "figure.facecolor": paper,
        "font.size": 10,
        "grid.color": rule,
        "grid.linewidth": 0.5,
        "image.cmap": colours,
        "legend.frameon": False,
        "svg.hashsalt": "upconv",
        "text.color": ink,
        "xtick.color": ink,
        "ytick.color": ink,
    }
