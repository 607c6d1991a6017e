"""Check a cluster against its cloud's offer before any of it is created; the same for every cloud.

Nothing that costs money is created for a cluster that cannot work. A query that was not possible never blocks a
cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kubeloop.resource import Resource
from modelplane_operator.api import labels
from modelplane_operator.clouds.resources import Offer, Quota

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class QuotaRequirement:
    """Amount of a quota that a resource uses."""

    quota: str
    """Code of the quota on the cloud."""
    first: float
    """Amount used at first."""
    most: float
    """Amount used at the maximum size."""


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """The result of the preflight checks of one cluster, as messages."""

    is_complete: bool = False
    """True if the cloud has answered all queries."""
    short: tuple[str, ...] = ()
    """Quotas too small for the first nodes."""
    tight: tuple[str, ...] = ()
    """Quotas too small for pools at their maximum size."""
    absent: tuple[str, ...] = ()
    """Machine types and reservations that do not exist."""
    wrong: tuple[str, ...] = ()
    """Settings that this cloud does not support."""
    unasked: tuple[str, ...] = ()
    """Queries that the cloud rejected."""
    later: str = ""
    """Reason why the cloud cannot answer yet."""
    has_started: bool = True
    """True if a resource of the cluster exists; then creation continues, and each call reports its own error."""

    @property
    def against(self) -> tuple[str, ...]:
        """Return the reasons why nothing that costs money may be created."""
        return () if self.has_started else (*self.wrong, *self.absent, *self.short)

    @property
    def holds(self) -> bool:
        """True if no resource may be created yet."""
        return not self.has_started and bool(self.against or self.later)


def has_resources(cluster: Resource[Any, Any]) -> frozenset[str]:
    """Return the keys of the resources that were created or are being created."""
    return frozenset(resource.key for resource in (cluster.status.resources if cluster.status else ()) if resource.id)


def unbegun(cluster: Resource[Any, Any], pools: Iterable[P], key: Callable[[P], str]) -> tuple[P, ...]:
    """Return the pools that were never created, which need preflight checks; none when an annotation skips them."""
    if cluster.metadata.annotations.get(labels.SKIP_PREFLIGHT) == "true":
        return ()
    created = has_resources(cluster)
    return tuple(pool for pool in pools if key(pool) not in created)


def check(offer: Offer, needs: Iterable[QuotaRequirement], version: str, raised: str) -> PreflightResult:
    """Return the result of the checks.

    `version` is Kubernetes' without its patch; `raised` says how to raise a quota.
    """
    short, tight = _check_quotas(needs, offer.quotas, raised)
    result = PreflightResult(
        is_complete=not offer.later,
        short=short,
        tight=tight,
        absent=offer.absent,
        unasked=offer.unasked,
        later=offer.later,
    )
    # An empty set means that the query failed, which must not block the cluster.
    if not offer.versions or version in offer.versions:
        return result
    offered = ", ".join(sorted(offer.versions, key=_version_key))
    return replace(result, wrong=(f"Kubernetes {version} is not offered: write one of {offered}",))


def _check_quotas(
    needs: Iterable[QuotaRequirement], quotas: Mapping[str, Quota], raised: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the quotas that are too small for the first nodes, and those too small for the maximum sizes."""
    first, maximum = dict[str, float](), dict[str, float]()
    for need in needs:
        first[need.quota] = first.get(need.quota, 0.0) + need.first
        maximum[need.quota] = maximum.get(need.quota, 0.0) + need.most
    short, tight = list[str](), list[str]()
    for code in sorted(first.keys() & quotas.keys()):
        quota = quotas[code]
        if quota.limit < 0:  # a negative limit means no limit
            continue
        available = max(quota.limit - quota.used, 0.0)
        usage = f"{available:g} of {quota.limit:g} are left of quota {quota.name}"
        if first[code] > available:
            short.append(f"{usage}, and {first[code]:g} are needed: {raised}")
        elif maximum[code] > available:
            tight.append(f"{usage}, and pools may grow to {maximum[code]:g}: {raised}")
    return tuple(short), tuple(tight)


def _version_key(version: str) -> list[tuple[bool, int, str]]:
    """Return a sort key for versions, whatever format a cloud uses."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in version.split(".")]
