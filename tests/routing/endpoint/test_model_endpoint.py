"""What an endpoint's URL leads to, and what is said of it, as steps and conditions."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.resolved import Resolved
from kubeloop.plan import KEEP, LET_GO, Apply, Delete
from kubeloop.types import BACKEND_TLS_POLICY, ENDPOINT_SLICE, SERVICE, type_of
from modelplane_operator.api import labels
from modelplane_operator.api.model_endpoint import ModelEndpointStatus
from modelplane_operator.clusters.cluster.plan.mutual_tls import LEARNT
from modelplane_operator.routing.endpoint.backend_url import EVERYWHERE, Reach
from modelplane_operator.routing.endpoint.plan import (
    PATIENCE,
    REQUEUE_AFTER,
    REQUEUE_SOON,
    ClusterState,
    Observed,
    Outside,
    plan,
)
from modelplane_operator.routing.gateway import envoy_gateway, traefik
from tests.support.builders import EPOCH, NAMESPACE
from tests.support.endpoints import IP, Manifest, endpoint, seen, settled
from tests.support.manifests import change
from tests.support.plans import told

pytestmark = pytest.mark.usefixtures("well_worded")

PROVIDER = "https://api.together.xyz/"
BACKEND = "together-0235c5e633"  # the name of the Service, of its policy, and the beginning of its slice's


def kinds(children: Sequence[Manifest]) -> list[str]:
    return [f"{child['kind']} {child['metadata']['name']}" for child in children]


def routing(observed: Observed) -> tuple[str | None, str | None] | None:
    status = plan(observed).status
    assert status is not None
    found = getattr(status, "routing", None)
    return found and (found.backend_name, found.url)


def secret(**data: str) -> Manifest:
    return {"data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}}


@pytest.mark.parametrize(
    ("url", "address_type", "address", "port", "leads"),
    [
        (IP, "IPv4", "34.55.100.10", 80, "http://34.55.100.10:80"),
        ("http://[2001:db8::1]:8000/v1", "IPv6", "2001:db8::1", 8000, "http://[2001:db8::1]:8000"),
        (PROVIDER, "FQDN", "api.together.xyz.", 443, "https://api.together.xyz:443"),
        ("https://api.groq.com:8443/openai/v1/", "FQDN", "api.groq.com.", 8443, "https://api.groq.com:8443"),
    ],
)
def test_an_endpoint_gets_its_service_in_one_pass_and_then_says_so(
    url: str, address_type: str, address: str, port: int, leads: str
) -> None:
    first = seen(endpoint(url, rewritePath="/v1/"))

    waits = f"Starting (waiting for: the endpoint's Service to lead to {leads})"
    assert told(plan(first)) == {
        "RoutingReady": ("False", "WaitingForBackend", waits),
        "Ready": ("False", "Creating", waits),
    }
    assert routing(first) is None

    second = settled(first)
    service, where = second.children[:2]
    assert kinds(second.children)[:2] == [f"Service {BACKEND}", f"EndpointSlice {BACKEND}-{address_type.lower()}"]
    assert [each["port"] for each in service["spec"]["ports"]] == [port]
    assert (where["addressType"], where["endpoints"][0]["addresses"]) == (address_type, [address])
    assert routing(second) == (BACKEND, leads)
    assert told(plan(second)) == {
        "RoutingReady": ("True", "BackendConfigured", f"Requests go to {leads}"),
        "Ready": ("True", "Available", f"Requests go to {leads}"),
    }


def test_an_endpoint_that_lacks_a_part_cannot_be_routed_to() -> None:
    whole = settled(seen(endpoint(IP)))
    without = replace(whole, children=tuple(one for one in whole.children if type_of(one) != ENDPOINT_SLICE))

    assert routing(without) is None
    assert told(plan(without))["RoutingReady"][1] == "WaitingForBackend"
    assert kinds(settled(without).children) == kinds(whole.children)


def test_another_url_changes_the_service_and_takes_away_what_it_no_longer_needs() -> None:
    before = settled(seen(endpoint(PROVIDER)))
    after = replace(before, endpoint=endpoint(IP))

    assert [str(step) for step in plan(after).steps if isinstance(step, Delete)] == [
        f"delete EndpointSlice {NAMESPACE}/{BACKEND}-fqdn",
        f"delete BackendTLSPolicy {NAMESPACE}/{BACKEND}",
    ]
    assert routing(after) == (BACKEND, "https://api.together.xyz:443"), "as long as it leads there"
    assert routing(settled(after)) == (BACKEND, "http://34.55.100.10:80")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("not-a-url", "it is no URL: write it as https://host or https://host:port"),
        ("https://user:hunter2@example.com", "it holds a user name or password: take out everything up to the `@`"),
        ("http://169.254.169.254/", "169.254.169.254 is link-local, which is where a cloud's metadata is"),
        ("http://redis.prod.svc", "redis.prod.svc is a name inside the cluster or on the machine: "),
    ],
)
def test_a_url_that_cannot_be_used_leaves_the_endpoint_where_it_was(url: str, why: str) -> None:
    nowhere = seen(endpoint(url))
    assert plan(nowhere).steps == ()
    assert routing(nowhere) is None

    before = settled(seen(endpoint(PROVIDER)))
    after = replace(before, endpoint=endpoint(url))
    conditions = told(plan(after))

    assert [step for step in plan(after).steps if not isinstance(step, Apply)] == [KEEP]
    assert settled(after).children == before.children
    assert routing(after) == (BACKEND, "https://api.together.xyz:443")
    assert conditions["RoutingReady"][:2] == ("False", "InvalidURL")
    assert conditions["Ready"][:2] == ("False", "InvalidURL")
    for _, _, message in (*conditions.values(), *told(plan(nowhere)).values()):
        assert message.startswith(f"Invalid spec.url: {why}")
        assert "hunter2" not in message
    assert conditions["Ready"][2].endswith("; requests go on to https://api.together.xyz:443")
    assert told(plan(nowhere))["Ready"][2].endswith("; no requests go there")


def test_what_was_changed_under_a_url_that_cannot_be_used_is_mended() -> None:
    before = settled(seen(endpoint(PROVIDER)))
    broken = replace(before, endpoint=endpoint("not-a-url"), children=before.children[:1])

    assert settled(broken).children == before.children


def test_a_service_that_does_not_say_where_it_leads_is_left_alone_under_a_wrong_url() -> None:
    service, *others = settled(seen(endpoint(PROVIDER))).children
    mute = seen(endpoint("not-a-url"), change(service, "metadata.annotations", {}), *others)

    assert plan(mute).steps == ()


def test_settings_that_come_to_refuse_a_place_take_it_out() -> None:
    before = settled(seen(endpoint(PROVIDER)))
    after = replace(before, reach=Reach(refused=("api.together.xyz",)))

    assert settled(after).children == ()
    assert routing(after) is None
    assert told(plan(after))["RoutingReady"][2].startswith("Invalid spec.url: api.together.xyz is excluded by")
    assert settled(settled(after)).children == ()


def test_settings_that_allow_a_place_let_it_be_used() -> None:
    inside = seen(endpoint("http://redis.prod.svc"), reach=Reach(allowed=(".prod.svc",)))

    assert routing(settled(inside)) == (BACKEND, "http://redis.prod.svc:80")


def test_a_hub_that_serves_no_policies_gets_none() -> None:
    assert BACKEND_TLS_POLICY in {type_of(one) for one in settled(seen(endpoint(PROVIDER))).children}
    assert {type_of(one) for one in settled(seen(endpoint(PROVIDER), tls_policies=False)).children} == {
        SERVICE,
        ENDPOINT_SLICE,
    }


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (None, "Secret keys does not exist: make it, with the credentials under the key together; no requests"),
        ({}, "Secret keys has no key together: put the credentials under it; no requests"),
        (secret(other="x"), "Secret keys has no key together: put the credentials under it; no requests"),
        (secret(together=" \n"), "Secret keys holds nothing under together: put the credentials there; no requests"),
        (secret(together="a\nb"), "Secret keys holds no valid header value under together: "),
        (secret(together="schlüssel"), "Secret keys holds no valid header value under together: "),
        (secret(together="x" * 4097), "Secret keys holds no valid header value under together: "),
        ({"data": {"together": "/w=="}}, "Secret keys holds no valid header value under together: "),
    ],
)
def test_credentials_that_cannot_be_used_are_told_and_looked_at_again(found: Manifest | None, why: str) -> None:
    keyed = endpoint(PROVIDER, credentials={"secretRef": {"name": "keys", "key": "together"}})
    found_out = plan(settled(seen(keyed, secret=found)))
    name, reason, message = told(found_out)["RoutingReady"]

    assert (name, reason) == ("False", "CredentialsMissing")
    assert message.startswith(why)
    assert told(found_out)["Ready"][0] == "False"
    assert found_out.requeue_after == 30.0


def test_credentials_are_not_told() -> None:
    keyed = endpoint(PROVIDER, credentials={"secretRef": {"name": "keys", "key": "together"}})
    observed = settled(seen(keyed, secret=secret(together="hunter2")))

    assert told(plan(observed))["Ready"][0] == "True"
    assert plan(observed).requeue_after == 30.0
    assert "hunter2" not in str(plan(observed))


def test_an_endpoint_on_its_way_out_keeps_its_service_while_requests_may_come() -> None:
    leaving = plan(seen(endpoint(IP, terminating=True), routes=("qwen",)))

    assert leaving.steps == ()
    assert told(leaving)["Ready"] == (
        "False",
        "Deleting",
        "Waiting until these send no more requests here: HTTPRoute qwen",
    )
    assert leaving.requeue_after == PATIENCE.total_seconds()


@pytest.mark.parametrize(("routes", "after"), [((), timedelta()), (("of-a-gateway-that-is-gone",), PATIENCE)])
def test_an_endpoint_goes_when_no_requests_can_come_or_nobody_looks(routes: tuple[str, ...], after: timedelta) -> None:
    assert plan(seen(endpoint(IP, terminating=True), routes=routes, now=EPOCH + after)).steps == (LET_GO,)


def test_a_stranger_of_the_same_name_is_not_taken_away() -> None:
    before = settled(seen(endpoint(PROVIDER)))
    theirs = change(before.children[1], f'metadata.labels."{labels.OWNER_UID}"', "theirs")
    after = replace(before, endpoint=endpoint(IP), children=(before.children[0], theirs))

    assert not [step for step in plan(after).steps if isinstance(step, Delete)]


urls = st.sampled_from([IP, PROVIDER, "https://10.0.0.7:8443", "http://[2001:db8::1]", "not-a-url", "http://x.svc"])
hostnames = st.sampled_from([{}, {"hostname": "models.example.com"}])


@given(history=st.lists(st.tuples(urls, hostnames, st.booleans()), min_size=1, max_size=4))
def test_a_plan_is_a_fixpoint(history: list[tuple[str, dict[str, str], bool]]) -> None:
    observed = seen(endpoint(IP))
    for url, spec, tls_policies in history:
        observed = replace(observed, endpoint=endpoint(url, **spec), tls_policies=tls_policies)
        observed = settled(observed)

    again = settled(observed)

    assert again.children == observed.children
    assert plan(again) == plan(observed)


# Envoy Gateway --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "where", "tls"),
    [
        (IP, {"ip": {"address": "34.55.100.10", "port": 80}}, None),
        (
            PROVIDER,
            {"fqdn": {"hostname": "api.together.xyz", "port": 443}},
            {"wellKnownCACertificates": "System", "sni": "api.together.xyz"},
        ),
    ],
)
def test_with_envoy_gateway_an_endpoint_is_a_backend(url: str, where: Manifest, tls: Manifest | None) -> None:
    second = settled(seen(endpoint(url), plane=envoy_gateway))

    assert kinds(second.children) == [f"Backend {BACKEND}"]
    assert second.children[0]["spec"] == {"endpoints": [where], **({"tls": tls} if tls else {})}
    assert told(plan(second))["Ready"][0] == "True"


def test_another_hub_gateway_changes_what_an_endpoint_is() -> None:
    before = settled(seen(endpoint(PROVIDER)))
    after = settled(replace(before, plane=envoy_gateway))

    assert kinds(after.children) == [f"Backend {BACKEND}"]
    assert routing(after) == routing(before)
    assert kinds(settled(replace(after, plane=traefik)).children) == kinds(before.children)


def test_envoy_gateway_verifies_names_alone() -> None:
    unnamed = settled(seen(endpoint("https://34.55.100.10/v1"), plane=envoy_gateway))
    named = settled(seen(endpoint("https://34.55.100.10/v1", hostname="models.example.com"), plane=envoy_gateway))
    why = (
        "Invalid spec.url: Envoy Gateway cannot verify an address: set hostname to the name in its certificate; "
        "no requests go there"
    )

    assert told(plan(unnamed))["RoutingReady"] == ("False", "InvalidURL", why)
    assert unnamed.children == ()
    assert named.children[0]["spec"]["tls"]["sni"] == "models.example.com"


@pytest.mark.parametrize(
    ("held", "injected"),
    [
        ({"credential": "Bearer k"}, True),
        ({"credential": "Bearer k\n"}, False),
        ({"other": "Bearer k"}, False),
    ],
)
def test_envoy_gateway_takes_a_whole_value_from_its_secret(held: dict[str, str], *, injected: bool) -> None:
    reference = {"secretRef": {"name": "keys", "key": next(iter(held))}, "prefix": ""}
    second = settled(seen(endpoint(PROVIDER, credentials=reference), plane=envoy_gateway, secret=secret(**held)))
    injection = {"header": "Authorization", "overwrite": True, "credential": {"valueRef": {"name": "keys"}}}

    assert [one["spec"] for one in second.children[1:]] == ([{"credentialInjection": injection}] if injected else [])
    assert told(plan(second))["Ready"][0] == "True"


# What users write, and what the operator writes for a replica --------------------------------------------------------

USERS = EVERYWHERE.of_users([], [])
GATEWAY = "10.1.2.3"
REPLICAS = f"/{NAMESPACE}/together/"


def users(url: str, *children: Manifest, gateways: tuple[str, ...] = (), **resolved: Any) -> Observed:
    """An endpoint that a user has written; the one name that it leads to stands for this."""
    return replace(
        seen(endpoint(url), *children, reach=USERS), outside=Outside(resolved.get("names", {}), frozenset(gateways))
    )


def of_replica(url: str, *children: Manifest, gateway: str | None = GATEWAY, path: str = REPLICAS) -> Observed:
    return replace(seen(endpoint(url, rewritePath=path), *children), cluster=ClusterState(gateway))


def reported(observed: Observed) -> str:
    return told(plan(observed))["RoutingReady"][2]


def names(*addresses: str, error: str = "") -> dict[str, Resolved]:
    return {"api.together.xyz": Resolved(tuple(map(ip_address, addresses)), error)}


def test_a_private_address_is_refused_of_users_and_leads_to_the_gateway_for_a_replica() -> None:
    url = f"http://{GATEWAY}{REPLICAS}v1"

    assert kinds(settled(users(url)).children) == []
    assert f"{GATEWAY} is a private address" in reported(users(url))
    assert routing(settled(of_replica(url))) == (BACKEND, f"http://{GATEWAY}:80")


def test_a_replica_behind_a_gateway_on_another_port_is_reached_by_that() -> None:
    url = f"http://{GATEWAY}:8080{REPLICAS}v1"

    assert routing(settled(replace(of_replica(url), cluster=ClusterState(GATEWAY, 8080)))) == (
        BACKEND,
        f"http://{GATEWAY}:8080",
    )
    assert plan(replace(of_replica(url), cluster=ClusterState(GATEWAY, 9090))).steps == ()


@pytest.mark.parametrize(
    ("url", "gateway", "path"),
    [
        ("http://10.9.9.9/v1", GATEWAY, REPLICAS),
        (f"http://{GATEWAY}:9901/v1", GATEWAY, REPLICAS),
        (f"http://{GATEWAY}/v1", GATEWAY, "/team-b/theirs-0123456789/"),
        (f"http://{GATEWAY}/v1", None, REPLICAS),
    ],
)
def test_what_a_replicas_endpoint_was_changed_to_is_not_heeded(url: str, gateway: str | None, path: str) -> None:
    before = settled(of_replica(f"http://{GATEWAY}/v1"))

    changed = plan(of_replica(url, *before.children, gateway=gateway, path=path))

    assert (changed.steps, changed.status) == ((), None), "its deployment writes it again"


def test_no_user_leads_to_a_clusters_gateway() -> None:
    outside = "34.55.100.10"

    assert "is the gateway of a workload cluster" in reported(users(f"http://{outside}", gateways=(outside,)))
    by_name = users(PROVIDER, gateways=(outside,), names=names(outside))
    assert "is the gateway of a workload cluster" in reported(by_name)


PLAIN = "http://api.together.xyz"


@pytest.mark.parametrize(
    ("url", "closed", "kept"),
    [
        (PROVIDER, False, True),
        ("https://34.55.100.10", False, True),
        (PLAIN, True, True),
        ("http://34.55.100.10", True, True),
        (PLAIN, False, False),
        ("http://34.55.100.10", False, False),
    ],
)
def test_what_a_cluster_says_takes_no_provider_away_unless_its_gateway_could_be_reached_so(
    url: str, *, closed: bool, kept: bool
) -> None:
    """The cluster has its address in any case. By http whoever runs a name could lead it to a gateway that is open."""
    address = "34.55.100.10"
    before = settled(users(url, names=names(address)))
    led = before.endpoint.model_copy(update={"status": plan(before).status})
    claimed = frozenset({address})
    what = replace(before.outside, gateways=claimed, closed=claimed if closed else frozenset())
    later = replace(before, endpoint=led, outside=what)

    assert (settled(later).children == before.children) is kept
    assert ("although a workload cluster reports" in reported(later)) is kept
    if not kept:
        assert "is the gateway of a workload cluster" in reported(later)
    moved = replace(later, endpoint=endpoint("https://api.groq.com"), outside=Outside({}, frozenset({"api.groq.com"})))
    assert "is the gateway of a workload cluster" in reported(moved)


def test_a_provider_goes_on_while_its_name_is_not_resolved_again() -> None:
    """As after a restart of the operator."""
    before = settled(users(PLAIN, names=names("34.55.100.10")))
    led = before.endpoint.model_copy(update={"status": plan(before).status})
    again = replace(before, endpoint=led, outside=Outside({"api.together.xyz": None}))

    assert settled(again).children == before.children


def test_a_name_is_waited_for_at_first_and_nothing_is_made_of_it() -> None:
    pending = users(PROVIDER, names={"api.together.xyz": None})

    assert kinds(settled(pending).children) == []
    assert reported(pending) == "Host api.together.xyz is being resolved; no requests go there"
    assert plan(pending).requeue_after == REQUEUE_SOON


def test_a_name_that_turns_out_to_lead_inward_gets_no_requests_any_more() -> None:
    outside = settled(users(PROVIDER, names=names("34.55.100.10")))
    assert routing(outside) == (BACKEND, "https://api.together.xyz:443")
    assert plan(outside).requeue_after == REQUEUE_AFTER

    inward = settled(users(PROVIDER, *outside.children, names=names("34.55.100.10", "10.0.0.7")))

    assert kinds(inward.children) == []
    assert "api.together.xyz does not lead to 1 to 64 public addresses" in reported(inward)
    assert "10.0.0.7" not in str(reported(inward)), "nobody learns what only the hub's name servers tell"


def test_what_led_outside_before_gets_requests_while_another_name_is_resolved() -> None:
    before = settled(users(PROVIDER, names=names("34.55.100.10")))
    known = {**names("34.55.100.10"), "api.groq.com": None}

    changing = settled(users("https://api.groq.com", *before.children, names=known))

    assert routing(changing) == (BACKEND, "https://api.together.xyz:443")
    assert reported(changing) == "Host api.groq.com is being resolved; requests go on to https://api.together.xyz:443"


def test_a_name_that_nobody_can_tell_of_is_told_and_holds_nothing_up() -> None:
    """The gateway may know it: the operator does not always run beside it."""
    busy = settled(users(PROVIDER, names=names(error="Temporary failure in name resolution")))

    assert routing(busy) == (BACKEND, "https://api.together.xyz:443")
    assert reported(busy).endswith("cannot resolve api.together.xyz: Temporary failure in name resolution")


UNKNOWN = {"api.together.xyz": Resolved(error="Name or service not known", unknown=True)}


def test_a_tenant_does_not_learn_which_names_exist_inside() -> None:
    """Not by the message, and not by anything else that the status says."""
    inside, unknown = (users(PROVIDER, names=known) for known in (names("10.0.0.7"), UNKNOWN))

    assert told(plan(inside)) == told(plan(unknown))
    assert kinds(settled(inside).children) == kinds(settled(unknown).children) == []


def test_a_provider_whose_name_is_lost_goes_on() -> None:
    before = settled(users(PROVIDER, names=names("34.55.100.10")))
    led = before.endpoint.model_copy(update={"status": plan(before).status})
    lost = replace(before, endpoint=led, outside=Outside(UNKNOWN))

    assert routing(settled(lost)) == (BACKEND, "https://api.together.xyz:443")


@pytest.mark.parametrize(
    "found", [names("34.55.100.10"), names(error="Temporary failure in name resolution")], ids=["known", "nobody tells"]
)
def test_an_endpoint_of_a_restored_hub_is_routed_to_again_after_one_look(found: dict[str, Resolved]) -> None:
    """A backup has its Service, and no status."""
    children = settled(users(PROVIDER, names=names("34.55.100.10"))).children
    restored = users(PROVIDER, *children, names=found)

    assert settled(restored).children == children
    assert routing(restored) == (BACKEND, "https://api.together.xyz:443")


@pytest.mark.parametrize("found", [None, UNKNOWN["api.together.xyz"]], ids=["not resolved yet", "no such name"])
def test_a_service_that_its_tenant_has_changed_does_not_say_where_requests_go_already(found: Resolved | None) -> None:
    """It is in the tenant's namespace, and its annotation tells where it leads."""
    forged = settled(users(PROVIDER, names=names("34.55.100.10"))).children
    decided = plan(users(PROVIDER, *forged, names={"api.together.xyz": found}))

    assert not [one for one in decided.steps if isinstance(one, Apply)]
    assert told(decided)["Ready"][0] == "False"
    assert decided.steps or found is None, "nothing goes before it is known where it leads"


