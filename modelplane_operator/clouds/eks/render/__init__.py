"""Render a cluster on Amazon EKS as desired resources: network, identities, control plane, nodes and file system."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import yaml

from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.identity import identity, policy_keys
from modelplane_operator.clouds.eks.render.network import network
from modelplane_operator.clouds.eks.render.nodes import BEFORE_NODES, CNI, CNI_IDENTITY, efa, group_key, nodes
from modelplane_operator.clouds.eks.render.plan import Blueprint, Facts, blueprint, part_of
from modelplane_operator.clouds.eks.render.storage import FILE_SYSTEM
from modelplane_operator.clouds.resources import DesiredResource, Ref

_NFS = 2049
"""Port of EFS."""
POLICIES: Final = "enableNetworkPolicy"
"""Setting of the CNI that enforces NetworkPolicies."""
_ADDONS_AFTER_NODES = ("addon-coredns", "addon-aws-efs-csi-driver")
"""Addons whose pods need nodes; without nodes they would be degraded."""


def resources(cluster: EKSCluster, facts: Facts) -> tuple[DesiredResource, ...]:
    """Return all resources of a cluster, each after the ones that it needs. Raise CannotMake."""
    plan = blueprint(cluster, facts)
    return (
        *network(plan),
        *identity(plan),
        *_render_control_plane(plan),
        *efa(plan),
        *nodes(plan),
        *_render_storage(plan),
    )


def _render_control_plane(plan: Blueprint) -> Iterator[DesiredResource]:
    """Yield the cluster, the operator's access to it, its addons, and the identities of pods."""
    name, partition = plan.name(), plan.facts.partition
    subnets = [Ref(f"{side}subnet-{subnet.number}") for side in ("", "private-") for subnet in plan.subnets]
    yield DesiredResource(
        "cluster",
        k.CLUSTER,
        {
            "name": name,
            "version": plan.cluster.spec.kubernetes_version,
            "roleArn": Ref("role-cluster", "arn"),
            "resourcesVpcConfig": {
                "subnetIds": subnets,
                "endpointPublicAccess": True,
                "endpointPrivateAccess": True,
            },
            "accessConfig": {
                "authenticationMode": "API_AND_CONFIG_MAP",
                "bootstrapClusterCreatorAdminPermissions": False,
            },
            "bootstrapSelfManagedAddons": False,
        },
        needs=policy_keys("role-cluster"),
        updatable=frozenset({"version"}),
    )
    entry_parameters = {"clusterName": name, "principalArn": plan.facts.principal}
    admin = f"arn:{partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
    principal_id = part_of(plan.facts.principal)
    entry = f"access-entry-{principal_id}"
    yield DesiredResource(entry, k.ACCESS_ENTRY, entry_parameters, needs=("cluster",))
    association = {**entry_parameters, "policyArn": admin, "accessScope": {"type": "cluster"}}
    yield DesiredResource(f"access-policy-{principal_id}", k.ACCESS_POLICY, association, needs=(entry,))
    for key in (*BEFORE_NODES, *_ADDONS_AFTER_NODES):
        addon = {"clusterName": name, "addonName": key.removeprefix("addon-"), "resolveConflicts": "OVERWRITE"}
        prerequisites = (group_key("system"),) if key in _ADDONS_AFTER_NODES else ()
        if key == CNI:
            # A change restarts its pods, which then run with their own identity.
            prerequisites, addon["configurationValues"] = (CNI_IDENTITY,), _enable_network_policies(plan.facts.cni)
        managed = frozenset(addon) & {"configurationValues"}
        yield DesiredResource(key, k.ADDON, addon, needs=("cluster", *prerequisites), updatable=managed)
    accounts = {"cni": "aws-node", "efs-csi": "efs-csi-controller-sa", "autoscaler": "cluster-autoscaler"}
    for role, account in accounts.items():
        pod_identity = {"clusterName": name, "namespace": "kube-system", "serviceAccount": account}
        key = f"pod-identity-{role}"
        needs = ("cluster", *policy_keys(f"role-{role}"))
        yield DesiredResource(key, k.POD_IDENTITY, {**pod_identity, "roleArn": Ref(f"role-{role}", "arn")}, needs=needs)


def _enable_network_policies(values: str) -> str:
    """Return the CNI's configuration values with enforcement of NetworkPolicies switched on.

    EKS does not enforce them by default. Values that already enable it are returned unchanged, with their formatting.
    """
    parsed: Any = yaml.safe_load(values)  # EKS takes both YAML and JSON
    settings: Mapping[str, Any] = cast(dict[str, Any], parsed) if isinstance(parsed, dict) else {}
    if str(settings.get(POLICIES)).lower() == "true":
        return values
    return json.dumps({**settings, POLICIES: "true"})


def _render_storage(plan: Blueprint) -> Iterator[DesiredResource]:
    """Yield storage that many nodes can write to. An empty file system costs next to nothing."""
    token = plan.name("efs")
    file_system = {"CreationToken": token, "ThroughputMode": "elastic", "Encrypted": True}
    yield DesiredResource(FILE_SYSTEM, k.FILE_SYSTEM, file_system)
    group = {"GroupName": token, "Description": "NFS from the nodes of a cluster", "VpcId": Ref("vpc")}
    yield DesiredResource("efs-security-group", k.SECURITY_GROUP, group)
    pairs = [{"GroupId": Ref("cluster", "securityGroup")}]
    rule = {"IpProtocol": "tcp", "FromPort": _NFS, "ToPort": _NFS, "UserIdGroupPairs": pairs}
    ingress = {"GroupId": Ref("efs-security-group"), "Direction": "ingress", "IpPermissions": [rule]}
    yield DesiredResource("efs-security-group-ingress", k.RULE, ingress)
    for subnet in plan.subnets:
        target = {"FileSystemId": Ref(FILE_SYSTEM), "SubnetId": Ref(f"private-subnet-{subnet.number}")}
        mount_target = {**target, "SecurityGroups": [Ref("efs-security-group")]}
        yield DesiredResource(f"efs-mount-target-{subnet.number}", k.MOUNT_TARGET, mount_target)
