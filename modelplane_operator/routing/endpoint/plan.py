"""Plan the objects on the hub to which routes refer for a ModelEndpoint, and its status.

Users' endpoints lead outside. Replicas' endpoints lead to their cluster's gateway, which may be in a private network.
The content decides which kind it is, not its author: an endpoint with the name and the owning deployment of a replica
must lead to exactly that replica, and otherwise stays unchanged until the deployment has written it again. No other
endpoint may lead to a cluster's gateway.

An endpoint whose URL is invalid keeps its last valid backend. An endpoint that is deleted keeps its Service until no
route refers to it, since gateways answer 500 for a missing Service.
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
    check_resolved,
    leads_nowhere,
    parse_url,
    path_of,
    read_url,
)
from modelplane_operator.routing.endpoint.credentials import Header, NoHeader, read_credentials
from modelplane_operator.routing.endpoint.render import of_cluster, provable, rendered_backend
from modelplane_operator.routing.gateway.data_plane import DataPlane
from modelplane_operator.routing.gateway.render import url_of

MAX_NAMES = 3  # routes named in a message
PATIENCE = timedelta(seconds=60)  # how long a deletion waits for routes and gateways that do not follow
DOUBT = ", but "
"""The text before what the operator alone observes of a backend that is in use."""
REQUEUE_SOON = 0.5  # seconds; names are resolved meanwhile
REQUEUE_AFTER = 60.0  # seconds until a name is resolved again


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The gateway through which the endpoint's replica is reached."""

    gateway: str | None
    """The host of the cluster's gateway; None while it is unknown."""
    port: int | None = None
    """The http port of the gateway, if it is not 80."""
    name: str = ""
    """Name of the cluster."""


@dataclass(frozen=True, slots=True)
class Outside:
    """The known facts about the external backends of an endpoint, present and desired."""

    resolved: Mapping[str, Resolved | None] = field(default_factory=dict[str, "Resolved | None"])
    """The addresses of their names; None while a name is being resolved. Names that the settings allow are left out."""
    gateways: frozenset[str] = frozenset()
    """Hosts and addresses at which a cluster reports its gateway."""
    closed: frozenset[str] = frozenset()
    """The gateways among them that answer the hub's gateway only."""
    hub_gateway: frozenset[str] = frozenset()
    """Hosts and addresses of the hub's own gateway."""


@dataclass(frozen=True, slots=True)
class Reached:
    """The result of connecting to a backend from the operator."""

    lack: str
    """The reason why it accepts no connection, or gives no answer; empty if it does."""
    certain: bool = field(default=False, kw_only=True)
    """True if the reason holds for all clients, not only for the operator."""


@dataclass(frozen=True, slots=True)
class _Unresolved:
    """A backend whose name is not resolved yet."""

    name: str


@dataclass(frozen=True, slots=True)
class Observed:
    """An endpoint with its observed objects and surroundings."""

    endpoint: ModelEndpoint
    """Endpoint as its spec and its last status describe it."""
    children: tuple[Manifest, ...]
    """Objects on the hub that the operator applied for it."""
    plane: DataPlane
    """The data plane of the hub gateway."""
    reach: Reach
    """The settings on where endpoints of this kind (replicas' or users') may lead."""
    tls_policies: bool
    """True if the hub serves BackendTLSPolicy."""
    secret: Manifest | None
    """The Secret that its credentials reference; None if there is none."""
    recheck: float
    """Seconds until the Secret is read again."""
    routes: tuple[str, ...]
    """Routes that may still send requests: those that refer to it, and those that no gateway has processed."""
    now: datetime
    cluster: ClusterState | None = None
    """The cluster of its replica; None for a user's endpoint."""
    outside: Outside = Outside()
    """The known facts about its external backends."""
    reached: Checked[Reached] | None = None
    """The results of connecting to the backend; None if that is not checked."""


