"""One cluster that you bring: what models can count on there, its gateway, and how it goes.

Where charts can be installed, a ServingStack of ours makes the gateway and all that it needs. Elsewhere, and where we
have made the gateway already, we make it ourselves, of the Envoy Gateway that is there.

It goes from behind: replicas first, which are placed elsewhere once it is being deleted; then their objects there, then
the gateway and what it needs, then our finalizer. Nothing is decided about a cluster that does not answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from modelplane_operator.api import labels, names
from modelplane_operator.api.base import Key
from modelplane_operator.api.conditions import Condition, ConditionType, Ready, is_true
from modelplane_operator.api.inference_class import InferenceClass
from modelplane_operator.api.inference_cluster import (
    BackendReady,
    ClusterReady,
    CredentialsRenewed,
    DeletionPhase,
    DeletionStatus,
    GatewaySecured,
    GpuPool,
    GPUReady,
    InferenceCluster,
    InferenceClusterStatus,
    NodePool,
    NodePoolsValid,
    ObservedCluster,
    ObservedPool,
    ProviderConfigRef,
)
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.serving_stack import ServingStack
from modelplane_operator.api.shared import CacheStatus, GatewayStatus
from modelplane_operator.clients.access import Token
from modelplane_operator.clients.errors import ClientError, Misbehaving
from modelplane_operator.clients.resources import (
    ENDPOINT_SLICE,
    ENVOY_PROXY,
    GATEWAY,
    GATEWAY_CLASS,
    INGRESS_ROUTE,
    NAMESPACE,
    POLICIES,
    SECRET,
    SERVERS_TRANSPORT,
    SERVICE,
    key_of,
    type_of,
)
from modelplane_operator.planning.connection import verified
from modelplane_operator.planning.hardware import Present, Seen, present
from modelplane_operator.planning.inference_class import NAMED, listed
from modelplane_operator.planning.mutual_tls import LEARNT, Hub, doors, unlearnt
from modelplane_operator.planning.node_pools import Resolved, counted, resolve
from modelplane_operator.planning.plan import Apply, Guard, Plan, Release, RenewToken, Step, Unguard, delete, prune
from modelplane_operator.planning.symptoms import condition
from modelplane_operator.rendering.cluster_gateway import (
    gateway_among,
    gateway_of,
    is_guarded,
    render_cluster_gateway,
    render_system_namespace,
)
from modelplane_operator.rendering.gateway_relay import render_relay
from modelplane_operator.rendering.inference_gateway import address_of
from modelplane_operator.rendering.serving_stack import render_stack

CHILDREN = (NAMESPACE, SECRET, ENVOY_PROXY, GATEWAY_CLASS, *POLICIES, GATEWAY)
"""What we make there, each after what it needs; it goes in the reverse order."""

ON_HUB = (SERVICE, ENDPOINT_SLICE, SERVERS_TRANSPORT, INGRESS_ROUTE)
"""What leads to its gateway from the hub's."""

LEAST_LATENCY = 50  # milliseconds; what is less makes no difference to anybody, and varies with how busy we are
SOON = 0.5  # until a connection that has just begun has seen everything
AGAIN = 15.0  # until we look again for what no event tells of: an API that is not served, a right that is given
RENEWED_LATELY = timedelta(seconds=10)  # a token that is as young is not renewed, whatever its cluster's clock says


