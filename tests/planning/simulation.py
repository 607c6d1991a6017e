"""A hub in memory for deployments: it carries out plans, makes replicas answer after a while, and lets gateways follow.

What is checked at every moment is what users rely on, not how the planner gets there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from modelplane_operator.api import InferenceCluster, ModelDeployment, ModelEndpoint, ModelReplica, labels
from modelplane_operator.api.base import Key
from modelplane_operator.clients.resources import annotations_of, key_of, of
from modelplane_operator.planning.model_deployment import Observed, plan
from modelplane_operator.planning.plan import Apply, Create, Delete, Plan, Replace
from modelplane_operator.planning.symptoms import condition
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.need import NoCache
from tests.support.builders import EPOCH
from tests.support.manifests import change

Manifest = dict[str, Any]

GRACE = timedelta(seconds=30)
TICK = timedelta(seconds=5)
REPLICAS, ENDPOINTS = of(ModelReplica), of(ModelEndpoint)


@dataclass
class Hub:
    """One deployment and its fleet. `starting`: how many ticks a replica takes until it answers."""

    deployment: ModelDeployment
    clusters: dict[str, InferenceCluster]
    starting: int = 3
    now: datetime = EPOCH
    replicas: dict[Key, Manifest] = field(default_factory=dict[Key, Manifest])
    endpoints: dict[Key, Manifest] = field(default_factory=dict[Key, Manifest])
    routes: set[Key] = field(default_factory=set[Key])
    """The endpoints that the gateway sends requests to: it follows a tick later."""
    _since: dict[Key, int] = field(default_factory=dict[Key, int])
    _asked: set[Key] = field(default_factory=set[Key])
    """Those that have been sent requests since they were made or changed."""
    _ticks: int = 0
    _moved: int = 0
    """The tick of the last decision that changed something."""
    _uids: Any = field(default_factory=lambda: itertools.count(1))

    @property
    def observed(self) -> Observed:
        fleet = FleetModel()
        for cluster in self.clusters.values():
            fleet.observe_cluster(cluster)
        for manifest in self.replicas.values():
            fleet.observe_replica(ModelReplica.parse(manifest))
        routed = frozenset(self.routes & self.replicas.keys())
        return Observed(
            deployment=self.deployment,
            cache=NoCache.NOT_READ,
            fleet=fleet,
            clusters=self.clusters,
            replicas=tuple(self.replicas[key] for key in sorted(self.replicas)),
            endpoints=tuple(self.endpoints.values()),
            routed=routed,
            reached=routed,
            grace=GRACE,
            now=self.now,
        )

    @property
    def serving(self) -> set[Key]:
        """The replicas that answer what the gateway sends them."""
        return {key for key in self.routes if key in self.replicas and self.answers(key)}

    @property
    def dropped(self) -> set[Key]:
        """Where the gateway sends requests that nobody answers, because we have disturbed what was there."""
        return {key for key in self.routes if key not in self.replicas or not self.answers(key)}

    def answers(self, key: Key) -> bool:
        return condition(self.replicas[key], "ModelReady").get("status") == "True"

    def decide(self) -> Plan:
        """One reconcile."""
        decided = plan(self.observed)
        if _effective(decided, self.endpoints):
            self._moved = self._ticks
        for step in decided.steps:
            match step:
                case Create(manifest):
                    assert key_of(manifest) not in self.replicas
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
                    del self.replicas[key]
                case _:
                    raise AssertionError(step)
        return decided

    def tick(self) -> None:
        """Time passes: replicas start, and the gateway follows the endpoints of those that answer."""
        self.routes = set(self.endpoints)
        self._asked |= self.routes
        self.now += TICK
        self._ticks += 1
        for key, manifest in self.replicas.items():
            generation = manifest["metadata"]["generation"]
            answers = self._ticks - self._since[key] >= self.starting
            status = "True" if answers else "False"
            before = condition(manifest, "ModelReady")
            since = before["lastTransitionTime"] if before.get("status") == status else self.now.isoformat()
            self.replicas[key] = {
                **manifest,
                "status": {
                    "conditions": [
                        {
                            "type": kind,
                            "status": status,
                            "reason": "Simulated",
                            "observedGeneration": generation,
                            "lastTransitionTime": since,
                        }
                        for kind in ("ModelReady", "Ready")
                    ]
                },
            }

    @property
    def quiet(self) -> bool:
        """Whether nothing has been decided for longer than anything takes."""
        return self._ticks - self._moved > self.starting + 2 + GRACE // TICK

    def settle(self) -> None:
        """Go on until nothing moves."""
        end = self._ticks + 400
        while self._ticks < end:
            self.decide()
            self.tick()
            if self.quiet:
                return
        raise AssertionError(f"still moving: {plan(self.observed).steps}")

    def _store(self, manifest: Manifest, *, generation: int) -> None:
        key, number = key_of(manifest), next(self._uids)
        before = self.replicas.get(key)
        metadata = {**manifest["metadata"], "generation": generation, "resourceVersion": str(number)}
        metadata["uid"] = before["metadata"]["uid"] if before else f"uid-{number}"
        self.replicas[key] = {**manifest, "metadata": metadata}
        if before is None or before["metadata"]["generation"] != generation:
            self._since[key] = self._ticks


def _effective(decided: Plan, endpoints: dict[Key, Manifest]) -> Iterable[Any]:
    """Steps that would change something: an endpoint is applied again and again, and is not written."""
    return [step for step in decided.steps if not (isinstance(step, Apply) and key_of(step.manifest) in endpoints)]
