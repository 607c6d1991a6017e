"""What routes a ModelService needs, and what can be said of them.

The route and the address stay whatever becomes of the endpoints: a client then gets a 503, which it tries again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import assert_never

from kubeloop.condition_types import Ready, is_true
from kubeloop.conditions import condition, gateways_of
from kubeloop.objects import Key, Manifest, Section, entries, key_of, section
from kubeloop.ownership import was_applied
from kubeloop.plan import Apply, Plan, prune
from kubeloop.types import HTTP_ROUTE, MIDDLEWARE, SECURITY_POLICY, type_of
from kubeloop.words import counted
from modelplane_operator.api import labels, names
from modelplane_operator.api.bounds import SUBDOMAIN
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model_endpoint import EndpointRouting, ModelEndpoint
from modelplane_operator.api.model_endpoint import RoutingReady as Routed
from modelplane_operator.api.model_service import (
    LISTED,
    Answering,
    AuthReady,
    EndpointsResolved,
    ModelService,
    ModelServiceStatus,
    ResolvedEndpoint,
    RoutingReady,
)
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.models.replica.render import replica_prefix
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.endpoint.backend_url import Backend, read_url
from modelplane_operator.routing.endpoint.credentials import NoHeader, read_credentials
from modelplane_operator.routing.endpoint.render import asked_name
from modelplane_operator.routing.gateway.render import KEYS, HubGateway, hosts_of, hub_gateway, models_url
from modelplane_operator.routing.gateway.traefik import guards_in
from modelplane_operator.routing.service.answer import GatewayAnswer
from modelplane_operator.routing.service.answering import answering, unguarded
from modelplane_operator.routing.service.api_keys import asked_of, beyond, digests
from modelplane_operator.routing.service.api_routes import api_routes
from modelplane_operator.routing.service.hops import mark_of
from modelplane_operator.routing.service.render import LONGEST_PATH, render_model_service, service_url
from modelplane_operator.routing.service.selection import Neighbours, why_none
from modelplane_operator.routing.service.weights import Target, WeightedEndpoint, fitted, selected, weighted

KIND = ModelService.definition.kind
NAMED = 3  # how many of a kind a message names
NO_PATH = r"[^!-\[\]-~]"  # what admission refuses in a path, for those that were stored before it did
JUDGED = {HTTP_ROUTE: ("Accepted", "ResolvedRefs"), SECURITY_POLICY: ("Accepted",)}
"""What the gateway says something of, and which conditions have to be true."""

Groups = Sequence[Sequence[ModelEndpoint]]


@dataclass(frozen=True, slots=True)
class Observed:
    """A service and what surrounds it."""

    service: ModelService
    endpoints: tuple[ModelEndpoint, ...]
    """Those of its namespace that its selectors match."""
    secrets: Mapping[str, Manifest]
    """By name, the Secrets that exist of those that the endpoints' credentials and `auth` name."""
    gateway: InferenceGateway | None
    """The one that models are served through."""
    children: tuple[Manifest, ...]
    recheck: float
    """After how many seconds the Secrets are worth another look."""
    now: datetime
    keys: tuple[str, int] = KEYS
    """Host and port of the key service."""
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])
    """By name, the Secrets that the operator may not read, and what the API server says."""
    hub: str = ""
    """The uid of kube-system, which no other hub has; empty while that is not known."""
    asked: Checked[GatewayAnswer] | None = None
    """What requests through the gateway meet with; None where none are sent."""
    near: Neighbours | None = None
    """What there is in its namespace, for a service that selects no endpoint."""
    replicas: Mapping[Key, Manifest] = field(default_factory=dict[Key, Manifest])
    """Those that the endpoints lead to."""
    signing: str = field(default="", repr=False)
    """What signs where the key service is asked; empty while that is not there."""

    @property
    def door(self) -> HubGateway:
        return hub_gateway(self.gateway, self.keys, mark_of(self.hub) if self.hub else "", self.signing)


