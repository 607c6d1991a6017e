"""A fleet of serving stacks without servers: the real plans, over releases that change as Helm would change them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from kubeloop.errors import Unreachable
from kubeloop.helm.release import Release, Revision, RevisionContent, Run
from kubeloop.objects import Key
from kubeloop.plan import Install, Plan, RollBack
from modelplane_operator.api import labels
from modelplane_operator.api.serving_stack import ServingStack
from modelplane_operator.clusters.stack.chart_states import ObservedCharts, Workload
from modelplane_operator.clusters.stack.charts import STACK
from modelplane_operator.clusters.stack.plan import ClusterState, Observed, plan
from modelplane_operator.clusters.stack.render import parts, render_before, render_gateway, render_namespaces
from modelplane_operator.clusters.stack.rollout import RolloutFleet, Surroundings, build_member, needs_fleet

Manifest = dict[str, Any]

OFF = [{"name": chart.name, "enabled": False} for chart in STACK if chart.default and chart.name != "envoy-gateway"]
"""All charts but the gateway's are turned off, as one is enough."""


@dataclass
class StackFleet:
    """Clusters with one chart each. `view`s are copies of what is stored: what an operator's cache shows."""

    names: Collection[str]
    canaries: Collection[str] = ()
    bad_for_helm: frozenset[str] = frozenset()
    """Clusters on which Helm cannot upgrade the chart."""
    bad_for_requests: frozenset[str] = frozenset()
    """Clusters that are not healthy with the new chart."""
    lost: frozenset[str] = frozenset()
    """Clusters that do not answer."""
    unfetched: frozenset[str] = frozenset()
    """Clusters for which Helm cannot fetch the chart."""
    down: frozenset[str] = frozenset()
    """Clusters on which no pod of the chart is ready."""
    hub_clusters: dict[str, Manifest] = field(default_factory=dict[str, Manifest])
    """The InferenceClusters of the stacks, as far as there are some."""
    failing: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The services whose requests fail, by cluster."""
    runs: dict[str, dict[Key, Run]] = field(default_factory=dict[str, dict[Key, Run]])
    now: datetime = datetime(2026, 1, 1, 12, tzinfo=UTC)
    stored: dict[str, Manifest] = field(default_factory=dict[str, Manifest])
    history: dict[str, dict[Key, tuple[Revision, ...]]] = field(default_factory=dict[str, dict[Key, Any]])
    contents: dict[str, dict[tuple[Key, int], RevisionContent]] = field(default_factory=dict[str, dict[Any, Any]])
    upgraded: list[str] = field(default_factory=list[str])
    """The clusters of which a working chart was changed, in order."""
    writes: int = 0

    def __post_init__(self) -> None:
        for name in self.names:
            marks = {labels.CANARY: "true"} if name in self.canaries else {}
            metadata = {"name": name, "namespace": "platform", "uid": name, "labels": marks, "resourceVersion": "1"}
            spec = {"secrets": [{"type": "Kubeconfig", "name": name, "key": "kubeconfig"}], "components": OFF}
            self.stored[name] = {"metadata": {**metadata, "finalizers": [labels.FINALIZER]}, "spec": spec}
            self.history[name], self.contents[name] = {}, {}
        self.ask("v1.8.1")
        for name in self.names:
            self.reconcile(name)
            self.reconcile(name)
        self.upgraded.clear()

    def ask(self, version: str, names: Iterable[str] = ()) -> None:
        """Have stacks ask for a version of the gateway's chart, as a new operator does for all of them."""
        for name in names or self.names:
            self.stored[name]["spec"]["versions"] = {"envoyGateway": version}

    def annotate(self, name: str, **annotations: str) -> None:
        metadata = self.stored[name]["metadata"]
        names = {"retry": labels.RETRY, "keep": labels.KEEP_CHARTS}
        metadata["annotations"] = {**metadata.get("annotations", {}), **{names[k]: v for k, v in annotations.items()}}

    def rollout(self, name: str) -> Manifest:
        return self.stored[name].get("status", {}).get("rollout", {})

    def phases(self) -> dict[str, str]:
        return {name: self.rollout(name).get("phase", "") for name in self.names}

    def version(self, name: str) -> str:
        """The version of the chart that runs on a cluster."""
        for revisions in self.history[name].values():
            newest = next(revision for revision in revisions if revision.status == "deployed")
            return self.contents[name][newest.release, newest.number].version
        return ""

    def view(self) -> dict[str, Manifest]:
        return copy.deepcopy(self.stored)

    def reconcile(self, name: str, view: Mapping[str, Manifest] | None = None, *, killed: bool = False) -> Plan:
        """Reconcile one stack as an operator does that has this view of the hub.

        A killed operator does what it decided, and reports nothing.
        """
        shown = view or self.stored
        stack = ServingStack.parse(shown[name])
        pods = [Workload(key, "Deployment", "envoy", 2, 0) for key in self.history[name] if name in self.down]
        charts = ObservedCharts(
            name,
            self.now,
            420.0,
            history=self.history[name],
            contents=self.contents[name],
            runs=self.runs.get(name, {}),
            workloads=tuple(pods),
        )
        fleet = None
        if needs_fleet(stack, parts(stack), charts):
            has_turn = stack.status is not None and stack.status.rollout is not None
            has_turn = has_turn and shown[name]["status"]["rollout"]["phase"] in {"Upgrading", "Watching"}
            listed = self.stored if has_turn else shown
            found = [build_member(other, ServingStack.parse(listed[other])) for other in self.names]
            members = [replace(one, available=one.cluster not in self.lost) for one in found if one]
            fleet = RolloutFleet(name, members, is_fresh=has_turn)
        around = Surroundings(fleet, self.hub_clusters.get(name), self.failing.get(name, ()))
        healthy = not (name in self.bad_for_requests and self.version(name) == "v1.9.1")
        objects = (*render_namespaces(stack), *render_before(stack), *render_gateway(stack))
        children = [
            {**one, "metadata": {**one["metadata"], "uid": one["metadata"]["name"]}}
            | ({"status": {"addresses": [{"value": "192.0.2.7"}]}} if one["kind"] == "Gateway" and healthy else {})
            for one in objects
        ]
        silence = Unreachable("ping: no answer in time") if name in self.lost else None
        state = ClusterState(charts, tuple(children)) if silence is None else None
        found_plan = plan(Observed(stack, name, state, silence, self.now, around=around))
        for step in found_plan.steps:
            match step:
                case Install(release):
                    self._install(name, release)
                case RollBack(release, revision):
                    self._roll_back(name, release, revision)
                case _:
                    pass
        if not killed:
            self._report(name, shown, found_plan)
        return found_plan

    def step(self, seconds: float = 0) -> None:
        """Let all clusters be looked at once, some seconds later."""
        self.now += timedelta(seconds=seconds)
        for name in self.names:
            self.reconcile(name)

    def settle(self, rounds: int = 2000) -> None:
        """Look at all clusters, a minute apart, until nothing more is written."""
        for _ in range(rounds):
            before = self.writes
            for _ in range(4):
                self.step()
            self.step(60)
            if self.writes == before and not {"Upgrading", "Watching"} & {*self.phases().values()}:
                return
        raise AssertionError(f"the fleet does not come to rest: {self.phases()}")

    def _report(self, name: str, shown: Mapping[str, Manifest], found: Plan) -> None:
        """Write the status, unless another operator has written since this view."""
        assert found.status is not None
        status, stored = found.status.to_manifest(), self.stored[name]
        for one in status["conditions"]:
            before = [old for old in stored.get("status", {}).get("conditions", []) if old["type"] == one["type"]]
            if before and before[0]["status"] == one["status"]:
                one["lastTransitionTime"] = before[0]["lastTransitionTime"]
        if shown[name]["metadata"]["resourceVersion"] != stored["metadata"]["resourceVersion"]:
            return
        if status != stored.get("status"):
            version = str(int(stored["metadata"]["resourceVersion"]) + 1)
            metadata = {**stored["metadata"], "resourceVersion": version}
            self.stored[name] = {**stored, "status": status, "metadata": metadata}
            self.writes += 1

    def _install(self, name: str, release: Release) -> None:
        old = self.history[name].get(release.key, ())
        if name in self.unfetched:
            failed = self.runs.get(name, {}).get(release.key)
            count = failed.failures + 1 if failed else 1
            run = Run("install", self.now, release.digest, self.now, "no such version", count)
            self.runs[name] = {release.key: run}
            return
        self.runs.pop(name, None)
        if old:
            self.upgraded.append(name)
        fails = bool(old) and name in self.bad_for_helm and release.version == "v1.9.1"
        content = RevisionContent(release.chart, release.version, release.values, "upgrade failed" if fails else "")
        self._add(name, release.key, "failed" if fails else "deployed", release.digest, content)

    def _roll_back(self, name: str, release: Key, revision: int) -> None:
        target = next(one for one in self.history[name][release] if one.number == revision)
        self._add(name, release, "deployed", target.digest, self.contents[name][release, revision])

    def _add(self, name: str, release: Key, status: str, digest: str, content: RevisionContent) -> None:
        old = self.history[name].get(release, ())
        number = old[0].number + 1 if old else 1
        if status == "deployed":
            old = tuple(
                Revision(**{**_fields(one), "status": "superseded"}) if one.status == "deployed" else one for one in old
            )
        secret = Key(release.namespace, f"sh.helm.release.v1.{release.name}.v{number}")
        uid = f"{name}-{number}"
        revision = Revision(release, number, status, secret, uid, "1", self.now.timestamp(), digest, name)
        self.history[name][release] = (revision, *old)
        self.contents[name][release, number] = content


def _fields(revision: Revision) -> dict[str, Any]:
    return {name: getattr(revision, name) for name in Revision.__slots__}
