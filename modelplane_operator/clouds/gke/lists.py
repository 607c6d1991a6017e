"""What there is on Google Cloud of a cluster: for each kind the lists that show it, and how they are read.

Clusters and node pools are told by labels, networks by their description; what ran in the cluster has made is told by
the cluster's own network, which nothing else is to be in, and by how GKE names it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from kubeloop.errors import NotFound, NotSettled
from kubeloop.objects import entries
from modelplane_operator.api import labels, names
from modelplane_operator.clouds.gke.changes import PEERINGS, RESOURCE, UID, Where, described_as
from modelplane_operator.clouds.gke.errors import of_operation
from modelplane_operator.clouds.gke.render import DATAPATH, SERVICES, cluster_name, minor, pool_key
from modelplane_operator.clouds.gke.render import kinds as k
from modelplane_operator.clouds.resources import Found, Owner, State

TOLD: Final = timedelta(seconds=150)
"""How long the failure of what was never made stands for it: a little longer than the planner leaves it to be read."""

Item = Mapping[str, Any]


class Session(Protocol):
    """What lists are asked of."""

    async def gke(self, operation: str, **request: Any) -> Any: ...

    async def http(
        self,
        method: str,
        service: str,
        path: str,
        body: Item | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Item: ...

    async def pages(self, service: str, path: str, items: str, query: Mapping[str, str] | None = None) -> list[Any]: ...


@dataclass(frozen=True, slots=True)
class Look:
    """Whose resources are looked for, and where."""

    session: Session
    where: Where
    owner: Owner
    now: datetime

    @property
    def cluster(self) -> str:
        """What GKE calls it."""
        return cluster_name(self.owner.cluster, self.owner.uid)

    @property
    def network(self) -> str:
        """The name of its network, and of its subnet."""
        return names.on_cloud(self.owner.cluster, self.owner.uid)

    def is_within(self, link: str) -> bool:
        """Whether that is a link to our network, or to our subnet."""
        return link.rpartition("/")[2] == self.network

    async def one(self, service: str, path: str) -> Item | None:
        try:
            return await self.session.http("GET", service, path)
        except NotFound:
            return None


Lister = Callable[[Look], Awaitable[list[Found]]]


async def services(look: Look) -> list[Found]:
    """Those that are enabled. They are everybody's in the project, and nobody takes them away."""
    found: list[Found] = []
    for service in SERVICES:
        name = f"{service}.googleapis.com"
        item = await look.one("serviceusage", f"services/{name}")
        if item is not None and item.get("state") == "ENABLED":
            found.append(Found(f"service-{service}", k.SERVICE, name, "Ready", look.owner.uid))
    return found


def _of_compute(kind: str, key: str) -> Lister:
    async def listed(look: Look) -> list[Found]:
        """By its name, which no other has, and by its operations: what was accepted may fail later."""
        path = look.where.collection(kind)
        item = await look.one("compute", f"{path}/{look.network}")
        scope = path.rpartition("/")[0]
        asked = {"filter": f"targetLink eq .*/{path}/{look.network}"}
        operations = await look.session.pages("compute", f"{scope}/operations", "items", asked)
        mine = [one for one in operations if str(one.get("targetLink", "")).endswith(f"/{path}/{look.network}")]
        last = max(mine, key=lambda one: str(one.get("insertTime", "")), default=None)
        if item is None:
            return _unmade(look, kind, key, last)
        said = described_as(item.get("description", ""))
        state, message = _by(last)
        outputs = {"selfLink": str(item.get("selfLink", ""))}
        name, owner = said.get(RESOURCE, key), said.get(UID, "")
        return [Found(name, kind, look.network, state, owner, outputs, message=message)]

    return listed


def _by(operation: Item | None) -> tuple[State, str]:
    """How a resource stands by its latest operation."""
    if operation is None:
        return "Ready", ""
    if operation.get("status") != "DONE":
        states: Mapping[str, State] = {"insert": "Creating", "delete": "Deleting"}
        return states.get(str(operation.get("operationType")), "Updating"), ""
    return "Ready", str(of_operation("", operation["error"])).removeprefix(": ") if operation.get("error") else ""


def _unmade(look: Look, kind: str, key: str, operation: Item | None) -> list[Found]:
    """What is being made and not to be seen yet, and what could not be made."""
    if operation is None or operation.get("operationType") != "insert":
        return []
    if operation.get("status") != "DONE":
        return [Found(key, kind, look.network, "Creating", look.owner.uid)]
    if not operation.get("error") or look.now - datetime.fromisoformat(operation["endTime"]) > TOLD:
        return []
    return [Found(key, kind, look.network, "Failed", look.owner.uid, message=_by(operation)[1])]


