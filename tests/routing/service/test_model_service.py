"""Which routes a service gets, and what is said of them, as steps and conditions."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from kubeloop.plan import Apply, Delete
from kubeloop.types import HTTP_ROUTE, type_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import MAX_ENDPOINTS, ModelService, ModelServiceStatus
from modelplane_operator.routing.service.plan import Observed, plan
from tests.support.builders import EPOCH, NAMESPACE
from tests.support.manifests import change
from tests.support.plans import carried_out, told
from tests.support.services import (
    Manifest,
    endpoint,
    endpoints,
    gateway,
    judged,
    keys_of,
    secret,
    seen,
    service,
    settled,
    status,
    written,
)

pytestmark = pytest.mark.usefixtures("well_worded")

ADDRESS = f"http://34.55.100.10/{NAMESPACE}/test-service"
ROUTE = names.service_route(NAMESPACE, "test-service")


def backends(observed: Observed) -> list[tuple[str, int, int]]:
    """Name, port and weight of what the service's own rule leads to."""
    (rule, *_) = next(c for c in written(observed).children if c["metadata"]["name"] == ROUTE and "rules" in c["spec"])[
        "spec"
    ]["rules"]
    return [(one["name"].rpartition("-")[0], one["port"], one["weight"]) for one in rule["backendRefs"]]


# The worked cases of the specification. Where they differ, ours is on purpose: names are derived and known at once, and
# what answers 503 stands where the reference has no backends.
CASES: dict[str, tuple[Observed, list[tuple[str, int, int]], str]] = {
    "V01 one endpoint": (seen(service((1, "a")), endpoint("one")), [("one", 80, 1)], "Matched 1 endpoint"),
    "V03 endpoint without a backend": (
        seen(service((1, "a")), endpoint("one", routed=None)),
        [("test-service", 80, 1)],
        "Matched 1 endpoint; 1 starting (waiting for: backend)",
    ),
    "V05 endpoint and provider": (
        seen(
            service((1, "a")), endpoint("one"), endpoint("two", url="https://api.groq.com", rewritePath="/openai/v1/")
        ),
        [("one", 80, 1), ("two", 443, 1)],
        "Matched 2 endpoints",
    ),
    "V07 default weight for two, three for one": (
        seen(service((1, "a"), (3, "b")), endpoint("one"), endpoint("two"), endpoint("three", "b")),
        [("one", 80, 1), ("two", 80, 1), ("three", 80, 6)],
        "Matched 3 endpoints",
    ),
    "V09 the largest weight": (
        seen(service((1_000_000, "a"), (1, "b")), endpoint("one"), endpoint("two", "b"), endpoint("two-2", "b")),
        [("one", 80, 1_000_000), ("two", 80, 1), ("two-2", 80, 1)],
        "Matched 3 endpoints",
    ),
    "an entry without endpoints": (
        seen(service((80, "a"), (20, "b")), endpoint("one", "b")),
        [("one", 80, 1)],
        "Matched 1 endpoint",
    ),
    "an endpoint that goes away": (
        seen(service((1, "a")), endpoint("one"), endpoint("two", terminating=True)),
        [("one", 80, 1)],
        "Matched 1 endpoint",
    ),
    "an endpoint whose URL cannot be used any more": (
        seen(service((1, "a")), endpoint("one", url="not-a-url", routed="http://10.0.0.9:8080")),
        [("one", 8080, 1)],
        "Matched 1 endpoint",
    ),
}


@pytest.mark.parametrize(("observed", "wanted", "matched"), CASES.values(), ids=CASES)
def test_worked_case(observed: Observed, wanted: list[tuple[str, int, int]], matched: str) -> None:
    assert backends(observed) == wanted
    assert told(plan(observed))["EndpointsResolved"] == ("True", "Resolved", matched)
    assert told(plan(observed))["RoutingReady"][:2] == ("False", "Configuring")
    assert told(plan(observed))["Ready"][:2] == ("False", "Creating")
    assert status(observed).address == ADDRESS


