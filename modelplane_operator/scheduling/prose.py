"""Turn the scheduler's reasons into sentences. Equal decisions read the same, and no text grows with the fleet.

Conditions of ModelDeployments and the answers of `modelplane why` and `plan` have these sentences. Their order is the
decision's, so that a status does not change while nothing happens.
"""

from collections import Counter
from collections.abc import Sequence
from typing import assert_never

from kubeloop.words import count_of, list_names
from modelplane_operator.api import labels
from modelplane_operator.scheduling.cluster import Usability
from modelplane_operator.scheduling.decision import Decision, Refusal
from modelplane_operator.scheduling.placement import charges
from modelplane_operator.scheduling.problems import (
    CacheNotFound,
    CacheNotRead,
    InvalidSelector,
    LabelConflict,
    NoClusters,
    NoEngines,
    Overdrawn,
    Problem,
)
from modelplane_operator.scheduling.reasons import (
    ClusterDeleted,
    ClusterTerminating,
    ClusterUnreachable,
    Contended,
    Crowded,
    Displaced,
    Duplicate,
    Forced,
    Fragmented,
    Full,
    LabelDiffers,
    Leaving,
    Lost,
    Miss,
    Moving,
    NoCacheStorage,
    NoGangs,
    NoGateway,
    NoMatch,
    NoPools,
    NothingToClaim,
    NotReady,
    Outdated,
    Reason,
    ScaledDown,
    Scattered,
    Spare,
    Split,
    Tainted,
    TooFewDevices,
    TooSmall,
    TooSmallNode,
    UnknownPools,
    Unlike,
)

FORCE = f"{labels.FORCE_DRAIN}=true"

_GROUPS = 6  # groups of refusals in a summary
_NEAREST = 2  # examples in a summary
_SOME = 4  # engines and pools named in a reason
_PLACES = 8  # places named in a line


def summary(decision: Decision) -> str:
    """Return what happened to the replicas and, while some have no place, what is nearest to providing one."""
    sentences = [problem(item) for item in decision.problems[:_NEAREST]]
    if len(decision.problems) > _NEAREST:
        sentences.append(count_of(len(decision.problems) - _NEAREST, "more problem"))
    sentences.append(_describe_counts(decision))
    sentences += [describe_blocked(decision)] if decision.blocked else []
    unplaced = decision.missing or decision.blocked or any(entry.reason for entry in decision.retained)
    if unplaced and decision.refusals:
        sentences.append(f"{count_of(decision.checked, 'cluster')} checked: {_describe_groups(decision.refusals)}")
        examples = [refusal for refusal in decision.refusals[:_NEAREST] if not isinstance(refusal.reason, Spare)]
        sentences.append("nearest: " + "; ".join(map(_describe_nearest, examples)))
    return "; ".join(sentences)


def where(decision: Decision) -> str:
    """Return the places of a decision as `cluster/pool`, each with its number of replicas if it is not one."""
    places = Counter(
        f"{placement.cluster}/{'+'.join(sorted(charges(placement.engines)))}" for placement in decision.placements
    )
    return list_names(
        (f"{location} ({count})" if count > 1 else location for location, count in places.items()), _PLACES
    )


def problem(item: Problem) -> str:
    """Return the sentence of a problem."""
    match item:
        case InvalidSelector(engine, role, request, message):
            return f"Invalid nodeSelector CEL expression: engine {engine}, {role}, request {request}: {message}"
        case Overdrawn(what, has, most):
            number = f"more than {most:,}" if has is None else f"{has:,}"
            return (
                f"The node selectors of all engines together come to {number} {what}, and {most:,} are allowed: write "
                "shorter ones, or the same one in several requests"
            )
        case NoEngines():
            return "The deployment has no engines"
        case LabelConflict(key, deployment, cache):
            return (
                f"No cluster can match: label {key} is {deployment} for the deployment and {cache} for its ModelCache"
            )
        case CacheNotRead(cache):
            return f"Waiting for ModelCache {cache}"
        case CacheNotFound(cache):
            return (
                f"ModelCache {cache} not found; no new replica is placed until you create it, or remove modelCacheRef"
            )
        case NoClusters():
            return "No InferenceClusters found"
        case _:
            assert_never(item)


