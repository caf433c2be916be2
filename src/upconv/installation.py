"""The command that installs an extra of upconv, from the same source as this installation."""

from __future__ import annotations


def install_command(extra: str) -> str:
    """Return the pip command that adds an extra to this installation of upconv.

    pip records where a package came from (PEP 610): a folder, a URL, or nothing for a release from
    an index.

    >>> install_command("onnx")
    "pip install ...[onnx]..."
    """
    import json  # imported here, since only error messages need these modules
    from importlib import metadata
    from shlex import quote
    from urllib.parse import urlsplit
    from urllib.request import url2pathname

    try:
        record = metadata.distribution("upconv").read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # not installed, only on sys.path
        record = None
    origin = json.loads(record or "{}")
    url, folder, repository = (origin.get(key) for key in ("url", "dir_info", "vcs_info"))
    if folder is not None:
        option = "-e " if folder.get("editable") else ""
        return f"pip install {option}{quote(f'{url2pathname(urlsplit(url).path)}[{extra}]')}"
    if repository is not None:
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return f"pip install {quote(f'upconv[{extra}] @ {url}' if url else f'upconv[{extra}]')}"
