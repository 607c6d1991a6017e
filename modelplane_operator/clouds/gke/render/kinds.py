"""What holds for each kind of resource of a cluster on GKE: how long it takes, and what has to be gone before it.

A kind is named by Google's service and its resource. Those in `SWEPT` are made by what runs in the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modelplane_operator.clouds.resources import Kind

SERVICE: Final = "serviceusage.Service"
NETWORK: Final = "compute.Network"
SUBNETWORK: Final = "compute.Subnetwork"
CLUSTER: Final = "container.Cluster"
NODE_POOL: Final = "container.NodePool"

FORWARDING_RULE: Final = "compute.ForwardingRule"
TARGET_POOL: Final = "compute.TargetPool"
BACKEND_SERVICE: Final = "compute.BackendService"
ENDPOINT_GROUP: Final = "compute.NetworkEndpointGroup"
FIREWALL: Final = "compute.Firewall"
DISK: Final = "compute.Disk"
FILES: Final = "file.Instance"
PEERING: Final = "compute.NetworkPeering"
SWEPT: Final = (FORWARDING_RULE, TARGET_POOL, BACKEND_SERVICE, ENDPOINT_GROUP, FIREWALL, DISK, FILES, PEERING)


def _kind(name: str, usual: float, *before: str, goes_with: str = "") -> Kind:
    return Kind(name, usual, frozenset(before), goes_with)


_ROWS = (
    _kind(SERVICE, 60),
    _kind(NETWORK, 60, SUBNETWORK, CLUSTER, FORWARDING_RULE, BACKEND_SERVICE, ENDPOINT_GROUP, FIREWALL, FILES, PEERING),
    _kind(SUBNETWORK, 60, CLUSTER, FORWARDING_RULE, ENDPOINT_GROUP),
    _kind(CLUSTER, 600),
    _kind(NODE_POOL, 300, goes_with=CLUSTER),
    # While the cluster is there, it would make them again.
    _kind(FORWARDING_RULE, 60, CLUSTER),
    _kind(TARGET_POOL, 60, CLUSTER, FORWARDING_RULE),
    _kind(BACKEND_SERVICE, 60, CLUSTER, FORWARDING_RULE),
    _kind(ENDPOINT_GROUP, 60, CLUSTER, BACKEND_SERVICE),
    # By their names the load balancers are found that they let through, so that those go first.
    _kind(FIREWALL, 60, CLUSTER, FORWARDING_RULE, TARGET_POOL),
    _kind(DISK, 60, CLUSTER),
    _kind(FILES, 300, CLUSTER),
    # By it Filestore reaches the network, and leaves it there.
    _kind(PEERING, 60, CLUSTER, FILES),
)

KINDS: Final[Mapping[str, Kind]] = {row.name: row for row in _ROWS}

LEFT: Final = frozenset(KINDS) - {SERVICE}
"""What is to be gone with a cluster. What was enabled in a project stays, since others may use it."""
