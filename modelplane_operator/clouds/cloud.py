"""The interface of a cloud: list resources, and create, update or delete one of them.

Every method raises `ApiError`, with the same classes on every cloud. `Unreachable` and `ServerFault` mean that the call
may have had its effect; all other errors mean that it had none.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from modelplane_operator.clouds.resources import DesiredResource, Endpoint, ExistingResource, Inventory, Owner


class Cloud(Protocol):
    """An account of a cloud in one region."""

    async def observe(self, owner: Owner, kinds: Collection[str], now: datetime) -> Inventory:
        """List the resources of these kinds that carry the owner's tag or have one of its names.

        Resources of other owners with such a name are included and can be told apart. A kind that cannot be listed is
        reported in `Inventory.unseen`, never as empty.
        """
        ...

    async def create(self, owner: Owner, desired: DesiredResource, token: str) -> str:
        """Start to create a resource, tagged with its owner from the first moment, and return its id.

        A repeated call with the same token creates no second resource, where the cloud supports tokens or the name is
        unique.
        """
        ...

    async def update(
        self, owner: Owner, desired: DesiredResource, existing: ExistingResource, changed: Collection[str]
    ) -> None:
        """Start to update one of the changed parameters, together with those that the same request sets."""
        ...

    async def delete(self, existing: ExistingResource) -> None:
        """Start to delete an observed resource. Raise NotFound when it is already gone."""
        ...

    async def endpoint(self, cluster: str) -> Endpoint:
        """Return the address and the certificate authority of a cluster's API server."""
        ...

    async def cluster_token(self, cluster: str) -> str:
        """Return a short-lived token for the API server of a cluster."""
        ...

    async def close(self) -> None:
        """Close the connections of a client that was replaced, after its running calls have ended."""
        ...
