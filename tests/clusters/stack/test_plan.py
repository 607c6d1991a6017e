"""What is decided about a stack: what is written in which order, what is said, and how it goes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubeloop.client.certificates import secret_data
from kubeloop.errors import Unreachable
from kubeloop.helm.release import ARCHIVE, Component, Revision, RevisionContent, Run
from kubeloop.objects import Key
from kubeloop.plan import LET_GO, Apply, Delete, Install, Issue, Plan, Step, Uninstall
from modelplane_operator.api import labels, names
from modelplane_operator.api.serving_stack import ChartChange, ServingStack, ServingStackStatus, StackRollout
from modelplane_operator.clusters.cluster.cluster_gateway import certificate
from modelplane_operator.clusters.cluster.plan.mutual_tls import Hub
from modelplane_operator.clusters.stack.chart_states import ObservedCharts, Workload
from modelplane_operator.clusters.stack.plan import REQUEUE_SOON, ClusterState, Observed, homes, plan
from modelplane_operator.clusters.stack.render import parts, render_before, render_gateway, render_namespaces
from modelplane_operator.clusters.stack.rollout import RolloutFleet, Surroundings, compute_target
from modelplane_operator.clusters.stack.waves import FleetMember
from modelplane_operator.routing.gateway.certificates import PAUSE, authorities, leaf, new_authority, trust
from modelplane_operator.routing.gateway.gateway_pods import AWS_TYPE, GIVE_ADDRESSES, service_annotations

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
DEFINITION: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "inferencepools.inference.networking.k8s.io"},
}
DIGEST = f"sha256:{'0f' * 32}"
ROLLED_OUT = {"ServingStackRollout": ("RolledOut", "")}
SILENCE = Unreachable("ping: no answer in time")


def stack(*, deleting: bool = False, **spec: Any) -> ServingStack:
    terminating = {"deletionTimestamp": "2026-01-01T11:59:00Z"} if deleting else {}
    metadata = {"name": "east", "namespace": "platform", "uid": "u", "finalizers": [labels.FINALIZER], **terminating}
    secrets = [{"type": "Kubeconfig", "name": "east", "key": "kubeconfig"}]
    return ServingStack.parse({"metadata": metadata, "spec": {"secrets": secrets, **spec}})


def deployed(part: Component, *, status: str = "deployed") -> Revision:
    release = part.release
    secret = Key(release.key.namespace, f"sh.helm.release.v1.{release.key.name}.v1")
    return Revision(release.key, 1, status, secret, "s", "1", NOW.timestamp() - 999, release.digest, "u")


def history(known: ServingStack, *names: str) -> dict[Key, tuple[Revision, ...]]:
    """Records of the named parts; of all when none is named."""
    return {part.release.key: (deployed(part),) for part in parts(known) if not names or part.name in names}


def state(
    known: ServingStack, *children: Manifest, releases: dict[Key, tuple[Revision, ...]], **more: Any
) -> ClusterState:
    runs, pods = more.pop("runs", {}), more.pop("pods", ())
    seen = ObservedCharts("platform/east", NOW, 420.0, history=releases, runs=runs, workloads=pods)
    return ClusterState(seen, children, **more)


def live(manifest: Manifest, **status: Any) -> Manifest:
    """The object as a server keeps it."""
    metadata = {**manifest["metadata"], "uid": manifest["metadata"]["name"]}
    return {**manifest, "metadata": metadata, **({"status": status} if status else {})}


def children(known: ServingStack, *, address: str | None = "192.0.2.7") -> tuple[Manifest, ...]:
    objects = (*render_namespaces(known), *render_before(known), *render_gateway(known))
    given = {"addresses": [{"value": address}]} if address else {}
    return tuple(live(one, **(given if one["kind"] == "Gateway" else {})) for one in objects)


def planned(known: ServingStack, cluster: ClusterState | None, **more: Any) -> Plan:
    return plan(Observed(known, "platform/east", cluster, more.pop("unreachable", None), more.pop("now", NOW), **more))


def said(found: Plan) -> dict[str, tuple[str, str]]:
    assert found.status is not None
    return {one.type: (one.reason, one.message or "") for one in found.status.conditions}


def brief(step: Step) -> str:
    match step:
        case Apply(manifest):
            return f"apply {manifest['kind']}"
        case Install(release):
            return f"install {release.key.name}"
        case _:
            return str(step).removesuffix(" on cluster platform/east")


def test_the_first_steps_are_what_needs_nothing() -> None:
    known = stack()
    found = planned(known, state(known, releases={}, definitions=(DEFINITION,), taken=frozenset({"monitoring"})))

    assert list(map(brief, found.steps)) == [
        "apply CustomResourceDefinition",
        *["apply Namespace"] * 5,
        "apply ResourceQuota",
        "install mp-node-feature-discovery",
        "install mp-lws",
        "install mp-kube-prometheus-stack",
        "install mp-gateway-helm",
    ]
    assert "monitoring" not in {one.manifest["metadata"]["name"] for one in found.steps if isinstance(one, Apply)}
    assert said(found)["Installed"][0] == "Installing"
    assert said(found)["Ready"][0] == "Creating"
    assert "dra-driver is not installed: for node-feature-discovery" in said(found)["Ready"][1]


def test_the_gateway_comes_when_envoy_gateway_is_there() -> None:
    known = stack()
    found = planned(known, state(known, releases=history(known)))

    front = ["EnvoyProxy", "GatewayClass", "Gateway", "ClientTrafficPolicy", "BackendTrafficPolicy"]
    assert list(map(brief, found.steps))[-5:] == [f"apply {kind}" for kind in front]
    assert said(found) == {
        "Installed": ("ComponentsInstalled", ""),
        "Ready": ("Creating", f"The gateway of cluster platform/east has no address yet: {GIVE_ADDRESSES}"),
        **ROLLED_OUT,
    }


def test_at_rest_it_is_ready_and_does_nothing_new() -> None:
    known = stack()
    found = planned(known, state(known, *children(known), releases=history(known)))

    assert {type(step) for step in found.steps} == {Apply}
    assert said(found) == {"Installed": ("ComponentsInstalled", ""), "Ready": ("Available", ""), **ROLLED_OUT}
    assert isinstance(found.status, ServingStackStatus)
    assert found.status.gateway is not None
    assert found.status.gateway.address == "192.0.2.7"
    assert found.requeue_after is None


def test_a_chart_is_being_installed_until_its_helm_has_ended() -> None:
    """Which writes that it is deployed before it does so."""
    known = stack()
    first = deployed(parts(known)[0])
    helm = Run("install", datetime.fromtimestamp(first.modified, UTC) - timedelta(seconds=1), first.digest)
    found = planned(known, state(known, *children(known), releases=history(known), runs={first.release: helm}))

    assert said(found) == {
        "Installed": ("Installing", "Chart node-feature-discovery: installing"),
        "Ready": ("Available", ""),
        **ROLLED_OUT,
    }


def test_a_gateway_that_answers_the_hub_alone_stays_so_while_nobody_tells_what_is_wanted() -> None:
    known = stack()
    closed = tuple(live(one) for one in render_gateway(known, https=True, http=False))
    cluster = state(known, *closed, releases=history(known))
    found = planned(known, cluster, hub=Hub(is_decided=False))
    kept = [one.manifest for one in found.steps if isinstance(one, Apply) and one.manifest["kind"] == "Gateway"]
    assert [listener["port"] for one in kept for listener in one["spec"]["listeners"]] == [443]
    assert not any("mutual-tls" in str(one) for one in found.steps if isinstance(one, Delete))


def test_a_certificate_that_another_client_has_written_is_told_and_issued_again() -> None:
    known = stack()
    authority = trust(authorities([first_authority()]), NOW)
    hub = Hub(authority, is_desired=True, ready=True)
    address = {"addresses": [{"value": "192.0.2.7"}]}
    closed = [live(one, **address) for one in render_gateway(known, https=True, http=False)]
    issue = (
        leaf(certificate(known), names.server_name("platform/east"), "server", authority, NOW) if authority else None
    )
    assert issue is not None
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": issue.metadata}
    at_rest = state(known, secret, *closed, releases=history(known))
    assert said(planned(known, at_rest, hub=hub))["GatewayCertified"] == ("CertificateIssued", "")
    found = planned(known, replace(at_rest, rewritten=True), hub=hub)
    assert not [one for one in found.steps if isinstance(one, Issue)], "first it is told"
    assert found.requeue_after == REQUEUE_SOON
    assert said(found)["Ready"][0] == said(found)["GatewayCertified"][0] == "CertificateReplaced"
    assert isinstance(found.status, ServingStackStatus)
    reports, rewritten = known.model_copy(update={"status": found.status}), replace(at_rest, rewritten=True)
    assert not [one for one in planned(reports, rewritten, hub=hub).steps if isinstance(one, Issue)], "not at once"
    found = planned(reports, rewritten, hub=hub, now=NOW + PAUSE)
    assert [str(one) for one in found.steps if isinstance(one, Issue)] == [
        "issue Secret modelplane-system/modelplane-gateway-certificate on cluster platform/east"
    ]


def first_authority() -> Manifest:
    made = new_authority((), NOW, {"namespace": names.SYSTEM_NAMESPACE})
    assert made is not None
    content = secret_data(made.certificate, None)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": made.metadata, "data": content}


def test_a_stack_with_a_kubeconfig_of_its_own_tells_whether_the_server_proves_who_it_is() -> None:
    known = stack()
    cluster = state(known, *children(known), releases=history(known))

    assert "ServerVerified" not in said(planned(known, cluster)), "it is for the InferenceCluster to say"
    assert said(planned(known, cluster, unverified=""))["ServerVerified"] == ("CertificateVerified", "")
    assert said(planned(known, cluster, unverified="it says so"))["ServerVerified"][0] == "NotVerified"
    assert (
        said(planned(known, None, unreachable=Unreachable("no"), unverified="x"))["ServerVerified"][0] == "NotVerified"
    )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"no_devices": ("a100", "h100")}, "No node publishes the devices of pool a100, h100"),
        (
            {"pods": (Workload(Key("envoy-gateway-system", "mp-gateway-helm"), "Deployment", "envoy-gateway", 2, 0),)},
            "Chart envoy-gateway: 0 of 2 pods of Deployment envoy-gateway ready",
        ),
    ],
)
def test_it_is_not_ready_while_something_does_not_work(more: dict[str, Any], words: str) -> None:
    known = stack()
    found = planned(known, state(known, *children(known), releases=history(known), **more))

    assert said(found) == {"Installed": ("ComponentsInstalled", ""), "Ready": ("Creating", words), **ROLLED_OUT}
    assert found.requeue_after == 15.0


@pytest.mark.parametrize(
    ("description", "digest"),
    [
        (f"{ARCHIVE}{DIGEST}", DIGEST),
        (f"{ARCHIVE}{DIGEST}{'0' * 9999}", None),
        (f"{ARCHIVE}anything", None),
        ("Upgrade complete", None),
    ],
    ids=lambda text: text and text[:30],
)
def test_it_tells_which_archive_was_installed_as_far_as_the_cluster_says_so(
    description: str, digest: str | None
) -> None:
    known = stack()
    release = next(part.release for part in parts(known) if part.name == "prometheus")
    cluster = state(known, *children(known), releases=history(known))
    contents = {(release.key, 1): RevisionContent(release.chart, release.version, {}, description)}
    found = planned(known, replace(cluster, charts=replace(cluster.charts, contents=contents)))

    assert isinstance(found.status, ServingStackStatus)
    assert [one.digest for one in found.status.components if one.name == "prometheus"] == [digest]


def test_an_upgrade_that_failed_is_told_and_takes_no_cluster_out_of_service() -> None:
    before, known = stack(), stack(versions={"prometheus": "v9"})
    (wanted,) = [part for part in parts(known) if part.name == "prometheus"]
    failed = Run("install", NOW, wanted.release.digest, NOW, "no such version", 1)
    cluster = state(known, *children(known), releases=history(before), runs={wanted.release.key: failed})
    change = ChartChange(name="prometheus", previous="72.6.2", version="v9", revision=1)
    turn = StackRollout(target=compute_target(parts(known)), phase="Upgrading", since=NOW, changes=(change,))
    known = known.model_copy(update={"status": ServingStackStatus(rollout=turn)})
    fleet = RolloutFleet("platform/east", [FleetMember("platform/east", "Upgrading")], is_fresh=True)

    assert said(planned(known, cluster, around=Surroundings(fleet))) == {
        "Installed": ("InstallFailed", "Chart prometheus: no such version"),
        "Ready": ("Available", ""),
        "ServingStackRollout": ("Upgrading", "The cluster changes prometheus from 72.6.2 to v9"),
    }


def test_a_chart_that_cannot_be_installed_at_all_is_why_nothing_can_be_served() -> None:
    known = stack()
    (wanted,) = [part for part in parts(known) if part.name == "envoy-gateway"]
    failed = Run("install", NOW, wanted.release.digest, NOW, "no such chart", 1)
    told = said(planned(known, state(known, releases={}, runs={wanted.release.key: failed})))

    assert told["Installed"] == ("InstallFailed", "Chart envoy-gateway: no such chart")
    assert told["Ready"][0] == "InstallFailed"


def test_the_ai_gateway_is_for_stacks_that_name_it_and_envoy_gateway_asks_it_there_alone() -> None:
    named = stack(components=[{"name": "ai-gateway-crds"}, {"name": "ai-gateway"}])
    asks = [
        "extensionManager" in part.release.values["config"]["envoyGateway"]
        for one in (stack(), named)
        for part in parts(one)
        if part.name == "envoy-gateway"
    ]

    assert asks == [False, True]
    assert [part.name for part in parts(named)][-4:] == ["ai-gateway-crds", "ai-gateway", "envoy-gateway", "dra-driver"]
    assert not [part for part in parts(stack()) if part.name.startswith("ai-gateway")]


def test_what_is_no_longer_asked_for_goes() -> None:
    before = stack(gateway={"className": "old"})
    known = stack(components=[{"name": "prometheus", "enabled": False}])
    found = planned(known, state(known, *children(before), releases=history(before)))

    gone = [brief(step) for step in found.steps if isinstance(step, Delete | Uninstall)]
    assert gone == ["delete GatewayClass old", "uninstall Helm release monitoring/mp-kube-prometheus-stack"]


def test_a_gateway_keeps_the_load_balancer_that_an_earlier_version_had_made() -> None:
    known = stack()
    before = stack(gateway={"service": {"annotations": {AWS_TYPE: ""}}})
    found = planned(known, state(known, *children(before), releases=history(known)))

    proxies = [one.manifest for one in found.steps if isinstance(one, Apply) and one.manifest["kind"] == "EnvoyProxy"]
    assert [AWS_TYPE in (service_annotations([one]) or {}) for one in proxies] == [False]


WHOSE = "Helm release obs/kps"
CERT_MANAGER = Key("cert-manager", "mp-cert-manager")


def test_what_somebody_else_has_brought_is_left_out_and_the_stack_is_ready() -> None:
    known = stack()
    there_are = history(known, *(part.name for part in parts(known) if part.name != "prometheus"))
    cluster = state(known, *children(known), releases=there_are, others={"prometheus": WHOSE})
    found = planned(known, cluster)

    assert {type(step) for step in found.steps} == {Apply}
    assert "monitoring" not in {one.manifest["metadata"]["name"] for one in found.steps if isinstance(one, Apply)}
    assert said(found) == {"Installed": ("ComponentsInstalled", ""), "Ready": ("Available", ""), **ROLLED_OUT}
    assert isinstance(found.status, ServingStackStatus)
    (present,) = [one for one in found.status.components if one.state == "Present"]
    assert (present.name, present.message) == ("prometheus", f"already installed by {WHOSE}")


def test_what_another_part_needs_is_not_waited_for_where_somebody_else_has_brought_it() -> None:
    known = stack()
    found = planned(known, state(known, releases={}, others={"node-feature-discovery": WHOSE}))

    assert "install mp-dra-driver-nvidia-gpu" in map(brief, found.steps)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        ({}, True),  # it was installed, by this version or an earlier one
        ({"components": [{"name": "prometheus"}]}, True),  # it is asked for by name
        ({"components": [{"name": "prometheus", "enabled": False}]}, False),
    ],
    ids=["installed", "named", "turned off"],
)
def test_what_is_ours_already_stays_ours_beside_somebody_elses(more: dict[str, Any], wanted: bool) -> None:  # noqa: FBT001
    known = stack(**more)
    cluster = state(known, *children(known), releases=history(stack()), others={"prometheus": WHOSE})
    found = planned(known, cluster)

    steps = [brief(step) for step in found.steps if not isinstance(step, Apply)]
    assert steps == ([] if wanted else ["uninstall Helm release monitoring/mp-kube-prometheus-stack"])


@pytest.mark.parametrize(
    ("components", "installed", "steps"),
    [
        ([], False, []),
        ([], True, []),
        ([{"name": "cert-manager"}], False, ["install mp-cert-manager"]),
        ([{"name": "cert-manager"}], True, []),
        ([{"name": "cert-manager", "enabled": False}], True, [f"uninstall Helm release {CERT_MANAGER}"]),
    ],
)
def test_cert_manager_comes_when_it_is_named_and_stays_where_it_is(
    components: list[dict[str, Any]], *, installed: bool, steps: list[str]
) -> None:
    with_it, known = stack(components=[{"name": "cert-manager"}]), stack(components=components)
    releases = history(with_it) if installed else history(stack())
    found = planned(known, state(known, *children(with_it), releases=releases))

    assert [brief(step) for step in found.steps if not isinstance(step, Apply)] == steps


@pytest.mark.parametrize(
    ("missing", "more", "words"),
    [
        ("extras/extra", {}, "Chart extras/extra is not installed"),
        ("prometheus", {}, "Chart prometheus is not installed"),
        ("leader-worker-set", {}, "Chart leader-worker-set is not installed"),
        ("", {"no_devices": ("a100",), "has_devices": True}, "No node publishes the devices of pool a100"),
    ],
)
def test_what_models_can_do_without_closes_no_cluster(missing: str, more: dict[str, Any], words: str) -> None:
    chart = {"name": "extra", "namespace": "extras", "chart": "extra", "version": "1.0.0"}
    known = stack(extraCharts=[{**chart, "repository": "https://charts.example.com"}])
    there_are = history(known, *(part.name for part in parts(known) if part.name != missing))
    found = planned(known, state(known, *children(known), releases=there_are, **more))

    reason, message = said(found)["Ready"]
    assert (reason, message.partition(":")[0]) == ("Degraded", words)
    assert said(found)["Installed"][0] == ("Installing" if missing else "ComponentsInstalled")
    assert found.requeue_after is not None


def test_a_release_that_goes_is_known_until_it_is_gone() -> None:
    """Its namespace is no longer in the spec, and records elsewhere are not believed."""
    chart = {"name": "extra", "namespace": "extras", "chart": "extra", "version": "1.0.0"}
    before = stack(extraCharts=[{**chart, "repository": "https://charts.example.com"}])
    known = stack()
    assert ("extras" in homes(before), "extras" in homes(known)) == (True, False)

    terminating = planned(known, state(known, *children(known), releases=history(before))).status
    gone = planned(known, state(known, *children(known), releases=history(known))).status
    assert isinstance(terminating, ServingStackStatus)
    assert isinstance(gone, ServingStackStatus)
    assert [one.state for one in terminating.components if one.name == "extras/extra"] == ["Uninstalling"]
    assert "extras" in homes(known.model_copy(update={"status": terminating}))
    assert "extras" not in homes(known.model_copy(update={"status": gone}))


def test_a_cluster_that_does_not_answer_changes_nothing_but_what_is_said() -> None:
    known = stack()
    last = planned(known, state(known, *children(known), releases=history(known))).status
    assert isinstance(last, ServingStackStatus)
    found = planned(known.model_copy(update={"status": last}), None, unreachable=SILENCE)

    assert (found.steps, found.failure) == ((), SILENCE)
    assert said(found) == {
        "Installed": ("ComponentsInstalled", ""),
        "Ready": ("Unreachable", "Cluster platform/east does not answer: ping: no answer in time"),
        **ROLLED_OUT,
    }
    assert isinstance(found.status, ServingStackStatus)
    assert (found.status.gateway, found.status.components) == (last.gateway, last.components)


def test_nothing_is_decided_before_all_was_seen() -> None:
    assert planned(stack(), None) == planned(stack(deleting=True), None) == Plan(requeue_after=0.5)


def test_it_goes_from_the_front_to_its_namespaces() -> None:
    """Each step done, and looked at again: until nothing is left."""
    known, left, releases = stack(deleting=True), list(children(stack())), history(stack())
    done: list[str] = []
    while not done or done[-1] != "remove our finalizer from the object":
        found = planned(known, state(known, *left, releases=releases))
        assert found.steps, said(found)
        for step in found.steps:
            done.append(brief(step))
            if isinstance(step, Delete):
                left = [one for one in left if one["metadata"]["uid"] != step.uid or one["kind"] != step.type.kind]
            elif isinstance(step, Uninstall):
                del releases[step.release]

    assert done[:5] == [
        "delete Gateway modelplane-system/inference-gateway",
        "delete BackendTrafficPolicy modelplane-system/inference-gateway",
        "delete ClientTrafficPolicy modelplane-system/inference-gateway",
        "delete GatewayClass envoy",
        "delete EnvoyProxy modelplane-system/inference-gateway",
    ]
    driver = done.index("uninstall Helm release dra-driver-nvidia-gpu/mp-dra-driver-nvidia-gpu")
    assert driver < done.index("uninstall Helm release node-feature-discovery/mp-node-feature-discovery")
    assert sorted(done[-8:-1]) == [
        *sorted(f"delete Namespace {one['metadata']['name']}" for one in render_namespaces(known)),
        "delete ResourceQuota dra-driver-nvidia-gpu/allow-critical-pods",
    ]


FOUR = {"replicas": ("ml/a", "ml/b", "ml/c", "ml/d")}
UNANSWERED = (
    'Cluster platform/east does not answer; annotate the stack with modelplane.ai/abandon="true" to leave it: '
    "ping: no answer in time"
)


@pytest.mark.parametrize(
    ("cluster", "more", "words"),
    [
        ({}, FOUR, "Waiting for 4 replicas on platform/east: ml/a, ml/b, ml/c, ..."),
        ({"balancers": ("envoy/lb",)}, {}, "Load balancer envoy/lb is being deleted"),
        (None, {"unreachable": SILENCE}, UNANSWERED),
    ],
)
def test_what_is_in_the_way_is_said(cluster: dict[str, Any] | None, more: dict[str, Any], words: str) -> None:
    known = stack(deleting=True)
    kept = [one for one in children(known) if one["kind"] != "Gateway"]
    found = planned(known, None if cluster is None else state(known, *kept, releases=history(known), **cluster), **more)

    assert (found.steps, said(found)["Ready"]) == ((), ("Deleting", words))


def test_a_stack_that_made_nothing_does_not_wait_for_the_load_balancer_of_another() -> None:
    """Two InferenceClusters with a kubeconfig of one cluster: the later one is refused everything."""
    known = stack(deleting=True)

    assert planned(known, state(known, releases={}, balancers=("envoy/lb",))).steps == (LET_GO,)


def test_a_cluster_that_somebody_gave_up_is_let_go() -> None:
    assert planned(stack(deleting=True), None, unreachable=SILENCE, abandoned=True).steps == (LET_GO,)


def test_a_helm_that_has_just_begun_is_waited_for() -> None:
    known = stack(deleting=True)
    (first, *_) = parts(known)
    under_way = {first.release.key: Run("install", NOW, first.release.digest)}

    found = planned(known, state(known, releases={}, runs=under_way))
    assert (found.steps, said(found)["Ready"][1]) == ((), f"Helm is at work on {first.release.key}")


def test_an_object_that_we_never_held_is_let_go_by_others() -> None:
    known = stack(deleting=True)
    metadata = known.metadata.model_copy(update={"finalizers": ()})

    assert planned(known.model_copy(update={"metadata": metadata}), None) == Plan()
