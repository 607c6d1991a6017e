"""Charts that the serving stack of a cluster on EKS needs in addition to the usual ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import names, pins
from modelplane_operator.api.inference_cluster import InferenceCluster

NAMESPACE: Final = "kube-system"  # the namespace of EKS's own components
ACCOUNT: Final = "cluster-autoscaler"  # the service account with the autoscaler's role
AUTOSCALER: Final = (pins.CLUSTER_AUTOSCALER.name, pins.CLUSTER_AUTOSCALER.version)
DRANET: Final = (pins.AWS_DRANET.name, pins.AWS_DRANET.version)
CHARTS: Final = (AUTOSCALER, DRANET)
"""Names and versions of the charts, for mirrors."""
_GPU_TOLERATION: Final = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def extra_charts(cluster: InferenceCluster, uid: str) -> Iterator[Manifest]:
    """Yield the additional charts. `uid` is the EKSCluster's, which determines the cluster's name on the cloud."""
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
            # The default depends on the chart's version. Without it, no ResourceClaim ever adds a node.
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
