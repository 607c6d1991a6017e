"""What is around a model's namespace on its cluster, and what its pods may not have there.

The API server enforces Pod Security and the LimitRange here. Nobody enforces the NetworkPolicy: that it says what it
should is for tests/rendering to tell.
"""

from __future__ import annotations

from typing import Any

import pytest

from localfleet.kubeclient import ApiError
from tests.integration.harness import Stage, remote, until
from tests.integration.kinds import OF_THE_SIMULATOR, deployment, engine, pod, service
from tests.support.manifests import Manifest

pytestmark = pytest.mark.fleet

FENCES = ("NetworkPolicy", "LimitRange")


async def home(stage: Stage, space: str) -> str:
    """The cluster of a deployment's only replica."""
    (replica,) = (await stage.replicas(space)).values()
    return replica["spec"]["clusterName"]


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
    assert container["resources"]["requests"] == {"cpu": "100m", "memory": "256Mi"}
    assert "limits" not in container["resources"], "an engine is killed by none of ours"
    assert memory == {"medium": "Memory", "sizeLimit": "32Gi"}
    (policy,) = await worker.list("NetworkPolicy", remote(space))
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
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
        return all([await worker.list(kind, remote(space)) for kind in FENCES])

    async def gone() -> bool:
        return not any([await worker.list(kind, remote(space)) for kind in FENCES])

    for kind in FENCES:
        (fence,) = await worker.list(kind, remote(space))
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
    assert f"cluster {name}: annotation {mesh} (allowedAnnotations)" in said["message"]
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
