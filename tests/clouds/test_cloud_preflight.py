"""What speaks against a cluster before anything of it is made: it is told, and nothing is paid for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubeloop.plan import Plan
from modelplane_operator.api import labels
from modelplane_operator.api.clusters.eks import EKSCluster, EKSClusterStatus, EKSFacts, Machine
from modelplane_operator.api.clusters.gke import GKECluster, GKEClusterStatus, GKEFacts
from modelplane_operator.api.clusters.provisioning import CloudResource
from modelplane_operator.clouds.eks import plan as eks_cluster
from modelplane_operator.clouds.eks.render import quotas
from modelplane_operator.clouds.gke import plan as gke_cluster
from modelplane_operator.clouds.gke.render import quotas as metrics
from modelplane_operator.clouds.resources import Inventory, Offer, Quota, Reservation
from modelplane_operator.clouds.steps import CreateResource
from tests.support.builders import EPOCH

pytestmark = pytest.mark.usefixtures("well_worded")

ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
ARN = "arn:aws:iam::123456789012:role/modelplane"
BLOCK = "cr-0123456789abcdef0"
H100: dict[str, Any] = {
    "name": "h100",
    "role": "GPU",
    "instanceType": "p5.48xlarge",
    "nodeCount": 2,
    "maxNodeCount": 4,
    "gpu": {"acceleratorType": "nvidia-h100"},
    "zones": ["us-west-2a"],
}
A100: dict[str, Any] = {
    "name": "a100",
    "role": "GPU",
    "machineType": "a2-highgpu-8g",
    "nodeCount": 2,
    "maxNodeCount": 4,
    "gpu": {"acceleratorType": "nvidia-tesla-a100", "acceleratorCount": 8},
    "zones": ["us-central1-a"],
}
GENEROUS = Offer(
    frozenset({"1.35", "1.36"}),
    {code: Quota(f"Q ({code})", 10_000) for code in quotas.SERVICES},
    {"p5.48xlarge": 192, "m6i.xlarge": 4},
    reservations={BLOCK: Reservation("p5.48xlarge", "us-west-2a", 4, "active")},
)


def _metadata(**annotations: str) -> dict[str, Any]:
    return {
        "name": "berlin",
        "namespace": "modelplane-system",
        "uid": "6c9f0ce4-0d4e-4f3c-8a57-6f5ad5a9f0aa",
        "finalizers": [labels.FINALIZER],
        "annotations": annotations,
    }


def _eks(offer: Offer | None, *records: CloudResource, version: str = "1.36", **pool: Any) -> Plan:
    machine = Machine(instance_type="p5.48xlarge", efa=32, zones=ZONES)
    status = EKSClusterStatus(facts=EKSFacts(zones=ZONES, principal=ARN, machines=(machine,)), resources=records)
    spec = {"region": "us-west-2", "kubernetesVersion": version, "nodePools": [{**H100, **pool}]}
    kind = {"apiVersion": EKSCluster.definition.api_version, "kind": "EKSCluster"}
    cluster = EKSCluster.parse({**kind, "metadata": _metadata(), "spec": spec})
    cluster = cluster.model_copy(update={"status": status})
    seen = eks_cluster.Observed(cluster, inventory=Inventory((), EPOCH), offer=offer, process="p", now=EPOCH)
    return eks_cluster.plan(seen)


def _gke(offer: Offer | None) -> Plan:
    status = GKEClusterStatus(facts=GKEFacts(project="lab-1234"))
    spec = {"region": "us-central1", "nodePools": [A100]}
    kind = {"apiVersion": GKECluster.definition.api_version, "kind": "GKECluster"}
    cluster = GKECluster.parse({**kind, "metadata": _metadata(), "spec": spec}).model_copy(update={"status": status})
    return gke_cluster.plan(
        gke_cluster.Observed(cluster, inventory=Inventory((), EPOCH), offer=offer, process="p", now=EPOCH)
    )


def _told(decided: Plan, kind: str) -> tuple[str, str, str]:
    assert decided.status is not None
    found = next(one for one in decided.status.conditions if one.type == kind)
    return found.status, found.reason, found.message or ""


def _made(decided: Plan) -> set[str]:
    return {one.desired.key for one in decided.steps if isinstance(one, CreateResource)}


def _left(code: str, limit: float, used: float = 0.0) -> Offer:
    return replace(GENEROUS, quotas={**GENEROUS.quotas, code: Quota(f"Q ({code})", limit, used)})


def test_what_nothing_speaks_against_is_made() -> None:
    decided = _eks(GENEROUS)

    assert "role-cluster" in _made(decided)
    assert _told(decided, "QuotaAvailable") == ("True", "Sufficient", "")
    assert _told(decided, "Stalled")[0] == "False"


@pytest.mark.parametrize(
    ("offer", "pool", "told", "words"),
    [
        (
            _left(quotas.PARALLEL, 576, 200),
            {},
            "QuotaAvailable",
            "376 of 576 are left of quota Q (L-417A185B), and 384",
        ),
        (_left(quotas.VPCS, 5, 5), {}, "QuotaAvailable", "0 of 5 are left of quota Q (L-F678F1CE), and 1 are needed"),
        (
            _left(quotas.STANDARD, 0),
            {},
            "QuotaAvailable",
            "and 4 are needed: ask for more in Service Quotas of us-west-2",
        ),
        (
            replace(GENEROUS, versions=frozenset({"1.9", "1.35"})),
            {},
            "Stalled",
            "1.36 is not offered: write one of 1.9, 1.35",
        ),
        (
            replace(GENEROUS, reservations={BLOCK: None}),
            {"capacityBlock": {"capacityReservationId": BLOCK}},
            "CapacityAvailable",
            f"capacity reservation {BLOCK} does not exist in this account and region",
        ),
        *(
            (
                replace(GENEROUS, reservations={BLOCK: Reservation(machine, zone, count, state)}),
                {"capacityBlock": {"capacityReservationId": BLOCK}},
                "CapacityAvailable",
                words,
            )
            for machine, zone, count, state, words in (
                ("p5.48xlarge", "us-west-2a", 4, "expired", "is expired: name another one"),
                (
                    "p4d.24xlarge",
                    "us-west-2a",
                    4,
                    "active",
                    "is for p4d.24xlarge, but the pool has p5.48xlarge: name another one",
                ),
                (
                    "p5.48xlarge",
                    "us-west-2b",
                    4,
                    "active",
                    "is in us-west-2b, but the pool is in us-west-2a: name another one",
                ),
                (
                    "p5.48xlarge",
                    "us-west-2a",
                    1,
                    "scheduled",
                    "has 1 of the 2 machines that the pool starts with: name a larger one",
                ),
            )
        ),
    ],
)
def test_nothing_is_made_of_what_could_not_become_a_cluster(
    offer: Offer, pool: dict[str, Any], told: str, words: str
) -> None:
    decided = _eks(offer, **pool)

    assert _made(decided) == set()
    assert words in _told(decided, told)[2]
    assert _told(decided, told)[0] == ("True" if told == "Stalled" else "False")
    assert words in _told(decided, "Stalled")[2]
    status, reason, ready = _told(decided, "Ready")
    assert (status, reason) == ("False", _told(decided, told)[1])
    assert ready.startswith("Nothing is created: ") and words in ready
    assert {one.attempt for one in decided.status.resources} == {None}  # type: ignore[union-attr]
    assert decided.requeue_after == 300


def test_a_quota_without_a_limit_is_none() -> None:
    assert _told(_eks(_left(quotas.PARALLEL, -1)), "QuotaAvailable")[:2] == ("True", "Sufficient")


def test_a_capacity_block_takes_nothing_of_a_quota() -> None:
    decided = _eks(_left(quotas.PARALLEL, 0), capacityBlock={"capacityReservationId": BLOCK})

    assert _told(decided, "QuotaAvailable")[:2] == ("True", "Sufficient")
    assert _made(decided)


def test_a_pool_that_cannot_grow_as_far_as_it_may_is_made_and_told() -> None:
    decided = _eks(_left(quotas.PARALLEL, 576))

    assert _made(decided)
    status, reason, words = _told(decided, "QuotaAvailable")
    assert (status, reason) == ("True", "Limited")
    assert "576 of 576 are left of quota Q (L-417A185B), and pools may grow to 768" in words


def test_what_nobody_may_ask_is_told_and_holds_up_nothing() -> None:
    decided = _eks(Offer(unasked=("service-quotas get_service_quota: AccessDeniedException: no",)))

    assert _made(decided)
    status, reason, words = _told(decided, "QuotaAvailable")
    assert (status, reason) == ("Unknown", "NotAsked")
    assert "service-quotas get_service_quota: AccessDeniedException: no" in words


def test_once_something_is_made_all_goes_on_and_what_is_short_is_told() -> None:
    begun = CloudResource(key="vpc", kind="ec2.VPC", id="vpc-1", state="Creating", since=EPOCH)

    decided = _eks(_left(quotas.PARALLEL, 0), begun)

    assert _made(decided)
    assert _told(decided, "QuotaAvailable")[:2] == ("False", "Insufficient")
    assert _told(decided, "Stalled")[0] == "False"


def test_a_word_of_the_admin_has_it_made_all_the_same() -> None:
    spec = {"region": "us-west-2", "nodePools": [H100]}
    kind = {"apiVersion": EKSCluster.definition.api_version, "kind": "EKSCluster"}
    cluster = EKSCluster.parse({**kind, "metadata": _metadata(), "spec": spec})
    assert {pool.name for pool in eks_cluster.unbegun(cluster)} == {"system", "h100"}

    skips = EKSCluster.parse({**kind, "metadata": _metadata(**{labels.SKIP_PREFLIGHT: "true"}), "spec": spec})
    assert eks_cluster.unbegun(skips) == ()


def test_on_google_cloud_services_come_before_anything_can_be_asked() -> None:
    decided = _gke(Offer(later="the Compute Engine API is disabled"))

    assert _made(decided) == {"service-compute", "service-container", "service-file"}
    assert "the Compute Engine API is disabled" in _told(decided, "Ready")[2]
    assert "QuotaAvailable" not in {one.type for one in decided.status.conditions}  # type: ignore[union-attr]
    assert _told(decided, "Stalled")[0] == "False"
    assert (decided.requeue_after or 0) < 10


@pytest.mark.parametrize(
    ("offer", "told", "words"),
    [
        (Offer(quotas={metrics.ALL_GPUS: Quota("GPUS_ALL_REGIONS", 0)}), "QuotaAvailable", "and 16 are needed"),
        (Offer(quotas={"NVIDIA_A100_GPUS": Quota("NVIDIA_A100_GPUS", 16, 8)}), "QuotaAvailable", "8 of 16 are left"),
        (Offer(quotas={metrics.ADDRESSES: Quota("IN_USE_ADDRESSES", 4)}), "QuotaAvailable", "and 5 are needed"),
        (Offer(quotas={metrics.CORES: Quota("CPUS", 8)}, cores={"e2-standard-4": 4}), "QuotaAvailable", "and 12 are"),
        (Offer(quotas={metrics.DISKS: Quota("SSD_TOTAL_GB", 250)}), "QuotaAvailable", "and 500 are needed"),
        (
            Offer(absent=("there is no a2-highgpu-8g in us-central1-a",)),
            "CapacityAvailable",
            "no a2-highgpu-8g in us-central1-a",
        ),
        (Offer(frozenset({"1.36"})), "Stalled", "Kubernetes 1.35 is not offered: write one of 1.36"),
    ],
)
def test_nothing_is_paid_for_on_google_cloud_of_what_could_not_become_a_cluster(
    offer: Offer, told: str, words: str
) -> None:
    decided = _gke(offer)

    assert all(one.startswith("service-") for one in _made(decided))
    assert words in _told(decided, told)[2]
    assert words in _told(decided, "Stalled")[2]
