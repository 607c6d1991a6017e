"""Clusters that you bring, from the first kubeconfig to the last finalizer, on the local fleet with a real gateway."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from localfleet.fleet import Fleet
from modelplane_operator import operator
from modelplane_operator.api import labels
from tests.support.existing import CLASS, OPEN, cluster, operating, replica
from tests.support.hub import SYSTEM, Hub
from tests.support.manifests import ROOT
from tests.support.permissions import as_account

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet


@pytest.fixture
def hub(fleet: Fleet) -> Iterator[Hub]:
    hub = Hub(fleet)
    hub.learn()
    if hub.get("namespace", SYSTEM) is None:
        hub.kubectl("create", "namespace", SYSTEM)
    hub.apply(OPEN)
    yield hub
    hub.kubectl("delete", "ig", "default", "--ignore-not-found")
    left = hub.kubectl("get", "ic,icl", "-oname").split()
    for name in (*left, *hub.kubectl("-n", SYSTEM, "get", "secret", "-oname").split()):  # a test that failed half-way
        hub.kubectl("-n", SYSTEM, "patch", name, "--type=merge", '-p={"metadata":{"finalizers":null}}')
        hub.kubectl("-n", SYSTEM, "delete", name, "--ignore-not-found")
    if left:
        for worker in ("worker-1", "worker-2"):
            hub.kubectl("delete", "namespace/modelplane-system", "gatewayclass/envoy", "--ignore-not-found", on=worker)


def status(hub: Hub) -> Manifest:
    return (hub.get("ic", "worker-1") or {}).get("status") or {}


def nodes(hub: Hub) -> list[int]:
    return [pool["nodes"] for pool in status(hub).get("gpuPools", [])]


def resize(hub: Hub, memory: str) -> None:
    patch = [{"op": "replace", "path": "/spec/devices/0/capacity/memory/value", "value": memory}]
    hub.kubectl("patch", "icl", "h100", "--type=json", f"-p={json.dumps(patch)}")


def test_a_cluster_comes_serves_is_lost_returns_and_goes(fleet: Fleet, hub_namespace: str, hub: Hub) -> None:
    with operating(fleet):
        comes(hub)
        is_told_under_another_name(hub)
        counts_what_exists(hub)
        keeps_what_is_there_on_bad_input(hub)
        fleet.cut("worker-1")
        hub.says("worker-1", "Ready", "Unreachable: Cluster worker-1 has not answered since 20")
        assert status(hub)["gateway"]["address"]
        assert nodes(hub) == [2]
        fleet.heal("worker-1")
        hub.says("worker-1", "Ready", "Degraded: Secret modelplane-system/worker-1 is being deleted")
        goes(hub, hub_namespace)


def comes(hub: Hub) -> None:
    """Whatever is there first waits for the others."""
    hub.apply(cluster("worker-1"))
    hub.says("worker-1", "ClusterReady", "InvalidKubeconfig: Secret modelplane-system/worker-1 does not exist")
    hub.secret("worker-1")
    hub.says("worker-1", "NodePoolsValid", "WaitingForClasses: InferenceClass h100 does not exist")
    hub.says("worker-1", "Ready", "Creating: ")
    hub.apply(CLASS)
    hub.says("worker-1", "Ready", "Available")
    hub.says("worker-1", "GPUReady", "AllPresent")
    gateway = hub.get("gateway", "inference-gateway", SYSTEM, on="worker-1") or {}
    known = status(hub)
    assert known["gateway"]["address"] == gateway["status"]["addresses"][0]["value"]
    assert known["observed"]["pools"] == [{"name": "h100", "nodes": 2, "usable": 2}]
    assert known["observed"]["version"].startswith("v1.")
    assert {"DRA", "EnvoyGateway", "GatewayAPI"} <= set(known["observed"]["apis"])
    assert nodes(hub) == [2]


def is_told_under_another_name(hub: Hub) -> None:
    """The one that has it keeps it, and when that goes the other takes over; nobody waits for the other's objects."""
    hub.secret("again", hub.fleet.kubeconfig("worker-1").read_text())
    hub.apply(cluster("again"))
    hub.says("again", "Ready", "RegisteredTwice: Cluster again is the same cluster as InferenceCluster worker-1")
    assert hub.reason("ic", "worker-1", "Ready") == "Available"
    hub.kubectl("delete", "ic", "worker-1", "--timeout=180s")
    hub.says("again", "Ready", "Available")
    hub.apply(cluster("worker-1"))
    hub.says("worker-1", "Ready", "RegisteredTwice: Cluster worker-1 is the same cluster as InferenceCluster again")
    hub.kubectl("delete", "ic", "again", "--timeout=180s")
    hub.says("worker-1", "Ready", "Available")


