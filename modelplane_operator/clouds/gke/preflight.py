"""What Google says before anything is made: its versions and machines, and what the project may have."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping
from typing import Any, Final, TypeVar

from kubeloop.errors import ApiError, NotFound, NotSettled
from kubeloop.objects import entries
from modelplane_operator.clouds.gke.changes import Where
from modelplane_operator.clouds.gke.lists import Session
from modelplane_operator.clouds.gke.render import CHANNEL, minor, quotas
from modelplane_operator.clouds.resources import Offer, Quota

T = TypeVar("T")

UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError)
"""What comes of an answer that is not what it should be: it speaks against no cluster."""


async def offered(
    session: Session, where: Where, machines: Collection[tuple[str, str]], accelerators: Collection[tuple[str, str]]
) -> Offer:
    """`machines` and `accelerators`: types, and a zone for each. What may not be asked is told, and nothing follows."""
    refused, later = list[str](), list[str]()

    async def told(question: Awaitable[T], otherwise: T) -> T:
        try:
            return await question
        except NotSettled as error:  # a service is not enabled yet
            later.append(str(error))
        except ApiError as error:
            refused.append(str(error))
        except UNREADABLE as error:
            refused.append(f"an answer of Google that nobody can read: {error!r}")
        return otherwise

    parts = (("machineTypes", machines), ("acceleratorTypes", accelerators))
    types = [(kind, name, zone) for kind, pairs in parts for name, zone in sorted(pairs)]
    versions, region, project, found = await asyncio.gather(
        told(_versions(session, where), frozenset[str]()),
        told(_quotas(session, f"regions/{where.region}", "", f"in {where.region}"), {}),
        told(_quotas(session, "", quotas.GLOBAL, f"of project {where.project}"), {}),
        asyncio.gather(*(told(_type(session, *one), {}) for one in types)),
    )
    said = [(name, one) for (_, name, _), one in zip(types, found, strict=True)]
    return Offer(
        versions,
        {**region, **project},
        {name: int(one["guestCpus"]) for name, one in said if one.get("guestCpus")},
        tuple(str(one["absent"]) for _, one in said if "absent" in one),
        unasked=tuple(sorted({*refused})),
        later=next(iter(later), ""),
    )


async def _versions(session: Session, where: Where) -> frozenset[str]:
    """Those of the release channel, and those of no channel where that is not told of."""
    config = await session.gke("get_server_config", name=where.parent)
    known = [one.valid_versions for one in config.channels if getattr(one.channel, "name", "") == CHANNEL]
    return frozenset(minor(one) for one in (known[0] if known else config.valid_master_versions)) - {""}


async def _quotas(session: Session, path: str, prefix: str, of: str) -> Mapping[str, Quota]:
    """`path`: of what they are of, a region or the project itself."""
    listed = entries(await session.http("GET", "compute", path), "quotas")
    return {
        f"{prefix}{one['metric']}": Quota(f"{one['metric']} {of}", float(one["limit"]), float(one.get("usage", 0)))
        for one in listed
        if "limit" in one
    }


async def _type(session: Session, kind: str, name: str, zone: str) -> Mapping[str, Any]:
    """What a type is like in a zone, or how Google says that it is not there."""
    try:
        return await session.http("GET", "compute", f"zones/{zone}/{kind}/{name}")
    except NotFound as error:
        return {"absent": f"there is no {name} in {zone}: {error}"}
