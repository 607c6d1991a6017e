"""What the gang controller would do next, for groups in every state, without a cluster."""

from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localfleet.leaderworkerset.groups import LeaderWorkerSet, read_groups, read_set
from localfleet.leaderworkerset.plan import Create, Delete, status, steps
from tests.localfleet.engine_support import Manifest

NOW = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T00:01:00Z"


def gang(replicas: int = 2, size: int = 3, *, image: str = "engine:1", **spec: Any) -> Manifest:
    container = {"name": "engine", "image": image, "env": [{"name": "RANK", "value": "$(LWS_WORKER_INDEX)"}]}
    template = {"metadata": {"labels": {"role": "member"}}, "spec": {"containers": [container]}}
    policies = {"restartPolicy": spec.pop("restart_policy", "RecreateGroupOnPodRestart")}
    return {
        "metadata": {"name": "gang", "namespace": "a", "uid": "gang-uid", "generation": 1},
        "spec": {
            "replicas": replicas,
            "leaderWorkerTemplate": {"size": size, "workerTemplate": template, **policies},
            **spec,
        },
    }


class World:
    """The pods and services of a namespace, changed by steps as an API server and a kubelet would."""

    def __init__(self) -> None:
        self.pods: dict[str, Manifest] = {}
        self.services: set[str] = set()
        self.bereaved: set[str] = set()
        self._uids = count()

    def step(self, wanted: LeaderWorkerSet) -> list[str]:
        """Take all steps there are; answer what they were. Deleted pods are gone at once."""
        taken: list[str] = []
        for step in [*steps(wanted, read_groups(wanted, self.pods.values()), self.services, self.bereaved)]:
            match step:
                case Create("pods", manifest):
                    name = manifest["metadata"]["name"]
                    assert name not in self.pods, f"{name} is made twice"
                    self.pods[name] = {**manifest, "metadata": {**manifest["metadata"], "uid": f"u{next(self._uids)}"}}
                    taken.append(f"+{name}")
                case Create(_, manifest):
                    self.services.add(manifest["metadata"]["name"])
                    taken.append(f"+service {manifest['metadata']['name']}")
                case Delete(name, uid):
                    assert self.pods.pop(name)["metadata"]["uid"] == uid
                    self.bereaved.discard(uid)
                    taken.append(f"-{name}")
        return taken

    def settle(self, manifest: Manifest) -> list[str]:
        """Step, with every pod getting ready, until there is nothing to do; answer all steps."""
        wanted, taken, quiet = read_set(manifest), [], 0
        while quiet < 2:  # once more after the pods got ready
            now = self.step(wanted)
            self.run()
            taken += now
            quiet = 0 if now else quiet + 1
            assert len(taken) < 200, f"no end after {taken}"
        return taken

    def run(self, *names: str, ready: bool = True, restarts: int = 0, phase: str = "Running") -> None:
        for name in names or self.pods:
            self.pods[name]["status"] = {
                "phase": phase,
                "conditions": [{"type": "Ready", "status": str(ready)}],
                "containerStatuses": [{"name": "engine", "restartCount": restarts}],
            }

    def status(self, manifest: Manifest, before: Manifest | None = None, now: str = NOW) -> Manifest:
        wanted = read_set(manifest)
        return status(wanted, read_groups(wanted, self.pods.values()), before or {}, now)

    def conditions(self, manifest: Manifest) -> dict[str, str]:
        return {entry["type"]: entry["status"] for entry in self.status(manifest)["conditions"]}


def settled(manifest: Manifest) -> World:
    world = World()
    world.settle(manifest)
    return world


def test_a_new_set_gets_its_service_its_leaders_and_then_their_workers() -> None:
    world = World()

    assert world.step(read_set(gang())) == ["+service gang", "+gang-0", "+gang-1"]
    assert world.step(read_set(gang())) == ["+gang-0-1", "+gang-0-2", "+gang-1-1", "+gang-1-2"]
    assert world.step(read_set(gang())) == []


