"""One engine in a container of its own, on clusters whose kubelets are real.

    vllm serve MODEL [--port 8000] [--localfleet-NAME=VALUE ...]      # and whatever else: it is not read

It answers as the engines of a fleet do, and takes the settings that are arguments (`localfleet.engine`). The kubelet
does the rest: probes, restarts, the grace period. With a folder for its model, which is how weights come from a
ModelCache, it ends where the folder has no weights, as an engine would.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from itertools import pairwise
from pathlib import Path

import aiohttp

from localfleet.engine.engine import Engine
from localfleet.engine.lifecycle import begin
from localfleet.engine.pods import ENGINE, Pod, read_pod
from localfleet.engine.server import Door, Listeners
from localfleet.engine.settings import Settings
from localfleet.kubeclient import Manifest

NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_PORT = 8000


def main() -> None:
    arguments = sys.argv[1:]
    if missing := without_weights(arguments):
        sys.exit(missing)
    pod = read_pod(manifest(arguments), defaults=Settings())
    sys.exit(asyncio.run(serve(pod)))


def without_weights(arguments: list[str]) -> str:
    """Why its model cannot be loaded from a folder; empty when it can, or comes from elsewhere."""
    folders = [
        Path(word.removeprefix("--model=")) for word in arguments if word.removeprefix("--model=").startswith("/")
    ]
    for folder in folders:
        if not any(folder.glob("*.safetensors")):
            return f"{folder} has no weights: there is no *.safetensors"
    return ""


def manifest(arguments: list[str]) -> Manifest:
    """What a kubelet would have read of the pod that this is."""
    port = next((after for word, after in pairwise(arguments) if word == "--port"), None)
    port = port or next((word.partition("=")[2] for word in arguments if word.startswith("--port=")), DEFAULT_PORT)
    name = socket.gethostname()
    return {
        "metadata": {"namespace": namespace(), "name": name, "uid": os.environ.get("POD_UID", name)},
        "spec": {
            "containers": [
                {
                    "name": ENGINE,
                    "image": os.environ.get("ENGINE_IMAGE", "engine"),
                    "args": arguments,
                    "ports": [{"containerPort": int(port)}],
                }
            ]
        },
    }


def namespace() -> str:
    """The pod's, where it has an account; `-` where it has none, as pods of the operator do."""
    return NAMESPACE_FILE.read_text().strip() if NAMESPACE_FILE.exists() else "-"


async def serve(pod: Pod) -> int:
    """Answer until SIGTERM, or until the settings take the engine down; the exit code."""
    settings = pod.settings
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if await ended(stop, within=settings.startup_seconds):
        return 0
    lives = {
        container.name: begin(container, time.time() - settings.startup_seconds, scale=1.0)
        for container in pod.containers
    }
    engine = Engine(pod, lives, cluster=os.environ.get("CLUSTER", "kind"))
    engine.update(pod, lives, node_down=False)
    async with aiohttp.ClientSession() as session:
        listeners = Listeners(Door(lambda _: engine, session), ["0.0.0.0"])  # noqa: S104 - a pod's only interface
        for port in pod.servers:
            await listeners.open(port)
        print(f"ready: {', '.join(pod.models)}", flush=True)
        if settings.crash >= 0 and not await ended(stop, within=settings.crash_after_seconds):
            return settings.crash
        await stop.wait()
        engine.drain()
        while engine.busy:  # noqa: ASYNC110 - an engine tells nobody when its last answer has ended
            await asyncio.sleep(0.05)
        listeners.close()
    return 0


async def ended(stop: asyncio.Event, *, within: float) -> bool:
    """Whether it is told to end in that time."""
    try:
        async with asyncio.timeout(within):
            await stop.wait()
    except TimeoutError:
        return False
    return True


if __name__ == "__main__":
    main()
