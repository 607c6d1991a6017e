"""Properties of each kind of resource of a cluster on GKE: its usual duration, and what must be deleted before it.

A kind's name consists of Google's service and resource. Workloads of the cluster create the kinds in `SWEPT`.
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


def _kind(name: str, usual: float, *gone_first: str, goes_with: str = "") -> Kind:
    """Return a kind. `gone_first` are the kinds that must be gone before it is deleted."""
    return Kind(name, usual, frozenset(gone_first), goes_with)


_ROWS = (
    _kind(SERVICE, 60),
    _kind(NETWORK, 60, SUBNETWORK, CLUSTER, FORWARDING_RULE, BACKEND_SERVICE, ENDPOINT_GROUP, FIREWALL, FILES, PEERING),
    _kind(SUBNETWORK, 60, CLUSTER, FORWARDING_RULE, ENDPOINT_GROUP),
    _kind(CLUSTER, 600),
    _kind(NODE_POOL, 300, goes_with=CLUSTER),
    # As long as the cluster exists, it would create them again.
    _kind(FORWARDING_RULE, 60, CLUSTER),
    _kind(TARGET_POOL, 60, CLUSTER, FORWARDING_RULE),
    _kind(BACKEND_SERVICE, 60, CLUSTER, FORWARDING_RULE),
    _kind(ENDPOINT_GROUP, 60, CLUSTER, BACKEND_SERVICE),
    # Load balancers are found by the names of their firewalls, so they are deleted first.
    _kind(FIREWALL, 60, CLUSTER, FORWARDING_RULE, TARGET_POOL),
    _kind(DISK, 60, CLUSTER),
    _kind(FILES, 300, CLUSTER),
    # Filestore connects to the network by this peering and leaves it behind.
    _kind(PEERING, 60, CLUSTER, FILES),
)

KINDS: Final[Mapping[str, Kind]] = {row.name: row for row in _ROWS}

DELETED_WITH_CLUSTER: Final = frozenset(KINDS) - {SERVICE}
"""Kinds that are deleted with a cluster. Enabled services stay, since others may use them."""
