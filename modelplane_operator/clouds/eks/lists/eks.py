"""The cluster, and all that is within: none of it is told without it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from modelplane_operator.clouds.eks.changes import SEPARATOR
from modelplane_operator.clouds.eks.lists.look import Item, Lister, Look, found
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.plan import part_of
from modelplane_operator.clouds.resources import Found, State

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


async def clusters(look: Look) -> list[Found]:
    """A cluster, and all that is within."""
    answer = await look.one("eks", "describe_cluster", name=look.name)
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
    known = {name: value for name, value in outputs.items() if value}
    live = {"version": item.get("version")}
    state, said = _STATES[item["status"]], _health(item)
    cluster = found(item, k.CLUSTER, look.name, state, key="cluster", outputs=known, live=live, message=said)
    if cluster.owner != look.owner.uid or cluster.state == "Creating":
        return [cluster]
    asked = (part for kinds, part in _WITHIN if {*kinds} & {*look.kinds})
    within = await asyncio.gather(*(part(look) for part in asked))
    return [cluster, *(one for part in within for one in part)]


def _health(item: Item) -> str:
    issues = item.get("health", {}).get("issues", ())
    return "; ".join(f"{one.get('code')}: {one.get('message')}" for one in issues)


async def _described(
    look: Look, each: Iterable[str], operation: str, argument: str, part: str
) -> list[tuple[str, Item]]:
    async def describe(name: str) -> tuple[str, Item | None]:
        answer = await look.one("eks", operation, clusterName=look.name, **{argument: name})
        return name, answer[part] if answer else None

    return [(name, item) for name, item in await asyncio.gather(*map(describe, each)) if item is not None]


async def _groups(look: Look) -> list[Found]:
    listed = await look.all("eks", "list_nodegroups", "nodegroups", clusterName=look.name)
    seen: list[Found] = []
    for name, item in await _described(look, listed, "describe_nodegroup", "nodegroupName", "nodegroup"):
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
        number = SEPARATOR.join((look.name, name))
        seen.append(found(item, k.NODEGROUP, number, _STATES[item["status"]], live=live, message=_health(item)))
    return seen


async def _addons(look: Look) -> list[Found]:
    listed = await look.all("eks", "list_addons", "addons", clusterName=look.name)
    return [
        found(
            item,
            k.ADDON,
            SEPARATOR.join((look.name, name)),
            _STATES[item["status"]],
            live={"configurationValues": item.get("configurationValues") or ""},
            message=_health(item),
        )
        for name, item in await _described(look, listed, "describe_addon", "addonName", "addon")
    ]


async def _entries(look: Look) -> list[Found]:
    """Ours; EKS makes others for the roles of nodes."""
    listed = await look.all("eks", "list_access_entries", "accessEntries", clusterName=look.name)
    seen: list[Found] = []
    for who, item in await _described(look, listed, "describe_access_entry", "principalArn", "accessEntry"):
        entry = found(item, k.ACCESS_ENTRY, SEPARATOR.join((look.name, who)), "Ready")
        if entry.owner != look.owner.uid:
            continue
        seen.append(entry)
        policies = await look.all(
            "eks",
            "list_associated_access_policies",
            "associatedAccessPolicies",
            clusterName=look.name,
            principalArn=who,
        )
        for one in policies:
            number = SEPARATOR.join((look.name, who, one["policyArn"]))
            seen.append(Found(f"access-policy-{part_of(who)}", k.ACCESS_POLICY, number, "Ready", entry.owner))
    return seen


async def _identities(look: Look) -> list[Found]:
    listed = await look.all("eks", "list_pod_identity_associations", "associations", clusterName=look.name)
    each = [one["associationId"] for one in listed]
    described = await _described(look, each, "describe_pod_identity_association", "associationId", "association")
    return [found(item, k.POD_IDENTITY, SEPARATOR.join((look.name, name)), "Ready") for name, item in described]


_WITHIN: Final[tuple[tuple[tuple[str, ...], Lister], ...]] = (
    ((k.NODEGROUP,), _groups),
    ((k.ADDON,), _addons),
    ((k.ACCESS_ENTRY, k.ACCESS_POLICY), _entries),
    ((k.POD_IDENTITY,), _identities),
)
