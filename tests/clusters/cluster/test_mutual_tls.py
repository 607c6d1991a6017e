"""How the gateway of a cluster comes to answer the hub's alone: what it listens to, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubeloop.client.certificates import secret_data
from kubeloop.plan import Apply, Issue, Plan
from kubeloop.types import CLIENT_TRAFFIC_POLICY
from kubeloop.words import sentence
from modelplane_operator.api import names
from modelplane_operator.api.inference_cluster import GatewaySecured, InferenceCluster
from modelplane_operator.api.inference_gateway import InferenceGateway, MutualTLSReady
from modelplane_operator.clusters.cluster.cluster_gateway import render_cluster_gateway
from modelplane_operator.clusters.cluster.plan import ClusterState, Observed, Secrets, plan
from modelplane_operator.clusters.cluster.plan.hardware import ObservedHardware
from modelplane_operator.clusters.cluster.plan.mutual_tls import LEARNT, Hub, choose_listeners, read_hub, waits
from modelplane_operator.clusters.cluster.plan.observed import REQUEUE_SOON
from modelplane_operator.routing.gateway.certificates import (
    PAUSE,
    RENEWED,
    authorities,
    is_current,
    new_authority,
    trust,
)
from modelplane_operator.routing.gateway.gateway_relay import render_relay

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ADDRESS = "192.0.2.7"
NAME = names.server_name("west")
CLUSTER = InferenceCluster.parse(
    {
        "metadata": {"name": "west", "uid": "uid"},
        "spec": {
            "cluster": {"source": "Existing", "existing": {"secretRef": {"name": "k"}}},
            "nodePools": [{"name": "gpu", "className": "h200", "nodeCount": 1}],
        },
    }
)


def authority(now: datetime = NOW) -> Manifest:
    step = new_authority((), now, {"namespace": names.SYSTEM_NAMESPACE})
    assert step is not None
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": step.metadata,
        "data": secret_data(step.certificate, None),
    }


AUTHORITY = authority()
TRUST = trust(authorities([AUTHORITY]), NOW)
READY = Hub(TRUST, is_desired=True, ready=True)


def gateway(*, https: bool, http: bool, works: bool = True) -> Manifest:
    """The Gateway as it was made, and what its controller says of it."""
    made = next(one for one in render_cluster_gateway(CLUSTER, https=https, http=http) if one["kind"] == "Gateway")
    conditions = [{"type": "Programmed", "status": str(works)}]
    listeners = [{"name": one["name"], "conditions": conditions} for one in made["spec"]["listeners"]]
    addresses = [{"type": "IPAddress", "value": ADDRESS}]
    return {**made, "status": {"conditions": conditions, "listeners": listeners, "addresses": addresses}}


def stored(hub: Hub, now: datetime = NOW) -> Manifest:
    found = choose_listeners(CLUSTER, "west", hub, (), now, None, closed=False).issue
    assert found is not None
    return {"apiVersion": "v1", "kind": "Secret", "metadata": found.metadata}


def test_without_a_hub_that_asks_a_gateway_is_as_it_was() -> None:
    found = choose_listeners(CLUSTER, "west", Hub(), (), NOW, None, closed=True)
    assert (found.https, found.http, found.issue, found.server_name) == (False, True, None, None)


def test_a_gateway_that_was_never_open_is_never_opened() -> None:
    found = choose_listeners(CLUSTER, "west", READY, (), NOW, None, closed=False)
    assert (found.https, found.http, found.server_name) == (True, False, None)
    assert found.issue is not None
    made = (stored(READY), gateway(https=True, http=False))
    assert choose_listeners(CLUSTER, "west", READY, made, NOW, None, closed=False).server_name == NAME


def test_an_open_gateway_stays_open_until_no_request_comes_that_way() -> None:
    made = (stored(READY), gateway(https=True, http=True))
    assert choose_listeners(CLUSTER, "west", READY, made, NOW, None, closed=False).http
    assert not choose_listeners(CLUSTER, "west", READY, made, NOW, None, closed=True).http


def test_what_it_proves_holds_while_its_listeners_change() -> None:
    made = (stored(READY), gateway(https=True, http=False, works=False))
    assert choose_listeners(CLUSTER, "west", READY, made, NOW, None, closed=True).server_name is None
    assert choose_listeners(CLUSTER, "west", READY, made, NOW, NAME, closed=True).server_name == NAME


def test_when_it_is_no_longer_wanted_http_is_open_before_requests_take_it() -> None:
    off = replace(READY, is_desired=False, ready=False)
    shut = (stored(READY), gateway(https=True, http=False))
    found = choose_listeners(CLUSTER, "west", off, shut, NOW, NAME, closed=True)
    assert (found.https, found.http, found.server_name) == (True, True, NAME)
    opening = (stored(READY), gateway(https=True, http=True, works=False))
    assert choose_listeners(CLUSTER, "west", off, opening, NOW, NAME, closed=True).server_name == NAME
    opened = (stored(READY), gateway(https=True, http=True))
    assert choose_listeners(CLUSTER, "west", off, opened, NOW, NAME, closed=True).server_name is None


def test_only_who_proves_to_be_the_hub_is_let_in() -> None:
    policy = next(one for one in render_cluster_gateway(CLUSTER, https=True) if one["kind"] == "ClientTrafficPolicy")
    assert policy["spec"]["tls"]["clientValidation"] == {
        "caCertificateRefs": [{"group": "", "kind": "Secret", "name": names.GATEWAY_CERTIFICATE}],
        "subjectAltNames": {"dnsNames": [{"type": "Exact", "value": names.HUB_NAME}]},
    }
    kinds = [one["kind"] for one in render_cluster_gateway(CLUSTER, https=True)]
    assert kinds.index("ClientTrafficPolicy") < kinds.index("Gateway")


@pytest.mark.parametrize(
    ("reason", "wanted", "ready"),
    [
        (MutualTLSReady.READY, True, True),
        (MutualTLSReady.PREPARING, True, False),
        (MutualTLSReady.NOT_OFFERED, False, False),
        (MutualTLSReady.NOT_ASKED, False, False),
        (None, False, False),
    ],
)
def test_what_the_hub_says_is_what_clusters_do(reason: MutualTLSReady | None, *, wanted: bool, ready: bool) -> None:
    conditions = [reason.condition(NOW).to_manifest()] if reason else []
    found = InferenceGateway.parse(
        {
            "metadata": {"name": "default", "uid": "g"},
            "spec": {"backend": "Traefik", "traefik": {"version": "1"}},
            "status": {"conditions": conditions},
        }
    )
    hub = read_hub(found, [AUTHORITY], NOW)
    assert (hub.is_desired, hub.ready, hub.trust, bool(hub.reason)) == (wanted, ready, TRUST, not ready)
    assert hub.is_decided is (reason not in {None, MutualTLSReady.NOT_OFFERED})  # it is Traefik that does not offer it


def test_without_a_hub_gateway_nobody_tells_what_is_wanted() -> None:
    why = "there is no InferenceGateway named default, whose spec.mutualTLS decides this: create it"
    lost = Hub(is_decided=False, began=True, reason=why)
    assert read_hub(None, (), NOW) == lost
    assert read_hub(None, [AUTHORITY], NOW) == replace(lost, trust=TRUST), "what clusters trust is renewed"
    spec = {"backend": "Traefik", "traefik": {"version": "1"}}
    told = {"conditions": [MutualTLSReady.READY.condition(NOW).to_manifest()]}
    terminating = {"name": "default", "uid": "g", "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert read_hub(InferenceGateway.parse({"metadata": terminating, "spec": spec, "status": told}), (), NOW) == lost


def test_another_backend_says_that_clusters_are_to_be_open() -> None:
    spec = {"backend": "EnvoyGateway", "envoyGateway": {"version": "1"}}
    told = {"conditions": [MutualTLSReady.NOT_OFFERED.condition(NOW).to_manifest()]}
    found = InferenceGateway.parse({"metadata": {"name": "default", "uid": "g"}, "spec": spec, "status": told})
    assert read_hub(found, [AUTHORITY], NOW).is_decided


@pytest.mark.parametrize("hub", [Hub(is_decided=False), Hub(TRUST, is_decided=False), Hub(is_desired=True)])
@pytest.mark.parametrize(("https", "http"), [(True, False), (True, True), (False, True)])
def test_while_nobody_tells_a_gateway_stays_as_it_is(hub: Hub, *, https: bool, http: bool) -> None:
    made = (stored(READY), gateway(https=https, http=http))
    found = choose_listeners(CLUSTER, "west", hub, made, NOW, NAME if https else None, closed=True)
    assert (found.https, found.http, found.issue) == (https, http, None)
    assert found.server_name == (NAME if https else None)


def test_while_nobody_tells_a_gateway_that_was_deleted_comes_back_closed_or_as_a_new_one() -> None:
    lost = Hub(is_decided=False)
    found = choose_listeners(CLUSTER, "west", lost, (stored(READY),), NOW, NAME, closed=False)
    assert (found.https, found.http, found.server_name) == (True, False, NAME)
    new = choose_listeners(CLUSTER, "west", lost, (), NOW, None, closed=False)
    assert (new.https, new.http) == (False, True)


@pytest.mark.parametrize("hub", [Hub(TRUST, is_decided=False), Hub(TRUST, is_decided=False, began=True)])
def test_while_nobody_tells_a_certificate_is_renewed_all_the_same(hub: Hub) -> None:
    shut = gateway(https=True, http=False)
    late = NOW + RENEWED
    found = choose_listeners(CLUSTER, "west", hub, (stored(READY), shut), late, NAME, closed=True)
    assert (found.https, found.http, found.server_name) == (True, False, NAME)
    assert found.issue is not None
    assert is_current({"metadata": found.issue.metadata}, found.issue, late)
    assert choose_listeners(CLUSTER, "west", hub, (shut,), late, NAME, closed=True).issue is None, (
        "none that was not there"
    )
    nobody = Hub(is_decided=False)
    assert choose_listeners(CLUSTER, "west", nobody, (stored(READY), shut), late, NAME, closed=True).issue is None


@pytest.mark.parametrize("hub", [READY, Hub(TRUST, is_decided=False)])
def test_a_certificate_that_another_client_has_written_is_issued_again(hub: Hub) -> None:
    """The operator reads no Secrets of clusters, but whose the fields are."""
    shut = gateway(https=True, http=False)
    made = (stored(READY), shut)
    found = choose_listeners(CLUSTER, "west", hub, made, NOW, NAME, closed=True, rewritten=True)
    assert (found.https, found.http, found.server_name) == (True, False, NAME), "nothing is opened meanwhile"
    assert found.issue is not None
    assert "on cluster west was changed by another client" in found.replaced
    at_rest = choose_listeners(CLUSTER, "west", hub, made, NOW, NAME, closed=True)
    assert (at_rest.issue, at_rest.replaced) == (None, "")


def test_a_certificate_that_somebody_deleted_is_told_once_a_gateway_uses_it() -> None:
    lost = choose_listeners(CLUSTER, "west", READY, (gateway(https=True, http=False),), NOW, NAME, closed=True)
    assert "it was deleted" in lost.replaced
    new = choose_listeners(CLUSTER, "west", READY, (gateway(https=False, http=True),), NOW, None, closed=False)
    assert (new.issue is not None, new.replaced) == (True, "")


def test_a_cluster_whose_certificate_was_replaced_is_not_ready_until_it_is_issued_again() -> None:
    children = (stored(READY), gateway(https=True, http=False))
    decided = plan(seen(state=state(*children, rewritten=True)))
    assert decided.status is not None
    conditions = {one.type: one for one in decided.status.conditions}
    assert (conditions["BackendReady"].status, conditions["BackendReady"].reason) == ("False", "CertificateReplaced")
    assert conditions["Ready"].reason == "CertificateReplaced"
    assert "stop what writes that Secret" in (conditions["Ready"].message or "")
    assert decided.requeue_after == REQUEUE_SOON
    assert not [step for step in decided.steps if isinstance(step, Issue)], "first it is told"
    status = {"conditions": [one.to_manifest() for one in decided.status.conditions]}

    def issued(now: datetime, made: datetime = NOW) -> list[str]:
        objects = (stored(READY, made), gateway(https=True, http=False))
        steps = plan(seen(now, status, state=state(*objects, rewritten=True))).steps
        return [step.metadata["name"] for step in steps if isinstance(step, Issue)]

    assert issued(NOW) == [], "a client that replaces it at once gets no answer at once"
    assert issued(NOW + PAUSE) == [names.GATEWAY_CERTIFICATE]
    assert issued(NOW + PAUSE, NOW + PAUSE) == [], "nor one that keeps the status from changing"


MAKING = Hub(is_desired=True, reason="starting (waiting for: the certificate of the hub gateway)")


@pytest.mark.parametrize("hub", [MAKING, Hub(TRUST, is_decided=False, began=True), Hub(is_decided=False, began=True)])
def test_a_new_gateway_waits_rather_than_begin_by_answering_anybody(hub: Hub) -> None:
    found = choose_listeners(CLUSTER, "west", hub, (), NOW, None, closed=False)
    assert found.shut
    assert "Gateway" not in [one["kind"] for one in render_cluster_gateway(CLUSTER, https=found.https, http=found.http)]


def test_a_hub_that_has_had_mutual_tls_or_may_be_about_to_has_new_gateways_wait() -> None:
    def hub(backend: str = "Traefik", secrets: tuple[Manifest, ...] = (), **spec: str) -> Hub:
        field = {"Traefik": "traefik", "EnvoyGateway": "envoyGateway"}[backend]
        asked = {"backend": backend, field: {"version": "1"}, **spec}
        found = InferenceGateway.parse({"metadata": {"name": "default", "uid": "g"}, "spec": asked})
        return read_hub(found, secrets, NOW)

    assert hub().began
    assert not hub(mutualTLS="Never").began
    assert not hub("EnvoyGateway").began
    assert hub("EnvoyGateway", (AUTHORITY,)).began


# An InferenceCluster that gets there ----------------------------------------------------------------------------------


def state(*children: Manifest, **what: Any) -> ClusterState:
    apis = frozenset({"DRA", "GatewayAPI", "EnvoyGateway"})
    return ClusterState("v1", None, apis, ObservedHardware((), ()), children, has_namespace=True, **what)


def relay(since: datetime) -> tuple[Manifest, ...]:
    stamp = since.isoformat()
    return tuple(
        {**one, "metadata": {**one["metadata"], "uid": one["kind"], "creationTimestamp": stamp}}
        for one in render_relay(CLUSTER, ADDRESS)
    )


def seen(now: datetime = NOW, status: Manifest | None = None, **what: Any) -> Observed:
    subject = CLUSTER.model_copy(update={"status": None})
    if status:
        subject = InferenceCluster.parse({**CLUSTER.to_manifest(), "status": status})
    defaults: Manifest = {"classes": {}, "replicas": (), "unreachable": None, "forbidden": None, "kubeconfig": None}
    defaults |= {"connected": True, "secrets": Secrets(), "hub": READY, "settle": timedelta(minutes=2)}
    return Observed(cluster=subject, now=now, **{**defaults, **what})


def secured(decided: Plan) -> tuple[str, str]:
    assert decided.status is not None
    found = next(one for one in decided.status.conditions if one.type == "GatewaySecured")
    return found.status, found.reason


def reached(decided: Plan) -> Manifest | None:
    assert decided.status is not None
    return decided.status.to_manifest().get("gateway")


OPEN = state(stored(READY), gateway(https=True, http=True))
SHUT = state(stored(READY), gateway(https=True, http=False))


def test_a_running_cluster_is_reached_by_http_until_the_hub_knows_the_way() -> None:
    first = plan(seen(state=OPEN))
    assert reached(first) == {"address": ADDRESS}
    assert secured(first) == ("False", "Configuring")
    assert [one.manifest["kind"] for one in first.steps if isinstance(one, Apply) and not one.cluster] == [
        "Service",
        "EndpointSlice",
        "ServersTransport",
        "IngressRoute",
    ]
    early = plan(seen(state=OPEN, relay=relay(NOW)))
    assert reached(early) == {"address": ADDRESS}
    assert early.requeue_after == LEARNT.total_seconds()
    assert reached(plan(seen(state=OPEN, relay=relay(NOW - LEARNT)))) == {"address": ADDRESS, "serverName": NAME}


def test_a_new_cluster_has_no_gateway_until_the_hub_knows_the_way() -> None:
    assert reached(plan(seen(state=SHUT))) is None
    late = plan(seen(state=SHUT, relay=relay(NOW - LEARNT)))
    assert reached(late) == {"address": ADDRESS, "serverName": NAME}
    assert secured(late) == ("True", "MutualTLS")


def test_http_is_closed_when_no_endpoint_leads_that_way_and_answers_have_ended() -> None:
    known = relay(NOW - LEARNT)
    assert secured(plan(seen(state=OPEN, relay=known, plain=1))) == ("False", "Configuring")
    switching = plan(seen(state=OPEN, relay=known))
    assert secured(switching) == ("Unknown", "Switching")
    assert switching.requeue_after == timedelta(minutes=2).total_seconds()
    assert switching.status is not None
    told = switching.status.to_manifest()
    later = NOW + timedelta(minutes=2)
    closing = plan(seen(later, status=told, state=OPEN, relay=known))
    assert secured(closing) == ("True", "MutualTLS")
    assert closing.status is not None
    closed = plan(seen(later, status=closing.status.to_manifest(), state=OPEN, relay=known))
    live = next(one.manifest for one in closed.steps if isinstance(one, Apply) and one.manifest["kind"] == "Gateway")
    assert [one["port"] for one in live["spec"]["listeners"]] == [443]


def test_a_hub_that_is_being_changed_takes_no_way_away() -> None:
    known: Manifest = {"gateway": {"address": ADDRESS, "serverName": NAME}}
    changing = replace(READY, ready=False, reason="its chart is being changed")
    assert reached(plan(seen(status=known, state=SHUT, hub=changing))) == {"address": ADDRESS, "serverName": NAME}


def listening(decided: Plan) -> list[int]:
    made = (one.manifest for one in decided.steps if isinstance(one, Apply))
    return [one["port"] for each in made if each["kind"] == "Gateway" for one in each["spec"]["listeners"]]


def test_a_hub_gateway_that_is_deleted_opens_no_cluster() -> None:
    known: Manifest = {"gateway": {"address": ADDRESS, "serverName": NAME}}
    lost = Hub(is_decided=False, reason="there is no InferenceGateway named default")
    decided = plan(seen(status=known, state=SHUT, hub=lost))
    assert listening(decided) == [443]
    assert reached(decided) == {"address": ADDRESS, "serverName": NAME}
    assert secured(decided) == ("Unknown", "NotKnown")
    assert secured(plan(seen(state=OPEN, hub=lost))) == ("False", "Open")
    assert not any(isinstance(one, Issue) for one in decided.steps)


def test_a_cluster_whose_kubeconfig_may_not_do_it_says_that_it_is_open() -> None:
    decided = plan(seen(state=state(gateway(https=False, http=True), unpermitted="the operator may not list secrets")))
    assert secured(decided) == ("False", "Open")
    assert listening(decided) == [80]
    assert not any(isinstance(one, Issue) for one in decided.steps)


@pytest.mark.parametrize("secrets", [(stored(READY),), ()])
def test_a_kubeconfig_that_loses_a_right_opens_no_gateway(secrets: tuple[Manifest, ...]) -> None:
    known: Manifest = {"gateway": {"address": ADDRESS, "serverName": NAME}}
    shut = state(
        *secrets,
        gateway(https=True, http=False),
        unpermitted="the operator may not list secrets",
    )
    decided = plan(seen(status=known, state=shut))
    assert listening(decided) == [443]
    assert reached(decided) == {"address": ADDRESS, "serverName": NAME}
    assert secured(decided) == ("Unknown", "NotKnown")
    assert not any(isinstance(one, Issue) for one in decided.steps)
    assert secured(plan(seen(state=replace(OPEN, unpermitted="the operator may not list secrets")))) == (
        "False",
        "Open",
    )


def test_a_cluster_that_joins_before_the_hub_is_ready_has_no_gateway_and_says_why() -> None:
    decided = plan(seen(state=state(), hub=MAKING))
    assert listening(decided) == []
    assert secured(decided) == ("False", "Configuring")
    assert decided.status is not None
    backend = next(one for one in decided.status.conditions if one.type == "BackendReady")
    assert (backend.status, backend.message) == (
        "False",
        (
            "The cluster's gateway is not created until it can refuse everybody but the hub's gateway: starting"
            " (waiting for: the certificate of the hub gateway)"
        ),
    )


def test_a_cluster_that_joins_before_there_is_a_hub_gateway_waits_for_it_and_one_that_serves_goes_on() -> None:
    nobody = read_hub(None, (), NOW)
    new = plan(seen(state=state(), hub=nobody))
    assert listening(new) == []
    assert secured(new) == ("Unknown", "NotKnown")
    assert new.status is not None
    backend = next(one for one in new.status.conditions if one.type == "BackendReady")
    assert (backend.status, backend.message) == ("False", sentence(waits(nobody.reason)))
    serves = plan(seen(state=state(gateway(https=False, http=True)), hub=nobody))
    assert (listening(serves), reached(serves)) == ([80], {"address": ADDRESS})


def test_a_right_that_is_lost_keeps_nothing_else_from_being_done() -> None:
    known: Manifest = {"gateway": {"address": ADDRESS, "serverName": NAME}}
    why = "the operator may not list clienttrafficpolicies"
    lost = state(*SHUT.children, unpermitted=why, forbidden=frozenset({CLIENT_TRAFFIC_POLICY}))
    decided = plan(seen(status=known, state=lost))
    kinds = [one.manifest["kind"] for one in decided.steps if isinstance(one, Apply) and one.cluster]
    assert kinds[-2:] == ["ClientTrafficPolicy", "ClientTrafficPolicy"], "what follows them there would not be done"
    assert {"Gateway", "BackendTrafficPolicy"} <= {*kinds[:-2]}
    assert secured(decided) == ("Unknown", "NotKnown")


def test_a_gateway_that_was_closed_and_is_deleted_is_not_made_again_where_a_right_is_lost() -> None:
    """Without the policy that asks for the hub's certificate it would answer anybody."""
    closed = GatewaySecured.MUTUAL_TLS.condition(NOW).to_manifest()
    lost = state(
        stored(READY),
        unpermitted="the operator may not do that",
        forbidden=frozenset({CLIENT_TRAFFIC_POLICY}),
    )
    assert listening(plan(seen(status={"conditions": [closed]}, state=lost))) == []
