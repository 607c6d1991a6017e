"""The scheduler's view of a deployment: the number of replicas, and the requirements of each.

`placement_request` parses a ModelDeployment for `schedule`. It leaves out everything that does not influence the
placement, so that deployments which only differ in images or arguments share cached results.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import DeployedEngine, Member, ModelDeployment, ReplicaSpec
from modelplane_operator.api.shared import ClusterSelector
from modelplane_operator.scheduling import budget
from modelplane_operator.scheduling.cached_hash import CachedHash
from modelplane_operator.scheduling.cluster import NOTHING_SAID, Amount
from modelplane_operator.scheduling.placement import ReplicaOwner, amounts_of, pods
from modelplane_operator.scheduling.problems import (
    CacheNotFound,
    CacheNotRead,
    InvalidSelector,
    LabelConflict,
    NoEngines,
    Overdrawn,
    Problem,
)
from modelplane_operator.scheduling.taints import Toleration
from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import Device, Selector, SelectorError


@dataclass(frozen=True, slots=True)
class DeviceRequirement:
    """Devices that every pod needs, all from one device entry of its node. All selectors must match."""

    name: str
    count: int
    """Number of devices for each pod."""
    selectors: tuple[Selector, ...]
    """Compiled selectors."""


@dataclass(frozen=True, slots=True)
class MemberRequirement(CachedHash):
    """A kind of pod of an engine, and the nodes that all its copies take if they claim devices."""

    role: str
    """`Standalone`, `Leader` or `Worker`."""
    nodes: int
    """Number of nodes of all copies."""
    requests: tuple[DeviceRequirement, ...]
    """Requests of each pod."""
    amounts: Amount = NOTHING_SAID
    """CPU, memory and disk that each pod requests, for pools that are shared by device."""

    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class EngineRequirement(CachedHash):
    """An engine, whose pods run on nodes of one pool. The pods of a gang also share a fabric."""

    name: str
    members: tuple[MemberRequirement, ...]
    """Members in the order of the spec."""
    gangs: int = 0
    """Number of gangs; 0 if the pods are independent."""

    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class CacheRequirement:
    """What the ModelCache of a deployment requires of a cluster."""

    name: str
    """Name of the ModelCache."""
    labels: frozenset[str]
    """Keys of the labels that only the cache requires."""
    storage: bool
    """True if the weights need storage for caches; False if they are in a claim that a user has created."""


@dataclass(frozen=True, slots=True)
class Requirement(CachedHash):
    """The requirements of a replica. Deployments with equal requirements share all computed results."""

    engines: tuple[EngineRequirement, ...]
    """Engines in the order of the spec."""
    labels: tuple[tuple[str, str], ...] = ()
    """Labels that the cluster must have."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that do not keep the replicas off a cluster."""
    cache: CacheRequirement | None = None
    """Requirements of the ModelCache; None without one."""

    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class Failover:
    """Time after which a deployment gives up on a cluster, and the maximum number of replicas at a time."""

    after: timedelta
    """Time that a cluster may be lost before replicas are moved."""
    most: int
    """Maximum number of replicas that are given up at a time."""


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A deployment from the scheduler's point of view."""

    owner: ReplicaOwner
    """Deployment that owns the replicas."""
    replicas: int
    """Number of desired replicas, at least 0."""
    requirement: Requirement
    """Requirements of each replica."""
    problems: tuple[Problem, ...] = ()
    """Problems; while there are any, no new replica is placed."""
    failover: Failover | None = None
    """Failover settings; None if replicas are never given up."""
    staged: frozenset[str] = frozenset()
    """Clusters with all of its weights; empty without a cache."""
    coming: frozenset[str] = frozenset()
    """Clusters that will get its weights. No other cluster will, for a deployment with a cache."""

    @property
    def readable(self) -> bool:
        """True if the required hardware is known."""
        return not any(isinstance(problem, InvalidSelector | Overdrawn | NoEngines) for problem in self.problems)


class NoCache(Enum):
    """Reason why the cache of a deployment is not available."""

    NOT_READ = "it has not been read yet"
    NOT_FOUND = "there is none"