def test_a_service_is_ready_when_the_gateway_has_taken_its_present_route() -> None:
    ready = settled(seen(service((1, "a")), endpoint("one"), endpoint("two")))

    assert told(plan(ready)) == {
        "EndpointsResolved": ("True", "Resolved", "Matched 2 endpoints"),
        "RoutingReady": ("True", "RouteConfigured", "Requests go to 2 endpoints"),
        "Ready": ("True", "Available", "Requests go to 2 endpoints"),
    }
    assert [(one.name, one.weight) for one in status(ready).endpoints] == [("one", 1), ("two", 1)]
    changed = written(replace(ready, endpoints=(endpoint("one"),)))
    waits = f"Starting (waiting for: the gateway to take HTTPRoute {ROUTE})"
    assert told(plan(changed))["Ready"] == ("False", "Creating", waits)
    assert told(plan(judged(changed)))["Ready"][0] == "True"


def test_a_service_is_not_ready_by_what_the_gateway_says_of_the_route_before() -> None:
    """The route may have been refused to us: it then is as it was, and all is well with that."""
    before = settled(seen(service((1, "a")), endpoint("one")))
    unwritten = replace(before, endpoints=(endpoint("one"), endpoint("two")))

    waits = f"Starting (waiting for: HTTPRoute {ROUTE} to be changed)"
    assert told(plan(unwritten))["RoutingReady"] == ("False", "Configuring", waits)
    assert told(plan(unwritten))["Ready"][0] == "False"
    assert told(plan(settled(unwritten)))["Ready"][0] == "True"


def known(observed: Observed, **changes: Any) -> Observed:
    """The same once its status is written, with changes."""
    service = observed.service.model_copy(update={"status": status(observed)})
    return replace(observed, service=service, **changes)


def test_a_ready_service_stays_so_while_the_gateway_takes_a_change_that_leaves_an_endpoint() -> None:
    ready = known(settled(seen(service((1, "a")), endpoint("one"), endpoint("two"))))

    for endpoints_now in (
        (endpoint("one"),),
        (endpoint("one"), endpoint("three")),
        (endpoint("one", routed="http://b"),),
    ):
        unwritten = replace(ready, endpoints=endpoints_now)
        for changed in (unwritten, known(unwritten), written(known(unwritten))):
            assert told(plan(changed))["Ready"][:2] == ("True", "Available")
            assert told(plan(changed))["RoutingReady"][0] == "True"
    gone = replace(ready, endpoints=(endpoint("three"),))
    assert told(plan(gone))["Ready"][:2] == ("False", "Creating"), "nothing is left of what was accepted"
    refused = judged(written(replace(ready, endpoints=(endpoint("one"),))), Accepted="False")
    assert told(plan(refused))["Ready"][:2] == ("False", "RouteRefused")


def test_a_ready_service_that_loses_a_part_is_degraded_and_one_that_gains_an_endpoint_is_as_it_was() -> None:
    ready = known(settled(seen(service((80, "a"), (20, "b")), endpoint("one"), endpoint("two", "b"))))

    lost = known(settled(replace(ready, endpoints=(endpoint("one"),))))
    words = "1 of 2 entries with an endpoint that can answer. Without one: group=b"
    assert told(plan(lost))["Ready"] == ("True", "Degraded", words)
    more = settled(replace(ready, endpoints=(*ready.endpoints, endpoint("three", routed=None))))
    assert told(plan(more))["Ready"] == ("True", "Available", "Requests go to 2 endpoints")


def behind_a_silent_gateway(name: str) -> ModelEndpoint:
    lost = {"type": "Ready", "status": "Unknown", "reason": "Unreachable", "message": "Gateway is silent"}
    url, prefix = "http://10.0.0.1:80", f"/{NAMESPACE}/{name}/"
    routing = {"backendName": "svc", "url": url, "rewritePath": prefix, "leadsTo": "Replica", "observedGeneration": 1}
    status = {"routing": routing, "conditions": [{**lost, "lastTransitionTime": EPOCH.isoformat()}]}
    return ModelEndpoint.parse({**endpoint(name).to_manifest(), "status": status})


