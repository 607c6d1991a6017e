"""Build the calls that create, update and delete resources on AWS, from a table with a row for each kind.

The operator's IAM policy is generated from this table and from the one in `lists`. `Aws` sends the requests; nothing
here does I/O. A kind whose calls do not fit a row (rules, load balancers, node groups) has a case of its own in
`creation` or `deletion`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from modelplane_operator.api import labels
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.resources import DesiredResource, ExistingResource, Owner

MANAGED_BY: Final = f"{labels.PREFIX}managed-by"
"""Tag of all resources that the operator creates."""
CLUSTER: Final = f"{labels.PREFIX}cluster"
"""Tag with the name of the cluster, for people."""
UID: Final = f"{labels.PREFIX}uid"
"""Tag with the uid of the owner, by which resources are recognized."""
RESOURCE: Final = f"{labels.PREFIX}resource"
JSON: Final = frozenset({"AssumeRolePolicyDocument", "PolicyDocument"})
"""Parameters that are IAM documents and are sent as text."""

Parameters = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a service of AWS."""

    service: str
    """Name of the service in the SDK."""
    operation: str
    """Name of the operation in the SDK."""
    parameters: Parameters
    """Parameters as the SDK takes them."""


Tagging = Literal["", "specification", "list", "map"]
"""The format in which a service takes tags at creation."""


@dataclass(frozen=True, slots=True)
class Row:
    """The operations that create and delete a kind of resource."""

    create: str
    """Operation that creates the resource; empty if there is none, or if it depends on the parameters."""
    delete: str
    """Operation that deletes the resource; empty if it depends on the id."""
    answer: tuple[str, ...] = ()
    """Path of the id in the response."""
    tagged: Tagging = ""
    """Format of the tags; empty if the service takes none at creation."""
    tagged_as: str = ""
    """EC2's name of the kind in a tag specification."""
    token: str = ""
    """Name of the idempotency parameter."""
    later: frozenset[str] = frozenset()
    """Parameters that creation does not accept; an update sets them."""
    by: str = ""
    """Parameter of the deletion that takes the id."""


def tags(owner: Owner, desired: DesiredResource) -> dict[str, str]:
    """Return the tags of a resource: the owner's, its key, and the ones from its parameters."""
    own = {MANAGED_BY: "modelplane", CLUSTER: owner.cluster, UID: owner.uid, RESOURCE: desired.key}
    others: Mapping[str, str] = desired.parameters.get("Tags", {})
    return {"Name": f"{owner.cluster}/{desired.key}", **others, **own}


def _ec2_row(create: str, delete: str, by: str, tagged_as: str, *answer: str, token: str = "", later: str = "") -> Row:
    """Return the row of a kind of EC2. All of them take tags by a specification."""
    return Row(create, delete, answer, "specification", tagged_as, token, frozenset(later.split()), by)


