"""What pyproject.toml says to `upconv lint`: rules that are left out, everywhere or in some files.

    [tool.upconv.lint]
    ignore = ["UPC4"]
    per-file-ignores = { "models/legacy/*.onnx" = ["UPC001"] }

Patterns are relative to the folder of pyproject.toml, or match a file's name.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, FileError, brief
from ..files import reported

_KEYS = ("ignore", "per-file-ignores")


@dataclass(frozen=True, slots=True)
class Settings:
    """Rules to leave out; `root` is the folder of pyproject.toml."""

    root: Path = Path()
    everywhere: tuple[str, ...] = ()
    per_file: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def ignored(self, path: Path) -> list[str]:
        """The rules that are left out for a file."""
        whole = path.resolve()
        inside = whole.is_relative_to(self.root)
        relative = whole.relative_to(self.root).as_posix() if inside else whole.as_posix()
        found = list(self.everywhere)
        for pattern, codes in self.per_file.items():
            if fnmatchcase(relative, pattern) or fnmatchcase(path.name, pattern):
                found += codes
        return found


def read_settings(folder: Path) -> Settings:
    """The settings of the nearest pyproject.toml above a folder that has any.

    Raises `FileError` for a file that is no TOML, `ArgumentError` for what it may not say.
    """
    for root in (folder.resolve(), *folder.resolve().parents):
        file = root / "pyproject.toml"
        if not file.is_file():
            continue
        with reported(str(file), "read"):
            try:
                whole = tomllib.loads(file.read_text(encoding="utf-8"))
            except tomllib.TOMLDecodeError as error:
                raise FileError(f"Cannot read {brief(str(file))}: {error}.") from None
        table = whole.get("tool", {}).get("upconv", {}).get("lint")
        if table is not None:
            return _settings(root, table)
    return Settings()


def _settings(root: Path, table: Any) -> Settings:
    where = "tool.upconv.lint in pyproject.toml"
    if not isinstance(table, dict) or set(table) - set(_KEYS):
        raise ArgumentError(where, brief(table), f"a table with {' and '.join(_KEYS)}")
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise ArgumentError(f"per-file-ignores of {where}", brief(per_file), "a table of lists")
    found = {pattern: _codes(pattern, codes, where) for pattern, codes in per_file.items()}
    return Settings(root, _codes("ignore", table.get("ignore", []), where), found)


def _codes(key: str, codes: Any, where: str) -> tuple[str, ...]:
    from ..onnx.linting import chosen

    if not isinstance(codes, list) or not all(isinstance(code, str) for code in codes):
        raise ArgumentError(f"{key} of {where}", brief(codes), 'a list such as ["UPC001", "UPC4"]')
    try:
        chosen(ignore=codes)
    except ArgumentError as error:
        raise error.renamed("ignore", f"{key} of {where}") from None
    return tuple(codes)
