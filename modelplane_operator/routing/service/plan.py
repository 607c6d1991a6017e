"""Plan the routes of a ModelService, and its status.

The route and the address stay even without endpoints: clients then get a 503, which they retry.
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
from kubeloop.words import count_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.bounds import SUBDOMAIN
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model_endpoint import EndpointRouting, ModelEndpoint
from modelplane_operator.api.model_endpoint import RoutingReady as Routed
from modelplane_operator.api.model_service import (
    MAX_ENDPOINTS,
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
from modelplane_operator.routing.endpoint.render import requested_name
from modelplane_operator.routing.gateway.render import KEYS, HubGateway, hosts_of, hub_gateway, models_url
from modelplane_operator.routing.gateway.traefik import guards_in
from modelplane_operator.routing.service.answer import GatewayAnswer
from modelplane_operator.routing.service.answering import compute_answering, find_key_service_problem
from modelplane_operator.routing.service.api_keys import digests, find_exceeded_limit, required_secrets
from modelplane_operator.routing.service.api_routes import api_routes
from modelplane_operator.routing.service.causes import MAX_NAMES, describe_cause, describe_gateway, describe_partial
from modelplane_operator.routing.service.hops import mark_of
from modelplane_operator.routing.service.render import LONGEST_PATH, render_model_service, service_url
from modelplane_operator.routing.service.selection import Neighbours, explain_no_endpoints
from modelplane_operator.routing.service.weights import (
    Target,
    WeightedEndpoint,
    fit_weights,
    select_endpoints,
    weigh_endpoints,
)

KIND = ModelService.definition.kind
SILENT = "at a gateway that does not answer"
NO_PATH = r"[^!-\[\]-~]"  # rejected by admission too; for paths that were stored before
REQUIRED_CONDITIONS = {HTTP_ROUTE: ("Accepted", "ResolvedRefs"), SECURITY_POLICY: ("Accepted",)}
"""Types on which the gateway reports, with the conditions that must be true."""

Groups = Sequence[Sequence[ModelEndpoint]]


@dataclass(frozen=True, slots=True)
class Observed:
    """A service with its observed objects and surroundings."""

    service: ModelService
    """Service as its spec and its last status describe it."""
    endpoints: tuple[ModelEndpoint, ...]
    """The endpoints in its namespace that match its selectors."""
    secrets: Mapping[str, Manifest]
    """The existing Secrets that the endpoints' credentials and `auth` reference, by name."""
    gateway: InferenceGateway | None
    """The InferenceGateway through which models are served."""
    children: tuple[Manifest, ...]
    """Objects on the hub that the operator applied for it."""
    recheck: float
    """Seconds until the Secrets are read again."""
    now: datetime
    keys: tuple[str, int] = KEYS
    """Host and port of the key service."""
    forbidden: Mapping[str, str] = field(default_factory=dict[str, str])
    """The API server's message for each Secret that the operator may not read, by name."""
    hub: str = ""
    """The uid of kube-system, which identifies the hub; empty while it is unknown."""
    check: Checked[GatewayAnswer] | None = None
    """The results of requests through the gateway; None where none are sent."""
    near: Neighbours | None = None
    """The objects in its namespace, if the service selects no endpoint."""
    replicas: Mapping[Key, Manifest] = field(default_factory=dict[Key, Manifest])
    """The replicas to which the endpoints lead."""
    signing: str = field(default="", repr=False)
    """The key that signs paths of the key service; empty while there is none."""
    failing: str = ""
    """That requests of clients fail by the gateway's counters, as a message; empty if they do not."""

    @property
    def door(self) -> HubGateway:
        """The settings of the hub gateway for this service."""
        return hub_gateway(self.gateway, self.keys, mark_of(self.hub) if self.hub else "", self.signing)


@dataclass(frozen=True, slots=True)
class Unusable:
    """An endpoint that gets no requests, with the reason."""

    endpoint: Key
    """Key of the ModelEndpoint."""
    lack: str
    """The reason, in words that follow a number of endpoints."""
    detail: str = ""
    """Details for this endpoint only."""
    starting: bool = field(default=False, kw_only=True)
    """True if that ends by itself."""