_CLIENT: Final = "ClientToken"
_REQUEST: Final = "clientRequestToken"
ROWS: Final[Mapping[str, Row]] = {
    k.VPC: _ec2_row(
        "create_vpc", "delete_vpc", "VpcId", "vpc", "Vpc", "VpcId", later="EnableDnsSupport EnableDnsHostnames"
    ),
    k.SUBNET: _ec2_row(
        "create_subnet", "delete_subnet", "SubnetId", "subnet", "Subnet", "SubnetId", later="MapPublicIpOnLaunch"
    ),
    k.INTERNET_GATEWAY: _ec2_row(
        "create_internet_gateway",
        "delete_internet_gateway",
        "InternetGatewayId",
        "internet-gateway",
        "InternetGateway",
        "InternetGatewayId",
    ),
    k.ATTACHMENT: Row("attach_internet_gateway", "detach_internet_gateway"),
    k.ADDRESS: _ec2_row("allocate_address", "release_address", "AllocationId", "elastic-ip", "AllocationId"),
    k.NAT_GATEWAY: _ec2_row(
        "create_nat_gateway",
        "delete_nat_gateway",
        "NatGatewayId",
        "natgateway",
        "NatGateway",
        "NatGatewayId",
        token=_CLIENT,
    ),
    k.ROUTE_TABLE: _ec2_row(
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
    k.SECURITY_GROUP: _ec2_row(
        "create_security_group", "delete_security_group", "GroupId", "security-group", "GroupId"
    ),
    k.RULE: Row("", "", tagged="specification", tagged_as="security-group-rule"),
    k.LAUNCH_TEMPLATE: _ec2_row(
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
    k.LEFTOVER_GROUP: Row("", "delete_security_group", by="GroupId"),
    k.VOLUME: Row("", "delete_volume", by="VolumeId"),
    k.ACCESS_POINT: Row("", "delete_access_point", by="AccessPointId"),
}
SEPARATOR: Final = "|"
"""Separator in ids that consist of several parts."""
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
"""Parameters that form the id of a resource without an id of its own; its deletion takes the same ones."""


def service_of(kind: str) -> str:
    """Return the SDK's name of the service that a kind belongs to."""
    return kind.partition(".")[0]


def creation(owner: Owner, desired: DesiredResource, token: str) -> Request:
    """Return the call that creates a resource."""
    row = ROWS[desired.kind]
    excluded = {*row.later, "Tags"}
    parameters: Parameters = {
        name: json.dumps(value) if name in JSON else value
        for name, value in desired.parameters.items()
        if name not in excluded
    }
    operation = row.create
    if desired.kind == k.RULE:
        operation = f"authorize_security_group_{parameters.pop('Direction')}"
    if desired.kind == k.NODEGROUP:
        bounds: Mapping[str, int] = parameters.pop("scaling")
        parameters["scalingConfig"] = {**bounds, "desiredSize": parameters.pop("desiredSize")}
        parameters = {name: value for name, value in parameters.items() if value != []}
    if row.token:
        parameters[row.token] = token
    return Request(service_of(desired.kind), operation, {**parameters, **_tag_parameters(row, tags(owner, desired))})


def id_of_created(desired: DesiredResource, answer: Mapping[str, Any]) -> str:
    """Return the id of a created resource from the response."""
    if parts := PARTS.get(desired.kind):
        associated: Mapping[str, Any] = answer.get("association", {})
        values = {**desired.parameters, **associated}
        return SEPARATOR.join(str(values.get(field, "")) for field in parts)
    if desired.kind == k.RULE:
        identifier: str = answer["SecurityGroupRules"][0]["SecurityGroupRuleId"]
        return SEPARATOR.join((desired.parameters["Direction"], desired.parameters["GroupId"], identifier))
    value: Any = answer
    for field in ROWS[desired.kind].answer:
        value = value[field]
    return str(value)


def deletion(existing: ExistingResource) -> Request:
    """Return the call that deletes a resource."""
    row, service = ROWS[existing.kind], service_of(existing.kind)
    if existing.kind == k.RULE:
        direction, group, identifier = existing.id.split(SEPARATOR)
        parameters: Parameters = {"GroupId": group, "SecurityGroupRuleIds": [identifier]}
        return Request(service, f"revoke_security_group_{direction}", parameters)
    if existing.kind == k.LOAD_BALANCER:
        if existing.id.startswith("arn:"):
            return Request("elbv2", "delete_load_balancer", {"LoadBalancerArn": existing.id})
        return Request("elb", "delete_load_balancer", {"LoadBalancerName": existing.id})
    if parts := PARTS.get(existing.kind):
        return Request(service, row.delete, dict(zip(parts, existing.id.split(SEPARATOR), strict=True)))
    return Request(service, row.delete, {row.by: existing.id})


# Updates: one call at a time ----------------------------------------------------------------------------------------


def update(desired: DesiredResource, existing: ExistingResource, changed: Collection[str], token: str) -> Request:
    """Return the call that updates one of the changed parameters, with others that the same call sets."""
    name = min(changed, key=lambda candidate: (_ORDER.get(candidate, 0), candidate))
    return _UPDATES[desired.kind, name](desired, existing, changed, token)


_ORDER = {"version": 1}  # labels and taints come first; a new version replaces the nodes, so it comes last
Update = Callable[[DesiredResource, ExistingResource, Collection[str], str], Request]
"""Function that returns the call for the desired and the existing resource, the changed parameters and a token."""


def _update_vpc(name: str) -> Update:
    """Return the function that updates a DNS attribute of a VPC."""

    def request(desired: DesiredResource, existing: ExistingResource, _: Collection[str], __: str) -> Request:
        """Return the call for one attribute. EC2 changes one of them per call."""
        parameters = {"VpcId": existing.id, name: {"Value": desired.parameters[name]}}
        return Request("ec2", "modify_vpc_attribute", parameters)

    return request


def _update_subnet(desired: DesiredResource, existing: ExistingResource, _: Collection[str], __: str) -> Request:
    """Return the call that assigns public addresses to new nodes of a subnet."""
    parameters = {"SubnetId": existing.id, "MapPublicIpOnLaunch": {"Value": desired.parameters["MapPublicIpOnLaunch"]}}
    return Request("ec2", "modify_subnet_attribute", parameters)


def _replace_route(desired: DesiredResource, _: ExistingResource, __: Collection[str], ___: str) -> Request:
    """Return the call that sends a route through another gateway."""
    return Request("ec2", "replace_route", {**desired.parameters})


def _update_trust_policy(desired: DesiredResource, existing: ExistingResource, _: Collection[str], __: str) -> Request:
    """Return the call that replaces the services that may assume a role."""
    document = json.dumps(desired.parameters["AssumeRolePolicyDocument"])
    return Request("iam", "update_assume_role_policy", {"RoleName": existing.id, "PolicyDocument": document})


def _update_inline_policy(desired: DesiredResource, _: ExistingResource, __: Collection[str], ___: str) -> Request:
    """Return the call that replaces a role's inline policy; IAM creates and updates by the same call."""
    parameters = {**desired.parameters, "PolicyDocument": json.dumps(desired.parameters["PolicyDocument"])}
    return Request("iam", "put_role_policy", parameters)


def _update_cluster_version(
    desired: DesiredResource, existing: ExistingResource, _: Collection[str], token: str
) -> Request:
    """Return the call that upgrades the control plane."""
    version = next_version(str(existing.live["version"]), str(desired.parameters["version"]))
    parameters = {"name": existing.id, "version": version, _REQUEST: token}
    return Request("eks", "update_cluster_version", parameters)


def next_version(live: str, desired: str) -> str:
    """Return the next minor version towards `desired`, since EKS upgrades by one.

    An impossible change, such as a downgrade, is requested as it is, so that EKS explains why not.
    """
    try:
        (major, minor), (to_major, to_minor) = (map(int, text.split(".")[:2]) for text in (live, desired))
    except ValueError:
        return desired
    return f"{major}.{minor + 1}" if major == to_major and to_minor > minor + 1 else desired


def _update_addon(desired: DesiredResource, _: ExistingResource, __: Collection[str], token: str) -> Request:
    """Return the call that changes the configuration of an addon."""
    names = ("clusterName", "addonName", "configurationValues")
    parameters = {name: desired.parameters[name] for name in names}
    # PRESERVE keeps settings that were changed by hand on the addon's pods.
    return Request("eks", "update_addon", {**parameters, "resolveConflicts": "PRESERVE", _REQUEST: token})


def _update_group_config(
    desired: DesiredResource, existing: ExistingResource, changed: Collection[str], token: str
) -> Request:
    """Return the call that updates the scaling, labels and taints of a node group."""
    request = {**_group_id(desired), _REQUEST: token}
    parameters, live = desired.parameters, existing.live
    if "scaling" in changed:
        min_size, max_size = parameters["scaling"]["minSize"], parameters["scaling"]["maxSize"]
        # Keep the size that the autoscaler has chosen, as far as the bounds allow.
        size = min(max(int(live.get("desiredSize", min_size)), min_size), max_size)
        request["scalingConfig"] = {"minSize": min_size, "maxSize": max_size, "desiredSize": size}
    if "labels" in changed:
        removed = sorted(live["labels"].keys() - parameters["labels"].keys())
        request["labels"] = {
            "addOrUpdateLabels": parameters["labels"],
            **({"removeLabels": removed} if removed else {}),
        }
    if "taints" in changed:
        removed = [taint for taint in live["taints"] if taint not in parameters["taints"]]
        request["taints"] = {
            **({"addOrUpdateTaints": parameters["taints"]} if parameters["taints"] else {}),
            **({"removeTaints": removed} if removed else {}),
        }
    return Request("eks", "update_nodegroup_config", request)


def _update_group_version(desired: DesiredResource, _: ExistingResource, __: Collection[str], token: str) -> Request:
    """Return the call that upgrades a group, which replaces its nodes."""
    parameters = {**_group_id(desired), "version": desired.parameters["version"], _REQUEST: token}
    return Request("eks", "update_nodegroup_version", parameters)


def _group_id(desired: DesiredResource) -> Parameters:
    """Return the parameters that identify a node group."""
    return {name: desired.parameters[name] for name in ("clusterName", "nodegroupName")}


_UPDATES: Final[Mapping[tuple[str, str], Update]] = {
    (k.VPC, "EnableDnsSupport"): _update_vpc("EnableDnsSupport"),
    (k.VPC, "EnableDnsHostnames"): _update_vpc("EnableDnsHostnames"),
    (k.SUBNET, "MapPublicIpOnLaunch"): _update_subnet,
    (k.ROUTE, "NatGatewayId"): _replace_route,
    (k.ROLE, "AssumeRolePolicyDocument"): _update_trust_policy,
    (k.INLINE_POLICY, "PolicyDocument"): _update_inline_policy,
    (k.CLUSTER, "version"): _update_cluster_version,
    (k.ADDON, "configurationValues"): _update_addon,
    **dict.fromkeys(((k.NODEGROUP, one) for one in ("scaling", "labels", "taints")), _update_group_config),
    (k.NODEGROUP, "version"): _update_group_version,
}


def _tag_parameters(row: Row, with_tags: Mapping[str, str]) -> Parameters:
    """Return the tags in the format of the service."""
    tag_list = [{"Key": key, "Value": value} for key, value in with_tags.items()]
    match row.tagged:
        case "specification":
            return {"TagSpecifications": [{"ResourceType": row.tagged_as, "Tags": tag_list}]}
        case "list":
            return {"Tags": tag_list}
        case "map":
            return {"tags": {**with_tags}}
        case _:
            return {}