def plan(observed: Observed) -> Plan:
    """Return the plan that points the endpoint's Service to the backend in its URL."""
    endpoint = observed.endpoint
    if endpoint.metadata.deletion_timestamp:
        return _delete(observed, endpoint.metadata.deletion_timestamp)
    if observed.cluster and not _leads_to_its_replica(endpoint, observed.cluster):
        return Plan(requeue_after=REQUEUE_AFTER)
    desired = _read_backend(observed, endpoint.spec.url)
    current = _find_current_backend(observed)
    if isinstance(desired, Backend):
        backend = desired
    else:  # the old one stays, unless it is rejected now
        backend = current if current and isinstance(_read_backend(observed, str(current)), Backend) else None
    # Nothing was created yet, or its backend is unreadable or unresolved: the objects stay as they are.
    if backend is None and (
        current is None
        or (isinstance(desired, _Unresolved) and isinstance(_read_backend(observed, str(current)), _Unresolved))
    ):
        return Plan(status=_build_status(observed, desired, ()), requeue_after=_compute_requeue(observed, desired, ()))
    header = _build_header(observed)
    usable_header = header if isinstance(header, Header) else None
    objects = observed.plane.render_endpoint(endpoint, backend, usable_header) if backend else ()
    applied = [item for item in objects if observed.tls_policies or type_of(item) != BACKEND_TLS_POLICY]
    steps = (KEEP, *map(Apply, applied), *prune(observed.children, applied, owner=endpoint.metadata.uid or ""))
    return Plan(steps, _build_status(observed, desired, applied), _compute_requeue(observed, desired, applied))


def _leads_to_its_replica(endpoint: ModelEndpoint, cluster: ClusterState) -> bool:
    """True if the endpoint is as its deployment writes it, without edits by others."""
    current, expected = read_url(endpoint.spec.url), read_url(url_of(cluster.gateway)) if cluster.gateway else None
    if not isinstance(current, Backend) or not isinstance(expected, Backend):
        return False
    same_address = current.host == expected.host and current.port in {*DEFAULT_PORTS.values(), cluster.port}
    valid_hostname = endpoint.spec.hostname is None or of_cluster(endpoint)
    return same_address and valid_hostname and endpoint.spec.rewrite_path == replica_prefix(endpoint.key)


def _compute_requeue(
    observed: Observed, desired: Backend | InvalidUrl | _Unresolved, objects: Sequence[Manifest]
) -> float | None:
    """Return the seconds until the next reconcile that no event will trigger; None if none is needed."""
    if isinstance(desired, _Unresolved):
        return REQUEUE_SOON
    delays = [
        *([observed.recheck] if observed.endpoint.spec.credentials else []),
        *([REQUEUE_AFTER] if observed.outside.resolved else []),
        *(
            [max(unlearnt(objects, observed.children, observed.now).total_seconds(), REQUEUE_SOON)]
            if _get_retained_routing(observed, objects)
            else []
        ),
    ]
    return min(delays, default=None)


def _get_retained_routing(observed: Observed, objects: Sequence[Manifest]) -> EndpointRouting | None:
    """Return the routing that routes keep using while the gateway may not have loaded the new port yet; else None.

    The old port leads where it did (`traefik.render_endpoint`).
    """
    published = observed.endpoint.status.routing if observed.endpoint.status else None
    old_backend = read_url(published.url) if published and published.url else None
    if not isinstance(old_backend, Backend) or old_backend.scheme != "http" or not of_cluster(observed.endpoint):
        return None
    return published if unlearnt(objects, observed.children, observed.now) > timedelta() else None


def _read_backend(observed: Observed, url: str) -> Backend | InvalidUrl | _Unresolved:
    """Return the backend of a URL, why it is rejected, or that its name is being resolved."""
    backend = parse_url(url, observed.reach)
    if not isinstance(backend, Backend):
        return backend
    if observed.cluster is None and not isinstance(backend := _check_outside(observed, backend), Backend):
        return backend
    return provable(observed.endpoint, backend, observed.plane)


