"""A cluster on Amazon EKS: its network, identities, control plane, nodes and file system."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

import yaml

from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.identity import attached_to, identity
from modelplane_operator.clouds.eks.render.network import network
from modelplane_operator.clouds.eks.render.nodes import BEFORE_NODES, CNI, CNI_IDENTITY, efa, group_key, nodes
from modelplane_operator.clouds.eks.render.plan import Blueprint, Facts, blueprint, part_of
from modelplane_operator.clouds.eks.render.storage import FILE_SYSTEM
from modelplane_operator.clouds.resources import Ref, Wanted

_NFS = 2049
POLICIES: Final = "enableNetworkPolicy"
_AFTER_NODES = ("addon-coredns", "addon-aws-efs-csi-driver")
"""Their pods need nodes, and the addon is degraded without."""


def resources(cluster: EKSCluster, facts: Facts) -> tuple[Wanted, ...]:
    """All of a cluster, in an order in which each comes after what it needs. Raises CannotMake."""
    plan = blueprint(cluster, facts)
    return (*network(plan), *identity(plan), *_control_plane(plan), *efa(plan), *nodes(plan), *_files(plan))


def _control_plane(plan: Blueprint) -> Iterator[Wanted]:
    name, partition = plan.name(), plan.facts.partition
    subnets = [Ref(f"{side}subnet-{one.number}") for side in ("", "private-") for one in plan.subnets]
    yield Wanted(
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
        needs=attached_to("role-cluster"),
        kept=frozenset({"version"}),
    )
    who = {"clusterName": name, "principalArn": plan.facts.principal}
    admin = f"arn:{partition}:eks::aws:cluster-access-policy/AmazonEKSClusterAdminPolicy"
    whose = part_of(plan.facts.principal)
    entry = f"access-entry-{whose}"
    yield Wanted(entry, k.ACCESS_ENTRY, who, needs=("cluster",))
    everything = {**who, "policyArn": admin, "accessScope": {"type": "cluster"}}
    yield Wanted(f"access-policy-{whose}", k.ACCESS_POLICY, everything, needs=(entry,))
    for key in (*BEFORE_NODES, *_AFTER_NODES):
        addon = {"clusterName": name, "addonName": key.removeprefix("addon-"), "resolveConflicts": "OVERWRITE"}
        later = (group_key("system"),) if key in _AFTER_NODES else ()
        if key == CNI:
            # Its pods begin once more when it changes, and then have the identity that is for them.
            later, addon["configurationValues"] = (CNI_IDENTITY,), _with_policies(plan.facts.cni)
        kept = frozenset(addon) & {"configurationValues"}
        yield Wanted(key, k.ADDON, addon, needs=("cluster", *later), kept=kept)
    accounts = {"cni": "aws-node", "efs-csi": "efs-csi-controller-sa", "autoscaler": "cluster-autoscaler"}
    for part, account in accounts.items():
        said = {"clusterName": name, "namespace": "kube-system", "serviceAccount": account}
        key = f"pod-identity-{part}"
        needs = ("cluster", *attached_to(f"role-{part}"))
        yield Wanted(key, k.POD_IDENTITY, {**said, "roleArn": Ref(f"role-{part}", "arn")}, needs=needs)


def _with_policies(values: str) -> str:
    """Return configuration values of the CNI by which it enforces NetworkPolicies, and says else what these say.

    Nobody enforces them on EKS unless it is asked to. What is right already stays as it is written.
    """
    parsed: Any = yaml.safe_load(values)  # EKS takes both YAML and JSON
    settings: Mapping[str, Any] = cast(dict[str, Any], parsed) if isinstance(parsed, dict) else {}
    if str(settings.get(POLICIES)).lower() == "true":
        return values
    return json.dumps({**settings, POLICIES: "true"})


def _files(plan: Blueprint) -> Iterator[Wanted]:
    """Storage that many nodes can write to. An empty file system costs next to nothing."""
    token = plan.name("efs")
    made = {"CreationToken": token, "ThroughputMode": "elastic", "Encrypted": True}
    yield Wanted(FILE_SYSTEM, k.FILE_SYSTEM, made)
    group = {"GroupName": token, "Description": "NFS from the nodes of a cluster", "VpcId": Ref("vpc")}
    yield Wanted("efs-security-group", k.SECURITY_GROUP, group)
    pairs = [{"GroupId": Ref("cluster", "securityGroup")}]
    rule = {"IpProtocol": "tcp", "FromPort": _NFS, "ToPort": _NFS, "UserIdGroupPairs": pairs}
    ingress = {"GroupId": Ref("efs-security-group"), "Direction": "ingress", "IpPermissions": [rule]}
    yield Wanted("efs-security-group-ingress", k.RULE, ingress)
    for one in plan.subnets:
        place = {"FileSystemId": Ref(FILE_SYSTEM), "SubnetId": Ref(f"private-subnet-{one.number}")}
        said = {**place, "SecurityGroups": [Ref("efs-security-group")]}
        yield Wanted(f"efs-mount-target-{one.number}", k.MOUNT_TARGET, said)
