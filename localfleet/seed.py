"""What a new cluster's etcd starts from: a store that has the kinds in it already.

Creating the CRDs of the gateways costs an API server some six seconds of processor time, for every cluster. So it is
done once, by an API server on loopback, and its store is kept in the cache without what belongs to one cluster only.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from localfleet import apiserver, binaries
from localfleet.creation import Creator, documents, files
from localfleet.errors import DeadlineError
from localfleet.etcd import Etcd
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
                make(kept, definitions(*sources))
    return kept


def definitions(*sources: Path) -> list[Manifest]:
    """The kinds that files and folders define."""
    return [each for source in sources for each in documents(source) if each["kind"] == CRD]


def make(kept: Path, crds: Sequence[Manifest]) -> None:
    programs = binaries.ensure("etcd", "kube-apiserver")
    with tempfile.TemporaryDirectory(dir=kept.parent, prefix=".partial-") as partial:
        layout = apiserver.on_loopback(Path(partial))
        with apiserver.etcd_running(layout, programs):
            with apiserver.api_running(layout, programs):
                asyncio.run(create(layout.kubeconfig, crds))
            for prefix in OF_ONE_CLUSTER:
                Etcd(layout.etcd_port).delete(f"/registry/{prefix}")
        (layout.folder / "etcd").rename(kept)


async def create(kubeconfig: Path, crds: Sequence[Manifest]) -> None:
    """Have an API server know these kinds."""
    async with connect(kubeconfig) as client:
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