def plan(observed: Observed) -> Plan:
    """Return the plan that routes requests to the usable endpoints, by the weights of their entries."""
    service = observed.service
    if service.metadata.deletion_timestamp:
        last_status = service.status or ModelServiceStatus()
        terminating = Ready.DELETING.condition(observed.now, message="The route of the service goes with it")
        return Plan(status=last_status.model_copy(update={"conditions": (terminating,)}))
    groups = select_endpoints(service, [item for item in observed.endpoints if not item.metadata.deletion_timestamp])
    results = {endpoint.key: _find_target(endpoint, observed) for group in groups for endpoint in group}
    targets = {key: target for key, target in results.items() if isinstance(target, Target)}
    silent = {endpoint.key: _describe_silence(endpoint) for group in groups for endpoint in group}
    if any(not silent[key] for key in targets):  # while others can answer, nobody waits for a gateway that does not
        results |= {key: Unusable(key, SILENT, silent[key]) for key in targets if silent[key]}
        targets = {key: target for key, target in targets.items() if not silent[key]}
    unusable = [target for target in results.values() if isinstance(target, Unusable)]
    routed = weigh_endpoints(service, groups, targets)
    desired = render_model_service(service, routed, observed.door)
    # The default for API keys and the data plane are only in an InferenceGateway: without one, routes and guards stay
    # as they are, and nothing is opened.
    obsolete = prune(observed.children, desired, owner=service.metadata.uid or "")
    used_guards = guards_in(observed.children)  # Traefik rejects all requests of a route whose guard is deleted first
    removals = (item for item in obsolete if item.type != MIDDLEWARE or item.key.name not in used_guards)
    steps = (*map(Apply, desired), *removals)
    steps = steps if observed.gateway else ()
    secrets = required_secrets(service, observed.door.auth) or any(
        e.spec.credentials for group in groups for e in group
    )
    return Plan(
        steps, _build_status(observed, groups, routed, unusable, desired), observed.recheck if secrets else None
    )


def _describe_silence(endpoint: ModelEndpoint) -> str:
    """Return that the gateway of the endpoint's cluster gives no answer; empty if it does."""
    routing = endpoint.status.routing if endpoint.status else None
    ready = next((item for item in endpoint.conditions if item.type == Ready.__name__), None)
    is_replica = routing is not None and routing.leads_to == "Replica"
    return (ready.message or "") if is_replica and ready and ready.reason == Ready.UNREACHABLE.reason else ""


def _find_target(endpoint: ModelEndpoint, observed: Observed) -> Target | Unusable:
    """Return how requests reach an endpoint, or why it is unusable.

    Only the published routing is used, as the operator has validated it: a replica's endpoint leads to that replica. It
    outlives a URL that became invalid.
    """
    routing = _find_published(endpoint, observed.children)
    backend = read_url(routing.url or endpoint.spec.url) if routing and routing.backend_name else None
    if routing is None or not isinstance(backend, Backend):
        routing_ready = next((item for item in endpoint.conditions if item.type == Routed.__name__), None)
        # waiting does not help
        if routing_ready is not None and routing_ready.reason == Routed.INVALID_URL.reason:
            return Unusable(endpoint.key, "with a URL that cannot be used", routing_ready.message or "")
        return Unusable(endpoint.key, "starting (waiting for: backend)", starting=True)
    if observed.gateway and backend.host in hosts_of(observed.gateway):
        return Unusable(endpoint.key, "that would lead back to this hub's own gateway")
    path, name = routing.rewrite_path, requested_name(routing.hostname, backend)
    if len(path or "") > LONGEST_PATH:  # or the API server would reject the route with all endpoints
        return Unusable(endpoint.key, f"with a rewritePath of more than {LONGEST_PATH} characters")
    if re.search(NO_PATH, path or ""):  # or Envoy would reject all routes of the hub
        return Unusable(endpoint.key, "with characters in rewritePath that are not printable ASCII, or with a `\\`")
    if name and not re.fullmatch(SUBDOMAIN, name):
        return Unusable(endpoint.key, "with an invalid hostname")
    is_internal = routing.leads_to == "Replica" or (name or "").endswith(f".{names.INTERNAL_DOMAIN}")
    if is_internal and path != replica_prefix(endpoint.key):  # a user who may write the status could set this
        return Unusable(endpoint.key, "with the path of another replica")
    # By http the backend does not prove to be a cluster's gateway, and the cluster may have reported any address, the
    # hub gateway's included.
    credentials, unproven = endpoint.spec.credentials, backend.scheme == "http" or routing.leads_to == "Outside"
    if credentials is None:
        return Target(backend, path=path, name=name, unproven=unproven)
    header = read_credentials(credentials, observed.secrets.get(credentials.secret_ref.name))
    if isinstance(header, NoHeader):
        secret_name = credentials.secret_ref.name
        rejection = (
            f"Secret {secret_name} may not be read: {observed.forbidden[secret_name]}"
            if secret_name in observed.forbidden
            else ""
        )
        return Unusable(endpoint.key, "without credentials", rejection or header.message)
    return Target(backend, header, path, name, unproven=unproven)


