"""The command-line application: all commands, --version, --traceback and exit codes."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Exit, Option, Typer
from typer.core import TyperGroup

from .._version import __version__
from . import report
from .bench import bench
from .doctor import doctor
from .exits import ended
from .explain import explain
from .lint import lint
from .mxnet import mxnet
from .onnx import optimize, rewrite, verify
from .options import Command
from .stream import stream

_TRACEBACK = "--traceback"


class _Commands(TyperGroup):
    """Command group that accepts --traceback anywhere and turns errors into exit codes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        count = args.index("--") if "--" in args else len(args)
        if _TRACEBACK in args[:count]:
            args = [_TRACEBACK, *(arg for arg in args[:count] if arg != _TRACEBACK), *args[count:]]
        return super().parse_args(ctx, args)

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with ended(traceback=False):
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:
        with ended(traceback=ctx.params["traceback"]):
            return super().invoke(ctx)


app = Typer(
    name="upconv",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help works in pipes and does not load rich
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        report.text(f"upconv {__version__}")
        raise Exit


@app.callback()
def _callback(
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
    traceback: Annotated[
        bool,
        Option(
            _TRACEBACK,
            envvar="UPCONV_TRACEBACK",
            help="Show the traceback of an error; may appear anywhere.",
        ),
    ] = False,
) -> None:
    """Compute transposed convolutions fast, and exactly as each framework defines them.

    Results go to stdout, messages to stderr. Exit codes: 0 success, 1 findings,
    2 an error, 130 interrupted.

    \b
    Start with:
      upconv doctor
      upconv bench --quick
      upconv explain 1,64,32,32 64,16,4,4 --stride 2 --padding 1
    """


for _command in (doctor, bench, explain, lint, rewrite, optimize, verify, stream):
    app.command(_command.__name__, cls=Command)(_command)
app.add_typer(mxnet, name="mxnet")
