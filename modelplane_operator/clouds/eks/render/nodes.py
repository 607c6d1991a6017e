"""The node groups of a cluster on EKS, and the launch templates of those with accelerators.

AWS never takes another template for a group. So a group keeps the one it was made with, or none: what this version asks
for beyond that is for new groups.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelplane_operator.api import labels, names
from modelplane_operator.api.clusters.eks import EKSPool
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.identity import attached_to
from modelplane_operator.clouds.eks.render.network import OUT
from modelplane_operator.clouds.eks.render.plan import Blueprint
from modelplane_operator.clouds.resources import Ref, Wanted

SYSTEM = EKSPool(name="system", role="System", instance_type="m6i.xlarge", min_node_count=1, max_node_count=2)
GPU_LABEL = f"{labels.PREFIX}gpu"
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}
CNI = "addon-vpc-cni"
CNI_IDENTITY = "pod-identity-cni"
BEFORE_NODES = (CNI, "addon-kube-proxy", "addon-eks-pod-identity-agent")
"""Without these, nodes come up and never get ready."""
ROOT_DISK = "/dev/xvda"
METADATA = {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
"""Only what runs in the node's own network reaches the metadata service, and with it the identity of the node."""
EFA_GROUP = "efa-security-group"


def with_system(pools: Sequence[EKSPool]) -> Sequence[EKSPool]:
    """All pools that are made: one for the cluster's own pods is added where none is declared."""
    return pools if any(pool.name == SYSTEM.name for pool in pools) else (SYSTEM, *pools)


def first_nodes(pool: EKSPool) -> int:
    return min(max(pool.node_count, pool.min_node_count), pool.max_node_count)


def nodes(plan: Blueprint) -> Iterator[Wanted]:
    for pool in with_system(plan.pools):
        template = _template(plan, pool)
        if template is not None:
            yield template
        yield _group(plan, pool, template)


def group_key(pool: str) -> str:
    return f"nodegroup-{pool}"