def _find_published(endpoint: ModelEndpoint, children: Iterable[Manifest]) -> EndpointRouting | None:
    """Return the routing of an endpoint that the operator has validated; None if there is none."""
    status = endpoint.status
    routing = status.routing if status else None
    if status is None or routing is None or routing.observed_generation is not None:
        return routing
    # Older versions published less. The spec has the other fields, unless it was edited since.
    validated_generation = next(
        (item.observed_generation for item in status.conditions if item.type == Routed.__name__), None
    )
    if validated_generation != endpoint.metadata.generation:
        return _find_routing_in_use(endpoint, routing, children)
    spec = endpoint.spec
    return routing.model_copy(update={"rewrite_path": spec.rewrite_path, "hostname": spec.hostname})


def _find_routing_in_use(
    endpoint: ModelEndpoint, routing: EndpointRouting, children: Iterable[Manifest]
) -> EndpointRouting | None:
    """Return the routing in the last route of a paused endpoint, until its pause ends; None without such a route.

    Only for https: with older versions routes followed edits of the endpoint, and by http one may lead to another
    tenant's replica.
    """
    paused = endpoint.metadata.annotations.get(labels.PAUSED) == "true"
    if not paused or not (routing.url or "").startswith("https:"):
        return None
    backend = names.endpoint_backend(*endpoint.key)
    rules = (rule for item in children if type_of(item) == HTTP_ROUTE for rule in entries(item, "spec", "rules"))
    references = (
        reference for rule in rules for reference in entries(rule, "backendRefs") if reference.get("name") == backend
    )
    reference = next(references, None)
    if reference is None:
        return None
    rewrites = [section(item, "urlRewrite") for item in entries(reference, "filters") if "urlRewrite" in item]
    path = next((section(item, "path").get("replacePrefixMatch") for item in rewrites), None)
    hostname = next((item.get("hostname") for item in rewrites), None)
    return routing.model_copy(update={"rewrite_path": path, "hostname": hostname})


def _build_status(
    observed: Observed,
    groups: Groups,
    routed: Sequence[WeightedEndpoint],
    unusable: Sequence[Unusable],
    desired: Sequence[Manifest],
) -> ModelServiceStatus:
    """Return the status: address, weights, API routes and conditions."""
    base_url = models_url(observed.gateway) if observed.gateway else None
    resolved, resolved_message = _decide_resolved(observed, groups, unusable)
    routing, routing_message = _decide_routing(observed, routed, desired, models=base_url)
    answering_result = _decide_answering(observed, routed=routing.status == "True")
    auth_result = _decide_auth(observed, answering_result)
    # An endpoint that starts takes nothing from the others, so that the service goes on as it was.
    lost_message = describe_partial(observed.service, groups, routed) or (
        resolved_message if any(not item.starting for item in unusable) else ""
    )
    partial_message = lost_message or (resolved_message if unusable else "")
    conditions = [
        reason.condition(observed.now, message=message)
        for reason, message in (
            (resolved, resolved_message),
            (routing, routing_message),
            *([auth_result] if auth_result else []),
        )
    ]
    answering_conditions = (
        [answering_result[0].condition(observed.now, message=answering_result[1])] if answering_result else []
    )
    not_true = [item for item in conditions if item.status != "True"]
    not_answered = [item for item in answering_conditions if item.reason == Answering.NOT_ANSWERED.reason]
    if routing.status != "True" and base_url is not None and not routed:
        ready = not_ready(KIND, not_true[0], f"No endpoint can answer. {resolved_message}")
    elif not_true:
        ready = not_ready(KIND, not_true[-1])
    elif not_answered:
        ready = not_ready(
            KIND,
            not_answered[0],
            f"{not_answered[0].message}{describe_cause(routed, auth_result)}",
        )
    else:
        reason, ready_message = _decide_ready(observed, answering_result, routing_message)
        was_ready = any(
            item.type == Ready.__name__ and (item.status == "True" or item.reason == Answering.NOT_ANSWERED.reason)
            for item in observed.service.conditions
        )
        if partial_message and not was_ready:  # nobody counts on the service yet: not all that it asks for is there
            reason, ready_message = Ready.PARTIAL, partial_message
        elif (degraded := "; ".join(filter(None, (observed.failing, lost_message)))) and reason is Ready.AVAILABLE:
            reason, ready_message = Ready.DEGRADED, degraded
        ready = reason.condition(observed.now, message=ready_message)
    replicas = [observed.replicas[member.endpoint.key] for member in routed if member.endpoint.key in observed.replicas]
    weighted = zip(routed, fit_weights([member.weight for member in routed]), strict=True)
    return ModelServiceStatus(
        endpoint_count=len(routed),
        address=service_url(observed.service.key, base_url) if base_url else None,
        endpoints=tuple(ResolvedEndpoint(name=entry.endpoint.key.name, weight=weight) for entry, weight in weighted)[
            :MAX_ENDPOINTS
        ],
        routes=api_routes(replicas, len(routed) - len(replicas)),
        conditions=(*conditions, *answering_conditions, ready),
    )


