"""Render the node groups of a cluster on EKS, and the launch templates of the groups with accelerators.

AWS cannot replace the template of a group. A group therefore keeps the template that it was created with, or none.
Newer template contents apply to new groups only.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelplane_operator.api import labels, names
from modelplane_operator.api.clusters.eks import EKSPool
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.identity import policy_keys
from modelplane_operator.clouds.eks.render.network import OUT
from modelplane_operator.clouds.eks.render.plan import Blueprint
from modelplane_operator.clouds.resources import DesiredResource, Ref

SYSTEM = EKSPool(name="system", role="System", instance_type="m6i.xlarge", min_node_count=1, max_node_count=2)
"""Default pool for the cluster's own pods, such as DNS."""
GPU_LABEL = f"{labels.PREFIX}gpu"
"""Label of nodes with the type of their accelerators."""
GPU_TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NO_SCHEDULE"}
"""Taint that reserves nodes with accelerators for pods that tolerate it."""
CNI = "addon-vpc-cni"
CNI_IDENTITY = "pod-identity-cni"
"""Key of the association that gives the CNI its role."""
BEFORE_NODES = (CNI, "addon-kube-proxy", "addon-eks-pod-identity-agent")
"""Addons without which nodes never become ready."""
ROOT_DISK = "/dev/xvda"
METADATA = {"HttpTokens": "required", "HttpPutResponseHopLimit": 1}
"""Restricts the metadata service, and with it the node's identity, to processes in the node's own network namespace."""
EFA_GROUP = "efa-security-group"
"""Key of the security group of an EFA fabric."""


def with_system(pools: Sequence[EKSPool]) -> Sequence[EKSPool]:
    """Return all pools to create. A pool for the cluster's own pods is added if none is declared."""
    return pools if any(pool.name == SYSTEM.name for pool in pools) else (SYSTEM, *pools)


def first_nodes(pool: EKSPool) -> int:
    """Return the number of nodes that a pool starts with."""
    return min(max(pool.node_count, pool.min_node_count), pool.max_node_count)


def nodes(plan: Blueprint) -> Iterator[DesiredResource]:
    """Yield the node groups, each after its launch template."""
    for pool in with_system(plan.pools):
        template = _render_template(plan, pool)
        if template is not None:
            yield template
        yield _render_group(plan, pool, template)


def group_key(pool: str) -> str:
    return f"nodegroup-{pool}"


