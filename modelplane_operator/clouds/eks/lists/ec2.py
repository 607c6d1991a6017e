"""List the network, its gateways, and other resources of EC2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from modelplane_operator.clouds.eks.changes import RESOURCE, SEPARATOR
from modelplane_operator.clouds.eks.lists.look import Item, ListContext, tags_of, to_resource
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.network import ANYWHERE
from modelplane_operator.clouds.resources import ExistingResource, State


@dataclass(frozen=True, slots=True)
class _SimpleList:
    """A kind that a single list of EC2 describes completely."""

    kind: str
    operation: str
    """Operation that lists the kind."""
    items: str
    """Key of the items in the response."""
    id: str
    """Key of the id in an item."""
    states: Mapping[str, State | None] | None = None
    """State by the field `State`; None if the resource is deleted and only listed for a while longer."""
    live: tuple[str, ...] = ()
    """Keys of the parameters that can be compared."""

    async def __call__(self, context: ListContext) -> list[ExistingResource]:
        """List the resources, without deleted ones."""
        return [
            resource
            for item in await context.list_tagged(self.operation, self.items)
            if (resource := self._read(item)) is not None
        ]

    def _read(self, item: Item) -> ExistingResource | None:
        """Return the resource, or None if it is deleted."""
        state: State | None = self.states.get(item["State"], "Creating") if self.states else "Ready"
        if state is None:
            return None
        live = {name: item[name] for name in self.live if name in item}
        return to_resource(item, self.kind, item[self.id], state, live=live, message=item.get("FailureMessage", ""))


_AVAILABLE: Mapping[str, State | None] = {"available": "Ready", "pending": "Creating"}
"""States of VPCs and subnets."""
_NAT: Mapping[str, State | None] = {**_AVAILABLE, "failed": "Failed", "deleting": "Deleting", "deleted": None}
"""States of NAT gateways, which AWS lists for an hour after their deletion."""


async def vpcs(context: ListContext) -> list[ExistingResource]:
    """List VPCs with their DNS settings."""
    resources: list[ExistingResource] = []
    for item in await context.list_tagged("describe_vpcs", "Vpcs"):
        live: dict[str, Any] = {}
        for name in ("EnableDnsSupport", "EnableDnsHostnames"):
            query = {"VpcId": item["VpcId"], "Attribute": name[0].lower() + name[1:]}
            live[name] = (await context.session.call("ec2", "describe_vpc_attribute", query))[name]["Value"]
        resources.append(
            to_resource(item, k.VPC, item["VpcId"], _AVAILABLE.get(item["State"]) or "Creating", live=live)
        )
    return resources


# AWS says `available` for an internet gateway, and `attached` for all other attachments.
_ATTACHED: Mapping[str, State] = {"available": "Ready", "attached": "Ready", "detaching": "Deleting"}


async def gateways(context: ListContext) -> list[ExistingResource]:
    """List internet gateways and their attachments."""
    resources: list[ExistingResource] = []
    for item in await context.list_tagged("describe_internet_gateways", "InternetGateways"):
        gateway = to_resource(item, k.INTERNET_GATEWAY, item["InternetGatewayId"], "Ready")
        resources.append(gateway)
        for attachment in item.get("Attachments", ()):
            if attachment.get("State") != "detached":
                name = SEPARATOR.join((gateway.id, attachment["VpcId"]))
                state = _ATTACHED.get(attachment.get("State", ""), "Creating")
                resources.append(
                    ExistingResource(f"{gateway.key}-attachment", k.ATTACHMENT, name, state, gateway.owner)
                )
    return resources


async def tables(context: ListContext) -> list[ExistingResource]:
    """List route tables, with their default routes and their associations with subnets."""
    subnets = {
        entry["SubnetId"]: tags_of(entry).get(RESOURCE, "")
        for entry in await context.list_tagged("describe_subnets", "Subnets")
    }
    resources: list[ExistingResource] = []
    for item in await context.list_tagged("describe_route_tables", "RouteTables"):
        table = to_resource(item, k.ROUTE_TABLE, item["RouteTableId"], "Ready")
        resources.append(table)
        for route in item.get("Routes", ()):
            if route.get("DestinationCidrBlock") == ANYWHERE:
                key = table.key.replace("route-table", "route-default")
                live = {"NatGatewayId": route["NatGatewayId"]} if "NatGatewayId" in route else {}
                name = SEPARATOR.join((table.id, ANYWHERE))
                resources.append(ExistingResource(key, k.ROUTE, name, "Ready", table.owner, live=live))
        for entry in item.get("Associations", ()):
            state = entry.get("AssociationState", {}).get("State", "associated")
            # The main association belongs to the VPC, and cannot be deleted.
            if entry.get("Main") or "SubnetId" not in entry or state == "disassociated":
                continue
            subnet = subnets.get(entry["SubnetId"], "")
            key = (
                f"{table.key}-association-{subnet.rpartition('-')[2]}" if subnet else f"{table.key}-{entry['SubnetId']}"
            )
            states: Mapping[str, State] = {"associated": "Ready", "disassociating": "Deleting", "failed": "Failed"}
            name = entry["RouteTableAssociationId"]
            resources.append(ExistingResource(key, k.ASSOCIATION, name, states.get(state, "Creating"), table.owner))
    return resources


async def rules(context: ListContext) -> list[ExistingResource]:
    """List the rules of security groups."""
    return [
        to_resource(
            item,
            k.RULE,
            SEPARATOR.join(("egress" if item["IsEgress"] else "ingress", item["GroupId"], item["SecurityGroupRuleId"])),
            "Ready",
        )
        for item in await context.list_tagged("describe_security_group_rules", "SecurityGroupRules")
    ]


SUBNETS: Final = _SimpleList(
    k.SUBNET, "describe_subnets", "Subnets", "SubnetId", _AVAILABLE, live=("MapPublicIpOnLaunch",)
)
ADDRESSES: Final = _SimpleList(k.ADDRESS, "describe_addresses", "Addresses", "AllocationId")
NAT_GATEWAYS: Final = _SimpleList(k.NAT_GATEWAY, "describe_nat_gateways", "NatGateways", "NatGatewayId", _NAT)
GROUPS: Final = _SimpleList(k.SECURITY_GROUP, "describe_security_groups", "SecurityGroups", "GroupId")
TEMPLATES: Final = _SimpleList(k.LAUNCH_TEMPLATE, "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId")