def describe_blocked(decision: Decision) -> str:
    """Return the clause about replicas that are to leave their clusters but have no other place."""
    first = decision.blocked[0]
    cluster, count = (
        first.replica.cluster,
        sum(item.replica.cluster == first.replica.cluster for item in decision.blocked),
    )
    others = len(decision.blocked) - count
    more = f", and {count_of(others, 'other')} on further clusters" if others else ""
    remainder = f"but {count_of(count, 'replica')} fit{'s' if count == 1 else ''} nowhere else{more}: add capacity"
    force = f", or force it: kubectl annotate ic {cluster} {FORCE}"
    match first.reason:
        case Tainted(key, _, effect):
            return f"cluster {cluster} is being drained (taint {key}:{effect}), {remainder}{force}"
        case ClusterTerminating():
            return f"cluster {cluster} is being deleted, {remainder}{force}"
        case Outdated(refused):
            return f"cluster {cluster} cannot take the new spec ({reason(refused)}), {remainder}"
        case Lost(since):
            return f"cluster {cluster} has been lost since {since.isoformat(timespec='seconds')}, {remainder}"
        case Displaced(pool, short):
            return f"pool {pool} of cluster {cluster} has {count_of(short, 'node')} too few, {remainder}"
        case _:
            assert_never(first.reason)


def reason_to_move(move: Moving) -> str:
    """Return the reason why a replica should run elsewhere."""
    match move:
        case Outdated(refused):
            return f"the deployment's new spec does not fit there: {reason(refused)}"
        case Lost(since):
            return f"its cluster has been lost since {since.isoformat(timespec='seconds')}"
        case Displaced(pool, short):
            return f"pool {pool} has {count_of(short, 'node')} too few for its replicas"
        case ClusterTerminating() | Tainted():
            return reason(move)
        case _:
            assert_never(move)


def describe_leaving(cause: Leaving | Moving) -> str:
    """Return the reason why a replica is deleted."""
    match cause:
        case ClusterDeleted():
            return "its InferenceCluster was deleted"
        case Duplicate(of):
            return f"{of} has the same cluster and index"
        case ScaledDown(replicas):
            return f"{count_of(replicas, 'replica')} requested"
        case Forced(forced):
            return f"drained by force, as it fits nowhere else: {reason_to_move(forced)}"
        case Outdated() | Lost() | Displaced() | ClusterTerminating() | Tainted():
            return f"placed elsewhere: {reason_to_move(cause)}"
        case _:
            assert_never(cause)


