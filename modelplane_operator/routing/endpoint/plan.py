"""What a ModelEndpoint needs on the hub so that routes can refer to it, and what can be said of it.

What a user writes leads outside. What the operator writes for a replica leads to the gateway of its cluster, which may
be in a private network. The two are told apart by what they say and not by who seems to have written it: an endpoint
beside a replica of the same name, with the same deployment as its owner, leads to exactly that replica, or is left
alone until the deployment has written it again. No other endpoint comes to lead to a cluster's gateway.

A URL that cannot be used leaves the endpoint where it was: requests go on to the last one that could. An endpoint that
is deleted keeps its Service until no route leads there: for a route to a Service that is gone, gateways answer 500.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubeloop.client.resolved import Resolved
from kubeloop.condition_types import Ready
from kubeloop.objects import Manifest
from kubeloop.plan import KEEP, LET_GO, Apply, Plan, prune
from kubeloop.types import BACKEND, BACKEND_TLS_POLICY, SERVICE, type_of
from modelplane_operator.api import names
from modelplane_operator.api.model_endpoint import EndpointRouting, ModelEndpoint, ModelEndpointStatus, RoutingReady
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.clusters.cluster.plan.mutual_tls import unlearnt
from modelplane_operator.models.replica.render import replica_prefix
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.endpoint.backend_url import (
    DEFAULT_PORTS,
    Backend,
    InvalidUrl,
    Reach,
    UrlFault,
    leads_nowhere,
    misled,
    parse_url,
    path_of,
    read_url,
)
from modelplane_operator.routing.endpoint.credentials import Header, NoHeader, read_credentials
from modelplane_operator.routing.endpoint.render import known_backend, of_cluster, provable
from modelplane_operator.routing.gateway.data_plane import DataPlane
from modelplane_operator.routing.gateway.render import url_of

NAMED = 3  # routes that a message names
PATIENCE = timedelta(seconds=60)  # with routes that do not change, and gateways that do not look: they hold up nothing
REQUEUE_SOON = 0.5  # until a name is resolved
REQUEUE_AFTER = 60.0  # until what a name stands for is worth another look


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Where the replica of an endpoint is reached."""

    gateway: str | None
    """The address of its cluster's gateway; None while that is not known."""
    port: int | None = None
    """By which that is reached by http, where it is not 80."""


@dataclass(frozen=True, slots=True)
class Outside:
    """What is known of the places outside that an endpoint leads to, or is to."""

    resolved: Mapping[str, Resolved | None] = field(default_factory=dict[str, "Resolved | None"])
    """What their names stand for; None where that is being found out. Those that the settings allow are not in it."""
    gateways: frozenset[str] = frozenset()
    """Those of their hosts and addresses where a cluster's gateway is, as the cluster says."""
    closed: frozenset[str] = frozenset()
    """Those of these where it answers the hub's gateway alone."""
    hub_gateway: frozenset[str] = frozenset()
    """Those where our own is."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Whether a place outside takes connections, from where the operator is."""

    lack: str
    """Why not; empty when it does."""
    certain: bool = field(default=False, kw_only=True)
    """Whether that is so for whoever asks, and not for the operator alone."""


@dataclass(frozen=True, slots=True)
class _Unresolved:
    """A place that is not known well enough yet."""

    name: str


@dataclass(frozen=True, slots=True)
class Observed:
    """An endpoint and what surrounds it."""

    endpoint: ModelEndpoint
    children: tuple[Manifest, ...]
    plane: DataPlane
    """What answers requests."""
    reach: Reach
    """Where endpoints of its kind may lead: of replicas, or of users."""
    tls_policies: bool
    """Whether the hub serves BackendTLSPolicy."""
    secret: Manifest | None
    """The Secret that its credentials name, if they do and it exists."""
    recheck: float
    """After how many seconds the Secret is worth another look."""
    routes: tuple[str, ...]
    """The routes by which requests may still come: those that name it, and those that a gateway has not looked at."""
    now: datetime
    cluster: ClusterState | None = None
    """Where its replica is; None for an endpoint of a user."""
    outside: Outside = Outside()
    reached: Checked[Reached] | None = None
    """Whether the place takes connections; None where nobody tries."""


def plan(seen: Observed) -> Plan:
    """Make the endpoint's Service lead where its URL says."""
    endpoint = seen.endpoint
    if endpoint.metadata.deletion_timestamp:
        return _leave(seen, endpoint.metadata.deletion_timestamp)
    if seen.cluster and not _leads_to_its_replica(endpoint, seen.cluster):
        return Plan(requeue_after=REQUEUE_AFTER)
    read = _read(seen, endpoint.spec.url)
    before = _led_to(seen)
    backend = read if isinstance(read, Backend) else _allowed(seen, before)
    # Nothing was ever made, or it cannot be told what, or not yet where it leads: it stays.
    if backend is None and (before is None or _unresolved(seen, read, before)):
        return Plan(status=_status(seen, read, ()), requeue_after=_requeue_after(seen, read, ()))
    header = _header(seen)
    held = header if isinstance(header, Header) else None
    rendered = seen.plane.render_endpoint(endpoint, backend, held) if backend else ()
    wanted = [one for one in rendered if seen.tls_policies or type_of(one) != BACKEND_TLS_POLICY]
    steps = (KEEP, *map(Apply, wanted), *prune(seen.children, wanted, owner=endpoint.metadata.uid or ""))
    return Plan(steps, _status(seen, read, wanted), _requeue_after(seen, read, wanted))


