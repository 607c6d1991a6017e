"""Query AWS before anything is created: versions, machine types, quotas and reservations."""

from __future__ import annotations

import asyncio
from collections import ChainMap
from collections.abc import Awaitable, Collection, Mapping
from typing import Final, TypeVar

from kubeloop.errors import ApiError, NotFound, ServerFault
from modelplane_operator.clouds.eks.render import quotas
from modelplane_operator.clouds.eks.session import Session
from modelplane_operator.clouds.resources import Offer, Quota, Reservation

T = TypeVar("T")

UNSUPPORTED: Final = "UNSUPPORTED"
"""Status of versions that AWS no longer accepts for new clusters."""
UNREADABLE: Final = (AttributeError, LookupError, TypeError, ValueError)
"""Errors raised by a malformed response, which never blocks a cluster."""
_RUNNING: Final = {"Name": "instance-state-name", "Values": ["pending", "running"]}
"""Filter of the machines that count towards a quota."""


async def fetch_offer(session: Session, machines: Collection[str], reservations: Collection[str]) -> Offer:
    """Return the offer.

    `machines` are instance types, `reservations` ids. A rejected query is reported and has no effect.
    """
    rejections: list[str] = []

    async def answer_or_empty(question: Awaitable[Mapping[str, T]]) -> Mapping[str, T]:
        """Return the answer to a query; an empty one if it was rejected or cannot be parsed."""
        try:
            return await question
        except ApiError as error:
            rejections.append(str(error))
        except UNREADABLE as error:
            rejections.append(f"AWS gave an unreadable answer: {error!r}")
        return {}

    codes = [quotas.VPCS, quotas.ADDRESSES, quotas.CLUSTERS, *sorted({*map(quotas.quota_of, machines)} - {""})]
    versions, cores, limits, found_reservations = await asyncio.gather(
        answer_or_empty(_read_versions(session)),
        answer_or_empty(_read_cores(session, machines)),
        asyncio.gather(*(answer_or_empty(_read_quota(session, code)) for code in codes)),
        asyncio.gather(*(answer_or_empty(_read_reservation(session, reservation)) for reservation in reservations)),
    )
    return Offer(
        frozenset(version for version, status in versions.items() if status != UNSUPPORTED),
        dict(ChainMap(*map(dict, limits))),
        cores,
        reservations=dict(ChainMap(*map(dict, found_reservations))),
        unasked=tuple(sorted({*rejections})),
    )


async def _read_versions(session: Session) -> Mapping[str, str]:
    """Return the versions of Kubernetes with their support status."""
    versions = await session.list("eks", "describe_cluster_versions", "clusterVersions", {})
    return {version["clusterVersion"]: version.get("versionStatus", "") for version in versions}


async def _read_cores(session: Session, machines: Collection[str]) -> Mapping[str, int]:
    """Return the number of vCPUs by instance type."""
    query = {"Filters": [{"Name": "instance-type", "Values": sorted(machines)}]}
    types = await session.list("ec2", "describe_instance_types", "InstanceTypes", query)
    return {
        instance_type["InstanceType"]: int(instance_type.get("VCpuInfo", {}).get("DefaultVCpus", 0))
        for instance_type in types
    }


async def _read_quota(session: Session, code: str) -> Mapping[str, Quota]:
    """Return the account's quota, or AWS's default if it was never changed.

    Raise ServerFault if AWS reports no value.
    """
    query = {"ServiceCode": quotas.SERVICES[code], "QuotaCode": code}
    try:
        answer = await session.call("service-quotas", "get_service_quota", query)
    except NotFound:
        answer = await session.call("service-quotas", "get_aws_default_service_quota", query)
    quota = answer["Quota"]
    if "Value" not in quota:
        raise ServerFault(f"AWS does not report quota {code}: {quota.get('ErrorReason', {}).get('ErrorMessage', '')}")
    name = f"{quota.get('QuotaName', '')} ({code})".strip()
    return {code: Quota(name, float(quota["Value"]), await _read_usage(session, code))}


async def _read_usage(session: Session, code: str) -> float:
    """Return the usage of a quota.

    Standard machines are not counted: there may be thousands, and a cluster adds two.
    """
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
            return await _count_running_cores(session, code)


async def _count_running_cores(session: Session, code: str) -> float:
    """Return the vCPUs of running on-demand machines of a quota. Others count towards other quotas."""
    letters = next(item.letters for item in quotas.FAMILIES if item.quota == code)
    family_filter = {"Name": "instance-type", "Values": [f"{item}*" for item in letters]}
    reservations = await session.list(
        "ec2", "describe_instances", "Reservations", {"Filters": [_RUNNING, family_filter]}
    )
    machines = (item for reservation in reservations for item in reservation["Instances"])
    processors = (item.get("CpuOptions", {}) for item in machines if not item.get("InstanceLifecycle"))
    return sum(int(cpu.get("CoreCount", 0)) * int(cpu.get("ThreadsPerCore", 1)) for cpu in processors)


async def _read_reservation(session: Session, name: str) -> Mapping[str, Reservation | None]:
    """Query one reservation. In a query for several, a missing one would fail all."""
    try:
        answer = await session.call("ec2", "describe_capacity_reservations", {"CapacityReservationIds": [name]})
    except NotFound:
        return {name: None}
    for reservation in answer["CapacityReservations"]:
        zone, count = reservation.get("AvailabilityZone", ""), int(reservation.get("TotalInstanceCount", 0))
        return {name: Reservation(reservation["InstanceType"], zone, count, reservation["State"])}
    return {name: None}
