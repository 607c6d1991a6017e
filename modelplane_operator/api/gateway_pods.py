"""How a gateway runs, that of the hub as those of workload clusters: its load balancer, its pods and what they need."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.model import ATOMIC, Model
from modelplane_operator.api.bounds import QUALIFIED
from modelplane_operator.api.metadata import ANNOTATION_KEY_PREFIXES, ANNOTATION_KEYS, Annotations
from modelplane_operator.api.pods import LIMITS_HOLD_REQUESTS
from modelplane_operator.api.shared import QUALIFIED_NAME, Amounts

SourceRange = Annotated[str, Field(max_length=43, pattern="^[0-9a-fA-F:.]{2,39}/[0-9]{1,3}$")]
LoadBalancerClass = Annotated[str, Field(min_length=1, max_length=QUALIFIED, pattern=QUALIFIED_NAME)]


class GatewayService(Model):
    """The Service of type LoadBalancer before a gateway."""

    rules: ClassVar = (ANNOTATION_KEYS, ANNOTATION_KEY_PREFIXES)

    scope: Literal["External", "Internal"] = "External"
    """`Internal`: an address within the network of the cluster alone, by the annotations of AKS, EKS and GKE. Elsewhere
    write your cloud's own into `annotations`. Clouds may keep a load balancer as it was made: choose before that."""
    annotations: Annotations = {}
    """Annotations of the Service, for the cloud or for external-dns, for example
    `external-dns.alpha.kubernetes.io/hostname: models.example.com`. They win over those of `scope`."""
    load_balancer_class: LoadBalancerClass | None = None
    """What makes the load balancer, for example `service.k8s.aws/nlb`. Kubernetes lets it be set only when the Service
    is made. Without one, the cluster's default."""
    load_balancer_source_ranges: Annotated[tuple[SourceRange, ...], Field(max_length=64), ATOMIC] = ()
    """Networks whose requests the load balancer takes, for example `203.0.113.0/24`, where the cloud can do that.
    Without any, all."""


class GatewayResources(Model):
    """What each pod of a gateway needs of its node."""

    rules: ClassVar = LIMITS_HOLD_REQUESTS

    requests: Amounts | None = None
    """What the node must have free, for example `{cpu: "1", memory: 1Gi}`."""
    limits: Amounts | None = None
    """The most that the pod may take: one that takes more memory is killed."""


class GatewayPods(Model):
    """How a gateway runs."""

    service: GatewayService | None = None
    """The Service of type LoadBalancer before the gateway."""
    replicas: Annotated[int, Field(ge=1, le=100)] | None = None
    """How many pods answer requests. Without it two, on two nodes where there are as many, so that one may die."""
    resources: GatewayResources | None = None
    """What each of these pods needs of its node. Without it, what the gateway's software asks for by itself."""