def test_a_gateway_that_gives_no_answer_gets_no_requests_while_another_endpoint_can_answer() -> None:
    silent = behind_a_silent_gateway("two")
    ready = known(settled(seen(service((1, "a")), endpoint("one"), endpoint("two"))))
    lost = settled(replace(ready, endpoints=(endpoint("one"), silent)))
    assert backends(lost) == [("one", 80, 1)]
    words = "Matched 2 endpoints; 1 at a gateway that does not answer (two: Gateway is silent)"
    assert told(plan(lost))["Ready"] == ("True", "Degraded", words)
    alone = settled(replace(ready, endpoints=(silent,)))
    assert backends(alone) == [("two", 80, 1)], "it is the only one that may answer"


@pytest.mark.parametrize("aspect", ["Accepted", "ResolvedRefs"])
def test_what_the_gateway_refuses_is_told_in_its_words(aspect: str) -> None:
    refused = judged(written(seen(service((1, "a")), endpoint("one"))), **{aspect: "False"})

    assert told(plan(refused))["RoutingReady"] == (
        "False",
        "RouteRefused",
        f"The gateway rejects HTTPRoute {ROUTE}: {aspect}False: why",
    )


def test_route_and_address_stay_when_nothing_is_selected_any_more() -> None:
    before = settled(seen(service((1, "a")), endpoint("one")))
    after = settled(replace(before, endpoints=()))

    assert not [step for step in plan(replace(before, endpoints=())).steps if isinstance(step, Delete)]
    assert backends(after) == [("test-service", 80, 1)]
    assert status(after).address == ADDRESS
    none = "No ModelEndpoints matched the configured selectors (group=a)"
    assert told(plan(after)) == {
        "EndpointsResolved": ("False", "NoEndpoints", none),
        "RoutingReady": ("False", "Configuring", "No endpoint can answer: see EndpointsResolved"),
        "Ready": ("False", "NoEndpoints", f"No endpoint can answer. {none}"),
    }


def test_without_an_inference_gateway_routes_and_guards_stay_as_they_are() -> None:
    """Else the keys that it asks for by default would be asked for no more, while its Gateway may still answer."""
    asking = gateway().model_copy(update={"spec": gateway().spec.model_copy(update={"auth": keys_of("clients")})})
    behind = settled(seen(service((1, "a")), endpoint("one"), behind=asking, secrets={"clients": secret(one="key")}))
    assert "Middleware" in {one["kind"] for one in behind.children}
    known = behind.service.model_copy(update={"status": status(behind)})

    alone = replace(behind, service=known, gateway=None, secrets={}, endpoints=())
    assert plan(alone).steps == ()
    assert "AuthReady" not in told(plan(alone)), "what was said last stays"
    assert plan(seen(service((1, "a")), endpoint("one"), behind=None)).steps == (), "nothing begins in the open"


def test_a_guard_goes_once_no_route_asks_by_it_any_more() -> None:
    """Traefik would answer none of such a route; it learns of both by watches of their own."""
    asking = gateway().model_copy(update={"spec": gateway().spec.model_copy(update={"auth": keys_of("clients")})})
    behind = settled(seen(service((1, "a")), endpoint("one"), behind=asking, secrets={"clients": secret(one="key")}))
    guard = next(one["metadata"]["name"] for one in behind.children if one["kind"] == "Middleware")
    open_now = replace(behind, gateway=gateway())

    first = plan(open_now)
    assert not [step for step in first.steps if isinstance(step, Delete)]
    then = replace(open_now, children=carried_out(first, open_now.children))
    assert [step.key.name for step in plan(then).steps if isinstance(step, Delete)] == [guard]


