"""A cluster on EKS, as its status tells of it: facts first, then resources, and in the end nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kubeloop.errors import Exhausted, Forbidden, KubeconfigError, Unreachable
from kubeloop.plan import KEEP, LET_GO, Plan, strands
from modelplane_operator.api import labels
from modelplane_operator.api.clusters.eks import EKSCluster, EKSClusterStatus, EKSFacts, Machine
from modelplane_operator.clouds.decide import LAG, find_unsettled_kinds
from modelplane_operator.clouds.eks.plan import AwsFacts, Observed, plan
from modelplane_operator.clouds.eks.render import kinds, resources
from modelplane_operator.clouds.eks.render.plan import Facts
from modelplane_operator.clouds.resources import ExistingResource, Inventory, Outcome
from modelplane_operator.clouds.steps import CreateResource, DeleteResource, UpdateResource
from tests.support.builders import EPOCH

pytestmark = pytest.mark.usefixtures("well_worded")

UID = "6c9f0ce4-0d4e-4f3c-8a57-6f5ad5a9f0aa"
ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
ARN = "arn:aws:iam::123456789012:role/modelplane"
MACHINE = Machine(instance_type="g6.12xlarge", efa=0, zones=ZONES)
FACTS = EKSFacts(zones=ZONES, principal=ARN, machines=(MACHINE,))
TOLD = AwsFacts(ZONES, ARN, {"g6.12xlarge": 0}, {"g6.12xlarge": ZONES})
POOL: dict[str, Any] = {
    "name": "l4",
    "role": "GPU",
    "instanceType": "g6.12xlarge",
    "gpu": {"acceleratorType": "nvidia-l4"},
    "zones": ["us-west-2a"],
}


def _cluster(status: EKSClusterStatus | None = None, *, terminating: bool = False, **pool: Any) -> EKSCluster:
    metadata: dict[str, Any] = {"name": "berlin", "namespace": "modelplane-system", "uid": UID}
    metadata["finalizers"] = [labels.FINALIZER]
    if terminating:
        metadata["deletionTimestamp"] = EPOCH.isoformat()
    cluster = EKSCluster.parse(
        {
            "apiVersion": EKSCluster.definition.api_version,
            "kind": "EKSCluster",
            "metadata": metadata,
            "spec": {"region": "us-west-2", "nodePools": [{**POOL, **pool}]},
        }
    )
    return cluster.model_copy(update={"status": status})


def _seen(cluster: EKSCluster, **changes: Any) -> Observed:
    usual = {
        "facts": None,
        "inventory": Inventory((), EPOCH),
        "error": None,
        "journal": {},
        "process": "p",
        "now": EPOCH,
    }
    return Observed(cluster, **{**usual, **changes})


def _all_there(cluster: EKSCluster) -> Inventory:
    """Each resource as it is wanted."""
    found: list[ExistingResource] = []
    for one in resources(cluster, Facts(ZONES, ARN, {})):
        live = {name: one.parameters[name] for name in one.updatable | one.fixed}
        outputs = {"arn": "arn", "securityGroup": "sg-1", "endpoint": "https://eks", "authority": "Y2E="}
        found.append(ExistingResource(one.key, one.kind, f"id-{one.key}", "Ready", UID, outputs, live))
    outputs = {found_one.key: {"id": found_one.id, **found_one.outputs} for found_one in found}
    said = {one.key: one.resolve(outputs) for one in resources(cluster, Facts(ZONES, ARN, {}))}
    alike = [
        replace(one, live={name: known.parameters[name] for name in known.updatable | known.fixed})
        for one in found
        if (known := said[one.key]) is not None
    ]
    return Inventory(tuple(alike), EPOCH)


def _conditions(decided: Plan) -> dict[str, tuple[str, str]]:
    assert decided.status is not None
    return {one.type: (one.status, one.reason) for one in decided.status.conditions}


def _message(decided: Plan, kind: str) -> str:
    assert decided.status is not None
    return next(one.message or "" for one in decided.status.conditions if one.type == kind)


def test_what_the_cloud_says_of_the_account_is_kept_before_anything_is_made() -> None:
    decided = plan(_seen(_cluster(), facts=TOLD, inventory=None))

    assert decided.steps == ()
    assert isinstance(decided.status, EKSClusterStatus)
    assert decided.status.facts == FACTS


def test_facts_that_are_kept_outlive_what_the_cloud_says_later() -> None:
    known = EKSClusterStatus(facts=FACTS)

    decided = plan(_seen(_cluster(known), facts=AwsFacts(("us-west-2d", "us-west-2e"), "arn:another", {})))

    assert isinstance(decided.status, EKSClusterStatus)
    assert decided.status.facts == FACTS


def test_nothing_is_made_before_our_finalizer_is_there_and_no_call_holds_up_another() -> None:
    decided = plan(_seen(_cluster(EKSClusterStatus(facts=FACTS))))

    first, rows, _ = strands(decided.steps)
    assert first == ([KEEP],)
    assert len(rows) == 1
    assert all(isinstance(step, CreateResource) and step.only_begins for step in rows[0])
    assert {step.desired.key for step in rows[0] if isinstance(step, CreateResource)} >= {"role-cluster", "role-node"}
    announced = {one.key for one in decided.status.resources if one.attempt}  # type: ignore[union-attr]
    assert announced == {"vpc", "internet-gateway", "nat-eip"}


def test_a_cluster_that_is_as_it_is_wanted_is_ready_and_says_where_it_is() -> None:
    cluster = _cluster(EKSClusterStatus(facts=FACTS))

    decided = plan(_seen(cluster, inventory=_all_there(cluster)))

    assert decided.steps == ()
    assert _conditions(decided) == {
        "CredentialsValid": ("True", "Accepted"),
        "QuotaAvailable": ("True", "Sufficient"),
        "CapacityAvailable": ("True", "Sufficient"),
        "NetworkReady": ("True", "Available"),
        "ControlPlaneReady": ("True", "Available"),
        "NodePoolsReady": ("True", "Available"),
        "Stalled": ("False", "Progressing"),
        "Ready": ("True", "Available"),
    }
    assert isinstance(decided.status, EKSClusterStatus)
    assert decided.status.endpoint is not None
    assert decided.status.endpoint.server == "https://eks"
    assert decided.requeue_after == 300


def test_a_pool_without_capacity_is_told_in_the_clouds_words_and_the_rest_goes_on() -> None:
    cluster = _cluster(EKSClusterStatus(facts=FACTS))
    all_there = _all_there(cluster)
    without = tuple(one for one in all_there.existing if one.key not in ("nodegroup-l4", "addon-coredns"))
    seen = _seen(cluster, inventory=Inventory(without, EPOCH))
    asked = [step for step in plan(seen).steps if isinstance(step, CreateResource)]
    refused = next(step for step in asked if step.desired.key == "nodegroup-l4")
    error = Exhausted("eks create_nodegroup: you have requested more vCPU capacity than your limit (VcpuLimitExceeded)")

    decided = plan(replace(seen, journal={("create", "nodegroup-l4"): Outcome(refused.subject, EPOCH, error, 1)}))

    assert [str(step) for step in decided.steps] == ["create eks.Addon addon-coredns on EKS in us-west-2"]
    assert _conditions(decided)["CapacityAvailable"] == ("False", "Exhausted")
    assert "nodegroup-l4: eks create_nodegroup: you have requested more vCPU" in _message(decided, "CapacityAvailable")
    assert _conditions(decided)["Ready"] == ("False", "Exhausted")
    assert _message(decided, "Ready") == _message(decided, "CapacityAvailable")


def test_what_takes_three_times_as_long_as_usual_is_stalled() -> None:
    cluster = _cluster(EKSClusterStatus(facts=FACTS))
    making = tuple(
        replace(one, state="Creating") if one.kind == kinds.CLUSTER else one for one in _all_there(cluster).existing
    )
    first = plan(_seen(cluster, inventory=Inventory(making, EPOCH)))
    assert _conditions(first)["Stalled"] == ("False", "Progressing")
    later = EPOCH + timedelta(minutes=46)

    decided = plan(
        _seen(cluster.model_copy(update={"status": first.status}), inventory=Inventory(making, later), now=later)
    )

    assert _conditions(decided)["Stalled"] == ("True", "Stalled")
    assert "cluster is Creating" in _message(decided, "Stalled")


def test_no_way_to_the_cloud_changes_nothing_and_says_what_is_missing() -> None:
    known = plan(_seen(_cluster(EKSClusterStatus(facts=FACTS)))).status
    assert isinstance(known, EKSClusterStatus)
    for error, missing, reason in (
        (
            KubeconfigError("the operator was installed without the SDK of AWS: install modelplane-operator[eks]"),
            False,
            "NoSDK",
        ),
        (Forbidden("no"), False, "NotAccepted"),
        (Forbidden("no Secret"), True, "NotFound"),
    ):
        decided = plan(_seen(_cluster(known), inventory=None, error=error, missing=missing))

        assert decided.steps == ()
        assert isinstance(decided.status, EKSClusterStatus)
        assert decided.status.resources == known.resources
        assert _conditions(decided)["CredentialsValid"] == ("False", reason)
        assert _conditions(decided)["Ready"] == ("False", reason)


@pytest.mark.parametrize("terminating", [False, True], ids=["it runs", "it is being deleted"])
def test_credentials_of_another_account_change_nothing_and_are_told(*, terminating: bool) -> None:
    known = plan(_seen(_cluster(EKSClusterStatus(facts=FACTS)))).status
    assert isinstance(known, EKSClusterStatus)
    strangers = _seen(
        _cluster(known, terminating=terminating),
        inventory=Inventory((), EPOCH + 2 * LAG),
        now=EPOCH + 2 * LAG,
        principal="arn:aws:iam::210987654321:role/modelplane",
    )

    decided = plan(strangers)

    assert decided.steps == ()
    assert isinstance(decided.status, EKSClusterStatus)
    assert (decided.status.facts, decided.status.resources) == (FACTS, known.resources)
    assert decided.status.gone_since is None
    assert _conditions(decided)["CredentialsValid"] == ("False", "AnotherAccount")
    told = "AWS account 210987654321, but the cluster is in account 123456789012: restore credentials of 123456789012"
    assert told in _message(decided, "Ready")


def test_another_user_of_the_same_account_goes_on() -> None:
    cluster = _cluster(EKSClusterStatus(facts=FACTS))
    user = "arn:aws:iam::123456789012:user/other"

    decided = plan(_seen(cluster, principal=user))

    assert isinstance(decided.status, EKSClusterStatus)
    assert decided.status.facts == FACTS.model_copy(update={"principal": user})


def test_a_spec_that_no_cluster_can_be_is_refused_and_what_is_there_stays() -> None:
    decided = plan(_seen(_cluster(EKSClusterStatus(facts=FACTS), zones=["us-west-2f"])))

    assert decided.steps == ()
    assert _conditions(decided)["Stalled"] == ("True", "Stalled")
    assert "us-west-2f" in _message(decided, "Stalled")


def test_a_spec_that_is_wrong_keeps_no_cluster_from_going() -> None:
    cluster = _cluster(EKSClusterStatus(facts=FACTS))
    there = _all_there(cluster)

    decided = plan(
        _seen(_cluster(EKSClusterStatus(facts=FACTS), terminating=True, zones=["us-west-2f"]), inventory=there)
    )

    terminating = [step.existing.kind for step in decided.steps if isinstance(step, DeleteResource)]
    assert len(terminating) == len(decided.steps)
    assert set(terminating) == {kinds.NODEGROUP}
    assert _conditions(decided)["Ready"] == ("False", "Deleting")


def test_the_finalizer_goes_when_nothing_was_seen_for_as_long_as_the_cloud_may_hide_it() -> None:
    first = plan(_seen(_cluster(EKSClusterStatus(facts=FACTS), terminating=True)))
    assert first.steps == ()
    assert isinstance(first.status, EKSClusterStatus)
    assert first.status.gone_since == EPOCH

    early, late = EPOCH + LAG / 2, EPOCH + LAG
    assert plan(_seen(_cluster(first.status, terminating=True), inventory=Inventory((), early), now=early)).steps == ()
    assert plan(_seen(_cluster(first.status, terminating=True), inventory=Inventory((), late), now=late)).steps == (
        LET_GO,
    )

    soon = replace(
        _seen(_cluster(first.status, terminating=True), inventory=Inventory((), early), now=early), lag=LAG / 2
    )
    assert plan(soon).steps == (LET_GO,), "a cloud that shows at once what is there"

    again = Inventory((ExistingResource("vpc", kinds.VPC, "vpc-1", "Ready", UID),), late)
    decided = plan(_seen(_cluster(first.status, terminating=True), inventory=again, now=late))
    assert isinstance(decided.steps[0], DeleteResource)
    assert isinstance(decided.status, EKSClusterStatus)
    assert decided.status.gone_since is None

    blind = Inventory((), late, {kinds.VPC: Unreachable("no answer")})
    assert plan(_seen(_cluster(first.status, terminating=True), inventory=blind, now=late)).steps == ()


def test_a_cluster_of_which_nothing_was_made_goes_at_once() -> None:
    cluster = _cluster(terminating=True)
    free = cluster.model_copy(update={"metadata": cluster.metadata.model_copy(update={"finalizers": ()})})

    assert plan(_seen(free)) == Plan()


def test_a_machine_that_a_zone_has_not_is_told_before_anything_is_made() -> None:
    told = AwsFacts(ZONES, ARN, {"g6.12xlarge": 0}, {"g6.12xlarge": ("us-west-2b",)})
    known = plan(_seen(_cluster(), facts=told, inventory=None)).status

    decided = plan(_seen(_cluster(known)))  # type: ignore[arg-type]

    assert decided.steps == ()
    assert "us-west-2a has no g6.12xlarge; it is in us-west-2b" in _message(decided, "Stalled")


def test_an_instance_type_that_there_is_not_is_told() -> None:
    decided = plan(_seen(_cluster(), facts=AwsFacts(ZONES, ARN, {}), inventory=None))

    assert decided.steps == ()
    assert "us-west-2 has no instance type g6.12xlarge" in _message(decided, "Stalled")


def test_a_fabric_that_a_machine_has_not_is_told() -> None:
    decided = plan(_seen(_cluster(EKSClusterStatus(facts=FACTS), fabric="EFA")))

    assert decided.steps == ()
    assert "g6.12xlarge takes no EFA" in _message(decided, "Stalled")


def test_of_machines_that_no_pool_has_any_more_nothing_is_kept() -> None:
    cluster = _cluster(EKSClusterStatus(facts=FACTS), instanceType="g7.48xlarge")
    told = AwsFacts(ZONES, ARN, {"g7.48xlarge": 1}, {"g7.48xlarge": ZONES})

    decided = plan(_seen(cluster, facts=told))

    assert isinstance(decided.status, EKSClusterStatus)
    assert decided.status.facts is not None
    assert [one.instance_type for one in decided.status.facts.machines] == ["g7.48xlarge"]


def test_another_principal_is_let_in_and_the_one_before_is_not_any_more() -> None:
    other = "arn:aws:iam::123456789012:role/other"
    before = _cluster(EKSClusterStatus(facts=FACTS))
    there = _all_there(before)

    kept = plan(_seen(before, inventory=there, principal=other))
    assert kept.steps == ()
    assert isinstance(kept.status, EKSClusterStatus)
    assert kept.status.facts == FACTS.model_copy(update={"principal": other})

    decided = plan(_seen(_cluster(kept.status), inventory=there, principal=other))
    made = [step.desired.parameters["principalArn"] for step in decided.steps if isinstance(step, CreateResource)]
    assert made == [other]
    first, then = (kinds.ACCESS_ENTRY, kinds.ACCESS_POLICY)
    gone = {step.existing.kind for step in decided.steps if isinstance(step, DeleteResource)}
    assert gone == {first, then}


def test_hundreds_of_things_that_were_left_behind_do_not_burst_the_status() -> None:
    left = tuple(ExistingResource(f"eni-{i}", kinds.INTERFACE, f"eni-{i}", "Ready", "", swept=True) for i in range(400))

    decided = plan(_seen(_cluster(EKSClusterStatus(facts=FACTS), terminating=True), inventory=Inventory(left, EPOCH)))

    assert len(decided.steps) == 400
    assert isinstance(decided.status, EKSClusterStatus)
    EKSClusterStatus.model_validate(decided.status.to_manifest())


def test_nodes_are_changed_by_what_is_there_now_and_not_by_what_was_there_minutes_ago() -> None:
    """In between the autoscaler may have made nodes, which the change would take away again."""
    cluster = _cluster(EKSClusterStatus(facts=FACTS), minNodeCount=1, maxNodeCount=9)
    before = _all_there(_cluster(EKSClusterStatus(facts=FACTS)))
    listed = replace(before, listed_at={kinds.NODEGROUP: EPOCH - timedelta(minutes=4)})

    first = plan(_seen(cluster, inventory=listed))
    assert first.steps == ()
    assert isinstance(first.status, EKSClusterStatus)
    assert kinds.NODEGROUP in find_unsettled_kinds(first.status.resources), "so that it is listed anew"
    assert first.requeue_after == 0.0

    second = plan(_seen(_cluster(first.status, minNodeCount=1, maxNodeCount=9), inventory=before))
    assert [type(step) for step in second.steps] == [UpdateResource]


def test_a_cluster_that_somebody_deleted_is_no_longer_to_be_reached() -> None:
    cluster = _cluster(EKSClusterStatus(facts=FACTS))
    there = _all_there(cluster)
    status = plan(_seen(cluster, inventory=there)).status
    without = Inventory(tuple(one for one in there.existing if not one.kind.startswith("eks.")), EPOCH)

    def later(status: Any, minutes: int) -> EKSClusterStatus:
        now = EPOCH + timedelta(minutes=minutes)
        told = plan(_seen(_cluster(status), inventory=replace(without, at=now), now=now)).status
        assert isinstance(told, EKSClusterStatus)
        return told

    first = later(status, 1)
    assert first.endpoint is not None, "the cloud may only be late"
    assert later(first, 5).endpoint is None


def test_of_a_cluster_that_cannot_be_listed_what_was_known_stays() -> None:
    cluster = _cluster(EKSClusterStatus(facts=FACTS))
    there = _all_there(cluster)
    status = plan(_seen(cluster, inventory=there)).status
    assert isinstance(status, EKSClusterStatus)
    unseen = {one: Unreachable("no answer") for one in kinds.KINDS if one.startswith("eks.")}
    found = tuple(one for one in there.existing if one.kind not in unseen)

    decided = plan(_seen(_cluster(status), inventory=Inventory(found, EPOCH, unseen)))

    assert isinstance(decided.status, EKSClusterStatus)
    assert decided.status.endpoint == status.endpoint
    assert decided.steps == ()


def test_a_cluster_is_not_reached_before_we_are_let_in() -> None:
    cluster = _cluster(EKSClusterStatus(facts=FACTS))
    there = _all_there(cluster)
    without = tuple(one for one in there.existing if one.kind != kinds.ACCESS_POLICY)

    decided = plan(_seen(cluster, inventory=Inventory(without, EPOCH)))

    assert isinstance(decided.status, EKSClusterStatus)
    assert decided.status.endpoint is None


def test_a_lower_bound_takes_no_nodes_from_under_models_and_follows_the_autoscaler() -> None:
    there = _all_there(_cluster(maxNodeCount=8))
    lower = _cluster(EKSClusterStatus(facts=FACTS), minNodeCount=1, maxNodeCount=2)

    def asked(*, most: int, nodes: int) -> list[int]:
        live = {"scaling": {"minSize": 1, "maxSize": most}, "desiredSize": nodes}
        found = [
            replace(one, live={**one.live, **live}) if one.key == "nodegroup-l4" else one for one in there.existing
        ]
        steps = plan(_seen(lower, inventory=Inventory(tuple(found), EPOCH))).steps
        return [step.desired.parameters["scaling"]["maxSize"] for step in steps if isinstance(step, UpdateResource)]

    assert asked(most=8, nodes=5) == [5]
    assert asked(most=5, nodes=5) == [], "a bound that holds is not asked for again"
    assert asked(most=5, nodes=1) == [2]
