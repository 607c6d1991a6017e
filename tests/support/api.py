"""A real API server as tests see it: try a manifest, store one, read one back, and run kubectl."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from localfleet.apiserver import ApiServer
from localfleet.kubeclient import ApiError, KubeClient
from tests.support.manifests import Manifest

STRICT = {"fieldValidation": "Strict"}  # what kubectl asks for


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
