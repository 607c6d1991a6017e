"""Questions of tenants: what is read of the store for an answer, and who may have it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from modelplane_operator.api import InferenceCluster, Kind, ModelCache, ModelDeployment, ModelReplica, ModelService
from modelplane_operator.api.types import of
from modelplane_operator.clients.asking import may
from modelplane_operator.kube.objects import Manifest, section
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

WAITING: Final = 8  # questions; whoever comes then is told to ask again
SECONDS: Final = 8.0  # the API server waits for ten

_User = Mapping[str, object]


class Questions:
    """Answers one question at a time, in a thread: a large fleet takes a second to look through."""

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(1)
        self._waiting = 0

    async def __call__(self, request: Manifest, clients: Clients) -> Answer:
        """The answer to an AdmissionReview's request; raises QuestionError and ClientError."""
        question = asked(dict(section(request, "object")))
        if question.namespace != request.get("namespace"):
            raise QuestionError("a question is asked in the namespace that it is about")
        if self._waiting >= WAITING or not clients.hub.synced:
            raise QuestionError("the operator has others to answer first, or has just begun: ask again", BUSY)
        self._waiting += 1
        try:
            async with asyncio.timeout(SECONDS):
                await _permitted(question, _user(request), clients)
                await self._turn.acquire()
                looking = asyncio.create_task(
                    asyncio.to_thread(_looked_up, question, _stored(question.namespace, clients))
                )
                looking.add_done_callback(lambda _: self._turn.release())  # nobody ends a thread
                return await asyncio.shield(looking)
        except TimeoutError:
            raise QuestionError("the answer takes too long now: ask again", BUSY) from None
        finally:
            self._waiting -= 1


async def _permitted(question: Question, user: _User, clients: Clients) -> None:
    """By the rights of whoever asks on the ModelDeployment concerned; raises QuestionError."""
    if question.verb is None:
        return
    if not await may(clients.hub.kube, question.verb, of(ModelDeployment), question.key, user=user):
        words = f"you may not {question.verb} ModelDeployment {question.key}: have somebody give you that right"
        raise QuestionError(words, FORBIDDEN)


def _user(request: Manifest) -> _User:
    """Who asks, as a SubjectAccessReview names users."""
    info = section(request, "userInfo")
    named = {"user": "username", "uid": "uid", "groups": "groups", "extra": "extra"}
    return {there: info[here] for there, here in named.items() if info.get(here)}


@dataclass(frozen=True, slots=True)
class Stored:
    """What is known at one moment, to be parsed elsewhere: the fleet, and the namespace's own."""

    now: datetime
    clusters: Sequence[Manifest]
    replicas: Sequence[Manifest]
    deployments: Sequence[Manifest]
    caches: Sequence[Manifest]
    services: Sequence[Manifest]


def _stored(namespace: str, clients: Clients) -> Stored:
    def known(kind: Kind, within: str = "") -> Sequence[Manifest]:
        found = clients.hub.find(of(kind)) or ()
        return [one for one in found if not within or one["metadata"].get("namespace") == within]

    return Stored(
        clients.now(),
        known(InferenceCluster),
        known(ModelReplica),
        known(ModelDeployment, namespace),
        known(ModelCache, namespace),
        known(ModelService, namespace),
    )


def _looked_up(question: Question, stored: Stored) -> Answer:
    seen = Snapshot(
        _parsed(InferenceCluster, stored.clusters),
        _parsed(ModelReplica, stored.replicas),
        _parsed(ModelDeployment, stored.deployments),
        _parsed(ModelCache, stored.caches),
        stored.now,
    )
    return answer(question, _parsed(ModelService, stored.services), seen)


def _parsed(kind: Any, manifests: Iterable[Manifest]) -> tuple[Any, ...]:
    found = list[Any]()
    for one in manifests:
        try:
            found.append(kind.parse(one))
        except ValidationError:  # the reconcile tells what nobody can read
            continue
    return tuple(found)