def test_a_secret_that_may_not_be_read_leaves_no_route_open() -> None:
    auth = keys_of("clients")
    closed = service((1, "a")).model_copy(update={"spec": service((1, "a")).spec.model_copy(update={"auth": auth})})
    refused = {"clients": "get secrets: 403 Forbidden", "keys": "get secrets: 403 Forbidden"}
    found = plan(replace(seen(closed, endpoint("one"), keyed("two")), forbidden=refused))

    assert "Middleware" in {step.manifest["kind"] for step in found.steps if isinstance(step, Apply)}
    words = "Secret clients may not be read by the operator: get secrets: 403 Forbidden"
    assert told(found)["AuthReady"] == ("False", "SecretForbidden", words)
    assert "two: Secret keys may not be read: get secrets" in told(found)["EndpointsResolved"][2]


@pytest.mark.parametrize("behind", [None, gateway(None)])
def test_without_a_gateway_that_is_reached_the_service_waits(behind: InferenceGateway | None) -> None:
    alone = settled(seen(service((1, "a")), endpoint("one"), behind=behind))

    assert bool(alone.children) is bool(behind)
    assert status(alone).address is None
    assert told(plan(alone))["RoutingReady"] == (
        "False",
        "WaitingForGateway",
        "Starting (waiting for: InferenceGateway default to have an address; see its condition Ready)"
        if behind
        else "InferenceGateway default does not exist: create it, as models get no requests without it",
    )
    assert told(plan(alone))["Ready"][0] == "False"


def test_an_entry_that_nobody_answers_for_keeps_the_service_from_being_ready() -> None:
    half = settled(seen(service((80, "a"), (20, "b")), endpoint("one", "b")))

    assert told(plan(half))["RoutingReady"][0] == "True"
    assert told(plan(half))["Ready"] == (
        "False",
        "Partial",
        "1 of 2 entries with an endpoint that can answer. Without one: group=a",
    )


def test_an_endpoint_that_waits_keeps_the_service_from_being_ready() -> None:
    part = settled(seen(service((1, "a")), endpoint("one"), endpoint("two", routed=None)))

    assert told(plan(part))["RoutingReady"][0] == "True"
    assert told(plan(part))["Ready"] == ("False", "Partial", "Matched 2 endpoints; 1 starting (waiting for: backend)")


def keyed(name: str) -> ModelEndpoint:
    return endpoint(name, url="https://api.groq.com", credentials={"secretRef": {"name": "keys", "key": name}})


def test_labels_that_say_nothing_are_told_to_select_everything() -> None:
    wanted = {"endpoints": [{"selector": {"matchLabels": {}}}]}
    everything = ModelService.parse({"metadata": {"name": "all", "namespace": NAMESPACE, "uid": "u"}, "spec": wanted})

    assert told(plan(seen(everything, endpoint("one"))))["EndpointsResolved"][2] == (
        "Matched 1 endpoint; empty matchLabels select every endpoint in this namespace"
    )


def test_an_endpoint_whose_credentials_are_missing_is_taken_out_and_named() -> None:
    observed = settled(seen(service((1, "a")), endpoint("one"), keyed("two"), secrets={"keys": secret(other="x")}))

    assert backends(observed) == [("one", 80, 1)]
    counted = "Matched 2 endpoints; 1 without credentials (two: Secret keys has no key two)"
    assert told(plan(observed))["EndpointsResolved"][2] == counted
    assert told(plan(observed))["Ready"] == ("False", "Partial", counted)
    assert plan(observed).requeue_after == 30.0


def test_a_path_with_a_line_break_from_before_its_pattern_costs_its_own_endpoint_and_no_other() -> None:
    observed = seen(service((1, "a")), endpoint("one"), endpoint("two", rewritePath="/x\ny"))

    assert backends(observed) == [("one", 80, 1)]
    assert told(plan(observed))["EndpointsResolved"][2] == (
        "Matched 2 endpoints; 1 with characters in rewritePath that are not printable ASCII, or with a `\\`"
    )


