"""What is in use cannot be deleted by accident: the chart's policies, on a real API server."""

from __future__ import annotations

from typing import Any

import pytest

from localfleet.kubeclient import ApiError
from modelplane_operator.api import labels
from tests.api.contract import rich
from tests.support.api import Api, named
from tests.support.chart import rendered
from tests.support.policies import hold_to

Manifest = dict[str, Any]

pytestmark = [pytest.mark.fleet, pytest.mark.server]

IN_USE = {"InferenceCluster": "replicas", "InferenceClass": "clusters"}
SYSTEM = "modelplane-system"
FORCED = {"modelplane.ai/force-delete": "true"}


async def refusal(api: Api, manifest: Manifest) -> str:
    """Why a delete is refused; empty when it is not, and then the object is gone."""
    try:
        await api.delete(manifest)
    except ApiError as error:
        return str(error)
    return ""


def using(kind: str, name: str, count: int | None, **metadata: Any) -> Manifest:
    """An object that so many use, by its status."""
    status = {} if count is None else {"status": {IN_USE[kind]: count}}
    manifest = {part: value for part, value in rich()[kind].items() if part != "status"}
    return named(manifest | status, name, **metadata)


@pytest.fixture(scope="module")
async def protected(api: Api) -> Api:
    """The API server once it holds to the policies."""
    policies = [one for one in await rendered() if one["kind"].startswith("ValidatingAdmissionPolicy")]
    await hold_to(api, policies)
    return api


@pytest.mark.parametrize("kind", IN_USE)
async def test_what_is_in_use_is_not_deleted(protected: Api, kind: str) -> None:
    made = await protected.create(using(kind, "used", 3))

    said = await refusal(protected, made)

    assert said.split("denied request: ")[-1].startswith("3 ")
    assert "or annotate it with modelplane.ai/force-delete=true" in said
    assert (await protected.get(made))["metadata"].get("deletionTimestamp") is None


async def test_whoever_uses_a_class_is_named(protected: Api) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Available", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    used = using("InferenceClass", "named", 2)
    used["status"]["conditions"] = [{**ready, "message": "Clusters have pools of the class: east, west"}]
    made = await protected.create(used)

    said = await refusal(protected, made)

    assert "Clusters have pools of the class: east, west: change those first, or annotate it with" in said


@pytest.mark.parametrize("kind", IN_USE)
@pytest.mark.parametrize(("count", "metadata"), [(0, {}), (None, {}), (3, {"annotations": FORCED})])
async def test_what_nobody_uses_goes_and_the_rest_by_force(
    protected: Api, kind: str, count: int | None, metadata: Manifest
) -> None:
    made = await protected.create(using(kind, "free", count, **metadata))

    assert await refusal(protected, made) == ""


@pytest.mark.parametrize("kind", IN_USE)
async def test_what_was_restored_from_a_backup_stays_until_the_operator_has_looked(protected: Api, kind: str) -> None:
    """Backups keep finalizers and no status."""
    made = await protected.create(using(kind, "restored", None, finalizers=[labels.FINALIZER]))

    assert "the operator has not looked yet who uses it" in await refusal(protected, made)
    live = await protected.get(made)
    live = await protected.replace({**live, "status": {IN_USE[kind]: 0}}, "status")
    assert await refusal(protected, live) == ""
    live = await protected.get(live)
    await protected.replace({**live, "metadata": {**live["metadata"], "finalizers": []}})


@pytest.mark.parametrize("kind", IN_USE)
async def test_what_is_already_going_may_be_deleted_again(protected: Api, kind: str) -> None:
    made = await protected.create(using(kind, "going", 0, finalizers=["example.com/held"]))
    await protected.delete(made)
    live = await protected.get(made)
    live = await protected.replace({**live, "status": {IN_USE[kind]: 2}}, "status")

    assert await refusal(protected, live) == ""
    await protected.replace({**live, "metadata": {**live["metadata"], "finalizers": []}})


async def test_the_clouds_object_of_an_inferencecluster_is_changed_by_the_operator_alone(protected: Api) -> None:
    """A deletion could not be taken back, and the cluster never be changed again."""
    await protected.kubectl("create", "namespace", SYSTEM)
    owner = await protected.create(using("InferenceCluster", "oregon", 0))
    reference = {key: owner[key] for key in ("apiVersion", "kind")} | {"name": "oregon"}
    reference["uid"] = owner["metadata"]["uid"]
    cluster = rich()["EKSCluster"]
    alone = await protected.create(named(cluster, "alone", namespace=SYSTEM))
    owned = await protected.create(named(cluster, "oregon", namespace=SYSTEM, ownerReferences=[reference]))
    edited = {**owned, "spec": {**owned["spec"], "kubernetesVersion": "1.37"}}

    assert "InferenceCluster oregon has it: delete that instead" in await refusal(protected, owned)
    with pytest.raises(ApiError, match="InferenceCluster oregon has it: change that instead"):
        await protected.replace(edited)
    assert await refusal(protected, alone) == ""
    for owners in ([], [{**reference, "uid": "of-nobody"}], [reference, {**reference, "name": "b", "uid": "of-b"}]):
        with pytest.raises(ApiError, match="InferenceCluster oregon has it: change that instead"):
            await protected.replace({**owned, "metadata": {**owned["metadata"], "ownerReferences": owners}})
    owned["metadata"]["annotations"] = {**owned["metadata"].get("annotations", {}), **FORCED}
    assert await refusal(protected, await protected.replace(owned)) == "", "what it is told by is not its spec"