def test_a_member_knows_its_place() -> None:
    worker = settled(gang()).pods["gang-1-2"]
    leader = settled(gang()).pods["gang-1"]

    assert worker["spec"]["hostname"] == "gang-1-2"
    assert worker["spec"]["subdomain"] == "gang"
    assert worker["spec"]["containers"][0]["env"] == [
        {"name": "LWS_LEADER_ADDRESS", "value": "gang-1.gang.a"},
        {"name": "LWS_GROUP_SIZE", "value": "3"},
        {"name": "LWS_WORKER_INDEX", "value": "2"},
        {"name": "RANK", "value": "$(LWS_WORKER_INDEX)"},
    ]
    labels = worker["metadata"]["labels"]
    prefix = "leaderworkerset.sigs.k8s.io/"
    assert (labels["role"], labels[f"{prefix}name"]) == ("member", "gang")
    assert (labels[f"{prefix}group-index"], labels[f"{prefix}worker-index"]) == ("1", "2")
    assert labels[f"{prefix}group-key"] == leader["metadata"]["labels"][f"{prefix}group-key"]
    assert worker["metadata"]["annotations"] == {f"{prefix}size": "3", f"{prefix}leader-name": "gang-1"}
    assert [owner["kind"] for owner in worker["metadata"]["ownerReferences"]] == ["Pod"]
    assert [owner["kind"] for owner in leader["metadata"]["ownerReferences"]] == ["LeaderWorkerSet"]


def test_a_leader_template_is_the_leaders_alone() -> None:
    manifest = gang(1, 2)
    leader = {"spec": {"containers": [{"name": "engine", "image": "leader:1"}]}}
    manifest["spec"]["leaderWorkerTemplate"]["leaderTemplate"] = leader

    images = {name: pod["spec"]["containers"][0]["image"] for name, pod in settled(manifest).pods.items()}

    assert images == {"gang-0": "leader:1", "gang-0-1": "engine:1"}


def test_workers_wait_for_a_ready_leader_when_asked_so() -> None:
    wanted = read_set(gang(1, 2, startupPolicy="LeaderReady"))
    world = World()

    assert world.step(wanted) == ["+service gang", "+gang-0"]
    assert world.step(wanted) == []
    world.run()
    assert world.step(wanted) == ["+gang-0-1"]


def test_a_name_that_is_taken_is_left_alone() -> None:
    world = World()
    world.services.add("gang")

    assert world.step(read_set(gang(1, 1))) == ["+gang-0"]


def test_own_subdomains_mean_a_service_per_group() -> None:
    world = settled(gang(2, 1, networkConfig={"subdomainPolicy": "UniquePerReplica"}))

    assert world.services == {"gang-0", "gang-1"}
    assert world.pods["gang-1"]["spec"]["subdomain"] == "gang-1"


def test_a_restarted_worker_costs_its_group_and_no_other() -> None:
    world = settled(gang())
    world.run("gang-1-2", restarts=1)

    assert world.settle(gang()) == ["-gang-1", "-gang-1-1", "-gang-1-2", "+gang-1", "+gang-1-1", "+gang-1-2"]


def test_a_worker_that_disappeared_costs_its_group() -> None:
    world = settled(gang(1))
    del world.pods["gang-0-1"]
    world.bereaved.add(world.pods["gang-0"]["metadata"]["uid"])

    assert world.settle(gang(1)) == ["-gang-0", "-gang-0-2", "+gang-0", "+gang-0-1", "+gang-0-2"]


def test_a_leader_that_disappeared_costs_its_group_under_every_policy() -> None:
    for policy in ("None", "RecreateGroupOnPodRestart"):
        manifest = gang(1, 2, restart_policy=policy)
        world = settled(manifest)
        del world.pods["gang-0"]

        assert world.settle(manifest) == ["-gang-0-1", "+gang-0", "+gang-0-1"]


def test_without_group_restarts_only_the_failed_pod_is_replaced() -> None:
    manifest = gang(1, restart_policy="None")
    world = settled(manifest)
    world.run("gang-0-1", restarts=4)
    world.run("gang-0-2", phase="Failed")

    assert world.settle(manifest) == ["-gang-0-2", "+gang-0-2"]


