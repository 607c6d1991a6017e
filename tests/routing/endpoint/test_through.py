"""Gateways of clusters that hang, by requests at the paths of replicas' endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import pytest

from kubeloop.objects import Key
from kubeloop.types import ResourceType
from modelplane_operator.api.model_endpoint import ModelEndpoint, ModelEndpointStatus
from modelplane_operator.models.replica.render import replica_prefix
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.endpoint.backend_url import Backend, Reach
from modelplane_operator.routing.endpoint.plan import ClusterState, Reached, plan
from modelplane_operator.routing.endpoint.through import ClusterGateways, ClusterPath, find_path, refuse_inward
from modelplane_operator.routing.service.answer import GatewayAnswer
from modelplane_operator.routing.service.probe import UNRESOLVED, Asker, ServiceAddress
from tests.support import virtual_time
from tests.support.builders import NAMESPACE
from tests.support.endpoints import endpoint, seen, settled
from tests.support.plans import told

FIRST, SECOND = Key("team", "a-1"), Key("team", "b-2")
GATEWAY = Backend("http", "10.90.1.5", 80)
SILENT = GatewayAnswer(lack="gives no answer within 4 s", silent=True)
SAYS = "gateway http://10.90.1.5:80 of cluster worker-2 gives no answer within 4 s: look at its pods on that cluster"

Answers = Callable[[str], GatewayAnswer]


class Stage:
    """Gateways that answer by path as the scene says."""

    def __init__(self) -> None:
        self.answers: Answers = lambda _: GatewayAnswer(200)
        self.woken, self.asked = list[tuple[str, Key]](), list[str]()
        self.waiting, self.most_waiting, self.seconds = 0, 0, 0.0
        self.gateways = ClusterGateways(cast("Asker", self), self.wake)

    async def get(self, way: ServiceAddress, path: str) -> GatewayAnswer:
        if way.host.startswith("of-another"):
            return SILENT
        self.asked.append(f"{way.address}{way.prefix}{path}")
        if way.address == GATEWAY.host and self.seconds:
            self.waiting += 1
            self.most_waiting = max(self.most_waiting, self.waiting)
            await asyncio.sleep(self.seconds)
            self.waiting -= 1
        return self.answers(f"{way.prefix}{path}")

    def wake(self, kind: ResourceType, key: Key) -> None:
        self.woken.append((kind.kind, key))

    def find(self, key: Key, cluster: str = "worker-2", gateway: Backend = GATEWAY) -> Checked[Reached]:
        return self.gateways.checks.find(key, ClusterPath(cluster, gateway, None, f"/{key.namespace}/{key.name}/"))


def played(scene: Callable[[Stage], Coroutine[Any, Any, None]]) -> Stage:
    async def play() -> Stage:
        stage = Stage()
        async with asyncio.TaskGroup() as group:
            checking = group.create_task(stage.gateways.checks.run())
            await asyncio.sleep(0)
            await scene(stage)
            checking.cancel()
        return stage

    return virtual_time.run(play())


def test_a_gateway_that_hangs_is_named_by_its_cluster_and_address_and_wakes_what_says_so() -> None:
    async def scene(stage: Stage) -> None:
        stage.find(FIRST)
        stage.find(SECOND, "worker-1", Backend("http", "10.90.1.4", 80))
        await asyncio.sleep(0.1)
        assert stage.asked == ["10.90.1.5/team/a-1/v1/models", "10.90.1.4/team/b-2/v1/models"]
        stage.woken.clear()
        stage.answers = lambda path: SILENT if "a-1" in path or path.startswith("/-/") else GatewayAnswer(200)
        await asyncio.sleep(15)
        assert stage.find(FIRST) == Checked(Reached(SAYS, certain=True), failing=True)
        assert stage.gateways.describe_silence("worker-2") == SAYS
        assert stage.gateways.describe_failure(FIRST) == SAYS
        assert stage.gateways.describe_failure(Key("team", "unknown")) == ""
        assert stage.gateways.describe_silence("worker-1") == stage.gateways.describe_failure(SECOND) == ""
        assert {("ModelEndpoint", FIRST), ("ModelReplica", FIRST), ("InferenceCluster", Key("", "worker-2"))} == {
            *stage.woken
        }
        stage.woken.clear()
        stage.answers = lambda _: GatewayAnswer(503)
        await asyncio.sleep(2.5)
        assert stage.gateways.describe_silence("worker-2") == "", "it is asked again every two seconds"
        assert ("InferenceCluster", Key("", "worker-2")) in stage.woken

    played(scene)


@pytest.mark.parametrize("answers_itself", [True, False])
def test_an_engine_that_hangs_and_a_gateway_that_never_answered_are_no_silent_gateway(
    answers_itself: bool,  # noqa: FBT001
) -> None:
    async def scene(stage: Stage) -> None:
        own = GatewayAnswer(404, unrouted=True) if answers_itself else SILENT
        stage.answers = lambda path: own if path.startswith("/-/") else SILENT
        stage.find(FIRST)
        await asyncio.sleep(60)
        assert not stage.find(FIRST).failing
        assert stage.gateways.describe_silence("worker-2") == ""

    played(scene)


def test_one_check_at_a_time_waits_for_a_gateway_that_hangs_so_that_those_of_other_clusters_go_on() -> None:
    async def scene(stage: Stage) -> None:
        behind = [Key(f"team-{number}", "a") for number in range(200)]
        for key in behind:
            stage.find(key)
        stage.find(SECOND, "worker-1", Backend("http", "10.90.1.4", 80))
        await asyncio.sleep(1)
        stage.answers, stage.seconds = lambda path: GatewayAnswer(200) if "b-2" in path else SILENT, 4.0
        await asyncio.sleep(120)
        assert all(stage.find(key).failing for key in behind)
        stage.asked.clear()
        stage.most_waiting = stage.waiting
        await asyncio.sleep(180)
        assert stage.most_waiting == 1
        assert sum("b-2" in path for path in stage.asked) >= 2, "the gateway of another cluster is asked as before"
        stage.answers, stage.seconds = lambda _: GatewayAnswer(200), 0.0
        await asyncio.sleep(60)
        assert not any(stage.find(key).failing for key in behind), "it answers again"

    played(scene)


def test_a_tenant_who_edits_name_or_port_of_an_endpoint_makes_no_gateway_silent_and_hides_no_silence() -> None:
    async def scene(stage: Stage) -> None:
        stage.find(FIRST)
        named = [ClusterPath("worker-2", GATEWAY, f"of-another-{number}", "/evil/a/") for number in range(9)]
        ways = (*named, ClusterPath("worker-2", replace(GATEWAY, port=443), "of-another", "/evil/a/"))
        for way in ways:
            stage.gateways.checks.find(Key("evil", "a"), way)
            await asyncio.sleep(20)
            assert not stage.gateways.describe_silence("worker-2")
            assert not stage.find(FIRST).failing
        assert len(stage.gateways._gateways) <= 2, "names of the past are forgotten"
        stage.answers = lambda _: SILENT
        await asyncio.sleep(20)
        assert stage.gateways.describe_silence("worker-2") == SAYS

    played(scene)


def test_a_cluster_cannot_have_the_operator_ask_its_own_machine_or_the_cloud_for_it() -> None:
    state, reach = ClusterState("169.254.169.254", None, "worker-2"), Reach(allowed=("10.90.1.5",))
    forged = {"leadsTo": "Replica", "url": "http://169.254.169.254:80", "backendName": "any"}
    own = settled(seen(endpoint("http://10.90.1.5/"))).endpoint
    status = ModelEndpointStatus.model_validate({"routing": forged, "conditions": []})
    assert find_path(own.model_copy(update={"status": status}), state, reach) is None

    answers = dict[str, str]()

    async def ask(name: str, *addresses: str) -> None:
        answers[name] = await refuse_inward(reach)(name, addresses)

    for name, address in {"cloud.example.": "169.254.169.254", "own.example.": "127.0.0.1"}.items():
        asyncio.run(ask(name, "192.0.2.7", address))
        assert answers[name].startswith(f"{name[:-1]} does not lead to")
    asyncio.run(ask("lb.example.", "10.1.2.3"))
    assert answers["lb.example."] == "", "gateways may have private addresses"


def test_a_name_that_does_not_resolve_is_no_answer_of_a_gateway() -> None:
    async def scene(stage: Stage) -> None:
        stage.answers = lambda _: GatewayAnswer(lack=UNRESOLVED, connected=False)
        stage.find(FIRST)
        await asyncio.sleep(10)
        stage.answers = lambda _: SILENT
        await asyncio.sleep(60)
        assert not stage.find(FIRST).failing, "it may answer the hub's gateway all the same"

    played(scene)


def test_what_is_deleted_keeps_no_cluster_from_being_ready() -> None:
    async def scene(stage: Stage) -> None:
        stage.find(FIRST)
        await asyncio.sleep(0.1)
        stage.answers = lambda _: SILENT
        await asyncio.sleep(15)
        assert stage.gateways.describe_silence("worker-2")
        stage.woken.clear()
        stage.gateways.checks.forget(FIRST)
        stage.gateways._on_event(FIRST, {}, None)
        assert stage.gateways.describe_silence("worker-2") == ""
        assert ("InferenceCluster", Key("", "worker-2")) in stage.woken

    played(scene)


def test_an_endpoint_says_that_its_gateway_is_silent_until_that_answers() -> None:
    prefix = replica_prefix(Key(NAMESPACE, "together"))
    state = ClusterState("10.90.1.5", None, "worker-2")
    before = settled(replace(seen(endpoint("http://10.90.1.5/", rewritePath=prefix)), cluster=state))
    assert find_path(before.endpoint, state) is None, "there is no route yet"

    def then(checked: Checked[Reached], observed: Any) -> Any:
        status = plan(observed).status
        assert isinstance(status, ModelEndpointStatus)
        known: ModelEndpoint = observed.endpoint.model_copy(update={"status": status})
        return replace(observed, endpoint=known, reached=checked)

    fresh = then(Checked(), before)
    assert find_path(fresh.endpoint, state) == ClusterPath("worker-2", GATEWAY, None, prefix)
    assert find_path(fresh.endpoint, replace(state, gateway="10.90.1.6")) is None, "somebody wrote another address"
    assert told(plan(fresh))["Ready"][:2] == ("True", "Available"), "a replica that answers is believed"
    silent = then(Checked(Reached(SAYS, certain=True), failing=True), fresh)
    said = ("Unknown", "Unreachable", f"G{SAYS[1:]}")
    assert told(plan(silent))["Ready"] == said
    for unknown in (Checked(), Checked(Reached(SAYS))):
        assert told(plan(then(unknown, silent)))["Ready"] == said, "another operator begins"
    assert told(plan(then(Checked(Reached("")), silent)))["Ready"][:2] == ("True", "Available")
