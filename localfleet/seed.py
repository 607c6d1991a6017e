"""What a new cluster's etcd starts from: a store that has the kinds in it already.

Creating the CRDs of the gateways costs an API server some six seconds of processor time, for every cluster. So it is
done once, by an API server on loopback, and its store is kept in the cache without what belongs to one cluster only.
"""

from __future__ import annotations

import asyncio
import base64
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import orjson

from localfleet import apiserver, binaries
from localfleet.control_plane import Layout
from localfleet.creation import Creator, documents, files
from localfleet.errors import DeadlineError
from localfleet.kubeclient import KubeClient, Manifest, connect

CRD = "CustomResourceDefinition"
ESTABLISHED_SECONDS = 60.0
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Addresses, authorities and identities, all of which the API server makes anew when it finds none.
OF_ONE_CLUSTER = (
    "configmaps/",
    "endpointslices/",
    "events/",
    "ipaddresses/",
    "leases/",
    "masterleases/",
    "ranges/",
    "servicecidrs/",
    "services/",
)


def ensure(sources: Sequence[Path]) -> Path:
    """The data folder of an etcd that holds the kinds in these files and folders, made now where the cache lacks it."""
    programs = binaries.ensure("etcd", "kube-apiserver")
    content = [file.read_bytes() for source in sources for file in files(source)]
    key = binaries.digest(*content, *(str(path).encode() for path in programs.values()))
    kept = binaries.cache_folder() / f"etcd-seed-{key}"
    if not kept.exists():
        with binaries.locked(kept.name):
            if not kept.exists():
                make(kept, [each for source in sources for each in documents(source) if each["kind"] == CRD])
    return kept


def make(kept: Path, crds: Sequence[Manifest]) -> None:
    programs = binaries.ensure("etcd", "kube-apiserver")
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".partial-") as partial:
        layout = apiserver.on_loopback(Path(partial))
        with apiserver.etcd_running(layout, programs):
            with apiserver.api_running(layout, programs):
                asyncio.run(create(layout, crds))
            for prefix in OF_ONE_CLUSTER:
                forget(layout, f"/registry/{prefix}")
        (layout.folder / "etcd").rename(kept)


async def create(layout: Layout, crds: Sequence[Manifest]) -> None:
    async with connect(layout.kubeconfig) as client:
        await Creator(client).create(crds)
        deadline = time.monotonic() + ESTABLISHED_SECONDS
        while lacking := await not_established(client):
            if time.monotonic() > deadline:
                waited = f"waited {ESTABLISHED_SECONDS:g} s"
                raise DeadlineError(f"{waited} for these kinds to be served, in vain: {', '.join(lacking)}")
            await asyncio.sleep(0.1)


async def not_established(client: KubeClient) -> list[str]:
    found: list[Manifest] = (await client.request("GET", CRDS))["items"]
    return [each["metadata"]["name"] for each in found if not established(each)]


def established(crd: Manifest) -> bool:
    conditions: list[Manifest] = crd.get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


def forget(layout: Layout, prefix: str) -> None:
    """Delete every key that begins so."""

    def encoded(key: str) -> str:
        return base64.b64encode(key.encode()).decode()

    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)  # how etcd spells "all that begin with"
    body = orjson.dumps({"key": encoded(prefix), "range_end": encoded(after)})
    url = f"http://127.0.0.1:{layout.etcd_port}/v3/kv/deleterange"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=10):
        pass