@dataclass(frozen=True, slots=True)
class Unusable:
    """An endpoint that gets no requests, and why."""

    endpoint: Key
    lack: str
    """Why, in words that follow a number of endpoints."""
    detail: str = ""
    """What there is to say of this one alone."""


def plan(seen: Observed) -> Plan:
    """Route requests to the endpoints that can be used, by the weights of their entries."""
    service = seen.service
    if service.metadata.deletion_timestamp:
        known = service.status or ModelServiceStatus()
        terminating = Ready.DELETING.condition(seen.now, message="The route of the service goes with it")
        return Plan(status=known.model_copy(update={"conditions": (terminating,)}))
    groups = selected(service, [one for one in seen.endpoints if not one.metadata.deletion_timestamp])
    found = {endpoint.key: _target(endpoint, seen) for group in groups for endpoint in group}
    targets = {key: target for key, target in found.items() if isinstance(target, Target)}
    lacking = [target for target in found.values() if isinstance(target, Unusable)]
    shared = weighted(service, groups, targets)
    wanted = render_model_service(service, shared, seen.door)
    # Who asks for keys by default, and which gateway answers, only an InferenceGateway says: until there is one again,
    # routes and guards stay as they are, and nothing is opened.
    unwanted = prune(seen.children, wanted, owner=service.metadata.uid or "")
    asked = guards_in(seen.children)  # Traefik answers none of a route whose guard is gone before it
    gone = (one for one in unwanted if one.type != MIDDLEWARE or one.key.name not in asked)
    steps = (*map(Apply, wanted), *gone)
    steps = steps if seen.gateway else ()
    secrets = asked_of(service, seen.door.auth) or any(e.spec.credentials for group in groups for e in group)
    return Plan(steps, _status(seen, groups, shared, lacking, wanted), seen.recheck if secrets else None)


def _target(endpoint: ModelEndpoint, seen: Observed) -> Target | Unusable:
    """How requests reach an endpoint: by what it publishes, which outlives a URL that cannot be used.

    And by nothing else: the operator has looked at that, and knows that a replica's endpoint leads to that replica.
    """
    routing = _published(endpoint, seen.children)
    backend = read_url(routing.url or endpoint.spec.url) if routing and routing.backend_name else None
    if routing is None or not isinstance(backend, Backend):
        said = next((one for one in endpoint.conditions if one.type == Routed.__name__), None)
        if said is not None and said.reason == Routed.INVALID_URL.reason:  # nothing comes of waiting
            return Unusable(endpoint.key, "with a URL that cannot be used", said.message or "")
        return Unusable(endpoint.key, "waiting for Backend")
    if seen.gateway and backend.host in hosts_of(seen.gateway):
        return Unusable(endpoint.key, "that would lead back to this hub's own gateway")
    path, name = routing.rewrite_path, asked_name(routing.hostname, backend)
    if len(path or "") > LONGEST_PATH:  # or no endpoint of the service could be routed to
        return Unusable(endpoint.key, f"with a rewritePath of more than {LONGEST_PATH} characters")
    if re.search(NO_PATH, path or ""):  # with it Envoy would refuse the routes of everybody
        return Unusable(endpoint.key, "with a rewritePath of other than printable ASCII characters, or with a `\\`")
    if name and not re.fullmatch(SUBDOMAIN, name):
        return Unusable(endpoint.key, "with a hostname that is none")
    inward = routing.leads_to == "Replica" or (name or "").endswith(f".{names.INTERNAL_DOMAIN}")
    if inward and path != replica_prefix(endpoint.key):  # whoever may write a status could say so
        return Unusable(endpoint.key, "with the way to a replica that is not its own")
    # Nobody proves by http to be the gateway of a cluster, which may tell any place: one of the hub gateway's, say.
    credentials, unproven = endpoint.spec.credentials, backend.scheme == "http" or routing.leads_to == "Outside"
    if credentials is None:
        return Target(backend, path=path, name=name, unproven=unproven)
    header = read_credentials(credentials, seen.secrets.get(credentials.secret_ref.name))
    if isinstance(header, NoHeader):
        named = credentials.secret_ref.name
        refused = f"Secret {named} may not be read: {seen.forbidden[named]}" if named in seen.forbidden else ""
        return Unusable(endpoint.key, "without credentials", refused or header.message)
    return Target(backend, header, path, name, unproven=unproven)