def paths(observed: Observed) -> list[str]:
    routes = [child["spec"]["rules"] for child in written(observed).children if type_of(child) == HTTP_ROUTE]
    filters = [one for (rule, *_) in routes for to in rule["backendRefs"] for one in to.get("filters", ())]
    return [one["urlRewrite"]["path"]["replacePrefixMatch"] for one in filters if one["type"] == "URLRewrite"]


def looked_at(one: ModelEndpoint, *, generation: int, **routing: Any) -> ModelEndpoint:
    """An endpoint of a generation, of which the operator has published this."""
    manifest = one.to_manifest()
    published = {**manifest["status"]["routing"], **routing}
    metadata = {**manifest["metadata"], "generation": generation}
    return ModelEndpoint.parse({**manifest, "metadata": metadata, "status": {"routing": published}})


def test_routes_follow_what_the_operator_has_looked_at_and_not_what_somebody_wrote_since() -> None:
    """A paused endpoint of a replica could lead into another's model otherwise."""
    edited = endpoint("one", rewritePath="/team-b/theirs/", hostname="theirs.example.com")
    known = looked_at(edited, generation=2, observedGeneration=1, rewritePath="/ns/one/")

    assert paths(seen(service((1, "a")), known)) == ["/ns/one/"]
    assert "theirs" not in str(written(seen(service((1, "a")), known)).children)


@pytest.mark.parametrize(
    "forged",
    [
        {"hostname": "west.gateways.modelplane.internal", "leadsTo": "Replica"},
        {"hostname": "west.gateways.modelplane.internal", "leadsTo": "Outside"},
        {"url": "https://west.gateways.modelplane.internal"},
        {"leadsTo": "Replica"},
    ],
)
def test_no_status_leads_to_a_replica_of_somebody_else(forged: Manifest) -> None:
    """A tenant whose role is everything of ours in its namespace may write one, where no policy refuses that."""
    own, theirs = f"/{NAMESPACE}/one/", "/team-b/victim/"
    honest = looked_at(endpoint("one"), generation=1, observedGeneration=1, rewritePath=own, **forged)
    stolen = looked_at(endpoint("one"), generation=1, observedGeneration=1, rewritePath=theirs, **forged)

    assert paths(seen(service((1, "a")), honest)) == [own]
    assert paths(seen(service((1, "a")), stolen)) == []
    assert told(plan(seen(service((1, "a")), stolen)))["EndpointsResolved"][2] == (
        "Matched 1 endpoint; 1 with the path of another replica"
    )


def test_what_an_operator_of_before_published_is_followed_until_it_is_edited() -> None:
    told_then = {"type": "RoutingReady", "status": "True", "reason": "BackendConfigured", "observedGeneration": 1}
    kept = looked_at(endpoint("one", rewritePath="/v2/"), generation=1, url="https://api.groq.com").to_manifest()
    kept["status"]["conditions"] = [{**told_then, "lastTransitionTime": EPOCH.isoformat(), "message": ""}]
    edited = {
        **kept,
        "metadata": {**kept["metadata"], "generation": 2},
        "spec": {**kept["spec"], "rewritePath": "/v3/"},
    }

    assert paths(seen(service((1, "a")), ModelEndpoint.parse(kept))) == ["/v2/"]
    assert told(plan(seen(service((1, "a")), ModelEndpoint.parse(edited))))["EndpointsResolved"][2] == (
        "Matched 1 endpoint; 1 starting (waiting for: backend)"
    )

    before = written(seen(service((1, "a")), ModelEndpoint.parse(kept)))
    paused = {**edited, "metadata": {**edited["metadata"], "annotations": {labels.PAUSED: "true"}}}
    held = replace(before, endpoints=(ModelEndpoint.parse(paused),))
    assert paths(held) == ["/v2/"], "the last route stands until the pause ends"
    plain = {**paused, "status": {**paused["status"]}}
    plain["status"]["routing"] = {**plain["status"]["routing"], "url": "http://192.0.2.7"}
    assert paths(replace(before, endpoints=(ModelEndpoint.parse(plain),))) == []