@dataclass(frozen=True, slots=True)
class There:
    """What was seen on the cluster itself."""

    version: str
    latency: float | None
    """The seconds that its API server took to answer."""
    apis: frozenset[str]
    """The optional APIs that it serves, by the names that the status has for them."""
    hardware: Seen | ClientError | None
    """Its nodes and devices; why they cannot be listed; None while they have not been seen."""
    children: tuple[Manifest, ...]
    """What we made there for the cluster."""
    has_namespace: bool
    """Whether somebody else has made our namespace there."""
    others: tuple[str, ...] = ()
    """What we made there for others, models for one: `kind namespace/name`."""
    unpermitted: str = ""
    """Why its gateway cannot be made to answer the hub alone."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The Secrets with kubeconfigs that this cluster is to guard, or to guard no longer."""

    mine: Key | None = None
    """The one it names, when that is there and can be kept."""
    theirs: bool = False
    """Whether another cluster names it too."""
    unneeded: tuple[Key, ...] = ()
    """Those that are guarded and that no cluster names any more."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A cluster and all that was seen of it."""

    cluster: InferenceCluster
    classes: Mapping[str, InferenceClass]
    """Those that its pools name and that exist."""
    replicas: tuple[Key, ...]
    """The ModelReplicas that are placed on it."""
    there: There | None
    """None while it does not answer, and until all of it has been seen."""
    silence: ClientError | None
    """Why it does not answer; None while it does, or while that is being found out."""
    refusal: ClientError | None
    """Why it does not tell us what is there, though it answers."""
    kubeconfig: ClientError | None
    """What is wrong with its kubeconfig; a connection that is there lives on."""
    connected: bool
    """Whether there is a way to it at all."""
    secrets: Secrets
    now: datetime
    helm: bool = False
    """Whether charts can be installed."""
    stack: Manifest | None = None
    """The ServingStack that we made for the cluster."""
    unverified: str = ""
    """Why nobody can tell whether it is that cluster who answers; empty when it proves it."""
    token: Token | None = None
    """The token that we have there, when it is one that ends."""
    token_seen: datetime | None = None
    """When it was first seen here, by our own clock."""
    hub: Hub = field(default_factory=Hub)
    """The gateway that alone is to be answered."""
    answers: bool = field(default=True)
    """Whether the load balancer of its gateway takes connections for https: clouds take their time with a new port."""
    relay: tuple[Manifest, ...] = ()
    """What was made on the hub that leads to the cluster's gateway."""
    plain: int = 0
    """How many ModelEndpoints lead to the cluster by http."""
    settle: timedelta = timedelta(minutes=6)
    """How long after the last of them requests may still come by http, or be answered."""
    taken: Mapping[str, Key] = field(default_factory=dict[str, Key])
    """Of the addresses that its gateway says to have, those where an endpoint of a user leads, and which."""
    front_door: frozenset[str] = frozenset()
    """Those that are the hub's own gateway's."""


def plan(seen: Observed) -> Plan:
    decided, due = _decided(seen), _renewal(seen)
    if due is None:
        return decided
    wait = (due[0] - seen.now).total_seconds()
    if wait <= 0:  # before all else: whatever else fails must not lock us out
        return replace(decided, steps=(due[1], *decided.steps))
    again = wait if decided.requeue_after is None else min(wait, decided.requeue_after)
    return replace(decided, requeue_after=again)


def _renewal(seen: Observed) -> tuple[datetime, RenewToken] | None:
    """When the token is to be renewed, and how; None when it is not, or cannot be now.

    At half of its time, but not within seconds of its coming: the cluster's clock may be another than ours.
    """
    existing, token = seen.cluster.spec.cluster.existing, seen.token
    if existing is None or existing.credential_renewal == "Never" or token is None or _out_of_reach(seen):
        return None
    due = token.since + token.lasts / 2
    if seen.token_seen is not None:
        due = max(due, seen.token_seen + RENEWED_LATELY)
    where = Key(names.SYSTEM_NAMESPACE, existing.secret_ref.name)
    account = Key(token.namespace, token.account)
    name, seconds = seen.cluster.metadata.name, int(token.lasts.total_seconds())
    return due, RenewToken(name, account, seconds, where, existing.secret_ref.key)


def _out_of_reach(seen: Observed) -> bool:
    """Whether the cluster cannot be asked for another token, or our kubeconfig is no longer what the Secret holds."""
    return seen.silence is not None or seen.kubeconfig is not None or not seen.connected