def _published(endpoint: ModelEndpoint, children: Iterable[Manifest]) -> EndpointRouting | None:
    """How routes refer to an endpoint, as the operator has looked at it."""
    status = endpoint.status
    routing = status.routing if status else None
    if status is None or routing is None or routing.observed_generation is not None:
        return routing
    # An operator of before published less. The rest of what it looked at is in the spec, unless that was edited since.
    looked_at = next((one.observed_generation for one in status.conditions if one.type == Routed.__name__), None)
    if looked_at != endpoint.metadata.generation:
        return _as_written(endpoint, routing, children)
    spec = endpoint.spec
    return routing.model_copy(update={"rewrite_path": spec.rewrite_path, "hostname": spec.hostname})


def _as_written(
    endpoint: ModelEndpoint, routing: EndpointRouting, children: Iterable[Manifest]
) -> EndpointRouting | None:
    """How the last route refers to an endpoint that nobody looks at again until its pause ends; None without one.

    By https alone: an older operator's routes followed edits of it, and by http one may lead to another's replica.
    """
    paused = endpoint.metadata.annotations.get(labels.PAUSED) == "true"
    if not paused or not (routing.url or "").startswith("https:"):
        return None
    backend = names.endpoint_backend(*endpoint.key)
    rules = (rule for one in children if type_of(one) == HTTP_ROUTE for rule in entries(one, "spec", "rules"))
    refs = (ref for rule in rules for ref in entries(rule, "backendRefs") if ref.get("name") == backend)
    ref = next(refs, None)
    if ref is None:
        return None
    rewrites = [section(one, "urlRewrite") for one in entries(ref, "filters") if "urlRewrite" in one]
    path = next((section(one, "path").get("replacePrefixMatch") for one in rewrites), None)
    hostname = next((one.get("hostname") for one in rewrites), None)
    return routing.model_copy(update={"rewrite_path": path, "hostname": hostname})


def _status(
    seen: Observed,
    groups: Groups,
    shared: Sequence[WeightedEndpoint],
    lacking: Sequence[Unusable],
    wanted: Sequence[Manifest],
) -> ModelServiceStatus:
    models = models_url(seen.gateway) if seen.gateway else None
    resolved, told = _resolved(seen, groups, lacking)
    routing, routed = _routing(seen, shared, wanted, models=models)
    answers = _answers(seen, routed=routing.status == "True")
    auth = _auth(seen, answers)
    short = _short(seen.service, groups, shared) or (told if lacking else "")
    judged = [
        reason.condition(seen.now, message=message)
        for reason, message in ((resolved, told), (routing, routed), *([auth] if auth else []))
    ]
    asked = [answers[0].condition(seen.now, message=answers[1])] if answers else []
    troubled = [one for one in judged if one.status != "True"]
    silent = [one for one in asked if one.reason == Answering.NOT_ANSWERED.reason]
    if routing.status != "True" and models is not None and not shared:
        ready = not_ready(KIND, troubled[0], f"No endpoint can answer. {told}")
    elif troubled:
        ready = not_ready(KIND, troubled[-1])
    elif silent:
        ready = not_ready(KIND, silent[0], f"{silent[0].message}. {_unwell(shared) or routed}")
    elif short:
        ready = Ready.PARTIAL.condition(seen.now, message=short)
    else:
        reason, words = _ready(seen, answers, routed)
        ready = reason.condition(seen.now, message=words)
    replicas = [seen.replicas[share.endpoint.key] for share in shared if share.endpoint.key in seen.replicas]
    each = zip(shared, fitted([share.weight for share in shared]), strict=True)
    return ModelServiceStatus(
        endpoint_count=len(shared),
        address=service_url(seen.service.key, models) if models else None,
        endpoints=tuple(ResolvedEndpoint(name=s.endpoint.key.name, weight=weight) for s, weight in each)[:LISTED],
        routes=api_routes(replicas, len(shared) - len(replicas)),
        conditions=(*judged, *asked, ready),
    )


