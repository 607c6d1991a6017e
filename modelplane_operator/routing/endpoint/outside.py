"""Whether the places outside take connections that users' endpoints lead to, from where the operator is.

A name is resolved as for everything else about such endpoints, and only an address that they may lead to is connected
to: nobody scans a private network by writing endpoints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from kubeloop.client.resolved import Resolved
from kubeloop.client.resolver import Resolver
from kubeloop.objects import Key
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import ModelEndpoint
from modelplane_operator.routing.endpoint.backend_url import Backend, Reach, misled, parse_url
from modelplane_operator.routing.endpoint.plan import Reached
from modelplane_operator.routing.service.checks import Checks
from modelplane_operator.world import OnChecked, uncounted

CONNECT_SECONDS: Final = 2.0
POLL_INTERVAL: Final = 0.2  # whether a name is resolved
MOST: Final = 4  # of a name's addresses


class Place(NamedTuple):
    """Where an endpoint leads."""

    backend: Backend
    reach: Reach
    namespace: str


PlaceChecks = Checks[Place, Reached]


def checks(
    resolver: Resolver, wake: Callable[[ResourceType, Key], None], on_checked: OnChecked = uncounted
) -> PlaceChecks:
    """What connects to the places of users' endpoints."""

    async def ask(place: Place) -> Reached:
        return await _reached(place, resolver)

    return Checks(
        of(ModelEndpoint), ask, failed=lambda _, reached: bool(reached.lack), wake=wake, on_checked=on_checked
    )


async def _reached(place: Place, resolver: Resolver) -> Reached:
    backend = place.backend
    if backend.address is not None:
        addresses = [str(backend.address)]
    else:
        found = await _resolved(place, resolver)
        if found.error:  # gateways ask the same name servers, and one that knows an old address may forget it
            remedy = "correct the name" if found.unknown else "look at the DNS of the hub, and at who serves the name"
            return Reached(f"host {backend.host} cannot be resolved ({found.error}): {remedy}", certain=True)
        if misled(backend.host, found.addresses, place.reach):
            return Reached("")  # that is told already, and nobody connects there
        addresses = [*map(str, found.addresses[:MOST])]
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


async def _resolved(place: Place, resolver: Resolver) -> Resolved:
    while (found := resolver.find(place.backend.host, place.namespace)) is None:  # noqa: ASYNC110 - it gives up itself
        await asyncio.sleep(POLL_INTERVAL)
    return found


def place_of(endpoint: ModelEndpoint, reach: Reach) -> Place | None:
    """Where an endpoint leads, if it may lead there as far as its URL tells."""
    backend = parse_url(endpoint.spec.url, reach)
    return Place(backend, reach, endpoint.key.namespace) if isinstance(backend, Backend) else None
