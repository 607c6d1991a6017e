"""F13: what the API servers let through, however strange, ends neither the operator nor anybody else's progress.

Objects of every kind that users write are made up from the schemas. An API server may refuse them; what it stores must
be looked at and answered in the object's own conditions, by an operator that has no defect to report; then all of it
can be deleted. FAULTS_SEED makes the same objects again.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from localfleet.kubeclient import ApiError
from tests.faults.stage import SEED, FaultyStage
from tests.integration.harness import Cluster, condition, path_of, until
from tests.integration.kinds import GROUP, deployment, namespace, secret
from tests.integration.watcher import Watcher
from tests.support.manifests import ROOT, Manifest, load
from tests.support.schemas import objects

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

SPACE = "input"
BATCH = 12
ROUNDS = 6
KINDS = ("InferenceClass", "InferenceCluster", "ModelDeployment", "ModelReplica", "ModelEndpoint", "ModelService")
CLUSTERED = ("InferenceClass", "InferenceCluster")
NUMBERS = itertools.count(1)
REFUSALS = range(400, 500)


def _schema(kind: str) -> Manifest:
    for file in (ROOT / "crds").glob("*.yaml"):
        for each in load(file):
            if each["spec"]["names"]["kind"] == kind:
                return each["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    raise LookupError(kind)


def strange() -> st.SearchStrategy[tuple[str, Any]]:
    return st.one_of([st.tuples(st.just(kind), objects(_schema(kind))) for kind in KINDS])


@seed(SEED)
@settings(
    max_examples=ROUNDS,
    deadline=None,
    phases=[Phase.generate],  # what was found is in the server: there is nothing to shrink
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(specs=st.lists(st.deferred(strange), min_size=BATCH, max_size=BATCH))
async def test_no_input_ends_the_operator_or_holds_up_others(
    stage: FaultyStage, watcher: Watcher, specs: list[tuple[str, Any]]
) -> None:
    await stage.reset()
    await stage.hub.apply(namespace(SPACE), secret(SPACE, "model", key="nonsense"))
    begins = stage.operator.log.stat().st_size
    stored = [made for kind, spec in specs if (made := await put(stage.hub, kind, spec))]
    try:
        await stage.hub.apply(deployment(SPACE, "plain"))
        for kind, name in [*stored, ("ModelDeployment", "plain")]:
            where = "" if kind in CLUSTERED else SPACE
            told = [one for one in specs if one[0] == kind]
            try:
                await stage.hub.wait(kind, name, where, holds=looked_at, what="to say that it was looked at")
            except AssertionError as error:
                raise AssertionError(f"{error}\n{json.dumps(told)}") from None
        log = stage.operator.log.read_bytes()[begins:].decode()
        defects = [line for line in log.splitlines() if "reconcile failed" in line or "internal error" in line]
        assert not defects, f"{defects[0]}\n{json.dumps(specs)}"
        assert stage.operator.is_up, json.dumps(specs)
        problems = await watcher.check()
        assert not problems, "\n".join([*problems, json.dumps(specs)])
    finally:
        await away(stage, [*stored, ("ModelDeployment", "plain")])


async def put(hub: Cluster, kind: str, spec: Any) -> tuple[str, str] | None:
    """Store an object; None when the API server refuses it, as it may."""
    name = f"strange-{next(NUMBERS)}"
    metadata = {"name": name, **({} if kind in CLUSTERED else {"namespace": SPACE})}
    try:
        manifest = {"apiVersion": GROUP, "kind": kind, "metadata": metadata, "spec": spec}
        await hub.client.request("POST", path_of(kind, "", metadata.get("namespace", "")), manifest)
    except ApiError as error:
        assert error.status in REFUSALS, f"{kind}: {error}: {json.dumps(spec)}"
        return None
    return kind, name


def looked_at(manifest: Manifest) -> bool:
    generation = manifest["metadata"]["generation"]
    return condition(manifest, "Synced").get("observedGeneration") == generation


async def away(stage: FaultyStage, stored: list[tuple[str, str]]) -> None:
    """Delete them, and all that was made for them, and wait until they are gone."""
    for kind, name in stored:
        await stage.hub.delete(kind, name, "" if kind in CLUSTERED else SPACE)
    for kind, name in stored:
        await stage.hub.gone(kind, name, "" if kind in CLUSTERED else SPACE)

    async def none() -> bool:
        return not await stage.hub.list("ModelReplica", SPACE)

    await until("replicas of strange deployments to be gone", none)
