"""The address of the repository, for the site's links to it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_ADDRESS = re.compile(r"(?:https://(?:[^@/]+@)?|ssh://git@|git@)([\w.-]+)[:/](.+?)(?:\.git)?/?$")


def repository(folder: Path) -> str:
    """Return the web address of the repository that a checkout was cloned from; "" without one.

    A clone of a local folder and an archive of the sources have none.
    """
    try:
        done = subprocess.run(
            ["git", "config", "--get", "remote.origin.url"],
            cwd=folder, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:  # git is not installed
        return ""
    return web_address(done.stdout.strip())


def web_address(remote: str) -> str:
    """Return the web address for a git remote; "" for a local folder.

    >>> web_address("git@example.org:people/upconv.git")
    'https://example.org/people/upconv'
    """
    match = _ADDRESS.fullmatch(remote)
    return f"https://{match[1]}/{match[2]}" if match else ""
