"""What every reconcile promises, on a real API server, with a toy controller that makes config maps for a cache."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from kubeloop import loop, strands
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.condition_types import Ready
from kubeloop.loop import Clients, Controller, its_deletion, reconcile
from kubeloop.objects import Key, key_of
from kubeloop.plan import Apply, Create, Delete, Failure, Plan, Replace, Step, prune
from kubeloop.queue import Done, Failed, Forgotten, Outcome
from kubeloop.types import CONFIG_MAP
from kubeloop.wiring import owner_of_kind, runner
from localfleet.faultproxy.client import FaultProxy
from localfleet.faultproxy.rules import Answer, CloseWatch, Match, Rule
from modelplane_operator.api import ModelCache, labels
from modelplane_operator.api.model_cache import ModelCacheStatus
from tests.api.contract import rich
from tests.support.api import Api
from tests.support.loose import loosely
from tests.support.manifests import change
from tests.support.waiting import SECONDS, until
from tests.support.world import CACHES, WORKER, Seen, World, available, child, operating, torn_down

Manifest = dict[str, Any]

pytestmark = [pytest.mark.fleet, pytest.mark.server]


def two_children(seen: Seen) -> Plan:
    return available(seen, Apply(child(seen, "near")), Apply(child(seen, "far"), WORKER))


def one_child(seen: Seen) -> Plan:
    return available(seen, Apply(child(seen, "near")))


async def test_children_are_made_the_status_is_written_once_and_then_nothing(world: World) -> None:
    made = await world.cache()
    world.planner = two_children

    assert await world.step() == Done()
    first = list(world.writes)
    assert await world.step() == Done()

    assert first == [
        "set_finalizers modelcaches.modelplane.ai",
        "apply configmaps",
        "apply configmaps",
        "replace_status modelcaches.modelplane.ai",
    ]
    assert world.writes == []
    assert world.calls == [] or {call.verb for call in world.calls} <= {"ping", "watch"}
    live = await world.live()
    assert world.synced(live) == ("True", "ReconcileSuccess", "")
    assert {one["observedGeneration"] for one in live["status"]["conditions"]} == {made["metadata"]["generation"]}


async def test_an_operator_that_has_just_begun_writes_nothing_over_what_is_right(
    world: World, access: Access, kube: Kube
) -> None:
    await world.cache()
    world.planner = two_children
    await world.step()
    async with operating(access, kube, world.namespace) as successor:
        successor.planner = two_children

        assert await successor.step() == Done()
        assert successor.writes == []


async def test_the_status_tells_of_what_was_written_in_the_same_pass(world: World) -> None:
    await world.cache()

    def counting(seen: Seen) -> Plan:
        told = Ready.AVAILABLE.condition(seen.now, message=f"{len(seen.children)} children")
        return Plan((Apply(child(seen, "near")),), ModelCacheStatus(conditions=(told,)))

    world.planner = counting

    await world.step()
    assert world.writes == ["apply configmaps", "replace_status modelcaches.modelplane.ai"]
    conditions = {one["type"]: one for one in (await world.live())["status"]["conditions"]}
    assert conditions["Ready"]["message"] == "1 children"
    await world.step()
    assert world.writes == []


async def test_counts_are_written_once_a_second_and_what_becomes_true_or_false_at_once(world: World) -> None:
    await world.cache()
    world.sums_up = True
    told = Ready.CREATING, "1 of 3"

    def counting(seen: Seen) -> Plan:
        reason, message = told
        return Plan(status=ModelCacheStatus(conditions=(reason.condition(seen.now, message=message),)))

    async def message() -> str:
        return next(one["message"] for one in (await world.live())["status"]["conditions"] if one["type"] == "Ready")

    world.planner = counting
    assert await world.step() == Done()

    told = Ready.CREATING, "2 of 3"
    held = await world.step()
    assert isinstance(held, Done)
    assert held.requeue_after
    assert (world.writes, await message()) == ([], "1 of 3")
    await asyncio.sleep(held.requeue_after)
    assert await world.step() == Done()
    assert await message() == "2 of 3"

    told = Ready.AVAILABLE, "3 of 3"
    assert await world.step() == Done()
    assert await message() == "3 of 3"


async def test_what_somebody_changed_is_mended_with_one_write(world: World, api: Api) -> None:
    await world.cache()
    world.planner = one_child
    await world.step()
    await api.kubectl("-n", world.namespace, "patch", "configmap", "near", "--patch", '{"data": {"value": "theirs"}}')
    await world.seen(await world.kube.get(CONFIG_MAP, Key(world.namespace, "near")))

    assert await world.step() == Done()
    assert world.writes == ["apply configmaps"]
    assert (await world.kube.get(CONFIG_MAP, Key(world.namespace, "near")))["data"] == {"value": "1"}


async def test_nothing_is_made_remotely_for_what_is_being_deleted_without_our_finalizer(world: World) -> None:
    made = await world.cache()
    held = await world.kube.set_finalizers(
        CACHES, key_of(made), ["theirs.example/finalizer"], made["metadata"]["resourceVersion"]
    )
    terminating = await world.kube.delete(CACHES, key_of(made), uid=made["metadata"]["uid"])
    assert held is not None
    assert terminating is not None
    await world.seen(terminating)
    world.planner = lambda seen: Plan((Apply(child(seen, "far"), WORKER),))

    assert isinstance(await world.step(), Failed)
    assert world.writes == ["replace_status modelcaches.modelplane.ai"]
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "far")) is None


async def test_an_object_is_let_go_when_all_that_was_made_remotely_is_gone(world: World) -> None:
    made = await world.cache()
    world.planner = two_children
    await world.step()
    terminating = await world.kube.delete(CACHES, key_of(made), uid=made["metadata"]["uid"])
    assert terminating is not None, "our finalizer holds it"
    await world.seen(terminating)
    world.planner = torn_down

    await world.step()
    assert world.writes[0] == "delete configmaps"
    while (outcome := await world.step()) != Forgotten():
        assert outcome == Done()

    assert await world.kube.find(CACHES, key_of(made)) is None
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "far")) is None


async def test_after_a_failure_siblings_and_other_clusters_go_on_and_no_further_step_and_it_is_told_once(
    world: World,
) -> None:
    await world.cache()
    world.planner = lambda seen: available(
        seen,
        Apply(child(seen, "first")),
        Apply(child(seen, "second", room="no-such-namespace")),
        Apply(child(seen, "third")),
        Create(child(seen, "fourth")),
        Apply(child(seen, "far"), WORKER),
    )

    assert isinstance(await world.step(), Failed)
    told = world.synced(await world.live())
    assert isinstance(await world.step(failures=1), Failed)

    assert told[:2] == ("False", "ReconcileError")
    assert told[2].startswith("Apply ConfigMap no-such-namespace/second: apply configmaps second: namespaces")
    assert "replace_status modelcaches.modelplane.ai" not in world.writes, "the same again is no news"
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "first")) is not None
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "third")) is not None
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "fourth")) is None
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "far")) is not None


async def test_what_is_true_while_a_write_is_refused_is_not_told_of_the_present_generation(
    world: World, api: Api
) -> None:
    def of(live: Manifest) -> dict[str, tuple[str, int]]:
        return {one["type"]: (one["status"], one["observedGeneration"]) for one in live["status"]["conditions"]}

    async def wait_for_ready(seconds: int) -> None:
        ready = ("--for=condition=Ready", "modelcache/subject", f"--timeout={seconds}s")
        await api.kubectl("-n", world.namespace, "wait", *ready)

    def refused(reason: Ready, seen: Seen) -> Plan:
        steps = Apply(child(seen, "near")), Apply(child(seen, "second", room="no-such-namespace"))
        return Plan(steps, ModelCacheStatus(conditions=(reason.condition(seen.now, message="as it was seen"),)))

    await world.cache()
    world.planner = one_child
    assert await world.step() == Done()
    live = await world.live()
    assert of(live) == {"Ready": ("True", 1), "Synced": ("True", 1)}
    spec = {**live["spec"], "clusterSelector": {"matchLabels": {"region": "us"}}}
    await world.seen(await world.kube.replace({**live, "spec": spec}))

    world.planner = partial(refused, Ready.AVAILABLE)
    assert isinstance(await world.step(), Failed)
    assert of(await world.live()) == {"Ready": ("True", 1), "Synced": ("False", 2)}
    with pytest.raises(AssertionError, match="timed out"):
        await wait_for_ready(1)
    assert isinstance(await world.step(failures=1), Failed)
    assert "replace_status modelcaches.modelplane.ai" not in world.writes, "the same again is no news"

    world.planner = partial(refused, Ready.CREATING)
    assert isinstance(await world.step(failures=2), Failed)
    assert of(await world.live()) == {"Ready": ("False", 2), "Synced": ("False", 2)}, "what lacks is so now"

    world.planner = one_child
    assert await world.step() == Done()
    assert of(await world.live()) == {"Ready": ("True", 2), "Synced": ("True", 2)}
    await wait_for_ready(20)


async def test_what_a_cluster_refuses_delays_only_that_cluster_where_the_plan_says_when_it_is_asked_again(
    world: World,
) -> None:
    await world.cache()

    def planner(seen: tuple[Seen, Mapping[str, Failure]]) -> Plan:
        first, refusals = seen
        steps = Apply(child(first, "far", room="no-such-namespace"), WORKER), Apply(child(first, "near"))
        refused = "; ".join(f"{cluster} has refused it" for cluster in refusals)
        return replace(available(first, *steps), requeue_after=7.0 if refused else None, refused=refused)

    async def observe(cache: ModelCache, clients: Clients) -> tuple[Seen, Mapping[str, Failure]]:
        return await world.controller.observe(cache, clients), {}

    controller = Controller(
        ModelCache, observe, planner, with_refusals=lambda seen, refusals: (seen[0], {**seen[1], **refusals})
    )
    outcome = await reconcile(controller, Key(world.namespace, "subject"), world.clients)

    assert outcome == Done(7.0), "and not Failed, after which the whole object would wait"
    assert world.synced(await world.live()) == ("False", "ReconcileError", f"{WORKER.capitalize()} has refused it")
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "near")) is not None


async def test_a_plan_that_throws_is_a_condition_without_its_words_and_others_go_on(world: World) -> None:
    await world.cache("poison")
    await world.cache("healthy")

    def planner(seen: Seen) -> Plan:
        if seen.cache.key.name == "poison":
            raise RuntimeError("a secret")
        return one_child(seen)

    world.planner = planner

    assert await world.step("poison") == Failed(terminal=True)
    assert await world.step("healthy") == Done()
    assert world.synced(await world.live("poison")) == (
        "False",
        "ReconcileError",
        "Internal error (RuntimeError); the operator's log has the details",
    )


async def test_what_a_plan_failed_on_in_a_clusters_words_is_logged_and_the_plan_goes_on(world: World) -> None:
    await world.cache("one")
    world.planner = lambda seen: replace(one_child(seen), defects={"berlin": ValueError("no number")})

    with capture_logs() as logged:
        assert await world.step("one") == Done()

    told = [line["cluster"] for line in logged if line["event"] == "cluster unreadable"]
    assert told[:1] == ["berlin"]


async def test_a_cluster_that_takes_its_time_for_each_request_ends_the_reconcile_and_not_the_process(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request may take seconds, and there may be dozens: liveness would restart the leader."""
    await world.cache()
    world.planner = one_child
    monkeypatch.setattr(loop, "OF_A_CLUSTER", 0.05)

    async def observe(*_: object) -> Seen:
        await asyncio.Event().wait()
        raise AssertionError

    slow = Controller(ModelCache, observe, world.planner, concurrency_key=lambda _: "worker")
    outcome = await reconcile(slow, Key(world.namespace, "subject"), world.clients)

    assert outcome == Failed(), "it is tried again"
    assert world.synced(await world.live()) == ("False", "ReconcileError", strands.SLOW)


