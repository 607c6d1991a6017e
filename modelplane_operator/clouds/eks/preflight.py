"""What AWS says before anything is made: its versions and machines, and what the account may have."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Awaitable, Collection, Mapping
from typing import Any, Final, TypeVar

from kubeloop.errors import ApiError, NotFound, ServerFault
from modelplane_operator.clouds.eks.render import quotas
from modelplane_operator.clouds.eks.session import Session
from modelplane_operator.clouds.resources import Offer, Quota, Reservation

T = TypeVar("T")

UNSUPPORTED: Final = "UNSUPPORTED"
UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError)
"""What comes of an answer that is not what it should be: it speaks against no cluster."""
_RUNNING: Final = {"Name": "instance-state-name", "Values": ["pending", "running"]}


async def offered(session: Session, machines: Collection[str], reservations: Collection[str]) -> Offer:
    """`machines`: instance types; `reservations`: ids. What may not be asked is told, and nothing follows from it."""
    refused: list[str] = []

    async def told(question: Awaitable[Mapping[str, T]]) -> Mapping[str, T]:
        try:
            return await question
        except ApiError as error:
            refused.append(str(error))
        except UNREADABLE as error:
            refused.append(f"an answer of AWS that nobody can read: {error!r}")
        return {}

    codes = [quotas.VPCS, quotas.ADDRESSES, quotas.CLUSTERS, *sorted({*map(quotas.quota_of, machines)} - {""})]
    versions, cores, limits, reserved = await asyncio.gather(
        told(_versions(session)),
        told(_cores(session, machines)),
        asyncio.gather(*(told(_quota(session, code)) for code in codes)),
        asyncio.gather(*(told(_reservation(session, one)) for one in reservations)),
    )
    return Offer(
        frozenset(version for version, status in versions.items() if status != UNSUPPORTED),
        dict(ChainMap(*map(dict, limits))),
        cores,
        reservations=dict(ChainMap(*map(dict, reserved))),
        unasked=tuple(sorted({*refused})),
    )


async def _versions(session: Session) -> Mapping[str, str]:
    """Of Kubernetes, and how far each is supported."""
    found = await session.list("eks", "describe_cluster_versions", "clusterVersions", {})
    return {one["clusterVersion"]: one.get("versionStatus", "") for one in found}


async def _cores(session: Session, machines: Collection[str]) -> Mapping[str, int]:
    asked = {"Filters": [{"Name": "instance-type", "Values": sorted(machines)}]}
    found = await session.list("ec2", "describe_instance_types", "InstanceTypes", asked)
    return {one["InstanceType"]: int(one.get("VCpuInfo", {}).get("DefaultVCpus", 0)) for one in found}


async def _quota(session: Session, code: str) -> Mapping[str, Quota]:
    """The account's own, or AWS's where that was never changed."""
    asked = {"ServiceCode": quotas.SERVICES[code], "QuotaCode": code}
    try:
        answer = await session.call("service-quotas", "get_service_quota", asked)
    except NotFound:
        answer = await session.call("service-quotas", "get_aws_default_service_quota", asked)
    said = answer["Quota"]
    if "Value" not in said:
        raise ServerFault(f"quota {code} is not told: {said.get('ErrorReason', {}).get('ErrorMessage', '')}")
    name = f"{said.get('QuotaName', '')} ({code})".strip()
    return {code: Quota(name, float(said["Value"]), await _used(session, code))}


async def _used(session: Session, code: str) -> float:
    """How much the account has. Of ordinary machines there may be thousands, and a cluster needs two more: they are not
    counted."""
    match code:
        case quotas.VPCS:
            return len(await session.list("ec2", "describe_vpcs", "Vpcs", {}))
        case quotas.ADDRESSES:
            return len(await session.list("ec2", "describe_addresses", "Addresses", {}))
        case quotas.CLUSTERS:
            return len(await session.list("eks", "list_clusters", "clusters", {}))
        case quotas.STANDARD:
            return 0.0
        case _:
            return await _cores_that_run(session, code)


async def _cores_that_run(session: Session, code: str) -> float:
    """Those on demand: others are in quotas of their own."""
    letters = next(one.letters for one in quotas.FAMILIES if one.quota == code)
    of_family = {"Name": "instance-type", "Values": [f"{one}*" for one in letters]}
    found = await session.list("ec2", "describe_instances", "Reservations", {"Filters": [_RUNNING, of_family]})
    machines = (one for part in found for one in part["Instances"])
    return sum(_cores_of(one) for one in machines if not one.get("InstanceLifecycle"))


def _cores_of(machine: Mapping[str, Any]) -> int:
    said = machine.get("CpuOptions", {})
    return int(said.get("CoreCount", 0)) * int(said.get("ThreadsPerCore", 1))


async def _reservation(session: Session, name: str) -> Mapping[str, Reservation | None]:
    """One at a time: a single one that does not exist fails the question for all."""
    try:
        answer = await session.call("ec2", "describe_capacity_reservations", {"CapacityReservationIds": [name]})
    except NotFound:
        return {name: None}
    for one in answer["CapacityReservations"]:
        zone, count = one.get("AvailabilityZone", ""), int(one.get("TotalInstanceCount", 0))
        return {name: Reservation(one["InstanceType"], zone, count, one["State"])}
    return {name: None}