@pytest.mark.parametrize(
    ("url", "leads_to", "marked"),
    [
        ("http://lb.example.com", "Replica", True),
        ("https://lb.example.com", "Replica", False),
        ("http://192.0.2.7", "Replica", True),
        ("https://192.0.2.7", "Replica", False),
        ("http://192.0.2.7", "Outside", True),
    ],
)
def test_requests_are_marked_where_they_may_come_back_from(url: str, leads_to: str, *, marked: bool) -> None:
    """A cluster may tell any place as its gateway's, one of the hub gateway's too, and nobody proves one by http."""
    known = looked_at(
        endpoint("one", url=url),
        generation=1,
        observedGeneration=1,
        rewritePath=f"/{NAMESPACE}/one/",
        leadsTo=leads_to,
    )

    observed = replace(seen(service((1, "a")), known), hub="the-uid")

    assert ("x-modelplane-hop-" in str(written(observed).children)) is marked


@pytest.mark.parametrize("leads_to", ["Replica", "Outside"])
@pytest.mark.parametrize(("host", "usable"), [("192.0.2.1", False), ("models.example.com", False), ("192.0.2.2", True)])
def test_nothing_leads_to_the_hub_gateway_itself(host: str, leads_to: str, *, usable: bool) -> None:
    known = looked_at(
        endpoint("one", url=f"http://{host}"),
        generation=1,
        observedGeneration=1,
        rewritePath=f"/{NAMESPACE}/one/",
        leadsTo=leads_to,
    )
    tls = {"secretRef": {"name": "s"}, "hostnames": ["models.example.com"]}
    spec = {"backend": "Traefik", "traefik": {"version": "1"}, "tls": tls}
    own = {"metadata": {"name": "default", "uid": "g"}, "spec": spec, "status": {"address": "192.0.2.1"}}

    observed = replace(seen(service((1, "a")), known), gateway=InferenceGateway.parse(own))

    resolved = told(plan(observed))["EndpointsResolved"][2]
    assert ("1 that would lead back to this hub's own gateway" in resolved) is not usable


HOSTILE = ("/x\ny", "/x\0y", "/x\r\nHost: y", "/\\1", "/\x7f", "/ü", "/ ", "\u2028")


@pytest.mark.parametrize("backend", ["Traefik", "EnvoyGateway"])
@pytest.mark.parametrize("text", [*HOSTILE, "%REQ(x?y?z)%", "100%", "%ENVIRONMENT(HOME)%"])
def test_no_text_of_a_user_reaches_a_gateway_that_it_could_take_for_more_than_a_text(backend: str, text: str) -> None:
    """Whatever API servers let in once: every field of an endpoint that is a text, one after the other."""
    encoded = base64.b64encode(text.encode()).decode()
    keys = {"metadata": {"name": "keys"}, "data": {"k": encoded}}
    credentials = {"secretRef": {"name": "keys", "key": "k"}}
    prefixed = {"secretRef": {"name": "fine", "key": "k"}, "prefix": text}
    fine = {"metadata": {"name": "fine"}, "data": {"k": base64.b64encode(b"fine").decode()}}
    written_by_users: list[dict[str, Any]] = [
        {"rewritePath": text},
        {"hostname": text},
        {"credentials": credentials},
        {"credentials": {**credentials, "header": "x-key"}},
        {"credentials": prefixed},
    ]
    door = InferenceGateway.parse(
        {
            "metadata": {"name": "default"},
            "spec": {"backend": backend},
            "status": {"address": "34.55.100.10"},
        }
    )
    many = [endpoint("good"), *(endpoint(f"bad-{number}", **one) for number, one in enumerate(written_by_users))]
    for subject in (*([one] for one in many), many):
        children = written(
            seen(service((1, "a")), *subject, behind=door, secrets={"keys": keys, "fine": fine})
        ).children
        for field, text_there in leaves([child.get("spec", {}) for child in children]):
            assert text_there.isascii(), field
            assert text_there.isprintable(), field
            assert field != "replacePrefixMatch" or "\\" not in text_there
            if field == "value" and backend == "EnvoyGateway":
                assert "%" not in text_there.replace("%%", "")


