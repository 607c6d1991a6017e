"""List resources that workloads created and left behind, recognized by the VPC and by Kubernetes' tags."""

from __future__ import annotations

from collections.abc import Mapping

from modelplane_operator.clouds.eks.lists.look import Item, ListContext, tags_of
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.resources import ExistingResource


def _to_leftover(kind: str, name: str, message: str = "") -> ExistingResource:
    """Return a resource of a workload. Its id is also its key, since it has no tag of the operator."""
    return ExistingResource(name, kind, name, "Ready", "", message=message, swept=True)


async def balancers(context: ListContext) -> list[ExistingResource]:
    """List load balancers in the cluster's VPC that carry Kubernetes' tag."""
    vpcs = {item["VpcId"] for item in await context.list_tagged("describe_vpcs", "Vpcs")}
    if not vpcs:
        return []
    classic = await context.all("elb", "describe_load_balancers", "LoadBalancerDescriptions")
    newer = await context.all("elbv2", "describe_load_balancers", "LoadBalancers")
    classic_names = [item["LoadBalancerName"] for item in classic if item.get("VPCId") in vpcs]
    newer_arns = [item["LoadBalancerArn"] for item in newer if item.get("VpcId") in vpcs]
    return [
        *[
            _to_leftover(k.LOAD_BALANCER, name)
            for name in await _select_tagged(context, "elb", "LoadBalancerName", classic_names)
        ],
        *[
            _to_leftover(k.LOAD_BALANCER, name)
            for name in await _select_tagged(context, "elbv2", "ResourceArn", newer_arns)
        ],
    ]


async def _select_tagged(context: ListContext, service: str, field: str, ids: list[str]) -> list[str]:
    """Return the load balancers, by name or ARN, whose tags name the cluster."""
    selected: list[str] = []
    argument = "LoadBalancerNames" if service == "elb" else "ResourceArns"
    for start in range(0, len(ids), 20):  # the limit of the API
        query = {argument: ids[start : start + 20]}
        answer = await context.session.call(service, "describe_tags", query)
        selected += [
            description[field]
            for description in answer["TagDescriptions"]
            if _has_cluster_tag(context, tags_of(description))
        ]
    return selected


def _has_cluster_tag(context: ListContext, tags: Mapping[str, str]) -> bool:
    """True if the tags of a controller in the cluster name it."""
    expected = {f"kubernetes.io/cluster/{context.name}": "owned", "elbv2.k8s.aws/cluster": context.name}
    expected |= {"aws:eks:cluster-name": context.name, "cluster.k8s.amazonaws.com/name": context.name}
    return any(tags.get(key) == value for key, value in expected.items())


async def _list_in_vpc(context: ListContext, operation: str, items: str, **filters: str) -> list[Item]:
    """List resources in the cluster's VPC; none if it has no VPC."""
    vpcs = [vpc["VpcId"] for vpc in await context.list_tagged("describe_vpcs", "Vpcs")]
    if not vpcs:
        return []
    conditions = [{"Name": name, "Values": [value]} for name, value in filters.items()]
    return await context.all("ec2", operation, items, Filters=[{"Name": "vpc-id", "Values": vpcs}, *conditions])


_DESCRIPTIONS = ("aws-K8S-", "Amazon EKS ", "ELB ")
"""Beginnings of the descriptions of network interfaces that Kubernetes, EKS and load balancers create."""


async def interfaces(context: ListContext) -> list[ExistingResource]:
    """List unattached network interfaces of nodes and load balancers, recognized by their description or their tags."""
    return [
        _to_leftover(k.INTERFACE, item["NetworkInterfaceId"], item.get("Description", ""))
        for item in await _list_in_vpc(context, "describe_network_interfaces", "NetworkInterfaces", status="available")
        if item.get("Description", "").startswith(_DESCRIPTIONS)
        or _has_cluster_tag(context, {tag["Key"]: tag["Value"] for tag in item.get("TagSet", ())})
    ]


async def groups(context: ListContext) -> list[ExistingResource]:
    """List security groups of load balancers and of EKS itself."""
    return [
        _to_leftover(k.LEFTOVER_GROUP, item["GroupId"], item.get("GroupName", ""))
        for item in await _list_in_vpc(context, "describe_security_groups", "SecurityGroups")
        if _has_cluster_tag(context, tags_of(item))
    ]


async def volumes(context: ListContext) -> list[ExistingResource]:
    """List unattached volumes of the cluster."""
    filters = [{"Name": f"tag:kubernetes.io/cluster/{context.name}", "Values": ["owned"]}]
    return [
        _to_leftover(k.VOLUME, item["VolumeId"])
        for item in await context.all("ec2", "describe_volumes", "Volumes", Filters=filters)
        if item.get("State") == "available"
    ]