def placement_request(
    deployment: ModelDeployment,
    cache: ModelCache | NoCache = NoCache.NOT_READ,
    devices: frozenset[Device] = frozenset(),
) -> PlacementRequest:
    """Parse a deployment, and its cache if it references one; never raise. Unusable parts become problems.

    `devices` are the fleet's: the cost of evaluating the selectors on all of them is limited.
    """
    spec = deployment.replica
    metadata = deployment.metadata
    problems: list[Problem] = [] if spec.engines else [NoEngines()]
    required, conflicts = _merge_labels(spec, cache)
    if exceeded := budget.overdrawn(budget.texts(spec), devices):
        problems.append(exceeded)
        engines = ()
    else:
        engines = tuple(
            EngineRequirement(
                engine.name,
                tuple(_parse_member(engine, member, problems) for member in engine.members),
                engine.copies if any(member.role != "Standalone" for member in engine.members) else 0,
            )
            for engine in spec.engines
        )
    status = cache.status if spec.model_cache_ref and isinstance(cache, ModelCache) else None
    clusters = status.clusters if status else ()
    return PlacementRequest(
        owner=ReplicaOwner(metadata.namespace or "", metadata.name, metadata.uid or ""),
        replicas=max(deployment.spec.replicas, 0),
        requirement=Requirement(
            engines=engines,
            labels=tuple(sorted(required.items())),
            tolerations=tuple(
                Toleration(t.key or "", t.operator == "Exists", t.value or "", t.effect or "") for t in spec.tolerations
            ),
            cache=_cache_requirement(spec, cache),
        ),
        problems=(*problems, *_cache_problems(spec, cache), *conflicts),
        failover=_parse_failover(spec, deployment.spec.replicas),
        staged=frozenset(cluster.name for cluster in clusters if cluster.volume),
        coming=frozenset(cluster.name for cluster in clusters if not cluster.volume),
    )


def _merge_labels(spec: ReplicaSpec, cache: ModelCache | NoCache) -> tuple[Mapping[str, str], Iterable[LabelConflict]]:
    """Return the labels that the deployment and its cache require together, and their conflicts."""
    own = _match_labels(spec.cluster_selector)
    uses_cache = spec.model_cache_ref is not None and isinstance(cache, ModelCache)
    of_cache = _match_labels(cache.spec.cluster_selector if uses_cache and isinstance(cache, ModelCache) else None)
    conflicts = [
        LabelConflict(key, own[key], of_cache[key]) for key in sorted(own) if of_cache.get(key, own[key]) != own[key]
    ]
    return {**of_cache, **own}, conflicts


def _cache_requirement(spec: ReplicaSpec, cache: ModelCache | NoCache) -> CacheRequirement | None:
    """Return what the cache of a deployment requires of a cluster; None without one, or while it is not available."""
    if spec.model_cache_ref is None or not isinstance(cache, ModelCache):
        return None
    of_cache = _match_labels(cache.spec.cluster_selector).keys() - _match_labels(spec.cluster_selector).keys()
    return CacheRequirement(cache.key.name, frozenset(of_cache), cache.spec.source != "PersistentVolumeClaim")


def _match_labels(selector: ClusterSelector | None) -> Mapping[str, str]:
    """Return the labels of a selector; none without a selector."""
    return selector.match_labels if selector else {}


def _cache_problems(spec: ReplicaSpec, cache: ModelCache | NoCache) -> Iterator[Problem]:
    """Yield the problem of a referenced cache that is not available."""
    if spec.model_cache_ref is None:
        return
    if cache is NoCache.NOT_READ:
        yield CacheNotRead(spec.model_cache_ref.name)
    if cache is NoCache.NOT_FOUND:
        yield CacheNotFound(spec.model_cache_ref.name)


_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_PERCENT = re.compile(r"(\d+)%", re.ASCII)


def _parse_failover(spec: ReplicaSpec, replicas: int) -> Failover | None:
    """Parse the failover; None, which means never, also if it is invalid."""
    if spec.failover is None:
        return None
    time, percentage = _TIME.fullmatch(spec.failover.after), _PERCENT.fullmatch(spec.failover.max_share)
    if time is None or percentage is None or not spec.failover.after:
        return None
    hours, minutes, seconds = (int(number or 0) for number in time.groups())
    max_replicas = -(-replicas * int(percentage[1]) // 100)  # rounded up, so that a single replica can be given up, too
    return Failover(timedelta(hours=hours, minutes=minutes, seconds=seconds), max_replicas)


def _parse_member(engine: DeployedEngine, member: Member, problems: list[Problem]) -> MemberRequirement:
    """Parse a member. Invalid selectors are added to the problems."""
    devices = member.node_selector.devices if member.node_selector else ()
    requests: list[DeviceRequirement] = []
    for device in devices:
        try:
            selectors = tuple(cel.compile(selector.cel or "") for selector in device.selectors)
            requests.append(DeviceRequirement(device.name, device.count, selectors))
        except SelectorError as error:
            problems.append(InvalidSelector(engine.name, member.role, device.name, str(error)))
    nodes = pods(member.role, member.worker.nodes if member.worker else None) * engine.copies
    return MemberRequirement(member.role, nodes, tuple(requests), amounts_of(member.template))
