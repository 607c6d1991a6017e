"""The calls that change something, a row for each kind: what is asked for, from the parameters that a resource has.

IAM policies for the operator are made from this table, and from that in `lists`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from modelplane_operator.api import labels
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.resources import Found, Owner, Wanted

MANAGED_BY: Final = f"{labels.PREFIX}managed-by"
CLUSTER: Final = f"{labels.PREFIX}cluster"
UID: Final = f"{labels.PREFIX}uid"
RESOURCE: Final = f"{labels.PREFIX}resource"
JSON: Final = frozenset({"AssumeRolePolicyDocument", "PolicyDocument"})
"""Parameters that are documents of IAM, and travel as text."""

Parameters = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """What to ask which service for."""

    service: str
    operation: str
    parameters: Parameters


Tagging = Literal["", "specification", "list", "map"]
"""How a service takes tags with a creation."""


@dataclass(frozen=True, slots=True)
class Row:
    """How a kind is made and taken away."""

    create: str
    delete: str
    answer: tuple[str, ...] = ()
    """The path of the id in the answer."""
    tagged: Tagging = ""
    tagged_as: str = ""
    """What EC2 calls it in a tag specification."""
    token: str = ""
    """The parameter that tells a repeated call."""
    later: frozenset[str] = frozenset()
    """Parameters that the creation does not take: they are set by an update."""
    by: str = ""
    """The parameter of the deletion that the id goes into."""


def tags(owner: Owner, wanted: Wanted) -> dict[str, str]:
    own = {MANAGED_BY: "modelplane", CLUSTER: owner.cluster, UID: owner.uid, RESOURCE: wanted.key}
    others: Mapping[str, str] = wanted.parameters.get("Tags", {})
    return {"Name": f"{owner.cluster}/{wanted.key}", **others, **own}


def _ec2(create: str, delete: str, by: str, tagged_as: str, *answer: str, token: str = "", later: str = "") -> Row:
    return Row(create, delete, answer, "specification", tagged_as, token, frozenset(later.split()), by)


_CLIENT: Final = "ClientToken"
_REQUEST: Final = "clientRequestToken"
ROWS: Final[Mapping[str, Row]] = {
    k.VPC: _ec2(
        "create_vpc", "delete_vpc", "VpcId", "vpc", "Vpc", "VpcId", later="EnableDnsSupport EnableDnsHostnames"
    ),
    k.SUBNET: _ec2(
        "create_subnet", "delete_subnet", "SubnetId", "subnet", "Subnet", "SubnetId", later="MapPublicIpOnLaunch"
    ),
    k.INTERNET_GATEWAY: _ec2(
        "create_internet_gateway",
        "delete_internet_gateway",
        "InternetGatewayId",
        "internet-gateway",
        "InternetGateway",
        "InternetGatewayId",
    ),
    k.ATTACHMENT: Row("attach_internet_gateway", "detach_internet_gateway"),
    k.ADDRESS: _ec2("allocate_address", "release_address", "AllocationId", "elastic-ip", "AllocationId"),
    k.NAT_GATEWAY: _ec2(
        "create_nat_gateway",
        "delete_nat_gateway",
        "NatGatewayId",
        "natgateway",
        "NatGateway",
        "NatGatewayId",
        token=_CLIENT,
    ),
    k.ROUTE_TABLE: _ec2(
        "create_route_table",
        "delete_route_table",
        "RouteTableId",
        "route-table",
        "RouteTable",
        "RouteTableId",
        token=_CLIENT,
    ),
    k.ROUTE: Row("create_route", "delete_route"),
    k.ASSOCIATION: Row("associate_route_table", "disassociate_route_table", ("AssociationId",), by="AssociationId"),
    k.SECURITY_GROUP: _ec2("create_security_group", "delete_security_group", "GroupId", "security-group", "GroupId"),
    k.RULE: Row("", "", tagged="specification", tagged_as="security-group-rule"),
    k.LAUNCH_TEMPLATE: _ec2(
        "create_launch_template",
        "delete_launch_template",
        "LaunchTemplateId",
        "launch-template",
        "LaunchTemplate",
        "LaunchTemplateId",
        token=_CLIENT,
    ),
    k.ROLE: Row("create_role", "delete_role", ("Role", "RoleName"), "list", by="RoleName"),
    k.ROLE_POLICY: Row("attach_role_policy", "detach_role_policy"),
    k.INLINE_POLICY: Row("put_role_policy", "delete_role_policy"),
    k.CLUSTER: Row("create_cluster", "delete_cluster", ("cluster", "name"), "map", token=_REQUEST, by="name"),
    k.ACCESS_ENTRY: Row("create_access_entry", "delete_access_entry", tagged="map", token=_REQUEST),
    k.ACCESS_POLICY: Row("associate_access_policy", "disassociate_access_policy"),
    k.ADDON: Row("create_addon", "delete_addon", tagged="map", token=_REQUEST),
    k.NODEGROUP: Row("create_nodegroup", "delete_nodegroup", tagged="map", token=_REQUEST),
    k.POD_IDENTITY: Row(
        "create_pod_identity_association", "delete_pod_identity_association", tagged="map", token=_REQUEST
    ),
    k.FILE_SYSTEM: Row("create_file_system", "delete_file_system", ("FileSystemId",), "list", by="FileSystemId"),
    k.MOUNT_TARGET: Row("create_mount_target", "delete_mount_target", ("MountTargetId",), by="MountTargetId"),
    k.LOAD_BALANCER: Row("", ""),
    k.INTERFACE: Row("", "delete_network_interface", by="NetworkInterfaceId"),
    k.LEFT_GROUP: Row("", "delete_security_group", by="GroupId"),
    k.VOLUME: Row("", "delete_volume", by="VolumeId"),
    k.ACCESS_POINT: Row("", "delete_access_point", by="AccessPointId"),
}
SEPARATOR: Final = "|"
"""Between the parts of an id that has several."""
PARTS: Final[Mapping[str, tuple[str, ...]]] = {
    k.ATTACHMENT: ("InternetGatewayId", "VpcId"),
    k.ROUTE: ("RouteTableId", "DestinationCidrBlock"),
    k.ROLE_POLICY: ("RoleName", "PolicyArn"),
    k.INLINE_POLICY: ("RoleName", "PolicyName"),
    k.ACCESS_ENTRY: ("clusterName", "principalArn"),
    k.ACCESS_POLICY: ("clusterName", "principalArn", "policyArn"),
    k.ADDON: ("clusterName", "addonName"),
    k.NODEGROUP: ("clusterName", "nodegroupName"),
    k.POD_IDENTITY: ("clusterName", "associationId"),
}
"""What has no id of its own is told by the parameters that its deletion takes."""


def service_of(kind: str) -> str:
    return kind.partition(".")[0]


def creation(owner: Owner, wanted: Wanted, token: str) -> Request:
    """The call that makes a resource."""
    row = ROWS[wanted.kind]
    left_out = {*row.later, "Tags"}
    said: Parameters = {
        name: json.dumps(value) if name in JSON else value
        for name, value in wanted.parameters.items()
        if name not in left_out
    }
    operation = row.create
    if wanted.kind == k.RULE:
        operation = f"authorize_security_group_{said.pop('Direction')}"
    if wanted.kind == k.NODEGROUP:
        bounds: Mapping[str, int] = said.pop("scaling")
        said["scalingConfig"] = {**bounds, "desiredSize": said.pop("desiredSize")}
        said = {name: value for name, value in said.items() if value != []}
    if row.token:
        said[row.token] = token
    return Request(service_of(wanted.kind), operation, {**said, **_tagged(row, tags(owner, wanted))})


def made(wanted: Wanted, answer: Mapping[str, Any]) -> str:
    """The id of what an answer says to have made."""
    if parts := PARTS.get(wanted.kind):
        associated: Mapping[str, Any] = answer.get("association", {})
        known = {**wanted.parameters, **associated}
        return SEPARATOR.join(str(known.get(part, "")) for part in parts)
    if wanted.kind == k.RULE:
        number: str = answer["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        return SEPARATOR.join((wanted.parameters["Direction"], wanted.parameters["GroupId"], number))
    found: Any = answer
    for part in ROWS[wanted.kind].answer:
        found = found[part]
    return str(found)


def deletion(found: Found) -> Request:
    """The call that takes a resource away."""
    row, service = ROWS[found.kind], service_of(found.kind)
    if found.kind == k.RULE:
        direction, group, number = found.id.split(SEPARATOR)
        said: Parameters = {"GroupId": group, "SecurityGroupRuleIds": [number]}
        return Request(service, f"revoke_security_group_{direction}", said)
    if found.kind == k.LOAD_BALANCER:
        if found.id.startswith("arn:"):
            return Request("elbv2", "delete_load_balancer", {"LoadBalancerArn": found.id})
        return Request("elb", "delete_load_balancer", {"LoadBalancerName": found.id})
    if parts := PARTS.get(found.kind):
        return Request(service, row.delete, dict(zip(parts, found.id.split(SEPARATOR), strict=True)))
    return Request(service, row.delete, {row.by: found.id})


# Updates: the first that is due ---------------------------------------------------------------------------------------


def update(wanted: Wanted, found: Found, changed: Collection[str], token: str) -> Request:
    """The call that brings one of the changed parameters in line, and what goes with it."""
    name = min(changed, key=lambda one: (_ORDER.get(one, 0), one))
    return _UPDATES[wanted.kind, name](wanted, found, changed, token)


_ORDER = {"version": 1}  # a node group is told apart first, and replaces its nodes last
Update = Callable[[Wanted, Found, Collection[str], str], Request]


def _vpc(name: str) -> Update:
    def request(wanted: Wanted, found: Found, _: Collection[str], __: str) -> Request:
        said = {"VpcId": found.id, name: {"Value": wanted.parameters[name]}}
        return Request("ec2", "modify_vpc_attribute", said)

    return request


def _subnet(wanted: Wanted, found: Found, _: Collection[str], __: str) -> Request:
    said = {"SubnetId": found.id, "MapPublicIpOnLaunch": {"Value": wanted.parameters["MapPublicIpOnLaunch"]}}
    return Request("ec2", "modify_subnet_attribute", said)


def _route(wanted: Wanted, _: Found, __: Collection[str], ___: str) -> Request:
    return Request("ec2", "replace_route", {**wanted.parameters})


def _trust(wanted: Wanted, found: Found, _: Collection[str], __: str) -> Request:
    document = json.dumps(wanted.parameters["AssumeRolePolicyDocument"])
    return Request("iam", "update_assume_role_policy", {"RoleName": found.id, "PolicyDocument": document})


def _inline(wanted: Wanted, _: Found, __: Collection[str], ___: str) -> Request:
    said = {**wanted.parameters, "PolicyDocument": json.dumps(wanted.parameters["PolicyDocument"])}
    return Request("iam", "put_role_policy", said)


def _cluster_version(wanted: Wanted, found: Found, _: Collection[str], token: str) -> Request:
    version = next_version(str(found.live["version"]), str(wanted.parameters["version"]))
    said = {"name": found.id, "version": version, _REQUEST: token}
    return Request("eks", "update_cluster_version", said)


def next_version(live: str, wanted: str) -> str:
    """EKS takes one minor version at a time. What it cannot do, such as to go back, it is asked for to say why not."""
    try:
        (major, minor), (to_major, to_minor) = (map(int, one.split(".")[:2]) for one in (live, wanted))
    except ValueError:
        return wanted
    return f"{major}.{minor + 1}" if major == to_major and to_minor > minor + 1 else wanted


def _addon(wanted: Wanted, _: Found, __: Collection[str], token: str) -> Request:
    names = ("clusterName", "addonName", "configurationValues")
    said = {name: wanted.parameters[name] for name in names}
    # What somebody has set on its pods by hand is not what is asked for here, and stays.
    return Request("eks", "update_addon", {**said, "resolveConflicts": "PRESERVE", _REQUEST: token})


def _group_config(wanted: Wanted, found: Found, changed: Collection[str], token: str) -> Request:
    said = {**_of_group(wanted), _REQUEST: token}
    parameters, live = wanted.parameters, found.live
    if "scaling" in changed:
        least, most = parameters["scaling"]["minSize"], parameters["scaling"]["maxSize"]
        now = min(max(int(live.get("desiredSize", least)), least), most)  # the autoscaler's, as far as bounds let it
        said["scalingConfig"] = {"minSize": least, "maxSize": most, "desiredSize": now}
    if "labels" in changed:
        gone = sorted(live["labels"].keys() - parameters["labels"].keys())
        said["labels"] = {"addOrUpdateLabels": parameters["labels"], **({"removeLabels": gone} if gone else {})}
    if "taints" in changed:
        gone = [one for one in live["taints"] if one not in parameters["taints"]]
        said["taints"] = {
            **({"addOrUpdateTaints": parameters["taints"]} if parameters["taints"] else {}),
            **({"removeTaints": gone} if gone else {}),
        }
    return Request("eks", "update_nodegroup_config", said)


def _group_version(wanted: Wanted, _: Found, __: Collection[str], token: str) -> Request:
    said = {**_of_group(wanted), "version": wanted.parameters["version"], _REQUEST: token}
    return Request("eks", "update_nodegroup_version", said)


def _of_group(wanted: Wanted) -> Parameters:
    return {name: wanted.parameters[name] for name in ("clusterName", "nodegroupName")}


_UPDATES: Final[Mapping[tuple[str, str], Update]] = {
    (k.VPC, "EnableDnsSupport"): _vpc("EnableDnsSupport"),
    (k.VPC, "EnableDnsHostnames"): _vpc("EnableDnsHostnames"),
    (k.SUBNET, "MapPublicIpOnLaunch"): _subnet,
    (k.ROUTE, "NatGatewayId"): _route,
    (k.ROLE, "AssumeRolePolicyDocument"): _trust,
    (k.INLINE_POLICY, "PolicyDocument"): _inline,
    (k.CLUSTER, "version"): _cluster_version,
    (k.ADDON, "configurationValues"): _addon,
    **dict.fromkeys(((k.NODEGROUP, one) for one in ("scaling", "labels", "taints")), _group_config),
    (k.NODEGROUP, "version"): _group_version,
}


def _tagged(row: Row, with_tags: Mapping[str, str]) -> Parameters:
    listed = [{"Key": key, "Value": value} for key, value in with_tags.items()]
    match row.tagged:
        case "specification":
            return {"TagSpecifications": [{"ResourceType": row.tagged_as, "Tags": listed}]}
        case "list":
            return {"Tags": listed}
        case "map":
            return {"tags": {**with_tags}}
        case _:
            return {}
