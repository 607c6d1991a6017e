"""Settings for kubelets and the scheduler that all pods on the path of requests share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import labels

# Kubernetes' default is five minutes.
LOST: Final[list[Manifest]] = [
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for why in ("not-ready", "unreachable")
]
"""Tolerations that let a node be silent for half a minute."""
# Kubelets run preStop before a restart, too. A container that fails its probe has no responses to finish.
PROBE_GRACE: Final[Manifest] = {"terminationGracePeriodSeconds": 10}
"""Grace period of containers that a probe ends."""


def apart(pods: Mapping[str, str]) -> Manifest:
    """Return an affinity that prefers different nodes and zones for pods with these labels.

    Unlike topologySpreadConstraints, it works on nodes without a zone label.
    """
    terms = [
        {"weight": weight, "podAffinityTerm": {"labelSelector": {"matchLabels": {**pods}}, "topologyKey": key}}
        for key, weight in ((labels.HOSTNAME, 100), (labels.ZONE, 50))
    ]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def spread(pods: Mapping[str, str]) -> list[Manifest]:
    """Return the topologySpreadConstraints that pods of older revisions have in place of `apart`."""
    constraint = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {**pods}}}
    return [{**constraint, "topologyKey": key} for key in (labels.HOSTNAME, labels.ZONE)]
