"""The entry point of the command `modelplane`, which is also `kubectl modelplane`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from kubeloop.errors import ClientError, Forbidden, Unauthorized, Unreachable
from kubeloop.words import legible
from modelplane_operator import __version__
from modelplane_operator.cli.output import Exit, FailedError, No

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "why": ("answers", "why"),
    "plan": ("answers", "plan"),
    "render": ("render", "render"),
    "url": ("models", "url"),
    "ask": ("models", "ask_model"),
    "tree": ("pods", "tree"),
    "events": ("pods", "events"),
    "logs": ("pods", "logs"),
    "hardware": ("answers", "hardware"),
    "fleet": ("platform", "fleet"),
    "top": ("usage", "top"),
    "page": ("page", "page"),
    "register": ("joining", "register"),
    "check": ("joining", "check"),
    "drain": ("draining", "drain"),
    "roll": ("rolling", "roll"),
    "stack": ("stack", "stack"),
    "bundle": ("bundle", "bundle"),
}
"""Module in this package, and function in it, of each command. Only the module of the called command is loaded."""


class Commands(TyperGroup):
    """A command group that imports each command when it is called or listed."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of COMMANDS, so that the help groups related commands."""
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command by its name, or None."""
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        command = getattr(import_module(f"modelplane_operator.cli.{module}"), name)
        # A group, such as `top`, is a Typer already; a single function becomes one here.
        if not isinstance(command, typer.Typer):
            single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            single.command(cmd_name)(command)
            command = single
        return typer.main.get_command(command)


app = typer.Typer(
    name="modelplane",
    help="Inspect and manage models on a fleet of GPU clusters.",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

REMEDIES = {
    Forbidden: "with -n, choose a namespace where you have a role: see kubectl auth can-i --list -n NAMESPACE",
    Unauthorized: "sign in again, or choose another context by --context",
    Unreachable: "see whether kubectl reaches this hub, and --context",
}
"""Advice that follows the message of a failed request; such a command ends with OUT_OF_REACH."""


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Inspect and manage models on a fleet of GPU clusters."""
    if version:
        sys.stdout.write(f"modelplane {__version__}\n")
        raise typer.Exit(Exit.YES)


def main() -> None:
    """Run the command, and exit with the code of its answer."""
    try:
        app()
    except No as no:
        _end(str(no), Exit.NO)
    except FailedError as error:
        _end(str(error), error.code)
    except KeyboardInterrupt:
        # 128 + SIGINT, as shells report a command that Ctrl-C ended.
        sys.exit(130)
    except ClientError as error:
        remedy = next((text for kind, text in REMEDIES.items() if isinstance(error, kind)), "")
        _end(f"{error}{f'; {remedy}' if remedy else ''}", Exit.OUT_OF_REACH if remedy else Exit.ERROR)


def _end(message: str, code: Exit) -> None:
    """Print a message to standard error, and exit with this code."""
    sys.stderr.write(f"modelplane: {legible(message)}\n")  # clusters and models choose some of the text
    sys.exit(code)


if __name__ == "__main__":
    main()
