"""What ran in the cluster has made, and has left behind: it is told by its VPC, and by the tags of Kubernetes."""

from __future__ import annotations

from collections.abc import Mapping

from modelplane_operator.clouds.eks.lists.look import Item, Look, tags_of
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.resources import Found


def _swept(kind: str, name: str, message: str = "") -> Found:
    return Found(name, kind, name, "Ready", "", message=message, swept=True)


async def balancers(look: Look) -> list[Found]:
    """In our VPC, and with the tag that Kubernetes gives them."""
    vpcs = {one["VpcId"] for one in await look.tagged("describe_vpcs", "Vpcs")}
    if not vpcs:
        return []
    classic = await look.all("elb", "describe_load_balancers", "LoadBalancerDescriptions")
    newer = await look.all("elbv2", "describe_load_balancers", "LoadBalancers")
    mine = [one["LoadBalancerName"] for one in classic if one.get("VPCId") in vpcs]
    newest = [one["LoadBalancerArn"] for one in newer if one.get("VpcId") in vpcs]
    return [
        *[_swept(k.LOAD_BALANCER, name) for name in await _of_cluster(look, "elb", "LoadBalancerName", mine)],
        *[_swept(k.LOAD_BALANCER, name) for name in await _of_cluster(look, "elbv2", "ResourceArn", newest)],
    ]


async def _of_cluster(look: Look, service: str, field: str, ids: list[str]) -> list[str]:
    found: list[str] = []
    argument = "LoadBalancerNames" if service == "elb" else "ResourceArns"
    for start in range(0, len(ids), 20):  # as many as the API takes
        asked = {argument: ids[start : start + 20]}
        answer = await look.session.call(service, "describe_tags", asked)
        found += [one[field] for one in answer["TagDescriptions"] if _is_of_cluster(look, tags_of(one))]
    return found


def _is_of_cluster(look: Look, tags: Mapping[str, str]) -> bool:
    named = {f"kubernetes.io/cluster/{look.name}": "owned", "elbv2.k8s.aws/cluster": look.name}
    named |= {"aws:eks:cluster-name": look.name, "cluster.k8s.amazonaws.com/name": look.name}
    return any(tags.get(key) == value for key, value in named.items())


async def _in_vpc(look: Look, operation: str, items: str, **filters: str) -> list[Item]:
    vpcs = [one["VpcId"] for one in await look.tagged("describe_vpcs", "Vpcs")]
    if not vpcs:
        return []
    asked = [{"Name": name, "Values": [value]} for name, value in filters.items()]
    return await look.all("ec2", operation, items, Filters=[{"Name": "vpc-id", "Values": vpcs}, *asked])


_OF_EKS = ("aws-K8S-", "Amazon EKS ", "ELB ")


async def interfaces(look: Look) -> list[Found]:
    """Those that nodes and load balancers have left: nothing has them, and their description says whose they were."""
    return [
        _swept(k.INTERFACE, item["NetworkInterfaceId"], item.get("Description", ""))
        for item in await _in_vpc(look, "describe_network_interfaces", "NetworkInterfaces", status="available")
        if item.get("Description", "").startswith(_OF_EKS) or _is_of_cluster(look, _tagset(item))
    ]


def _tagset(item: Item) -> Mapping[str, str]:
    return {one["Key"]: one["Value"] for one in item.get("TagSet", ())}


async def groups(look: Look) -> list[Found]:
    """Of load balancers, and of EKS itself."""
    return [
        _swept(k.LEFT_GROUP, item["GroupId"], item.get("GroupName", ""))
        for item in await _in_vpc(look, "describe_security_groups", "SecurityGroups")
        if _is_of_cluster(look, tags_of(item))
    ]


async def volumes(look: Look) -> list[Found]:
    filters = [{"Name": f"tag:kubernetes.io/cluster/{look.name}", "Values": ["owned"]}]
    return [
        _swept(k.VOLUME, item["VolumeId"])
        for item in await look.all("ec2", "describe_volumes", "Volumes", Filters=filters)
        if item.get("State") == "available"
    ]