async def test_a_defect_in_one_of_several_siblings_is_told_by_its_name_and_the_others_are_taken(world: World) -> None:
    await world.cache()
    world.planner = lambda seen: available(
        seen,
        Apply(change(child(seen, "broken"), "data", {"value": object()})),
        Apply(child(seen, "healthy")),
    )

    assert await world.step() == Failed(terminal=True)
    assert "internal error (TypeError)" in world.synced(await world.live())[2]
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "healthy")) is not None


async def test_an_object_takes_its_turn_to_decide_and_act_and_keeps_nobody_waiting_while_it_is_told_of(
    world: World,
) -> None:
    await world.cache()
    lock = asyncio.Lock()
    in_turn: dict[str, bool] = {}

    def planner(seen: Seen) -> Plan:
        in_turn["decided"] = lock.locked()
        return one_child(seen)

    world.planner = planner
    clients = replace(world.clients, on_transition=lambda *_: in_turn.update(told=lock.locked()))

    assert await reconcile(world.controller, Key(world.namespace, "subject"), clients, lock=lock) == Done()
    assert in_turn == {"decided": True, "told": False}


async def test_of_what_a_write_has_changed_ready_is_told_first(world: World) -> None:
    """Of several conditions with one reason only the first makes an Event, and `Ready` has the words of all."""
    await world.cache()
    world.planner = one_child
    told: list[str] = []
    clients = replace(world.clients, on_transition=lambda _, __, after: told.append(after.type))

    await reconcile(world.controller, Key(world.namespace, "subject"), clients)

    assert told[0] == "Ready"
    assert len(told) > 1


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize(
    "again", [lambda seen: [Apply(child(seen, "near"))], lambda seen: [Create(child(seen, "more"))]]
)
async def test_what_goes_with_its_owner_is_not_made_again_though_nobody_told_us_that_the_owner_is_gone(
    through_proxy: World, proxy: FaultProxy, *, held: bool, again: Callable[[Seen], list[Step]]
) -> None:
    """As it is while the watch of one type lags: what we make, the garbage collector deletes, and so on."""
    world = through_proxy
    made = await world.cache()
    world.planner = two_children if held else one_child
    await world.step()
    await proxy.add(Rule(Match(verbs=("list", "watch"), resource="modelcaches"), Answer(500)))
    await proxy.add(Rule(Match(resource="modelcaches"), CloseWatch()))
    await proxy.wait_for("a watch that is refused", lambda call: call.call.resource == "modelcaches", seconds=SECONDS)
    await world.kube.delete(CACHES, key_of(made), uid=made["metadata"]["uid"])
    await world.lose("near")

    world.planner = lambda seen: available(seen, *again(seen))
    assert await world.step() == Failed()
    assert world.writes == []
    world.planner = torn_down
    assert await world.step() == (Done() if held else Forgotten())