def efa(plan: Blueprint) -> Iterator[Wanted]:
    """The network cards of a fabric talk to each other alone."""
    if not plan.has_efa:
        return
    name = plan.name("efa")
    said = {"GroupName": name, "Description": "EFA traffic between the nodes of a cluster", "VpcId": Ref("vpc")}
    yield Wanted(EFA_GROUP, k.SECURITY_GROUP, said)
    for direction in ("ingress", "egress"):
        rule = {
            "GroupId": Ref(EFA_GROUP),
            "Direction": direction,
            "IpPermissions": [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": Ref(EFA_GROUP)}]}],
        }
        yield Wanted(f"{EFA_GROUP}-{direction}", k.RULE, rule)


def _group(plan: Blueprint, pool: EKSPool, template: Wanted | None) -> Wanted:
    gpu = pool.role == "GPU" and pool.gpu
    key, subnets = group_key(pool.name), plan.of_zones(pool.zones)
    said: dict[str, Any] = {
        "clusterName": plan.name(),
        "nodegroupName": _group_name(pool.name),
        "nodeRole": Ref("role-node", "arn"),
        "subnets": [Ref(f"private-subnet-{one.number}") for one in subnets],
        "amiType": "AL2023_x86_64_NVIDIA" if gpu else "AL2023_x86_64_STANDARD",
        "capacityType": "CAPACITY_BLOCK" if pool.capacity_block else "ON_DEMAND",
        "scaling": {"minSize": pool.min_node_count, "maxSize": max(pool.max_node_count, plan.facts.nodes.get(key, 0))},
        "desiredSize": first_nodes(pool),
        "labels": {labels.POOL: pool.name, **({GPU_LABEL: gpu.accelerator_type} if gpu else {})},
        "taints": [GPU_TAINT] if gpu else [],
        "version": plan.cluster.spec.kubernetes_version,
    }
    machine: dict[str, Any] = {}
    if not _is_of_template(pool):
        machine["instanceTypes"] = [pool.instance_type]
    if template is None:
        machine["diskSize"] = pool.disk_size_gb
    else:
        machine["launchTemplate"] = _reference(plan, pool, template)
    ways = (OUT, *(f"private-route-table-association-{one.number}" for one in subnets))
    needs = ("cluster", *attached_to("role-node"), *ways, *BEFORE_NODES, CNI_IDENTITY)
    kept = frozenset({"scaling", "labels", "taints", "version"})
    fixed = frozenset({"subnets", "amiType", "capacityType", *machine})
    return Wanted(key, k.NODEGROUP, {**said, **machine}, needs, kept, fixed)


def _is_of_template(pool: EKSPool) -> bool:
    """True if the machine type is in the pool's template, since what else is there depends on it."""
    return pool.fabric == "EFA" or pool.capacity_block is not None


def _reference(plan: Blueprint, pool: EKSPool, template: Wanted) -> Mapping[str, Any]:
    """Return the template that a group is to have; by a name, which none has on AWS, where the spec asks for another
    than the group has, so that this is reported."""
    new, old = _contents(plan, pool)
    keys = {_template_key(pool, new), _template_key(pool, old)}
    if template.key in keys:
        return {"id": Ref(template.key), "version": "1"}
    return {"name": _template_name(plan, pool, new), "version": "1"}


def _template(plan: Blueprint, pool: EKSPool) -> Wanted | None:
    """Return the template that the pool's group has, or will be made with; None for a group without one.

    Another content is another template, so that none ever changes.
    """
    existing = plan.facts.templates.get(group_key(pool.name))
    if existing == "" or not (_is_of_template(pool) or pool.role == "GPU"):
        return None
    new, old = _contents(plan, pool)
    content = old if existing == _template_key(pool, old) else new
    said = {"LaunchTemplateName": _template_name(plan, pool, content), "LaunchTemplateData": content}
    return Wanted(existing or _template_key(pool, content), k.LAUNCH_TEMPLATE, said, needs=("cluster",))


def _template_key(pool: EKSPool, content: Mapping[str, Any]) -> str:
    return f"launch-template-{pool.name}-{_digest(content)}"


def _template_name(plan: Blueprint, pool: EKSPool, content: Mapping[str, Any]) -> str:
    return plan.name("lt", pool.name, _digest(content))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()[:8]


def _contents(plan: Blueprint, pool: EKSPool) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what templates of the pool say, and what they said before they kept pods from the metadata service."""
    volume = {"VolumeSize": pool.disk_size_gb, "VolumeType": "gp3", "DeleteOnTermination": True}
    content: dict[str, Any] = {
        **({"InstanceType": pool.instance_type} if _is_of_template(pool) else {}),
        "BlockDeviceMappings": [{"DeviceName": ROOT_DISK, "Ebs": volume}],
    }
    if pool.capacity_block is not None:
        reservation = {"CapacityReservationId": pool.capacity_block.capacity_reservation_id}
        content["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
        content["CapacityReservationSpecification"] = {
            "CapacityReservationPreference": "capacity-reservations-only",
            "CapacityReservationTarget": reservation,
        }
    if pool.fabric == "EFA":
        content["NetworkInterfaces"] = [*_cards(plan.facts.cards.get(pool.instance_type, 1))]
    return {**content, "MetadataOptions": METADATA}, content


def _cards(count: int) -> Iterator[dict[str, Any]]:
    """The first carries the node's addresses; `efa` on another would have it configure some there, and never join."""
    groups = [Ref(EFA_GROUP), Ref("cluster", "securityGroup")]  # with cards of our own, EKS does not add the cluster's
    for card in range(count):
        yield {
            "NetworkCardIndex": card,
            "DeviceIndex": 0 if card == 0 else 1,
            "InterfaceType": "efa" if card == 0 else "efa-only",
            "AssociatePublicIpAddress": False,
            "Groups": groups,
        }


def _group_name(pool: str) -> str:
    """As the pool is called, where EKS takes that for a name."""
    return pool if re.fullmatch("[A-Za-z0-9][-A-Za-z0-9_]{0,62}", pool) else names.derived("pool", pool, show=pool)
