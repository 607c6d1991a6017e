"""A cluster says what models can count on, keeps what it last knew, and is torn down in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.cache.informer import Informer
from kubeloop.client.kube import Event
from kubeloop.condition_types import merge
from kubeloop.errors import Forbidden, KubeconfigError, Misbehaving, ServerFault, Unauthorized, Unreachable
from kubeloop.objects import Key
from kubeloop.plan import KEEP, LET_GO, Apply, Delete, Plan, RenewToken, SetFinalizer
from kubeloop.resource import of
from kubeloop.tokens import Token
from kubeloop.types import RESOURCE_SLICE, SECRET
from modelplane_operator.api import InferenceCluster, labels, names
from modelplane_operator.api.inference_cluster import Fabric
from modelplane_operator.api.placement import Placement
from modelplane_operator.api.shared import Amounts
from modelplane_operator.clusters.cluster.cluster_gateway import (
    certificate,
    render_cluster_gateway,
    render_system_namespace,
)
from modelplane_operator.clusters.cluster.fabrics import Fabrics
from modelplane_operator.clusters.cluster.plan import CHILDREN, ClusterState, Observed, Registered, Secrets, plan
from modelplane_operator.clusters.cluster.plan.hardware import ObservedHardware, prune_slice
from modelplane_operator.clusters.cluster.plan.teardown import is_emptied
from modelplane_operator.clusters.cluster.registration import render_mark
from modelplane_operator.clusters.stack.render import render_stack
from modelplane_operator.models.deployment.render import render_endpoint
from modelplane_operator.routing.gateway.gateway_pods import GIVE_ADDRESSES
from modelplane_operator.scheduling.cluster import read
from tests.support.builders import EPOCH, GPU, deployment
from tests.support.classes import inference_class
from tests.support.nodes import POOL, node, slice_of

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]

APIS = frozenset({"DRA", "EnvoyGateway", "GatewayAPI"})
ADDRESS = "10.0.0.9"
LATER = EPOCH + timedelta(minutes=5)
DEVICE = {"name": "gpu", "claim": "DRA", "driver": GPU, "deviceClassName": GPU, "count": 1}
PUBLISHED = {"name": "gpu", "nodes": 4, "devices": [{**DEVICE, "capacity": {"memory": {"value": "141Gi"}}}]}


KUBECONFIG = Key("modelplane-system", "kubeconfig")


def hardware(*nodes: Manifest, slices: Sequence[Manifest] | None = None) -> ObservedHardware:
    """Nodes with one GPU of the class each, unless said otherwise."""
    names = [each["metadata"]["name"] for each in nodes]
    return ObservedHardware(
        nodes, tuple(slice_of(name, "141Gi") for name in names) if slices is None else tuple(slices)
    )


def minutes_ago(minutes: int) -> str:
    return f"{EPOCH - timedelta(minutes=minutes):%Y-%m-%dT%H:%M:%SZ}"


FOUR_NODES = hardware(*map(node, "abcd"))


def cluster(*pools: Manifest, status: Manifest | None = None, source: str = "Existing", **metadata: Any) -> Any:
    origin: Manifest = {"source": source, "existing": {"secretRef": {"name": "kubeconfig"}}}
    return InferenceCluster.parse(
        {
            "metadata": {"name": "a", "uid": "uid-of-a", **metadata},
            "spec": {"cluster": origin, "nodePools": list(pools or [POOL])},
            **({"status": status} if status else {}),
        }
    )


def terminating(**metadata: Any) -> Manifest:
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
        if manifest["kind"] in (kinds or {kind.kind for kind in CHILDREN})
    )


def state(children: Sequence[Manifest] = (), **what: Any) -> ClusterState:
    defaults: Manifest = {"version": "v1.36.3", "latency": 0.004, "apis": APIS, "hardware": FOUR_NODES}
    return ClusterState(**{**defaults, "children": tuple(children), "has_namespace": False, **what})


def seen(known: Any = None, **what: Any) -> Observed:
    defaults: Manifest = {
        "cluster": known or cluster(),
        "classes": {"h200": inference_class()},
        "replicas": (),
        "state": state(made()),
        "unreachable": None,
        "forbidden": None,
        "kubeconfig": None,
        "connected": True,
        "secrets": Secrets(own=KUBECONFIG),
        "now": EPOCH,
    }
    return Observed(**{**defaults, **what})


def said(decided: Plan) -> dict[str, tuple[str, str]]:
    """The conditions: reason and message by type."""
    assert decided.status is not None
    return {one.type: (one.reason, one.message or "") for one in decided.status.conditions}


def test_a_cluster_that_works_is_ready_and_publishes_its_pools_and_its_gateway() -> None:
    decided = plan(seen(replicas=(Key("team", "x"), Key("other", "y"))))

    manifests = (render_system_namespace(cluster()), *render_cluster_gateway(cluster()))
    assert decided.steps == (KEEP, SetFinalizer(SECRET, KUBECONFIG), *(Apply(manifest, "a") for manifest in manifests))
    assert decided.status is not None
    assert {name: part for name, part in decided.status.to_manifest().items() if name != "conditions"} == {
        "providerConfigRef": {"name": names.provider_config("a")},
        "namespace": "modelplane-system",
        "gateway": {"address": ADDRESS},
        "gpuPools": [PUBLISHED],
        "replicas": 2,
        "observed": {
            "version": "v1.36.3",
            "latencyMs": 50,
            "apis": ["DRA", "EnvoyGateway", "GatewayAPI"],
            "pools": [{"name": "gpu", "nodes": 4, "usable": 4}],
        },
    }
    assert said(decided) == {
        "ClusterReady": ("ClusterRunning", ""),
        "ServerVerified": ("CertificateVerified", ""),
        "BackendReady": ("BackendHealthy", ""),
        "GatewaySecured": (
            "Open",
            f"Prompts travel to {ADDRESS} unencrypted, and anyone who reaches that address can use its models",
        ),
        "NodePoolsValid": ("AllValid", ""),
        "GPUReady": ("AllPresent", ""),
        "Ready": ("Available", ""),
    }


def test_a_cluster_does_not_say_to_be_the_hubs_own_gateway() -> None:
    """A service named as a replica of its tenant would lead to itself: one request would go round for ever."""
    refused = plan(
        seen(cluster(status={"gateway": {"address": ADDRESS}}), state=state(made()), hub_gateway=frozenset({ADDRESS}))
    )

    assert refused.status is not None
    assert "gateway" not in refused.status.to_manifest(), "and not any longer"
    reason, message = said(refused)["BackendReady"]
    assert (reason, "which is the hub gateway's address" in message) == ("AddressInUse", True)


@pytest.mark.parametrize(
    "what",
    [{}, {"unreachable": Unreachable("no answer")}, {"forbidden": Forbidden("no")}],
    ids=["serving", "silent", "refused"],
)
def test_a_cluster_that_need_not_prove_who_it_is_says_so(what: Manifest) -> None:
    reason, words = said(plan(seen(**what, unverified="it says insecure-skip-tls-verify")))["ServerVerified"]

    assert reason == "NotVerified"
    assert "the operator's credentials: it says insecure-skip-tls-verify; give it" in words


# The token in the kubeconfig ------------------------------------------------------------------------------------------


TOKEN = Token("modelplane-access", "modelplane-operator", EPOCH, EPOCH + timedelta(hours=24))
RENEWAL = RenewToken("a", Key("modelplane-access", "modelplane-operator"), 24 * 3600, KUBECONFIG, "kubeconfig")


def renewed(renewal: str = "TokenRequest", **metadata: Any) -> InferenceCluster:
    origin = {"source": "Existing", "existing": {"secretRef": {"name": "kubeconfig"}, "credentialRenewal": renewal}}
    spec = {"cluster": origin, "nodePools": [POOL]}
    return InferenceCluster.parse({"metadata": {"name": "a", "uid": "uid-of-a", **metadata}, "spec": spec})


def at(hours: float, known: InferenceCluster | None = None, **what: Any) -> Plan:
    """The plan when the token has been there for so long."""
    defaults: Manifest = {"token": TOKEN, "token_observed_at": EPOCH, "now": EPOCH + timedelta(hours=hours)}
    return plan(seen(known or renewed(), **{**defaults, **what}))


def test_a_token_is_renewed_at_half_of_its_time_before_all_else() -> None:
    before, then = at(11), at(12)

    assert RENEWAL not in before.steps
    assert before.requeue_after == timedelta(hours=1).total_seconds()
    assert then.steps == (RENEWAL, *before.steps)
    ends = "The token of the kubeconfig expires at 2026-01-02T00:00:00Z"
    assert said(then)["CredentialsRenewed"] == ("TokenRenewed", f"{ends}, and the operator renews it before")


@pytest.mark.parametrize(
    "what",
    [
        {"forbidden": Forbidden("no")},
        {"state": None},
        {"known": renewed(**terminating()), "replicas": (Key("team", "x"),)},
    ],
    ids=["not permitted", "not seen yet", "being deleted"],
)
def test_a_token_is_renewed_whatever_else_is_wrong(what: Manifest) -> None:
    assert at(13, **what).steps[0] == RENEWAL


def test_a_cluster_that_gives_no_token_is_let_go_all_the_same() -> None:
    asking = at(13, renewed(**terminating()), state=state())
    assert asking.steps == (), "a failure would put off what comes next for minutes"
    emptied = renewed(**terminating()).model_copy(update={"status": asking.status})
    decided = at(13, emptied, state=state())

    assert decided.steps == (SetFinalizer(SECRET, KUBECONFIG, present=False), LET_GO)


@pytest.mark.parametrize(
    "what",
    [
        {"token": None},
        {"known": renewed("Never")},
        {"unreachable": Unreachable("no answer")},
        {"kubeconfig": KubeconfigError("the kubeconfig is not YAML")},
        {"connected": False, "state": None, "kubeconfig": KubeconfigError("the kubeconfig is not YAML")},
        {"token_observed_at": EPOCH + timedelta(hours=13) - timedelta(seconds=9)},
    ],
    ids=["it does not end", "nobody asked", "silent", "another kubeconfig", "no way", "just renewed"],
)
def test_a_token_is_left_alone(what: Manifest) -> None:
    assert RENEWAL not in at(13, **what).steps


def test_a_token_that_nobody_renews_says_when_it_ends() -> None:
    reason, words = said(at(1, renewed("Never")))["CredentialsRenewed"]

    assert reason == "NotRenewed"
    assert words.startswith(
        "The token of the kubeconfig expires at 2026-01-02T00:00:00Z: set spec.cluster.existing.credentialRenewal to"
    )
    assert "CredentialsRenewed" not in said(at(1, token=None))


def test_a_plan_follows_from_its_own_result() -> None:
    first = plan(seen(state=state()))
    assert first.status is not None
    status = first.status.to_manifest()

    again = plan(seen(cluster(status=status), state=state(made(address=None)), now=LATER))

    assert again.steps == first.steps
    assert again.status is not None
    assert merge(first.status.conditions, again.status.conditions)[0].last_transition_time == EPOCH
    assert again.status.gpu_pools == first.status.gpu_pools


LASTS = (
    None,
    {"gateway": {"address": ADDRESS}, "gpuPools": [PUBLISHED], "observed": {"latencyMs": 40, "apis": ["DRA"]}},
)
UNUSABLE = Unreachable("no answer")


@given(
    pools=st.sampled_from([(POOL,), ({**POOL, "maxNodeCount": 9},), (POOL, {"name": "edge", "className": "l4"})]),
    last=st.sampled_from(LASTS),
    metadata=st.sampled_from([{}, terminating()]),
    what=st.fixed_dictionaries(
        {
            "classes": st.sampled_from([{}, {"h200": inference_class()}, {"h200": inference_class(driver="No!")}]),
            "replicas": st.sampled_from([(), (Key("team", "x"),)]),
            "state": st.none()
            | st.builds(
                state,
                children=st.sampled_from([(), made(), made(address=None), made("Gateway")]),
                apis=st.sampled_from([APIS, frozenset[str]()]),
                hardware=st.sampled_from([None, FOUR_NODES, hardware(), hardware(node("a")), UNUSABLE]),
                has_namespace=st.booleans(),
                latency=st.sampled_from([None, 0.001, 0.2]),
                others=st.sampled_from([(), ("Job team/x",)]),
            ),
            "unreachable": st.sampled_from([None, UNUSABLE]),
            "forbidden": st.sampled_from([None, Forbidden("no")]),
            "kubeconfig": st.sampled_from([None, KubeconfigError("the kubeconfig is not YAML")]),
            "connected": st.booleans(),
            "helm": st.booleans(),
            "stack": st.deferred(
                lambda: st.sampled_from([None, stack(), stack("False"), stack(deletionTimestamp=EPOCH.isoformat())])
            ),
        }
    ),
)
def test_a_plan_over_its_own_result_says_and_asks_the_same(
    pools: tuple[Manifest, ...], last: Manifest | None, metadata: Manifest, what: Manifest
) -> None:
    first = plan(seen(cluster(*pools, status=last, **metadata), **what))
    if first.status is None:
        return
    reported = first.status.to_manifest()

    again = plan(seen(cluster(*pools, status=reported, **metadata), **what, now=LATER))

    if is_emptied(first.status):  # what was said of the last is all that letting go waited for
        assert LET_GO in again.steps
        return
    assert again.steps == first.steps
    assert again.status is not None
    merged = merge(first.status.conditions, again.status.conditions)
    assert again.status.model_copy(update={"conditions": merged}) == first.status.model_copy(
        update={"conditions": merge((), first.status.conditions)}
    )
    if last and not what["state"]:
        assert reported["gateway"] == last["gateway"], "nothing is taken back that cannot be seen"
        assert {pool["name"] for pool in last["gpuPools"]} <= {pool["name"] for pool in reported["gpuPools"]}


def test_a_namespace_that_somebody_made_is_left_to_them() -> None:
    decided = plan(seen(state=state(made("EnvoyProxy", "GatewayClass", "Gateway"), has_namespace=True)))

    assert [step.manifest["kind"] for step in decided.steps if isinstance(step, Apply)] == [
        "EnvoyProxy",
        "GatewayClass",
        "Gateway",
        "ClientTrafficPolicy",
        "BackendTrafficPolicy",
    ]


# With a ServingStack -------------------------------------------------------------------------------------------------


def stack(
    ready: str = "True", *, address: str | None = ADDRESS, refused: str = "", reason: str = "Any", **metadata: Any
) -> Manifest:
    """The stack of the cluster, as it stands on the hub."""
    wanted = render_stack(cluster())
    told = {
        "Ready": (ready, "all of it" if ready == "True" else "cert-manager is not installed"),
        "Synced": ("False" if refused else "True", refused),
    }
    known = {"reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {
        "conditions": [
            {"type": kind, "status": status, "message": message, **known} for kind, (status, message) in told.items()
        ],
        **({"gateway": {"address": address}} if address else {}),
    }
    made = {"uid": "uid-of-stack", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**wanted, "metadata": {**wanted["metadata"], **made, **metadata}, "status": status}


STACK = f"modelplane-system/{names.serving_stack('a')}"
BARE = state(apis=frozenset({"DRA"}))  # a cluster with nothing on it


@pytest.mark.parametrize(
    ("what", "address", "backend", "ready"),
    [
        ({"helm": True}, None, f"Installing: ServingStack {STACK} is being created", "Creating"),
        (
            {"helm": True, "stack": stack("False", address=None)},
            None,
            f"Installing: ServingStack {STACK}: cert-manager is not installed",
            "Creating",
        ),
        (
            {"helm": True, "stack": stack("False", address=None, refused="Namespace x is another owner's")},
            None,
            f"Installing: ServingStack {STACK}: Namespace x is another owner's; cert-manager is not installed",
            "Creating",
        ),
        (
            {"helm": True, "stack": stack("False", address=None, reason="InstallFailed")},
            None,
            f"InstallFailed: ServingStack {STACK}: cert-manager is not installed",
            "InstallFailed",
        ),
        ({"helm": True, "stack": stack()}, ADDRESS, "BackendHealthy", "Available"),
        (
            {"helm": True, "stack": stack(reason="Degraded")},
            ADDRESS,
            f"Degraded: ServingStack {STACK}: all of it",
            "Degraded",
        ),
        (
            {"helm": True, "stack": stack("Unknown")},
            ADDRESS,
            f"Unreachable: ServingStack {STACK}: cert-manager is not installed",
            "Unreachable",
        ),
        (
            {"stack": stack()},
            ADDRESS,
            f"BackendHealthy: ServingStack {STACK} is not changed, as this operator runs without Helm",
            "Available",
        ),
    ],
    ids=[
        "not there yet",
        "being installed",
        "in the way of another",
        "failed",
        "there",
        "there, but for what models can do without",
        "not seen",
        "there, and Helm is no longer",
    ],
)
def test_where_charts_are_installed_a_stack_makes_the_gateway(
    what: Manifest, address: str | None, backend: str, ready: str
) -> None:
    decided = plan(seen(state=BARE, **what))

    assert decided.steps == (KEEP, SetFinalizer(SECRET, KUBECONFIG), Apply(render_stack(cluster())))
    assert ": ".join(filter(None, said(decided)["BackendReady"])) == backend
    assert said(decided)["Ready"][0] == ready
    assert decided.status is not None
    published = decided.status.to_manifest().get("gateway", {})
    assert published == ({"address": address} if address else {})


@pytest.mark.parametrize(("ports", "port"), [((8080,), 8080), ((8080, 80), None), ((8080, 9090), 8080)])
def test_a_gateway_on_another_port_is_reached_by_that(ports: tuple[int, ...], port: int | None) -> None:
    with_listeners = stack()
    listeners = [{"name": f"http-{number}", "port": number, "protocol": "HTTP"} for number in ports]
    with_listeners["spec"]["gateway"] = {"listeners": listeners}
    status = plan(seen(state=BARE, helm=True, stack=with_listeners)).status
    assert status is not None
    assert status.to_manifest()["gateway"] == {"address": ADDRESS, **({"port": port} if port else {})}

    known = read(InferenceCluster.parse({**cluster().to_manifest(), "status": status.to_manifest()}))
    endpoint = render_endpoint(
        deployment(), Placement("a", 0, ()), known.gateway, known.server_name, known.gateway_port
    )
    assert endpoint["spec"]["url"].startswith(f"http://{ADDRESS}{f':{port}' if port else ''}/")


def test_what_a_cluster_says_of_its_gateway_its_stack_says_too() -> None:
    known = cluster().to_manifest()
    asked = {"replicas": 2, "service": {"scope": "Internal"}}
    known["spec"]["gateway"] = asked

    assert render_stack(InferenceCluster.parse(known))["spec"]["gateway"] == asked
    assert "gateway" not in render_stack(cluster())["spec"]


def test_the_parts_that_a_cluster_names_its_stack_names_too() -> None:
    known = cluster().to_manifest()
    asked = [{"name": "prometheus", "enabled": False}, {"name": "cert-manager", "values": {"replicaCount": 2}}]
    known["spec"]["stack"] = {"components": asked}

    assert render_stack(InferenceCluster.parse(known))["spec"]["components"] == asked
    assert "components" not in render_stack(cluster())["spec"]


def test_a_gateway_that_was_made_before_there_was_a_helm_stays_as_it_is() -> None:
    decided = plan(seen(helm=True))

    assert decided.steps == plan(seen()).steps
    words = "The gateway of cluster a was created without Helm, so this operator installs nothing there"
    assert said(decided)["BackendReady"] == ("BackendHealthy", words)


def test_a_cluster_waits_until_its_stack_is_gone() -> None:
    known: Manifest = {"state": BARE, "helm": True}
    first = plan(seen(cluster(**terminating()), stack=stack(), **known))
    (step,) = first.steps
    assert isinstance(step, Delete)
    assert (str(step.key), step.uid, step.cluster) == (STACK, "uid-of-stack", "")
    assert said(first)["Ready"] == ("Deleting", f"The software of cluster a is being uninstalled: ServingStack {STACK}")

    then = plan(seen(cluster(**terminating()), stack=stack("False", deletionTimestamp=EPOCH.isoformat()), **known))
    assert then.steps == ()
    waits = f"The software of cluster a is being uninstalled: ServingStack {STACK} (cert-manager is not installed)"
    assert said(then)["Ready"] == ("Deleting", waits)

    last = let_go(seen(cluster(**terminating()), **known))
    assert last.steps == (SetFinalizer(SECRET, KUBECONFIG, present=False), LET_GO)


def test_a_namespace_that_others_need_is_named_and_left() -> None:
    """It holds up nobody: the cluster is let go once that was said."""
    leaving: Manifest = {"state": state(spared=("Namespace modelplane-team",))}
    first = plan(seen(cluster(**terminating()), **leaving))

    assert first.status is not None
    assert first.steps == ()
    assert said(first)["Ready"][1].startswith("Namespaces stay on cluster a, ")
    assert said(first)["Ready"][1].endswith(": Namespace modelplane-team")
    assert plan(seen(cluster(status=first.status.to_manifest(), **terminating()), **leaving)).steps[-1] == LET_GO


@pytest.mark.parametrize(
    ("orphans", "wanted"),
    [
        (None, None),
        ((), ("AllOwned", "")),
        (
            tuple(f"Deployment modelplane-team/{name}" for name in "abcdefg"),
            (
                "OrphansFound",
                "Nothing on this hub owns 7 objects of the operator's on cluster a: "
                + ", ".join(f"Deployment modelplane-team/{name}" for name in "abcde")
                + " and 2 more; delete those that no other hub created",
            ),
        ),
    ],
)
def test_what_belongs_to_nothing_is_told_and_left_alone(
    orphans: tuple[str, ...] | None, wanted: tuple[str, str] | None
) -> None:
    decided = plan(seen(state=state(made(), orphans=orphans)))

    assert decided.status is not None
    assert said(decided).get("ObjectsOwned") == wanted
    assert decided.status.to_manifest().get("orphans") == (None if orphans is None else len(orphans))
    assert decided.requeue_after == (None if orphans is None else 300.0)
    assert not any(isinstance(step, Delete) for step in decided.steps)


def test_a_cluster_that_is_abandoned_has_its_stack_go_too() -> None:
    status = plan(seen(cluster(**terminating(annotations={labels.ABANDON: "true"})))).status
    assert status is not None
    known = cluster(status=status.to_manifest(), **terminating(annotations={labels.ABANDON: "true"}))

    steps = plan(seen(known, state=None, unreachable=UNUSABLE, helm=True, stack=stack())).steps

    assert [type(step) for step in steps] == [Delete, SetFinalizer, SetFinalizer]


SINCE = "since 2026-01-01T00:00:00Z: GET /readyz: not accepted"
ALONE = (
    "Cluster a misbehaves, so the operator waits some minutes between attempts, since 2026-01-01T00:00:00Z: "
    "list pods: the answer is no object"
)
LAST = {"gateway": {"address": ADDRESS}, "gpuPools": [PUBLISHED]}
FRESH = {**PUBLISHED, "devices": [{**DEVICE, "capacity": {"memory": {"value": "plenty"}}}]}
WRONG = inference_class(capacity={"memory": {"value": "plenty"}})
WAITING = "Gateway inference-gateway has no address yet: waiting for a load balancer"
GONE = "InferenceClass h200 does not exist: create it, or correct className of the pool"
NO_L4 = GONE.replace("h200", "l4")
UNREADABLE = "InvalidClass: InferenceClass h200 has devices that cannot be read: see Accepted there"
LOST = f"Unreachable: Cluster a has not answered since {EPOCH:%Y-%m-%dT%H:%M:%SZ}: ping: no answer in time"
NO_CLOUD = "The operator does not create clusters on AKS: create it there yourself, and add it with `source: Existing`"
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
                "NodePoolsValid": f"WaitingForClasses: {GONE}; its pools stay as they were last read",
                "ClusterReady": "ClusterRunning",
                "Ready": "Available",
            },
            id="a class that went leaves the pool as it was",
        ),
        pytest.param(
            cluster({**POOL, "nodeCount": 2}, status=LAST),
            {"classes": {"h200": WRONG}},
            [{**PUBLISHED, "nodes": 2}],
            {
                "NodePoolsValid": UNREADABLE,
                "Ready": "Available",
            },
            id="a class that turns wrong leaves the devices, and the pool's own size counts",
        ),
        pytest.param(
            cluster(),
            {"classes": {"h200": WRONG}},
            [FRESH],
            {
                "NodePoolsValid": UNREADABLE,
                "Ready": "Available",
            },
            id="of a class that was always wrong, what can be read counts",
        ),
        pytest.param(
            cluster(POOL, L4),
            {},
            [PUBLISHED],
            {
                "NodePoolsValid": f"WaitingForClasses: {NO_L4}",
                "ClusterReady": "ClusterRunning",
                "Ready": f"Degraded: Pool edge: {NO_L4}",
            },
            id="a pool of which nothing was ever known closes no other",
        ),
        pytest.param(
            cluster(L4),
            {},
            [],
            {
                "ClusterReady": f"WaitingForClasses: {NO_L4}",
                "Ready": f"WaitingForClasses: No pool can be used: pool edge: {NO_L4}",
            },
            id="without any pool of which something is known nothing can be placed",
        ),
        pytest.param(
            cluster(),
            {"state": state(made(), hardware=None)},
            [PUBLISHED],
            {"Ready": "Creating: The cluster is starting (waiting for: the list of its nodes)"},
            id="nothing is placed before the nodes were counted",
        ),
        pytest.param(
            cluster(status=LAST),
            {"state": None, "unreachable": Unreachable("ping: no answer in time")},
            [PUBLISHED],
            {
                "ClusterReady": LOST,
                "BackendReady": "Unreachable: Cluster a cannot be reached: see ClusterReady",
                "Ready": LOST,
            },
            id="a cluster that does not answer keeps what was known",
        ),
        pytest.param(
            cluster(status=LAST),
            {
                "state": None,
                "unreachable": Unauthorized("GET /readyz: not accepted"),
                "server": "https://api.east:6443",
            },
            [PUBLISHED],
            {
                "ClusterReady": f"Unreachable: Cluster a rejects the operator's credentials {SINCE} (https://api.east:6443)"
            },
            id="a cluster that refuses our credentials is named by its address",
        ),
        pytest.param(
            cluster(status=LAST),
            {"state": None, "unreachable": ServerFault("GET /readyz: 500; failing: etcd"), "server": "https://a:6443"},
            [PUBLISHED],
            {
                "ClusterReady": (
                    "Unreachable: The API server of cluster a answers but is not ready since 2026-01-01T00:00:00Z (GET"
                    " /readyz: 500; failing: etcd) (https://a:6443): look at its control plane, etcd first"
                )
            },
            id="a cluster whose API server is not ready",
        ),
        pytest.param(
            cluster(),
            {"secrets": Secrets(own=Key("modelplane-system", "east"), terminating=True)},
            [PUBLISHED],
            {
                "ClusterReady": (
                    "ClusterRunning: Secret modelplane-system/east is being deleted, and is kept only while a cluster"
                    " names it: put the kubeconfig into another Secret, and name that one in"
                    " spec.cluster.existing.secretRef"
                ),
                "Ready": (
                    "Degraded: Secret modelplane-system/east is being deleted, and is kept only while a cluster names"
                    " it: put the kubeconfig into another Secret, and name that one in spec.cluster.existing.secretRef"
                ),
            },
            id="a Secret that is being deleted while it is used",
        ),
        pytest.param(
            cluster(status=LAST),
            {"state": None, "unreachable": Misbehaving("list pods: the answer is no object")},
            [PUBLISHED],
            {
                "ClusterReady": f"Misbehaving: {ALONE}",
                "BackendReady": "Unreachable: Cluster a cannot be reached: see ClusterReady",
                "Ready": f"Unreachable: {ALONE}",
            },
            id="a cluster that misbehaves keeps what was known",
        ),
        pytest.param(
            cluster(status=LAST),
            {"state": None, "connected": False, "kubeconfig": KubeconfigError("Secret kubeconfig does not exist")},
            [PUBLISHED],
            {
                "ClusterReady": "InvalidKubeconfig: Secret kubeconfig does not exist",
                "BackendReady": "WaitingForCluster",
                "Ready": "InvalidKubeconfig: Secret kubeconfig does not exist",
            },
            id="a kubeconfig that cannot be read",
        ),
        pytest.param(
            cluster(),
            {"kubeconfig": KubeconfigError("Secret kubeconfig does not exist")},
            [PUBLISHED],
            {
                "ClusterReady": (
                    "ClusterRunning: Cluster a is still reached with the previous kubeconfig, but Secret kubeconfig"
                    " does not exist"
                ),
                "Ready": (
                    "Degraded: Cluster a is still reached with the previous kubeconfig, but Secret kubeconfig does not"
                    " exist"
                ),
            },
            id="a kubeconfig that goes leaves the connection",
        ),
        pytest.param(
            cluster(source="AKS"),
            {"state": None, "connected": False},
            [PUBLISHED],
            {
                "ClusterReady": f"UnsupportedSource: {NO_CLOUD}",
                "BackendReady": "WaitingForCluster",
            },
            id="a cluster that is to be made on a cloud",
        ),
        pytest.param(
            cluster(),
            {"state": state(apis=frozenset({"DRA"}))},
            [PUBLISHED],
            {
                "BackendReady": (
                    "NotInstalled: Cluster a has no gateway, as it lacks the Gateway API (gateway.networking.k8s.io/v1)"
                    " and Envoy Gateway (gateway.envoyproxy.io/v1alpha1): install it there"
                ),
                "Ready": (
                    "NotInstalled: Cluster a has no gateway, as it lacks the Gateway API (gateway.networking.k8s.io/v1)"
                    " and Envoy Gateway (gateway.envoyproxy.io/v1alpha1): install it there"
                ),
            },
            id="a cluster without Envoy Gateway",
        ),
        pytest.param(
            cluster(),
            {"state": state(made(address=None))},
            [PUBLISHED],
            {
                "BackendReady": f"Installing: {WAITING}; {GIVE_ADDRESSES}",
                "Ready": f"Creating: {WAITING}; {GIVE_ADDRESSES}",
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
    assert plan(seen(state=None)) == Plan(requeue_after=0.5)


def test_the_moment_of_the_silence_is_that_of_the_condition() -> None:
    silent: Manifest = {"state": None, "unreachable": Unreachable("no answer")}
    first = plan(seen(**silent)).status
    assert first is not None

    again = plan(seen(cluster(status=first.to_manifest()), **silent, now=LATER)).status

    assert again is not None
    assert merge(first.conditions, again.conditions) == merge((), first.conditions)


# Hardware -------------------------------------------------------------------------------------------------------------

HALF = slice_of("b", "70Gi")
LABEL = "with the label modelplane.ai/pool=gpu: label them, or correct nodeCount"
WAS_READY = {"type": "Ready", "status": "True", "reason": "Available", "lastTransitionTime": EPOCH.isoformat()}


@pytest.mark.parametrize(
    ("known", "there_is", "counts", "observed", "wanted"),
    [
        pytest.param(cluster(), FOUR_NODES, 4, (4, 4), "AllPresent", id="all that is declared"),
        pytest.param(
            cluster({**POOL, "nodeCount": 2}),
            FOUR_NODES,
            2,
            (4, 4),
            "AllPresent",
            id="more than is declared is not used",
        ),
        pytest.param(
            cluster(),
            hardware(node("a"), node("b"), node("x", pool="other")),
            2,
            (2, 2),
            f"NodesMissing: Pool gpu: 2 of 4 nodes {LABEL}",
            id="nodes that are not there do not count",
        ),
        pytest.param(
            cluster(),
            hardware(),
            0,
            (0, 0),
            f"NodesMissing: Pool gpu: 0 of 4 nodes {LABEL}",
            id="where no node is there none counts",
        ),
        pytest.param(
            cluster({**POOL, "minNodeCount": 3, "maxNodeCount": 9}),
            hardware(node("a"), node("b")),
            9,
            (2, 2),
            f"NodesMissing: Pool gpu: 2 of 3 nodes {LABEL}",
            id="of an autoscaled pool the maximum counts and the minimum must be there",
        ),
        pytest.param(
            cluster({**POOL, "maxNodeCount": 9}), hardware(), 9, (0, 0), "AllPresent", id="an autoscaled pool at rest"
        ),
        # kubelet 1.36 says of a node that joins, or is shut down: False; nothing of one that is lost: Unknown
        pytest.param(
            cluster({**POOL, "maxNodeCount": 9}),
            hardware(node("a"), node("b", ready="False", since=minutes_ago(2))),
            9,
            (2, 1),
            "AllPresent",
            id="a node that an autoscaler adds needs nobody",
        ),
        pytest.param(
            cluster({**POOL, "maxNodeCount": 9}),
            hardware(node("a"), node("b", ready="False", since=minutes_ago(20))),
            9,
            (2, 1),
            f"NodesMissing: Pool gpu: 1 of 2 nodes usable (1 not ready): node b is not ready since {minutes_ago(20)}",
            id="a node that takes too long to join is missed",
        ),
        pytest.param(
            cluster({**POOL, "maxNodeCount": 9}),
            hardware(node("a"), node("b", ready="Unknown", since=minutes_ago(2))),
            9,
            (2, 1),
            f"NodesMissing: Pool gpu: 1 of 2 nodes usable (1 not ready): node b is not ready since {minutes_ago(2)}",
            id="a lost node of an autoscaled pool is missed",
        ),
        pytest.param(
            cluster({**POOL, "nodeCount": 3}),
            hardware(node("a", ready="Unknown"), node("b", unschedulable=True), node("c")),
            1,
            (3, 1),
            "NodesMissing: Pool gpu: 1 of 3 nodes usable (1 cordoned, 1 not ready): node a is not ready",
            id="nodes that take no pods do not count",
        ),
        pytest.param(
            cluster({**POOL, "nodeCount": 2}),
            hardware(node("a"), node("b"), node("c", unschedulable=True)),
            2,
            (3, 2),
            "AllPresent",
            id="a cordoned node of more than are declared is not missed",
        ),
        pytest.param(
            cluster({**POOL, "nodeCount": 2}),
            hardware(node("a"), node("b"), slices=[slice_of("a", "141Gi")]),
            1,
            (2, 1),
            f"DevicesMissing: Pool gpu: 1 of 2 nodes usable (1 lacking devices): node b has 0 of 1 gpu ({GPU})",
            id="a node whose driver has published nothing does not count",
        ),
        pytest.param(
            cluster({**POOL, "nodeCount": 2}),
            hardware(node("a"), node("b"), slices=[slice_of("a", "200Gi"), HALF]),
            1,
            (2, 1),
            f"DevicesMissing: Pool gpu: 1 of 2 nodes usable (1 lacking devices): "
            f"node b has 0 of 1 gpu ({GPU}) with memory 141Gi, the others have less",
            id="a device that is smaller than declared does not count, a larger one does",
        ),
        pytest.param(
            cluster({**POOL, "nodeCount": 1}),
            hardware(node("a"), slices=[slice_of("a", "141Gi"), slice_of("a", generation=2)]),
            0,
            (1, 0),
            f"DevicesMissing: Pool gpu: 0 of 1 node usable (1 lacking devices): node a has 0 of 1 gpu ({GPU})",
            id="what an older generation of a pool says counts no more",
        ),
        pytest.param(
            cluster({**POOL, "nodeCount": 1}),
            hardware(node("a"), slices=[slice_of("a", "141Gi", taints=[{"key": "broken", "effect": "NoSchedule"}])]),
            0,
            (1, 0),
            f"DevicesMissing: Pool gpu: 0 of 1 node usable (1 lacking devices): node a has 0 of 1 gpu ({GPU})",
            id="a device with a taint does not count",
        ),
        pytest.param(
            cluster({**POOL, "nodeCount": 1}),
            hardware(node("a"), slices=[slice_of(None, "141Gi")]),
            1,
            (1, 1),
            "AllPresent",
            id="devices of no single node cannot be counted",
        ),
        pytest.param(
            cluster(status={**LAST, "gpuPools": [{**PUBLISHED, "nodes": 3}], "conditions": [WAS_READY]}),
            None,
            3,
            None,
            "NotSeen: The cluster is starting (waiting for: the list of its nodes)",
            id="before nodes were seen those of the last time count",
        ),
        pytest.param(
            cluster(status={**LAST, "gpuPools": [{**PUBLISHED, "nodes": 3}]}),
            Forbidden("list nodes: not allowed"),
            4,
            None,
            "NotSeen: The nodes of cluster a cannot be listed: list nodes: not allowed",
            id="where nodes may not be listed the declared ones count",
        ),
    ],
)
def test_what_exists_counts_and_what_is_missing_is_said(
    known: InferenceCluster, there_is: Any, counts: int, observed: tuple[int, int] | None, wanted: str
) -> None:
    decided = plan(seen(known, state=state(made(), hardware=there_is)))

    assert decided.status is not None
    assert [pool.nodes for pool in decided.status.gpu_pools] == [counts]
    assert decided.status.observed is not None
    found = [(pool.nodes, pool.usable) for pool in decided.status.observed.pools]
    assert found == ([observed] if observed else [])
    assert ": ".join(filter(None, said(decided)["GPUReady"])) == wanted
    missing = "Missing" in wanted
    assert said(decided)["Ready"] == (("Degraded", said(decided)["GPUReady"][1]) if missing else ("Available", ""))


def test_a_pool_publishes_what_the_least_of_its_nodes_has_for_pods_and_keeps_it_when_they_go() -> None:
    large, small = {"cpu": "191900m", "memory": "2113929216Ki"}, {"cpu": "96", "memory": "1Ti", "pods": "110"}
    subject = cluster()

    def published(known: Any, *nodes: Manifest) -> Any:
        return plan(seen(known, state=state(made(), hardware=hardware(*nodes)))).status

    first = published(subject, node("a", offers=large), node("b", offers=small))
    later = published(subject.model_copy(update={"status": first}))
    silent = published(subject, node("a", offers=large), node("b"))

    assert first.gpu_pools[0].allocatable == Amounts(cpu="96", memory="1024Gi")
    assert later.gpu_pools[0].allocatable == first.gpu_pools[0].allocatable
    assert silent.gpu_pools[0].allocatable is None, "a node that says nothing may have less than all others"


ZONE = "topology.kubernetes.io/zone"


def test_a_pool_publishes_the_fabric_that_most_of_its_usable_nodes_are_on_while_it_sees_them() -> None:
    def largest(pool: Manifest, *nodes: Manifest, last: Any = None) -> Any:
        known = cluster({"name": "gpu", "className": "h200", "nodeCount": 4, **pool})
        known = known.model_copy(update={"status": last}) if last else known
        there_is = None if last else hardware(*nodes)
        status: Any = plan(seen(known, state=state(made(), hardware=there_is))).status
        return status

    zones = {"fabric": {"topologyKey": ZONE}}
    east, west = ({ZONE: zone} for zone in ("east", "west"))
    nodes = [node("a", fabrics=east), *(node(name, fabrics=west) for name in "bc")]
    first = largest(zones, *nodes)
    down = [node(name, fabrics=west, ready="False") for name in "bc"]

    assert first.gpu_pools[0].largest_fabric == Fabric(value="west", nodes=2)
    assert largest(zones, nodes[0], *down).gpu_pools[0].largest_fabric == Fabric(value="east", nodes=1)
    assert largest(zones, node("a", fabrics={ZONE: ""})).gpu_pools[0].largest_fabric == Fabric(value="", nodes=0)
    assert largest(zones, last=first).gpu_pools[0].largest_fabric == Fabric(value="west", nodes=2)
    assert largest({}, *nodes).gpu_pools[0].largest_fabric is None
    assert largest({**zones, "maxNodeCount": 8}, *nodes).gpu_pools[0].largest_fabric is None, "it grows"
    assert largest(zones, *nodes, node("d")).gpu_pools[0].largest_fabric is None, "nobody has looked at that one"
    assert largest(zones).gpu_pools[0].largest_fabric is None, "there are none yet"


def test_the_labels_by_which_a_fleet_tells_fabrics_are_kept_of_nodes_and_no_others() -> None:
    fabrics, clusters = Fabrics(), Informer(of(InferenceCluster), lambda: 0.0)
    fabrics.add_event_handlers(clusters)
    plain = {"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {ZONE: "east", "other": "x"}}}

    def kept(version: int, **fabric: Any) -> Any:
        manifest = cluster({"name": "gpu", "className": "h200", **fabric}).to_manifest()
        manifest["metadata"] |= {"uid": "c", "resourceVersion": str(version)}
        clusters.on_event(Event("MODIFIED", manifest))
        return fabrics.prune_node(plain).get("fabrics", {})

    assert kept(1) == {}
    assert kept(2, fabric={"topologyKey": ZONE}) == {ZONE: "east"}
    assert kept(3, fabric={"topologyKey": "rack"}) == {"rack": ""}
    assert kept(4) == {}


@pytest.mark.parametrize(
    ("offers", "published"),
    [
        ({"cpu": "9e99", "memory": "9e99"}, Amounts(cpu="10000", memory="16000Gi")),
        ({"cpu": "-4", "memory": "1Ti"}, None),
        ({"cpu": "many", "memory": "1Ti"}, None),
        ({"cpu": "8", "memory": "512Mi"}, None),
    ],
)
def test_a_node_that_says_what_cannot_be_breaks_no_status(offers: Manifest, published: Amounts | None) -> None:
    status: Any = plan(seen(state=state(made(), hardware=hardware(node("a", offers=offers))))).status

    assert status.gpu_pools[0].allocatable == published


def test_a_cluster_without_dynamic_resource_allocation_says_so() -> None:
    decided = plan(seen(state=state(made(), apis=APIS - {"DRA"}, hardware=hardware(node("a"), slices=[]))))

    reason, message = said(decided)["GPUReady"]
    assert reason == "DevicesMissing"
    assert message.startswith("The cluster does not serve resource.k8s.io/v1")


def test_what_a_user_may_not_see_is_said_and_what_was_known_stays() -> None:
    refused = Forbidden("list gateways: user models may not list")

    decided = plan(seen(cluster(status=LAST), state=None, forbidden=refused))

    assert said(decided)["ClusterReady"] == (
        "NotPermitted",
        f"The operator lacks a permission on cluster a: {refused}; apply the access manifest there again",
    )
    assert decided.requeue_after, "nothing tells when somebody is given a permission"
    assert decided.status is not None
    assert decided.status.to_manifest()["gpuPools"] == [PUBLISHED]
    assert decided.status.to_manifest()["gateway"] == {"address": ADDRESS}


@pytest.mark.parametrize(
    ("last", "seconds", "told"),
    [(None, 0.0004, 50), (50, 0.149, 50), (50, 0.151, 151), (151, 0.051, 151), (151, 0.0502, 50), (200, None, 200)],
)
def test_latency_is_told_anew_only_when_it_is_another_by_far(
    last: int | None, seconds: float | None, told: int
) -> None:
    known = cluster(status={"observed": {"latencyMs": last}} if last else None)

    decided = plan(seen(known, state=state(made(), latency=seconds)))

    assert decided.status is not None
    assert decided.status.observed is not None
    assert decided.status.observed.latency_ms == told


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"driver": GPU},
        {"driver": {}, "pool": {"name": "a", "generation": 1}},
        {"driver": GPU, "pool": "a"},
        {"driver": GPU, "pool": {"name": "a", "generation": "1"}},
        {"driver": GPU, "pool": {"name": ["a"], "generation": 1}},
    ],
    ids=str,
)
def test_a_slice_that_is_none_is_passed_over_when_it_comes_in(spec: Manifest) -> None:
    slices = Informer(RESOURCE_SLICE, lambda: 0.0, keeping=prune_slice)
    metadata = {"name": "a", "uid": "a", "resourceVersion": "1"}
    slices.on_event(Event("ADDED", {"metadata": metadata, "spec": spec}))

    assert slices.count == 0


def test_of_nodes_and_slices_only_what_counts_is_kept() -> None:
    assert node("a", unschedulable=True, providerID="x") == {
        "metadata": {"name": "a", "uid": "uid-a", "resourceVersion": "1", "labels": {labels.POOL: "gpu"}},
        "spec": {"unschedulable": True},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert slice_of("a", "80Gi", "40Gi", "80Gi", attributes={"uuid": {"string": "x"}})["spec"] == {
        "driver": GPU,
        "nodeName": "a",
        "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"capacity": {"memory": "40Gi"}, "count": 1}, {"capacity": {"memory": "80Gi"}, "count": 2}],
    }


def test_kubeconfigs_have_our_finalizer_while_a_cluster_names_them() -> None:
    old = Key("modelplane-system", "old")

    decided = plan(seen(secrets=Secrets(KUBECONFIG, unneeded=(old,))))

    assert decided.steps[:2] == (KEEP, SetFinalizer(SECRET, KUBECONFIG))
    assert decided.steps[-1] == SetFinalizer(SECRET, old, present=False)


# Deletion -------------------------------------------------------------------------------------------------------------


def let_go(observed: Observed) -> Plan:
    """The decision after nothing is left on the cluster, and that was said."""
    first = plan(observed)
    assert first.steps == ()
    assert phase(first) == ("UninstallServingStack", [])
    assert first.status is not None
    return plan(replace(observed, cluster=observed.cluster.model_copy(update={"status": first.status})))


def phase(decided: Plan) -> tuple[str, list[str]] | None:
    found = decided.status.deletion if decided.status else None
    return (found.phase, list(found.waiting_for)) if found else None


@pytest.mark.parametrize(
    ("what", "wanted", "message"),
    [
        (
            {"replicas": tuple(Key("team", name) for name in "abcdefg")},
            ("Blocked", [f"ModelReplica team/{name}" for name in "abcde"]),
            (
                "Replicas are placed on cluster a: ModelReplica team/a, ModelReplica team/b, ModelReplica team/c,"
                " ModelReplica team/d, ModelReplica team/e and 2 more; they fit nowhere else: add capacity, or force it"
                ' by annotating the InferenceCluster with modelplane.ai/force-drain="true"'
            ),
        ),
        (
            {"state": None, "unreachable": Unreachable("no answer")},
            ("Unreachable", []),
            "Cluster a cannot be cleaned up: no answer; annotate the InferenceCluster with "
            f'{labels.ABANDON}="true" to leave everything there',
        ),
        (
            {"state": state(made(), others=("Deployment team/x",))},
            ("DrainServing", ["Deployment team/x"]),
            (
                "Objects of models are left on cluster a: Deployment team/x; delete them there if no other hub does, or"
                ' annotate the InferenceCluster with modelplane.ai/abandon="true" to leave them'
            ),
        ),
    ],
    ids=["replicas", "unreachable", "objects of models"],
)
def test_a_cluster_that_is_deleted_says_what_it_waits_for(what: Manifest, wanted: Any, message: str) -> None:
    decided = plan(seen(cluster(status=LAST, **terminating()), **what))

    assert decided.steps == ()
    assert phase(decided) == wanted
    assert said(decided) == {"Ready": ("Deleting", message)}
    assert decided.status is not None
    assert decided.status.to_manifest()["gpuPools"] == [PUBLISHED]


def test_nothing_is_said_of_a_deletion_before_the_cluster_was_seen() -> None:
    assert plan(seen(cluster(**terminating()), state=None)) == Plan(requeue_after=0.5)


def test_what_was_made_there_goes_in_reverse_one_after_another_and_then_the_object() -> None:
    secured = [{"apiVersion": "v1", "kind": "Secret", "metadata": certificate(cluster())}]
    secured += [one for one in render_cluster_gateway(cluster(), https=True) if one["kind"] == "ClientTrafficPolicy"]
    left = [*made(), *({**one, "metadata": {**one["metadata"], "uid": one["kind"]}} for one in secured)]
    order: list[str] = []
    while left:
        decided = plan(seen(cluster(**terminating()), state=state(left)))
        (step,) = decided.steps
        assert isinstance(step, Delete)
        assert step.cluster == "a"
        assert (phase(decided) or ("",))[0] == "UninstallServingStack"
        order.append(step.type.kind)
        left = [child for child in left if child["metadata"]["uid"] != step.uid]

    assert order == [kind.kind for kind in reversed(CHILDREN)]
    assert let_go(seen(cluster(**terminating()), state=state())) == Plan(
        (SetFinalizer(SECRET, KUBECONFIG, present=False), LET_GO)
    )


def test_a_cluster_goes_whose_kubeconfig_went_before_it() -> None:
    """As when the operator is killed between the two, and the Secret was being deleted."""
    told = plan(seen(cluster(**terminating()), state=state())).status
    assert told is not None
    emptied = cluster(status=told.to_manifest(), **terminating())
    gone: Manifest = {"state": None, "kubeconfig": KubeconfigError("no such Secret"), "connected": False}

    assert plan(seen(emptied, **gone, secrets=Secrets())) == Plan((LET_GO,))
    before = plan(seen(cluster(**terminating()), **gone, secrets=Secrets()))
    assert (before.steps, phase(before)) == ((), ("Unreachable", []))
    back = seen(emptied, **gone, secrets=Secrets(), replicas=(Key("team", "x"),))
    assert phase(plan(back)) == ("Blocked", ["ModelReplica team/x"])


def test_a_cluster_that_was_never_reached_goes_at_once() -> None:
    never = cluster(deletionTimestamp=EPOCH.isoformat(), finalizers=["theirs"])

    assert plan(seen(never, state=None, unreachable=Unreachable("no answer"))) == Plan()


def test_a_cluster_is_abandoned_once_it_has_said_what_stays() -> None:
    left = terminating(annotations={labels.ABANDON: "true"})
    what: Manifest = {"state": None, "unreachable": Unreachable("no answer"), "replicas": (Key("team", "x"),)}

    first = plan(seen(cluster(**left), **what))
    assert first.steps == ()
    assert first.requeue_after
    assert said(first)["ClusterReady"][0] == "Abandoned"
    assert first.status is not None

    told = cluster(**left, status=first.status.to_manifest())
    assert plan(seen(told, **what)) == Plan((SetFinalizer(SECRET, KUBECONFIG, present=False), LET_GO))
    assert plan(seen(told, **what, secrets=Secrets(KUBECONFIG, is_shared=True))) == Plan((LET_GO,))


def test_the_same_cluster_under_another_name_gets_nothing_made_there() -> None:
    """What is placed on it stays, and so does what was known of its gateway."""
    known = cluster(status={"gateway": {"address": ADDRESS}, "observed": {"version": "v1.36.3"}})
    twice = Registered(identity="x", first="first")
    decided = plan(seen(known, state=state(made(), registered=twice), helm=True, replicas=(KUBECONFIG,)))

    words = (
        "Cluster a is the same cluster as InferenceCluster first, so the operator creates nothing there for this one:"
        " delete one of the two"
    )
    assert decided.steps == ()
    assert said(decided)["ClusterReady"] == said(decided)["Ready"] == ("RegisteredTwice", words)
    assert decided.status is not None
    told = decided.status.to_manifest()
    assert (told["gateway"], told["observed"]["identity"]) == ({"address": ADDRESS}, "x")
    assert decided.requeue_after is not None


def test_nothing_is_made_either_while_that_is_being_found_out() -> None:
    decided = plan(seen(state=state(registered=Registered(identity="x", unsure="first"))))

    assert decided.steps == ()
    assert said(decided)["ClusterReady"][0] == "Identifying"
    assert said(decided)["Ready"][0] == "Creating"


def test_a_cluster_tells_others_that_look_like_it_and_takes_that_back() -> None:
    others = Registered(identity="x", later=("u", "v"), home=True)
    mark = render_mark(cluster(), others.later)
    marked = {**mark, "metadata": {**mark["metadata"], "uid": "mark"}}

    decided = plan(seen(state=state(made(), registered=others)))
    assert decided.steps[-1] == Apply(mark, "a")
    assert decided.status is not None
    assert decided.status.to_manifest()["observed"]["identity"] == "x"
    for known in (replace(others, home=False), Registered(identity="x")):
        assert Apply(mark, "a") not in plan(seen(state=state(made(), registered=known))).steps

    alone = plan(seen(state=state((*made(), marked), registered=Registered(identity="x"))))
    last = alone.steps[-1]
    assert isinstance(last, Delete)
    assert (last.key, last.uid) == (Key("modelplane-system", "registration-uid-of-a"), "mark")


def test_a_mark_makes_no_gateway_and_goes_with_the_cluster() -> None:
    mark = render_mark(cluster(), ("u",))
    marked = {**mark, "metadata": {**mark["metadata"], "uid": "mark"}}
    known = Registered(identity="x", later=("u",), home=True)

    asked = plan(seen(state=state((marked,), registered=known), helm=True))
    assert Apply(render_stack(cluster())) in asked.steps, "its stack makes the gateway as before"

    (step,) = plan(seen(cluster(**terminating()), state=state((marked,), registered=known))).steps
    assert isinstance(step, Delete)
    assert step.uid == "mark"
