"""When kubelets and their nodes give up on a pod, and where pods go: the same for all that requests pass through."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import labels

# A node that is silent loses these pods after half a minute; Kubernetes' own default is five.
LOST: Final[list[Manifest]] = [
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for why in ("not-ready", "unreachable")
]
# Kubelets wait for preStop before a restart, too. What a probe ends answers nothing that minutes could save.
PROBE_GRACE: Final[Manifest] = {"terminationGracePeriodSeconds": 10}


def apart(pods: Mapping[str, str]) -> Manifest:
    """Return the affinity that puts pods with these labels on different nodes and zones where it can.

    By topologySpreadConstraints they would be spread over nodes alone that have the labels of both: over none, where
    nodes have no zone.
    """
    terms = [
        {"weight": weight, "podAffinityTerm": {"labelSelector": {"matchLabels": {**pods}}, "topologyKey": key}}
        for key, weight in ((labels.HOSTNAME, 100), (labels.ZONE, 50))
    ]
    return {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}


def spread(pods: Mapping[str, str]) -> list[Manifest]:
    """Return what did that before, for pods that are not to change yet."""
    wish = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {**pods}}}
    return [{**wish, "topologyKey": key} for key in (labels.HOSTNAME, labels.ZONE)]
