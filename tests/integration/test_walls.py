"""Namespaces are walls, and Secrets stay where they belong."""

from __future__ import annotations

import base64
from ipaddress import ip_network

import pytest

from tests.integration.harness import SECONDS, Stage, condition, remote, until
from tests.integration.kinds import deployment, endpoint, engine, pod, secret, service
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

    async def refused() -> bool:
        return (await stage.chat(neighbour)).status == 503

    await until("the gateway to say that nobody is there", refused)


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
    found = "hf-of-a-test"
    await stage.hub.apply(secret(space, "hugging-face", token=found))

    async def forgotten() -> bool:
        return not await named()

    await until("the deployment to go on with it", forgotten)


async def test_what_a_tenant_pauses_holds_up_no_drain(stage: Stage, space: str) -> None:
    """Nor does a route of its own to the replica, or a finalizer of its own on the endpoint."""
    await stage.hub.apply(deployment(space), service(space))
    await stage.serving(space, 1)
    ((name, replica),) = (await stage.replicas(space)).items()
    cluster = replica["spec"]["clusterName"]
    ours = next(one for one in await stage.hub.list("HTTPRoute", space))
    theirs = {"name": "mine", "namespace": space}
    parent = [{"name": "a-gateway-of-its-own"}]
    await stage.hub.apply({**ours, "metadata": theirs, "spec": {**ours["spec"], "parentRefs": parent}, "status": {}})
    paused = {"annotations": {"crossplane.io/paused": "true"}}
    for kind in ("ModelDeployment", "ModelReplica", "ModelEndpoint"):
        await stage.hub.patch(
            kind, name if kind in {"ModelReplica", "ModelEndpoint"} else "model", space, metadata=paused
        )
    (endpoint,) = await stage.hub.list("ModelEndpoint", space)
    held = [*endpoint["metadata"]["finalizers"], "example.com/mine"]
    await stage.hub.patch("ModelEndpoint", name, space, metadata={"finalizers": held})
    await stage.hub.says("Synced=False/ReconcilePaused", "ModelDeployment", "model", space)
    try:
        await stage.hub.patch("InferenceCluster", cluster, spec={"taints": [{"key": "mend", "effect": "NoExecute"}]})
        await stage.hub.gone("ModelReplica", name, space, seconds=2 * SECONDS)
        assert cluster not in await stage.placed(space)
        said = condition(await stage.hub.get("ModelDeployment", "model", space) or {}, "Synced")
        assert "leave clusters that are drained" in said["message"]
    finally:
        await stage.hub.patch("InferenceCluster", cluster, spec={"taints": []})
        await stage.hub.patch("ModelEndpoint", name, space, metadata={"finalizers": None})
        await stage.hub.delete("HTTPRoute", "mine", space)


async def test_what_users_write_does_not_lead_inward(stage: Stage, space: str) -> None:
    """To the API server, a pod, or the gateway of a cluster, past the service of whoever has a model there."""
    kubernetes = await stage.hub.get("Service", "kubernetes", "default") or {}
    node = (await stage.hub.list("Node"))[0]
    cluster = await stage.hub.get("InferenceCluster", "worker-1") or {}
    pod_range = ip_network(node["spec"]["podCIDR"]) if "podCIDR" in node["spec"] else ip_network("10.100.0.0/24")
    inward = {
        "api": f"https://{kubernetes['spec']['clusterIP']}",
        "pod": f"http://{pod_range[7]}:8000",
        "translated": "http://[64:ff9b:1::a00:1]",
        "gateway": f"http://{cluster['status']['gateway']['address']}",
    }
    for name, url in inward.items():
        await stage.hub.apply(endpoint(space, name, url), service(space, name))
    for name in inward:
        await stage.hub.says("RoutingReady=False/InvalidURL", "ModelEndpoint", name, space)
    assert await stage.hub.list("EndpointSlice", space, "modelplane.ai/owner-kind=ModelEndpoint") == []


async def test_the_endpoint_of_a_replica_leads_there_whatever_a_tenant_makes_of_it(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space), service(space))
    await stage.serving(space, 1)
    (before,) = await stage.hub.list("ModelEndpoint", space)
    name, uid = before["metadata"]["name"], before["metadata"]["uid"]

    await stage.hub.patch("ModelEndpoint", name, space, spec={"url": "http://10.96.0.1:443"})

    async def mended() -> bool:
        found = await stage.hub.get("ModelEndpoint", name, space) or {}
        return found["spec"] == before["spec"] and found["metadata"]["uid"] == uid

    await until("the deployment to write it again", mended)
    slices = await stage.hub.list("EndpointSlice", space, "modelplane.ai/owner-kind=ModelEndpoint")
    assert "10.96.0.1" not in str(slices)
    assert await stage.answered(space)


async def test_no_pause_lets_the_endpoint_of_a_replica_lead_into_anothers_model(
    stage: Stage, space: str, neighbour: str
) -> None:
    """Both may be behind one gateway, where a path is all that tells them apart, and keys are asked for before it."""
    for home in (space, neighbour):
        await stage.hub.apply(deployment(home), service(home))
    for home in (space, neighbour):
        await stage.serving(home, 1)
    (victim,) = await stage.replicas(neighbour)
    (before,) = await stage.hub.list("ModelEndpoint", space)
    name = before["metadata"]["name"]

    async def routes() -> dict[str, int]:
        found = await stage.hub.list("HTTPRoute", space)
        return {one["metadata"]["name"]: one["metadata"]["generation"] for one in found}

    led, paused = await routes(), {"annotations": {"crossplane.io/paused": "true"}}
    await stage.hub.patch("ModelDeployment", "model", space, metadata=paused)
    await stage.hub.patch(
        "ModelEndpoint", name, space, metadata=paused, spec={"rewritePath": f"/{neighbour}/{victim}/"}
    )

    async def mended() -> bool:
        return ((await stage.hub.get("ModelEndpoint", name, space)) or {})["spec"] == before["spec"]

    await until("the deployment to write it again", mended)
    await stage.answered(space)
    assert await routes() == led, "no route has ever led elsewhere"
