"""Putting manifests into a new cluster."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

from localfleet.errors import DeadlineError, FleetError
from localfleet.kubeclient import ApiError, KubeClient, Manifest

NOT_FOUND = 404
APPLY_SECONDS = 30.0
AT_A_TIME = 8


def files(path: Path) -> list[Path]:
    """The YAML files of a folder, or the file itself."""
    return sorted(path.glob("*.yaml")) if path.is_dir() else [path]


@cache  # the clusters of a fleet hold mostly the same
def documents(path: Path) -> tuple[Manifest, ...]:
    """Every object in a YAML file, or in all YAML files of a folder."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # CRDs are long, and the C loader is ten times as fast
    found = [
        cast("Manifest", document)
        for file in files(path)
        for document in yaml.load_all(file.read_text(), loader)
        if document
    ]
    return tuple(
        item for document in found for item in (document["items"] if document["kind"] == "List" else [document])
    )


class Creator:
    """Creates objects in one cluster, learning from it where each kind lives.

    Created and not applied: for a new cluster it is the same, and the server-side apply of thirty CRDs costs their API
    server seconds.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    async def create(self, manifests: Iterable[Manifest]) -> None:
        """Create objects that do not depend on each other, a few at a time."""
        room = asyncio.Semaphore(AT_A_TIME)

        async def one(manifest: Manifest) -> None:
            async with room:
                await self._create(manifest)

        async with asyncio.TaskGroup() as group:
            for manifest in manifests:
                group.create_task(one(manifest))

    async def _create(self, manifest: Manifest) -> None:
        path = await self.path(manifest)
        try:
            await self._client.request("POST", path, manifest)
        except ApiError as error:
            what = f"{manifest['kind']} {manifest['metadata']['name']}"
            raise FleetError(f"{what} was refused by {self._client.access.cluster}: {error}") from error

    async def path(self, manifest: Manifest) -> str:
        """Where the API serves objects of this kind; waits for a kind whose CRD has only just been made."""
        version, kind = manifest["apiVersion"], manifest["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        deadline = time.monotonic() + APPLY_SECONDS
        while (version, kind) not in self._kinds:
            await self._discover(base, version)
            if (version, kind) in self._kinds:
                break
            if time.monotonic() > deadline:
                raise DeadlineError(f"waited {APPLY_SECONDS:g} s for the API to serve {kind} of {version}, in vain")
            await asyncio.sleep(0.1)
        plural, namespaced = self._kinds[version, kind]
        scope = f"/namespaces/{manifest['metadata'].get('namespace', 'default')}" if namespaced else ""
        return f"{base}{scope}/{plural}"

    async def _discover(self, base: str, version: str) -> None:
        try:
            served = await self._client.request("GET", base)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
            return  # the first CRD of the group is not established yet
        for resource in served["resources"]:
            if "/" not in resource["name"]:
                self._kinds[version, resource["kind"]] = (resource["name"], resource["namespaced"])
