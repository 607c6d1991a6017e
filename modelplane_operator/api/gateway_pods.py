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
    """`Internal`: an address that is reachable only in the cluster's network, by the annotations of AKS, EKS and GKE.
    For other clouds, write theirs into `annotations`. Choose before the load balancer is created: a cloud may not
    change it later."""
    annotations: Annotations = {}
    """Annotations of the Service, for the cloud or for external-dns, for example
    `external-dns.alpha.kubernetes.io/hostname: models.example.com`. They override those of `scope`."""
    load_balancer_class: LoadBalancerClass | None = None
    """Class of the load balancer, for example `service.k8s.aws/nlb`. Kubernetes takes it only when the Service is
    created. Without one, the cluster's default."""
    load_balancer_source_ranges: Annotated[tuple[SourceRange, ...], Field(max_length=64), ATOMIC] = ()
    """Networks from which the load balancer accepts requests, for example `203.0.113.0/24`, if the cloud supports that.
    Without any, all."""


class GatewayResources(Model):
    """What each pod of a gateway needs of its node."""

    rules: ClassVar = LIMITS_HOLD_REQUESTS

    requests: Amounts | None = None
    """What the node must have free, for example `{cpu: "1", memory: 1Gi}`."""
    limits: Amounts | None = None
    """Maximum that the pod may use: one that uses more memory is killed."""


class GatewayPods(Model):
    """How a gateway runs."""

    service: GatewayService | None = None
    """The Service of type LoadBalancer before the gateway."""
    replicas: Annotated[int, Field(ge=1, le=100)] | None = None
    """Number of pods that answer requests. Default: two, on two nodes if possible."""
    resources: GatewayResources | None = None
    """What each of these pods needs of its node. Without it, the default of the gateway's software."""
