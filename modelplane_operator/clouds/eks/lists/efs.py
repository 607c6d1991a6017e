"""List the file system, its mount targets, and the access points that volumes have created."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

from modelplane_operator.clouds.eks.changes import RESOURCE
from modelplane_operator.clouds.eks.lists.look import ListContext, tags_of, to_resource
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.resources import ExistingResource, State

_LIFE: Mapping[str, State | None] = {
    "available": "Ready",
    "creating": "Creating",
    "deleted": None,
    "deleting": "Deleting",
    "error": "Failed",
    "updating": "Updating",
}
"""States by AWS's `LifeCycleState`; None for a deleted resource that is still listed."""


async def files(context: ListContext) -> list[ExistingResource]:
    """List file systems with their mount targets and access points."""
    listing = await context.all(
        "efs", "describe_file_systems", "FileSystems", CreationToken=context.name_on_cloud("efs")
    )
    resources: list[ExistingResource] = []
    for item in listing:
        state = _LIFE.get(item["LifeCycleState"], "Creating")
        if state is None:
            continue
        system = to_resource(item, k.FILE_SYSTEM, item["FileSystemId"], state, key="efs-filesystem")
        resources.append(system)
        resources.extend([resource async for resource in _list_contents(context, system)])
    return resources


async def _list_contents(context: ListContext, system: ExistingResource) -> AsyncIterator[ExistingResource]:
    """Yield the mount targets and the access points of a file system."""
    subnets = {
        subnet_item["SubnetId"]: tags_of(subnet_item).get(RESOURCE, "")
        for subnet_item in await context.list_tagged("describe_subnets", "Subnets")
    }
    for item in await context.all("efs", "describe_mount_targets", "MountTargets", FileSystemId=system.id):
        state = _LIFE.get(item["LifeCycleState"], "Creating")
        subnet: str = subnets.get(item["SubnetId"]) or item["SubnetId"]
        key = f"efs-mount-target-{subnet.rpartition('-')[2]}"
        if state is not None:
            yield ExistingResource(key, k.MOUNT_TARGET, item["MountTargetId"], state, system.owner)
    for item in await context.all("efs", "describe_access_points", "AccessPoints", FileSystemId=system.id):
        state = _LIFE.get(item["LifeCycleState"], "Creating")
        if state is not None:
            access_point = item["AccessPointId"]
            yield ExistingResource(
                access_point, k.ACCESS_POINT, access_point, state, "", swept=system.owner == context.owner.uid
            )
