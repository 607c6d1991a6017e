"""Weights that come over HTTP to a real volume, and an engine that starts from them and from nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from hashlib import sha256

import aiohttp
import pytest

from scripts.kind.images import ENGINE, SIMULATOR
from tests.e2e.conftest import TEAM
from tests.e2e.kind import Cluster, Manifest

NAME, PLACE, MIB = "weights", "weights", 64
CONTENT = bytes(range(256)) * (4096 * MIB)
CONFIG = b'{"model_type": "made-up"}'
FILES = {"model.safetensors": CONTENT, "config.json": CONFIG}
MANIFEST = json.dumps(
    {"files": [{"path": path, "size": len(it), "sha256": sha256(it).hexdigest()} for path, it in FILES.items()]}
)
SERVER = f"""
import functools, http.server, os, pathlib
os.chdir("/tmp")
pathlib.Path("model.safetensors").write_bytes(bytes(range(256)) * {4096 * MIB})
pathlib.Path("config.json").write_bytes({CONFIG!r})
pathlib.Path("manifest.json").write_text({MANIFEST!r})
http.server.ThreadingHTTPServer(("", 8080), http.server.SimpleHTTPRequestHandler).serve_forever()
"""
CACHE: Manifest = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "ModelCache",
    "metadata": {"name": NAME, "namespace": TEAM},
    "spec": {
        "source": "HTTP",
        "http": {
            "manifest": f"http://{PLACE}.{PLACE}.svc:8080/manifest.json",
            "sha256": sha256(MANIFEST.encode()).hexdigest(),
            "sizeGiB": 1,
        },
        "clusterSelector": {"matchLabels": {"storage": "shared"}},  # replicas go nowhere else
    },
}
MODEL: Manifest = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "ModelDeployment",
    "metadata": {"name": NAME, "namespace": TEAM},
    "spec": {
        "replicas": 1,
        "template": {
            "metadata": {"labels": {"model": NAME}},
            "spec": {
                "modelCacheRef": {"name": NAME},
                "engines": [
                    {
                        "name": "vllm",
                        "members": [
                            {
                                "nodeSelector": {"devices": [{"name": "gpu", "selectors": [{"cel": "true"}]}]},
                                "template": {
                                    "spec": {
                                        "containers": [
                                            {"name": "engine", "image": ENGINE, "args": [f"--served-model-name={NAME}"]}
                                        ]
                                    }
                                },
                            }
                        ],
                    }
                ],
            },
        },
    },
}
SERVICE: Manifest = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "ModelService",
    "metadata": {"name": NAME, "namespace": TEAM},
    "spec": {"endpoints": [{"selector": {"matchLabels": {"model": NAME}}}]},
}


def web_server() -> list[Manifest]:
    labels = {"app": PLACE}
    container = {"name": "web", "image": SIMULATOR, "command": ["/opt/modelplane/bin/python", "-c", SERVER]}
    named = {"name": PLACE, "namespace": PLACE}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PLACE}},
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": named,
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": named,
            "spec": {"selector": labels, "ports": [{"port": 8080}]},
        },
    ]


@pytest.fixture
async def url(hub: Cluster, west: Cluster, measured: Callable[[str], None]) -> AsyncIterator[str]:
    """West alone has storage for caches, and is chosen for that by its label."""
    server = web_server()
    await west.apply(*server)
    began = time.monotonic()
    await hub.apply(CACHE, MODEL, SERVICE)
    await hub.holds("ModelCache", NAME, TEAM)
    measured(f"{MIB} MiB of weights, from apply to a cache that is Ready: {time.monotonic() - began:.0f} s")
    await hub.holds("ModelDeployment", NAME, TEAM)
    service = await hub.holds("ModelService", NAME, TEAM)
    yield service["status"]["address"]
    await hub.delete(SERVICE, MODEL)
    await hub.delete(CACHE)
    await west.delete(server[0])


async def test_an_engine_starts_from_weights_on_a_real_volume(hub: Cluster, west: Cluster, url: str) -> None:
    asked = {"model": NAME, "messages": [{"role": "user", "content": "Are you there?"}]}
    async with (
        aiohttp.ClientSession(raise_for_status=True) as session,
        session.post(f"{url}/v1/chat/completions", json=asked) as answer,
    ):
        assert (await answer.json())["model"] == NAME

    claims = await west.list("PersistentVolumeClaim", f"modelplane-{TEAM}", "v1")
    assert [claim["status"]["phase"] for claim in claims] == ["Bound"]
    (told,) = (await hub.get("ModelCache", NAME, TEAM) or {})["status"]["clusters"]
    assert (told["name"], told["phase"]) == ("west", "Ready")