def _decided(seen: Observed) -> Plan:
    if seen.cluster.metadata.deletion_timestamp is not None:
        return _teardown(seen)
    source = seen.cluster.spec.cluster.source
    if source != "Existing":
        words = f"clusters on {source} cannot be made yet; bring one with `source: Existing`"
        return _waiting(seen, ClusterReady.UNSUPPORTED_SOURCE, words)
    if not seen.connected and seen.kubeconfig is not None:
        return _waiting(seen, ClusterReady.INVALID_KUBECONFIG, str(seen.kubeconfig))
    if seen.silence is not None:
        return _silent(seen, seen.silence)
    if seen.refusal is not None:
        return replace(_waiting(seen, ClusterReady.NOT_PERMITTED, str(seen.refusal)), requeue_after=AGAIN)
    if seen.there is None:
        return Plan(requeue_after=SOON)
    return _in_service(seen, seen.there)


# In service -----------------------------------------------------------------------------------------------------------


def _in_service(seen: Observed, there: There) -> Plan:
    serving = _unless_taken(seen, _stack(seen) if _has_stack(seen, there) else _own_gateway(seen, there))
    resolved = _resolved(seen)
    nodes = present(resolved.pools, there.hardware) if isinstance(there.hardware, Seen) else {}
    running = ClusterReady.CLUSTER_RUNNING
    if resolved.missing and resolved.unknown:
        running = ClusterReady.WAITING_FOR_CLASSES
    note = f"it is reached as before, but {seen.kubeconfig}" if seen.kubeconfig else ""
    said = _missing_classes(resolved) if running is ClusterReady.WAITING_FOR_CLASSES else note
    gateway = _gateway_status(seen, serving)
    ready = serving.ready
    if ready.status == "True" and gateway is None:
        words = "its gateway answers the hub's gateway alone, which is not set up for that yet"
        ready = BackendReady.INSTALLING.condition(seen.now, message=": ".join(filter(None, (words, seen.hub.why))))
    relay = render_relay(seen.cluster, serving.address) if seen.hub.wanted and serving.address else ()
    secured = _secured(seen, serving, gateway)
    judged = (
        running.condition(seen.now, message=said),
        ready,
        secured,
        _pools_valid(seen, resolved),
        _gpu_ready(seen, there, nodes),
        _ready(seen, resolved, ready),
    )
    fresh = {
        "gateway": gateway,
        "gpu_pools": _counted(seen, resolved, nodes, last=not isinstance(there.hardware, ClientError)),
        "observed": _observed(seen, there, nodes),
    }
    guard = (Guard(SECRET, seen.secrets.mine),) if seen.secrets.mine else ()
    unguard = (Unguard(SECRET, key) for key in seen.secrets.unneeded)
    return Plan(
        (*guard, *serving.steps, *map(Apply, relay), *_misleading(seen, relay), *unguard),
        _status(seen, resolved, judged).model_copy(update=fresh),
        requeue_after=min((at for at in (serving.again, _look_again(seen, serving, secured)) if at), default=None),
        hold=True,
    )


# The way there --------------------------------------------------------------------------------------------------------


def _gateway_status(seen: Observed, serving: _Serving) -> GatewayStatus | None:
    """How the cluster's gateway is reached: by what both ends can do."""
    if serving.address is None:
        return None
    last = seen.cluster.status.gateway if seen.cluster.status else None
    known = last.server_name if last else None
    ready = seen.hub.ready and seen.answers and _unlearnt(seen, serving.address) <= timedelta()
    if serving.server_name and (ready or known == serving.server_name):
        return GatewayStatus(address=serving.address, server_name=serving.server_name)
    return GatewayStatus(address=serving.address) if serving.http else None


def _unlearnt(seen: Observed, address: str) -> timedelta:
    return unlearnt(render_relay(seen.cluster, address), seen.relay, seen.now)


def _misleading(seen: Observed, relay: Sequence[Manifest]) -> Sequence[Step]:
    """What leads to another address than the present. A way that nobody asks for any more stays: some may be on it."""
    return tuple(prune(seen.relay, relay, owner=seen.cluster.metadata.uid or "")) if relay else ()