def _unwell(shared: Sequence[WeightedEndpoint]) -> str:
    """What the first of the endpoints that get requests and are not Ready says; empty when all of them are."""
    for share in shared:
        found = next((one for one in share.endpoint.conditions if one.type == Ready.__name__), None)
        if found and found.status != "True":
            return f"ModelEndpoint {share.endpoint.key.name} is not Ready: {found.message or found.reason}"
    return ""


def _answers(seen: Observed, *, routed: bool) -> tuple[Answering, str] | None:
    """Whether requests are answered; None where nobody asks, and nobody did."""
    asked_before = any(one.type == Answering.__name__ for one in seen.service.conditions)
    if not routed or seen.asked is None:
        nowhere = Answering.ASKING, "Requests lead nowhere yet: see RoutingReady"
        return nowhere if seen.asked or asked_before else None
    return answering(seen.service, seen.asked, guarded=asked_of(seen.service, seen.door.auth) is not None)


def _ready(seen: Observed, answers: tuple[Answering, str] | None, routed: str) -> tuple[Ready, str]:
    """Whether a service that has all of its routes is Ready: by whether it answers, if that can be known."""
    reason, words = answers or (None, "")
    match reason:
        case None | Answering.ANSWERED | Answering.KEY_ASKED:
            return Ready.AVAILABLE, routed
        case Answering.GATEWAY_UNREACHABLE:
            return Ready.AVAILABLE, f"{routed}; whether they are answered is not known. {words}"
        case Answering.NOT_ANSWERED:
            return Ready.CREATING, words
        case Answering.ASKING if is_true(seen.service.conditions, Ready):
            return Ready.AVAILABLE, routed
        case Answering.ASKING:
            return Ready.CREATING, "The gateway has accepted the route; no request through it was answered yet"
        case _:
            assert_never(reason)


def _auth(seen: Observed, answers: tuple[Answering, str] | None) -> tuple[AuthReady, str] | None:
    """Whether all Secrets hold keys, and what keeps clients with theirs out; None where no key is asked for."""
    wanted = asked_of(seen.service, seen.door.auth)
    if wanted is None and seen.gateway is None:
        return None  # what was known stays
    if wanted is None:
        known = seen.service.status.conditions if seen.service.status else ()
        return (AuthReady.NOT_ASKED, "") if any(one.type == AuthReady.__name__ for one in known) else None
    for name in wanted:
        secret = seen.secrets.get(name)
        if name in seen.forbidden:
            return AuthReady.SECRET_FORBIDDEN, f"Secret {name} may not be read by the operator: {seen.forbidden[name]}"
        if secret is None:
            absent = f"Secret {name} does not exist: make it, with an API key under each client's name"
            return AuthReady.SECRET_NOT_FOUND, f"{absent}; until then requests with its API keys get 401"
        if excess := beyond(secret):
            return AuthReady.SECRET_TOO_LARGE, f"Secret {name} has {excess}: requests with its API keys get 401"
        if not digests(secret):
            holds = f"Secret {name} holds no API key: write one as a line of printable ASCII under its client's name"
            return AuthReady.NO_KEYS, holds
    if seen.asked and answers and (broken := unguarded(seen.asked, answers[0])):
        return broken, f"{broken.meaning.rstrip('.')}: see Answering"
    return AuthReady.KEYS_FOUND, f"Requests need an API key of Secret {' or '.join(wanted)}"