def _leads_to_its_replica(endpoint: ModelEndpoint, cluster: ClusterState) -> bool:
    """Whether it is as its deployment writes it, and not as somebody has changed it."""
    there, wanted = read_url(endpoint.spec.url), read_url(url_of(cluster.gateway)) if cluster.gateway else None
    if not isinstance(there, Backend) or not isinstance(wanted, Backend):
        return False
    same = there.host == wanted.host and there.port in {*DEFAULT_PORTS.values(), cluster.port}
    named = endpoint.spec.hostname is None or of_cluster(endpoint)
    return same and named and endpoint.spec.rewrite_path == replica_prefix(endpoint.key)


def _requeue_after(
    seen: Observed, read: Backend | InvalidUrl | _Unresolved, wanted: Sequence[Manifest]
) -> float | None:
    """When there may be news that no event tells of."""
    if isinstance(read, _Unresolved):
        return REQUEUE_SOON
    news = [
        *([seen.recheck] if seen.endpoint.spec.credentials else []),
        *([REQUEUE_AFTER] if seen.outside.resolved else []),
        *(
            [max(unlearnt(wanted, seen.children, seen.now).total_seconds(), REQUEUE_SOON)]
            if _kept(seen, wanted)
            else []
        ),
    ]
    return min(news, default=None)


def _kept(seen: Observed, wanted: Sequence[Manifest]) -> EndpointRouting | None:
    """What routes still go by, when gateways may not know yet where the port leads that is to be next.

    The one before leads where it did (`traefik.render_endpoint`).
    """
    known = seen.endpoint.status.routing if seen.endpoint.status else None
    before = read_url(known.url) if known and known.url else None
    if not isinstance(before, Backend) or before.scheme != "http" or not of_cluster(seen.endpoint):
        return None
    return known if unlearnt(wanted, seen.children, seen.now) > timedelta() else None


def _read(seen: Observed, url: str) -> Backend | InvalidUrl | _Unresolved:
    backend = parse_url(url, seen.reach)
    if not isinstance(backend, Backend):
        return backend
    if seen.cluster is None and not isinstance(backend := _outside(seen, backend), Backend):
        return backend
    return provable(seen.endpoint, backend, seen.plane)


def _outside(seen: Observed, backend: Backend) -> Backend | InvalidUrl | _Unresolved:
    """The same place, unless it turns out to be inside."""
    resolved = seen.outside.resolved
    found = resolved.get(backend.host)
    if found is None and backend.host in resolved and not _in_use(seen, backend):
        return _Unresolved(backend.host)
    if found and (refusal := misled(backend.host, found.addresses, seen.reach)):
        return refusal
    places = _places(seen, backend)
    if places & seen.outside.gateways and not _goes_on(seen, backend, places):
        words = f"{backend.host} is the gateway of a workload cluster, to which only endpoints of replicas lead"
        return InvalidUrl(UrlFault.FORBIDDEN, words)
    if places & seen.outside.hub_gateway and not seen.reach.allows(backend.address or backend.host):
        words = f"{backend.host} is this hub's own gateway: name the place that the model is asked at behind it"
        return InvalidUrl(UrlFault.FORBIDDEN, words)
    if found and found.unknown and not found.addresses and not _in_use(seen, backend):
        return leads_nowhere(backend.host)
    return backend


def _places(seen: Observed, backend: Backend) -> set[str]:
    """By which hosts and addresses it is known."""
    found = seen.outside.resolved.get(backend.host)
    return {backend.host, *map(str, found.addresses if found else ())}


def _goes_on(seen: Observed, backend: Backend, places: set[str]) -> bool:
    """Whether routes lead there already, and cannot come to the gateway that a cluster says to be there.

    By https that cannot prove to be this place; by http one that answers the hub's gateway alone answers nothing. One
    that is open is not reached so: where a name leads is up to whoever runs it, and an address may be waited for.
    """
    safe = backend.scheme == "https" or places & seen.outside.gateways <= seen.outside.closed
    return safe and _in_use(seen, backend)


def _in_use(seen: Observed, backend: Backend) -> bool:
    """Whether routes lead there already. By the status, too: the Service that says so is in its tenant's namespace."""
    known = seen.endpoint.status.routing if seen.endpoint.status else None
    published = known is not None and known.leads_to == "Outside" and known.url == str(backend)
    return published and backend == _led_to(seen)


def _unresolved(seen: Observed, read: Backend | InvalidUrl | _Unresolved, before: Backend) -> bool:
    return isinstance(read, _Unresolved) and isinstance(_read(seen, str(before)), _Unresolved)


def _header(seen: Observed) -> Header | NoHeader | None:
    credentials = seen.endpoint.spec.credentials
    return read_credentials(credentials, seen.secret) if credentials else None