def reason(refusal: Reason) -> str:  # noqa: PLR0912  (one branch per kind)
    """Return the reason why a cluster takes no replica."""
    match refusal:
        case Full(engine, pool, needs, free, nodes, unusable):
            nodes_text = f", {describe_usable(unusable)}" if unusable else ""
            return (
                f"engine {engine} needs {count_of(needs, 'node')} of pool {pool}, {max(free, 0)} of {nodes} free"
                f"{nodes_text}"
            )
        case Fragmented(engine, pool, pods, free, nodes, _, unusable):
            required = " and ".join(
                f"{count_of(devices, 'free device')} on {'one node' if number == 1 else f'each of {number} nodes'}"
                for devices, number in pods[:_SOME]
            )
            free_texts = ", ".join(f"{devices} on {count_of(number, 'node')}" for devices, number in free[:_SOME])
            nodes_text = f"; {describe_usable(unusable)}" if unusable else ""
            free_texts = free_texts or f"none on {nodes}"
            return f"engine {engine} needs {required} of pool {pool}; free are {free_texts}{nodes_text}"
        case TooSmallNode(engine, pool, amount):
            return f"engine {engine} requests more {amount} than a node of pool {pool} has"
        case TooSmall(engine, pool, nodes=0, unusable=unusable):
            nodes_text = f": {describe_usable(unusable)}" if unusable else ""
            return f"engine {engine} fits pool {pool}, which has no usable node{nodes_text}"
        case TooSmall(engine, pool, needs, nodes, unusable):
            nodes_text = f", {describe_usable(unusable)}" if unusable else ""
            return f"engine {engine} needs {count_of(needs, 'node')} of one pool, {pool} has {nodes} in all{nodes_text}"
        case Scattered(engine, pool, needs, fabric, nodes):
            largest = f"the largest has {nodes}" if fabric else "no usable node has the label of its topologyKey"
            return f"engine {engine} needs {count_of(needs, 'node')} on one fabric of pool {pool}, {largest}"
        case Crowded(needs, free):
            engines = ", ".join(f"{engine} {nodes}" for engine, nodes in needs[:_SOME])
            pools = ", ".join(f"{pool} {max(nodes, 0)}" for pool, nodes in free[:_SOME])
            return f"the engines do not fit together: nodes needed: {engines}; nodes free: {pools}"
        case NoGateway():
            return "its gateway has no address yet"
        case NoGangs(engine):
            return f"it serves no LeaderWorkerSet, which engine {engine} needs for its several nodes"
        case NoCacheStorage(cache):
            return f"it has no storage for ModelCache {cache}"
        case NotReady(condition):
            return f"it is not Ready ({condition})" if condition else "it is not Ready"
        case ClusterUnreachable():
            return "it does not answer"
        case Tainted(key=labels.DRAIN):
            return "it is being drained"
        case Tainted(key, _, effect):
            return f"taint {key}:{effect} is not tolerated"
        case Split(engine, pool, role, missed):
            lacks = miss(missed) if missed else "its matching devices cannot be claimed by pods"
            return f"no one pool has the devices for all members of engine {engine}: pool {pool}, {role}: {lacks}"
        case UnknownPools(pools, others):
            referenced = ", ".join(f"{pool} (InferenceClass {name})" for pool, name in pools[:_SOME])
            return (
                f"the devices of pool {referenced} are not known, and no other pool has the requested ones:"
                f" {reason(others)}"
            )
        case NothingToClaim(engine):
            return f"engine {engine} matches only devices that pods cannot claim"
        case NoMatch(engine, role, pool, existing):
            return f"engine {engine}{'' if role == 'Standalone' else f', {role}'}: pool {pool}: {miss(existing)}"
        case NoPools(message):
            return reason(message) if message else "it publishes no pools"
        case ClusterTerminating():
            return "it is being deleted"
        case LabelDiffers(key, desired, existing, cache):
            suffix = f" by clusterSelector of ModelCache {cache}" if cache else ""
            return f"label {key} is {'another' if existing else 'absent'}, must be {desired}{suffix}"
        case Spare():
            return "it has room"
        case _:
            assert_never(refusal)


def remedy(refusal: Reason) -> str:  # noqa: PLR0912  (one branch per kind)
    """Return what would help; empty where the reason itself says it."""
    match refusal:
        case Full(unusable=Usability()):
            return "uncordon or repair nodes of that pool, free some, or enlarge it"
        case Full():
            return "free nodes of that pool, or enlarge it"
        case Fragmented():
            return "free devices of one node, or enlarge that pool"
        case TooSmallNode():
            return "request less, or add a pool of larger nodes; waiting does not help"
        case NoGangs():
            return "install it there; if a ServingStack should do that, see BackendReady of that InferenceCluster"
        case TooSmall(nodes=0):
            return "uncordon, repair or add nodes: GPUReady of that InferenceCluster says which"
        case NoGateway():
            return "see BackendReady of that InferenceCluster"
        case NotReady() | ClusterUnreachable() | NoPools() | UnknownPools():
            return "see the conditions of that InferenceCluster"
        case TooSmall(unusable=Usability()):
            return "uncordon or repair nodes (GPUReady of that InferenceCluster says which), or add a larger pool"
        case TooSmall():
            return "add a larger pool, or make the engine need fewer nodes; waiting does not help"
        case Scattered():
            return "put more nodes on one fabric, or make the engine need fewer nodes; waiting does not help"
        case Crowded():
            return "free nodes, or enlarge one of these pools"
        case Tainted(key=labels.DRAIN):
            return "add capacity elsewhere, or end the drain"
        case Tainted():
            return "remove the taint, or tolerate it"
        case NothingToClaim():
            return "its InferenceClass declares the device as Synthetic: declare it as DRA"
        case Split():
            return "add a pool for the whole engine, or change the selectors so that one pool meets all of them"
        case NoMatch(miss=Unlike()):
            return "list what exists: modelplane hardware"
        case NoMatch():
            return "request fewer devices per pod"
        case NoCacheStorage():
            return "name a StorageClass in spec.cluster.existing.cache of that InferenceCluster"
        case LabelDiffers(key, cache=cache):
            return f"label the cluster, or {f'in ModelCache {cache} ' if cache else ''}select without {key}"
        case ClusterTerminating() | Spare():
            return ""
        case _:
            assert_never(refusal)