async def test_a_child_that_somebody_deletes_is_made_again(world: World) -> None:
    await world.cache()
    world.planner = one_child
    await world.step()
    await world.lose("near")

    assert await world.step() == Done()
    assert world.writes == ["apply configmaps"]


async def test_an_object_of_somebody_else_is_left_alone(world: World) -> None:
    await world.cache()
    world.planner = one_child
    theirs = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "near", "namespace": world.namespace},
        "data": {"value": "theirs"},
    }
    made = await world.kube.create(theirs)

    assert await world.step() == Failed(terminal=True)
    told = world.synced(await world.live())
    assert told[2].endswith(
        f"ConfigMap {world.namespace}/near exists and has no owner, so the operator leaves it alone: "
        "delete or rename it"
    )
    assert await world.kube.get(CONFIG_MAP, key_of(made)) == made


async def test_children_that_are_no_longer_wanted_go_and_those_of_others_stay(world: World) -> None:
    await world.cache()
    await world.cache("other")
    world.planner = lambda seen: available(seen, Apply(child(seen, f"{seen.cache.key.name}-child")))
    await world.step()
    await world.step("other")
    everything = world.hub.find(CONFIG_MAP)
    assert everything is not None

    def planner(seen: Seen) -> Plan:
        uid = seen.cache.metadata.uid or ""
        return available(seen, *prune(everything, [], owner=uid))

    world.planner = planner
    await world.step()

    assert world.writes == ["delete configmaps"]
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "subject-child")) is None
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "other-child")) is not None