def efa(plan: Blueprint) -> Iterator[DesiredResource]:
    """Yield the security group of an EFA fabric, which allows traffic within the group only."""
    if not plan.has_efa:
        return
    name = plan.name("efa")
    group = {"GroupName": name, "Description": "EFA traffic between the nodes of a cluster", "VpcId": Ref("vpc")}
    yield DesiredResource(EFA_GROUP, k.SECURITY_GROUP, group)
    for direction in ("ingress", "egress"):
        rule = {
            "GroupId": Ref(EFA_GROUP),
            "Direction": direction,
            "IpPermissions": [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": Ref(EFA_GROUP)}]}],
        }
        yield DesiredResource(f"{EFA_GROUP}-{direction}", k.RULE, rule)


def _render_group(plan: Blueprint, pool: EKSPool, template: DesiredResource | None) -> DesiredResource:
    """Return the node group of a pool."""
    gpu = pool.role == "GPU" and pool.gpu
    key, subnets = group_key(pool.name), plan.of_zones(pool.zones)
    is_accepted = re.fullmatch("[A-Za-z0-9][-A-Za-z0-9_]{0,62}", pool.name)  # by EKS, as the name of a group
    parameters: dict[str, Any] = {
        "clusterName": plan.name(),
        "nodegroupName": pool.name if is_accepted else names.derive_name("pool", pool.name, show=pool.name),
        "nodeRole": Ref("role-node", "arn"),
        "subnets": [Ref(f"private-subnet-{subnet.number}") for subnet in subnets],
        "amiType": "AL2023_x86_64_NVIDIA" if gpu else "AL2023_x86_64_STANDARD",
        "capacityType": "CAPACITY_BLOCK" if pool.capacity_block else "ON_DEMAND",
        "scaling": {"minSize": pool.min_node_count, "maxSize": max(pool.max_node_count, plan.facts.nodes.get(key, 0))},
        "desiredSize": first_nodes(pool),
        "labels": {labels.POOL: pool.name, **({GPU_LABEL: gpu.accelerator_type} if gpu else {})},
        "taints": [GPU_TAINT] if gpu else [],
        "version": plan.cluster.spec.kubernetes_version,
    }
    machine: dict[str, Any] = {}
    if not _has_machine_in_template(pool):
        machine["instanceTypes"] = [pool.instance_type]
    if template is None:
        machine["diskSize"] = pool.disk_size_gb
    else:
        machine["launchTemplate"] = _template_reference(plan, pool, template)
    routes = (OUT, *(f"private-route-table-association-{subnet.number}" for subnet in subnets))
    needs = ("cluster", *policy_keys("role-node"), *routes, *BEFORE_NODES, CNI_IDENTITY)
    managed = frozenset({"scaling", "labels", "taints", "version"})
    immutable = frozenset({"subnets", "amiType", "capacityType", *machine})
    return DesiredResource(key, k.NODEGROUP, {**parameters, **machine}, needs, managed, immutable)


def _has_machine_in_template(pool: EKSPool) -> bool:
    """True if the machine type belongs into the launch template, because other template settings depend on it."""
    return pool.fabric == "EFA" or pool.capacity_block is not None


def _template_reference(plan: Blueprint, pool: EKSPool, template: DesiredResource) -> Mapping[str, Any]:
    """Return the launch template for a group, by id.

    If the spec needs another template than the group has, return it by a name that does not exist on AWS, so that the
    difference is reported.
    """
    new, old = _contents(plan, pool)
    keys = {_template_key(pool, new), _template_key(pool, old)}
    if template.key in keys:
        return {"id": Ref(template.key), "version": "1"}
    return {"name": _template_name(plan, pool, new), "version": "1"}


def _render_template(plan: Blueprint, pool: EKSPool) -> DesiredResource | None:
    """Return the launch template that the pool's group has or will be created with; None for a group without one.

    The content is part of the key, so that a template never changes.
    """
    existing = plan.facts.templates.get(group_key(pool.name))
    if existing == "" or not (_has_machine_in_template(pool) or pool.role == "GPU"):
        return None
    new, old = _contents(plan, pool)
    content = old if existing == _template_key(pool, old) else new
    parameters = {"LaunchTemplateName": _template_name(plan, pool, content), "LaunchTemplateData": content}
    return DesiredResource(existing or _template_key(pool, content), k.LAUNCH_TEMPLATE, parameters, needs=("cluster",))


def _template_key(pool: EKSPool, content: Mapping[str, Any]) -> str:
    """Return the key of a launch template, which changes with the content."""
    return f"launch-template-{pool.name}-{_digest(content)}"


def _template_name(plan: Blueprint, pool: EKSPool, content: Mapping[str, Any]) -> str:
    """Return the name of a launch template on AWS."""
    return plan.name("lt", pool.name, _digest(content))


def _digest(content: Mapping[str, Any]) -> str:
    """Return a short hash of a template's content."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:8]


def _contents(plan: Blueprint, pool: EKSPool) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the current content of a pool's template, and the old content that lacks the metadata restrictions."""
    volume = {"VolumeSize": pool.disk_size_gb, "VolumeType": "gp3", "DeleteOnTermination": True}
    content: dict[str, Any] = {
        **({"InstanceType": pool.instance_type} if _has_machine_in_template(pool) else {}),
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
        content["NetworkInterfaces"] = [*_network_interfaces(plan.facts.cards.get(pool.instance_type, 1))]
    return {**content, "MetadataOptions": METADATA}, content


def _network_interfaces(count: int) -> Iterator[dict[str, Any]]:
    """Yield the network interfaces, one for each card.

    Only the first carries the node's addresses. `efa` on another card would make the node configure addresses there and
    never join.
    """
    # EKS does not add the cluster's group to custom network interfaces.
    groups = [Ref(EFA_GROUP), Ref("cluster", "securityGroup")]
    for card in range(count):
        yield {
            "NetworkCardIndex": card,
            "DeviceIndex": 0 if card == 0 else 1,
            "InterfaceType": "efa" if card == 0 else "efa-only",
            "AssociatePublicIpAddress": False,
            "Groups": groups,
        }
