"""Render a cluster on Google Kubernetes Engine as desired resources: services, network, control plane and pools.

`plan` calls `resources` with the spec, and with the versions and zones that it has observed: GKE upgrades clusters by
itself, so the desired version is never below the running one. The requests to Google are built by `changes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from itertools import combinations
from typing import Any, Final

from modelplane_operator.api import labels, names
from modelplane_operator.api.clusters.gke import GKECluster, GKENetworking, GKEPool
from modelplane_operator.clouds.gke.render import kinds as k
from modelplane_operator.clouds.gke.render.storage import NETWORK
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.resources import DesiredResource, Ref

ROOM: Final = 40  # maximum length of names of clusters and node pools
SERVICES: Final = ("compute", "container", "file")
"""Services to enable in the project, by the first part of their names."""
SYSTEM: Final = GKEPool(
    name="system", role="System", machine_type="e2-standard-4", node_count=3, min_node_count=3, max_node_count=6
)
"""Default pool for the cluster's own pods. A regional cluster has it in three zones, so that one can fail."""
CHANNEL: Final = "REGULAR"
"""Release channel of clusters."""
DATAPATH: Final = "ADVANCED_DATAPATH"
"""GKE's name of Dataplane V2."""
ZONES: Final = 3  # number of zones over which GKE spreads a pool without zones
GPU_LABEL: Final = f"{labels.PREFIX}gpu"
"""Label of nodes with the type of their accelerators."""
CLAIMED: Final = "cloud.google.com/gke-nvidia-gpu-dra-driver"
"""Label that tells GKE's autoscaler that claims use the pool's devices, so that a claim can add its first node."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties that only the cloud knows."""

    project: str
    """Project that owns the resources."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Running minor versions, by key. The release channel may be ahead of the spec, and there are no downgrades."""
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Zones with nodes, by the key of the pool. GKE deletes the nodes of a removed zone, so no zone is ever removed."""


def resources(cluster: GKECluster, facts: Facts) -> tuple[DesiredResource, ...]:
    """Return all resources of a cluster, each after the ones that it needs. Raise CannotMake."""
    networking = cluster.spec.networking or GKENetworking()
    _require_disjoint_ranges(networking)
    pools = cluster.spec.node_pools
    region = cluster.spec.region
    for pool in pools:
        if foreign := [zone for zone in pool.zones if zone.rpartition("-")[0] != region]:
            zones = ", ".join(foreign)
            raise CannotMake(f"pool {pool.name}: {zones} is no zone of region {region}: name some of its own")
    system, *others = with_system(pools)
    return (
        *(DesiredResource(f"service-{name}", k.SERVICE, {"name": f"{name}.googleapis.com"}) for name in SERVICES),
        *_render_network(cluster, networking),
        _render_cluster(cluster, facts, system),
        *(_render_pool(cluster, facts, pool) for pool in (system, *others)),
    )


def with_system(pools: Sequence[GKEPool]) -> Sequence[GKEPool]:
    """Return all pools to create, first the pool for the cluster's own pods, which is added if none is declared."""
    system = next((pool for pool in pools if pool.name == SYSTEM.name), SYSTEM)
    return (system, *(pool for pool in pools if pool.name != SYSTEM.name))


def cluster_name(name: str, uid: str) -> str:
    """Return the cluster's name on GKE."""
    return names.on_cloud(name, uid, room=ROOM)


def pool_key(pool: str) -> str:
    return f"nodepool-{pool}"


def pool_name(pool: str) -> str:
    """Return the pool's name if GKE accepts it, otherwise a derived one."""
    fits = re.fullmatch(f"[a-z]([-a-z0-9]{{0,{ROOM - 2}}}[a-z0-9])?", pool)
    return pool if fits else names.derive_name("pool", pool, show=pool, room=ROOM)


def minor(version: str) -> str:
    """Return the minor version as `major.minor`; empty if there is none."""
    match = re.match(r"v?(\d+\.\d+)", version)
    return match[1] if match else ""


def _render_network(cluster: GKECluster, networking: GKENetworking) -> Iterator[DesiredResource]:
    """Yield the network and the subnet."""
    name = names.on_cloud(cluster.metadata.name, cluster.metadata.uid or "")
    routing = {"routingMode": "REGIONAL"}
    network = {"name": name, "autoCreateSubnetworks": False, "routingConfig": routing}
    yield DesiredResource(NETWORK, k.NETWORK, network, needs=("service-compute",))
    ranges = {"pods": networking.pod_cidr, "services": networking.service_cidr}
    yield DesiredResource(
        "subnet",
        k.SUBNETWORK,
        {
            "name": name,
            "network": Ref(NETWORK, "selfLink"),
            "ipCidrRange": networking.node_cidr,
            "secondaryIpRanges": [
                {"rangeName": range_name, "ipCidrRange": cidr} for range_name, cidr in ranges.items()
            ],
            "privateIpGoogleAccess": True,
        },
    )


