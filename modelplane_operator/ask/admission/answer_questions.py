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

from kubeloop.client.subresources import may
from kubeloop.loop import Clients
from kubeloop.objects import Key, Manifest, key_of, section
from kubeloop.resource import of
from modelplane_operator.api import InferenceCluster, Kind, ModelCache, ModelDeployment, ModelReplica, ModelService
from modelplane_operator.ask.answers.questions import (
    BUSY,
    FORBIDDEN,
    Question,
    QuestionAnswer,
    QuestionError,
    answer,
    asked,
)
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.scheduling.fleet import FleetModel

WAITING: Final = 16  # questions; whoever comes then is told to ask again
WAITING_OF_ONE: Final = 4  # of one namespace: the others have places whatever it does
REST: Final = 2.0  # seconds at most, after an answer
SECONDS: Final = 8.0  # the API server waits for ten

Named = frozenset[str] | None
"""The namespaces of which an answer may name deployments; all, where it is None."""
_User = Mapping[str, object]


class Questions:
    """Answers one question at a time, in a thread, and rests as long as it took: nobody who asks without a pause has
    more than half of a processor, and no namespace more than its places among those that wait."""

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self._turn = asyncio.Semaphore(1)
        self._waiting = Counter[str]()

    async def __call__(self, request: Manifest, clients: Clients) -> QuestionAnswer:
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
                named = await _permitted(question, _user(request), clients)
                await self._turn.acquire()
                looking = asyncio.create_task(self._look_up(question, clients, named))
                return await asyncio.shield(looking)
        except TimeoutError:
            raise QuestionError("the answer takes too long now: ask again", BUSY) from None
        finally:
            self._waiting -= Counter((namespace,))

    async def _look_up(self, question: Question, clients: Clients, named: Named) -> QuestionAnswer:
        """Holds the turn until its thread ends, which nobody can end sooner, and while it rests."""
        began = time.monotonic()
        try:
            found = stored(question, self._fleet, clients, named)
            return await asyncio.to_thread(looked_up, question, found, named)
        finally:
            rest = min(time.monotonic() - began, REST)
            asyncio.get_running_loop().call_later(rest, self._turn.release)


async def _permitted(question: Question, user: _User, clients: Clients) -> Named:
    """By the permissions of whoever asks on what is concerned; raises QuestionError.

    Answers the namespaces of which a plan may name what they have: all for whoever may list that.
    """
    for verb, kind, key in question.permissions:
        if not await may(clients.hub.kube, verb, kind, key, user=user):
            what = f"{kind.kind} {key}" if key.name else f"{kind.kind}s"
            raise QuestionError(f"you may not {verb} {what}: have somebody give you that permission", FORBIDDEN)

    async def lists(namespace: str) -> bool:
        kinds, every = (ModelDeployment, ModelReplica), Key(namespace, "")
        return all([await may(clients.hub.kube, "list", of(kind), every, user=user) for kind in kinds])

    if question.spec.ask == "Plan" and await lists(""):
        return None
    if question.cluster and not await lists(question.namespace):
        return frozenset()
    return frozenset((question.namespace,))


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


def stored(question: Question, fleet: FleetView, clients: Clients, named: Named) -> Stored:
    """Of deployments those concerned, and for a plan those that wait, which might have what is left free.

    What becomes of a cluster's replicas concerns all that are there, whether or not they may be named.
    """
    concerned = {*question.keys, *(fleet.model.owners(question.cluster) if question.cluster else ())}
    every, plans = named is None or bool(question.cluster), question.spec.ask == "Plan"
    deployments = [
        one
        for key, one in _known(ModelDeployment, clients)
        if key in concerned or (plans and (every or key.namespace in (named or ())) and _waits(one, fleet))
    ]
    replicas, namespaces = clients.hub.find(of(ModelReplica)), {key_of(one).namespace for one in deployments}
    namespaces |= {question.namespace, *(key.namespace for key in question.keys)}
    return Stored(
        clients.now(),
        fleet.model.copy(),
        tuple(fleet.clusters.values()),
        [one for each in deployments for one in (replicas.owned_by(each["metadata"]["uid"]) if replicas else ())],
        deployments,
        [one for key, one in _known(ModelCache, clients) if key.namespace in namespaces],
        [one for key, one in _known(ModelService, clients) if key.namespace == question.namespace],
    )


def _known(kind: Kind, clients: Clients) -> Iterable[tuple[Key, Manifest]]:
    return ((key_of(one), one) for one in clients.hub.find(of(kind)) or ())


def _waits(deployment: Manifest, fleet: FleetView) -> bool:
    """Whether it has fewer replicas than it asks for."""
    key, wanted = key_of(deployment), section(deployment, "spec").get("replicas")
    return not isinstance(wanted, int) or len(fleet.model.replicas(key.namespace, key.name)) < wanted


def looked_up(question: Question, found: Stored, named: Named) -> QuestionAnswer:
    """The answer, from what was stored at one moment."""
    seen = Snapshot(
        found.clusters,
        _parsed(ModelReplica, found.replicas),
        _parsed(ModelDeployment, found.deployments),
        _parsed(ModelCache, found.caches),
        found.now,
        found.model,
    )
    return answer(question, _parsed(ModelService, found.services), seen, named)


def _parsed(kind: Any, manifests: Iterable[Manifest]) -> tuple[Any, ...]:
    found = list[Any]()
    for one in manifests:
        try:
            found.append(kind.parse(one))
        except ValidationError:  # the reconcile tells what nobody can read
            continue
    return tuple(found)