async def test_a_delete_of_what_is_not_ours_is_refused(world: World, config_map: Any) -> None:
    await world.cache()
    theirs = await world.kube.create(config_map("theirs"))
    step = Delete(CONFIG_MAP, key_of(theirs), theirs["metadata"]["uid"], owner="us")
    world.planner = lambda seen: available(seen, step)

    assert await world.step() == Failed(terminal=True)
    assert await world.kube.find(CONFIG_MAP, key_of(theirs)) is not None


async def test_a_delete_concerns_that_very_object(world: World) -> None:
    await world.cache()
    world.planner = one_child
    await world.step()
    step = Delete(CONFIG_MAP, Key(world.namespace, "near"), "the uid of one before", owner="whoever")
    world.planner = lambda seen: available(seen, step)

    assert await world.step() == Done()
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "near")) is not None


async def test_a_decision_that_is_stale_fails_and_is_told_only_when_it_goes_on(world: World) -> None:
    await world.cache()
    world.planner = lambda seen: available(seen, Create(child(seen, "once")))
    assert await world.step() == Done()

    assert await world.step() == Failed()
    assert world.writes == ["create configmaps"]
    assert await world.step(failures=3) == Failed()
    assert world.synced(await world.live())[1] == "ReconcileError"


async def test_what_was_created_is_replaced_only_as_it_was_observed(world: World) -> None:
    await world.cache()
    world.planner = lambda seen: available(seen, Create(child(seen, "once")))
    await world.step()
    informer = world.hub.find(CONFIG_MAP)
    assert informer is not None
    observed = informer.get(Key(world.namespace, "once"))
    assert observed is not None
    world.planner = lambda seen: available(seen, Replace(change(observed, "data", {"value": "2"})))

    assert await world.step() == Done()
    assert informer.get(Key(world.namespace, "once")) == await _without_managed_fields(world, "once")
    assert await world.step() == Failed(), "it is no longer as it was observed"


