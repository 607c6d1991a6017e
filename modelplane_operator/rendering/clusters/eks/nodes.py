"""The node groups of a cluster on EKS, and the launch templates of those that need one."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelplane_operator.api import labels, names
from modelplane_operator.api.clusters.eks import EKSPool
from modelplane_operator.kube.cloud import Ref, Wanted
from modelplane_operator.rendering.clusters.eks import kinds as k
from modelplane_operator.rendering.clusters.eks.identity import attached_to
from modelplane_operator.rendering.clusters.eks.network import OUT
from modelplane_operator.rendering.clusters.eks.plan import Blueprint, Subnets

SYSTEM = EKSPool(name="system", role="System", instance_type="m6i.xlarge", min_node_count=1, max_node_count=2)
GPU_LABEL = f"{labels.PREFIX}gpu"
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}
BEFORE_NODES = ("addon-vpc-cni", "addon-kube-proxy", "addon-eks-pod-identity-agent")
"""Without these, nodes come up and never get ready."""
EFA_GROUP = "efa-security-group"


def with_system(pools: Sequence[EKSPool]) -> Sequence[EKSPool]:
    """All pools that are made: one for the cluster's own pods is added where none is declared."""
    return pools if any(pool.name == SYSTEM.name for pool in pools) else (SYSTEM, *pools)


def first_nodes(pool: EKSPool) -> int:
    return min(max(pool.node_count, pool.min_node_count), pool.max_node_count)


def nodes(plan: Blueprint) -> Iterator[Wanted]:
    for pool in with_system(plan.pools):
        subnets = plan.of_zones(pool.zones)
        template = _template(plan, pool)
        if template is not None:
            yield template
        yield _group(plan, pool, subnets, template)


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


def _group(plan: Blueprint, pool: EKSPool, subnets: Sequence[Subnets], template: Wanted | None) -> Wanted:
    gpu = pool.role == "GPU" and pool.gpu
    key = group_key(pool.name)
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
    kept, fixed = {"scaling", "labels", "taints", "version"}, {"subnets", "amiType", "capacityType"}
    if template is None:
        machine: Mapping[str, Any] = {"instanceTypes": [pool.instance_type], "diskSize": pool.disk_size_gb}
        fixed |= machine.keys()
    else:
        machine = {"launchTemplate": {"id": Ref(template.key), "version": "1"}}
        kept.add("launchTemplate")
    ways = (OUT, *(f"private-route-table-association-{one.number}" for one in subnets))
    needs = ("cluster", *attached_to("role-node"), *ways, *BEFORE_NODES)
    parameters, held = {**said, **machine}, frozenset(kept)
    return Wanted(key, k.NODEGROUP, parameters, needs, held, frozenset(fixed))


def _template(plan: Blueprint, pool: EKSPool) -> Wanted | None:
    """Only for what a node group cannot say itself; another content is another template, so that one never changes."""
    if pool.fabric != "EFA" and pool.capacity_block is None:
        return None
    volume = {"VolumeSize": pool.disk_size_gb, "VolumeType": "gp3", "DeleteOnTermination": True}
    content: dict[str, Any] = {
        "InstanceType": pool.instance_type,
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": volume}],
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
    digest = hashlib.sha256(repr(content).encode()).hexdigest()[:8]
    name = plan.name("lt", pool.name, digest)
    key = f"launch-template-{pool.name}-{digest}"
    return Wanted(key, k.LAUNCH_TEMPLATE, {"LaunchTemplateName": name, "LaunchTemplateData": content})


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
