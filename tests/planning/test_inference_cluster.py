"""A cluster says what models can count on, keeps what it last knew, and goes from behind."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from modelplane_operator.api import InferenceCluster, labels, names
from modelplane_operator.api.base import Key
from modelplane_operator.api.conditions import merge
from modelplane_operator.clients.errors import KubeconfigError, Unreachable
from modelplane_operator.planning.inference_cluster import CHILDREN, Observed, There, plan
from modelplane_operator.planning.plan import Apply, Delete, Plan, Release
from modelplane_operator.rendering.cluster_gateway import render_cluster_gateway, render_system_namespace
from tests.planning.test_inference_class import inference_class
from tests.support.builders import EPOCH, GPU

Manifest = dict[str, Any]

APIS = frozenset({"DRA", "EnvoyGateway", "GatewayAPI"})
ADDRESS = "10.0.0.9"
LATER = EPOCH + timedelta(minutes=5)
POOL = {"name": "gpu", "className": "h200", "nodeCount": 4}
DEVICE = {"name": "gpu", "claim": "DRA", "driver": GPU, "deviceClassName": GPU, "count": 1}
PUBLISHED = {"name": "gpu", "nodes": 4, "devices": [{**DEVICE, "capacity": {"memory": {"value": "141Gi"}}}]}


def cluster(*pools: Manifest, status: Manifest | None = None, source: str = "Existing", **metadata: Any) -> Any:
    origin: Manifest = {"source": source, "existing": {"secretRef": {"name": "kubeconfig"}}}
    return InferenceCluster.parse(
        {
            "metadata": {"name": "a", "uid": "uid-of-a", **metadata},
            "spec": {"cluster": origin, "nodePools": list(pools or [POOL])},
            **({"status": status} if status else {}),
        }
    )


def going(**metadata: Any) -> Manifest:
    return {"deletionTimestamp": EPOCH.isoformat(), "finalizers": [labels.FINALIZER], **metadata}


def made(*kinds: str, address: str | None = ADDRESS) -> tuple[Manifest, ...]:
    """What we made on the cluster, of these kinds; the gateway with its address."""
    status = {
        "addresses": [{"type": "IPAddress", "value": address}] if address else [],
        "conditions": [{"type": "Programmed", "status": str(bool(address)), "message": "waiting for a load balancer"}],
    }
    manifests = (render_system_namespace(cluster()), *render_cluster_gateway(cluster()))
    return tuple(
        {
            **manifest,
            "metadata": {**manifest["metadata"], "uid": manifest["kind"]},
            **({"status": status} if manifest["kind"] == "Gateway" else {}),
        }
        for manifest in manifests
        if manifest["kind"] in (kinds or ("Namespace", "EnvoyProxy", "GatewayClass", "Gateway"))
    )


def there(children: Sequence[Manifest] = (), **what: Any) -> There:
    return There(**{"apis": APIS, "children": tuple(children), "has_namespace": False, **what})


def seen(known: Any = None, **what: Any) -> Observed:
    defaults: Manifest = {
        "cluster": known or cluster(),
        "classes": {"h200": inference_class()},
        "replicas": (),
        "there": there(made()),
        "silence": None,
        "kubeconfig": None,
        "connected": True,
        "now": EPOCH,
    }
    return Observed(**{**defaults, **what})


def said(decided: Plan) -> dict[str, tuple[str, str]]:
    """The conditions: reason and message by type."""
    assert decided.status is not None
    return {one.type: (one.reason, one.message or "") for one in decided.status.conditions}


def test_a_cluster_that_works_is_ready_and_publishes_its_pools_and_its_gateway() -> None:
    decided = plan(seen(replicas=(Key("team", "x"), Key("other", "y"))))

    assert decided.hold
    assert decided.steps == tuple(
        Apply(manifest, "a") for manifest in (render_system_namespace(cluster()), *render_cluster_gateway(cluster()))
    )
    assert decided.status is not None
    assert {name: part for name, part in decided.status.to_manifest().items() if name != "conditions"} == {
        "providerConfigRef": {"name": names.provider_config("a")},
        "namespace": "modelplane-system",
        "gateway": {"address": ADDRESS},
        "gpuPools": [PUBLISHED],
        "replicas": 2,
    }
    assert said(decided) == {
        "ClusterReady": ("ClusterRunning", ""),
        "BackendReady": ("BackendHealthy", ""),
        "NodePoolsValid": ("AllValid", ""),
        "Ready": ("Available", ""),
    }


def test_a_plan_follows_from_its_own_result() -> None:
    first = plan(seen(there=there()))
    assert first.status is not None
    status = first.status.to_manifest()

    again = plan(seen(cluster(status=status), there=there(made(address=None)), now=LATER))

    assert again.steps == first.steps
    assert again.status is not None
    assert merge(first.status.conditions, again.status.conditions)[0].last_transition_time == EPOCH
    assert again.status.gpu_pools == first.status.gpu_pools


def test_a_namespace_that_somebody_made_is_left_to_them() -> None:
    decided = plan(seen(there=there(made("EnvoyProxy", "GatewayClass", "Gateway"), has_namespace=True)))

    assert [step.manifest["kind"] for step in decided.steps if isinstance(step, Apply)] == [
        "EnvoyProxy",
        "GatewayClass",
        "Gateway",
    ]


LAST = {"gateway": {"address": ADDRESS}, "gpuPools": [PUBLISHED]}
FRESH = {**PUBLISHED, "devices": [{**DEVICE, "capacity": {"memory": {"value": "plenty"}}}]}
WRONG = inference_class(capacity={"memory": {"value": "plenty"}})
GONE = "InferenceClass h200 does not exist"
NO_CLOUD = "clusters on GKE cannot be made yet; bring one with `source: Existing`"
L4 = {"name": "edge", "className": "l4"}


@pytest.mark.parametrize(
    ("known", "what", "pools", "wanted"),
    [
        pytest.param(
            cluster({**POOL, "maxNodeCount": 9}),
            {},
            [{**PUBLISHED, "nodes": 9}],
            {"Ready": "Available"},
            id="an autoscaled pool counts its maximum",
        ),
        pytest.param(
            cluster(status=LAST),
            {"classes": {}},
            [PUBLISHED],
            {
                "NodePoolsValid": f"WaitingForClasses: {GONE}; what was known of its pools stays",
                "ClusterReady": "ClusterRunning",
                "Ready": "Available",
            },
            id="a class that went leaves the pool as it was",
        ),
        pytest.param(
            cluster({**POOL, "nodeCount": 2}, status=LAST),
            {"classes": {"h200": WRONG}},
            [{**PUBLISHED, "nodes": 2}],
            {"NodePoolsValid": "InvalidClass: see Accepted of InferenceClass h200", "Ready": "Available"},
            id="a class that turns wrong leaves the devices, and the pool's own size counts",
        ),
        pytest.param(
            cluster(),
            {"classes": {"h200": WRONG}},
            [FRESH],
            {"NodePoolsValid": "InvalidClass: see Accepted of InferenceClass h200", "Ready": "Available"},
            id="of a class that was always wrong, what can be read counts",
        ),
        pytest.param(
            cluster(POOL, L4),
            {},
            [PUBLISHED],
            {
                "NodePoolsValid": "WaitingForClasses: InferenceClass l4 does not exist",
                "ClusterReady": "WaitingForClasses: InferenceClass l4 does not exist",
                "Ready": "Creating: 1 of 2 pools can be used: InferenceClass l4 does not exist",
            },
            id="a pool of which nothing was ever known counts as not there",
        ),
        pytest.param(
            cluster(status=LAST),
            {"there": None, "silence": Unreachable("ping: no answer in time")},
            [PUBLISHED],
            {
                "ClusterReady": "Unreachable: it has not answered since 2026-01-01T00:00:00Z: ping: no answer in time",
                "BackendReady": "Unreachable: it has not answered since 2026-01-01T00:00:00Z: ping: no answer in time",
                "Ready": "Unreachable: it has not answered since 2026-01-01T00:00:00Z: ping: no answer in time",
            },
            id="a cluster that does not answer keeps what was known",
        ),
        pytest.param(
            cluster(status=LAST),
            {"there": None, "connected": False, "kubeconfig": KubeconfigError("Secret kubeconfig does not exist")},
            [PUBLISHED],
            {
                "ClusterReady": "InvalidKubeconfig: Secret kubeconfig does not exist",
                "BackendReady": "WaitingForCluster",
                "Ready": "Creating: Secret kubeconfig does not exist",
            },
            id="a kubeconfig that cannot be read",
        ),
        pytest.param(
            cluster(),
            {"kubeconfig": KubeconfigError("Secret kubeconfig does not exist")},
            [PUBLISHED],
            {
                "ClusterReady": "ClusterRunning: it is reached as before, but Secret kubeconfig does not exist",
                "Ready": "Available",
            },
            id="a kubeconfig that goes leaves the connection",
        ),
        pytest.param(
            cluster(source="GKE"),
            {"there": None, "connected": False},
            [PUBLISHED],
            {
                "ClusterReady": f"UnsupportedSource: {NO_CLOUD}",
                "BackendReady": "WaitingForCluster",
            },
            id="a cluster that is to be made on a cloud",
        ),
        pytest.param(
            cluster(),
            {"there": there(apis=frozenset({"DRA"}))},
            [PUBLISHED],
            {
                "BackendReady": "NotInstalled: there is no gateway yet: the cluster lacks the Gateway API "
                "(gateway.networking.k8s.io/v1) and Envoy Gateway (gateway.envoyproxy.io/v1alpha1)",
                "Ready": "Creating: there is no gateway yet: the cluster lacks the Gateway API "
                "(gateway.networking.k8s.io/v1) and Envoy Gateway (gateway.envoyproxy.io/v1alpha1)",
            },
            id="a cluster without Envoy Gateway",
        ),
        pytest.param(
            cluster(),
            {"there": there(made(address=None))},
            [PUBLISHED],
            {
                "BackendReady": "Installing: gateway inference-gateway has no address yet: waiting for a load balancer",
                "Ready": "Creating: gateway inference-gateway has no address yet: waiting for a load balancer",
            },
            id="a gateway that waits for its address",
        ),
    ],
)
def test_what_is_wrong_is_said_and_what_is_known_stays(
    known: InferenceCluster, what: Manifest, pools: list[Manifest], wanted: dict[str, str]
) -> None:
    decided = plan(seen(known, **what))

    assert decided.status is not None
    assert decided.status.to_manifest().get("gpuPools", []) == pools
    told = {name: ": ".join(filter(None, words)) for name, words in said(decided).items()}
    assert {name: told[name] for name in wanted} == wanted
    if known.status:
        assert decided.status.gateway == known.status.gateway


def test_nothing_is_decided_before_everything_was_seen() -> None:
    assert plan(seen(there=None)) == Plan(requeue_after=0.5)


def test_the_moment_of_the_silence_is_that_of_the_condition() -> None:
    silent: Manifest = {"there": None, "silence": Unreachable("no answer")}
    first = plan(seen(**silent)).status
    assert first is not None

    again = plan(seen(cluster(status=first.to_manifest()), **silent, now=LATER)).status

    assert again is not None
    assert merge(first.conditions, again.conditions) == merge((), first.conditions)


# Deletion -------------------------------------------------------------------------------------------------------------


def phase(decided: Plan) -> tuple[str, list[str]] | None:
    found = decided.status.deletion if decided.status else None
    return (found.phase, list(found.waiting_for)) if found else None


@pytest.mark.parametrize(
    ("what", "wanted", "message"),
    [
        (
            {"replicas": tuple(Key("team", name) for name in "abcdefg")},
            ("Blocked", [f"ModelReplica team/{name}" for name in "abcde"]),
            "replicas are placed on it: ModelReplica team/a, ModelReplica team/b, ModelReplica team/c, "
            "ModelReplica team/d, ModelReplica team/e and 2 more",
        ),
        (
            {"there": None, "silence": Unreachable("no answer")},
            ("Unreachable", []),
            f'it cannot be cleaned up: no answer; annotate it with {labels.ABANDON}="true" to leave all that is there',
        ),
        (
            {"there": there(made(), others=("Deployment team/x",))},
            ("DrainServing", ["Deployment team/x"]),
            "objects of models are left there: Deployment team/x",
        ),
    ],
    ids=["replicas", "silence", "objects of models"],
)
def test_a_cluster_that_is_deleted_says_what_it_waits_for(what: Manifest, wanted: Any, message: str) -> None:
    decided = plan(seen(cluster(status=LAST, **going()), **what))

    assert decided.steps == ()
    assert phase(decided) == wanted
    assert said(decided) == {"Ready": ("Deleting", message)}
    assert decided.status is not None
    assert decided.status.to_manifest()["gpuPools"] == [PUBLISHED]


def test_what_was_made_there_goes_in_reverse_one_after_another_and_then_the_object() -> None:
    left = list(made())
    order: list[str] = []
    while left:
        decided = plan(seen(cluster(**going()), there=there(left)))
        (step,) = decided.steps
        assert isinstance(step, Delete)
        assert step.cluster == "a"
        assert (phase(decided) or ("",))[0] == "UninstallServingStack"
        order.append(step.type.kind)
        left = [child for child in left if child["metadata"]["uid"] != step.uid]

    assert order == [kind.kind for kind in reversed(CHILDREN)]
    assert plan(seen(cluster(**going()), there=there())) == Plan((Release(),))


def test_a_cluster_that_was_never_reached_goes_at_once() -> None:
    never = cluster(deletionTimestamp=EPOCH.isoformat(), finalizers=["theirs"])

    assert plan(seen(never, there=None, silence=Unreachable("no answer"))) == Plan()


def test_a_cluster_is_abandoned_once_it_has_said_what_stays() -> None:
    left = going(annotations={labels.ABANDON: "true"})
    what: Manifest = {"there": None, "silence": Unreachable("no answer"), "replicas": (Key("team", "x"),)}

    first = plan(seen(cluster(**left), **what))
    assert first.steps == ()
    assert first.requeue_after
    assert said(first)["ClusterReady"][0] == "Abandoned"
    assert first.status is not None

    assert plan(seen(cluster(**left, status=first.status.to_manifest()), **what)) == Plan((Release(),))
