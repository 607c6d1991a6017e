"""`python -m localfleet.leaderworkerset`: see the package's docstring."""

import asyncio
import inspect
import logging
import signal
from pathlib import Path
from typing import Annotated

import aiohttp
import typer
import yaml

import localfleet.leaderworkerset
from localfleet.kubeclient import APPLY, ApiError, KubeClient, KubeconfigError, Manifest, connect
from localfleet.leaderworkerset import CRD
from localfleet.leaderworkerset.controller import Controller

RETRY_SECONDS = 1.0


def main(
    *,
    kubeconfig: Annotated[Path, typer.Option(help="The workload cluster's kubeconfig.", exists=True, dir_okay=False)],
    install_crd: Annotated[bool, typer.Option(help="Apply the CRD first.")] = True,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every broken watch and failed write.")] = False,
) -> None:
    """Keep every LeaderWorkerSet of one cluster."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(message)s")
    crd = yaml.safe_load(Path(CRD).read_text()) if install_crd else None
    try:
        asyncio.run(serve(kubeconfig, crd))
    except KubeconfigError as error:
        raise SystemExit(str(error)) from error


async def serve(kubeconfig: Path, crd: Manifest | None) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connect(kubeconfig) as client, asyncio.TaskGroup() as group:
        running = group.create_task(_run(client, crd))
        await stop.wait()
        running.cancel()


async def _run(client: KubeClient, crd: Manifest | None) -> None:
    if crd is not None:
        await _install(client, crd)
    controller = Controller(client)
    async with asyncio.TaskGroup() as group:
        group.create_task(controller.run())
        await controller.sets.synced.wait()
        print(f"ready: LeaderWorkerSets of cluster {client.access.cluster}", flush=True)


async def _install(client: KubeClient, crd: Manifest) -> None:
    """Apply the CRD, as soon as an API server takes it. That it is served, the first list finds out."""
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{crd['metadata']['name']}"
    options = {"fieldManager": "localfleet", "force": "true"}
    while True:
        try:
            await client.request("PATCH", path, crd, content_type=APPLY, params=options)
            return
        except (ApiError, aiohttp.ClientError, TimeoutError, OSError) as error:
            logging.info("the CRD is not applied yet: %s", error or type(error).__name__)
            await asyncio.sleep(RETRY_SECONDS)


def command() -> typer.Typer:
    """The command line; its help carries the package's docstring."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    contract = inspect.getdoc(localfleet.leaderworkerset) or ""
    app.command(help="\n\n".join(f"\b\n{paragraph}" for paragraph in contract.split("\n\n")))(main)
    return app


if __name__ == "__main__":
    command()()