# The gateway of a cluster, which answers nobody but the hub's ---------------------------------------------------------

WEST = "west.gateways.modelplane.internal"
OWN = f"/{NAMESPACE}/together/"


def test_the_endpoint_of_a_replica_leads_where_the_hubs_certificate_is_presented() -> None:
    before = settled(seen(endpoint("http://192.0.2.7/", rewritePath=OWN)))
    after = settled(replace(before, endpoint=endpoint("https://192.0.2.7/", rewritePath=OWN, hostname=WEST)))

    assert routing(after) == (BACKEND, "https://192.0.2.7:443")
    assert kinds(after.children) == [
        f"Service {BACKEND}",
        f"EndpointSlice {BACKEND}-ipv4",
        f"EndpointSlice {BACKEND}-modelplane",
    ]
    service, plain, relay = after.children
    # A route that has not followed yet leads by port 80 to where it did.
    assert [(one["name"], one["port"]) for one in service["spec"]["ports"]] == [("https", 443), ("http", 80)]
    assert (plain["ports"][0]["name"], plain["endpoints"][0]["addresses"]) == ("http", ["192.0.2.7"])
    assert (relay["ports"][0]["name"], relay["ports"][0]["port"]) == ("https", 8444)
    assert relay["endpoints"][0]["addresses"] == ["relay.modelplane.internal."]
    assert not any(type_of(one) == BACKEND_TLS_POLICY for one in after.children)


