"""List a cluster's resources on Google Cloud: a table of the lists for each kind.

Clusters and node pools are recognized by labels, networks by their description. Leftovers of workloads are recognized
by the cluster's network, which only this cluster uses, and by GKE's naming.

`Gcp.observe` runs the lists of the requested kinds in parallel. A list raises ApiError instead of returning a part:
`decide` must not take a missing item for a deleted one.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from kubeloop.errors import NotFound, NotPropagated
from kubeloop.objects import entries
from modelplane_operator.api import labels, names
from modelplane_operator.clouds.gke.changes import PEERINGS, RESOURCE, UID, Where, parse_description
from modelplane_operator.clouds.gke.errors import of_operation
from modelplane_operator.clouds.gke.render import DATAPATH, SERVICES, cluster_name, minor, pool_key
from modelplane_operator.clouds.gke.render import kinds as k
from modelplane_operator.clouds.resources import ExistingResource, Owner, State

FAILURE_SHOWN_FOR: Final = timedelta(seconds=150)
"""Time for which the failure of a creation is reported, a little longer than the planner keeps it for inspection."""

Item = Mapping[str, Any]
"""Resource in a response of Google."""


class Session(Protocol):
    """The methods of a session that lists use."""

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
class ListContext:
    """The owner whose resources are listed, and the session."""

    session: Session
    where: Where
    owner: Owner
    now: datetime

    @property
    def cluster(self) -> str:
        """Return the cluster's name on GKE."""
        return cluster_name(self.owner.cluster, self.owner.uid)

    @property
    def network(self) -> str:
        """Return the name of the cluster's network, which is also its subnet's."""
        return names.on_cloud(self.owner.cluster, self.owner.uid)

    def is_within(self, link: str) -> bool:
        """True if a link refers to the cluster's network or subnet."""
        return link.rpartition("/")[2] == self.network

    async def get(self, service: str, path: str) -> Item | None:
        """Get an item; None if it does not exist."""
        try:
            return await self.session.http("GET", service, path)
        except NotFound:
            return None


Lister = Callable[[ListContext], Awaitable[list[ExistingResource]]]


async def services(context: ListContext) -> list[ExistingResource]:
    """List enabled services. They belong to the whole project and are never disabled."""
    enabled: list[ExistingResource] = []
    for service in SERVICES:
        name = f"{service}.googleapis.com"
        item = await context.get("serviceusage", f"services/{name}")
        if item is not None and item.get("state") == "ENABLED":
            enabled.append(ExistingResource(f"service-{service}", k.SERVICE, name, "Ready", context.owner.uid))
    return enabled


def _list_compute(kind: str, key: str) -> Lister:
    """Return a lister of a kind of Compute Engine that a cluster has one of."""

    async def list_resource(context: ListContext) -> list[ExistingResource]:
        """Find the resource by its unique name, and its state by its operations: an accepted call can fail later."""
        path = context.where.collection(kind)
        item = await context.get("compute", f"{path}/{context.network}")
        scope = path.rpartition("/")[0]
        query = {"filter": f"targetLink eq .*/{path}/{context.network}"}
        operations = await context.session.pages("compute", f"{scope}/operations", "items", query)
        own = [
            operation
            for operation in operations
            if str(operation.get("targetLink", "")).endswith(f"/{path}/{context.network}")
        ]
        last = max(own, key=lambda operation: str(operation.get("insertTime", "")), default=None)
        if item is None:
            return _find_pending(context, kind, key, last)
        tags = parse_description(item.get("description", ""))
        state, message = _state_of(last)
        outputs = {"selfLink": str(item.get("selfLink", ""))}
        name, owner = tags.get(RESOURCE, key), tags.get(UID, "")
        return [ExistingResource(name, kind, context.network, state, owner, outputs, message=message)]

    return list_resource


def _state_of(operation: Item | None) -> tuple[State, str]:
    """Return the state of a resource by its latest operation, and the operation's error."""
    if operation is None:
        return "Ready", ""
    if operation.get("status") != "DONE":
        states: Mapping[str, State] = {"insert": "Creating", "delete": "Deleting"}
        return states.get(str(operation.get("operationType")), "Updating"), ""
    return "Ready", str(of_operation("", operation["error"])).removeprefix(": ") if operation.get("error") else ""


def _find_pending(context: ListContext, kind: str, key: str, operation: Item | None) -> list[ExistingResource]:
    """Return a resource that does not exist yet: its creation is running, or has failed recently."""
    if operation is None or operation.get("operationType") != "insert":
        return []
    if operation.get("status") != "DONE":
        return [ExistingResource(key, kind, context.network, "Creating", context.owner.uid)]
    if not operation.get("error") or context.now - datetime.fromisoformat(operation["endTime"]) > FAILURE_SHOWN_FOR:
        return []
    return [ExistingResource(key, kind, context.network, "Failed", context.owner.uid, message=_state_of(operation)[1])]


