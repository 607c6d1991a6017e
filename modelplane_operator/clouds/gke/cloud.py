"""Google Cloud as a `Cloud`: calls and lists of one session."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kubeloop.errors import ClientError, NotPropagated
from modelplane_operator.clouds.gke.changes import Gke, Request, Where, creation, deletion, update
from modelplane_operator.clouds.gke.lists import ListContext, Lister, listers
from modelplane_operator.clouds.gke.preflight import fetch_offer
from modelplane_operator.clouds.gke.render import cluster_name
from modelplane_operator.clouds.gke.render import kinds as k
from modelplane_operator.clouds.gke.session import DEADLINE, Credentials, Session, read_credentials
from modelplane_operator.clouds.resources import (
    Account,
    DesiredResource,
    Endpoint,
    ExistingResource,
    Inventory,
    Offer,
    Owner,
)

OVER: Final = 3 * DEADLINE
"""Seconds after which no call of a replaced client can still be running: each first waits for a token and a slot."""


@dataclass(frozen=True, slots=True)
class Gcp:
    """A project of Google Cloud in one region."""

    session: Session

    async def observe(self, owner: Owner, kinds: Collection[str], now: datetime) -> Inventory:
        """List the kinds in parallel. A list that fails makes its kinds unseen."""
        context = ListContext(self.session, await self._location(), owner, now)

        async def run_list(
            kinds_of_list: tuple[str, ...], lister: Lister
        ) -> tuple[tuple[str, ...], list[ExistingResource] | ClientError]:
            """Run one list and return its kinds with the result or the error."""
            try:
                return kinds_of_list, await lister(context)
            except ClientError as error:
                return kinds_of_list, error

        results = await asyncio.gather(*(run_list(kinds_of_list, lister) for kinds_of_list, lister in listers(kinds)))
        resources = tuple(resource for _, result in results if isinstance(result, list) for resource in result)
        unlisted = {
            kind: result for kinds_of_list, result in results if not isinstance(result, list) for kind in kinds_of_list
        }
        return Inventory(tuple(resource for resource in resources if resource.kind in kinds), now, unlisted)

    async def create(self, owner: Owner, desired: DesiredResource, token: str) -> str:
        """Create a resource.

        Names are unique, so a repeated call is rejected, and the existing resource is observed.
        """
        cluster = cluster_name(owner.cluster, owner.uid)
        await self._send(creation(await self._location(), owner, desired, cluster))
        name = str(desired.parameters["name"])
        return f"{cluster}/{name}" if desired.kind == k.NODE_POOL else name

    async def update(
        self, owner: Owner, desired: DesiredResource, existing: ExistingResource, changed: Collection[str]
    ) -> None:
        """Make the call that updates one of the changed parameters."""
        await self._send(update(await self._location(), desired, existing, changed))

    async def delete(self, existing: ExistingResource) -> None:
        """Make the call that deletes a resource."""
        await self._send(deletion(await self._location(), existing))

    async def endpoint(self, cluster: str) -> Endpoint:
        """Return the endpoint of a cluster of any owner. Raise ApiError."""
        item = await self.session.gke("get_cluster", name=(await self._location()).cluster(cluster))
        if not item.endpoint or not item.master_auth.cluster_ca_certificate:
            raise NotPropagated(f"cluster {cluster} has no address yet")
        return Endpoint(f"https://{item.endpoint}", item.master_auth.cluster_ca_certificate)

    async def cluster_token(self, cluster: str) -> str:
        """Return a short-lived token for the API server of a cluster."""
        return await self.session.cluster_token(cluster)

    async def close(self) -> None:
        """Close the session once no call can be running."""
        await asyncio.sleep(OVER)
        await self.session.close()

    async def fetch_offer(
        self, machines: Collection[tuple[str, str]], accelerators: Collection[tuple[str, str]]
    ) -> Offer:
        """Return the versions, quotas and machine types that are available."""
        return await fetch_offer(self.session, await self._location(), machines, accelerators)

    async def _location(self) -> Where:
        """Return the project and the region. The project may have to be queried first."""
        return Where(await self.session.find_project(), self.session.region)

    async def _send(self, request: Request) -> None:
        """Send a request by the client that its service has."""
        if isinstance(request, Gke):
            await self.session.gke(request.operation, **request.request)
        else:
            await self.session.http(request.method, request.service, request.path, request.body)


def connect(account: Account, credentials: str | None, *, hosts: Mapping[str, str]) -> Gcp:
    """Return the client of an account on Google Cloud. `hosts` overrides Google's addresses.

    Raise Unauthorized or KubeconfigError.
    """
    identity = Credentials() if credentials is None else read_credentials(credentials)
    return Gcp(Session(account.region, account.project, identity, hosts))
