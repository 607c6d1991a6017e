"""A hub in memory for deployments: it carries out plans, makes replicas answer after a while, and lets gateways follow.

Pods have nodes: those of a replica start only where nodes of its pools are free, and what is deleted or changed keeps
its nodes until its pods have ended. A pool that is renamed keeps its nodes and whoever is on them. On a cluster that
does not answer nothing starts, ends or serves.

What is checked at every moment is what users rely on, not how the planner gets there.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from kubeloop.conditions import condition
from kubeloop.objects import Key, annotations_of, key_of
from kubeloop.plan import Apply, Create, Delete, Plan, Replace
from kubeloop.resource import of
from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, ModelEndpoint, ModelReplica, labels
from modelplane_operator.api.model_replica import OperatorSettings
from modelplane_operator.models.deployment.plan import Observed, plan
from modelplane_operator.models.deployment.plan.rolling import disruption_of, find_active, find_waiting
from modelplane_operator.scheduling.disruptions import DisruptionBudget
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.placement import Replica, charges, read
from modelplane_operator.scheduling.requirement import NoCache
from tests.support import builders as b
from tests.support.builders import EPOCH, cluster, deployment, engine, request, taint
from tests.support.manifests import change

Manifest = dict[str, Any]

GRACE = timedelta(seconds=30)
TICK = timedelta(seconds=5)
REPLICAS, ENDPOINTS = of(ModelReplica), of(ModelEndpoint)


@dataclass
class Pods:
    """The pods of a replica in one shape: where they are to be, and from when to when they are."""

    nodes: Mapping[tuple[str, str], int]
    """How many nodes, by cluster and pool."""
    made: datetime
    running_since: int | None = None
    ends: int | None = None


@dataclass
class Hub:
    """One deployment and its fleet. How many ticks a replica takes until it answers, and until it has ended."""

    deployment: ModelDeployment
    clusters: dict[str, InferenceCluster]
    starting: int = 3
    ending: int = 0
    step: timedelta = TICK
    """Length of a tick."""
    now: datetime = EPOCH
    cache: ModelCache | NoCache = NoCache.NOT_READ
    silent: dict[str, datetime] = field(default_factory=dict[str, datetime])
    """Clusters that do not answer, and since when."""
    broken: frozenset[str] = frozenset()
    """Images that never answer."""
    operator: OperatorSettings | None = None
    """What the operator that runs adds to pods; replicas that have recorded something else are outdated."""
    neighbours: list[Hub] = field(default_factory=list["Hub"])
    """Other deployments on the same clusters."""
    replicas: dict[Key, Manifest] = field(default_factory=dict[Key, Manifest])
    endpoints: dict[Key, Manifest] = field(default_factory=dict[Key, Manifest])
    routes: set[Key] = field(default_factory=set[Key])
    """The endpoints that the gateway sends requests to: it follows a tick later."""
    _pods: dict[Key, list[Pods]] = field(default_factory=dict[Key, list[Pods]])
    """Those of each replica, the present ones last."""
    _asked: set[Key] = field(default_factory=set[Key])
    """Those that have been sent requests since they were made or changed."""
    created: int = 0
    """Replicas made so far."""
    _ticks: int = 0
    _moved: int = 0
    """The tick of the last decision that changed something, or is to be taken again by itself."""
    _uids: Any = field(default_factory=lambda: itertools.count(1))
    _fleet: FleetModel = field(default_factory=FleetModel)
    _shown: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """What the fleet has been shown, by name of the cluster or key of the replica."""
    _parsed: dict[Key, tuple[Manifest, Replica]] = field(default_factory=dict[Key, tuple[Manifest, Replica]])

    def restart(self) -> None:
        """The operator starts, and knows nothing but what is stored."""
        self._fleet, self._shown = FleetModel(), {}

    def parse(self, key: Key) -> Replica:
        """A replica as the scheduler sees it."""
        manifest = self.replicas[key]
        if key not in self._parsed or self._parsed[key][0] is not manifest:
            self._parsed[key] = manifest, read(ModelReplica.parse(manifest))
        return self._parsed[key][1]

    def _watch(self) -> FleetModel:
        """The fleet, as the watches have shown it."""
        there = {
            **{name: (cluster, self.silent.get(name)) for name, cluster in self.clusters.items()},
            **{key: hub.parse(key) for hub in (self, *self.neighbours) for key in hub.replicas},
        }
        for name in self._shown.keys() - there.keys():
            if isinstance(name, Key):
                self._fleet.forget_replica(name)
            else:
                self._fleet.forget_cluster(name)
        for name, state in there.items():
            if self._shown.get(name) is state:
                continue
            if isinstance(state, Replica):
                self._fleet.observe_replicas(state)
            elif self._shown.get(name) != state:
                self._fleet.observe_cluster(state[0], unreachable_since=state[1])
        self._shown = there
        return self._fleet

    @property
    def observed(self) -> Observed:
        routed = frozenset(self.routes & self.replicas.keys())
        return Observed(
            deployment=self.deployment,
            cache=self.cache,
            fleet=self._watch(),
            clusters=self.clusters,
            replicas=tuple(self.replicas[key] for key in sorted(self.replicas)),
            endpoints=tuple(self.endpoints.values()),
            routed=routed,
            reached=routed,
            grace=GRACE,
            now=self.now,
            operator=self.operator,
            disruptions=self._read_disruptions(),
        )

    def _read_disruptions(self) -> DisruptionBudget:
        """What may be disrupted, as the controller reads it."""
        if labels.ROLL not in self.deployment.metadata.annotations:
            return DisruptionBudget(fleet="0")
        hubs = {hub.deployment.key: hub for hub in (self, *self.neighbours)}
        fleet = [one for hub in hubs.values() for one in hub.replicas.values()]
        return DisruptionBudget(
            clusters={name: cluster.spec.max_disruptions for name, cluster in self.clusters.items()},
            replicas=Counter(scope for one in fleet for scope in disruption_of(one).scopes),
            active=tuple(find_active(fleet, self.now)),
            waiting=tuple(
                sorted(find_waiting(fleet, lambda key: hubs[key].deployment.to_manifest(), self.clusters, self.now))
            ),
        )

    def _find_outdated(self, spec: Manifest) -> Manifest:
        """What a replica reports of its pods while the operator would render them differently."""
        if self.operator is None or spec.get("operator") == self.operator.to_manifest():
            return {}
        return {"outdated": {"version": "0.0.1", "rendering": self.operator.version, "changes": ["main is removed"]}}

    @property
    def serving(self) -> set[Key]:
        """The replicas that answer what the gateway sends them."""
        return {key for key in self.routes if self.answers(key)}

    @property
    def dropped(self) -> set[Key]:
        """Where the gateway sends requests that nobody answers, because we have disturbed what was there."""
        return {
            key
            for key in self.routes
            if not self.answers(key) and not (key in self.replicas and self.parse(key).cluster in self.silent)
        }

    def answers(self, key: Key) -> bool:
        known = self.replicas.get(key, {})
        terminating = "deletionTimestamp" in known.get("metadata", {})
        return not terminating and condition(known, "ModelReady").is_true

    @property
    def booked(self) -> Counter[tuple[str, str]]:
        """Nodes that replicas are charged with, by cluster and pool."""
        booked = Counter[tuple[str, str]]()
        for one in (hub.parse(key) for hub in (self, *self.neighbours) for key in hub.replicas):
            booked.update({(one.cluster, pool): nodes for pool, nodes in one.charges.items()})
        return booked

    @property
    def nodes(self) -> Counter[tuple[str, str]]:
        """Nodes that there are, by cluster and pool."""
        return Counter(
            {
                (name, pool.name): pool.nodes or 0
                for name, cluster in self.clusters.items()
                for pool in (cluster.status.gpu_pools if cluster.status else ())
            }
        )

    def rename(self, cluster: str, before: str, after: str) -> None:
        """The nodes of a pool get another name; the pods on them stay."""
        for group in itertools.chain.from_iterable(self._pods.values()):
            if group.running_since is not None:
                group.nodes = {
                    (at, after if (at, pool) == (cluster, before) else pool): n for (at, pool), n in group.nodes.items()
                }

    def decide(self, *, dies_after: int | None = None) -> Plan:
        """One reconcile. `dies_after`: so many of its steps, and then the operator dies."""
        decided = plan(self.observed)
        before, nodes = self.booked, self.nodes
        self._carry_out(replace(decided, steps=decided.steps[:dies_after]))
        if decided.status and dies_after is None:
            self.deployment = self.deployment.model_copy(update={"status": decided.status})
        overbooked = {at: count for at, count in self.booked.items() if count > max(nodes[at], before[at])}
        assert not overbooked, f"booked beyond the pool: {overbooked}"
        return decided

    def _carry_out(self, decided: Plan) -> None:
        if _effective(decided, self.endpoints) or decided.requeue_after is not None:
            self._moved = self._ticks
        for step in decided.steps:
            match step:
                case Create(manifest):
                    assert key_of(manifest) not in self.replicas
                    self.created += 1
                    self._store(manifest, generation=1)
                case Replace(manifest):
                    before = self.replicas[key_of(manifest)]
                    assert manifest["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]
                    other = manifest["spec"] != before["spec"]
                    self._store(manifest, generation=before["metadata"]["generation"] + other)
                    if other:
                        assert key_of(manifest) not in self.routes, "changed under requests"
                        self._asked.discard(key_of(manifest))  # whoever had asked has been answered
                case Apply(manifest):
                    self.endpoints[key_of(manifest)] = change(manifest, "metadata.uid", "uid-of-endpoint")
                case Delete(kind, key) if kind == ENDPOINTS:
                    del self.endpoints[key]
                case Delete(kind, key):
                    assert key not in self.routes, "removed under requests"
                    since = annotations_of(self.replicas[key]).get(labels.DRAINING_SINCE)
                    rested = since is not None and self.now - datetime.fromisoformat(since) >= GRACE
                    busy = key in self._asked and self.answers(key)
                    assert rested or not busy, "removed before its answers were finished"
                    self.end(key)
                case _:
                    raise AssertionError(step)
        self._clear()

    def tick(self) -> None:
        """Time passes: replicas start, and the gateway follows the endpoints of those that answer."""
        self.routes = set(self.endpoints)
        self._asked |= self.routes
        self._asked -= {key for key in self.replicas if self.parse(key).cluster in self.silent}
        self.now += self.step
        self._ticks += 1
        self._clear()
        self._start()
        for key, manifest in self.replicas.items():
            generation = manifest["metadata"]["generation"]
            pods = self._pods[key][-1]
            since, waiting = pods.running_since, pods if pods.running_since is None else None
            answers = since is not None and self._ticks - since >= self.starting and self._works(key)
            status = "True" if answers else "False"
            before = condition(manifest, "ModelReady")
            since = before.last_transition_time if before.status == status else self.now.isoformat()
            self.replicas[key] = {
                **manifest,
                "status": {
                    "heldNodes": self._held(key),
                    **self._find_outdated(manifest["spec"]),
                    **({"unschedulableSince": waiting.made.isoformat()} if waiting else {}),
                    "conditions": [
                        {
                            "type": kind,
                            "status": status,
                            "reason": "Simulated",
                            "observedGeneration": generation,
                            "lastTransitionTime": since,
                        }
                        for kind in ("ModelReady", "Ready")
                    ],
                },
            }

    def _works(self, key: Key) -> bool:
        """Whether pods of this replica can answer: their cluster does, and their image is good."""
        spec = self.replicas[key]["spec"]
        containers = spec["engines"][0]["members"][0].get("template", {}).get("spec", {}).get("containers", ())
        images = {container.get("image", "") for container in containers}
        return spec["clusterName"] not in self.silent and not images & self.broken

    @property
    def quiet(self) -> bool:
        """Whether nothing has been decided for longer than anything takes."""
        return self._ticks - self._moved > self.starting + self.ending + 2 + GRACE // self.step

    def settle(self) -> None:
        """Go on until nothing moves."""
        end = self._ticks + 400
        while self._ticks < end:
            self.decide()
            self.tick()
            if self.quiet:
                return
        raise AssertionError(f"still moving: {plan(self.observed).steps}")

    def end(self, key: Key) -> None:
        """The replica is deleted, and is gone when its pods are."""
        self._end(key)
        self.replicas[key] = change(self.replicas[key], "metadata.deletionTimestamp", self.now.isoformat())

    def waits_for_nodes(self, key: Key) -> bool:
        """Whether the pods of a replica find no nodes."""
        return self._pods[key][-1].running_since is None

    def _store(self, manifest: Manifest, *, generation: int) -> None:
        key, number = key_of(manifest), next(self._uids)
        before = self.replicas.get(key)
        metadata = {**manifest["metadata"], "generation": generation, "resourceVersion": str(number)}
        metadata["uid"] = before["metadata"]["uid"] if before else f"uid-{number}"
        self.replicas[key] = {**manifest, "metadata": metadata}
        if before is None or before["metadata"]["generation"] != generation:
            self._end(key)
            replica = self.parse(key)
            nodes = {(replica.cluster, pool): count for pool, count in charges(replica.engines).items()}
            shape = Pods(nodes, self.now)
            self._pods.setdefault(key, []).append(shape)
            self._start()

    def _end(self, key: Key) -> None:
        for group in self._pods.get(key, ()):
            group.ends = group.ends or (self._ticks + self.ending if group.running_since is not None else self._ticks)

    def _clear(self) -> None:
        """What has ended is gone, and a deleted replica with the last of its pods."""
        for key, groups in list(self._pods.items()):
            self._pods[key] = [
                group for group in groups if group.ends is None or group.ends > self._ticks or self._is_silent(group)
            ]
            if not self._pods[key]:
                del self._pods[key], self.replicas[key]
                self._asked.discard(key)  # another may come by its name

    def _is_silent(self, group: Pods) -> bool:
        """Whether the pods are on a cluster that does not answer."""
        return any(cluster in self.silent for cluster, _ in group.nodes)

    def _start(self) -> None:
        """Pods start where nodes are free, first come, first served."""
        everywhere = [pods for hub in (self, *self.neighbours) for groups in hub._pods.values() for pods in groups]
        for group in itertools.chain.from_iterable(self._pods.values()):
            if group.running_since is None and group.ends is None and not self._is_silent(group):
                free = self.nodes
                for other in everywhere:
                    free.subtract(other.nodes if other.running_since is not None else {})
                if all(count <= free[at] for at, count in group.nodes.items()):
                    group.running_since = self._ticks

    def _held(self, key: Key) -> list[Manifest]:
        taken = Counter[str]()
        for group in self._pods[key]:
            taken.update({pool: n for (_, pool), n in group.nodes.items() if group.running_since is not None})
        asked = charges(self.parse(key).engines)
        return [{"pool": pool, "nodes": count} for pool, count in sorted(taken.items()) if count > asked.get(pool, 0)]


def _effective(decided: Plan, endpoints: dict[Key, Manifest]) -> Iterable[Any]:
    """Steps that would change something: an endpoint is applied again and again, and is not written."""
    return [step for step in decided.steps if not (isinstance(step, Apply) and key_of(step.manifest) in endpoints)]


# What users write, and what is watched --------------------------------------------------------------------------------

DRAIN = [taint("maintenance", effect="NoExecute")]


def wanting(
    replicas: int, *, image: str = "vllm:1", size: str = "141Gi", copies: int = 1, rollout: Manifest | None = None
) -> ModelDeployment:
    one = engine(request(b.memory(size)), copies=copies)
    one["members"][0]["template"] = {"spec": {"containers": [{"name": "engine", "image": image}]}}
    made = deployment(one, replicas=replicas).to_manifest()
    if rollout:
        made["spec"]["template"]["spec"]["rollout"] = rollout
    return ModelDeployment.parse(made)


def images(hub: Hub) -> set[str]:
    containers = (
        one["spec"]["engines"][0]["members"][0]["template"]["spec"]["containers"] for one in hub.replicas.values()
    )
    return {container[0]["image"] for container in containers}


def settled(deployment: ModelDeployment, **nodes: int) -> Hub:
    hub = Hub(deployment, {name: cluster(name, nodes=count) for name, count in nodes.items()})
    hub.settle()
    assert len(hub.serving) == deployment.spec.replicas
    return hub


def watched(hub: Hub, *, least: int, most: int) -> list[int]:
    """Let it settle; at every moment enough serve, and no more exist than may. How many served at each."""
    served: list[int] = []
    while True:
        hub.decide()
        served.append(len(hub.serving))
        assert served[-1] >= least, f"only {served[-1]} serve"
        assert len(hub.replicas) <= most
        hub.tick()
        assert not hub.dropped
        if hub.quiet:
            return served


def frozen(hub: Hub, wanted: ModelDeployment, **metadata: Any) -> None:
    """The deployment as it is stored once somebody has paused it, or deleted it and has it wait; and has edited it."""
    status = plan(hub.observed).status
    manifest = wanted.to_manifest()
    paused = {**manifest, "metadata": {**manifest["metadata"], **metadata}}
    hub.deployment = ModelDeployment.parse(paused).model_copy(update={"status": status})


PAUSED = {"annotations": {labels.PAUSED: "true"}}
TERMINATING = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/mine"]}


def places(hub: Hub) -> list[str]:
    return sorted(one["spec"]["clusterName"] for one in hub.replicas.values())
