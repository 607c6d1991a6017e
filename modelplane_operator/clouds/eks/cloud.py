"""AWS as a `Cloud`: rows of calls and lists, carried out by one session."""

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
    """One account in one region."""

    session: Session

    async def observe(self, owner: Owner, kinds: Collection[str], now: datetime) -> Inventory:
        look = Look(self.session, owner, kinds)

        async def listed(told: tuple[str, ...], lister: Lister) -> tuple[tuple[str, ...], list[Found] | ClientError]:
            try:
                return told, await lister(look)
            except ClientError as error:
                return told, error

        answers = await asyncio.gather(*(listed(told, lister) for told, lister in listers(kinds)))
        found = tuple(one for _, answer in answers if isinstance(answer, list) for one in answer)
        unseen = {kind: answer for told, answer in answers if not isinstance(answer, list) for kind in told}
        return Inventory(tuple(one for one in found if one.kind in kinds), now, unseen)

    async def create(self, owner: Owner, wanted: Wanted, token: str) -> str:
        request = creation(owner, wanted, token)
        return made(wanted, await self.session.call(request.service, request.operation, request.parameters))

    async def update(self, owner: Owner, wanted: Wanted, found: Found, changed: Collection[str]) -> None:
        request = update(wanted, found, changed, token(owner, wanted, repr(sorted(found.live.items()))))
        await self.session.call(request.service, request.operation, request.parameters)

    async def delete(self, found: Found) -> None:
        request = deletion(found)
        await self.session.call(request.service, request.operation, request.parameters)

    async def offered(self, machines: Collection[str], reservations: Collection[str]) -> Offer:
        return await offered(self.session, machines, reservations)

    async def endpoint(self, cluster: str) -> Endpoint:
        """Of a cluster of any owner. Raises ApiError."""
        said = (await self.session.call("eks", "describe_cluster", {"name": cluster}))["cluster"]
        server, authority = said.get("endpoint"), said.get("certificateAuthority", {}).get("data")
        if not server or not authority:
            raise NotSettled(f"cluster {cluster} has no address yet")
        return Endpoint(server, authority)