def _check_outside(observed: Observed, backend: Backend) -> Backend | InvalidUrl | _Unresolved:
    """Return the backend, or why it is rejected once its name is resolved, or that it is being resolved."""
    resolved = observed.outside.resolved
    resolution = resolved.get(backend.host)
    if resolution is None and backend.host in resolved and not _is_in_use(observed, backend):
        return _Unresolved(backend.host)
    if resolution and (rejection := check_resolved(backend.host, resolution.addresses, observed.reach)):
        return rejection
    hosts = _list_hosts(observed, backend)
    if hosts & observed.outside.gateways and not _may_stay(observed, backend, hosts):
        message = (
            f"{backend.host} is the gateway of a workload cluster, which only the operator's own endpoints may use"
        )
        return InvalidUrl(UrlFault.FORBIDDEN, message)
    if hosts & observed.outside.hub_gateway and not observed.reach.allows(backend.address or backend.host):
        message = f"{backend.host} is this hub's own gateway: write the address of the server behind it"
        return InvalidUrl(UrlFault.FORBIDDEN, message)
    if resolution and resolution.unknown and not resolution.addresses and not _is_in_use(observed, backend):
        return leads_nowhere(backend.host)
    return backend


def _list_hosts(observed: Observed, backend: Backend) -> set[str]:
    """Return the host and the resolved addresses of a backend."""
    resolution = observed.outside.resolved.get(backend.host)
    return {backend.host, *map(str, resolution.addresses if resolution else ())}


def _may_stay(observed: Observed, backend: Backend, hosts: set[str]) -> bool:
    """True if routes already use the backend, and cannot reach the gateway that a cluster reports there.

    By https the gateway cannot prove this host's name; by http a closed gateway answers nothing. An open gateway could
    be reached, since the owner of a name decides where it leads, and an address may be reassigned.
    """
    safe = backend.scheme == "https" or hosts & observed.outside.gateways <= observed.outside.closed
    return safe and _is_in_use(observed, backend)


def _is_in_use(observed: Observed, backend: Backend) -> bool:
    """True if routes already use the backend.

    The status must say so too: the Service is in the tenant's namespace, and a tenant could have written it.
    """
    routing = observed.endpoint.status.routing if observed.endpoint.status else None
    published = routing is not None and routing.leads_to == "Outside" and routing.url == str(backend)
    return published and backend == _find_current_backend(observed)


def _build_header(observed: Observed) -> Header | NoHeader | None:
    """Return the header with the endpoint's credentials, or why there is none; None without credentials."""
    credentials = observed.endpoint.spec.credentials
    return read_credentials(credentials, observed.secret) if credentials else None


def _delete(observed: Observed, deleted_at: datetime) -> Plan:
    """Return the plan of the deletion: remove the finalizer once no route sends requests, or after a minute."""
    remaining = deleted_at + PATIENCE - observed.now
    if not observed.routes or remaining <= timedelta():
        return Plan((LET_GO,))
    last_status = observed.endpoint.status or ModelEndpointStatus()
    message = f"Waiting until these send no more requests here: HTTPRoute {', '.join(observed.routes[:MAX_NAMES])}"
    terminating = Ready.DELETING.condition(observed.now, message=message)
    return Plan(
        status=last_status.model_copy(update={"conditions": (terminating,)}),
        requeue_after=max(remaining.total_seconds(), 0.1),
    )


def _find_current_backend(observed: Observed) -> Backend | None:
    """Return the backend of the endpoint's Service or Backend; both exist while the data plane changes."""
    return next((rendered_backend(child) for child in observed.children if type_of(child) in {SERVICE, BACKEND}), None)


