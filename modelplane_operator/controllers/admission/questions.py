"""Questions of tenants: what is read of the store for an answer, and who may have it."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from modelplane_operator.api import InferenceCluster, Kind, ModelCache, ModelDeployment, ModelReplica, ModelService
from modelplane_operator.api.types import of
from modelplane_operator.clients.asking import may
from modelplane_operator.controllers.fleet_view import FleetView
from modelplane_operator.kube.objects import Key, Manifest, key_of, section
from modelplane_operator.planning.answers.questions import (
    BUSY,
    FORBIDDEN,
    Answer,
    Question,
    QuestionError,
    answer,
    asked,
)
from modelplane_operator.planning.answers.snapshot import Snapshot
from modelplane_operator.runtime.loop import Clients
from modelplane_operator.scheduling.fleet import FleetModel

WAITING: Final = 16  # questions; whoever comes then is told to ask again
WAITING_OF_ONE: Final = 4  # of one namespace: the others have places whatever it does
REST: Final = 2.0  # seconds at most, after an answer
SECONDS: Final = 8.0  # the API server waits for ten

_User = Mapping[str, object]


class Questions:
    """Answers one question at a time, in a thread, and rests as long as it took: nobody who asks without a pause has
    more than half of a processor, and no namespace more than its places among those that wait."""

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self._turn = asyncio.Semaphore(1)
        self._waiting = Counter[str]()

    async def __call__(self, request: Manifest, clients: Clients) -> Answer:
        """The answer to an AdmissionReview's request; raises QuestionError and ClientError."""
        namespace = str(request.get("namespace") or "")
        full = self._waiting.total() >= WAITING or self._waiting[namespace] >= WAITING_OF_ONE
        if full or not clients.hub.synced:
            raise QuestionError("the operator has others to answer first, or has just begun: ask again", BUSY)
        self._waiting[namespace] += 1
        try:
            async with asyncio.timeout(SECONDS):
                question = await asyncio.to_thread(asked, dict(section(request, "object")))
                if question.namespace != namespace:
                    raise QuestionError("a question is asked in the namespace that it is about")
                everywhere = await _permitted(question, _user(request), clients)
                await self._turn.acquire()
                looking = asyncio.create_task(self._look_up(question, clients, everywhere=everywhere))
                return await asyncio.shield(looking)
        except TimeoutError:
            raise QuestionError("the answer takes too long now: ask again", BUSY) from None
        finally:
            self._waiting -= Counter((namespace,))

    async def _look_up(self, question: Question, clients: Clients, *, everywhere: bool) -> Answer:
        """Holds the turn until its thread ends, which nobody can end sooner, and while it rests."""
        began = time.monotonic()
        try:
            found = stored(question, self._fleet, clients, everywhere=everywhere)
            return await asyncio.to_thread(_looked_up, question, found)
        finally:
            rest = min(time.monotonic() - began, REST)
            asyncio.get_running_loop().call_later(rest, self._turn.release)


async def _permitted(question: Question, user: _User, clients: Clients) -> bool:
    """By the rights of whoever asks on the ModelDeployment concerned; raises QuestionError.

    Answers whether a plan may name what other namespaces have: it may to whoever may list that.
    """
    kube, verb = clients.hub.kube, question.verb
    if verb is None:
        return False
    if not await may(kube, verb, of(ModelDeployment), question.key, user=user):
        words = f"you may not {verb} ModelDeployment {question.key}: have somebody give you that right"
        raise QuestionError(words, FORBIDDEN)
    if question.spec.ask != "Plan":
        return False
    every = Key("", "")
    return all([await may(kube, "list", of(kind), every, user=user) for kind in (ModelDeployment, ModelReplica)])


def _user(request: Manifest) -> _User:
    """Who asks, as a SubjectAccessReview names users."""
    info = section(request, "userInfo")
    named = {"user": "username", "uid": "uid", "groups": "groups", "extra": "extra"}
    return {there: info[here] for there, here in named.items() if info.get(here)}


@dataclass(frozen=True, slots=True)
class Stored:
    """What is known at one moment, to be looked through in a thread: the fleet, and what the question is about."""

    now: datetime
    model: FleetModel
    clusters: tuple[InferenceCluster, ...]
    replicas: Sequence[Manifest]
    deployments: Sequence[Manifest]
    caches: Sequence[Manifest]
    services: Sequence[Manifest]


def stored(question: Question, fleet: FleetView, clients: Clients, *, everywhere: bool) -> Stored:
    """Of deployments the one concerned, and for a plan those that wait, which might have what it leaves free."""
    deployments = [
        one
        for key, one in _known(ModelDeployment, clients)
        if key == question.key
        or (question.spec.ask == "Plan" and (everywhere or key.namespace == question.namespace) and _waits(one, fleet))
    ]
    replicas, namespaces = clients.hub.find(of(ModelReplica)), {key_of(one).namespace for one in deployments}
    return Stored(
        clients.now(),
        fleet.model.copy(),
        tuple(fleet.clusters.values()),
        [one for each in deployments for one in (replicas.owned_by(each["metadata"]["uid"]) if replicas else ())],
        deployments,
        [one for key, one in _known(ModelCache, clients) if key.namespace in {*namespaces, question.namespace}],
        [one for key, one in _known(ModelService, clients) if key.namespace == question.namespace],
    )


def _known(kind: Kind, clients: Clients) -> Iterable[tuple[Key, Manifest]]:
    return ((key_of(one), one) for one in clients.hub.find(of(kind)) or ())


def _waits(deployment: Manifest, fleet: FleetView) -> bool:
    """Whether it has fewer replicas than it asks for."""
    key, wanted = key_of(deployment), section(deployment, "spec").get("replicas")
    return not isinstance(wanted, int) or len(fleet.model.replicas(key.namespace, key.name)) < wanted


def _looked_up(question: Question, found: Stored) -> Answer:
    seen = Snapshot(
        found.clusters,
        _parsed(ModelReplica, found.replicas),
        _parsed(ModelDeployment, found.deployments),
        _parsed(ModelCache, found.caches),
        found.now,
        found.model,
    )
    return answer(question, _parsed(ModelService, found.services), seen)


def _parsed(kind: Any, manifests: Iterable[Manifest]) -> tuple[Any, ...]:
    found = list[Any]()
    for one in manifests:
        try:
            found.append(kind.parse(one))
        except ValidationError:  # the reconcile tells what nobody can read
            continue
    return tuple(found)
