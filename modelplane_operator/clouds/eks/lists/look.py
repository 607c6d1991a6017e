"""Whose resources are looked for, and how what services tell of them is read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from kubeloop.errors import NotFound
from modelplane_operator.api import names
from modelplane_operator.clouds.eks.changes import RESOURCE, UID
from modelplane_operator.clouds.resources import Found, Owner, State

Item = Mapping[str, Any]


class Session(Protocol):
    """What lists are asked of."""

    async def call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]: ...

    async def list(self, service: str, operation: str, items: str, parameters: Mapping[str, Any]) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class Look:
    """Whose resources are looked for, and where."""

    session: Session
    owner: Owner
    kinds: Collection[str]
    """What is to be told of."""

    @property
    def name(self) -> str:
        """Of the cluster on EKS."""
        return names.on_cloud(self.owner.cluster, self.owner.uid)

    def named(self, *parts: str) -> str:
        return names.on_cloud(self.owner.cluster, self.owner.uid, *parts)

    async def tagged(self, operation: str, items: str) -> list[Item]:
        """Those resources of EC2 that carry the owner's tag, whatever else comes with the answer."""
        filters = [{"Name": f"tag:{UID}", "Values": [self.owner.uid]}]
        listed = await self.session.list("ec2", operation, items, {"Filters": filters})
        return [one for one in listed if tags_of(one).get(UID) == self.owner.uid]

    async def all(self, service: str, operation: str, items: str, **parameters: Any) -> list[Any]:
        return await self.session.list(service, operation, items, parameters)

    async def one(self, service: str, operation: str, **parameters: Any) -> Item | None:
        """None when there is no such thing."""
        try:
            return await self.session.call(service, operation, parameters)
        except NotFound:
            return None


Lister = Callable[[Look], Awaitable[list[Found]]]


def tags_of(item: Item) -> Mapping[str, str]:
    """However a service writes them."""
    given: Any = item.get("Tags", item.get("tags")) or ()
    return cast(Mapping[str, str], given) if isinstance(given, dict) else {one["Key"]: one["Value"] for one in given}


def found(
    item: Item,
    kind: str,
    name: str,
    state: State,
    *,
    key: str = "",
    outputs: Mapping[str, str] | None = None,
    live: Mapping[str, Any] | None = None,
    message: str = "",
) -> Found:
    """What carries the tags itself."""
    said = tags_of(item)
    return Found(
        said.get(RESOURCE) or key or name, kind, name, state, said.get(UID, ""), outputs or {}, live or {}, message
    )
