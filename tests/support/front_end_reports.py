"""Files of saved decisions, for tests that change them."""

import json
from pathlib import Path
from typing import Any


def unsealed(path: Path) -> dict[str, Any]:
    """The entries of a file but its checksum: what is written from them is read unchecked."""
    return {name: entry for name, entry in json.loads(path.read_text()).items() if name != "sha256"}
