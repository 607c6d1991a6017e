"""What the operator asks of any cloud: to tell what is there, and to make, change or delete one resource.

Every method raises `ApiError`, by the same classes whatever the cloud: `Unreachable` and `ServerFault` when nobody can
tell whether a call had its effect; all others when it had none.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Protocol

from modelplane_operator.clouds.resources import Found, Inventory, Owner, Wanted


class Cloud(Protocol):
    """One account of one cloud in one region."""

    async def observe(self, owner: Owner, kinds: Collection[str], now: datetime) -> Inventory:
        """All resources of these kinds that are an owner's or have a name of its: a stranger's too, but told apart.

        What cannot be listed is told as such, and nothing is taken for absent that could not be.
        """
        ...

    async def create(self, owner: Owner, wanted: Wanted, token: str) -> str:
        """Begin to make a resource, with the owner's tags from the first moment; answers its id.

        A repeated call with the same token makes no second one, where the cloud knows tokens or the name is unique.
        """
        ...

    async def update(self, owner: Owner, wanted: Wanted, found: Found, changed: Collection[str]) -> None:
        """Begin to bring one of the changed parameters in line, and those that the same request changes."""
        ...

    async def delete(self, found: Found) -> None:
        """Begin to take away what was seen; raises NotFound when it is gone already."""
        ...