def describe_usable(pool: Usability) -> str:
    """Return how many nodes of a pool are usable, and what the others are."""
    others = {
        "cordoned": pool.cordoned,
        "not ready": pool.not_ready,
        "lacking devices": pool.nodes - pool.usable - pool.cordoned - pool.not_ready,
    }
    causes = ", ".join(f"{count} {cause}" for cause, count in others.items() if count > 0)
    return f"{pool.usable} of {count_of(pool.nodes, 'node')} usable{f' ({causes})' if causes else ''}"


def _describe_nearest(refusal: Refusal) -> str:
    """Return the reason of a refusal, after the name of its nearest cluster."""
    help_text = remedy(refusal.reason)
    return f"{refusal.nearest}: {reason(refusal.reason)}{f' ({help_text})' if help_text else ''}"


def miss(item: Miss) -> str:
    """Return why the nodes of a pool do not match."""
    match item:
        case Unlike(request, device, why, _):
            return f"request {request}: {f'device {device}: ' if device else ''}{why}"
        case TooFewDevices(request, device, needs, has):
            return f"request {request} needs {needs} of device {device}, a node has {has}"
        case Contended(requests):
            return f"a node can meet each of the requests {', '.join(requests)}, but not all at once"
        case _:
            assert_never(item)


def group(refusal: Refusal) -> str:  # noqa: PLR0912  (one branch per kind)
    """Return the number of clusters with a kind of reason, and the reason."""
    count = refusal.clusters
    match refusal.reason:
        case Full(engine):
            return f"{count} with too few free nodes for engine {engine}"
        case Fragmented(engine):
            return f"{count} with too few free devices on one node for engine {engine}"
        case TooSmallNode(engine):
            return f"{count} with too small nodes for engine {engine}"
        case TooSmall(engine):
            return f"{count} with too small pools for engine {engine}"
        case Scattered(engine):
            return f"{count} without a fabric that is large enough for engine {engine}"
        case Crowded():
            return f"{count} with too few free nodes for all engines together"
        case NoGateway():
            return f"{count} without a gateway address"
        case NoGangs(engine):
            return f"{count} without LeaderWorkerSet for engine {engine}"
        case NoCacheStorage(cache):
            return f"{count} without storage for ModelCache {cache}"
        case NotReady():
            return f"{count} not Ready"
        case ClusterUnreachable():
            return f"{count} unreachable"
        case Tainted():
            return f"{count} with a taint"
        case Split(engine):
            return f"{count} without one pool for all of engine {engine}"
        case UnknownPools():
            return f"{count} with pools whose devices are not known"
        case NothingToClaim(engine) | NoMatch(engine):
            return f"{count} without devices for engine {engine}"
        case NoPools():
            return f"{count} without pools"
        case ClusterTerminating():
            return f"{count} being deleted"
        case LabelDiffers(key):
            return f"{count} without {'the selected labels' if count > 1 else f'the selected label {key}'}"
        case Spare():
            return f"{count} with room"
        case _:
            assert_never(refusal.reason)


def _describe_counts(decision: Decision) -> str:
    """Return the number of replicas that are placed, and of those that keep the previous spec."""
    placed, retained = len(decision.placements), len(decision.retained)
    clusters = {placement.cluster for placement in decision.placements}
    clusters_text = f" on {count_of(len(clusters), 'cluster')}" if clusters else ""
    counts = [f"{placed} of {count_of(decision.desired, 'replica')} placed{clusters_text}"]
    if retained:
        # Without a replica in the new spec, those that keep running are the news.
        counts = counts if placed or decision.missing else []
        counts.append(f"{count_of(retained, 'replica')} keep{'s' if retained == 1 else ''} running the previous spec")
    if any(entry.reason for entry in decision.retained):
        counts.append(f"the new one fits {'no other' if placed else 'no'} cluster")
    return "; ".join(counts)


def _describe_groups(refusals: Sequence[Refusal]) -> str:
    """Return the counts of the refusals by group."""
    descriptions = [group(refusal) for refusal in refusals[:_GROUPS]]
    others = sum(refusal.clusters for refusal in refusals[_GROUPS:])
    return ", ".join([*descriptions, *([f"{others} for other reasons"] if others else [])])