def leaves(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every text within, and the field in which it stands."""
    match value:
        case str():
            yield field, value
        case dict():
            yield from (leaf for key, one in value.items() for leaf in leaves(one, key))
        case list():
            yield from (leaf for one in value for leaf in leaves(one, field))
        case _:
            pass


def test_a_path_that_no_route_takes_costs_its_own_endpoint_and_no_other() -> None:
    observed = seen(service((1, "a")), endpoint("one"), endpoint("two", rewritePath="/" * 1025))

    assert backends(observed) == [("one", 80, 1)]
    counted = "Matched 2 endpoints; 1 with a rewritePath of more than 1024 characters"
    assert told(plan(observed))["EndpointsResolved"][2] == counted


def test_no_more_than_three_are_named() -> None:
    observed = seen(service((1, "a")), *(keyed(f"e{number}") for number in range(5)))

    assert told(plan(observed))["EndpointsResolved"][2] == (
        "Matched 5 endpoints; 5 without credentials (e0: Secret keys does not exist, "
        "e1: Secret keys does not exist, e2: Secret keys does not exist, and 2 more)"
    )


def test_credentials_are_in_the_route_and_nowhere_else() -> None:
    observed = settled(seen(service((1, "a")), keyed("two"), secrets={"keys": secret(two="hunter2")}))
    found = plan(observed)

    applied = [step.manifest for step in found.steps if isinstance(step, Apply)]
    assert [one["kind"] for one in applied if "hunter2" in str(one)] == ["HTTPRoute"]
    assert "hunter2" not in str(found.status)
    assert found.requeue_after == 30.0
    assert plan(seen(service((1, "a")), endpoint("one"))).requeue_after is None


def test_what_many_endpoints_needed_goes_when_there_are_few_again() -> None:
    many = settled(seen(service((1, "a")), *(endpoint(f"e{number:03}") for number in range(300))))
    few = plan(replace(many, endpoints=many.endpoints[:16]))

    assert told(plan(many))["Ready"][0] == "True"
    assert len(status(many).endpoints) == MAX_ENDPOINTS
    assert told(plan(many))["EndpointsResolved"][2] == "Matched 300 endpoints"
    kinds = [step.type.kind for step in few.steps if isinstance(step, Delete)]
    assert kinds == ["Service", "EndpointSlice", "HTTPRoute"]
    last_applied = max(index for index, step in enumerate(few.steps) if isinstance(step, Apply))
    assert last_applied < min(index for index, step in enumerate(few.steps) if isinstance(step, Delete))


def test_a_route_of_many_that_the_gateway_refuses_is_told() -> None:
    many = settled(seen(service((1, "a")), *(endpoint(f"e{number:03}") for number in range(300))))
    part = names.route_part(ROUTE, 1)
    unjudged = [change(c, "status", {}) if c["metadata"]["name"] == part else c for c in many.children]

    message = f"Starting (waiting for: the gateway to take HTTPRoute {part})"
    assert told(plan(replace(many, children=tuple(unjudged))))["RoutingReady"] == ("False", "Configuring", message)


def test_a_service_on_its_way_out_gets_nothing_new_and_keeps_its_address() -> None:
    leaving = service((1, "a"), terminating=True).model_copy(update={"status": ModelServiceStatus(address=ADDRESS)})
    found = plan(seen(leaving, endpoint("one")))

    assert found.steps == ()
    assert told(found)["Ready"][:2] == ("False", "Deleting")
    assert isinstance(found.status, ModelServiceStatus)
    assert found.status.address == ADDRESS


@given(before=endpoints, after=endpoints)
def test_a_plan_is_a_fixpoint(before: list[ModelEndpoint], after: list[ModelEndpoint]) -> None:
    first = settled(seen(service((3, "a"), (1, "b")), *before))
    second = settled(replace(first, endpoints=tuple(after)))

    again = settled(second)

    assert again.children == second.children
    assert plan(again) == plan(second)


# API keys -------------------------------------------------------------------------------------------------------------


def guarded(*secrets: str, **of_gateway: Any) -> Observed:
    """A service that asks for keys of Secrets, or of none itself, with an endpoint that answers."""
    asked = {"apiKeys": {"secretRefs": [{"name": name} for name in secrets]}}
    known = service((1, "a")).to_manifest()
    subject = ModelService.parse({**known, "spec": {**known["spec"], **({"auth": asked} if secrets else {})}})
    front = gateway().to_manifest()
    return seen(
        subject, endpoint("e"), behind=InferenceGateway.parse({**front, "spec": {**front["spec"], **of_gateway}})
    )


def missing_keys(secret: str) -> str:
    told = f"Secret {secret} does not exist: make it, with an API key under each client's name"
    return f"{told}; until then requests with its API keys get 401"


def holding(**data: str) -> Manifest:
    return {"data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}}


@pytest.mark.parametrize(
    ("secrets", "reason", "message"),
    [
        ({}, "SecretNotFound", missing_keys("chat")),
        (
            {"chat": {}, "shared": holding(one="k")},
            "NoKeys",
            "Secret chat holds no API key: write one as a line of printable ASCII under its client's name",
        ),
        ({"chat": holding(one="k")}, "SecretNotFound", missing_keys("shared")),
        (
            {"chat": holding(one="k\n"), "shared": holding(two="l")},
            "KeysFound",
            "Requests need an API key of Secret chat or shared",
        ),
    ],
    ids=["none is there", "one holds nothing", "one is missing", "all are there"],
)
def test_a_service_says_whose_keys_are_missing(secrets: dict[str, Manifest], reason: str, message: str) -> None:
    observed = settled(replace(guarded("chat", "shared"), secrets=secrets))
    (auth,) = (one for one in status(observed).conditions if one.type == "AuthReady")
    (ready,) = (one for one in status(observed).conditions if one.type == "Ready")

    assert (auth.reason, auth.message) == (reason, message)
    assert (ready.status, message in (ready.message or "")) == (
        ("True", False) if reason == "KeysFound" else ("False", True)
    )
    assert plan(observed).requeue_after == 30.0


def test_without_a_word_on_keys_nothing_is_said_of_them() -> None:
    assert "AuthReady" not in {one.type for one in status(settled(guarded())).conditions}


def test_the_gateways_default_counts_where_a_service_says_nothing() -> None:
    observed = guarded(auth={"apiKeys": {"secretRefs": [{"name": "api-keys"}]}})

    (auth,) = (one for one in status(observed).conditions if one.type == "AuthReady")
    assert auth.message == missing_keys("api-keys")


def test_where_keys_are_asked_for_no_rule_goes_without_and_no_key_goes_on() -> None:
    """Past the guard nothing leads to an endpoint, and to no endpoint a key."""
    many = [endpoint(f"e{number}") for number in range(40)]
    observed = written(replace(guarded("chat"), endpoints=tuple(many)))
    rules = [rule for one in observed.children if type_of(one) == HTTP_ROUTE for rule in one["spec"]["rules"]]
    leading = [one for rule in rules for one in rule["backendRefs"] if one["name"].startswith("e")]
    removed = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["Authorization", "x-api-key"]}}

    assert len(leading) == 40
    assert all(rule["filters"][0]["type"] == "ExtensionRef" for rule in rules)
    assert all(removed in one["filters"] for one in leading)
