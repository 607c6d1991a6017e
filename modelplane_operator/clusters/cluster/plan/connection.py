"""What is said of the way to a workload cluster."""

from __future__ import annotations

from datetime import datetime

from kubeloop.condition_types import Condition, ServerVerified


def verified(unverified: str, now: datetime) -> Condition:
    """`unverified`: why nobody can tell whether it is that cluster who answers; empty when it proves it."""
    if not unverified:
        return ServerVerified.CERTIFICATE_VERIFIED.condition(now)
    words = (
        f"the kubeconfig lets anybody on the way take the cluster's place and the operator's credentials: {unverified}"
    )
    return ServerVerified.NOT_VERIFIED.condition(
        now, message=f"{words}; give it an https:// address and the cluster's certificate-authority-data"
    )
