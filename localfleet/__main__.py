"""The `localfleet` command."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from localfleet import binaries
from localfleet.errors import FleetError

app = typer.Typer(
    name="localfleet",
    help="A real fleet of Kubernetes clusters on this machine: no Docker, no cloud, no GPU.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


@app.command()
def build(
    names: Annotated[list[str] | None, typer.Argument(help="Tools to make; all of them when none is named.")] = None,
) -> None:
    """Make the programs that a fleet runs, once, and print where each one is."""
    for name, path in binaries.ensure(*(names or ())).items():
        print(f"{name:24} {path}")


@app.callback()
def main() -> None:
    """Needed by typer for `build` to stay a subcommand while it is alone."""


def run() -> None:
    """Run the command; what a person can act on is printed without a traceback."""
    try:
        app()
    except FleetError as error:
        print(f"localfleet: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    run()
