"""The help of a command: arguments by their names, without the Python types that typer adds."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand


class Command(TyperCommand):
    """A command whose help shows `IN` where typer shows `{IN}` and `IN <path>`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name in the line of its usage."""
        named = [(param.metavar, param.required) for param in self._parameters("argument")]
        return ["[OPTIONS]", *(name if required else f"[{name}]" for name, required in named)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options, each with its help."""
        arguments = [(param.metavar, param.help or "") for param in self._parameters("argument")]
        options = [param.get_help_record(ctx) for param in self._parameters("option", ctx)]
        for title, rows in (("Arguments", arguments), ("Options", list(filter(None, options)))):
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def _parameters(self, kind: str, ctx: Any = None) -> list[Any]:
        """Return the parameters of a kind; with a context, `--help` is one of the options."""
        params: list[Any] = self.params if ctx is None else self.get_params(ctx)
        return [param for param in params if param.param_type_name == kind]
