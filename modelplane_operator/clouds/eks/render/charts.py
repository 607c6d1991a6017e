"""What a cluster on EKS needs of its serving stack beside what every cluster does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import names, pins
from modelplane_operator.api.inference_cluster import InferenceCluster

NAMESPACE: Final = "kube-system"  # where EKS has what works for the cluster itself
ACCOUNT: Final = "cluster-autoscaler"  # which EKS gives the role of the autoscaler
AUTOSCALER: Final = (pins.CLUSTER_AUTOSCALER.name, pins.CLUSTER_AUTOSCALER.version)
DRANET: Final = (pins.AWS_DRANET.name, pins.AWS_DRANET.version)
CHARTS: Final = (AUTOSCALER, DRANET)
"""Their names and versions: a mirror has to have them."""
_GPU_TOLERATION: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def extra_charts(cluster: InferenceCluster, uid: str) -> Iterator[Manifest]:
    """`uid`: of the EKSCluster, from which its name on the cloud follows."""
    origin = cluster.spec.cluster.eks
    yield {
        "name": "mp-cluster-autoscaler",
        "namespace": NAMESPACE,
        "chart": AUTOSCALER[0],
        "repository": "https://kubernetes.github.io/autoscaler",
        "version": AUTOSCALER[1],
        "values": {
            "cloudProvider": "aws",
            "awsRegion": origin.region if origin else "",
            "autoDiscovery": {"clusterName": names.on_cloud(cluster.metadata.name, uid)},
            "rbac": {"serviceAccount": {"name": ACCOUNT}},
            # Whether the chart has it by itself depends on its version; without it no claim ever makes a node.
            "extraArgs": {"balance-similar-node-groups": True, "enable-dynamic-resource-allocation": True},
        },
    }
    if any(pool.fabric is not None and pool.fabric.type == "EFA" for pool in cluster.spec.node_pools):
        yield {
            "name": "mp-aws-dranet",
            "namespace": NAMESPACE,
            "chart": DRANET[0],
            "repository": "https://aws.github.io/eks-charts",
            "version": DRANET[1],
            "values": {"tolerations": [_GPU_TOLERATION]},
        }
