"""The operator killed while Helm is at work on the hub, alone or with its Helm: the next one ends what was begun."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from kubeloop.cache.watches import Watched
from kubeloop.client.access import read_kubeconfig
from kubeloop.client.kube import connect
from kubeloop.objects import Key
from kubeloop.resource import of
from kubeloop.types import JOB, NAMESPACE, SECRET
from localfleet import binaries
from modelplane_operator.api import InferenceGateway, names
from modelplane_operator.clusters.stack import controller as serving_stack
from modelplane_operator.clusters.stack.definitions import read_definitions
from modelplane_operator.routing.gateway import controller as inference_gateway
from modelplane_operator.routing.gateway.controller import CHILDREN
from tests.support.api import Api
from tests.support.charts import SIMPLE, pack
from tests.support.helm import kill, noted_helm
from tests.support.step_by_step import Operator, watching

Manifest = dict[str, Any]

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

RELEASE = Key("traefik-system", "mp-traefik")
HOOK = Key("traefik-system", "mp-traefik-hook")
HUB_GATEWAY: Manifest = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "InferenceGateway",
    "metadata": {"name": "default"},
    "spec": {"backend": "Traefik", "traefik": {"version": "40.2.0"}},
}
WHEN = "2026-01-01T12:00:00Z"
DONE = {
    "succeeded": 1,
    "startTime": WHEN,
    "completionTime": WHEN,
    "conditions": [{"type": one, "status": "True"} for one in ("SuccessCriteriaMet", "Complete")],
}


@dataclass
class HubGateway(Operator):
    """An operator of a hub gateway. Helm waits at every step of its chart for a Job, until a test finishes that."""

    finished: str = ""
    """The Job that was finished, or whose Helm was killed."""

    def job(self) -> str:
        """The Job that Helm waits for; empty while it waits for none."""
        jobs = self.remote.find(JOB)
        job = jobs.get(HOOK) if jobs else None
        uid = job["metadata"]["uid"] if job else ""
        return "" if uid == self.finished else uid

    async def waits(self) -> None:
        await self.until(lambda _: self.job(), "Helm to wait for its Job")

    async def finish(self) -> None:
        """Do what the Job's pod would have done."""
        self.finished, job = self.job(), await self.kube.get(JOB, HOOK)
        await self.kube.replace_status({**job, "status": DONE})

    def kill(self) -> None:
        """Have Helm end as the operator does, as where they are one container."""
        self.finished = self.job()
        kill(self.folder)

    async def is_deployed(self) -> None:
        await self.until(lambda _: self.status(RELEASE) == "deployed", "Helm to be done")

    async def said(self) -> str:
        """The messages of all conditions."""
        return "; ".join(one.get("message", "") for one in (await self.live())["status"]["conditions"])


@pytest.fixture(scope="module")
def definitions() -> tuple[Manifest, ...]:
    return read_definitions(binaries.ensure("gateway-api-crds")["gateway-api-crds"])


@pytest.fixture
async def door(clean_api: Api, tmp_path: Path, definitions: tuple[Manifest, ...]) -> AsyncIterator[HubGateway]:
    noted_helm(tmp_path)
    (tmp_path / "mirror").mkdir()
    for version in ("40.2.0", "40.2.1"):
        pack(tmp_path / "mirror", "traefik", version, {**SIMPLE, "values.yaml": "hang: true\n"})
    near = [Watched(of(InferenceGateway), None), *map(Watched, CHILDREN), Watched(NAMESPACE, None)]
    near += [Watched(SECRET, None, namespace=names.SYSTEM_NAMESPACE)]
    remote = [serving_stack.RECORDS, Watched(JOB, None)]
    access = read_kubeconfig(clean_api.server.kubeconfig.read_text())
    async with connect(access) as kube:
        await kube.create(HUB_GATEWAY)
        async with watching(access, near, remote, name="again") as seen:
            build = partial(inference_gateway.controller, definitions)
            door = HubGateway(kube, tmp_path, *seen, build, Key("", "default"))
            yield door
            await door.end()


async def begin(door: HubGateway, verb: str) -> None:
    """Have Helm be in the middle of it."""
    await door.waits()
    if verb == "install":
        return
    await door.finish()
    await door.is_deployed()
    if verb == "upgrade":
        await door.ask(traefik={"version": "40.2.1"})
    else:
        await door.delete()
    await door.waits()


@pytest.mark.parametrize("with_helm", [True, False], ids=["with its Helm", "alone"])
@pytest.mark.parametrize("verb", ["install", "upgrade", "uninstall"])
async def test_the_next_operator_ends_what_the_one_that_was_killed_had_begun(
    door: HubGateway, verb: str, *, with_helm: bool
) -> None:
    await begin(door, verb)
    begun = door.runs()
    if with_helm:
        door.kill()
    door.restart()
    for _ in range(3):
        await door.step()
    assert "Helm may still be at work on" in await door.said()
    assert door.runs() == begun
    if with_helm:
        door.ahead = timedelta(seconds=door.helm.patience + 1)
        await door.waits()
    await door.finish()
    if verb == "uninstall":
        await door.until(lambda found: not found, "the hub gateway to go")
        assert door.history(RELEASE) == ()
    else:
        await door.is_deployed()
        assert [one.status for one in door.history(RELEASE)].count("deployed") == 1
        for _ in range(3):
            await door.step()
    assert door.runs() == [*begun, *(begun[-1:] if with_helm else [])]