async def test_an_operator_that_does_not_lead_writes_nothing(world: World) -> None:
    await world.cache()
    world.planner = two_children
    world.leading = False

    assert await world.step() == Failed()
    assert world.writes == []


async def test_a_paused_object_is_left_alone_and_says_so(world: World) -> None:
    made = await world.cache()
    await world.seen(await world.kube.replace(change(made, "metadata.annotations", {labels.PAUSED: "true"})))
    world.planner = one_child

    assert await world.step() == Done()
    assert world.writes == ["replace_status modelcaches.modelplane.ai"]
    pauses = f'The annotation {labels.PAUSED}="true" pauses it'
    never = f"{pauses}; nothing was done for it before"
    assert world.synced(await world.live()) == ("False", "ReconcilePaused", never)

    await world.seen(await world.live())
    await world.seen(await world.kube.replace(change(await world.live(), "metadata.annotations", {})))
    assert await world.step() == Done()
    live = change(await world.live(), "metadata.annotations", {labels.PAUSED: "true"})
    await world.seen(await world.kube.replace(change(live, "spec.huggingFace.revision", "v2")))
    assert await world.step() == Done()
    assert world.synced(await world.live())[2] == f"{pauses}; its status is of generation 1"


async def test_an_object_from_before_its_bounds_says_where_it_is_beyond_them_and_can_go(world: World, api: Api) -> None:
    world.planner = two_children
    old = {**rich()["ModelCache"], "metadata": {"name": "subject", "namespace": world.namespace}}
    old = change(old, "spec.huggingFace.authSecret.name", "../../team-b/secrets/openai")
    old = change(old, "spec.clusterSelector.matchLabels", {f"k{number}": "a" for number in range(40)})
    async with loosely(api, ModelCache, old):
        await world.seen(await world.kube.create({part: of for part, of in old.items() if part != "status"}))

    assert isinstance(await world.step(), Failed)
    live = await world.live()
    status, reason, message = world.synced(live)
    assert (status, reason) == ("False", "ReconcileError")
    assert message.startswith("Nothing is changed until the object keeps to the bounds of its kind: ")
    assert ": field spec.huggingFace.authSecret.name: String should match pattern" in message
    assert "spec.clusterSelector.matchLabels: Map should have at most 32 items" in message
    assert world.writes == ["replace_status modelcaches.modelplane.ai"], "nothing new is made for it"
    assert {one["type"]: one["status"] for one in live["status"]["conditions"]}["Ready"] == "True", "as it is planned"

    mended = change(live, "spec", rich()["ModelCache"]["spec"])
    await world.seen(await world.kube.replace(mended))
    assert await world.step() == Done()
    assert world.synced(await world.live())[:2] == ("True", "ReconcileSuccess")


