"""Options that the commands share, with kubectl's names."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, TypeAlias, cast

import typer
import yaml

from kubeloop.words import legible
from modelplane_operator.cli.completion import models
from modelplane_operator.cli.kubeconfig import HubTarget, target
from modelplane_operator.cli.output import Format, No

Name: TypeAlias = Annotated[
    str, typer.Argument(help="The ModelDeployment, or NAMESPACE/NAME.", metavar="NAME", autocompletion=models)
]
Explainable: TypeAlias = Annotated[
    str,
    typer.Argument(
        help="The ModelDeployment, ModelService or LLMInference: NAME, NAMESPACE/NAME, or TYPE/NAME.",
        metavar="NAME",
        autocompletion=models,
    ),
]
Namespace: TypeAlias = Annotated[
    str | None, typer.Option("-n", "--namespace", help="The namespace; default: that of the context.")
]
Context: TypeAlias = Annotated[str | None, typer.Option("--context", help="The context of the hub in the kubeconfig.")]
Candidate: TypeAlias = Annotated[
    str | None,
    typer.Option("--context", help="The context of the cluster to check in the kubeconfig; default: the current one."),
]
Kubeconfig: TypeAlias = Annotated[
    Path | None, typer.Option("--kubeconfig", help="The kubeconfig; default: KUBECONFIG, or ~/.kube/config.")
]
Output: TypeAlias = Annotated[Format, typer.Option("-o", "--output", help="Output format.")]

Watch: TypeAlias = Annotated[bool, typer.Option("-w", "--watch", help="Repeat every two seconds.")]

EVERY_SECONDS = 2.0
"""Interval of `--watch`, including neither the time of the query nor that of the output."""


def repeat(show: Callable[[], None], *, watch: bool) -> None:
    """Run a function once, or every two seconds until it is interrupted.

    On a terminal each output replaces the last one.
    """
    while watch:
        if sys.stdout.isatty():
            # Move the cursor to the top left, and clear the screen.
            sys.stdout.write("\x1b[H\x1b[2J")
        try:
            show()
        # A negative answer ends a single run with its code, but must not end the watch.
        except typer.Exit:
            pass
        except No as no:
            sys.stdout.write(f"{legible(str(no))}\n")
        sys.stdout.flush()
        time.sleep(EVERY_SECONDS)
    show()


def hub(kubeconfig: Path | None, context: str | None) -> HubTarget:
    """Return the hub of the chosen context. Raise KubeconfigError."""
    return target(kubeconfig, context)


TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("deployment", "deployments", "modeldeployment", "modeldeployments", "md"), "ModelDeployment"),
    **dict.fromkeys(("service", "services", "svc", "modelservice", "modelservices", "ms"), "ModelService"),
    **dict.fromkeys(("llminference", "llminferences", "llmi"), "LLMInference"),
}
"""Kinds by the words that stand for them before a name, as in kubectl."""


def split_type(name: str) -> tuple[str | None, str]:
    """Return the kind and the name of `TYPE/NAME`, or None and the argument. TYPE may end with the group of its API."""
    word, slash, rest = name.partition("/")
    kind = TYPES.get(word.partition(".")[0].lower()) if slash else None
    return (kind, rest) if kind else (None, name)


def place(name: str, namespace: str | None, target: HubTarget) -> tuple[str, str]:
    """Return the namespace and the name. `NAMESPACE/NAME` contains both."""
    first, slash, second = name.partition("/")
    return (first, second) if slash else (namespace or target.namespace, name)


def load_documents(file: Path) -> list[dict[str, object]]:
    """Return the maps in a YAML file, or in standard input for `-`. Raise BadParameter if it cannot be read."""
    try:
        source = sys.stdin.read() if str(file) == "-" else file.read_text()
        items = cast("list[object]", [*yaml.load_all(source, Loader=yaml.CSafeLoader)])
    except OSError as error:
        hint = ": fetch it and use -f -, as URLs are not read" if ":/" in str(file) else ""
        raise typer.BadParameter(f"{file}: {error.strerror}{hint}") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not a text file") from None
    except yaml.YAMLError as error:
        raise typer.BadParameter(f"{file}: {error}") from None
    return [cast("dict[str, object]", item) for item in items if isinstance(item, dict)]
