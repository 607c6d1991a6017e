"""The file system, where nodes mount it, and what volumes have made of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from modelplane_operator.clouds.eks.changes import RESOURCE
from modelplane_operator.clouds.eks.lists.look import Look, found, tags_of
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.resources import Found, State

_LIFE: Mapping[str, State | None] = {
    "available": "Ready",
    "creating": "Creating",
    "deleted": None,
    "deleting": "Deleting",
    "error": "Failed",
    "updating": "Updating",
}


async def files(look: Look) -> list[Found]:
    listed = await look.all("efs", "describe_file_systems", "FileSystems", CreationToken=look.named("efs"))
    seen: list[Found] = []
    for item in listed:
        state = _LIFE.get(item["LifeCycleState"], "Creating")
        if state is None:
            continue
        system = found(item, k.FILE_SYSTEM, item["FileSystemId"], state, key="efs-filesystem")
        seen.append(system)
        seen.extend([one async for one in _mounts(look, system)])
    return seen


async def _mounts(look: Look, system: Found) -> AsyncIterator[Found]:
    subnets = {
        one["SubnetId"]: tags_of(one).get(RESOURCE, "") for one in await look.tagged("describe_subnets", "Subnets")
    }
    for item in await look.all("efs", "describe_mount_targets", "MountTargets", FileSystemId=system.id):
        state = _LIFE.get(item["LifeCycleState"], "Creating")
        subnet: str = subnets.get(item["SubnetId"]) or item["SubnetId"]
        key = f"efs-mount-target-{subnet.rpartition('-')[2]}"
        if state is not None:
            yield Found(key, k.MOUNT_TARGET, item["MountTargetId"], state, system.owner)
    for item in await look.all("efs", "describe_access_points", "AccessPoints", FileSystemId=system.id):
        state = _LIFE.get(item["LifeCycleState"], "Creating")
        if state is not None:
            number = item["AccessPointId"]
            yield Found(number, k.ACCESS_POINT, number, state, "", swept=system.owner == look.owner.uid)