def _resolved(seen: Observed, groups: Groups, lacking: Sequence[Unusable]) -> tuple[EndpointsResolved, str]:
    service, matched = seen.service, sum(map(len, groups))
    if not matched:
        return EndpointsResolved.NO_ENDPOINTS, why_none(service, seen.near)
    # `matchLabels: {model: }` is stored without the label: whoever forgot a value has to see what that means
    everything = any(not entry.selector.match_labels for entry in service.spec.endpoints)
    every = ["empty matchLabels select every endpoint in this namespace"] if everything else []
    return EndpointsResolved.RESOLVED, "; ".join([f"Matched {counted(matched, 'endpoint')}", *every, *_counts(lacking)])


def _routing(
    seen: Observed, shared: Sequence[WeightedEndpoint], wanted: Sequence[Manifest], *, models: str | None
) -> tuple[RoutingReady, str]:
    if models is None:
        none = f"There is no InferenceGateway named {names.DEFAULT_GATEWAY} that is reached yet"
        return RoutingReady.WAITING_FOR_GATEWAY, none
    if not shared:
        return RoutingReady.CONFIGURING, "No endpoint can answer: see EndpointsResolved"
    if waiting := next(_waiting(seen, wanted), None):
        return waiting
    return RoutingReady.ROUTE_CONFIGURED, f"Requests go to {counted(len(shared), 'endpoint')}"


def _counts(lacking: Sequence[Unusable]) -> Iterator[str]:
    """How many endpoints lack what, and which."""
    for lack in dict.fromkeys(one.lack for one in lacking):
        some = [one for one in lacking if one.lack == lack]
        told = ", ".join(f"{one.endpoint.name}: {one.detail}" for one in some[:NAMED] if one.detail)
        more = f", and {len(some) - NAMED} more" if told and len(some) > NAMED else ""
        yield f"{len(some)} {lack}{f' ({told}{more})' if told else ''}"


def _waiting(seen: Observed, wanted: Sequence[Manifest]) -> Iterator[tuple[RoutingReady, str]]:
    """What the gateway has not done with each of the routes and policies, as they were observed."""
    live = {(type_of(one), key_of(one)): one for one in seen.children}
    for one in wanted:
        kind, key = type_of(one), key_of(one)
        name, child = f"{kind.kind} {key.name}", live.get((kind, key))
        if kind not in JUDGED:
            continue
        if child is None:
            yield RoutingReady.CONFIGURING, f"{name} is not there yet"
            continue
        if not was_applied(child, one):
            yield RoutingReady.CONFIGURING, f"{name} is being changed"
            continue
        told = _told(child, seen.door.plane.CONTROLLER)
        for aspect in JUDGED[kind]:
            found = condition(child, aspect, told)
            if not found.current:
                yield RoutingReady.CONFIGURING, f"The gateway has not looked at {name} yet"
            elif not found.is_true:
                yield RoutingReady.ROUTE_REFUSED, f"The gateway says of {name}: {found.why}"


def _told(child: Manifest, controller: str) -> Section:
    """What our gateway says of a route or a policy; what another one said stays when it has gone."""
    nothing: Section = {}
    told = ((section(one, "parentRef") or section(one, "ancestorRef"), one) for one in gateways_of(child))
    ours = (names.HUB_GATEWAY, controller)
    return next((one for gateway, one in told if (gateway.get("name"), one.get("controllerName")) == ours), nothing)


def _short(service: ModelService, groups: Groups, shared: Sequence[WeightedEndpoint]) -> str:
    """Which entries get nothing of what they should; empty when all get it."""
    live = {share.endpoint.key for share in shared}
    dry = [
        ",".join(f"{name}={value}" for name, value in sorted(entry.selector.match_labels.items())) or "every endpoint"
        for entry, group in zip(service.spec.endpoints, groups, strict=True)
        if not any(endpoint.key in live for endpoint in group)
    ]
    if not dry:
        return ""
    of_all, more = len(groups), f", and {len(dry) - NAMED} more" if len(dry) > NAMED else ""
    named = "; ".join(dry[:NAMED])
    entries = counted(of_all, "entry", "entries")
    return f"{of_all - len(dry)} of {entries} with an endpoint that can answer. Without one: {named}{more}"
