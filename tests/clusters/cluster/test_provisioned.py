"""An InferenceCluster that a cloud makes: its own object first, then as any other, and that object last."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.errors import KubeconfigError, Unreachable
from kubeloop.plan import KEEP, LET_GO, Apply, Delete, Plan
from modelplane_operator.api import InferenceClass, InferenceCluster, labels, names
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.api.inference_cluster import InferenceClusterStatus, ObservedCluster
from modelplane_operator.clouds.render import render_infrastructure
from modelplane_operator.clusters.cluster.cluster_gateway import render_system_namespace
from modelplane_operator.clusters.cluster.plan import ClusterState, Observed, Secrets, plan
from modelplane_operator.clusters.cluster.plan.hardware import ObservedHardware
from tests.support.builders import EPOCH
from tests.support.classes import inference_class

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]
POOL: Manifest = {"name": "gpu", "className": "h200", "nodeCount": 2, "zones": ["us-west-2a"]}
MACHINE = {
    "instanceType": "p5en.48xlarge",
    "diskSizeGb": 500,
    "accelerator": {"type": "nvidia-h200", "count": 8},
}
NODE = {"provider": "EKS", "eks": MACHINE}
CLASS = InferenceClass.parse(
    {**(known := inference_class().to_manifest()), "spec": {**known["spec"], "provisioning": NODE}}
)


def _cluster(*pools: Manifest, **metadata: Any) -> InferenceCluster:
    return InferenceCluster.parse(
        {
            "metadata": {"name": "berlin", "uid": "uid-of-berlin", **metadata},
            "spec": {
                "cluster": {"source": "EKS", "eks": {"region": "us-west-2", "credentials": {"name": "lab"}}},
                "nodePools": [*(pools or (POOL,))],
            },
        }
    )


def _eks(ready: str = "", *, deleted: bool = False, server: str = "") -> Manifest:
    manifest = render_infrastructure(_cluster(), {"h200": CLASS})
    metadata = {**manifest["metadata"], "uid": "uid-of-eks"}
    metadata |= {"deletionTimestamp": EPOCH.isoformat()} if deleted else {}
    conditions = [{"type": "Ready", "status": "False", "message": ready}] if ready else []
    return {
        **manifest,
        "metadata": metadata,
        "status": {"conditions": conditions, **({"endpoint": {"server": server}} if server else {})},
    }


def _seen(cluster: InferenceCluster | None = None, **what: Any) -> Observed:
    usual: Manifest = {
        "classes": {"h200": CLASS},
        "replicas": (),
        "state": None,
        "unreachable": None,
        "forbidden": None,
        "kubeconfig": None,
        "connected": False,
        "secrets": Secrets(),
        "now": EPOCH,
        "helm": True,
    }
    return Observed(cluster or _cluster(), **{**usual, **what})


def terminating() -> Manifest:
    return {"deletionTimestamp": EPOCH.isoformat(), "finalizers": [labels.FINALIZER]}


def state(*children: Manifest) -> ClusterState:
    return ClusterState("v1.36.3", 0.004, frozenset(), ObservedHardware((), ()), children, has_namespace=False)


def made() -> Manifest:
    """What we made on the cluster."""
    namespace = render_system_namespace(_cluster())
    return {**namespace, "metadata": {**namespace["metadata"], "uid": "uid-of-namespace"}}


def said(decided: Plan) -> dict[str, tuple[str, str]]:
    """The conditions: reason and message by type."""
    assert decided.status is not None
    return {one.type: (one.reason, one.message or "") for one in decided.status.conditions}


def _applied(decided: Plan, kind: str) -> Manifest:
    return next(one.manifest for one in decided.steps if isinstance(one, Apply) and one.manifest["kind"] == kind)


def test_the_clouds_object_has_the_pools_as_their_classes_say() -> None:
    manifest = _applied(plan(_seen()), "EKSCluster")

    assert manifest["metadata"]["name"] == "berlin"
    assert manifest["metadata"]["namespace"] == "modelplane-system"
    assert manifest["metadata"]["ownerReferences"][0]["uid"] == "uid-of-berlin"
    assert manifest["spec"] == {
        "region": "us-west-2",
        "kubernetesVersion": "1.36",
        "credentials": {"name": "lab"},
        "nodePools": [
            {
                "name": "gpu",
                "role": "GPU",
                "instanceType": "p5en.48xlarge",
                "diskSizeGb": 500,
                "nodeCount": 2,
                "minNodeCount": 2,
                "maxNodeCount": 2,
                "gpu": {"acceleratorType": "nvidia-h200"},
                "zones": ["us-west-2a"],
            }
        ],
    }
    EKSCluster.parse_bounded({**manifest, "metadata": {**manifest["metadata"], "uid": "u"}})


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        ({}, (2, 2)),
        ({"maxNodeCount": 8}, (1, 8)),
        ({"minNodeCount": 0, "maxNodeCount": 8}, (0, 8)),
    ],
)
def test_a_pool_is_fixed_unless_it_says_how_large_it_may_be(bounds: Manifest, expected: tuple[int, int]) -> None:
    pool = _applied(plan(_seen(_cluster({**POOL, **bounds}))), "EKSCluster")["spec"]["nodePools"][0]

    assert (pool["minNodeCount"], pool["maxNodeCount"]) == expected


def test_what_the_cloud_is_doing_is_told_while_there_is_no_way_to_the_cluster() -> None:
    decided = plan(_seen(infrastructure=_eks("12 of 58 resources are there"), kubeconfig=KubeconfigError("not yet")))

    words = "EKSCluster modelplane-system/berlin: 12 of 58 resources are there"
    assert said(decided)["ClusterReady"] == ("Provisioning", words)
    assert said(decided)["Ready"] == ("Creating", words)


@pytest.mark.parametrize(
    ("classes", "pool", "reason", "words"),
    [
        ({}, POOL, "WaitingForClasses", "InferenceClass h200 does not exist"),
        ({"h200": inference_class()}, POOL, "InvalidNodePool", "does not say how EKS makes such a node"),
        ({"h200": CLASS}, {**POOL, "zones": []}, "InvalidNodePool", "add `zones`"),
    ],
)
def test_a_pool_that_cannot_be_made_is_told_and_changes_nothing(
    classes: Manifest, pool: Manifest, reason: str, words: str
) -> None:
    decided = plan(_seen(_cluster(pool), classes=classes))

    assert decided.steps == ()
    assert said(decided)["ClusterReady"][0] == reason
    assert words in said(decided)["ClusterReady"][1]


def test_a_cluster_that_runs_goes_on_when_a_class_goes() -> None:
    running = {"connected": True, "state": state(made()), "infrastructure": _eks()}

    decided = plan(_seen(classes={}, **running))

    assert not any(isinstance(one, Apply) and one.manifest["kind"] == "EKSCluster" for one in decided.steps)
    assert not any(isinstance(one, Delete) for one in decided.steps)
    assert said(decided)["NodePoolsValid"][0] == "WaitingForClasses"


def test_its_stack_has_the_charts_of_its_cloud() -> None:
    running = {"connected": True, "state": state(), "infrastructure": _eks()}

    stack = _applied(plan(_seen(_cluster({**POOL, "fabric": {"type": "EFA"}}), **running)), "ServingStack")

    charts = {one["chart"]: one["values"] for one in stack["spec"]["extraCharts"]}
    assert [*charts] == ["cluster-autoscaler", "aws-dranet"]
    name = names.on_cloud("berlin", "uid-of-eks")
    assert charts["cluster-autoscaler"]["autoDiscovery"] == {"clusterName": name}


def test_charts_of_its_cloud_are_not_taken_away_while_its_object_is_not_seen() -> None:
    decided = plan(_seen(connected=True, state=state(), infrastructure=None))

    assert not any(isinstance(one, Apply) and one.manifest["kind"] == "ServingStack" for one in decided.steps)


def test_its_storage_is_the_clouds() -> None:
    infrastructure = _eks(server="https://eks")
    infrastructure["status"] |= {
        "resources": [{"key": "efs-filesystem", "kind": "efs.FileSystem", "state": "Ready", "id": "fs-1"}],
        "cache": {"storageClassName": "modelplane-rwx-efs"},
    }

    decided = plan(_seen(connected=True, state=state(), infrastructure=infrastructure))

    storage = _applied(decided, "StorageClass")
    assert storage["parameters"]["fileSystemId"] == "fs-1"
    assert decided.status is not None
    assert decided.status.to_manifest()["cache"] == {"storageClassName": storage["metadata"]["name"]}


def test_the_clouds_object_goes_last_and_is_waited_for() -> None:
    leaving = _cluster(**terminating())
    left = {"connected": True, "state": state(made()), "infrastructure": _eks()}
    first = plan(_seen(leaving, **left))
    assert not any(isinstance(one, Delete) and one.type.kind == "EKSCluster" for one in first.steps)

    empty = {"connected": True, "state": state(), "infrastructure": _eks()}
    nothing_left = plan(_seen(leaving, **empty)).status
    second = plan(_seen(leaving.model_copy(update={"status": nothing_left}), **empty))
    assert [one.type.kind for one in second.steps if isinstance(one, Delete)] == ["EKSCluster"]
    assert second.status is not None
    assert second.status.deletion is not None  # type: ignore[attr-defined]
    assert second.status.deletion.phase == "DeleteCluster"  # type: ignore[attr-defined]

    leaving = leaving.model_copy(update={"status": second.status})
    assert plan(_seen(leaving, **empty)).status == second.status, "it says so until it is gone"
    third = plan(_seen(leaving, infrastructure=_eks("31 resources are left", deleted=True)))
    assert third.steps == ()
    assert "31 resources are left" in said(third)["Ready"][1]

    assert LET_GO in plan(_seen(leaving, connected=True, state=state())).steps


def test_a_cluster_that_never_came_up_goes_without_being_asked() -> None:
    leaving = _cluster(**terminating())

    decided = plan(_seen(leaving, infrastructure=_eks("NoSDK"), unreachable=Unreachable("there is none")))

    assert [one.type.kind for one in decided.steps if isinstance(one, Delete)] == ["EKSCluster"]


def test_a_cluster_to_which_the_way_is_being_made_keeps_what_is_known_of_it() -> None:
    """As when another operator begins to lead: tokens are made in memory."""
    made_anew = plan(_seen(infrastructure=_eks(server="https://eks")))
    assert made_anew.status is None

    refused = plan(_seen(infrastructure=_eks(server="https://eks"), kubeconfig=KubeconfigError("no token")))
    assert said(refused)["ClusterReady"][0] == "Unreachable"
    assert said(refused)["Ready"][0] == "Unreachable"

    answered = InferenceClusterStatus(observed=ObservedCluster(version="v1.36.3"))
    leaving = _cluster(**terminating()).model_copy(update={"status": answered})
    assert plan(_seen(leaving, infrastructure=_eks(server="https://eks"))).steps == (), "what is on it goes first"


def test_a_cluster_that_has_never_answered_waits_for_its_cloud_and_for_nothing_else() -> None:
    """Whoever waits for its deletion knows that nothing is left to be paid for."""
    first = plan(_seen())
    assert first.steps[0] == KEEP, "it stays until the cloud's object is gone"

    silent = {"infrastructure": _eks(server="https://eks"), "unreachable": Unreachable("no answer")}
    leaving = plan(_seen(_cluster(**terminating()), **silent))
    assert [one.type.kind for one in leaving.steps if isinstance(one, Delete)] == ["EKSCluster"]
    assert LET_GO not in leaving.steps


@pytest.mark.parametrize(
    ("type_", "status"), [("CredentialsValid", "False"), ("Stalled", "True"), ("CapacityAvailable", "False")]
)
def test_what_its_cloud_cannot_do_is_told_of_a_cluster_that_runs(type_: str, status: str) -> None:
    infrastructure = _eks(server="https://eks")
    told = {"type": type_, "status": status, "reason": "X", "message": "Pool gpu: us-west-2z is no zone"}
    infrastructure["status"]["conditions"] = [told]

    decided = plan(_seen(connected=True, state=state(made()), infrastructure=infrastructure))

    words = "EKSCluster modelplane-system/berlin: Pool gpu: us-west-2z is no zone"
    assert said(decided)["NodePoolsValid"] == ("NotMade", f"The cluster stays as it is: {words}")
    told["status"] = {"True": "False", "False": "True"}[status]
    well = plan(_seen(connected=True, state=state(made()), infrastructure=infrastructure))
    assert said(well)["NodePoolsValid"][0] == "AllValid"


def test_a_cluster_whose_object_is_gone_and_that_nobody_reaches_is_let_go() -> None:
    leaving = _cluster(**terminating())

    assert LET_GO in plan(_seen(leaving)).steps


def test_a_pool_that_is_removed_stays_while_models_run_on_it() -> None:
    """What runs there has no other place yet, and the cloud would take the nodes from under it."""
    other = {**POOL, "name": "other"}
    running = {"connected": True, "state": state(made()), "infrastructure": _eks()}

    held = plan(_seen(_cluster(other), used_pools=frozenset({"gpu", "other"}), **running))
    assert [one["name"] for one in _applied(held, "EKSCluster")["spec"]["nodePools"]] == ["other", "gpu"]
    words = "Pool gpu is removed once no model runs there"
    assert said(held)["NodePoolsValid"] == ("AllValid", words)

    emptied = plan(_seen(_cluster(other), used_pools=frozenset({"other"}), **running))
    assert [one["name"] for one in _applied(emptied, "EKSCluster")["spec"]["nodePools"]] == ["other"]

    forced = _cluster(other, annotations={labels.FORCE_DRAIN: "true"})
    by_force = plan(_seen(forced, used_pools=frozenset({"gpu"}), **running))
    assert [one["name"] for one in _applied(by_force, "EKSCluster")["spec"]["nodePools"]] == ["other"]


def test_more_pools_than_its_cloud_takes_are_refused_with_the_names_of_those_that_go() -> None:
    eight = [{**POOL, "name": f"p{number}"} for number in range(8)]
    running = {"connected": True, "state": state(made()), "infrastructure": _eks()}

    decided = plan(_seen(_cluster(*eight), used_pools=frozenset({"gpu"}), **running))

    assert not any(isinstance(one, Apply) and one.manifest["kind"] == "EKSCluster" for one in decided.steps)
    words = "9 pools are more than 8, with those that are removed and that models still run on: gpu"
    assert said(decided)["NodePoolsValid"] == ("NotMade", f"The cluster stays as it is: {words}")


def test_a_cluster_that_is_abandoned_is_taken_down_by_its_cloud_as_it_is() -> None:
    """Nobody pays for what nobody can clean up: what is left on the cluster goes with it."""
    leaving = _cluster(**terminating(), annotations={labels.ABANDON: "true"})
    silent = {"infrastructure": _eks(server="https://eks"), "unreachable": Unreachable("no answer")}

    decided = plan(_seen(leaving, **silent))

    assert [one.type.kind for one in decided.steps if isinstance(one, Delete)] == ["EKSCluster"]
    assert said(decided)["Ready"][1].startswith("The cloud is deleting cluster ")
    assert LET_GO not in decided.steps


def test_a_cluster_that_somebody_deleted_on_its_cloud_goes_without_being_asked() -> None:
    """Its object says so by having no API server any more."""
    leaving = _cluster(**terminating())

    decided = plan(_seen(leaving, infrastructure=_eks("41 of 62 resources are there")))

    assert [one.type.kind for one in decided.steps if isinstance(one, Delete)] == ["EKSCluster"]


def test_what_only_google_cloud_asks_for_is_told_to_the_clouds_object() -> None:
    machine = {"machineType": "g2-standard-12", "diskSizeGb": 100, "accelerator": {"type": "nvidia-l4", "count": 1}}
    l4 = InferenceClass.parse({**known, "spec": {**known["spec"], "provisioning": {"provider": "GKE", "gke": machine}}})
    named = {"project": "lab", "serviceAccount": "nodes@lab.iam.gserviceaccount.com"}
    origin = {"source": "GKE", "gke": {"region": "us-central1", **named}}
    pools = [{"name": "l4", "className": "l4", "zones": ["us-central1-a"]}]

    cluster = InferenceCluster.parse(
        {"metadata": {"name": "iowa", "uid": "u"}, "spec": {"cluster": origin, "nodePools": pools}}
    )

    assert named.items() <= render_infrastructure(cluster, {"l4": l4})["spec"].items()
