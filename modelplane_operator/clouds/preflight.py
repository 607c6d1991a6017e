"""What speaks against a cluster before anything of it is made, from what its cloud offers: the same for every cloud.

Nothing is made, and paid for, of what could not become a cluster. What nobody could ask speaks against nothing.
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
    """What something takes of a quota."""

    quota: str
    """The cloud's code for it."""
    first: float
    """At once."""
    most: float
    """When it has grown as far as it may."""


@dataclass(frozen=True, slots=True)
class PreflightResult:
    """What an offer means for one cluster; all that is wrong with it is in words."""

    asked: bool = False
    short: tuple[str, ...] = ()
    """Quotas that do not let the first nodes come."""
    tight: tuple[str, ...] = ()
    """Quotas that do not let pools grow as far as they may."""
    absent: tuple[str, ...] = ()
    """Machines and reservations that are not there."""
    wrong: tuple[str, ...] = ()
    """What no cluster on this cloud can be like."""
    unasked: tuple[str, ...] = ()
    """Questions that were refused."""
    later: str = ""
    """Why nothing can be told yet."""
    begun: bool = True
    """Whether something of the cluster was made already: then all goes on, and each call has its own answer."""

    @property
    def against(self) -> tuple[str, ...]:
        """Why nothing is made that would be paid for."""
        return () if self.begun else (*self.wrong, *self.absent, *self.short)

    @property
    def holds(self) -> bool:
        return not self.begun and bool(self.against or self.later)


def begun(cluster: Resource[Any, Any]) -> frozenset[str]:
    """The keys of what was made of it, or is being made."""
    return frozenset(one.key for one in (cluster.status.resources if cluster.status else ()) if one.id)


def unbegun(cluster: Resource[Any, Any], pools: Iterable[P], key: Callable[[P], str]) -> tuple[P, ...]:
    """The pools that were never begun: what they are of is asked about before, unless somebody has that skipped."""
    if cluster.metadata.annotations.get(labels.SKIP_PREFLIGHT) == "true":
        return ()
    made = begun(cluster)
    return tuple(pool for pool in pools if key(pool) not in made)


def judge(offer: Offer, needs: Iterable[QuotaRequirement], version: str, raised: str) -> PreflightResult:
    """`version`: of Kubernetes, without its patch. `raised`: how a quota is."""
    short, tight = _quotas(needs, offer.quotas, raised)
    found = PreflightResult(
        asked=not offer.later, short=short, tight=tight, absent=offer.absent, unasked=offer.unasked, later=offer.later
    )
    if not offer.versions or version in offer.versions:
        return found
    known = ", ".join(sorted(offer.versions, key=_numbers))
    return replace(found, wrong=(f"Kubernetes {version} is not offered: write one of {known}",))


def _quotas(
    needs: Iterable[QuotaRequirement], quotas: Mapping[str, Quota], raised: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    first, most = dict[str, float](), dict[str, float]()
    for need in needs:
        first[need.quota] = first.get(need.quota, 0.0) + need.first
        most[need.quota] = most.get(need.quota, 0.0) + need.most
    short, tight = list[str](), list[str]()
    for code in sorted(first.keys() & quotas.keys()):
        quota = quotas[code]
        if quota.limit < 0:  # there is none
            continue
        left = max(quota.limit - quota.used, 0.0)
        said = f"{left:g} of {quota.limit:g} are left of quota {quota.name}"
        if first[code] > left:
            short.append(f"{said}, and {first[code]:g} are needed: {raised}")
        elif most[code] > left:
            tight.append(f"{said}, and pools may grow to {most[code]:g}: {raised}")
    return tuple(short), tuple(tight)


def _numbers(version: str) -> list[tuple[bool, int, str]]:
    """By which versions are sorted, whatever a cloud calls one."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in version.split(".")]