async def test_an_object_from_before_its_bounds_goes(world: World, api: Api) -> None:
    old = {**rich()["ModelCache"], "metadata": {"name": "subject", "namespace": world.namespace}}
    old = change(old, "spec.huggingFace.repo", "a" * 300)
    old["metadata"]["finalizers"] = [labels.FINALIZER]
    async with loosely(api, ModelCache, old):
        made = await world.kube.create({part: of for part, of in old.items() if part != "status"})
        await world.seen(made)
    terminating = await world.kube.delete(CACHES, key_of(made), uid=made["metadata"]["uid"])
    assert terminating is not None, "our finalizer holds it"
    await world.seen(terminating)
    world.planner = torn_down

    assert await world.step() == Done()
    assert await world.kube.find(CACHES, Key(world.namespace, "subject")) is None


async def test_a_pause_holds_up_no_deletion_that_others_wait_for(world: World) -> None:
    made = await world.cache()
    world.planner = two_children
    await world.step()
    made = await world.live()
    made = await world.kube.replace(change(made, "metadata.annotations", {labels.PAUSED: "true"}))
    terminating = await world.kube.delete(CACHES, key_of(made), uid=made["metadata"]["uid"])
    assert terminating is not None, "our finalizer holds it"
    await world.seen(terminating)
    world.planner = torn_down

    assert await world.step() == Done()
    assert world.writes == ["replace_status modelcaches.modelplane.ai"], "a pause holds up what is not tenants'"
    for_tenants = replace(world.controller, while_paused=its_deletion)
    key = key_of(made)
    await reconcile(for_tenants, key, world.clients)
    assert world.synced(await world.live())[1:] == (
        "ReconcilePaused",
        f'The annotation {labels.PAUSED}="true" pauses it, but it is being deleted, which a pause does not hold up',
    )
    while await reconcile(for_tenants, key, world.clients) != Forgotten():
        pass
    assert await world.kube.find(CACHES, key) is None


async def test_an_object_that_is_gone_is_forgotten(world: World) -> None:
    assert await world.step("never-was") == Forgotten()