def _secured(seen: Observed, serving: _Serving, gateway: GatewayStatus | None) -> Condition:
    if not serving.http and (serving.why or not seen.hub.known):
        return GatewaySecured.NOT_KNOWN.condition(seen.now, message=serving.why or seen.hub.why)
    if not seen.hub.wanted:
        return GatewaySecured.OPEN.condition(seen.now, message=seen.hub.why)
    if serving.why:
        return GatewaySecured.OPEN.condition(seen.now, message=serving.why)
    if gateway is None or not gateway.server_name:
        lacks = seen.hub.why or "the cluster's gateway, or the way there, is being set up for https"
        return GatewaySecured.CONFIGURING.condition(seen.now, message=lacks)
    if seen.plain:
        words = f"{seen.plain} ModelEndpoints lead there by http"
        return GatewaySecured.CONFIGURING.condition(seen.now, message=words)
    if not serving.http:
        return GatewaySecured.MUTUAL_TLS.condition(seen.now)
    known = next((one for one in seen.cluster.conditions if one.type == GatewaySecured.__name__), None)
    closed = known is not None and known.status == "True"  # it is being closed
    over = closed or _since_secured(seen) + seen.settle <= seen.now
    return (GatewaySecured.MUTUAL_TLS if over else GatewaySecured.SWITCHING).condition(seen.now)


def _look_again(seen: Observed, serving: _Serving, secured: Condition) -> float | None:
    """When there is news that no event tells of."""
    if secured.reason == GatewaySecured.SWITCHING.reason:
        return max((_since_secured(seen) + seen.settle - seen.now).total_seconds(), SOON)
    if secured.status == "True" and serving.http:
        return SOON  # it is closed once that was said
    if seen.hub.wanted and serving.address and (left := _unlearnt(seen, serving.address)) > timedelta():
        return max(left.total_seconds(), SOON)
    return LEARNT.total_seconds() if seen.hub.wanted and not seen.answers else None


def _since_secured(seen: Observed) -> datetime:
    known = (one for one in seen.cluster.conditions if one.type == GatewaySecured.__name__ and one.status != "False")
    return next((one.last_transition_time for one in known), seen.now)


@dataclass(frozen=True, slots=True)
class _Serving:
    """How requests come to the models there: what to write for it, and how it stands."""

    ready: Condition
    address: str | None = None
    steps: tuple[Step, ...] = ()
    again: float | None = None
    server_name: str | None = None
    """What the gateway proves to be to the hub's."""
    http: bool = field(default=True)
    """Whether it answers anybody."""
    why: str = ""
    """Why it must go on to do so."""


def _unless_taken(seen: Observed, serving: _Serving) -> _Serving:
    """Without an address where users were first, as no endpoint of theirs leads to a cluster's gateway; and without
    that of the hub's own, where requests would go round. A cluster may say anything of where its gateway is."""
    known = seen.cluster.status.gateway if seen.cluster.status else None
    user = seen.taken.get(serving.address or "")
    if serving.address in seen.front_door:
        words = (
            f"its gateway says that it is at {serving.address}, where the hub's own is: give it an address of its own"
        )
    elif user is not None and not (known and known.address == serving.address):
        words = (
            f"its gateway says that it is at {serving.address}, where ModelEndpoint {user} leads: one of them is wrong"
        )
    else:
        return serving
    refused = BackendReady.ADDRESS_IN_USE.condition(seen.now, message=words)
    return replace(serving, ready=refused, address=None, again=AGAIN)


def _has_stack(seen: Observed, there: There) -> bool:
    """Whether a ServingStack makes the gateway. One that is ours already stays so: another owner's would replace it."""
    return seen.stack is not None or (seen.helm and not there.children)


