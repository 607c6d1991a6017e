"""Query an AWS account and region: the operator's identity, the zones, and the properties of machine types."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kubeloop.errors import ApiError
from modelplane_operator.clouds.eks.session import Session


@dataclass(frozen=True, slots=True)
class AccountFacts:
    """Properties of an account and a region."""

    zones: tuple[str, ...]
    """Zones in which the account can have subnets."""
    principal: str
    """ARN of the operator's role or user."""
    cards: Mapping[str, int]
    """Number of EFA-capable network cards by instance type."""
    offered: Mapping[str, tuple[str, ...]]
    """Zones that offer each instance type."""


async def principal(session: Session) -> str:
    """Return the ARN of the operator's role or user, as EKS knows it: a role, not a session of one.

    Queried once per session.
    """
    if not session.principal:
        session.principal = await _resolve_principal(session)
    return session.principal


async def _resolve_principal(session: Session) -> str:
    """Resolve a session's ARN to its role's ARN.

    Without permission to read the role, its path is assumed to be empty.
    """
    arn: str = (await session.call("sts", "get_caller_identity", {}))["Arn"]
    head, _, name = arn.partition(":assumed-role/")
    if not name:
        return arn
    role = name.split("/")[0]
    try:  # the ARN of a session does not contain the path of its role
        return (await session.call("iam", "get_role", {"RoleName": role}))["Role"]["Arn"]
    except ApiError:
        return f"{head.replace(':sts:', ':iam:')}:role/{role}"


async def zones(session: Session) -> tuple[str, ...]:
    """Return the zones where this account can have subnets. Local zones are excluded: they support no control plane."""
    query = {
        "Filters": [
            {"Name": "opt-in-status", "Values": ["opt-in-not-required", "opted-in"]},
            {"Name": "zone-type", "Values": ["availability-zone"]},
            {"Name": "state", "Values": ["available"]},
        ]
    }
    zone_items = await session.list("ec2", "describe_availability_zones", "AvailabilityZones", query)
    return tuple(sorted(zone["ZoneName"] for zone in zone_items))


async def cards(session: Session, types: Collection[str]) -> Mapping[str, int]:
    """Return the number of EFA-capable network cards of each instance type."""
    if not types:
        return {}
    # A filter, since a query by name fails for all types if one does not exist.
    query = {"Filters": [{"Name": "instance-type", "Values": sorted(types)}]}
    type_items = await session.list("ec2", "describe_instance_types", "InstanceTypes", query)
    return {
        instance_type["InstanceType"]: instance_type.get("NetworkInfo", {})
        .get("EfaInfo", {})
        .get("MaximumEfaInterfaces", 0)
        for instance_type in type_items
    }


async def fetch_zones_by_type(session: Session, types: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the zones that offer each instance type."""
    query = {
        "LocationType": "availability-zone",
        "Filters": [{"Name": "instance-type", "Values": sorted(types)}],
    }
    offerings = (
        await session.list("ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", query) if types else []
    )
    pairs = sorted((item["InstanceType"], item["Location"]) for item in offerings)
    return {item: tuple(location for instance_type, location in pairs if instance_type == item) for item in types}


async def fetch_account_facts(session: Session, types: Collection[str]) -> AccountFacts:
    """Query all of these in parallel. An instance type that the region does not offer is left out of `cards`."""
    answers = await asyncio.gather(
        zones(session), principal(session), cards(session, types), fetch_zones_by_type(session, types)
    )
    return AccountFacts(*answers)
