"""What a ModelEndpoint needs on the hub so that routes can refer to it, and what can be said of it.

A URL that cannot be used leaves the endpoint where it was: requests go on to the last one that could. An endpoint that
is deleted keeps its Service until no route leads there: for a route to a Service that is gone, gateways answer 500.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from modelplane_operator.api import names
from modelplane_operator.api.conditions import Ready
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.model_endpoint import EndpointRouting, ModelEndpoint, ModelEndpointStatus, RoutingReady
from modelplane_operator.clients.resources import BACKEND, BACKEND_TLS_POLICY, SERVICE, type_of
from modelplane_operator.planning.plan import Apply, Plan, Release, prune
from modelplane_operator.rendering.backend_url import Backend, InvalidUrl, Reach, parse_url
from modelplane_operator.rendering.credentials import Header, NoHeader, read_credentials
from modelplane_operator.rendering.inference_gateway import DataPlane
from modelplane_operator.rendering.model_endpoint import known_backend, provable, render_model_endpoint

NAMED = 3  # routes that a message names
PATIENCE = timedelta(seconds=60)  # with routes that do not change, and gateways that do not look: they hold up nothing


@dataclass(frozen=True, slots=True)
class Observed:
    """An endpoint and what surrounds it."""

    endpoint: ModelEndpoint
    children: tuple[Manifest, ...]
    plane: DataPlane
    """What answers requests."""
    reach: Reach
    """Where the operator's settings let endpoints lead."""
    tls_policies: bool
    """Whether the hub serves BackendTLSPolicy."""
    secret: Manifest | None
    """The Secret that its credentials name, if they do and it exists."""
    recheck: float
    """After how many seconds the Secret is worth another look."""
    routes: tuple[str, ...]
    """The routes by which requests may still come: those that name it, and those that a gateway has not looked at."""
    now: datetime


def plan(seen: Observed) -> Plan:
    """Make the endpoint's Service lead where its URL says."""
    endpoint = seen.endpoint
    if endpoint.metadata.deletion_timestamp:
        return _leave(seen, endpoint.metadata.deletion_timestamp)
    read = _read(seen, endpoint.spec.url)
    before = _led_to(seen)
    backend = read if isinstance(read, Backend) else _allowed(seen, before)
    if backend is None and before is None:  # nothing was ever made, or it cannot be told what: it stays
        return Plan(status=_status(seen, read, ()))
    header = _header(seen)
    held = header if isinstance(header, Header) else None
    rendered = render_model_endpoint(endpoint, backend, seen.plane, held) if backend else ()
    wanted = [one for one in rendered if seen.tls_policies or type_of(one) != BACKEND_TLS_POLICY]
    steps = (*map(Apply, wanted), *prune(seen.children, wanted, owner=endpoint.metadata.uid or ""))
    again = seen.recheck if endpoint.spec.credentials else None
    return Plan(steps, _status(seen, read, wanted), again, hold=True)


def _read(seen: Observed, url: str) -> Backend | InvalidUrl:
    backend = parse_url(url, seen.reach)
    return provable(seen.endpoint, backend, seen.plane) if isinstance(backend, Backend) else backend


def _header(seen: Observed) -> Header | NoHeader | None:
    credentials = seen.endpoint.spec.credentials
    return read_credentials(credentials, seen.secret) if credentials else None


def _leave(seen: Observed, since: datetime) -> Plan:
    """Let go once nobody is led there any more."""
    left = since + PATIENCE - seen.now
    if not seen.routes or left <= timedelta():
        return Plan((Release(),))
    known = seen.endpoint.status or ModelEndpointStatus()
    message = f"Waiting until no requests come by HTTPRoute {', '.join(seen.routes[:NAMED])}"
    going = Ready.DELETING.condition(seen.now, message=message)
    return Plan(status=known.model_copy(update={"conditions": (going,)}), requeue_after=max(left.total_seconds(), 0.1))


def _led_to(seen: Observed) -> Backend | None:
    """Where the endpoint's Service leads, or its Backend; both are there while the front door changes."""
    return next((known_backend(one) for one in seen.children if type_of(one) in {SERVICE, BACKEND}), None)


def _allowed(seen: Observed, before: Backend | None) -> Backend | None:
    """Where it led before, unless the settings have come to refuse that."""
    return before if before and isinstance(_read(seen, str(before)), Backend) else None


def _status(seen: Observed, read: Backend | InvalidUrl, wanted: Sequence[Manifest]) -> ModelEndpointStatus:
    now = seen.now
    routing = _routing(seen, wanted)
    where = f"requests go on to {routing.url}" if routing else "no requests go there"
    if isinstance(read, InvalidUrl):
        reason, message = RoutingReady.INVALID_URL, f"Invalid spec.url: {read.message}; {where}"
    elif routing is None:
        reason, message = RoutingReady.WAITING_FOR_BACKEND, f"Its Service does not lead to {read} yet"
    elif isinstance(header := _header(seen), NoHeader):
        reason, message = RoutingReady.CREDENTIALS_MISSING, f"{header.message}; no requests go there"
    else:
        reason, message = RoutingReady.BACKEND_CONFIGURED, f"Requests go to {routing.url}"
    ready = Ready.AVAILABLE if reason.status == "True" else Ready.CREATING
    conditions = (reason.condition(now, message=message), ready.condition(now, message=message))
    return ModelEndpointStatus(routing=routing, conditions=conditions)


def _routing(seen: Observed, wanted: Sequence[Manifest]) -> EndpointRouting | None:
    """How routes refer to the endpoint as it was observed, once all is there that they need."""
    before, needed = _led_to(seen), {type_of(one) for one in wanted} - {BACKEND_TLS_POLICY}
    if before is None or not needed or not needed <= {type_of(one) for one in seen.children}:
        return None
    return EndpointRouting(backend_name=names.endpoint_backend(*seen.endpoint.key), url=str(before))