def _stack(seen: Observed) -> _Serving:
    wanted = render_stack(seen.cluster)
    steps = (Apply(wanted),)
    if seen.stack is None:
        words = f"ServingStack {key_of(wanted)} is being made"
        return _Serving(BackendReady.INSTALLING.condition(seen.now, message=words), steps=steps)
    stack = ServingStack.parse(seen.stack)
    told, synced = condition(seen.stack, "Ready"), condition(seen.stack, "Synced")
    refused = synced.get("message") if synced.get("status") == "False" else None
    gateway = stack.status.gateway if stack.status else None
    reasons = {"True": BackendReady.BACKEND_HEALTHY, "Unknown": BackendReady.UNREACHABLE}
    reason = reasons.get(told.get("status", ""), BackendReady.INSTALLING)
    why = "; ".join(filter(None, (refused, told.get("message"))))
    words = ": ".join(filter(None, (f"ServingStack {stack.key}", why)))
    if reason is BackendReady.BACKEND_HEALTHY:
        words = ""
    if not seen.helm:
        words = f"ServingStack {stack.key} is as it was: this operator runs no Helm"
    ready = reason.condition(seen.now, message=words)
    if gateway is None:
        return _Serving(ready, None, steps)
    asked = stack.spec.gateway is not None and bool(stack.spec.gateway.listeners)
    return _Serving(
        ready,
        gateway.address,
        steps,
        server_name=gateway.server_name,
        http=gateway.http is not False,
        why=f"spec.gateway.listeners of ServingStack {stack.key} answer anybody: take them out" if asked else "",
    )


def _own_gateway(seen: Observed, there: There) -> _Serving:
    if missing := _missing_software(there):
        words = f"there is no gateway yet: the cluster lacks {missing}"
        return _Serving(BackendReady.NOT_INSTALLED.condition(seen.now, message=words), _address(there), again=AGAIN)
    cluster = seen.cluster.metadata.name
    last = seen.cluster.status.gateway if seen.cluster.status else None
    live = gateway_among(there.children)
    # What may not be seen any more is no reason to open a gateway that has it.
    unseen = replace(seen.hub, known=False) if live and is_guarded(live) else Hub()
    hub = unseen if there.unpermitted else seen.hub
    closed = is_true(seen.cluster.conditions, GatewaySecured)
    opened = doors(
        seen.cluster, cluster, hub, there.children, seen.now, last.server_name if last else None, closed=closed
    )
    namespace = () if there.has_namespace else (render_system_namespace(seen.cluster),)
    wanted = render_cluster_gateway(seen.cluster, gateway_of(seen.cluster), https=opened.https, http=opened.http)
    before, after = (tuple(Apply(one, cluster) for one in part) for part in (namespace, wanted))
    address = _address(there)
    return _Serving(
        _own_gateway_ready(seen, there, address),
        address,
        (*before, *opened.issued(), *after),
        server_name=opened.server_name,
        http=opened.http,
        why=there.unpermitted,
    )


def _own_gateway_ready(seen: Observed, there: There, address: str | None) -> Condition:
    if address:
        words = "it was made before this operator ran Helm, which therefore installs nothing here" if seen.helm else ""
        return BackendReady.BACKEND_HEALTHY.condition(seen.now, message=words)
    gateway = gateway_among(there.children)
    said = condition(gateway, "Programmed").get("message") if gateway else None
    words = f"gateway {names.CLUSTER_GATEWAY} has no address yet{f': {said}' if said else ''}"
    return BackendReady.INSTALLING.condition(seen.now, message=words)


