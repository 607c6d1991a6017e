"""AWS as a `Cloud`: calls and lists of one session, built from the tables in `changes` and `lists`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from kubeloop.errors import ClientError, NotSettled
from modelplane_operator.clouds.eks.changes import creation, deletion, made, update
from modelplane_operator.clouds.eks.lists import Lister, Look, listers
from modelplane_operator.clouds.eks.preflight import offered
from modelplane_operator.clouds.eks.session import Session
from modelplane_operator.clouds.resources import Endpoint, Found, Inventory, Offer, Owner, Wanted, token


@dataclass(frozen=True, slots=True)
class Aws:
    """An AWS account in one region."""

    session: Session

    async def observe(self, owner: Owner, kinds: Collection[str], now: datetime) -> Inventory:
        """List the kinds in parallel. A list that fails makes its kinds unseen."""
        context = Look(self.session, owner, kinds)

        async def run_list(
            kinds_of_list: tuple[str, ...], lister: Lister
        ) -> tuple[tuple[str, ...], list[Found] | ClientError]:
            """Run one list and return its kinds with the result or the error."""
            try:
                return kinds_of_list, await lister(context)
            except ClientError as error:
                return kinds_of_list, error

        results = await asyncio.gather(*(run_list(kinds_of_list, lister) for kinds_of_list, lister in listers(kinds)))
        resources = tuple(item for _, result in results if isinstance(result, list) for item in result)
        unlisted = {
            kind: result for kinds_of_list, result in results if not isinstance(result, list) for kind in kinds_of_list
        }
        return Inventory(tuple(item for item in resources if item.kind in kinds), now, unlisted)

    async def create(self, owner: Owner, wanted: Wanted, token: str) -> str:
        """Make the call that creates a resource, and return its id."""
        request = creation(owner, wanted, token)
        return made(wanted, await self.session.call(request.service, request.operation, request.parameters))

    async def update(self, owner: Owner, wanted: Wanted, found: Found, changed: Collection[str]) -> None:
        """Make the call that updates one of the changed parameters."""
        request = update(wanted, found, changed, token(owner, wanted, repr(sorted(found.live.items()))))
        await self.session.call(request.service, request.operation, request.parameters)

    async def delete(self, found: Found) -> None:
        """Make the call that deletes a resource."""
        request = deletion(found)
        await self.session.call(request.service, request.operation, request.parameters)

    async def offered(self, machines: Collection[str], reservations: Collection[str]) -> Offer:
        """Return the versions, quotas and machine types that are available."""
        return await offered(self.session, machines, reservations)

    async def endpoint(self, cluster: str) -> Endpoint:
        """Return the endpoint of a cluster of any owner. Raise ApiError."""
        item = (await self.session.call("eks", "describe_cluster", {"name": cluster}))["cluster"]
        server, authority = item.get("endpoint"), item.get("certificateAuthority", {}).get("data")
        if not server or not authority:
            raise NotSettled(f"cluster {cluster} has no address yet")
        return Endpoint(server, authority)
