"""Versions of charts and images of others that are asked for by default: the one place where they are written.

docs/serving-stack.md shows the table, and one of what else runs together; tests/rendering/test_pins.py holds both, and
that no other module has such a version.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Pin:
    """One version, and what was found out about it."""

    name: str
    """What it is of: a chart, an image without its tag, or a set of definitions."""
    version: str
    released: str
    """When, as far as a stored source tells; empty where none does."""
    newer: str
    """Why it is no newer one."""
    support: str
    """Until when its makers mend it."""

    @property
    def image(self) -> str:
        """The reference of an image."""
        return f"{self.name}:{self.version}"


GATEWAY_API: Final = Pin(
    "Gateway API",
    "v1.5.1",
    "",
    "for the hub; 1.6.1 exists, and Envoy Gateway 1.9 installs it on clusters without Gateway API",
    "not stated",
)
CERT_MANAGER: Final = Pin(
    "cert-manager",
    "v1.17.1",
    "by 2025-02-13",
    "an upgrade of the operator must not move your certificates over four minor versions; name 1.21 in a new stack",
    "over since 1.19 (2025-10-07)",
)
ENVOY_GATEWAY: Final = Pin(
    "gateway-helm",
    "v1.9.1",
    "2026-08-28",
    "the local fleet runs it; 1.9.2 exists and was not run here",
    "2027-02-14; Kubernetes 1.33 to 1.36",
)
AI_GATEWAY: Final = Pin(
    "ai-gateway-helm, ai-gateway-crds-helm",
    "v0.7.0",
    "before 2026-06-23",
    "installed only where it is named, and no part needs it; no version was run here",
    "over: only 1.0 and 1.1 are supported",
)
PROMETHEUS: Final = Pin(
    "kube-prometheus-stack",
    "72.6.2",
    "by 2025-06-07",
    "each major version has other CustomResourceDefinitions; a newer one was not run here",
    "not stated",
)
LEADER_WORKER_SET: Final = Pin(
    "lws", "v0.8.0", "", "0.10 exists, with other CustomResourceDefinitions, and was not run here", "not stated"
)
NODE_FEATURE_DISCOVERY: Final = Pin(
    "node-feature-discovery",
    "0.18.3",
    "2025-11-05",
    "0.19.0 exists; its labels were not tried here",
    "the two newest minor versions",
)
NVIDIA_DRA_DRIVER: Final = Pin("dra-driver-nvidia-gpu", "0.4.0", "", "no newer one was found", "not stated")
METALLB: Final = Pin(
    "metallb", "0.14.9", "2024-12-17", "0.15.3 (2025-12-04) was not run here", "over since 0.15 (2025-06-03)"
)
CLUSTER_AUTOSCALER: Final = Pin("cluster-autoscaler", "9.57.0", "", "no newer one was looked for", "not stated")
AWS_DRANET: Final = Pin("aws-dranet", "1.0.0", "", "no newer one was looked for", "not stated")
PICKER: Final = Pin(
    "ghcr.io/llm-d/llm-d-router-endpoint-picker",
    "v0.9.0",
    "",
    "measured with our configuration; 0.10.0 renames metrics",
    "not stated",
)
SIDECAR: Final = Pin(
    "ghcr.io/llm-d/llm-d-router-disagg-sidecar", "v0.9.0", "", "the version of the picker", "as the picker"
)
VLLM: Final = Pin("vllm/vllm-openai", "v0.32.0", "", "no newer one was run here", "not stated")
LMCACHE: Final = Pin("lmcache/vllm-openai", "v0.3.13", "", "no newer one was looked for", "not stated")

PINS: Final = (
    GATEWAY_API,
    CERT_MANAGER,
    NODE_FEATURE_DISCOVERY,
    LEADER_WORKER_SET,
    PROMETHEUS,
    AI_GATEWAY,
    ENVOY_GATEWAY,
    NVIDIA_DRA_DRIVER,
    METALLB,
    CLUSTER_AUTOSCALER,
    AWS_DRANET,
    PICKER,
    SIDECAR,
    VLLM,
    LMCACHE,
)