def _gpu_ready(seen: Observed, there: There, nodes: Mapping[str, Present]) -> Condition:
    if isinstance(there.hardware, ClientError):
        return GPUReady.NOT_SEEN.condition(seen.now, message=str(there.hardware))
    if there.hardware is None:
        return GPUReady.NOT_SEEN.condition(seen.now, message="the nodes have not been listed yet")
    pools = {pool.name: pool for pool in seen.cluster.spec.node_pools}
    few = {name: found for name, found in nodes.items() if found.nodes < _at_least(pools[name])}
    short = {name: found for name, found in nodes.items() if found.lacking}
    said = [
        f"pool {name}: {found.nodes} of {_at_least(pools[name])} nodes carry the label {labels.POOL}={name}"
        for name, found in few.items()
    ]
    said += [
        f"pool {name}: {found.usable} of {found.nodes} nodes are usable, {found.lacking}"
        for name, found in short.items()
    ]
    if "DRA" not in there.apis:
        said.insert(0, "the cluster does not serve resource.k8s.io/v1, through which pods claim devices")
    if short or "DRA" not in there.apis:
        return GPUReady.DEVICES_MISSING.condition(seen.now, message="; ".join(said))
    if few:
        return GPUReady.NODES_MISSING.condition(seen.now, message="; ".join(said))
    return GPUReady.ALL_PRESENT.condition(seen.now)


def _at_least(pool: NodePool) -> int:
    """The nodes that must be there at any time."""
    return (pool.min_node_count or 0) if pool.max_node_count else pool.node_count


def _observed(seen: Observed, there: There, nodes: Mapping[str, Present]) -> ObservedCluster:
    last = seen.cluster.status.observed if seen.cluster.status else None
    return ObservedCluster(
        version=there.version,
        latency_ms=_latency(there.latency, last.latency_ms if last else None),
        apis=tuple(sorted(there.apis)),
        pools=tuple(ObservedPool(name=name, nodes=found.nodes, usable=found.usable) for name, found in nodes.items()),
    )


def _latency(seconds: float | None, last: int | None) -> int | None:
    """Milliseconds, told anew only when they are others by far: the status is not written for each answer."""
    if seconds is None:
        return last
    found = max(LEAST_LATENCY, round(seconds * 1000))
    return last if last and last / 3 <= found <= last * 3 else found


def _ready(seen: Observed, resolved: Resolved, backend: Condition) -> Condition:
    """Whether models can be placed. A pool that is wrong keeps its last good devices, and takes nothing away."""
    if backend.status == "Unknown":
        return Ready.UNREACHABLE.condition(seen.now, message=backend.message or "")
    if backend.status != "True":
        return Ready.CREATING.condition(seen.now, message=backend.message or "")
    if resolved.unknown:
        total = len(seen.cluster.spec.node_pools)
        words = f"{total - len(resolved.unknown)} of {total} pools can be used: {_missing_classes(resolved)}"
        return Ready.CREATING.condition(seen.now, message=words)
    return Ready.AVAILABLE.condition(seen.now)


def _pools_valid(seen: Observed, resolved: Resolved) -> Condition:
    kept = "" if resolved.unknown else "; what was known of its pools stays"
    if resolved.missing:
        return NodePoolsValid.WAITING_FOR_CLASSES.condition(seen.now, message=_missing_classes(resolved) + kept)
    if resolved.invalid:
        words = f"see Accepted of InferenceClass {listed(resolved.invalid)}"
        return NodePoolsValid.INVALID_CLASS.condition(seen.now, message=words)
    return NodePoolsValid.ALL_VALID.condition(seen.now)


def _missing_classes(resolved: Resolved) -> str:
    return f"InferenceClass {', '.join(resolved.missing)} does not exist" if resolved.missing else ""


def _missing_software(there: There) -> str:
    """What the gateway needs and the cluster does not serve; empty when it has all."""
    needed = {"GatewayAPI": "the Gateway API (gateway.networking.k8s.io/v1)"}
    needed["EnvoyGateway"] = "Envoy Gateway (gateway.envoyproxy.io/v1alpha1)"
    return " and ".join(words for name, words in needed.items() if name not in there.apis)


def _address(there: There) -> str | None:
    """Where requests for the cluster's models go; None until its gateway is there for them."""
    gateway = gateway_among(there.children)
    if gateway is None or condition(gateway, "Programmed").get("status") != "True":
        return None
    return address_of(gateway)


# Out of sight ---------------------------------------------------------------------------------------------------------