def _render_cluster(cluster: GKECluster, facts: Facts, system: GKEPool) -> DesiredResource:
    """Return the cluster, with its first node pool."""
    version = _version(cluster, facts, "cluster")
    return DesiredResource(
        "cluster",
        k.CLUSTER,
        {
            "name": cluster_name(cluster.metadata.name, cluster.metadata.uid or ""),
            "network": Ref(NETWORK),
            "subnetwork": Ref("subnet"),
            "ip_allocation_policy": {
                "use_ip_aliases": True,
                "cluster_secondary_range_name": "pods",
                "services_secondary_range_name": "services",
            },
            "initial_cluster_version": version,
            "release_channel": {"channel": CHANNEL},
            # Dataplane V2 enforces NetworkPolicies. It can only be chosen at creation.
            "network_config": {"datapath_provider": DATAPATH},
            "workload_identity_config": {"workload_pool": f"{facts.project}.svc.id.goog"},
            "addons_config": {"gcp_filestore_csi_driver_config": {"enabled": True}},
            "node_pools": [_pool_parameters(cluster, system)],
            "version": version,
        },
        needs=("service-container", "service-file"),
        updatable=frozenset({"version"}),
    )


def _render_pool(cluster: GKECluster, facts: Facts, pool: GKEPool) -> DesiredResource:
    """Return a node pool. The first one is created together with the cluster."""
    key = pool_key(pool.name)
    parameters = {**_pool_parameters(cluster, pool), "version": _version(cluster, facts, key)}
    if pool.zones:
        parameters["locations"] = [*dict.fromkeys([*pool.zones, *facts.zones.get(key, ())])]
    managed = frozenset({"autoscaling", "version", *(("locations",) if pool.zones else ())})
    # Without a service account in the spec, any account of the nodes is accepted.
    account = {"service_account"} if cluster.spec.service_account else set[str]()
    immutable = frozenset({"machine_type", "disk_size_gb", "accelerators", *account})
    return DesiredResource(key, k.NODE_POOL, parameters, needs=("cluster",), updatable=managed, fixed=immutable)


def _pool_parameters(cluster: GKECluster, pool: GKEPool) -> dict[str, Any]:
    """Return the parameters for the creation of a pool.

    The limits are totals, but the initial size is per zone, rounded down.
    """
    gpu = pool.gpu if pool.role == "GPU" else None
    return {
        "name": pool_name(pool.name),
        "machine_type": pool.machine_type,
        "disk_size_gb": pool.disk_size_gb,
        "labels": {labels.POOL: pool.name, **({GPU_LABEL: gpu.accelerator_type, CLAIMED: "true"} if gpu else {})},
        **({"service_account": cluster.spec.service_account} if cluster.spec.service_account else {}),
        "accelerators": [{"type": gpu.accelerator_type, "count": gpu.accelerator_count}] if gpu else [],
        "locations": [*pool.zones],
        "initial_node_count": first_nodes(pool),
        "autoscaling": {
            "total_min_node_count": pool.min_node_count,
            "total_max_node_count": pool.max_node_count,
            # Machines with GPUs are taken wherever there are some; all others are spread evenly.
            "location_policy": "ANY" if gpu else "BALANCED",
        },
    }


def first_nodes(pool: GKEPool) -> int:
    """Return the number of nodes that a pool starts with in each zone."""
    total = min(max(pool.node_count, pool.min_node_count), pool.max_node_count)
    return max(total // (len(pool.zones) or ZONES), int(pool.role == "System"))


def _version(cluster: GKECluster, facts: Facts, key: str) -> str:
    """Return the version of the spec, or the running one if it is newer. Raise CannotMake for an invalid version."""
    requested, running = minor(cluster.spec.kubernetes_version), facts.versions.get(key, "")
    if not requested:
        raise CannotMake(f"Kubernetes version {cluster.spec.kubernetes_version} is none: write one like 1.35")
    return max(requested, running, key=numbers) if running else requested


def numbers(version: str) -> list[int]:
    """Return a sort key for versions."""
    return [int(part) for part in version.split(".")]


def _require_disjoint_ranges(networking: GKENetworking) -> None:
    """Raise CannotMake when two address ranges overlap."""
    ranges = {
        "podCidr": networking.pod_cidr,
        "serviceCidr": networking.service_cidr,
        "nodeCidr": networking.node_cidr,
    }
    for (first_name, first), (second_name, second) in combinations(ranges.items(), 2):
        if IPv4Network(first, strict=False).overlaps(IPv4Network(second, strict=False)):
            raise CannotMake(
                f"networking.{first_name} {first} and networking.{second_name} {second} overlap: choose others"
            )
