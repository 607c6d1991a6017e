"""`python -m localfleet.engine`: see the package's docstring."""

import asyncio
import inspect
import logging
import signal
from pathlib import Path
from typing import Annotated

import aiohttp
import typer

import localfleet.engine
from localfleet.engine.kubelet import Kubelet
from localfleet.engine.pods import PREFILLED_PORT, SERVING_PORT
from localfleet.engine.server import Door, Listeners
from localfleet.engine.settings import ANNOTATION_PREFIX, SettingError, Settings, purposes, read
from localfleet.kubeclient import KubeconfigError, connect

SETTINGS = "\n\n".join(f"{ANNOTATION_PREFIX}{name}: {purpose}" for name, purpose in purposes().items())


def main(
    *,
    kubeconfig: Annotated[Path, typer.Option(help="The workload cluster's kubeconfig.", exists=True, dir_okay=False)],
    cluster: Annotated[str, typer.Option(help="The name that answers give; empty: the kubeconfig's.")] = "",
    listen: Annotated[list[str], typer.Option(help="An address to listen on.")] = ["0.0.0.0"],  # noqa: B006, S104
    port: Annotated[list[int], typer.Option(help="A port to open at once; others open with the first pod.")] = [  # noqa: B006
        SERVING_PORT,
        PREFILLED_PORT,
    ],
    probe_scale: Annotated[
        float, typer.Option(help="Factor on probe delays, periods and crash back-off.", min=0.001)
    ] = 0.1,
    default: Annotated[list[str], typer.Option(metavar="NAME=VALUE", help="A setting for all pods.")] = [],  # noqa: B006
    verbose: Annotated[bool, typer.Option("--verbose", help="Log every broken watch and failed write.")] = False,
) -> None:
    """Answer for every engine pod of one cluster."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(levelname)s %(message)s")
    try:
        defaults = read(dict(_pair(text) for text in default), onto=Settings())
    except SettingError as error:
        raise typer.BadParameter(str(error), param_hint="--default") from error
    try:
        asyncio.run(serve(kubeconfig, cluster=cluster, listen=listen, ports=port, scale=probe_scale, defaults=defaults))
    except KubeconfigError as error:
        raise SystemExit(str(error)) from error


async def serve(
    kubeconfig: Path, *, cluster: str, listen: list[str], ports: list[int], scale: float, defaults: Settings
) -> None:
    """Run until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connect(kubeconfig) as client, aiohttp.ClientSession() as session:
        name = cluster or client.access.cluster
        kubelet = Kubelet(client, cluster=name, defaults=defaults, scale=scale)
        listeners = Listeners(Door(kubelet.find, session), listen)
        for number in ports:
            try:
                await listeners.open(number)
            except OSError as error:
                raise SystemExit(f"cannot listen on {', '.join(listen)} port {number}: {error}") from error
        async with asyncio.TaskGroup() as group:
            running = group.create_task(kubelet.run(listeners))
            announced = group.create_task(_announce(kubelet, name))
            await stop.wait()
            running.cancel()
            announced.cancel()
        listeners.close()


async def _announce(kubelet: Kubelet, cluster: str) -> None:
    await kubelet.pods.synced.wait()
    print(f"ready: engines of cluster {cluster}", flush=True)


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def command() -> typer.Typer:
    """The command line; its help carries the package's docstring and the table of settings."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    contract = inspect.getdoc(localfleet.engine) or ""
    paragraphs = "\n\n".join(f"\b\n{paragraph}" for paragraph in contract.split("\n\n"))
    app.command(help=paragraphs, epilog=f"Settings, as annotations:\n\n{SETTINGS}")(main)
    return app


if __name__ == "__main__":
    command()()
