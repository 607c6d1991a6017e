"""Who is woken by what no watch shows: a Secret that is there at last, a cluster that answers again."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kubeloop.cache.prober import Health
from kubeloop.client.access import Access
from kubeloop.client.kube import Event
from kubeloop.errors import Unreachable
from kubeloop.loop import Controller
from kubeloop.objects import Key
from kubeloop.queue import Failed, Queue
from kubeloop.resource import of
from kubeloop.types import ResourceType
from kubeloop.watched import Controllers
from modelplane_operator.api import InferenceCluster, ModelReplica
from modelplane_operator.kinds import kinds
from modelplane_operator.operator import Operator, assemble
from modelplane_operator.settings import Settings
from modelplane_operator.world import World

ACCESS = Access("https://127.0.0.1:1")
EAST = Key("", "east")


def queue(operator: Operator, kind: ResourceType) -> Queue[Key]:
    """What waits for the work, which has begun."""
    workers = next(one.workers for one in operator.manager.runners if one.controller.type == kind)
    workers.enqueue_all(())
    return workers.queue


async def test_whoever_waits_for_a_secret_is_woken_by_name_and_nobody_else() -> None:
    worlds: list[World] = []

    def build(world: World) -> Controllers:
        worlds.append(world)
        return kinds(world)

    operator = assemble(Settings(), ACCESS, build)
    worlds[0].wake(of(ModelReplica), Key("team", "m"))

    assert {
        one.controller.type.kind: len(one.workers.queue) for one in operator.manager.runners if len(one.workers.queue)
    } == {"ModelReplica": 1}
    beside = [run.__qualname__ for run in operator.manager.runners.while_leading]
    assert beside.count("ReferencedObjects.run") == 1, "what is missing is looked for, once for all who wait"


async def test_what_is_told_before_there_are_controllers_concerns_nobody() -> None:
    """Each part may use from its beginning what was made before it."""

    def build(world: World) -> Controllers:
        world.wake(of(ModelReplica), Key("team", "m"))
        world.connection_changed("east")
        with pytest.raises(Unreachable, match="not connected yet"):
            world.hub()
        return kinds(world)

    operator = assemble(Settings(), ACCESS, build)
    assert [len(one.workers.queue) for one in operator.manager.runners] == [0] * len(operator.manager.runners)


async def test_what_is_heard_before_the_work_begins_is_not_followed_and_all_is_looked_at_then() -> None:
    operator = assemble(Settings(), ACCESS, kinds)
    clusters = operator.manager.hub.find(of(InferenceCluster))
    assert clusters is not None
    for name in ("east", "west"):
        metadata = {"name": name, "uid": name, "resourceVersion": "1"}
        origin = {"source": "Existing", "existing": {"secretRef": {"name": name}}}
        clusters.on_event(Event("ADDED", {"metadata": metadata, "spec": {"cluster": origin, "nodePools": []}}))
    operator.manager.runners.connection_changed("east")
    known = next(one for one in operator.manager.runners if one.controller.type == of(InferenceCluster))
    assert len(known.workers.queue) == 0
    known.workers.enqueue_all(clusters.keys())
    assert len(known.workers.queue) == 2


async def test_a_cluster_that_answers_again_wakes_what_failed_there_once_it_can_be_asked() -> None:
    operator = assemble(Settings(), ACCESS, kinds)
    clusters, keys = operator.manager.hub.find(of(InferenceCluster)), queue(operator, of(InferenceCluster))
    assert clusters is not None
    metadata = {"name": "east", "uid": "u", "resourceVersion": "1"}
    origin = {"source": "Existing", "existing": {"secretRef": {"name": "east"}}}
    clusters.on_event(Event("ADDED", {"metadata": metadata, "spec": {"cluster": origin, "nodePools": []}}))
    operator.manager.fleet.set("east", ACCESS)
    connection, now = operator.manager.fleet.cluster("east"), 0.0
    for _ in range(8):
        now = keys.next_due() or now
        assert keys.take(now) == EAST
        keys.finish(EAST, Failed(), now)
    far = keys.next_due()

    connection._prober.on_health("east", Health(last_contact=now, renewing=True))
    assert (keys.next_due(), keys.failures(EAST)) == (far, 8), "its client is only being made"
    connection._on_return("east")
    assert keys.failures(EAST) == 0
    assert (keys.next_due() or now) < (far or now)


async def test_whoever_gives_the_credentials_of_a_cluster_hears_that_they_are_refused() -> None:
    refused: list[str] = []
    told = Controller(ModelReplica, cast("Any", None), cast("Any", None), on_unauthorized=(refused.append,))
    operator = assemble(Settings(), ACCESS, lambda _: (told,))
    operator.manager.fleet.set("east", ACCESS)

    operator.manager.fleet.cluster("east")._on_unauthorized("east")

    assert refused == ["east"]
