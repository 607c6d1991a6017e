"""A cluster on GKE, as its status tells of it: its project is kept first, and it stays there."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.errors import Forbidden
from kubeloop.plan import LET_GO
from modelplane_operator.api import labels
from modelplane_operator.api.clusters.gke import GKECluster, GKEClusterStatus, GKEFacts
from modelplane_operator.clouds.decide import LAG
from modelplane_operator.clouds.gke.plan import Observed, account_of, plan
from modelplane_operator.clouds.gke.render import Facts, kinds, resources
from modelplane_operator.clouds.resources import Account, ExistingResource, Inventory
from modelplane_operator.clouds.steps import CreateResource, DeleteResource
from tests.support.builders import EPOCH

pytestmark = pytest.mark.usefixtures("well_worded")

UID = "6c9f0ce4-0d4e-4f3c-8a57-6f5ad5a9f0aa"
KEPT = GKEClusterStatus(facts=GKEFacts(project="lab-1234"))
POOL: dict[str, Any] = {
    "name": "l4",
    "role": "GPU",
    "machineType": "g2-standard-12",
    "gpu": {"acceleratorType": "nvidia-l4"},
    "zones": ["us-central1-a"],
}


def _cluster(status: GKEClusterStatus | None = None, *, terminating: bool = False, **spec: Any) -> GKECluster:
    metadata: dict[str, Any] = {"name": "iowa", "namespace": "modelplane-system", "uid": UID}
    metadata["finalizers"] = [labels.FINALIZER]
    if terminating:
        metadata["deletionTimestamp"] = EPOCH.isoformat()
    cluster = GKECluster.parse(
        {
            "apiVersion": GKECluster.definition.api_version,
            "kind": "GKECluster",
            "metadata": metadata,
            "spec": {"region": "us-central1", "nodePools": [POOL], **spec},
        }
    )
    return cluster.model_copy(update={"status": status})


def _seen(cluster: GKECluster, *found: ExistingResource, **changes: Any) -> Observed:
    usual = {"inventory": Inventory(found, EPOCH), "process": "p", "now": EPOCH}
    return Observed(cluster, **{**usual, **changes})


def test_the_project_is_written_down_before_anything_is_made() -> None:
    asked = plan(_seen(_cluster(), inventory=None))
    assert (asked.steps, asked.status) == ((), None)

    kept = plan(_seen(_cluster(), inventory=None, project="lab-1234"))
    assert kept.steps == ()
    assert isinstance(kept.status, GKEClusterStatus)
    assert kept.status.facts == GKEFacts(project="lab-1234")

    begun = plan(_seen(_cluster(kept.status)))
    steps = [step for step in begun.steps if isinstance(step, CreateResource)]
    assert len(steps) == len(begun.steps)
    assert {step.desired.kind for step in steps} == {kinds.SERVICE}, "what all else needs"
    assert {step.account.project for step in steps} == {"lab-1234"}


@pytest.mark.parametrize("terminating", [False, True])
def test_credentials_of_another_project_look_for_it_nowhere_else(terminating: bool) -> None:  # noqa: FBT001
    """Nothing of it is there: it would be made once more, or be taken for gone."""
    cluster = _cluster(KEPT, terminating=terminating)
    assert account_of(cluster) == Account("GKE", "us-central1", "default", "lab-1234")

    words = "Google's compute GET global/networks: Required permission on project lab-1234"
    decided = plan(_seen(cluster, inventory=None, error=Forbidden(words), project="another-1"))

    assert decided.steps == ()
    assert isinstance(decided.status, GKEClusterStatus)
    assert decided.status.facts == KEPT.facts
    told = {one.type: one for one in decided.status.conditions}
    assert (told["CredentialsValid"].reason, told["Ready"].status) == ("NotAccepted", "False")
    assert words.partition(": ")[2] in (told["CredentialsValid"].message or "")


def test_a_list_that_is_refused_lets_nothing_go() -> None:
    late = EPOCH + 2 * LAG
    status = KEPT.model_copy(update={"gone_since": EPOCH})

    def decided(**unseen: Any) -> Any:
        return plan(_seen(_cluster(status, terminating=True), inventory=Inventory((), late, unseen), now=late)).steps

    assert decided() == (LET_GO,)
    assert decided(**{kinds.DISK: Forbidden("no permission")}) == ()


def test_what_is_gone_is_looked_for_again_when_all_of_it_must_have_been_seen() -> None:
    first = plan(_seen(_cluster(KEPT, terminating=True)))
    assert isinstance(first.status, GKEClusterStatus)
    assert (first.status.gone_since, first.requeue_after) == (EPOCH, LAG.total_seconds())

    later = plan(
        _seen(_cluster(first.status, terminating=True), now=EPOCH + LAG / 2, inventory=Inventory((), EPOCH + LAG / 2))
    )
    assert isinstance(later.status, GKEClusterStatus)
    assert (later.status.gone_since, later.requeue_after) == (EPOCH, LAG.total_seconds() / 2)


def test_a_pool_that_goes_takes_nothing_from_what_stays() -> None:
    cluster = _cluster(KEPT)
    there = [
        ExistingResource(one.key, one.kind, f"{one.key}-1", "Ready", UID, {"selfLink": "x"})
        for one in resources(cluster, Facts("lab-1234"))
    ]
    leaving = ExistingResource("nodepool-old", kinds.NODE_POOL, "old-1", "Deleting", UID)

    decided = plan(_seen(cluster, *there, leaving))

    assert isinstance(decided.status, GKEClusterStatus)
    told = {one.type: one.status for one in decided.status.conditions}
    assert (told["Ready"], told["NodePoolsReady"]) == ("True", "True")
    assert [one.state for one in decided.status.resources if one.key == leaving.key] == ["Deleting"]


def test_a_zone_of_another_region_is_told_before_anything_is_made() -> None:
    wrong = plan(_seen(_cluster(KEPT, region="europe-west4")))

    assert wrong.steps == ()
    assert isinstance(wrong.status, GKEClusterStatus)
    told = {one.type: one.message or "" for one in wrong.status.conditions}
    assert "us-central1-a is no zone of region europe-west4" in told["Stalled"]


def test_what_is_wrong_with_the_spec_keeps_nothing_from_going() -> None:
    network = ExistingResource("network", kinds.NETWORK, "iowa-0123", "Ready", UID)
    decided = plan(_seen(_cluster(KEPT, terminating=True, region="europe-west4"), network))

    assert [type(step) for step in decided.steps] == [DeleteResource]