def counts_what_exists(hub: Hub) -> None:
    node = hub.kubectl("get", "node", "-l", f"{labels.POOL}=h100", "-oname", on="worker-1").split()[0]
    hub.kubectl("cordon", node, on="worker-1")
    hub.says("worker-1", "GPUReady", "NodesMissing: Pool h100: 1 of 2 nodes usable (1 cordoned): node")
    assert nodes(hub) == [1]
    hub.kubectl("uncordon", node, on="worker-1")
    hub.until(lambda: nodes(hub) == [2], "the node to count again")
    resize(hub, "81Gi")
    lacking = "Pool h100: 0 of 2 nodes usable (2 lacking devices): node worker-1-h100-0 has 0 of 8"
    hub.says("worker-1", "GPUReady", f"DevicesMissing: {lacking}")
    hub.says("worker-1", "Ready", f"Degraded: {lacking}")
    resize(hub, "80Gi")
    hub.says("worker-1", "GPUReady", "AllPresent")


def keeps_what_is_there_on_bad_input(hub: Hub) -> None:
    resize(hub, "80Gx")
    hub.says(
        "worker-1",
        "NodePoolsValid",
        "InvalidClass: InferenceClass h100 has devices that cannot be read: see Accepted there",
    )
    hub.says("h100", "Accepted", 'InvalidDevice: Device gpu: capacity memory: "80Gx"', what="icl")
    assert status(hub)["gpuPools"][0]["devices"][0]["capacity"] == {"memory": {"value": "80Gi"}}
    assert hub.reason("ic", "worker-1", "Ready") == "Available"
    resize(hub, "80Gi")
    hub.says("worker-1", "NodePoolsValid", "AllValid")
    hub.kubectl("delete", "icl", "h100", "--wait=false")
    hub.kubectl("-n", SYSTEM, "delete", "secret", "worker-1", "--wait=false")
    hub.says(
        "h100",
        "Ready",
        "Deleting: Clusters have pools of the class: worker-1: remove these pools, or give them another class",
        what="icl",
    )
    assert (hub.get("secret", "worker-1", SYSTEM) or {})["metadata"]["deletionTimestamp"]
    hub.says("worker-1", "Ready", "Degraded: Secret modelplane-system/worker-1 is being deleted")


def goes(hub: Hub, namespace: str) -> None:
    """It is there while something is placed on it, and leaves nothing behind."""
    hub.apply(replica("worker-1", namespace))
    hub.until(lambda: status(hub)["replicas"] == 1, "the replica to count")
    hub.kubectl("delete", "ic", "worker-1", "--wait=false")
    hub.says("worker-1", "Ready", f"Deleting: Replicas are placed on cluster worker-1: ModelReplica {namespace}/m")
    assert status(hub)["deletion"] == {"phase": "Blocked", "waitingFor": [f"ModelReplica {namespace}/m"]}
    assert hub.get("gateway", "inference-gateway", SYSTEM, on="worker-1")
    hub.kubectl("-n", namespace, "delete", "mr", "m")
    hub.gone("ic", "worker-1")
    hub.gone("icl", "h100")
    hub.gone("secret", "worker-1", SYSTEM)
    assert hub.get("gateway", "inference-gateway", SYSTEM, on="worker-1") is None
    assert hub.get("envoyproxy", "inference-gateway", SYSTEM, on="worker-1") is None
    assert hub.get("gatewayclass", "envoy", on="worker-1") is None
    hub.gone("namespace", SYSTEM, on="worker-1")


def test_a_kubeconfig_that_waives_the_proof_is_told_and_nothing_is_taken_for_that(fleet: Fleet, hub: Hub) -> None:
    waived = kubeconfig(fleet, **{"certificate-authority-data": None, "insecure-skip-tls-verify": True})
    with operating(fleet):
        hub.apply(CLASS)
        hub.apply(cluster("worker-1"))
        hub.secret("worker-1", kubeconfig(fleet, **{"insecure-skip-tls-verify": "false"}))
        wrong = "InvalidKubeconfig: Secret modelplane-system/worker-1, key kubeconfig: the kubeconfig's"
        hub.says("worker-1", "ClusterReady", f"{wrong} insecure-skip-tls-verify is neither true nor false")
        hub.secret("worker-1", kubeconfig(fleet, server="http://127.0.0.1:1"))
        hub.says("worker-1", "ClusterReady", f"{wrong} server begins with http://")
        assert hub.reason("ic", "worker-1", "ServerVerified") == "", "nothing was connected"
        hub.secret("worker-1", waived)
        hub.says("worker-1", "ServerVerified", "NotVerified: The connection to the cluster can be intercepted")
        hub.says("worker-1", "ClusterReady", "ClusterRunning")
        hub.secret("worker-1")
        hub.says("worker-1", "ServerVerified", "CertificateVerified")
        hub.kubectl("delete", "ic", "worker-1", "--timeout=180s")
        hub.kubectl("delete", "icl", "h100", "--timeout=180s")