_CLUSTER_STATES: Final[Mapping[str, State]] = {
    "PROVISIONING": "Creating",
    "RUNNING": "Ready",
    "RECONCILING": "Updating",
    "STOPPING": "Deleting",
    "ERROR": "Failed",
    "DEGRADED": "Ready",
}
_POOL_STATES: Final[Mapping[str, State]] = {**_CLUSTER_STATES, "RUNNING_WITH_ERROR": "Ready"}


async def clusters(look: Look) -> list[Found]:
    """The cluster, and its node pools, which come with the same answer."""
    try:
        item = await look.session.gke("get_cluster", name=look.where.cluster(look.cluster))
    except NotFound:
        return []
    listed = await look.session.gke("list_operations", parent=look.where.parent)
    failed = _failed(listed.operations)
    outputs = {"endpoint": f"https://{item.endpoint}", "authority": item.master_auth.cluster_ca_certificate}
    owner = item.resource_labels.get(UID, "")
    cluster = Found(
        item.resource_labels.get(RESOURCE, "cluster"),
        k.CLUSTER,
        look.cluster,
        _CLUSTER_STATES.get(_name(item.status), "Updating"),
        owner,
        outputs if item.endpoint and outputs["authority"] else {},
        {"version": minor(item.current_master_version)},
        _said(item) or failed.get(f"/clusters/{look.cluster}", "") or _unenforced(item),
    )
    return [cluster, *(_pool(look, one, owner, failed) for one in item.node_pools)]


def _unenforced(item: Any) -> str:
    """Return that nothing enforces NetworkPolicies in the cluster; empty when something does.

    It cannot be changed: clusters that were made before this was asked for are without.
    """
    if _name(item.network_config.datapath_provider) == DATAPATH or item.network_policy.enabled:
        return ""
    return (
        "NetworkPolicies are not enforced, so that the fences around tenants keep nothing out: the cluster was made "
        "without Dataplane V2; make another cluster, and delete this one"
    )


def _pool(look: Look, item: Any, owner: str, failed: Mapping[str, str]) -> Found:
    config, scaling = item.config, item.autoscaling
    pool = config.labels.get(labels.POOL, "")
    live: dict[str, Any] = {
        "machine_type": config.machine_type,
        "disk_size_gb": config.disk_size_gb,
        "service_account": config.service_account,
        "accelerators": [{"type": one.accelerator_type, "count": one.accelerator_count} for one in config.accelerators],
        "locations": [*item.locations],
        "autoscaling": {
            "total_min_node_count": scaling.total_min_node_count,
            "total_max_node_count": scaling.total_max_node_count,
            "location_policy": _name(scaling.location_policy),
        },
        "version": minor(item.version),
    }
    ours = bool(pool) and config.resource_labels.get(UID) == owner
    return Found(
        pool_key(pool) if pool else pool_key(item.name),
        k.NODE_POOL,
        f"{look.cluster}/{item.name}",
        _POOL_STATES.get(_name(item.status), "Updating"),
        owner if ours else "",
        live=live,
        message=_said(item) or failed.get(f"/clusters/{look.cluster}/nodePools/{item.name}", ""),
        swept=not ours and owner == look.owner.uid,  # somebody's in our cluster: it goes with that
    )


def _name(value: Any) -> str:
    """Of a member of an enumeration; what a newer GKE has more is a number here."""
    return str(getattr(value, "name", value))


def _said(item: Any) -> str:
    """What GKE says is wrong."""
    conditions = (
        f"{_name(one.canonical_code) if one.canonical_code else _name(one.code)}: {one.message}"
        for one in item.conditions
    )
    return "; ".join(conditions) or str(item.status_message)


def _failed(operations: Collection[Any]) -> Mapping[str, str]:
    """Of what the latest operation has failed, by the end of its link, and why: what was accepted may yet fail."""
    latest: dict[str, Any] = {}
    for one in sorted(operations, key=lambda one: str(one.start_time)):
        if found := re.search(r"/clusters/[^/]+(/nodePools/[^/]+)?$", one.target_link):
            latest[found[0]] = one
    return {link: str(one.error.message) for link, one in latest.items() if one.error.message}


# What is left behind ------------------------------------------------------------------------------------------------


def _swept(kind: str, item: Item, message: str = "") -> Found:
    """By its path within the project, which its link ends with."""
    path = str(item["selfLink"]).partition("/projects/")[2].partition("/")[2]
    return Found(path, kind, path, "Ready", "", message=message or str(item.get("description", "")), swept=True)


