"""The rules in docs/onnx-lint.md, made from the table: `python tests/lint_page.py` prints them."""

from __future__ import annotations

from textwrap import fill

from upconv.onnx.linting import RULES, Rule

GROUPS = {
    "UPC0": "The result",
    "UPC1": "What the node says",
    "UPC2": "What a runtime refuses",
    "UPC3": "What is likely slow on the target",
    "UPC4": "Neighbours that belong into the node",
    "UPC9": "What could not be looked at",
}
"""How the numbers of a group begin -> its heading."""


def section(rule: Rule) -> str:
    """One rule."""
    title = f"### {rule.code} {rule.slug}\n\n*{rule.severity.value.capitalize()}.* {rule.summary}"
    parts = [fill(rule.why, 100), fill(f"**Fix.** {rule.fix}", 100)]
    more = ", ".join(f"<{address}>" for address in rule.more)
    return "\n\n".join([title, *parts, *([f"More: {more}"] if more else [])])


def sections() -> str:
    """All rules, by group."""
    parts = []
    for prefix, heading in GROUPS.items():
        parts.append(f"## {heading}")
        parts += [section(rule) for code, rule in RULES.items() if code.startswith(prefix)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    print(sections(), end="")
