"""The network, its gateways, and what EC2 keeps for nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from modelplane_operator.clouds.eks.changes import RESOURCE, SEPARATOR
from modelplane_operator.clouds.eks.lists.look import Item, Look, found, tags_of
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.network import ANYWHERE
from modelplane_operator.clouds.resources import Found, State


@dataclass(frozen=True, slots=True)
class _Listed:
    """A kind that one list of EC2 tells everything of."""

    kind: str
    operation: str
    items: str
    id: str
    states: Mapping[str, State | None] | None = None
    """By the field `State`; None: it is gone, and shown for a while."""
    live: tuple[str, ...] = ()

    async def __call__(self, look: Look) -> list[Found]:
        return [one for item in await look.tagged(self.operation, self.items) if (one := self._read(item)) is not None]

    def _read(self, item: Item) -> Found | None:
        state: State | None = self.states.get(item["State"], "Creating") if self.states else "Ready"
        if state is None:
            return None
        live = {name: item[name] for name in self.live if name in item}
        return found(item, self.kind, item[self.id], state, live=live, message=item.get("FailureMessage", ""))


_AVAILABLE: Mapping[str, State | None] = {"available": "Ready", "pending": "Creating"}
_NAT: Mapping[str, State | None] = {**_AVAILABLE, "failed": "Failed", "deleting": "Deleting", "deleted": None}


async def vpcs(look: Look) -> list[Found]:
    seen: list[Found] = []
    for item in await look.tagged("describe_vpcs", "Vpcs"):
        live: dict[str, Any] = {}
        for name in ("EnableDnsSupport", "EnableDnsHostnames"):
            asked = {"VpcId": item["VpcId"], "Attribute": name[0].lower() + name[1:]}
            live[name] = (await look.session.call("ec2", "describe_vpc_attribute", asked))[name]["Value"]
        seen.append(found(item, k.VPC, item["VpcId"], _AVAILABLE.get(item["State"]) or "Creating", live=live))
    return seen


# AWS says `available` of a gateway's, and `attached` of everything else's.
_ATTACHED: Mapping[str, State] = {"available": "Ready", "attached": "Ready", "detaching": "Deleting"}


async def gateways(look: Look) -> list[Found]:
    seen: list[Found] = []
    for item in await look.tagged("describe_internet_gateways", "InternetGateways"):
        gateway = found(item, k.INTERNET_GATEWAY, item["InternetGatewayId"], "Ready")
        seen.append(gateway)
        for one in item.get("Attachments", ()):
            if one.get("State") != "detached":
                name = SEPARATOR.join((gateway.id, one["VpcId"]))
                state = _ATTACHED.get(one.get("State", ""), "Creating")
                seen.append(Found(f"{gateway.key}-attachment", k.ATTACHMENT, name, state, gateway.owner))
    return seen


async def tables(look: Look) -> list[Found]:
    """Tables with their ways out, and the subnets that they are for."""
    subnets = {
        one["SubnetId"]: tags_of(one).get(RESOURCE, "") for one in await look.tagged("describe_subnets", "Subnets")
    }
    seen: list[Found] = []
    for item in await look.tagged("describe_route_tables", "RouteTables"):
        table = found(item, k.ROUTE_TABLE, item["RouteTableId"], "Ready")
        seen.append(table)
        for route in item.get("Routes", ()):
            if route.get("DestinationCidrBlock") == ANYWHERE:
                key = table.key.replace("route-table", "route-default")
                live = {"NatGatewayId": route["NatGatewayId"]} if "NatGatewayId" in route else {}
                name = SEPARATOR.join((table.id, ANYWHERE))
                seen.append(Found(key, k.ROUTE, name, "Ready", table.owner, live=live))
        for one in item.get("Associations", ()):
            state = one.get("AssociationState", {}).get("State", "associated")
            if one.get("Main") or "SubnetId" not in one or state == "disassociated":
                continue
            subnet = subnets.get(one["SubnetId"], "")
            key = f"{table.key}-association-{subnet.rpartition('-')[2]}" if subnet else f"{table.key}-{one['SubnetId']}"
            known: Mapping[str, State] = {"associated": "Ready", "disassociating": "Deleting", "failed": "Failed"}
            name = one["RouteTableAssociationId"]
            seen.append(Found(key, k.ASSOCIATION, name, known.get(state, "Creating"), table.owner))
    return seen


async def rules(look: Look) -> list[Found]:
    return [
        found(
            item,
            k.RULE,
            SEPARATOR.join(("egress" if item["IsEgress"] else "ingress", item["GroupId"], item["SecurityGroupRuleId"])),
            "Ready",
        )
        for item in await look.tagged("describe_security_group_rules", "SecurityGroupRules")
    ]


SUBNETS: Final = _Listed(k.SUBNET, "describe_subnets", "Subnets", "SubnetId", _AVAILABLE, live=("MapPublicIpOnLaunch",))
ADDRESSES: Final = _Listed(k.ADDRESS, "describe_addresses", "Addresses", "AllocationId")
NAT_GATEWAYS: Final = _Listed(k.NAT_GATEWAY, "describe_nat_gateways", "NatGateways", "NatGatewayId", _NAT)
GROUPS: Final = _Listed(k.SECURITY_GROUP, "describe_security_groups", "SecurityGroups", "GroupId")
TEMPLATES: Final = _Listed(k.LAUNCH_TEMPLATE, "describe_launch_templates", "LaunchTemplates", "LaunchTemplateId")