def _leave(seen: Observed, since: datetime) -> Plan:
    """Let go once nobody is led there any more."""
    left = since + PATIENCE - seen.now
    if not seen.routes or left <= timedelta():
        return Plan((LET_GO,))
    known = seen.endpoint.status or ModelEndpointStatus()
    message = f"Waiting until no requests come by HTTPRoute {', '.join(seen.routes[:NAMED])}"
    terminating = Ready.DELETING.condition(seen.now, message=message)
    return Plan(
        status=known.model_copy(update={"conditions": (terminating,)}), requeue_after=max(left.total_seconds(), 0.1)
    )


def _led_to(seen: Observed) -> Backend | None:
    """Where the endpoint's Service leads, or its Backend; both are there while the hub gateway changes."""
    return next((known_backend(one) for one in seen.children if type_of(one) in {SERVICE, BACKEND}), None)


def _allowed(seen: Observed, before: Backend | None) -> Backend | None:
    """Where it led before, unless the settings have come to refuse that."""
    return before if before and isinstance(_read(seen, str(before)), Backend) else None


def _status(
    seen: Observed, read: Backend | InvalidUrl | _Unresolved, wanted: Sequence[Manifest]
) -> ModelEndpointStatus:
    now = seen.now
    routing = _routing(seen, wanted)
    where = f"requests go on to {routing.url}" if routing else "no requests go there"
    if isinstance(read, InvalidUrl):
        reason, message = RoutingReady.INVALID_URL, f"Invalid spec.url: {read.message}; {where}"
    elif isinstance(read, _Unresolved):
        reason, message = RoutingReady.WAITING_FOR_BACKEND, f"Host {read.name} is being resolved; {where}"
    elif routing is None:
        reason, message = RoutingReady.WAITING_FOR_BACKEND, f"The Service of the endpoint does not lead to {read} yet"
    elif isinstance(header := _header(seen), NoHeader):
        reason, message = RoutingReady.CREDENTIALS_MISSING, f"{header}; no requests go there"
    else:
        found = seen.outside.resolved.get(read.host)
        doubt = f", although the operator cannot resolve {read.host}: {found.error}" if found and found.error else ""
        if seen.cluster is None and _places(seen, read) & seen.outside.gateways:
            doubt += f", although a workload cluster says that its gateway is at {read.host}: one of them is wrong"
        if seen.cluster is None and seen.endpoint.spec.rewrite_path is None and path_of(seen.endpoint.spec.url):
            doubt += ", with the path that clients send: that of spec.url is not used, rewritePath is what names one"
        reason, message = RoutingReady.BACKEND_CONFIGURED, f"Requests go to {routing.url}{doubt}"
    routable = reason.condition(now, message=message)
    if routable.status == "True":
        ready, why = _ready(seen, message)
        return ModelEndpointStatus(routing=routing, conditions=(routable, ready.condition(now, message=why)))
    ready = not_ready(ModelEndpoint.definition.kind, routable)
    return ModelEndpointStatus(routing=routing, conditions=(routable, ready))


def _ready(seen: Observed, message: str) -> tuple[Ready, str]:
    """Whether an endpoint that routes can refer to is Ready: a user's, once its place has taken a connection.

    Later it counts only when several tries in a row have failed, and when others would fare no better.
    """
    if seen.reached is None:
        return Ready.AVAILABLE, message
    known = next((one for one in seen.endpoint.conditions if one.type == Ready.__name__), None)
    found = seen.reached.answer
    if found is not None and not found.lack:
        return Ready.AVAILABLE, message
    if found is not None and seen.reached.failing and found.certain:
        return Ready.UNREACHABLE, found.lack
    said = (known.message if known else None) or ""
    doubt = f"{message}, but {found.lack}" if found and not found.certain else ""
    if known is not None and known.status == "True" and not (doubt and seen.reached.failing):
        return Ready.AVAILABLE, said if said.startswith(message) else message
    edited = known is not None and known.observed_generation != seen.endpoint.metadata.generation
    if known is not None and known.reason == Ready.UNREACHABLE.reason and not edited:
        return Ready.UNREACHABLE, said
    if doubt:
        return Ready.AVAILABLE, doubt
    return Ready.CREATING, f"{message}; it has taken no connection yet"


def _routing(seen: Observed, wanted: Sequence[Manifest]) -> EndpointRouting | None:
    """How routes refer to the endpoint as it was observed, once all is there that they need."""
    before, needed = _led_to(seen), {type_of(one) for one in wanted} - {BACKEND_TLS_POLICY}
    if before is None or not needed or not needed <= {type_of(one) for one in seen.children}:
        return None
    endpoint = seen.endpoint
    return _kept(seen, wanted) or EndpointRouting(
        backend_name=names.endpoint_backend(*endpoint.key),
        url=str(before),
        rewrite_path=endpoint.spec.rewrite_path,
        hostname=endpoint.spec.hostname,
        observed_generation=endpoint.metadata.generation,
        leads_to="Replica" if seen.cluster else "Outside",
    )