def test_routes_go_on_by_http_until_gateways_know_the_other_way() -> None:
    """A route to a port that no EndpointSlice has, as far as the gateway knows, is answered 503."""
    before = settled(seen(endpoint("http://192.0.2.7/", rewritePath=OWN)))
    before = replace(before, children=tuple(map(dated, before.children)))
    led = plan(before).status
    assert isinstance(led, ModelEndpointStatus)
    switching = endpoint("https://192.0.2.7/", rewritePath=OWN, hostname=WEST).model_copy(update={"status": led})
    known = plan(replace(before, endpoint=switching))
    assert isinstance(known.status, ModelEndpointStatus)
    assert known.status.routing == led.routing, "the slice is not there yet"
    children = settled(replace(before, endpoint=switching)).children
    after = replace(before, endpoint=switching, children=tuple(map(dated, children)))

    assert routing(after) == (BACKEND, "http://192.0.2.7:80")
    assert plan(after).requeue_after == LEARNT.total_seconds()
    assert routing(replace(after, now=EPOCH + LEARNT)) == (BACKEND, "https://192.0.2.7:443")
    assert plan(replace(after, now=EPOCH + LEARNT)).requeue_after is None
    fresh = replace(after, endpoint=endpoint("https://192.0.2.7/", rewritePath=OWN, hostname=WEST))
    assert routing(fresh) == (BACKEND, "https://192.0.2.7:443"), "no route is there to keep"