_CLUSTER_STATES: Final[Mapping[str, State]] = {
    "PROVISIONING": "Creating",
    "RUNNING": "Ready",
    "RECONCILING": "Updating",
    "STOPPING": "Deleting",
    "ERROR": "Failed",
    "DEGRADED": "Ready",
}
"""States by GKE's status. A degraded cluster works."""
_POOL_STATES: Final[Mapping[str, State]] = {**_CLUSTER_STATES, "RUNNING_WITH_ERROR": "Ready"}
"""States of node pools, which have one status more than clusters."""


async def clusters(context: ListContext) -> list[ExistingResource]:
    """List the cluster and its node pools, which are part of the same response."""
    try:
        item = await context.session.gke("get_cluster", name=context.where.cluster(context.cluster))
    except NotFound:
        return []
    answer = await context.session.gke("list_operations", parent=context.where.parent)
    failures = _failures(answer.operations)
    outputs = {"endpoint": f"https://{item.endpoint}", "authority": item.master_auth.cluster_ca_certificate}
    owner = item.resource_labels.get(UID, "")
    cluster = ExistingResource(
        item.resource_labels.get(RESOURCE, "cluster"),
        k.CLUSTER,
        context.cluster,
        _CLUSTER_STATES.get(_name(item.status), "Updating"),
        owner,
        outputs if item.endpoint and outputs["authority"] else {},
        {"version": minor(item.current_master_version)},
        _problems(item) or failures.get(f"/clusters/{context.cluster}", "") or _policy_warning(item),
    )
    return [cluster, *(_to_pool(context, node_pool, owner, failures) for node_pool in item.node_pools)]


def _policy_warning(item: Any) -> str:
    """Return a warning if the cluster does not enforce NetworkPolicies; otherwise an empty string.

    The setting is immutable, and old clusters were created without it.
    """
    if _name(item.network_config.datapath_provider) == DATAPATH or item.network_policy.enabled:
        return ""
    return (
        "NetworkPolicies are not enforced, so that the fences around tenants keep nothing out: the cluster was made "
        "without Dataplane V2; make another cluster, and delete this one"
    )


def _to_pool(context: ListContext, item: Any, owner: str, failures: Mapping[str, str]) -> ExistingResource:
    """Return a node pool with the properties that can be compared."""
    config, scaling = item.config, item.autoscaling
    pool = config.labels.get(labels.POOL, "")
    live: dict[str, Any] = {
        "machine_type": config.machine_type,
        "disk_size_gb": config.disk_size_gb,
        "service_account": config.service_account,
        "accelerators": [
            {"type": accelerator.accelerator_type, "count": accelerator.accelerator_count}
            for accelerator in config.accelerators
        ],
        "locations": [*item.locations],
        "autoscaling": {
            "total_min_node_count": scaling.total_min_node_count,
            "total_max_node_count": scaling.total_max_node_count,
            "location_policy": _name(scaling.location_policy),
        },
        "version": minor(item.version),
    }
    is_own = bool(pool) and config.resource_labels.get(UID) == owner
    return ExistingResource(
        pool_key(pool) if pool else pool_key(item.name),
        k.NODE_POOL,
        f"{context.cluster}/{item.name}",
        _POOL_STATES.get(_name(item.status), "Updating"),
        owner if is_own else "",
        live=live,
        message=_problems(item) or failures.get(f"/clusters/{context.cluster}/nodePools/{item.name}", ""),
        swept=not is_own
        and owner == context.owner.uid,  # another party's pool in this cluster is deleted together with it
    )


def _name(value: Any) -> str:
    """Return the name of an enum member. A value that the SDK does not know is a number."""
    return str(getattr(value, "name", value))


def _problems(item: Any) -> str:
    """Return the problems that GKE reports."""
    conditions = (
        f"{_name(condition.canonical_code) if condition.canonical_code else _name(condition.code)}: {condition.message}"
        for condition in item.conditions
    )
    return "; ".join(conditions) or str(item.status_message)


def _failures(operations: Collection[Any]) -> Mapping[str, str]:
    """Return the error of each latest operation that failed, by the end of its target's link.

    An accepted call can still fail later.
    """
    latest: dict[str, Any] = {}
    for operation in sorted(operations, key=lambda operation: str(operation.start_time)):
        if match := re.search(r"/clusters/[^/]+(/nodePools/[^/]+)?$", operation.target_link):
            latest[match[0]] = operation
    return {link: str(operation.error.message) for link, operation in latest.items() if operation.error.message}


# Leftovers of workloads ----------------------------------------------------------------------------------------------


def _to_leftover(kind: str, item: Item, message: str = "") -> ExistingResource:
    """Return a leftover resource. Its id is its path within the project, the end of its link."""
    path = str(item["selfLink"]).partition("/projects/")[2].partition("/")[2]
    return ExistingResource(
        path, kind, path, "Ready", "", message=message or str(item.get("description", "")), swept=True
    )


_GKE_NAME = re.compile("(gke|k8s|k8s1|k8s2)-")
"""Beginning of the names that GKE and Kubernetes give to their resources."""


