"""Entry point of `python -m upconv` and of the console script `upconv`; see `upconv.cli`."""

from __future__ import annotations

import sys
from importlib import import_module

from .installation import install_command

_NEEDED = ("typer", "threadpoolctl")
_ERROR = 2
_INTERRUPTED = 130


def main() -> None:
    """Run the command line and end the process with its exit code."""
    try:
        for package in _NEEDED:
            import_module(package)
        import_module(".cli.app", "upconv").app(prog_name="upconv")
    except ModuleNotFoundError as missing:
        absent = (missing.name or "").partition(".")[0]
        if absent not in _NEEDED:
            raise
        sys.stderr.write(
            f"error: the command line needs the {absent} package: {install_command('cli')}\n"
        )
        sys.exit(_ERROR)
    except KeyboardInterrupt:  # Ctrl-C during the imports, before the app handles it
        sys.stderr.write("interrupted\n")
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
