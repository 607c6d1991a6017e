"""The context of lists on AWS, and how tags in responses are read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from kubeloop.errors import NotFound
from modelplane_operator.api import names
from modelplane_operator.clouds.eks.changes import RESOURCE, UID
from modelplane_operator.clouds.resources import ExistingResource, Owner, State

Item = Mapping[str, Any]
"""Resource in a response of AWS."""


class Session(Protocol):
    """The methods of a session that lists use."""

    async def call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]: ...

    async def list(self, service: str, operation: str, items: str, parameters: Mapping[str, Any]) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class ListContext:
    """The owner whose resources are listed, and the session."""

    session: Session
    owner: Owner
    kinds: Collection[str]
    """Kinds to list."""

    @property
    def name(self) -> str:
        """Return the cluster's name on EKS."""
        return names.on_cloud(self.owner.cluster, self.owner.uid)

    def name_on_cloud(self, *parts: str) -> str:
        """Return the name of a resource of the cluster, as `render` derives it."""
        return names.on_cloud(self.owner.cluster, self.owner.uid, *parts)

    async def list_tagged(self, operation: str, items: str) -> list[Item]:
        """List the resources of EC2 that carry the owner's tag. The tag is checked again in the response."""
        filters = [{"Name": f"tag:{UID}", "Values": [self.owner.uid]}]
        results = await self.session.list("ec2", operation, items, {"Filters": filters})
        return [item for item in results if tags_of(item).get(UID) == self.owner.uid]

    async def all(self, service: str, operation: str, items: str, **parameters: Any) -> list[Any]:
        """Return the items of all pages of a list, of any service."""
        return await self.session.list(service, operation, items, parameters)

    async def get(self, service: str, operation: str, **parameters: Any) -> Item | None:
        """Make a request; None if the resource does not exist."""
        try:
            return await self.session.call(service, operation, parameters)
        except NotFound:
            return None


Lister = Callable[[ListContext], Awaitable[list[ExistingResource]]]
"""Function that lists one or several kinds. Raises ApiError."""


def tags_of(item: Item) -> Mapping[str, str]:
    """Return the tags of an item, in whichever format the service uses."""
    raw: Any = item.get("Tags", item.get("tags")) or ()
    return cast(Mapping[str, str], raw) if isinstance(raw, dict) else {tag["Key"]: tag["Value"] for tag in raw}


def to_resource(
    item: Item,
    kind: str,
    name: str,
    state: State,
    *,
    key: str = "",
    outputs: Mapping[str, str] | None = None,
    live: Mapping[str, Any] | None = None,
    message: str = "",
) -> ExistingResource:
    """Return the resource of an item that carries tags itself."""
    tags = tags_of(item)
    return ExistingResource(
        tags.get(RESOURCE) or key or name, kind, name, state, tags.get(UID, ""), outputs or {}, live or {}, message
    )
