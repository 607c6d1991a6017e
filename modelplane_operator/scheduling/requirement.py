"""What a deployment asks for: how many replicas, and what each needs of a cluster."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from modelplane_operator.api.model_cache import CachedCluster, ModelCache
from modelplane_operator.api.model_deployment import DeployedEngine, DeviceRequest, Member, ModelDeployment, ReplicaSpec
from modelplane_operator.api.shared import ClusterSelector
from modelplane_operator.scheduling import budget
from modelplane_operator.scheduling.cached_hash import CachedHash
from modelplane_operator.scheduling.placement import ReplicaOwner, pods
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
    """Devices that every pod needs, all from one device entry of its node; every selector must hold."""

    name: str
    count: int
    selectors: tuple[Selector, ...]


@dataclass(frozen=True, slots=True)
class MemberRequirement(CachedHash):
    """One kind of pod of an engine, and how many nodes all copies of it take when they claim devices."""

    role: str
    nodes: int
    requests: tuple[DeviceRequirement, ...]

    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class EngineRequirement(CachedHash):
    """Pods that must run on the nodes of one pool; those of a gang, of which there may be copies, on one fabric."""

    name: str
    members: tuple[MemberRequirement, ...]
    gangs: int = 0
    """How many; none where each pod is for itself."""

    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class Requirement(CachedHash):
    """What one replica needs of a cluster. Deployments with equal needs share all that is worked out for one."""

    engines: tuple[EngineRequirement, ...]
    labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[Toleration, ...] = ()

    __hash__ = CachedHash.__hash__


@dataclass(frozen=True, slots=True)
class Failover:
    """When a deployment gives up on a cluster, and on how many replicas at a time."""

    after: timedelta
    most: int


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """A deployment, as the scheduler sees it."""

    owner: ReplicaOwner
    replicas: int
    requirement: Requirement
    problems: tuple[Problem, ...] = ()
    """While there are any, nothing new is placed."""
    failover: Failover | None = None
    staged: frozenset[str] = frozenset()
    """Clusters that hold all of its weights; without a cache there are none."""
    coming: frozenset[str] = frozenset()
    """Clusters to which its weights are to come. To all others of a deployment with a cache they never do."""

    @property
    def readable(self) -> bool:
        """Whether it is known what hardware is asked for."""
        return not any(isinstance(problem, InvalidSelector | Overdrawn | NoEngines) for problem in self.problems)


class NoCache(Enum):
    """Why the cache that a deployment names is not at hand."""

    NOT_READ = "it has not been read yet"
    NOT_FOUND = "there is none"


def placement_request(
    deployment: ModelDeployment,
    cache: ModelCache | NoCache = NoCache.NOT_READ,
    devices: frozenset[Device] = frozenset(),
) -> PlacementRequest:
    """Read a deployment, and the cache if it names one; what cannot be used becomes a problem. Never raises.

    `devices` are those of the fleet: what it takes to ask them all is bounded.
    """
    spec = deployment.replica
    metadata = deployment.metadata
    problems: list[Problem] = [] if spec.engines else [NoEngines()]
    wanted, conflicts = _labels(spec, cache)
    if found := budget.overdrawn(budget.texts(spec), devices):
        problems.append(found)
        engines = ()
    else:
        engines = tuple(_engine(engine, problems) for engine in spec.engines)
    clusters = _cached(cache) if spec.model_cache_ref and isinstance(cache, ModelCache) else ()
    return PlacementRequest(
        owner=ReplicaOwner(metadata.namespace or "", metadata.name, metadata.uid or ""),
        replicas=max(deployment.spec.replicas, 0),
        requirement=Requirement(
            engines=engines,
            labels=tuple(sorted(wanted.items())),
            tolerations=tuple(
                Toleration(t.key or "", t.operator == "Exists", t.value or "", t.effect or "") for t in spec.tolerations
            ),
        ),
        problems=(*problems, *_cache_problems(spec, cache), *conflicts),
        failover=_failover(spec, deployment.spec.replicas),
        staged=frozenset(one.name for one in clusters if one.volume),
        coming=frozenset(one.name for one in clusters if not one.volume),
    )


def _cached(cache: ModelCache) -> Sequence[CachedCluster]:
    return cache.status.clusters if cache.status else ()


def _labels(spec: ReplicaSpec, cache: ModelCache | NoCache) -> tuple[Mapping[str, str], Iterable[LabelConflict]]:
    """What the deployment and its cache together want; a key on which they differ can be met by no cluster."""
    mine = _match_labels(spec.cluster_selector)
    uses = spec.model_cache_ref is not None and isinstance(cache, ModelCache)
    theirs = _match_labels(cache.spec.cluster_selector if uses and isinstance(cache, ModelCache) else None)
    conflicts = [
        LabelConflict(key, mine[key], theirs[key]) for key in sorted(mine) if theirs.get(key, mine[key]) != mine[key]
    ]
    return {**theirs, **mine}, conflicts


def _match_labels(selector: ClusterSelector | None) -> Mapping[str, str]:
    return selector.match_labels if selector else {}


def _cache_problems(spec: ReplicaSpec, cache: ModelCache | NoCache) -> Iterator[Problem]:
    if spec.model_cache_ref is None:
        return
    if cache is NoCache.NOT_READ:
        yield CacheNotRead(spec.model_cache_ref.name)
    if cache is NoCache.NOT_FOUND:
        yield CacheNotFound(spec.model_cache_ref.name)


_TIME = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_PERCENT = re.compile(r"(\d+)%", re.ASCII)


def _failover(spec: ReplicaSpec, replicas: int) -> Failover | None:
    """None, which means never, too when it cannot be read."""
    if spec.failover is None:
        return None
    time, share = _TIME.fullmatch(spec.failover.after), _PERCENT.fullmatch(spec.failover.max_share)
    if time is None or share is None or not spec.failover.after:
        return None
    hours, minutes, seconds = (int(part or 0) for part in time.groups())
    most = -(-replicas * int(share[1]) // 100)  # rounded up: a single replica can be given up too
    return Failover(timedelta(hours=hours, minutes=minutes, seconds=seconds), most)


def _engine(engine: DeployedEngine, problems: list[Problem]) -> EngineRequirement:
    gangs = engine.copies if any(member.role != "Standalone" for member in engine.members) else 0
    return EngineRequirement(engine.name, tuple(_member(engine, member, problems) for member in engine.members), gangs)


def _member(engine: DeployedEngine, member: Member, problems: list[Problem]) -> MemberRequirement:
    devices = member.node_selector.devices if member.node_selector else ()
    requests: list[DeviceRequirement] = []
    for device in devices:
        try:
            requests.append(_request(device))
        except SelectorError as error:
            problems.append(InvalidSelector(engine.name, member.role, device.name, str(error)))
    nodes = pods(member.role, member.worker.nodes if member.worker else None) * engine.copies
    return MemberRequirement(member.role, nodes, tuple(requests))


def _request(device: DeviceRequest) -> DeviceRequirement:
    return DeviceRequirement(
        device.name, device.count, tuple(cel.compile(selector.cel or "") for selector in device.selectors)
    )
