"""Check that backends of users' endpoints accept connections from the operator.

Names are resolved by the same resolver as elsewhere, and only allowed addresses are connected to, so that creating
endpoints is no way to scan a private network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from kubeloop.client.resolver import Resolver
from kubeloop.objects import Key
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import ModelEndpoint
from modelplane_operator.routing.endpoint.backend_url import Backend, Reach, check_resolved, parse_url
from modelplane_operator.routing.endpoint.plan import Reached
from modelplane_operator.routing.service.checks import Checks
from modelplane_operator.world import OnChecked, ignore_count

CONNECT_SECONDS: Final = 2.0
POLL_INTERVAL: Final = 0.2  # seconds between polls of the resolver
MOST: Final = 4  # addresses tried of a name


class Place(NamedTuple):
    """The backend of an endpoint, and the settings for it."""

    backend: Backend
    """Host and port to connect to."""
    reach: Reach
    """The settings that name resolution is checked against."""
    namespace: str
    """Namespace of the endpoint, by which concurrent lookups are limited."""


PlaceChecks = Checks[Place, Reached]


def checks(
    resolver: Resolver, wake: Callable[[ResourceType, Key], None], on_checked: OnChecked = ignore_count
) -> PlaceChecks:
    """Return the checks of users' endpoints."""

    async def connect(place: Place) -> Reached:
        """Connect to one backend."""
        return await _connect_to(place, resolver)

    return Checks(
        of(ModelEndpoint), connect, failed=lambda _, reached: bool(reached.lack), wake=wake, on_checked=on_checked
    )


async def _connect_to(place: Place, resolver: Resolver) -> Reached:
    """Return whether one of the backend's allowed addresses accepts a connection."""
    backend = place.backend
    if backend.address is not None:
        addresses = [str(backend.address)]
    else:
        while (resolved := resolver.find(backend.host, place.namespace)) is None:  # noqa: ASYNC110 - it gives up itself
            await asyncio.sleep(POLL_INTERVAL)
        if resolved.error:  # gateways use the same name servers, and lose a cached address sooner or later
            remedy = (
                "correct the name"
                if resolved.unknown
                else "check the DNS of the hub, and the name servers of that domain"
            )
            return Reached(f"host {backend.host} cannot be resolved ({resolved.error}): {remedy}", certain=True)
        if check_resolved(backend.host, resolved.addresses, place.reach):
            return Reached("")  # the plan already reports it, and no connection is opened
        addresses = [*map(str, resolved.addresses[:MOST])]
    refused = False
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, writer = await asyncio.open_connection(address, backend.port)
        except (OSError, TimeoutError) as error:
            refused = refused or isinstance(error, ConnectionRefusedError)
            continue
        writer.close()
        return Reached("")
    if refused:
        return Reached(f"host {backend.host} refuses connections to port {backend.port}", certain=True)
    return Reached(f"host {backend.host} takes no connection to port {backend.port} from the operator", certain=False)


def place_of(endpoint: ModelEndpoint, reach: Reach) -> Place | None:
    """Return the backend of an endpoint, if its URL alone is allowed; else None."""
    backend = parse_url(endpoint.spec.url, reach)
    return Place(backend, reach, endpoint.key.namespace) if isinstance(backend, Backend) else None
