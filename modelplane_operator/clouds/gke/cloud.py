"""Google Cloud as a `Cloud`: calls and lists, carried out by one session."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from kubeloop.errors import ClientError, NotSettled
from modelplane_operator.clouds.gke.changes import Gke, Request, Where, creation, deletion, update
from modelplane_operator.clouds.gke.lists import Lister, Look, listers
from modelplane_operator.clouds.gke.preflight import offered
from modelplane_operator.clouds.gke.render import cluster_name
from modelplane_operator.clouds.gke.render import kinds as k
from modelplane_operator.clouds.gke.session import Session
from modelplane_operator.clouds.resources import Endpoint, Found, Inventory, Offer, Owner, Wanted


@dataclass(frozen=True, slots=True)
class Gcp:
    """One project in one region."""

    session: Session

    async def observe(self, owner: Owner, kinds: Collection[str], now: datetime) -> Inventory:
        look = Look(self.session, await self._where(), owner, now)

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
        """All names here are unique, so that a call that is repeated is refused, and its resource is seen."""
        cluster = cluster_name(owner.cluster, owner.uid)
        await self._send(creation(await self._where(), owner, wanted, cluster))
        name = str(wanted.parameters["name"])
        return f"{cluster}/{name}" if wanted.kind == k.NODE_POOL else name

    async def update(self, owner: Owner, wanted: Wanted, found: Found, changed: Collection[str]) -> None:
        await self._send(update(await self._where(), wanted, found, changed))

    async def delete(self, found: Found) -> None:
        await self._send(deletion(await self._where(), found))

    async def endpoint(self, cluster: str) -> Endpoint:
        """Of a cluster of any owner. Raises ApiError."""
        item = await self.session.gke("get_cluster", name=(await self._where()).cluster(cluster))
        if not item.endpoint or not item.master_auth.cluster_ca_certificate:
            raise NotSettled(f"cluster {cluster} has no address yet")
        return Endpoint(f"https://{item.endpoint}", item.master_auth.cluster_ca_certificate)

    async def offered(self, machines: Collection[tuple[str, str]], accelerators: Collection[tuple[str, str]]) -> Offer:
        return await offered(self.session, await self._where(), machines, accelerators)

    async def _where(self) -> Where:
        return Where(await self.session.found_project(), self.session.region)

    async def _send(self, request: Request) -> None:
        if isinstance(request, Gke):
            await self.session.gke(request.operation, **request.request)
        else:
            await self.session.http(request.method, request.service, request.path, request.body)