def dated(manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "creationTimestamp": EPOCH.isoformat()}}


@pytest.mark.parametrize(
    "asked",
    [
        {"rewritePath": "/others/model-1/"},
        {"rewritePath": f"/{NAMESPACE}/another/"},
        {"rewritePath": f"{OWN}../../others/model-1/"},
        {"rewritePath": "/"},
        {},
    ],
)
@pytest.mark.parametrize("url", ["https://192.0.2.7/", "http://127.0.0.1.nip.io:8444/", "https://127.0.0.1.nip.io/"])
def test_nobody_goes_to_anothers_replica_with_the_hubs_certificate(url: str, asked: Manifest) -> None:
    stolen = seen(endpoint(url, hostname=WEST, **asked))

    assert plan(stolen).steps == ()
    reason, message = told(plan(stolen))["RoutingReady"][1:]
    assert reason == "InvalidURL"
    assert "is reserved" in message


@pytest.mark.parametrize(
    "url",
    [f"http://{WEST}:8444/", "http://relay.modelplane.internal:8444/", "https://front-door.modelplane.internal/"],
)
def test_no_endpoint_is_found_by_a_name_of_the_operators(url: str) -> None:
    assert plan(seen(endpoint(url))).steps == ()


@pytest.mark.parametrize("name", ["front-door.modelplane.internal", "relay.modelplane.internal"])
def test_no_endpoint_is_asked_for_by_a_name_of_the_operators(name: str) -> None:
    assert plan(seen(endpoint("http://192.0.2.7:8444/", hostname=name, rewritePath=OWN))).steps == ()
