"""Query Google before anything is created: versions, machine types and quotas."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Mapping
from typing import Any, Final, TypeVar

from kubeloop.errors import ApiError, NotFound, NotPropagated
from kubeloop.objects import entries
from modelplane_operator.clouds.gke.changes import Where
from modelplane_operator.clouds.gke.lists import Session
from modelplane_operator.clouds.gke.render import CHANNEL, minor, quotas
from modelplane_operator.clouds.resources import Offer, Quota

T = TypeVar("T")

UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError)
"""Errors raised by a malformed response, which never blocks a cluster."""


async def fetch_offer(
    session: Session, where: Where, machines: Collection[tuple[str, str]], accelerators: Collection[tuple[str, str]]
) -> Offer:
    """Return the offer. `machines` and `accelerators` are pairs of a type and a zone.

    A rejected query is reported and has no effect.
    """
    rejections, later = list[str](), list[str]()

    async def answer_or_default(question: Awaitable[T], otherwise: T) -> T:
        """Return the answer to a query; the default if it was rejected or cannot be parsed."""
        try:
            return await question
        except NotPropagated as error:  # a service is not enabled yet
            later.append(str(error))
        except ApiError as error:
            rejections.append(str(error))
        except UNREADABLE as error:
            rejections.append(f"Google gave an unreadable answer: {error!r}")
        return otherwise

    queries = (("machineTypes", machines), ("acceleratorTypes", accelerators))
    types = [(kind, name, zone) for kind, pairs in queries for name, zone in sorted(pairs)]
    versions, region, project, descriptions = await asyncio.gather(
        answer_or_default(_read_versions(session, where), frozenset[str]()),
        answer_or_default(_read_quotas(session, f"regions/{where.region}", "", f"in {where.region}"), {}),
        answer_or_default(_read_quotas(session, "", quotas.GLOBAL, f"of project {where.project}"), {}),
        asyncio.gather(*(answer_or_default(_read_type(session, *item), {}) for item in types)),
    )
    named_items = [(name, item) for (_, name, _), item in zip(types, descriptions, strict=True)]
    return Offer(
        versions,
        {**region, **project},
        {name: int(item["guestCpus"]) for name, item in named_items if item.get("guestCpus")},
        tuple(str(item["absent"]) for _, item in named_items if "absent" in item),
        unasked=tuple(sorted({*rejections})),
        later=next(iter(later), ""),
    )


async def _read_versions(session: Session, location: Where) -> frozenset[str]:
    """Return the versions of the release channel, or all versions if GKE does not report the channel."""
    config = await session.gke("get_server_config", name=location.parent)
    channel_versions = [
        entry.valid_versions for entry in config.channels if getattr(entry.channel, "name", "") == CHANNEL
    ]
    return frozenset(
        minor(entry) for entry in (channel_versions[0] if channel_versions else config.valid_master_versions)
    ) - {""}


async def _read_quotas(session: Session, path: str, prefix: str, of: str) -> Mapping[str, Quota]:
    """Return the quotas of a region, or of the project for an empty `path`."""
    quota_items = entries(await session.http("GET", "compute", path), "quotas")
    return {
        f"{prefix}{item['metric']}": Quota(f"{item['metric']} {of}", float(item["limit"]), float(item.get("usage", 0)))
        for item in quota_items
        if "limit" in item
    }


async def _read_type(session: Session, kind: str, name: str, zone: str) -> Mapping[str, Any]:
    """Return the properties of a type in a zone, or Google's message that it does not exist."""
    try:
        return await session.http("GET", "compute", f"zones/{zone}/{kind}/{name}")
    except NotFound as error:
        return {"absent": f"there is no {name} in {zone}: {error}"}
