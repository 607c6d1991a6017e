"""What AWS says of an account and a region: who we are, which zones there are, and what machines are like."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kubeloop.errors import ApiError
from modelplane_operator.clouds.eks.session import Session


@dataclass(frozen=True, slots=True)
class AccountFacts:
    """An account and a region."""

    zones: tuple[str, ...]
    principal: str
    cards: Mapping[str, int]
    offered: Mapping[str, tuple[str, ...]]


async def principal(session: Session) -> str:
    """The ARN of the role or user that we are, as EKS knows it: a role, and not the session of one. Asked for once."""
    if not session.principal:
        session.principal = await _principal(session)
    return session.principal


async def _principal(session: Session) -> str:
    arn: str = (await session.call("sts", "get_caller_identity", {}))["Arn"]
    head, _, name = arn.partition(":assumed-role/")
    if not name:
        return arn
    role = name.split("/")[0]
    try:  # the path of a role is not in the name of its session
        return (await session.call("iam", "get_role", {"RoleName": role}))["Role"]["Arn"]
    except ApiError:
        return f"{head.replace(':sts:', ':iam:')}:role/{role}"


async def zones(session: Session) -> tuple[str, ...]:
    """Zones where this account may have subnets; local zones take no control plane."""
    asked = {
        "Filters": [
            {"Name": "opt-in-status", "Values": ["opt-in-not-required", "opted-in"]},
            {"Name": "zone-type", "Values": ["availability-zone"]},
            {"Name": "state", "Values": ["available"]},
        ]
    }
    found = await session.list("ec2", "describe_availability_zones", "AvailabilityZones", asked)
    return tuple(sorted(one["ZoneName"] for one in found))


async def cards(session: Session, types: Collection[str]) -> Mapping[str, int]:
    """How many network cards of each instance type take EFA."""
    if not types:
        return {}
    asked = {
        "Filters": [{"Name": "instance-type", "Values": sorted(types)}]
    }  # by name, one that is not there fails all
    found = await session.list("ec2", "describe_instance_types", "InstanceTypes", asked)
    return {
        one["InstanceType"]: one.get("NetworkInfo", {}).get("EfaInfo", {}).get("MaximumEfaInterfaces", 0)
        for one in found
    }


async def offered(session: Session, types: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """The zones that have each instance type."""
    asked = {
        "LocationType": "availability-zone",
        "Filters": [{"Name": "instance-type", "Values": sorted(types)}],
    }
    found = (
        await session.list("ec2", "describe_instance_type_offerings", "InstanceTypeOfferings", asked) if types else []
    )
    pairs = sorted((one["InstanceType"], one["Location"]) for one in found)
    return {one: tuple(place for other, place in pairs if other == one) for one in types}


async def told(session: Session, types: Collection[str]) -> AccountFacts:
    """All of that. An instance type that the region has not is left out."""
    found = await asyncio.gather(zones(session), principal(session), cards(session, types), offered(session, types))
    return AccountFacts(*found)
