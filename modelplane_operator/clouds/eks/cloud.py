"""AWS as a `Cloud`: calls and lists of one session, built from the tables in `changes` and `lists`."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from kubeloop.errors import ClientError, NotPropagated
from modelplane_operator.clouds.eks.changes import creation, deletion, id_of_created, update
from modelplane_operator.clouds.eks.lists import ListContext, Lister, listers
from modelplane_operator.clouds.eks.preflight import fetch_offer
from modelplane_operator.clouds.eks.session import Credentials, Session, read_credentials
from modelplane_operator.clouds.resources import (
    Account,
    DesiredResource,
    Endpoint,
    ExistingResource,
    Inventory,
    Offer,
    Owner,
    idempotency_token,
)


@dataclass(frozen=True, slots=True)
class Aws:
    """An AWS account in one region."""

    session: Session

    async def observe(self, owner: Owner, kinds: Collection[str], now: datetime) -> Inventory:
        """List the kinds in parallel. A list that fails makes its kinds unseen."""
        context = ListContext(self.session, owner, kinds)

        async def run_list(
            kinds_of_list: tuple[str, ...], lister: Lister
        ) -> tuple[tuple[str, ...], list[ExistingResource] | ClientError]:
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

    async def create(self, owner: Owner, desired: DesiredResource, token: str) -> str:
        """Make the call that creates a resource, and return its id."""
        request = creation(owner, desired, token)
        return id_of_created(desired, await self.session.call(request.service, request.operation, request.parameters))

    async def update(
        self, owner: Owner, desired: DesiredResource, existing: ExistingResource, changed: Collection[str]
    ) -> None:
        """Make the call that updates one of the changed parameters."""
        request = update(
            desired, existing, changed, idempotency_token(owner, desired, repr(sorted(existing.live.items())))
        )
        await self.session.call(request.service, request.operation, request.parameters)

    async def delete(self, existing: ExistingResource) -> None:
        """Make the call that deletes a resource."""
        request = deletion(existing)
        await self.session.call(request.service, request.operation, request.parameters)

    async def cluster_token(self, cluster: str) -> str:
        """Return a short-lived token for the API server of a cluster."""
        return await self.session.cluster_token(cluster)

    async def close(self) -> None:
        """Do nothing: connections of the SDK close with their clients."""

    async def fetch_offer(self, machines: Collection[str], reservations: Collection[str]) -> Offer:
        """Return the versions, quotas and machine types that are available."""
        return await fetch_offer(self.session, machines, reservations)

    async def endpoint(self, cluster: str) -> Endpoint:
        """Return the endpoint of a cluster of any owner. Raise ApiError."""
        item = (await self.session.call("eks", "describe_cluster", {"name": cluster}))["cluster"]
        server, authority = item.get("endpoint"), item.get("certificateAuthority", {}).get("data")
        if not server or not authority:
            raise NotPropagated(f"cluster {cluster} has no address yet")
        return Endpoint(server, authority)


def connect(account: Account, credentials: str | None) -> Aws:
    """Return the client of an account on AWS. Raise Unauthorized or KubeconfigError."""
    identity = Credentials() if credentials is None else read_credentials(credentials)
    return Aws(Session(account.region, identity))
