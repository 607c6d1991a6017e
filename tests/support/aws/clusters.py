"""A cluster on EKS, as tests ask for it."""

from __future__ import annotations

from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clouds.eks.render import resources
from modelplane_operator.clouds.eks.render.plan import Facts
from modelplane_operator.clouds.resources import DesiredResource
from tests.support.cloud_life import OWNER
from tests.support.manifests import Manifest

FACTS = Facts(("us-west-2a", "us-west-2b"), "arn:aws:iam::123456789012:role/modelplane", {"p5.48xlarge": 2})
FABRIC: Manifest = {
    "name": "h100",
    "role": "GPU",
    "instanceType": "p5.48xlarge",
    "gpu": {"acceleratorType": "nvidia-h100"},
    "zones": ["us-west-2b"],
    "fabric": "EFA",
}


def eks_cluster(*pools: Manifest, version: str = "1.36", facts: Facts = FACTS) -> tuple[DesiredResource, ...]:
    """Return what a cluster with these pools asks of AWS."""
    cluster = EKSCluster.parse(
        {
            "apiVersion": EKSCluster.definition.api_version,
            "kind": "EKSCluster",
            "metadata": {"name": OWNER.cluster, "namespace": "modelplane-system", "uid": OWNER.uid},
            "spec": {
                "region": "us-west-2",
                "kubernetesVersion": version,
                "nodePools": [*pools],
                "networking": {"subnetCidrs": ["10.0.0.0/20", "10.0.16.0/20"]},
            },
        }
    )
    return resources(cluster, facts)