def kubeconfig(fleet: Fleet, **changes: Any) -> str:
    """That of worker-1, with some of what it says of the cluster changed; None takes it out."""
    config = yaml.safe_load(fleet.kubeconfig("worker-1").read_text())
    (one,) = config["clusters"]
    one["cluster"] = {name: value for name, value in (one["cluster"] | changes).items() if value is not None}
    return yaml.safe_dump(config)


def test_a_token_is_renewed_before_it_ends_and_one_that_cannot_be_kept_locks_nobody_out(
    fleet: Fleet, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With tokens of ten minutes, the shortest that an API server gives, and a clock that is six minutes ahead."""
    monkeypatch.setattr(operator, "wall_clock", lambda: datetime.now(UTC) + timedelta(minutes=6))
    access = ROOT / "examples" / "access" / "own-software.yaml"
    hub.kubectl("apply", "-f", str(access), on="worker-1")
    first = as_account(hub, "worker-1", lasting="10m")
    hub.apply(CLASS)
    hub.secret("worker-1", first)
    hub.apply(cluster("worker-1", credentialRenewal="TokenRequest"))
    with operating(fleet):
        hub.until(lambda: stored(hub) not in {"", first}, "the token to be renewed")
        hub.says("worker-1", "ClusterReady", "ClusterRunning")
        hub.says("worker-1", "CredentialsRenewed", "TokenRenewed: The token of the kubeconfig expires at 20")
    second = stored(hub)
    assert without_token(second) == without_token(first), "the rest of the kubeconfig is as its owner wrote it"
    unkept = {"immutable": True}
    hub.kubectl("patch", "secret", "worker-1", "-n", SYSTEM, "--type=merge", f"-p={json.dumps(unkept)}")
    with operating(fleet):  # with the token of before, as after a restart
        hub.says("worker-1", "Synced", "ReconcileError: Renew the token in Secret modelplane-system/worker-1: ")
        resize(hub, "81Gi")
        hub.until(lambda: published(hub) == "81Gi", "the rest of its work to be done")
        assert hub.reason("ic", "worker-1", "ClusterReady") == "ClusterRunning"
        assert stored(hub) == second
        hub.kubectl("delete", "ic", "worker-1", "--timeout=180s")
        hub.kubectl("delete", "icl", "h100", "--timeout=180s")
    hub.kubectl("delete", "-f", str(access), on="worker-1")


def test_a_cluster_whose_account_may_not_make_policies_is_served_and_told(
    fleet: Fleet, hub: Hub, tmp_path: Path
) -> None:
    """The account of before they were asked for: requests go on, and what is missing is said until it is given."""
    given = (ROOT / "examples" / "access" / "own-software.yaml").read_text()
    before, now = tmp_path / "before.yaml", tmp_path / "now.yaml"
    before.write_text(given.replace("[envoyproxies, clienttrafficpolicies, backendtrafficpolicies]", "[envoyproxies]"))
    now.write_text(given)
    assert before.read_text() != given
    hub.kubectl("apply", "-f", str(before), on="worker-1")
    hub.apply(CLASS)
    hub.secret("worker-1", as_account(hub, "worker-1"))
    hub.apply(cluster("worker-1"))
    with operating(fleet):
        hub.says("worker-1", "Synced", "ReconcileError: Apply ClientTrafficPolicy modelplane-system/inference-gateway")
        hub.says("worker-1", "BackendReady", "BackendHealthy")
        hub.kubectl("apply", "-f", str(now), on="worker-1")
        hub.says("worker-1", "Synced", "ReconcileSuccess")
        hub.kubectl("delete", "ic", "worker-1", "--timeout=180s")
        hub.kubectl("delete", "icl", "h100", "--timeout=180s")
    hub.kubectl("delete", "-f", str(now), on="worker-1")


def stored(hub: Hub) -> str:
    """The kubeconfig of worker-1 that is on the hub."""
    secret = hub.get("secret", "worker-1", SYSTEM) or {}
    return base64.b64decode(secret.get("data", {}).get("kubeconfig", "")).decode()


def token_of(kubeconfig: str) -> str:
    return yaml.safe_load(kubeconfig)["users"][0]["user"]["token"]


def without_token(kubeconfig: str) -> str:
    return kubeconfig.replace(token_of(kubeconfig), "")


def published(hub: Hub) -> str:
    pools = status(hub).get("gpuPools") or [{}]
    return next((one["capacity"]["memory"]["value"] for one in pools[0].get("devices", ())), "")
