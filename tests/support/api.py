"""A real API server as tests see it: try a manifest, store one, read one back, and run kubectl."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localfleet import seed
from localfleet.apiserver import ApiServer
from localfleet.creation import Creator
from localfleet.kubeclient import ApiError, KubeClient
from tests.support.manifests import Manifest

STRICT = {"fieldValidation": "Strict"}  # what kubectl asks for
OK, NOT_FOUND = 200, 404
State = Mapping[str, bytes]
"""What an etcd holds, by key."""
REGISTRY = "/registry/"
KINDS = f"{REGISTRY}apiextensions.k8s.io/customresourcedefinitions/"
SERVERS_OWN = tuple(
    f"{REGISTRY}{prefix}"
    for prefix in (
        "apiregistration.k8s.io/",
        "configmaps/kube-system/",
        "flowschemas/",
        "leases/kube-system/",
        "masterleases/",
        "prioritylevelconfigurations/",
        "ranges/",
    )
)
"""What a server keeps right by itself."""
REMEMBERED = tuple(f"{REGISTRY}{kind}" for kind in ("mutating", "validating"))
"""Admission policies and webhooks: a server heeds one for some time after it has gone."""


@dataclass(frozen=True, slots=True)
class Api:
    """One API server with our kinds installed."""

    server: ApiServer
    client: KubeClient

    async def admit(self, manifest: Manifest) -> Manifest:
        """What the server would store for a new object, all rules applied; raises ApiError."""
        return await self.client.request("POST", path_of(manifest), manifest, params={**STRICT, "dryRun": "All"})

    async def refusal(self, manifest: Manifest) -> str:
        """Why the server refuses a new object; empty when it does not."""
        try:
            await self.admit(manifest)
        except ApiError as error:
            return str(error)
        return ""

    async def create(self, manifest: Manifest) -> Manifest:
        """Store a new object, its status too."""
        stored = await self.client.request("POST", path_of(manifest), manifest, params=STRICT)
        if "status" in manifest:
            return await self.replace(stored | {"status": manifest["status"]}, "status")
        return stored

    async def replace(self, manifest: Manifest, subresource: str = "") -> Manifest:
        path = "/".join(filter(None, (path_of(manifest), manifest["metadata"]["name"], subresource)))
        return await self.client.request("PUT", path, manifest, params=STRICT)

    async def get(self, manifest: Manifest, subresource: str = "") -> Manifest:
        path = "/".join(filter(None, (path_of(manifest), manifest["metadata"]["name"], subresource)))
        return await self.client.request("GET", path)

    async def delete(self, manifest: Manifest) -> None:
        await self.client.request("DELETE", f"{path_of(manifest)}/{manifest['metadata']['name']}")

    def state(self) -> State:
        """All that the server holds, for `restore`."""
        return self.server.etcd.values(REGISTRY)

    async def restore(self, state: State) -> bool:
        """Have the server hold what it held then; False when it might still act on what it held in between."""
        held = self.state()
        changes = {
            key: state.get(key)
            for key in {**held, **state}
            if held.get(key) != state.get(key) and not key.startswith(SERVERS_OWN)
        }
        if any(key.startswith(REMEMBERED) or (key.startswith(KINDS) and key in state) for key in changes):
            return False
        self.server.etcd.write(changes)
        for key in changes:
            if key.startswith(KINDS):
                await self.until_served(json.loads(held[key]), served=False)
        return True

    async def define(self, *sources: Path) -> None:
        """Have the server know the kinds that files and folders define, in much less time than by applying them."""
        known = {one["metadata"]["name"] for one in (await self.client.request("GET", seed.CRDS))["items"]}
        lacking = [one for one in seed.definitions(*sources) if one["metadata"]["name"] not in known]
        await Creator(self.client).create(lacking)
        for one in lacking:
            await self.until_served(one)

    async def until_served(self, definition: Manifest, *, served: bool = True) -> None:
        """Wait until the server has taken note of a definition, or of its end."""
        spec = definition["spec"]
        for version in (one for one in spec["versions"] if one["served"]):
            path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
            async with asyncio.timeout(60):
                while await self._answer(path) != (OK if served else NOT_FOUND):  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.05)

    async def _answer(self, path: str) -> int:
        """The status by which a server lists a collection: of one that it has just begun with, 429."""
        try:
            await self.client.request("GET", path, params={"limit": "1"})
        except ApiError as error:
            return error.status
        return OK

    async def kubectl(self, *arguments: str, stdin: str = "") -> str:
        """What kubectl prints; it must succeed."""
        process = await asyncio.create_subprocess_exec(
            self.server.binaries["kubectl"],
            f"--kubeconfig={self.server.kubeconfig}",
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            said, complained = await process.communicate(stdin.encode())
        assert process.returncode == 0, f"kubectl {' '.join(arguments)}: {complained.decode()}"
        return said.decode()


def path_of(manifest: Manifest) -> str:
    """The collection that an object of ours belongs to."""
    kind = str(manifest["kind"]).lower()
    plural = f"{kind}es" if kind.endswith("s") else f"{kind}s"
    namespace = manifest["metadata"].get("namespace")
    where = f"namespaces/{namespace}/{plural}" if namespace else plural
    return f"/apis/{manifest['apiVersion']}/{where}"


def named(manifest: Manifest, name: str, **metadata: Any) -> Manifest:
    """The same object under another name."""
    return {**manifest, "metadata": {**manifest["metadata"], "name": name, **metadata}}
