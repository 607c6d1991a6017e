"""The ServerVerified condition of a connection to a workload cluster."""

from __future__ import annotations

from datetime import datetime

from kubeloop.condition_types import Condition, ServerVerified


def server_verified(unverified: str, now: datetime) -> Condition:
    """Return the ServerVerified condition.

    `unverified`: the reason why the server cannot prove its identity; empty when it does.
    """
    if not unverified:
        return ServerVerified.CERTIFICATE_VERIFIED.condition(now)
    message = f"the connection to the cluster can be intercepted, with the operator's credentials: {unverified}"
    return ServerVerified.NOT_VERIFIED.condition(
        now, message=f"{message}; give it an https:// address and the cluster's certificate-authority-data"
    )