def _decide_answering(observed: Observed, *, routed: bool) -> tuple[Answering, str] | None:
    """Return the reason and message of Answering; None if no requests are or were sent."""
    asked_before = any(item.type == Answering.__name__ for item in observed.service.conditions)
    if not routed or observed.check is None:
        no_route = Answering.ASKING, "No route leads to an endpoint: see RoutingReady"
        return no_route if observed.check or asked_before else None
    return compute_answering(
        observed.service, observed.check, guarded=required_secrets(observed.service, observed.door.auth) is not None
    )


def _decide_ready(
    observed: Observed, answering_result: tuple[Answering, str] | None, routing_message: str
) -> tuple[Ready, str]:
    """Return the reason and message of Ready for a fully routed service, by its responses if those are known."""
    reason, message = answering_result or (None, "")
    match reason:
        case None | Answering.ANSWERED | Answering.KEY_ASKED:
            return Ready.AVAILABLE, routing_message
        case Answering.GATEWAY_UNREACHABLE:
            return Ready.AVAILABLE, f"{routing_message}, as far as the operator can tell. {message}"
        case Answering.NOT_ANSWERED:
            return Ready.CREATING, message
        case Answering.ASKING if is_true(observed.service.conditions, Ready):
            return Ready.AVAILABLE, routing_message
        case Answering.ASKING:
            return Ready.CREATING, "Starting (waiting for: an answer to the first request through the gateway)"
        case _:
            assert_never(reason)


def _decide_auth(observed: Observed, answering_result: tuple[Answering, str] | None) -> tuple[AuthReady, str] | None:
    """Return the reason and message of AuthReady: the Secrets' content, and the key service; None without API keys."""
    required = required_secrets(observed.service, observed.door.auth)
    if required is None and observed.gateway is None:
        return None  # without an InferenceGateway, the condition stays as it is
    if required is None:
        conditions = observed.service.status.conditions if observed.service.status else ()
        return (AuthReady.NOT_ASKED, "") if any(item.type == AuthReady.__name__ for item in conditions) else None
    for name in required:
        secret = observed.secrets.get(name)
        if name in observed.forbidden:
            return (
                AuthReady.SECRET_FORBIDDEN,
                f"Secret {name} may not be read by the operator: {observed.forbidden[name]}",
            )
        if secret is None:
            message = f"Secret {name} does not exist: make it, with an API key under each client's name"
            return AuthReady.SECRET_NOT_FOUND, f"{message}; until then requests with its API keys get 401"
        if excess := find_exceeded_limit(secret):
            return AuthReady.SECRET_TOO_LARGE, f"Secret {name} has {excess}: requests with its API keys get 401"
        if not digests(secret):
            remedy = f"Secret {name} holds no API key: write one as a line of printable ASCII under its client's name"
            return AuthReady.NO_KEYS, remedy
    if (
        observed.check
        and answering_result
        and (problem := find_key_service_problem(observed.check, answering_result[0]))
    ):
        return problem, f"{problem.meaning.rstrip('.')}: see Answering"
    return AuthReady.KEYS_FOUND, f"Requests need an API key of Secret {' or '.join(required)}"


def _decide_resolved(observed: Observed, groups: Groups, unusable: Sequence[Unusable]) -> tuple[EndpointsResolved, str]:
    """Return the reason and message of EndpointsResolved."""
    service, match_count = observed.service, sum(map(len, groups))
    if not match_count:
        return EndpointsResolved.NO_ENDPOINTS, explain_no_endpoints(service, observed.near)
    # `matchLabels: {model: }` is stored without the label: the message shows what a forgotten value means
    has_empty_selector = any(not entry.selector.match_labels for entry in service.spec.endpoints)
    warnings = ["empty matchLabels select every endpoint in this namespace"] if has_empty_selector else []
    return EndpointsResolved.RESOLVED, "; ".join(
        [f"Matched {count_of(match_count, 'endpoint')}", *warnings, *_count_reasons(unusable)]
    )


