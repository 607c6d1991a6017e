"""The command `modelplane`, which is `kubectl modelplane` too."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from modelplane_operator import __version__
from modelplane_operator.cli import draining, joining, models, platform, pods, usage
from modelplane_operator.cli.bundle import bundle
from modelplane_operator.cli.chat import ChatError
from modelplane_operator.cli.output import Exit, No
from modelplane_operator.cli.workload import OutOfReachError
from modelplane_operator.kube.errors import ClientError, Forbidden, Unauthorized, Unreachable

app = typer.Typer(
    name="modelplane",
    help="A fleet of GPU clusters, and the models on it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("why")(models.why)
app.command("plan")(models.plan)
app.command("url")(models.url)
app.command("ask")(models.ask_model)
app.command("tree")(pods.tree)
app.command("events")(pods.events)
app.command("logs")(pods.logs)
app.command("hardware")(platform.hardware)
app.command("fleet")(platform.fleet)
app.add_typer(usage.top)
app.command("register")(joining.register)
app.command("check")(joining.check)
app.command("drain")(draining.drain)
app.command("bundle")(bundle)

REMEDIES = {
    Forbidden: "kubectl auth can-i list inferenceclusters,modelreplicas -A tells what you lack",
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
    except OutOfReachError as error:
        _end(str(error), Exit.OUT_OF_REACH)
    except KeyboardInterrupt:
        sys.exit(130)
    except ChatError as error:
        _end(str(error), Exit.ERROR)
    except ClientError as error:
        remedy = next((words for kind, words in REMEDIES.items() if isinstance(error, kind)), "")
        _end(f"{error}{f'; {remedy}' if remedy else ''}", Exit.OUT_OF_REACH if remedy else Exit.ERROR)


def _end(message: str, code: Exit) -> None:
    sys.stderr.write(f"modelplane: {message}\n")
    sys.exit(code)


if __name__ == "__main__":
    main()
