"""What an engine requests of its node when nobody says: a share of the node by the share of its devices.

Without requests, engines are the first that a node under pressure ends, and what else is started there crowds them.
With too large ones they start nowhere. So it is half of their share, and the other half is for whatever else a node
runs: daemons, sidecars, and the engines themselves, since nothing limits them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.placement import Claim
from modelplane_operator.api.shared import Amounts, in_bytes, in_millis


def node_share(pool: str, claims: Iterable[Claim], cluster: InferenceCluster | None) -> Amounts | None:
    """Half of what the node has by the devices that a pod claims of it; None while nobody knows what it has."""
    pools = cluster.status.gpu_pools if cluster and cluster.status else ()
    known = next((one for one in pools if one.name == pool), None)
    if known is None or known.allocatable is None:
        return None
    there, wanted = Counter[str](), Counter[str]()
    for device in known.devices:
        if device.claim != "Synthetic":
            there[device.device_class_name or ""] += device.count or 0
    for claim in claims:
        wanted[claim.device_class] += claim.count
    shares = [Fraction(min(count, there[name]), there[name]) for name, count in wanted.items() if there[name]]
    half = max(shares, default=Fraction(0)) / 2
    cpu = int(in_millis(known.allocatable.cpu or "0") * half)
    memory = int(in_bytes(known.allocatable.memory or "0Gi") * half) // 2**20
    return Amounts(cpu=f"{cpu}m", memory=f"{memory}Mi") if cpu and memory else None