_BY_GKE = re.compile("(gke|k8s|k8s1|k8s2)-")


async def _firewalls(look: Look) -> list[Item]:
    listed = await look.session.pages("compute", "global/firewalls", "items")
    return [one for one in listed if look.is_within(str(one.get("network", ""))) and _BY_GKE.match(str(one["name"]))]


async def firewalls(look: Look) -> list[Found]:
    return [_swept(k.FIREWALL, one) for one in await _firewalls(look)]


def _of_balancers(kind: str, collection: str) -> Lister:
    async def listed(look: Look) -> list[Found]:
        """Of load balancers: a firewall in our network lets each of them through and has its name, or that of what it
        leads to."""
        known = {str(one["name"]).removeprefix("k8s-fw-") for one in await _firewalls(look)}

        def is_ours(item: Item) -> bool:
            led_to = str(item.get("backendService", "")).rpartition("/")[2]
            return item["name"] in known or led_to in known or _is_inside(look, item)

        items = await look.session.pages("compute", f"regions/{look.where.region}/{collection}", "items")
        return [_swept(kind, one) for one in items if is_ours(one)]

    return listed


def _is_inside(look: Look, item: Item) -> bool:
    """Whether Kubernetes has made it, within our network."""
    return "kubernetes.io/" in str(item.get("description", "")) and look.is_within(str(item.get("network", "")))


async def endpoint_groups(look: Look) -> list[Found]:
    items = await look.session.pages("compute", "aggregated/networkEndpointGroups", "items")
    mine = (one for one in items if look.is_within(str(one.get("network", ""))) and _BY_GKE.match(str(one["name"])))
    return [_swept(k.ENDPOINT_GROUP, one) for one in mine]


async def disks(look: Look) -> list[Found]:
    """Of volumes, and of no node any more."""
    items = await look.session.pages("compute", "aggregated/disks", "items")
    return [
        _swept(k.DISK, one)
        for one in items
        if one.get("labels", {}).get("goog-k8s-cluster-name") == look.cluster and not one.get("users")
    ]


async def peerings(look: Look) -> list[Found]:
    """Those of Filestore, which stay when its last instance has gone; anybody else's are theirs."""
    path = f"{look.where.collection(k.NETWORK)}/{look.network}"
    known = [str(one["name"]) for one in entries(await look.one("compute", path) or {}, "peerings")]
    mine = [f"{path}{PEERINGS}{name}" for name in known if name.startswith("filestore-peer-")]
    return [Found(one, k.PEERING, one, "Ready", "", swept=True) for one in mine]


async def files(look: Look) -> list[Found]:
    """What Filestore has in our network, by the driver that Kubernetes has it made by."""
    try:
        items = await look.session.pages("file", "locations/-/instances", "instances")
    except NotSettled:  # that service is not enabled in the project, and has nothing there
        return []
    found: list[Found] = []
    for one in items:
        inside = any(look.is_within(str(net.get("network", ""))) for net in one.get("networks", ()))
        if inside and "storage_gke_io_created-by" in one.get("labels", {}):
            path = str(one["name"]).partition("/")[2].partition("/")[2]
            state: State = "Deleting" if one.get("state") == "DELETING" else "Ready"
            found.append(Found(path, k.FILES, path, state, "", message=str(one.get("statusMessage", "")), swept=True))
    return found


LISTERS: Final[tuple[tuple[tuple[str, ...], Lister], ...]] = (
    ((k.SERVICE,), services),
    ((k.NETWORK,), _of_compute(k.NETWORK, "network")),
    ((k.SUBNETWORK,), _of_compute(k.SUBNETWORK, "subnet")),
    ((k.CLUSTER, k.NODE_POOL), clusters),
    ((k.FORWARDING_RULE,), _of_balancers(k.FORWARDING_RULE, "forwardingRules")),
    ((k.TARGET_POOL,), _of_balancers(k.TARGET_POOL, "targetPools")),
    ((k.BACKEND_SERVICE,), _of_balancers(k.BACKEND_SERVICE, "backendServices")),
    ((k.ENDPOINT_GROUP,), endpoint_groups),
    ((k.FIREWALL,), firewalls),
    ((k.DISK,), disks),
    ((k.FILES,), files),
    ((k.PEERING,), peerings),
)
"""The kinds that each list tells of."""


def listers(kinds: Collection[str]) -> Iterator[tuple[tuple[str, ...], Lister]]:
    """The lists to ask for, to know of these kinds."""
    return ((told, lister) for told, lister in LISTERS if {*told} & {*kinds})
