"""A cluster on Google Kubernetes Engine: the services of its project, its network, control plane and node pools."""

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
from modelplane_operator.clouds.resources import Ref, Wanted

ROOM: Final = 40  # characters that GKE has for the names of clusters and node pools
SERVICES: Final = ("compute", "container", "file")
"""What has to be enabled in the project, by the first part of its name."""
SYSTEM: Final = GKEPool(
    name="system", role="System", machine_type="e2-standard-4", node_count=3, min_node_count=3, max_node_count=6
)
"""A regional cluster has its own pods' nodes in three zones, so that one can fail."""
CHANNEL: Final = "REGULAR"
"""Which releases of GKE a cluster follows."""
DATAPATH: Final = "ADVANCED_DATAPATH"
ZONES: Final = 3  # that GKE spreads a pool over which names none
GPU_LABEL: Final = f"{labels.PREFIX}gpu"
CLAIMED: Final = "cloud.google.com/gke-nvidia-gpu-dra-driver"
"""By which GKE's autoscaler knows that the pool's devices are claimed, and makes its first node for a claim."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What only the cloud can say."""

    project: str
    """Whose resources they are."""
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    """The minor versions that run, by key. GKE's release channel may be ahead of the spec, and nothing goes back."""
    zones: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Where there are nodes, by the key of their pool. GKE ends those of a zone that is taken away, so that none is."""


def resources(cluster: GKECluster, facts: Facts) -> tuple[Wanted, ...]:
    """All of a cluster, in an order in which each comes after what it needs. Raises CannotMake."""
    networking = cluster.spec.networking or GKENetworking()
    _refuse_overlaps(networking)
    pools = cluster.spec.node_pools
    for pool in pools:
        _refuse_zones_elsewhere(pool, cluster.spec.region)
    system, *others = with_system(pools)
    return (
        *_services(),
        *_network(cluster, networking),
        _control_plane(cluster, facts, system),
        *(_pool(cluster, facts, pool) for pool in (system, *others)),
    )


def with_system(pools: Sequence[GKEPool]) -> Sequence[GKEPool]:
    """All pools that are made, first the one for the cluster's own pods, which is added where none is declared."""
    system = next((pool for pool in pools if pool.name == SYSTEM.name), SYSTEM)
    return (system, *(pool for pool in pools if pool.name != SYSTEM.name))


def cluster_name(name: str, uid: str) -> str:
    """What GKE calls the cluster."""
    return names.on_cloud(name, uid, room=ROOM)


def pool_key(pool: str) -> str:
    return f"nodepool-{pool}"


def pool_name(pool: str) -> str:
    """As the pool is called, where GKE takes that for a name."""
    fits = re.fullmatch(f"[a-z]([-a-z0-9]{{0,{ROOM - 2}}}[a-z0-9])?", pool)
    return pool if fits else names.derived("pool", pool, show=pool, room=ROOM)


def minor(version: str) -> str:
    """The first two numbers of a version; empty where it has none."""
    found = re.match(r"v?(\d+\.\d+)", version)
    return found[1] if found else ""


def _services() -> Iterator[Wanted]:
    for one in SERVICES:
        yield Wanted(f"service-{one}", k.SERVICE, {"name": f"{one}.googleapis.com"})


def _network(cluster: GKECluster, networking: GKENetworking) -> Iterator[Wanted]:
    name = names.on_cloud(cluster.metadata.name, cluster.metadata.uid or "")
    routing = {"routingMode": "REGIONAL"}
    made = {"name": name, "autoCreateSubnetworks": False, "routingConfig": routing}
    yield Wanted(NETWORK, k.NETWORK, made, needs=("service-compute",))
    ranges = {"pods": networking.pod_cidr, "services": networking.service_cidr}
    yield Wanted(
        "subnet",
        k.SUBNETWORK,
        {
            "name": name,
            "network": Ref(NETWORK, "selfLink"),
            "ipCidrRange": networking.node_cidr,
            "secondaryIpRanges": [{"rangeName": one, "ipCidrRange": cidr} for one, cidr in ranges.items()],
            "privateIpGoogleAccess": True,
        },
    )


def _control_plane(cluster: GKECluster, facts: Facts, system: GKEPool) -> Wanted:
    version = _version(cluster, facts, "cluster")
    return Wanted(
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
            # By which NetworkPolicies are enforced. It is chosen when a cluster is made, and never after.
            "network_config": {"datapath_provider": DATAPATH},
            "workload_identity_config": {"workload_pool": f"{facts.project}.svc.id.goog"},
            "addons_config": {"gcp_filestore_csi_driver_config": {"enabled": True}},
            "node_pools": [_made(cluster, system)],
            "version": version,
        },
        needs=("service-container", "service-file"),
        kept=frozenset({"version"}),
    )


def _pool(cluster: GKECluster, facts: Facts, pool: GKEPool) -> Wanted:
    """The first one comes with its cluster."""
    key = pool_key(pool.name)
    said = {**_made(cluster, pool), "version": _version(cluster, facts, key)}
    if pool.zones:
        said["locations"] = [*dict.fromkeys([*pool.zones, *facts.zones.get(key, ())])]
    kept = frozenset({"autoscaling", "version", *(("locations",) if pool.zones else ())})
    # Where none is asked for, whatever account the nodes are is right.
    account = {"service_account"} if cluster.spec.service_account else set[str]()
    fixed = frozenset({"machine_type", "disk_size_gb", "accelerators", *account})
    return Wanted(key, k.NODE_POOL, said, needs=("cluster",), kept=kept, fixed=fixed)


def _made(cluster: GKECluster, pool: GKEPool) -> dict[str, Any]:
    """As a node pool is made. Its bounds are totals, but what it begins with is for each zone: no more than asked."""
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
            # Machines with GPUs are taken where there are some, all others evenly.
            "location_policy": "ANY" if gpu else "BALANCED",
        },
    }


def first_nodes(pool: GKEPool) -> int:
    """How many it begins with in each of its zones."""
    begin = min(max(pool.node_count, pool.min_node_count), pool.max_node_count)
    return max(begin // (len(pool.zones) or ZONES), int(pool.role == "System"))


def _version(cluster: GKECluster, facts: Facts, key: str) -> str:
    """The one that is asked for, or the newer one that runs."""
    asked, runs = minor(cluster.spec.kubernetes_version), facts.versions.get(key, "")
    if not asked:
        raise CannotMake(f"Kubernetes version {cluster.spec.kubernetes_version} is none: write one like 1.35")
    return max(asked, runs, key=numbers) if runs else asked


def numbers(version: str) -> list[int]:
    """By which versions are compared."""
    return [int(part) for part in version.split(".")]


def _refuse_overlaps(networking: GKENetworking) -> None:
    ranges = {
        "podCidr": networking.pod_cidr,
        "serviceCidr": networking.service_cidr,
        "nodeCidr": networking.node_cidr,
    }
    for (one, first), (other, second) in combinations(ranges.items(), 2):
        if IPv4Network(first, strict=False).overlaps(IPv4Network(second, strict=False)):
            raise CannotMake(f"networking.{one} {first} and networking.{other} {second} overlap: choose others")


def _refuse_zones_elsewhere(pool: GKEPool, region: str) -> None:
    if strange := [zone for zone in pool.zones if zone.rpartition("-")[0] != region]:
        raise CannotMake(f"pool {pool.name}: {', '.join(strange)} is no zone of region {region}: name some of its own")