def _waiting(seen: Observed, reason: ClusterReady, words: str) -> Plan:
    """Nothing can be done until somebody changes something."""
    resolved = _resolved(seen)
    judged = (
        reason.condition(seen.now, message=words),
        BackendReady.WAITING_FOR_CLUSTER.condition(seen.now),
        _pools_valid(seen, resolved),
        Ready.CREATING.condition(seen.now, message=words),
    )
    return Plan(status=_status(seen, resolved, judged))


def _silent(seen: Observed, error: ClientError) -> Plan:
    """It does not answer, or nothing that it says can be used: what was known of it stays."""
    reason = ClusterReady.MISBEHAVING if isinstance(error, Misbehaving) else ClusterReady.UNREACHABLE
    since = _since(seen, reason).strftime("%Y-%m-%dT%H:%M:%SZ")
    words = f"it has not answered since {since}: {error}"
    if reason is ClusterReady.MISBEHAVING:
        words = f"it misbehaves, and is left alone for some minutes each time since {since}: {error}"
    resolved = _resolved(seen)
    judged = (
        reason.condition(seen.now, message=words),
        BackendReady.UNREACHABLE.condition(seen.now, message=words),
        _pools_valid(seen, resolved),
        Ready.UNREACHABLE.condition(seen.now, message=words),
    )
    return Plan(status=_status(seen, resolved, judged))


def _since(seen: Observed, reason: ConditionType) -> datetime:
    """Since when a condition with this reason will have had this status."""
    for known in seen.cluster.conditions:
        if (known.type, known.status) == (reason.type, reason.status):
            return known.last_transition_time
    return seen.now


def _way(seen: Observed) -> Iterator[Condition]:
    """What is said of how the cluster is reached."""
    yield verified(seen.unverified, seen.now)
    if seen.token is None:
        return
    existing = seen.cluster.spec.cluster.existing
    ends = f"the token ends at {seen.token.until:%Y-%m-%dT%H:%M:%SZ}"
    if existing is not None and existing.credential_renewal == "TokenRequest":
        yield CredentialsRenewed.TOKEN_RENEWED.condition(seen.now, message=f"{ends}, and is renewed before")
    else:
        remedy = (
            "set spec.cluster.existing.credentialRenewal to TokenRequest, or put another one into the Secret by then"
        )
        yield CredentialsRenewed.NOT_RENEWED.condition(seen.now, message=f"{ends}: {remedy}")


# On its way out -------------------------------------------------------------------------------------------------------


def _teardown(seen: Observed) -> Plan:
    going = seen.cluster.metadata
    if labels.FINALIZER not in going.finalizers:
        return Plan()  # nothing was ever made there, or all of it is gone
    if going.annotations.get(labels.ABANDON) == "true":
        return _abandoned(seen)
    if seen.replicas:
        blocking = [f"ModelReplica {key}" for key in seen.replicas]
        remedy = f'they stay for want of another place unless it is annotated with {labels.FORCE_DRAIN}="true"'
        return _leaving(seen, "Blocked", blocking, "replicas are placed on it", remedy=remedy)
    if seen.there is None:
        why = seen.silence or seen.refusal or seen.kubeconfig
        if why is None:
            return Plan(requeue_after=SOON)
        words = f'it cannot be cleaned up: {why}; annotate it with {labels.ABANDON}="true" to leave all that is there'
        return _leaving(seen, "Unreachable", [], words)
    if seen.there.others:
        return _leaving(seen, "DrainServing", seen.there.others, "objects of models are left there")
    return _uninstalled(seen, seen.there)


def _uninstalled(seen: Observed, there: There) -> Plan:
    """Delete the last of what we made there that is left; when none is, let go."""
    if seen.stack is not None:
        return _without(seen, seen.stack)
    left = sorted(there.children, key=lambda child: CHILDREN.index(type_of(child)))
    if not left:
        return Plan(_let_go(seen))
    words = [f"{child['kind']} {key_of(child)}" for child in reversed(left)]
    steps: tuple[Step, ...] = (delete(left[-1], cluster=seen.cluster.metadata.name),)
    return _leaving(seen, "UninstallServingStack", words, "its gateway is going", steps)


