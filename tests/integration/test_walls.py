"""Namespaces are walls, and Secrets stay where they belong."""

from __future__ import annotations

import base64

import pytest

from tests.integration.harness import Stage, remote, until
from tests.integration.kinds import deployment, engine, pod, secret, service
from tests.integration.watcher import Watcher

pytestmark = pytest.mark.fleet


async def test_the_same_name_in_two_namespaces_is_two_models(stage: Stage, space: str, neighbour: str) -> None:
    for home in (space, neighbour):
        await stage.hub.apply(deployment(home, replicas=2), service(home))
    for home in (space, neighbour):
        await stage.serving(home, 2)
    assert not set(await stage.replicas(space)) & set(await stage.replicas(neighbour))
    ours = set(await stage.pods(space))
    await stage.hub.delete("ModelDeployment", "model", neighbour)

    async def gone() -> bool:
        return not await stage.pods(neighbour)

    await until("the neighbour's pods to go", gone)
    assert set(await stage.pods(space)) == ours
    assert await stage.answered(space)


async def test_a_service_reaches_endpoints_of_its_own_namespace_only(stage: Stage, space: str, neighbour: str) -> None:
    await stage.hub.apply(deployment(space), service(space), service(neighbour))
    await stage.serving(space, 1)
    await stage.hub.says("EndpointsResolved=False/NoEndpoints", "ModelService", "model", neighbour)
    assert (await stage.chat(neighbour)).status == 503


async def test_secrets_of_an_engine_go_where_it_runs_and_leave_with_it(
    stage: Stage, space: str, watcher: Watcher
) -> None:
    token, changed = "hf-canary-3b1d7f52", "hf-canary-9e0c4a66"
    watcher.hide(token, changed)
    watcher.keep(space, token)
    template = pod()
    template["spec"]["containers"][0]["env"] = [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token"}}}
    ]
    await stage.hub.apply(secret(space, "hugging-face", token=token, unrelated="no-engine-needs-this"))
    await stage.hub.apply(deployment(space, engines=[engine(template=template)]), service(space))
    await stage.serving(space, 1)
    (replica,) = (await stage.replicas(space)).values()
    worker = stage.workers[replica["spec"]["clusterName"]]
    (copy,) = [one for one in await worker.list("Secret", remote(space)) if one["type"] == "Opaque"]
    assert base64.b64decode(copy["data"]["token"]).decode() == token
    (running,) = (await stage.pods(space)).values()
    (variable,) = [one for one in running["spec"]["containers"][0]["env"] if one["name"] == "HF_TOKEN"]
    assert variable["valueFrom"]["secretKeyRef"]["name"] == copy["metadata"]["name"]

    await stage.hub.delete("ModelDeployment", "model", space)
    await worker.gone("Secret", copy["metadata"]["name"], remote(space))
    assert await stage.hub.get("Secret", "hugging-face", space)


async def test_a_secret_that_is_missing_is_named_and_waited_for(stage: Stage, space: str) -> None:
    template = pod()
    template["spec"]["containers"][0]["env"] = [
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hugging-face", "key": "token"}}}
    ]
    await stage.hub.apply(deployment(space, engines=[engine(template=template)]))

    async def named() -> bool:
        found = await stage.hub.get("ModelDeployment", "model", space)
        return "has no Secret hugging-face" in str((found or {}).get("status"))

    await until("the deployment to name the Secret", named)