def test_scaling_down_takes_the_highest_groups() -> None:
    world = settled(gang(3, 1))

    assert world.settle(gang(1, 1)) == ["-gang-1", "-gang-2"]
    assert world.settle(gang(0, 1)) == ["-gang-0"]
    assert world.conditions(gang(0, 1))["Available"] == "True"


def test_a_new_template_rolls_from_the_top_one_ready_group_at_a_time() -> None:
    world = settled(gang(3, 1))
    new = gang(3, 1, image="engine:2")

    assert world.step(read_set(new)) == ["-gang-2"]
    assert world.conditions(new) == {"Available": "False", "Progressing": "True", "UpdateInProgress": "True"}
    assert world.step(read_set(new)) == ["+gang-2"]
    assert world.step(read_set(new)) == [], "gang-1 stays until gang-2 is ready"
    world.run()
    assert world.step(read_set(new)) == ["-gang-1"]
    world.settle(new)
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods.values()} == {"engine:2"}
    assert world.conditions(new) == {"Available": "True", "Progressing": "False", "UpdateInProgress": "False"}


def test_a_rollout_keeps_to_its_partition_and_takes_what_it_may() -> None:
    world = settled(gang(6, 1))
    rollout = {"rollingUpdateConfiguration": {"partition": 2, "maxUnavailable": "50%"}}
    new = gang(6, 1, image="engine:2", rolloutStrategy=rollout)

    assert world.step(read_set(new)) == ["-gang-3", "-gang-4", "-gang-5"]
    world.settle(new)
    images = {name: pod["spec"]["containers"][0]["image"] for name, pod in world.pods.items()}
    assert sorted(name for name, image in images.items() if image == "engine:1") == ["gang-0", "gang-1"]
    assert world.status(new)["updatedReplicas"] == 4


def test_a_group_that_does_not_serve_anyway_is_updated_at_once() -> None:
    world = settled(gang(3, 1))
    world.run("gang-0", ready=False)

    assert world.step(read_set(gang(3, 1, image="engine:2"))) == ["-gang-0"]


def test_the_time_of_a_condition_moves_only_with_its_status() -> None:
    world = settled(gang())
    before = world.status(gang())
    assert world.status(gang(), before, LATER) == before

    world.run("gang-1-1", ready=False)
    after = world.status(gang(), before, LATER)

    moved = {entry["type"]: entry["lastTransitionTime"] for entry in after["conditions"]}
    assert moved == {"Available": LATER, "Progressing": LATER, "UpdateInProgress": NOW}
    assert (after["replicas"], after["readyReplicas"]) == (2, 1)


def test_a_set_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    manifest = gang()
    world = settled(manifest)
    manifest["metadata"]["deletionTimestamp"] = NOW
    world.pods.pop("gang-0-1")

    assert world.step(read_set(manifest)) == []


@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 4), st.sampled_from(["engine:1", "engine:2"])),
        min_size=1,
        max_size=4,
    ),
    st.data(),
)
def test_whatever_happens_the_set_ends_as_its_spec_says(specs: list[tuple[int, int, str]], data: st.DataObject) -> None:
    world = World()
    for replicas, size, image in specs:
        wanted = gang(replicas, size, image=image)
        for _ in range(data.draw(st.integers(0, 3))):
            world.step(read_set(wanted))
        for name in data.draw(st.sets(st.sampled_from(sorted(world.pods)))) if world.pods else ():
            world.run(name, restarts=data.draw(st.integers(0, 1)))

    replicas, size, image = specs[-1]
    world.settle(gang(replicas, size, image=image))

    leaders = {f"gang-{group}" for group in range(replicas)}
    assert set(world.pods) == leaders | {f"{leader}-{index}" for leader in leaders for index in range(1, size)}
    assert {pod["spec"]["containers"][0]["image"] for pod in world.pods.values()} <= {image}
    assert world.status(gang(replicas, size, image=image))["readyReplicas"] == replicas
