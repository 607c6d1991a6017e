"""List the cluster and everything within it, which AWS only lists while the cluster exists.

`LISTERS` has one list for all kinds within a cluster, since each of them needs the cluster's own description first.
Only the requested kinds are listed (`ListContext.kinds`): each item takes a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from modelplane_operator.clouds.eks.changes import SEPARATOR
from modelplane_operator.clouds.eks.lists.look import Item, ListContext, Lister, to_resource
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.plan import part_of
from modelplane_operator.clouds.resources import ExistingResource, State

_STATES: Mapping[str, State] = {
    "ACTIVE": "Ready",
    "CREATE_FAILED": "Failed",
    "CREATING": "Creating",
    "DEGRADED": "Ready",
    "DELETE_FAILED": "Ready",
    "DELETING": "Deleting",
    "FAILED": "Failed",
    "PENDING": "Creating",
    "UPDATE_FAILED": "Ready",
    "UPDATING": "Updating",
}
"""States by AWS's status. A failed update or deletion leaves a resource that works."""


async def clusters(context: ListContext) -> list[ExistingResource]:
    """List a cluster, its node groups, addons, access entries and pod identities."""
    answer = await context.get("eks", "describe_cluster", name=context.name)
    if answer is None:
        return []
    item = answer["cluster"]
    network = item.get("resourcesVpcConfig", {})
    outputs = {
        "arn": item.get("arn"),
        "version": item.get("version"),
        "endpoint": item.get("endpoint"),
        "authority": item.get("certificateAuthority", {}).get("data"),
        "securityGroup": network.get("clusterSecurityGroupId"),
        "vpc": network.get("vpcId"),
    }
    present = {name: value for name, value in outputs.items() if value}
    live = {"version": item.get("version")}
    state, health = _STATES[item["status"]], _health(item)
    cluster = to_resource(
        item, k.CLUSTER, context.name, state, key="cluster", outputs=present, live=live, message=health
    )
    # Nothing is within a cluster that is being created, and the contents of another owner's do not matter.
    if cluster.owner != context.owner.uid or cluster.state == "Creating":
        return [cluster]
    needed = (part for kinds, part in _NESTED_LISTS if {*kinds} & {*context.kinds})
    nested = await asyncio.gather(*(part(context) for part in needed))
    return [cluster, *(resource for part in nested for resource in part)]


def _health(item: Item) -> str:
    """Return the problems that EKS reports about an item, as one message."""
    issues = item.get("health", {}).get("issues", ())
    return "; ".join(f"{issue.get('code')}: {issue.get('message')}" for issue in issues)


async def _describe_all(
    context: ListContext, item_names: Iterable[str], operation: str, argument: str, field: str
) -> list[tuple[str, Item]]:
    """Describe each of the named items in parallel, without the ones that were deleted in the meantime."""

    async def describe(name: str) -> tuple[str, Item | None]:
        """Describe one item; None if it was deleted."""
        answer = await context.get("eks", operation, clusterName=context.name, **{argument: name})
        return name, answer[field] if answer else None

    return [(name, item) for name, item in await asyncio.gather(*map(describe, item_names)) if item is not None]


async def _list_groups(context: ListContext) -> list[ExistingResource]:
    """List node groups, with the properties that can be compared."""
    group_names = await context.all("eks", "list_nodegroups", "nodegroups", clusterName=context.name)
    resources: list[ExistingResource] = []
    for name, item in await _describe_all(context, group_names, "describe_nodegroup", "nodegroupName", "nodegroup"):
        scaling, template = item.get("scalingConfig", {}), item.get("launchTemplate")
        live: dict[str, Any] = {
            "scaling": {"minSize": scaling.get("minSize"), "maxSize": scaling.get("maxSize")},
            "desiredSize": scaling.get("desiredSize"),
            "labels": item.get("labels") or {},
            "taints": item.get("taints") or [],
            "version": item.get("version"),
            **{name: item[name] for name in ("amiType", "capacityType", "instanceTypes", "diskSize") if name in item},
            "subnets": item.get("subnets") or [],
            **({"launchTemplate": {"id": template.get("id"), "version": template.get("version")}} if template else {}),
        }
        identifier = SEPARATOR.join((context.name, name))
        resources.append(
            to_resource(item, k.NODEGROUP, identifier, _STATES[item["status"]], live=live, message=_health(item))
        )
    return resources


async def _list_addons(context: ListContext) -> list[ExistingResource]:
    """List addons."""
    addon_names = await context.all("eks", "list_addons", "addons", clusterName=context.name)
    return [
        to_resource(
            item,
            k.ADDON,
            SEPARATOR.join((context.name, name)),
            _STATES[item["status"]],
            live={"configurationValues": item.get("configurationValues") or ""},
            message=_health(item),
        )
        for name, item in await _describe_all(context, addon_names, "describe_addon", "addonName", "addon")
    ]


async def _list_entries(context: ListContext) -> list[ExistingResource]:
    """List the operator's own access entries and their policies. EKS creates others for the roles of nodes."""
    principals = await context.all("eks", "list_access_entries", "accessEntries", clusterName=context.name)
    resources: list[ExistingResource] = []
    for principal, item in await _describe_all(
        context, principals, "describe_access_entry", "principalArn", "accessEntry"
    ):
        entry = to_resource(item, k.ACCESS_ENTRY, SEPARATOR.join((context.name, principal)), "Ready")
        if entry.owner != context.owner.uid:
            continue
        resources.append(entry)
        policies = await context.all(
            "eks",
            "list_associated_access_policies",
            "associatedAccessPolicies",
            clusterName=context.name,
            principalArn=principal,
        )
        for policy in policies:
            identifier = SEPARATOR.join((context.name, principal, policy["policyArn"]))
            resources.append(
                ExistingResource(
                    f"access-policy-{part_of(principal)}", k.ACCESS_POLICY, identifier, "Ready", entry.owner
                )
            )
    return resources


async def _list_identities(context: ListContext) -> list[ExistingResource]:
    """List pod identity associations."""
    associations = await context.all("eks", "list_pod_identity_associations", "associations", clusterName=context.name)
    ids = [association["associationId"] for association in associations]
    described = await _describe_all(context, ids, "describe_pod_identity_association", "associationId", "association")
    return [
        to_resource(item, k.POD_IDENTITY, SEPARATOR.join((context.name, name)), "Ready") for name, item in described
    ]


_NESTED_LISTS: Final[tuple[tuple[tuple[str, ...], Lister], ...]] = (
    ((k.NODEGROUP,), _list_groups),
    ((k.ADDON,), _list_addons),
    ((k.ACCESS_ENTRY, k.ACCESS_POLICY), _list_entries),
    ((k.POD_IDENTITY,), _list_identities),
)
"""Lists within a cluster, each with the kinds that it returns."""