async def test_changes_wake_whom_they_concern_and_nobody_at_rest(world: World, api: Api) -> None:
    world.planner = two_children
    outcomes: list[Outcome] = []
    controller = world.controller
    woken = type(controller)(
        controller.kind,
        controller.observe,
        controller.plan,
        watches={CONFIG_MAP: owner_of_kind("ModelCache")},
        remote_watches={CONFIG_MAP: owner_of_kind("ModelCache")},
    )
    team = runner(woken, world.clients, on_reconciled=lambda _, outcome, __: outcomes.append(outcome))
    for connection in (world.hub, world.worker):
        for informer in connection.informers:
            team.add_event_handlers(informer)
    async with asyncio.TaskGroup() as group:
        group.create_task(team.workers.run())
        await world.cache()
        near = Key(world.namespace, "near")
        await until(lambda: _ready(world), "the object to be ready")
        first = await world.kube.get(CONFIG_MAP, near)
        await api.kubectl("-n", world.namespace, "delete", "configmap", "near")
        informer = world.hub.find(CONFIG_MAP)
        assert informer is not None
        await until(
            lambda: (again := informer.entry(near)) is not None and again.uid != first["metadata"]["uid"],
            "the child to be made again",
        )
        team.workers.stop()

    assert all(outcome == Done() for outcome in outcomes)
    assert len(outcomes) < 10


def _ready(world: World) -> bool:
    informer = world.hub.find(CACHES)
    manifest = informer and informer.get(Key(world.namespace, "subject"))
    return bool(manifest and manifest.get("status"))


async def _without_managed_fields(world: World, name: str) -> Manifest:
    live = await world.kube.get(CONFIG_MAP, Key(world.namespace, name))
    return {**live, "metadata": {field: value for field, value in live["metadata"].items() if field != "managedFields"}}


async def test_what_an_object_fails_in_on_its_way_in_is_told_by_its_own_condition(world: World) -> None:
    made = await world.cache()
    caches = world.hub.find(CACHES)
    assert caches is not None
    world.planner = one_child

    def failing(_: Key, __: object, new: Manifest | None) -> None:
        if new and new["metadata"].get("labels"):
            raise KeyError("canary")

    caches.subscribe(failing)
    await world.seen(
        await world.kube.apply({**_named(made), "metadata": {**_named(made)["metadata"], "labels": {"a": "b"}}})
    )
    assert isinstance(await world.step(), Failed)
    assert world.synced(await world.live()) == ("False", "ReconcileError", "Internal error (its change: KeyError)")
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "near")), "it is reconciled all the same"

    await world.seen(await world.kube.apply(_named(made)))
    assert isinstance(await world.step(), Done)
    assert world.synced(await world.live()) == ("True", "ReconcileSuccess", "")


async def test_an_object_that_cannot_be_read_says_so_and_keeps_what_it_has(world: World) -> None:
    made = await world.cache()
    world.planner = one_child
    await world.step()
    caches = world.hub.find(CACHES)
    assert caches is not None

    def poisoned(manifest: Manifest) -> Manifest:
        if manifest["metadata"].get("labels"):
            raise RecursionError
        return manifest

    caches.keeping = poisoned
    key, named = Key(world.namespace, "subject"), _named(made)
    await world.kube.apply({**named, "metadata": {**named["metadata"], "labels": {"a": "b"}}})
    await until(lambda: caches.error_of(key) is not None, "the watch to meet it")
    world.planner = available

    assert await world.step() == Failed(terminal=True)
    assert world.writes == ["replace_status modelcaches.modelplane.ai"]
    told = "The object cannot be read: it is nested too deep; make it flatter"
    live = await world.live()
    assert world.synced(live) == ("False", "ReconcileError", told)
    assert {one["type"] for one in live["status"]["conditions"]} == {"Ready", "Synced"}, "what was known stays"
    assert await world.step() == Failed(terminal=True)
    assert world.writes == []
    assert await world.kube.find(CONFIG_MAP, Key(world.namespace, "near")), "nothing of it is taken away"

    await world.kube.apply(named)
    await until(lambda: caches.error_of(key) is None, "it to be readable again")
    assert await world.step() == Done()
    assert world.synced(await world.live()) == ("True", "ReconcileSuccess", "")


def _named(manifest: Manifest) -> Manifest:
    """What a user applies."""
    metadata = {name: manifest["metadata"][name] for name in ("name", "namespace")}
    return {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "metadata": metadata,
        "spec": manifest["spec"],
    }
