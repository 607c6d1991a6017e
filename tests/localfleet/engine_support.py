"""What the tests of the engine simulator, the fault proxy and the gang controller share."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")
Manifest = dict[str, Any]
SECONDS = 60.0
ADDRESSES = [f"127.{64 + os.getpid() // 256 % 128}.{os.getpid() % 256}.{number}" for number in (1, 2)]
"""Two addresses of loopback for this process alone: another run on this machine asks for the same ports."""


async def eventually(what: str, look: Callable[[], Awaitable[T | None]], seconds: float = SECONDS) -> T:
    """What `look` finds, as soon as it finds something; fails saying what was waited for."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s for {what}")
        await asyncio.sleep(0.02)
    return found


@asynccontextmanager
async def program(module: str, *arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """`python -m module` once it has said `ready`; ended with SIGTERM, which must leave exit code 0."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(SECONDS):
            line = await process.stdout.readline()
        assert line.startswith(b"ready"), f"{module} said {line!r}"
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        async with asyncio.timeout(SECONDS):
            code = await process.wait()
    assert code == 0, f"{module} ended with {code}"


def engine_pod(name: str, **changes: Any) -> Manifest:
    """A serving pod as the operator writes it; `annotations`, `labels`, `args`, `probes`, `containers` change it."""
    probe = {"httpGet": {"path": "/health", "port": 8000}, "initialDelaySeconds": 30, "periodSeconds": 10}
    engine = {
        "name": "engine",
        "image": "vllm/vllm-openai:v0.19.0",
        "args": changes.get("args", ["--model=llama"]),
        "ports": [{"containerPort": 8000}],
        **changes.get("probes", {"readinessProbe": probe}),
        **changes.get("engine", {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"{name}-uid",
            "labels": {"modelplane.ai/serving": "replica", **changes.get("labels", {})},
            "annotations": changes.get("annotations", {}),
        },
        "spec": {
            "nodeName": changes.get("node", "node-1"),
            "terminationGracePeriodSeconds": changes.get("grace", 30),
            "containers": [engine, *changes.get("containers", [])],
        },
    }


def running(address: str, *containers: str, since: float | None = None) -> Manifest:
    """The status that kwok's stage gives an engine pod."""
    started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since if since is not None else time.time()))
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": started}]
        + [{"type": kind, "status": "False", "lastTransitionTime": started} for kind in ("ContainersReady", "Ready")],
        "containerStatuses": [
            {
                "name": name,
                "image": "image",
                "imageID": "image",
                "ready": False,
                "started": False,
                "restartCount": 0,
                "state": {"running": {"startedAt": started}},
            }
            for name in (containers or ("engine",))
        ],
    }
