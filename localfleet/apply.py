"""Putting manifests into a cluster by server-side apply, in the order given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import yaml

from localfleet.errors import DeadlineError, FleetError
from localfleet.kubeclient import APPLY, ApiError, KubeClient, Manifest

NOT_FOUND = 404
APPLY_SECONDS = 30.0
AT_A_TIME = 8


def documents(path: Path) -> list[Manifest]:
    """Every object in a YAML file, or in all YAML files of a folder."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # CRDs are long, and the C loader is ten times as fast
    found = [
        cast("Manifest", document) for file in files for document in yaml.load_all(file.read_text(), loader) if document
    ]
    return [item for document in found for item in (document["items"] if document["kind"] == "List" else [document])]


class Applier:
    """Applies objects to one cluster, learning from it where each kind lives."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._kinds: dict[tuple[str, str], tuple[str, bool]] = {}

    async def apply(self, manifests: Iterable[Manifest]) -> None:
        """Apply objects that do not depend on each other, a few at a time."""
        room = asyncio.Semaphore(AT_A_TIME)

        async def one(manifest: Manifest) -> None:
            async with room:
                await self._apply(manifest)

        async with asyncio.TaskGroup() as group:
            for manifest in manifests:
                group.create_task(one(manifest))

    async def _apply(self, manifest: Manifest) -> None:
        path = await self.path(manifest)
        params = {"fieldManager": "localfleet", "force": "true"}
        try:
            await self._client.request("PATCH", path, manifest, content_type=APPLY, params=params)
        except ApiError as error:
            what = f"{manifest['kind']} {manifest['metadata']['name']}"
            raise FleetError(f"{what} was refused by {self._client.access.cluster}: {error}") from error

    async def path(self, manifest: Manifest) -> str:
        """Where the API serves this object; waits for a kind whose CRD has only just been made."""
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
        metadata = manifest["metadata"]
        scope = f"/namespaces/{metadata.get('namespace', 'default')}" if namespaced else ""
        return f"{base}{scope}/{plural}/{metadata['name']}"

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
