"""A cluster as a test sees it, through kubernetes-asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from kubernetes_asyncio import client, config
from kubernetes_asyncio.dynamic import DynamicClient

Manifest = dict[str, Any]
Found = TypeVar("Found")
OURS = "modelplane.ai/v1alpha1"
POLL_INTERVAL = 0.5
NOT_FOUND = 404


@dataclass(frozen=True, slots=True)
class Cluster:
    """One cluster's API."""

    name: str
    dynamic: DynamicClient

    async def apply(self, *manifests: Manifest) -> None:
        for manifest in manifests:
            kind = await self.kind(manifest["apiVersion"], manifest["kind"])
            named = {"field_manager": "e2e", "force_conflicts": True}
            answer = (await self.dynamic.server_side_apply(kind, body=manifest, **named, **of(manifest))).to_dict()
            assert answer["kind"] == manifest["kind"], answer  # this client raises nothing of what is refused

    async def kind(self, version: str, kind: str) -> Any:
        return await self.dynamic.resources.get(api_version=version, kind=kind)

    async def get(self, kind: str, name: str, namespace: str = "", version: str = OURS) -> Manifest | None:
        """One object; None where there is none, which this client tells as it tells any Status."""
        where = {"name": name, **({"namespace": namespace} if namespace else {})}
        found = (await self.dynamic.get(await self.kind(version, kind), **where)).to_dict()
        if found["kind"] != "Status":
            return found
        assert found["code"] == NOT_FOUND, found
        return None

    async def list(self, kind: str, namespace: str = "", version: str = OURS, **selected: str) -> list[Manifest]:
        where = {"namespace": namespace} if namespace else {}
        return (await self.dynamic.get(await self.kind(version, kind), **where, **selected)).to_dict()["items"]

    async def delete(self, *manifests: Manifest) -> None:
        """Delete them, and wait until they are gone."""
        for manifest in manifests:
            await self.dynamic.delete(await self.kind(manifest["apiVersion"], manifest["kind"]), **of(manifest))
        for manifest in manifests:
            found = lambda each=manifest: self.get(each["kind"], version=each["apiVersion"], **of(each))  # noqa: E731
            await until(lambda found=found: absent(found()), f"{manifest['kind']} {of(manifest)['name']} to be gone")

    async def holds(self, kind: str, name: str, namespace: str = "", condition: str = "Ready") -> Manifest:
        """The object once a condition of it is True."""
        said: Manifest = {}

        async def look() -> Manifest | None:
            found = await self.get(kind, name, namespace) or {}
            said.update(condition_of(found, condition))
            return found if said.get("status") == "True" else None

        return await until(look, f"{kind} {name} to be {condition}", lambda: said.get("message", ""))


@asynccontextmanager
async def connected(name: str, kubeconfig: Path) -> AsyncIterator[Cluster]:
    configuration = client.Configuration()
    await config.load_kube_config(str(kubeconfig), client_configuration=configuration)
    async with client.ApiClient(configuration) as api:
        yield Cluster(name, await DynamicClient(api))


def of(manifest: Manifest) -> dict[str, str]:
    named = {"name": manifest["metadata"]["name"]}
    return named | ({"namespace": found} if (found := manifest["metadata"].get("namespace")) else {})


def documents(path: Path) -> list[Manifest]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def condition_of(manifest: Manifest, kind: str) -> Manifest:
    conditions: Iterable[Manifest] = manifest.get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), {})


def is_true(manifest: Manifest, kind: str = "Ready") -> bool:
    return condition_of(manifest, kind).get("status") == "True"


async def absent(found: Awaitable[object]) -> bool:
    return await found is None


async def until(
    look: Callable[[], Awaitable[Found]], what: str, why: Callable[[], str] = lambda: "", seconds: float = 300.0
) -> Found:
    """What `look` finds, once it finds something."""
    deadline = time.monotonic() + seconds
    while not (found := await look()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}, in vain; {why()}"
        await asyncio.sleep(POLL_INTERVAL)
    return found
