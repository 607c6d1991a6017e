"""When kubelets and their nodes give up on a pod: the same for whatever requests pass through."""

from __future__ import annotations

from typing import Final

from modelplane_operator.kube.objects import Manifest

# A node that is silent loses these pods after half a minute; Kubernetes' own default is five.
LOST: Final[list[Manifest]] = [
    {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 30}
    for why in ("not-ready", "unreachable")
]
# Kubelets wait for preStop before a restart, too. What a probe ends answers nothing that minutes could save.
PROBE_GRACE: Final[Manifest] = {"terminationGracePeriodSeconds": 10}