def _decide_routing(
    observed: Observed,
    routed: Sequence[WeightedEndpoint],
    desired: Sequence[Manifest],
    *,
    models: str | None,
) -> tuple[RoutingReady, str]:
    """Return the reason and message of RoutingReady."""
    if models is None:
        message = describe_gateway(exists=observed.gateway is not None)
        return RoutingReady.WAITING_FOR_GATEWAY, message
    if not routed:
        return RoutingReady.CONFIGURING, "No endpoint can answer: see EndpointsResolved"
    message = f"Requests go to {count_of(len(routed), 'endpoint')}"
    problems = [*_find_gateway_problems(observed, desired)]
    if not problems:
        return RoutingReady.ROUTE_CONFIGURED, message
    refused = next((problem for problem in problems if problem[0] is RoutingReady.ROUTE_REFUSED), None)
    if refused is None and _still_serves(observed, routed):
        return RoutingReady.ROUTE_CONFIGURED, f"{message}, once the gateway takes the changed route"
    return refused or problems[0]


def _still_serves(observed: Observed, routed: Sequence[WeightedEndpoint]) -> bool:
    """True if the gateway still has a route that it accepted, to an endpoint that can still answer."""
    if not is_true(observed.service.conditions, RoutingReady):
        return False
    previous = {entry.name for entry in observed.service.status.endpoints} if observed.service.status else set[str]()
    routes = [item for item in observed.children if type_of(item) == HTTP_ROUTE]
    accepted = (
        condition(route, name, _find_reported(route, observed.door.plane.CONTROLLER)).is_true
        for route in routes
        for name in REQUIRED_CONDITIONS[HTTP_ROUTE]
    )
    return any(member.endpoint.key.name in previous for member in routed) and bool(routes) and all(accepted)


def _count_reasons(unusable: Sequence[Unusable]) -> Iterator[str]:
    """Yield the number of endpoints for each reason why they are unusable, with examples."""
    for reason in dict.fromkeys(item.lack for item in unusable):
        same_reason = [item for item in unusable if item.lack == reason]
        details = ", ".join(f"{item.endpoint.name}: {item.detail}" for item in same_reason[:MAX_NAMES] if item.detail)
        suffix = f", and {len(same_reason) - MAX_NAMES} more" if details and len(same_reason) > MAX_NAMES else ""
        yield f"{len(same_reason)} {reason}{f' ({details}{suffix})' if details else ''}"


def _find_gateway_problems(observed: Observed, desired: Sequence[Manifest]) -> Iterator[tuple[RoutingReady, str]]:
    """Yield why the gateway does not serve a route or policy yet, by what it reports on the observed objects."""
    live = {(type_of(item), key_of(item)): item for item in observed.children}
    for item in desired:
        kind, key = type_of(item), key_of(item)
        name, child = f"{kind.kind} {key.name}", live.get((kind, key))
        if kind not in REQUIRED_CONDITIONS:
            continue
        if child is None:
            yield RoutingReady.CONFIGURING, f"Starting (waiting for: {name})"
            continue
        if not was_applied(child, item):
            yield RoutingReady.CONFIGURING, f"Starting (waiting for: {name} to be changed)"
            continue
        reported = _find_reported(child, observed.door.plane.CONTROLLER)
        for condition_type in REQUIRED_CONDITIONS[kind]:
            reported_condition = condition(child, condition_type, reported)
            if not reported_condition.current:
                yield RoutingReady.CONFIGURING, f"Starting (waiting for: the gateway to take {name})"
            elif not reported_condition.is_true:
                yield RoutingReady.ROUTE_REFUSED, f"The gateway rejects {name}: {reported_condition.why}"


def _find_reported(child: Manifest, controller: str) -> Section:
    """Return what the hub gateway reports on a route or policy; reports of other gateways are ignored."""
    empty: Section = {}
    reports = ((section(item, "parentRef") or section(item, "ancestorRef"), item) for item in gateways_of(child))
    own_gateway = (names.HUB_GATEWAY, controller)
    return next(
        (item for gateway, item in reports if (gateway.get("name"), item.get("controllerName")) == own_gateway), empty
    )