async def _list_firewalls(context: ListContext) -> list[Item]:
    """List the firewalls in the cluster's network that GKE has created."""
    items = await context.session.pages("compute", "global/firewalls", "items")
    return [
        firewall
        for firewall in items
        if context.is_within(str(firewall.get("network", ""))) and _GKE_NAME.match(str(firewall["name"]))
    ]


async def firewalls(context: ListContext) -> list[ExistingResource]:
    """List firewalls that GKE has created for load balancers and nodes."""
    return [_to_leftover(k.FIREWALL, item) for item in await _list_firewalls(context)]


def _list_balancers(kind: str, collection: str) -> Lister:
    """Return a lister of a kind that load balancers consist of."""

    async def list_parts(context: ListContext) -> list[ExistingResource]:
        """List parts of load balancers.

        Each has a firewall in the cluster's network with the same name, or with the name of its backend service.
        """
        names_of_firewalls = {
            str(candidate["name"]).removeprefix("k8s-fw-") for candidate in await _list_firewalls(context)
        }

        def is_own(item: Item) -> bool:
            """True if a firewall of the cluster names the item, or Kubernetes created it in the cluster's network."""
            backend = str(item.get("backendService", "")).rpartition("/")[2]
            return (
                item["name"] in names_of_firewalls
                or backend in names_of_firewalls
                or (
                    "kubernetes.io/" in str(item.get("description", ""))
                    and context.is_within(str(item.get("network", "")))
                )
            )

        items = await context.session.pages("compute", f"regions/{context.where.region}/{collection}", "items")
        return [_to_leftover(kind, candidate) for candidate in items if is_own(candidate)]

    return list_parts


async def endpoint_groups(context: ListContext) -> list[ExistingResource]:
    """List network endpoint groups in the cluster's network."""
    items = await context.session.pages("compute", "aggregated/networkEndpointGroups", "items")
    own = (
        group
        for group in items
        if context.is_within(str(group.get("network", ""))) and _GKE_NAME.match(str(group["name"]))
    )
    return [_to_leftover(k.ENDPOINT_GROUP, group) for group in own]


async def disks(context: ListContext) -> list[ExistingResource]:
    """List the disks of volumes that are not attached to a node."""
    items = await context.session.pages("compute", "aggregated/disks", "items")
    return [
        _to_leftover(k.DISK, disk)
        for disk in items
        if disk.get("labels", {}).get("goog-k8s-cluster-name") == context.cluster and not disk.get("users")
    ]


async def peerings(context: ListContext) -> list[ExistingResource]:
    """List Filestore's peerings, which remain after the last instance was deleted. Other peerings are foreign."""
    path = f"{context.where.collection(k.NETWORK)}/{context.network}"
    peering_names = [str(peering["name"]) for peering in entries(await context.get("compute", path) or {}, "peerings")]
    paths = [f"{path}{PEERINGS}{name}" for name in peering_names if name.startswith("filestore-peer-")]
    return [ExistingResource(peering, k.PEERING, peering, "Ready", "", swept=True) for peering in paths]


async def files(context: ListContext) -> list[ExistingResource]:
    """List Filestore instances in the cluster's network that the CSI driver created."""
    try:
        items = await context.session.pages("file", "locations/-/instances", "instances")
    except NotPropagated:  # the service is not enabled in the project, so it has no instances
        return []
    resources: list[ExistingResource] = []
    for instance in items:
        is_inside = any(context.is_within(str(network.get("network", ""))) for network in instance.get("networks", ()))
        if is_inside and "storage_gke_io_created-by" in instance.get("labels", {}):
            path = str(instance["name"]).partition("/")[2].partition("/")[2]
            state: State = "Deleting" if instance.get("state") == "DELETING" else "Ready"
            resources.append(
                ExistingResource(
                    path, k.FILES, path, state, "", message=str(instance.get("statusMessage", "")), swept=True
                )
            )
    return resources


LISTERS: Final[tuple[tuple[tuple[str, ...], Lister], ...]] = (
    ((k.SERVICE,), services),
    ((k.NETWORK,), _list_compute(k.NETWORK, "network")),
    ((k.SUBNETWORK,), _list_compute(k.SUBNETWORK, "subnet")),
    ((k.CLUSTER, k.NODE_POOL), clusters),
    ((k.FORWARDING_RULE,), _list_balancers(k.FORWARDING_RULE, "forwardingRules")),
    ((k.TARGET_POOL,), _list_balancers(k.TARGET_POOL, "targetPools")),
    ((k.BACKEND_SERVICE,), _list_balancers(k.BACKEND_SERVICE, "backendServices")),
    ((k.ENDPOINT_GROUP,), endpoint_groups),
    ((k.FIREWALL,), firewalls),
    ((k.DISK,), disks),
    ((k.FILES,), files),
    ((k.PEERING,), peerings),
)
"""Lists, each with the kinds that it returns."""


def listers(kinds: Collection[str]) -> Iterator[tuple[tuple[str, ...], Lister]]:
    """Return the lists that are needed to observe these kinds."""
    return ((listed_kinds, lister) for listed_kinds, lister in LISTERS if {*listed_kinds} & {*kinds})
