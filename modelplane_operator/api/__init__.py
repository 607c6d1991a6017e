"""What users write: one module per kind, models that read themselves and do nothing else."""

from typing import Any

from kubeloop.resource import Resource, of
from kubeloop.types import register
from modelplane_operator.api.clusters.aks import AKSCluster
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.api.clusters.gke import GKECluster
from modelplane_operator.api.clusters.nebius import NebiusCluster
from modelplane_operator.api.clusters.vultr import VultrCluster
from modelplane_operator.api.inference_class import InferenceClass
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.llm_inference import LLMInference
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.api.serving_stack import ServingStack

Kind = type[Resource[Any, Any]]

KINDS: tuple[Kind, ...] = (
    InferenceGateway,
    InferenceClass,
    InferenceCluster,
    ModelDeployment,
    ModelReplica,
    ModelEndpoint,
    ModelService,
    ModelCache,
    ServingStack,
    GKECluster,
    EKSCluster,
    AKSCluster,
    NebiusCluster,
    VultrCluster,
    LLMInference,
)

register(*map(of, KINDS))
