"""Compute an engine's default requests: half of the node's share that corresponds to its share of the devices.

Without requests, engines are the first to be evicted from a node under pressure, and other pods crowd them. With
too large ones they cannot be scheduled. The other half remains for daemons, sidecars, and the engines themselves,
which have no limits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.placement import Claim
from modelplane_operator.api.shared import Amounts, in_bytes, in_millis


def node_share(pool: str, claims: Iterable[Claim], cluster: InferenceCluster | None) -> Amounts | None:
    """Return half of a node's CPU and memory in proportion to the claimed devices; None if the node's size is
    unknown.
    """
    pools = cluster.status.gpu_pools if cluster and cluster.status else ()
    pool_status = next((status for status in pools if status.name == pool), None)
    if pool_status is None or pool_status.allocatable is None:
        return None
    available, claimed = Counter[str](), Counter[str]()
    for device in pool_status.devices:
        if device.claim != "Synthetic":
            available[device.device_class_name or ""] += device.count or 0
    for claim in claims:
        claimed[claim.device_class] += claim.count
    shares = [
        Fraction(min(count, available[name]), available[name]) for name, count in claimed.items() if available[name]
    ]
    half = max(shares, default=Fraction(0)) / 2
    cpu = int(in_millis(pool_status.allocatable.cpu or "0") * half)
    memory = int(in_bytes(pool_status.allocatable.memory or "0Gi") * half) // 2**20
    return Amounts(cpu=f"{cpu}m", memory=f"{memory}Mi") if cpu and memory else None
