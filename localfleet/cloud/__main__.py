"""Run the cloud of one cluster until SIGTERM."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from localfleet.cloud.balancer import Balancer
from localfleet.cloud.names import Names
from localfleet.cloud.pods import Node, Pods
from localfleet.cloud.readiness import Readiness
from localfleet.cloud.volumes import Volumes
from localfleet.kubeclient import connect


def main(
    *,
    kubeconfig: Annotated[Path, typer.Option(help="The cluster's kubeconfig.")],
    name: Annotated[str, typer.Option(help="The cluster's name.")],
    balancers: Annotated[str, typer.Option(help="Where LoadBalancer addresses come from.")],
    api: Annotated[str, typer.Option(help="HOST:PORT of the API server, as pods reach it.")],
    folder: Annotated[Path, typer.Option(help="Where the file systems of real pods go.")],
    program: Annotated[list[str], typer.Option(help="NAME=PATH of a program that real pods run.")],
) -> None:
    """Give a simulated cluster load balancers, volumes and the data-plane pods that run for real."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a connection through a balancer is two descriptors
    programs = {known: Path(path) for known, _, path in (each.partition("=") for each in program)}
    asyncio.run(serve(kubeconfig, balancers, Node(name, api, folder), programs))


async def serve(kubeconfig: Path, pool: str, node: Node, programs: Mapping[str, Path]) -> None:
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    async with connect(kubeconfig) as client:
        pods = Pods(client, node, programs)
        parts = (Balancer(client, pool), Volumes(client), Names(client), pods, Readiness(client))
        tasks = [asyncio.create_task(part.run()) for part in parts]
        print("ready", flush=True)
        stopped = asyncio.create_task(ended.wait())
        await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome


if __name__ == "__main__":
    typer.run(main)