def _without(seen: Observed, stack: Manifest) -> Plan:
    """Have the stack go, and wait for it."""
    why = condition(stack, "Ready").get("message", "") if _is_going(stack) else ""
    if not seen.helm:
        why = "this operator runs no Helm to take it away"
    blocking = [f"ServingStack {key_of(stack)}{f' ({why})' if why else ''}"]
    return _leaving(seen, "UninstallServingStack", blocking, "its software is going", _end_stack(seen))


def _abandoned(seen: Observed) -> Plan:
    """Say what stays behind and, once that was said, let go."""
    words = f"let go without cleaning up: Gateway {names.CLUSTER_GATEWAY} and what models have there stay"
    told = ClusterReady.ABANDONED.condition(seen.now, message=words)
    if any((known.type, known.reason) == (told.type, told.reason) for known in seen.cluster.conditions):
        return Plan(_let_go(seen))
    return Plan(status=_status(seen, _resolved(seen), (told,)), requeue_after=SOON)


def _end_stack(seen: Observed) -> tuple[Step, ...]:
    return (delete(seen.stack),) if seen.stack is not None and not _is_going(seen.stack) else ()


def _is_going(child: Manifest) -> bool:
    return bool(child["metadata"].get("deletionTimestamp"))


def _let_go(seen: Observed) -> tuple[Step, ...]:
    mine = seen.secrets.mine
    unguard = (Unguard(SECRET, mine),) if mine and not seen.secrets.theirs else ()
    return (*_end_stack(seen), *unguard, Release())


def _leaving(
    seen: Observed,
    phase: DeletionPhase,
    blocking: Sequence[str],
    words: str,
    steps: tuple[Step, ...] = (),
    *,
    remedy: str = "",
) -> Plan:
    said = f"{words}: {listed(blocking)}" if blocking else words
    said = f"{said}; {remedy}" if remedy else said
    judged = (Ready.DELETING.condition(seen.now, message=said),)
    deletion = DeletionStatus(phase=phase, waiting_for=tuple(blocking[:NAMED]))
    status = _status(seen, _resolved(seen), judged, deletion=deletion)
    return Plan(steps, status, requeue_after=AGAIN)


# What is said in any case ---------------------------------------------------------------------------------------------


def _resolved(seen: Observed) -> Resolved:
    last = seen.cluster.status
    return resolve(seen.cluster.spec.node_pools, seen.classes, last.gpu_pools if last else ())


def _counted(
    seen: Observed, resolved: Resolved, nodes: Mapping[str, Present], *, last: bool = True
) -> tuple[GpuPool, ...]:
    """The pools with their nodes; `last`: those that cannot be seen count as they did."""
    before = seen.cluster.status.gpu_pools if last and seen.cluster.status else ()
    return counted(seen.cluster.spec.node_pools, resolved.pools, nodes, before)


def _status(
    seen: Observed, resolved: Resolved, judged: tuple[Condition, ...], *, deletion: DeletionStatus | None = None
) -> InferenceClusterStatus:
    """The status, with what was last seen on the cluster itself."""
    existing, last = seen.cluster.spec.cluster.existing, seen.cluster.status
    way = _way(seen) if seen.connected and deletion is None else ()
    storage = existing.cache.storage_class_name if existing and existing.cache else None
    return InferenceClusterStatus(
        provider_config_ref=ProviderConfigRef(name=names.provider_config(seen.cluster.metadata.name)),
        namespace=names.SYSTEM_NAMESPACE,
        gateway=last.gateway if last else None,
        cache=CacheStatus(storage_class_name=storage) if storage else None,
        gpu_pools=_counted(seen, resolved, {}),
        observed=last.observed if last else None,
        replicas=len(seen.replicas),
        deletion=deletion,
        conditions=(*judged, *way),
    )
