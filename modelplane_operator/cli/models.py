"""Commands that use a model: its address, and a prompt to it."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kubeloop.client.kube import Kube
from kubeloop.objects import Key
from kubeloop.resource import of
from kubeloop.words import legible
from modelplane_operator.api import ModelDeployment, ModelService
from modelplane_operator.api.model_service import APIRoute
from modelplane_operator.ask.answers.snapshot import ready
from modelplane_operator.ask.answers.why import explain as answer
from modelplane_operator.cli.chat import ChatAnswer, chat
from modelplane_operator.cli.hub import ask, objects, snapshot
from modelplane_operator.cli.options import Context, Kubeconfig, Namespace, hub, place
from modelplane_operator.cli.output import No, console, print_piece


def url(
    name: Annotated[
        str, typer.Argument(help="A ModelService, or a ModelDeployment that one routes to.", metavar="NAME")
    ],
    routes: Annotated[bool, typer.Option("--routes", help="Print every route of its API.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the address of a model, and the routes of its API that clients cannot reach there."""
    service = _find_service(name, namespace, context, kubeconfig)
    # Standard output has the address alone, so that scripts can use it; the routes go to standard error.
    sys.stdout.write(f"{legible(service.address)}\n")
    for route in service.routes:
        if routes or route.message:
            state = "carried" if route.carried else "not carried"
            sys.stderr.write(f"{legible(': '.join(filter(None, (f'{route.path} {state}', route.message))))}\n")


def ask_model(
    name: Annotated[
        str, typer.Argument(help="A ModelService, or a ModelDeployment that one routes to.", metavar="NAME")
    ],
    prompt: Annotated[str, typer.Argument(help="The prompt.")],
    model: Annotated[str | None, typer.Option("--model", help="The model, if the service has several.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="An API key.", envvar="MODELPLANE_API_KEY")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Send a prompt to a model; print the answer as it streams, and how long it took."""
    address, started = _find_service(name, namespace, context, kubeconfig).address, time.monotonic()
    out = console()

    result: ChatAnswer = chat(
        address, prompt, model=model, key=key, on_text=partial(print_piece, out), now=time.monotonic
    )
    out.print("")
    first = f"first token after {result.first - started:.2f} s, " if result.first is not None else ""
    sys.stderr.write(
        f"{legible(result.model)}: {first}all {result.pieces} pieces after {result.last - started:.2f} s\n"
    )


@dataclass(frozen=True)
class _Service:
    """A service's address and the routes of its API."""

    address: str
    """Base URL of the model's API, without a route."""
    routes: Sequence[APIRoute]
    """State of each route of the API, as the service's status reports it."""


def _find_service(name: str, namespace: str | None, context: str | None, kubeconfig: Path | None) -> _Service:
    """Return the service of a name, or the first one with an address that routes to the deployment.

    Raise No without one.
    """
    target = hub(kubeconfig, context)
    key = Key(*place(name, namespace, target))

    async def question(kube: Kube) -> _Match:
        """Find the services of a name, or the ones that route to the deployment of that name."""
        services = await objects(kube, ModelService, key.namespace)
        exact = [item for item in services if item.key == key]
        if exact or await kube.find(of(ModelDeployment), key) is None:
            return _Match(exact, exists=bool(exact))
        fleet = await snapshot(kube)
        routed = {route.name for route in answer(fleet.deployment[key], services, fleet).routes}
        return _Match([item for item in services if item.key.name in routed], exists=True)

    match = ask(target, question)
    # A service without an address may just be new, so another one that is ready is preferred.
    for service in match.services:
        if service.status and service.status.address:
            return _Service(service.status.address, service.status.routes)
    if not match.exists:
        raise No(f"there is no ModelService and no ModelDeployment {key}: kubectl get ms,md -n {key.namespace}")
    if not match.services:
        raise No(f"no ModelService leads to {key}: write one that selects modelplane.ai/deployment={key.name}")
    state = ready(match.services[0].conditions)
    raise No(f"ModelService {match.services[0].key} has no address yet: {(state and state.message) or 'wait a moment'}")


@dataclass(frozen=True)
class _Match:
    """The services of a name, and whether it exists at all."""

    services: Sequence[ModelService]
    """ModelServices, at most one unless the name is that of a deployment."""
    exists: bool
    """True if there is a ModelService or a ModelDeployment of the name."""