def _build_status(
    observed: Observed, desired: Backend | InvalidUrl | _Unresolved, objects: Sequence[Manifest]
) -> ModelEndpointStatus:
    """Return the status: the routing for services, and the conditions."""
    now = observed.now
    routing = _build_routing(observed, objects)
    consequence = f"requests go on to {routing.url}" if routing else "no requests go there"
    if isinstance(desired, InvalidUrl):
        reason, message = RoutingReady.INVALID_URL, f"Invalid spec.url: {desired.message}; {consequence}"
    elif isinstance(desired, _Unresolved):
        reason, message = RoutingReady.WAITING_FOR_BACKEND, f"Host {desired.name} is being resolved; {consequence}"
    elif routing is None:
        reason, message = (
            RoutingReady.WAITING_FOR_BACKEND,
            f"Starting (waiting for: the endpoint's Service to lead to {desired})",
        )
    elif isinstance(header := _build_header(observed), NoHeader):
        reason, message = RoutingReady.CREDENTIALS_MISSING, f"{header}; no requests go there"
    else:
        resolution = observed.outside.resolved.get(desired.host)
        doubt = (
            f", although the operator cannot resolve {desired.host}: {resolution.error}"
            if resolution and resolution.error
            else ""
        )
        if observed.cluster is None and _list_hosts(observed, desired) & observed.outside.gateways:
            doubt += f", although a workload cluster reports {desired.host} as its gateway: correct whichever is wrong"
        if (
            observed.cluster is None
            and observed.endpoint.spec.rewrite_path is None
            and path_of(observed.endpoint.spec.url)
        ):
            doubt += ", with the path that clients send: the path in spec.url is ignored, so write it into rewritePath"
        reason, message = RoutingReady.BACKEND_CONFIGURED, f"Requests go to {routing.url}{doubt}"
    routing_ready = reason.condition(now, message=message)
    if routing_ready.status == "True":
        ready, ready_message = _decide_ready(observed, message)
        return ModelEndpointStatus(
            routing=routing, conditions=(routing_ready, ready.condition(now, message=ready_message))
        )
    ready = not_ready(ModelEndpoint.definition.kind, routing_ready)
    return ModelEndpointStatus(routing=routing, conditions=(routing_ready, ready))


def _decide_ready(observed: Observed, message: str) -> tuple[Ready, str]:
    """Return the reason and message of Ready for an endpoint with routing.

    A replica's endpoint is Ready unless the gateway of its cluster is silent, by the last answer of the operator's
    requests. A user's endpoint becomes Ready once its backend has accepted a connection. Later failures count only
    after several in a row, and only if they affect all clients.
    """
    if observed.reached is None:
        return Ready.AVAILABLE, message
    previous = next((item for item in observed.endpoint.conditions if item.type == Ready.__name__), None)
    result = observed.reached.answer
    if observed.cluster and (result is None or not result.certain):
        keep = result is None or bool(result.lack)
        silent = previous is not None and previous.reason == Ready.UNREACHABLE.reason
        return (
            (Ready.UNREACHABLE, previous.message or "") if keep and previous and silent else (Ready.AVAILABLE, message)
        )
    if result is not None and not result.lack:
        return Ready.AVAILABLE, message
    if result is not None and observed.reached.failing and result.certain:
        return Ready.UNREACHABLE, result.lack
    previous_message = (previous.message if previous else None) or ""
    doubt = f"{message}{DOUBT}{result.lack}" if result and not result.certain else ""
    if previous is not None and previous.status == "True" and not (doubt and observed.reached.failing):
        return Ready.AVAILABLE, previous_message if previous_message.startswith(message) else message
    edited = previous is not None and previous.observed_generation != observed.endpoint.metadata.generation
    if previous is not None and previous.reason == Ready.UNREACHABLE.reason and not edited:
        return Ready.UNREACHABLE, previous_message
    if doubt:
        return Ready.AVAILABLE, doubt
    return Ready.CREATING, f"Starting (waiting for: {observed.endpoint.spec.url} to take a connection)"


def _build_routing(observed: Observed, objects: Sequence[Manifest]) -> EndpointRouting | None:
    """Return the routing that is published, once all objects that it needs exist; else None."""
    current, needed_types = _find_current_backend(observed), {type_of(item) for item in objects} - {BACKEND_TLS_POLICY}
    if current is None or not needed_types or not needed_types <= {type_of(item) for item in observed.children}:
        return None
    endpoint = observed.endpoint
    return _get_retained_routing(observed, objects) or EndpointRouting(
        backend_name=names.endpoint_backend(*endpoint.key),
        url=str(current),
        rewrite_path=endpoint.spec.rewrite_path,
        hostname=endpoint.spec.hostname,
        observed_generation=endpoint.metadata.generation,
        leads_to="Replica" if observed.cluster else "Outside",
    )
