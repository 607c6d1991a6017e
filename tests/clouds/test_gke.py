"""A cluster on Google Cloud from first to last, by the real SDK: GKE over gRPC, all else over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from google.cloud import compute_v1

from kubeloop.errors import NotFound
from modelplane_operator.api.clusters.gke import GKECluster
from modelplane_operator.clouds.gke.permissions import PERMISSIONS
from modelplane_operator.clouds.gke.render import SERVICES, Facts, quotas, resources
from modelplane_operator.clouds.resources import DesiredResource, Endpoint, Quota
from tests.support.cloud_life import OWNER, Life
from tests.support.cloud_world import HOURS, PACE, ended, one_of_each
from tests.support.google.server import PROJECT, Fault
from tests.support.google.world import GoogleWorld
from tests.support.manifests import Manifest

pytestmark = pytest.mark.processes

L4: Manifest = {
    "name": "l4",
    "role": "GPU",
    "machineType": "g2-standard-12",
    "maxNodeCount": 4,
    "gpu": {"acceleratorType": "nvidia-l4", "acceleratorCount": 1},
    "zones": ["us-central1-a", "us-central1-b"],
}
A100: Manifest = {
    "name": "a100.40gb",
    "role": "GPU",
    "machineType": "a2-highgpu-8g",
    "nodeCount": 2,
    "minNodeCount": 2,
    "maxNodeCount": 2,
    "gpu": {"acceleratorType": "nvidia-tesla-a100", "acceleratorCount": 8},
    "zones": ["us-central1-a"],
}


NODES = "nodes@lab-1234.iam.gserviceaccount.com"


def _wanted(
    *pools: Manifest, version: str = "1.35", zones: tuple[str, ...] = (), account: str = ""
) -> tuple[DesiredResource, ...]:
    """`zones`: where there are nodes of the pool l4. `account`: which the nodes are."""
    named = {"serviceAccount": account} if account else {}
    cluster = GKECluster.parse(
        {
            "apiVersion": GKECluster.definition.api_version,
            "kind": "GKECluster",
            "metadata": {"name": OWNER.cluster, "namespace": "modelplane-system", "uid": OWNER.uid},
            "spec": {"region": "us-central1", "kubernetesVersion": version, "nodePools": [*pools], **named},
        }
    )
    return resources(cluster, Facts(PROJECT, zones={"nodepool-l4": zones}))


def _made(google: GoogleWorld, *pools: Manifest) -> Life[GoogleWorld]:
    life = google.live(_wanted(*(pools or (L4,))), pace=PACE)
    life.until_settled(HOURS)
    return life


def _pool(google: GoogleWorld, name: str) -> Mapping[str, Any]:
    return next(one for one in google.listed().existing if one.key == f"nodepool-{name}").live


ZONE, LINK = "zones/us-central1-a", f"https://www.googleapis.com/compute/v1/projects/{PROJECT}"


def _network(google: GoogleWorld) -> str:
    return google.server.state.networks[google.id_of("network")]["selfLink"]


def _left_behind(google: GoogleWorld) -> set[str]:
    """Have Kubernetes make one of each kind that it leaves behind; answers their paths."""
    network, cluster = _network(google), google.id_of("cluster")
    files = "locations/us-central1-a/instances/pvc-2"
    left: Mapping[str, Manifest] = {
        "global/firewalls/k8s-fw-a0123": {"name": "k8s-fw-a0123", "network": network},
        "global/firewalls/k8s2-0123-web": {"name": "k8s2-0123-web", "network": network},
        "regions/us-central1/backendServices/k8s2-0123-web": {"name": "k8s2-0123-web"},
        "regions/us-central1/forwardingRules/k8s2-tcp-0123-web": {
            "name": "k8s2-tcp-0123-web",
            "backendService": f"{LINK}/regions/us-central1/backendServices/k8s2-0123-web",
        },
        "regions/us-central1/forwardingRules/a0123": {"name": "a0123"},
        "regions/us-central1/targetPools/a0123": {"name": "a0123"},
        f"{ZONE}/networkEndpointGroups/k8s1-0123": {"name": "k8s1-0123", "network": network},
        f"{ZONE}/disks/pvc-1": {"name": "pvc-1", "labels": {"goog-k8s-cluster-name": cluster}},
        files: {
            "name": f"projects/{PROJECT}/{files}",
            "networks": [{"network": network.rpartition("/")[2]}],
            "labels": {"storage_gke_io_created-by": "filestore_csi_storage_gke_io"},
        },
    }
    google.server.state.others |= {path: {**one, "selfLink": f"{LINK}/{path}"} for path, one in left.items()}
    google.server.state.networks[google.id_of("network")]["peerings"] = [{"name": "filestore-peer-1"}]
    return {*left}


def test_a_cluster_is_made_and_goes_without_leaving_anything(google: GoogleWorld) -> None:
    life = _made(google, L4, A100)

    one_of_each(life)
    calls = google.server.changes
    life.turn()
    assert google.server.changes == calls, "at rest nothing is changed"
    ended(life)
    assert google.server.state.services, "what was enabled in a project stays"


@pytest.mark.parametrize(
    ("stride", "first"), [(11, 3), *(pytest.param(5, n, marks=pytest.mark.long) for n in range(5))]
)
def test_a_process_that_ends_all_the_time_makes_one_of_everything(google: GoogleWorld, stride: int, first: int) -> None:
    """Before calls, after them, and around reports."""
    life = google.live(_wanted(L4, A100), pace=PACE, kills=range(first, 100_000, stride))

    life.until_settled(HOURS)

    one_of_each(life)
    ended(life)


@pytest.mark.parametrize("fault", ["before", "after", "throttled"])
def test_every_call_can_fail(google: GoogleWorld, fault: Fault) -> None:
    google.server.faults = dict.fromkeys(range(1, 10_000, 2), fault)
    life = google.live(_wanted(L4, A100), pace=PACE)

    life.until_settled(HOURS)

    one_of_each(life)
    ended(life)


@pytest.mark.parametrize("kind", ["network", "subnetwork", "cluster", "nodepool"])
def test_what_was_accepted_and_failed_is_told_and_made_again(google: GoogleWorld, kind: str) -> None:
    words = "Quota 'NETWORKS' exceeded. Limit: 5.0 globally."
    google.server.state.fail_next = {kind: words}
    life, told = google.live(_wanted(L4), pace=PACE), set[str]()
    for _ in range(300):
        decision = life.turn()
        assert decision is not None
        told |= {one.message or "" for one in life.records if one.state == "Failed"}
        google.now += timedelta(seconds=max(PACE, decision.requeue_after))
        if all(one.state == "Ready" for one in life.records):
            break

    assert any(words in one for one in told)
    one_of_each(life)


def test_a_version_is_reached_one_by_one_and_nodes_follow(google: GoogleWorld) -> None:
    life = _made(google)
    life.wanted = _wanted(L4, version="1.37")

    life.until_settled(HOURS)

    asked = [name for name in google.server.calls if name.startswith("container Update")]
    assert asked[:2] == ["container UpdateMaster", "container UpdateMaster"]
    assert {_pool(google, name)["version"] for name in ("system", "l4")} == {"1.37"}


def test_a_pool_changes_its_bounds_and_has_another_zone(google: GoogleWorld) -> None:
    life = _made(google)
    asked = {**L4, "minNodeCount": 2, "maxNodeCount": 9, "zones": ["us-central1-a", "us-central1-f"]}
    life.wanted = _wanted(asked, zones=("us-central1-a", "us-central1-b"))

    life.until_settled(HOURS)

    pool = _pool(google, "l4")
    bounds = (pool["autoscaling"]["total_min_node_count"], pool["autoscaling"]["total_max_node_count"])
    kept = ["us-central1-a", "us-central1-f", "us-central1-b"]  # none is taken from under its nodes
    assert (bounds, pool["locations"]) == ((2, 9), kept)


def test_a_pool_that_is_removed_goes_alone(google: GoogleWorld) -> None:
    life = _made(google, L4, A100)
    life.wanted = _wanted(A100)

    life.until_settled(HOURS)

    one_of_each(life)
    assert "container DeleteCluster" not in google.server.calls


def test_a_machine_that_is_another_is_told_and_changes_nothing(google: GoogleWorld) -> None:
    life = _made(google)
    calls = google.server.changes
    life.wanted = _wanted({**L4, "machineType": "g2-standard-48"})

    decision = life.turn()

    assert decision is not None and decision.steps == ()
    record = next(one for one in life.records if one.key == "nodepool-l4")
    assert record.state == "Ready"
    assert record.message == "machine_type cannot be changed: add another one, then remove this one"
    assert google.server.changes == calls


def test_nodes_of_every_pool_are_the_account_that_is_named(google: GoogleWorld) -> None:
    life = google.live(_wanted(L4, A100, account=NODES), pace=PACE)
    life.until_settled(HOURS)

    pools = [pool for cluster in google.server.state.clusters.values() for pool in cluster.node_pools]
    assert {pool.config.service_account for pool in pools} == {NODES}
    assert len(pools) == 3
    assert {one.message for one in life.records} == {None}


def test_an_account_that_is_named_later_is_that_of_new_pools_and_of_no_other(google: GoogleWorld) -> None:
    life = _made(google)
    life.wanted = _wanted(L4, A100, account=NODES)

    life.until_settled(HOURS)

    messages = {one.key: one.message for one in life.records if one.message}
    words = "service_account cannot be changed: add another one, then remove this one"
    assert messages == {"nodepool-system": words, "nodepool-l4": words}
    (cluster,) = google.server.state.clusters.values()
    accounts = [one.config.service_account for one in cluster.node_pools]
    assert sorted(accounts) == ["default", "default", NODES]
    life.wanted = _wanted(L4, A100)
    life.turn()
    assert {one.message for one in life.records} == {None}, "where none is asked for, each keeps what it has"


def test_an_account_that_the_operator_may_not_use_is_named(google: GoogleWorld) -> None:
    google.server.state.act_as = frozenset()
    life = google.live(_wanted(L4, account=NODES), pace=PACE)
    troubles: set[str] = set()
    for _ in range(40):
        decision = life.turn()
        assert decision is not None
        troubles |= {f"{record.key}: {type(error).__name__} {error}" for record, error in decision.errors}
        google.now += timedelta(seconds=max(PACE, decision.requeue_after))

    words = f'does not have access to service account "{NODES}"'
    assert [one for one in troubles if one.startswith("cluster: Forbidden") and words in one], troubles
    assert not google.server.state.clusters


def test_a_strangers_cluster_of_the_same_name_stops_it_and_stays(google: GoogleWorld) -> None:
    life = _made(google)
    for cluster in google.server.state.clusters.values():
        cluster.resource_labels = {"owner": "somebody"}
    google.now += timedelta(minutes=6)
    for _ in range(20):
        decision = life.turn()
        assert decision is not None
        google.now += timedelta(seconds=max(PACE, decision.requeue_after))

    message = {one.key: one.message or "" for one in life.records}["cluster"]
    assert "has no tag of the operator, so the operator leaves it alone" in message
    assert google.server.state.clusters


def test_what_ran_in_the_cluster_is_swept_and_what_others_made_in_its_network_is_not(google: GoogleWorld) -> None:
    life = _made(google)
    others, left = google.server.state.others, _left_behind(google)
    theirs = {
        "regions/us-central1/forwardingRules/web": {"name": "web"},
        f"{ZONE}/disks/theirs": {"name": "theirs"},
    }
    others |= {path: {**one, "selfLink": f"{LINK}/{path}"} for path, one in theirs.items()}
    others["global/firewalls/allow-ssh"] = {"name": "allow-ssh", "network": _network(google)}

    life.turn()
    assert not any(one.state == "Deleting" for one in life.records), "while the cluster is there, it stays"
    life.terminating = True
    for _ in range(200):
        decision = life.turn()
        assert decision is not None
        google.now += timedelta(seconds=max(PACE, decision.requeue_after))
        if {one.key for one in life.records} == {"network"} and "being used by" in (life.records[0].message or ""):
            break
    assert {one.key for one in life.records} == {"network"}
    assert not left & others.keys()

    del others["global/firewalls/allow-ssh"]
    life.until_settled(HOURS)
    assert {*google.server.state.left} == {*theirs}


def test_credentials_that_are_refused_are_told_and_change_nothing(google: GoogleWorld) -> None:
    life = _made(google)
    before = [(one.key, one.id) for one in life.records]
    google.server.denied = "container"
    google.now += timedelta(minutes=6)

    decision = life.turn()

    assert decision is not None and decision.steps == ()
    assert {type(error).__name__ for _, error in decision.errors} == {"Forbidden"}
    assert [(one.key, one.id) for one in life.records] == before


def test_a_cluster_of_any_owner_is_found_by_its_name(google: GoogleWorld) -> None:
    _made(google)
    found = google.runner.run(google.cloud.endpoint(name := google.id_of("cluster")))

    assert found == Endpoint(f"https://{name}.invalid", "Y2E=")
    with pytest.raises(NotFound):
        google.runner.run(google.cloud.endpoint("another"))


def test_what_there_is_and_may_be_had_is_told_before_anything_is_made(google: GoogleWorld) -> None:
    state = google.server.state
    state.quotas = {"NVIDIA_L4_GPUS": (8.0, 2.0), "GPUS_ALL_REGIONS": (0.0, 0.0)}
    machines = {("g2-standard-12", "us-central1-a"), ("g2-standard-12", "us-central1-b")}
    asked = google.cloud.fetch_offer(machines, {("nvidia-l4", "us-central1-a")})
    new = google.runner.run(asked)
    assert "The API is disabled" in new.later
    assert new.unasked == (), "of a project in which nothing is enabled yet, no question was refused"

    state.services = {f"{one}.googleapis.com" for one in SERVICES}
    offer = google.runner.run(google.cloud.fetch_offer(machines, {("nvidia-l4", "us-central1-a")}))
    assert (offer.unasked, offer.later, offer.absent) == ((), "", ())
    assert offer.versions == {"1.34", "1.35", "1.36", "1.37"}, "those of the channel that clusters are in"
    assert offer.cores == {"g2-standard-12": 4}
    assert offer.quotas["NVIDIA_L4_GPUS"] == Quota("NVIDIA_L4_GPUS in us-central1", 8, 2)
    assert offer.quotas[quotas.ALL_GPUS].name == f"GPUS_ALL_REGIONS of project {PROJECT}"

    state.absent = {"g2-standard-12"}
    google.server.denied = "compute GET regions"
    offer = google.runner.run(google.cloud.fetch_offer(machines, ()))
    assert len(offer.absent) == 2
    assert all("was not found" in one for one in offer.absent)
    assert len(offer.unasked) == 1


def test_quotas_are_called_what_google_calls_them() -> None:
    ours = {*quotas.ACCELERATORS.values(), quotas.ADDRESSES, quotas.CORES, quotas.DISKS}
    ours |= {one.removeprefix(quotas.GLOBAL) for one in (quotas.NETWORKS, quotas.ALL_GPUS)}

    assert ours <= {one.name for one in compute_v1.Quota.Metric}


def test_the_role_allows_what_is_called_and_nothing_else(google: GoogleWorld) -> None:
    """In a life in which everything happens that there are calls for."""
    life = _made(google, L4, A100)
    google.runner.run(google.cloud.fetch_offer({("g2-standard-12", "us-central1-a")}, {("nvidia-l4", "us-central1-a")}))
    life.wanted = _wanted({**L4, "maxNodeCount": 9, "zones": ["us-central1-f"]}, version="1.36")
    life.until_settled(HOURS)
    _left_behind(google)
    ended(life)

    assert {*google.server.calls} == {*PERMISSIONS}
