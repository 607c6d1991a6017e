"""What is around a model's namespace on its cluster, and what its pods may not have there.

The API server enforces Pod Security and the LimitRange here. Nobody enforces the NetworkPolicy: what it lets through is
shown by tests/models/replica/test_network_policies.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from localfleet.kubeclient import ApiError
from modelplane_operator.api.shared import in_bytes, in_millis
from tests.integration.harness import Stage, remote, until
from tests.integration.kinds import OF_THE_SIMULATOR, deployment, engine, pod, service
from tests.support.manifests import Manifest

pytestmark = pytest.mark.fleet

FENCES = ("NetworkPolicy", "LimitRange")


async def home(stage: Stage, space: str) -> str:
    """The cluster of a deployment's only replica."""
    (replica,) = (await stage.replicas(space)).values()
    return replica["spec"]["clusterName"]


async def half_of_one_gpu(stage: Stage, replica: Manifest) -> Manifest:
    """Half of the share of the nodes of the replica's pool that goes with one of their devices."""
    found = await stage.hub.get("InferenceCluster", replica["spec"]["clusterName"])
    named = replica["spec"]["engines"][0]["members"][0]["nodePoolName"]
    (pool,) = [one for one in (found or {})["status"]["gpuPools"] if one["name"] == named]
    parts = pool["devices"][0]["count"] * 2
    cpu, memory = pool["allocatable"]["cpu"], pool["allocatable"]["memory"].removesuffix("Gi")
    return {"cpu": f"{int(cpu) * 1000 // parts}m", "memory": f"{int(memory) * 1024 // parts}Mi"}


async def isolate(stage: Stage, name: str, isolation: Manifest | None) -> None:
    await stage.hub.patch("InferenceCluster", name, spec={"isolation": isolation})


def usual(**parts: Any) -> Manifest:
    """How the stage's clusters isolate, and more."""
    return {"pods": {"allowedAnnotations": [OF_THE_SIMULATOR]}, "networkPolicy": None, "limitRange": None, **parts}


async def test_an_engine_has_little_power_and_nobody_is_let_in_beside_it_who_has_more(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space), service(space))
    await stage.serving(space, 1)
    worker = stage.workers[await home(stage, space)]

    (running,) = (await stage.pods(space)).values()
    (container,) = running["spec"]["containers"]
    (memory,) = [one["emptyDir"] for one in running["spec"]["volumes"] if one["name"] == "dshm"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (replica,) = (await stage.replicas(space)).values()
    share = replica["spec"]["engines"][0]["members"][0]["defaultRequests"]
    assert share == await half_of_one_gpu(stage, replica)
    requests = container["resources"]["requests"]  # the API server writes 12000m as 12
    assert (in_millis(requests["cpu"]), in_bytes(requests["memory"])) == (
        in_millis(share["cpu"]),
        in_bytes(share["memory"]),
    )
    assert "limits" not in container["resources"], "an engine is killed by none of ours"
    (limits,) = await worker.list("LimitRange", remote(space))
    assert limits["spec"]["limits"] == [{"type": "Container", "defaultRequest": {"cpu": "100m", "memory": "256Mi"}}]
    assert memory == {"medium": "Memory", "sizeLimit": "32Gi"}
    policies = {one["metadata"]["name"]: one["spec"] for one in await worker.list("NetworkPolicy", remote(space))}
    assert policies["modelplane"]["policyTypes"] == ["Ingress", "Egress"]
    assert [*policies] == ["modelplane", "modelplane-pickers"]
    intruder: Manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "intruder", "namespace": remote(space)},
        "spec": {"hostNetwork": True, "containers": [{"name": "intruder", "image": "intruder:v1"}]},
    }
    with pytest.raises(ApiError, match="violates PodSecurity"):
        await worker.apply(intruder)


async def test_fences_that_somebody_takes_away_are_put_back_and_go_when_the_platform_team_says_so(
    stage: Stage, space: str
) -> None:
    await stage.hub.apply(deployment(space), service(space))
    await stage.serving(space, 1)
    name = await home(stage, space)
    worker = stage.workers[name]

    async def there() -> bool:
        found = [one["metadata"]["name"] for kind in FENCES for one in await worker.list(kind, remote(space))]
        return sorted(found) == ["modelplane", "modelplane", "modelplane-pickers"]

    async def gone() -> bool:
        return not any([await worker.list(kind, remote(space)) for kind in FENCES])

    for kind in FENCES:
        for fence in await worker.list(kind, remote(space)):
            await worker.delete(kind, fence["metadata"]["name"], remote(space))
    await until("the fences to be put back", there)
    none = {"mode": "Disabled"}
    try:
        await isolate(stage, name, usual(networkPolicy=none, limitRange=none))
        await until("the fences to go", gone)
    finally:
        await isolate(stage, name, usual())
    await until("the fences to come back", there)
    assert len(await stage.pods(space)) == 1


async def test_an_annotation_that_is_not_allowed_is_named_and_reaches_the_pods_once_it_is(
    stage: Stage, space: str
) -> None:
    mesh = "sidecar.istio.io/inject"
    template = pod() | {"metadata": {"annotations": {mesh: "true", "note": "x"}}}
    await stage.hub.apply(deployment(space, engines=[engine(template=template)]), service(space))
    await stage.serving(space, 1)
    name = await home(stage, space)
    (before,) = (await stage.pods(space)).values()
    said = await stage.hub.says("PodTemplateAllowed=False/LeftOut", "ModelDeployment", "model", space)
    assert f"{name}: annotation {mesh} (allowedAnnotations)" in said["message"]
    assert (before["metadata"]["annotations"].get("note"), mesh in before["metadata"]["annotations"]) == ("x", False)

    async def carried() -> bool:
        found = [one["metadata"]["annotations"] for one in (await stage.pods(space)).values()]
        return bool(found) and all(mesh in one for one in found)

    try:
        for each in stage.workers:  # it may move meanwhile
            await isolate(stage, each, usual(pods={"allowedAnnotations": [OF_THE_SIMULATOR, mesh]}))
        await until("the pods to carry it", carried)
        await stage.hub.says("PodTemplateAllowed=True/Allowed", "ModelDeployment", "model", space)
        await stage.answered(space)
    finally:
        for each in stage.workers:
            await isolate(stage, each, usual())
