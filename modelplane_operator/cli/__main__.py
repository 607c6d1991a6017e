"""The command `modelplane`, which is `kubectl modelplane` too."""

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
    "bundle": ("bundle", "bundle"),
}
"""In which module of this package each is, and its name there: one is loaded, and not all."""


class Commands(TyperGroup):
    """The commands, each loaded when it is called, or told of."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name]
        found = getattr(import_module(f"modelplane_operator.cli.{module}"), name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(cmd_name)(found)
            found = alone
        return typer.main.get_command(found)


app = typer.Typer(
    name="modelplane",
    help="A fleet of GPU clusters, and the models on it.",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

REMEDIES = {
    Forbidden: "-n says in which namespace: one where you have a role, as kubectl auth can-i --list -n NAMESPACE tells",
    Unauthorized: "sign in again, or choose another context by --context",
    Unreachable: "see whether kubectl reaches this hub, and --context",
}


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """A fleet of GPU clusters, and the models on it."""
    if version:
        sys.stdout.write(f"modelplane {__version__}\n")
        raise typer.Exit(Exit.YES)


def main() -> None:
    """Run, and end with the exit code of the answer."""
    try:
        app()
    except No as no:
        _end(str(no), Exit.NO)
    except FailedError as error:
        _end(str(error), error.code)
    except KeyboardInterrupt:
        sys.exit(130)
    except ClientError as error:
        remedy = next((words for kind, words in REMEDIES.items() if isinstance(error, kind)), "")
        _end(f"{error}{f'; {remedy}' if remedy else ''}", Exit.OUT_OF_REACH if remedy else Exit.ERROR)


def _end(message: str, code: Exit) -> None:
    sys.stderr.write(f"modelplane: {legible(message)}\n")  # clusters and models have a say in it
    sys.exit(code)


if __name__ == "__main__":
    main()
