"""Answer Questions: check the user's permissions, read the informers, and compute the answer in a thread."""

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
    parse_question,
)
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.scheduling.fleet import FleetModel

WAITING: Final = 16
"""Number of Questions that may wait; further ones are rejected as busy."""
MAX_PER_NAMESPACE: Final = 4  # so that one namespace cannot use all places
"""Number of Questions of one namespace that may wait."""
MIN_INTERVAL: Final = 2.0  # see Questions
"""Longest pause after an answer, in seconds."""
SECONDS: Final = 8.0  # the API server's timeout is ten
"""Seconds that a Question may take."""

AllowedNamespaces = frozenset[str] | None
"""Namespaces whose deployments an answer may name; None for all."""
_User = Mapping[str, object]
"""A user in the form that a SubjectAccessReview has."""


class Questions:
    """Answers one Question at a time in a thread, and pauses as long as each answer took.

    So a user who asks continuously takes at most half of a processor, and a namespace at most its places in the
    queue.
    """

    def __init__(self, fleet: FleetView) -> None:
        self._fleet = fleet
        self._slot = asyncio.Semaphore(1)
        self._waiting = Counter[str]()

    async def __call__(self, request: Manifest, clients: Clients) -> QuestionAnswer:
        """Return the answer to an AdmissionReview's request. Raise QuestionError or ClientError."""
        namespace = str(request.get("namespace") or "")
        is_full = self._waiting.total() >= WAITING or self._waiting[namespace] >= MAX_PER_NAMESPACE
        if is_full or not clients.hub.synced:
            raise QuestionError("the operator is busy, or has just started: try again", BUSY)
        self._waiting[namespace] += 1
        try:
            async with asyncio.timeout(SECONDS):
                question = await asyncio.to_thread(parse_question, dict(section(request, "object")))
                if question.namespace != namespace:
                    raise QuestionError(
                        "the question is about another namespace than the one it was created in: use the same one"
                    )
                allowed_namespaces = await _check_permissions(question, _build_user(request), clients)
                await self._slot.acquire()
                lookup = asyncio.create_task(self._look_up(question, clients, allowed_namespaces))
                return await asyncio.shield(lookup)
        except TimeoutError:
            raise QuestionError("the answer took too long: try again", BUSY) from None
        finally:
            self._waiting -= Counter((namespace,))

    async def _look_up(
        self, question: Question, clients: Clients, allowed_namespaces: AllowedNamespaces
    ) -> QuestionAnswer:
        """Compute the answer.

        The slot stays taken until the thread ends, which cannot be cancelled, and during the pause.
        """
        started_at = time.monotonic()
        try:
            stored_state = read_stored(question, self._fleet, clients, allowed_namespaces)
            return await asyncio.to_thread(answer_from_store, question, stored_state, allowed_namespaces)
        finally:
            pause = min(time.monotonic() - started_at, MIN_INTERVAL)
            asyncio.get_running_loop().call_later(pause, self._slot.release)


async def _check_permissions(question: Question, user: _User, clients: Clients) -> AllowedNamespaces:
    """Return the namespaces whose deployments an answer may name; None for all if the user may list them all.

    Raise QuestionError if the user lacks a permission that the Question needs.
    """
    for verb, kind, key in question.permissions:
        if not await may(clients.hub.kube, verb, kind, key, user=user):
            resource = f"{kind.kind} {key}" if key.name else f"{kind.kind}s"
            raise QuestionError(f"you may not {verb} {resource}: ask the platform team for that permission", FORBIDDEN)

    async def lists(namespace: str) -> bool:
        kinds, every = (ModelDeployment, ModelReplica), Key(namespace, "")
        return all([await may(clients.hub.kube, "list", of(kind), every, user=user) for kind in kinds])

    if question.spec.ask == "Plan" and await lists(""):
        return None
    if question.cluster and not await lists(question.namespace):
        return frozenset()
    return frozenset((question.namespace,))


def _build_user(request: Manifest) -> _User:
    """Return the user in the form that a SubjectAccessReview has."""
    info = section(request, "userInfo")
    fields = {"user": "username", "uid": "uid", "groups": "groups", "extra": "extra"}
    return {target_field: info[source_field] for target_field, source_field in fields.items() if info.get(source_field)}


@dataclass(frozen=True, slots=True)
class Stored:
    """The fleet and the objects that a Question is about, at one moment, for use in a thread."""

    now: datetime
    model: FleetModel
    """Copy of the scheduler's fleet model."""
    clusters: tuple[InferenceCluster, ...]
    replicas: Sequence[Manifest]
    """ModelReplicas of the deployments."""
    deployments: Sequence[Manifest]
    """ModelDeployments that the Question is about, and for a plan those that wait for capacity."""
    caches: Sequence[Manifest]
    """ModelCaches of the namespaces concerned."""
    services: Sequence[Manifest]
    """ModelServices of the Question's namespace."""


def read_stored(
    question: Question, fleet: FleetView, clients: Clients, allowed_namespaces: AllowedNamespaces
) -> Stored:
    """Return the stored objects for a Question: its deployments and, for a plan, those that wait for capacity.

    A plan for a cluster includes all deployments with replicas there, also those that the answer may not name.
    """
    affected = {*question.keys, *(fleet.model.owners(question.cluster) if question.cluster else ())}
    all_namespaces, is_plan = allowed_namespaces is None or bool(question.cluster), question.spec.ask == "Plan"
    deployments = [
        item
        for key, item in _iterate_kind(ModelDeployment, clients)
        if key in affected
        or (
            is_plan and (all_namespaces or key.namespace in (allowed_namespaces or ())) and _needs_capacity(item, fleet)
        )
    ]
    replicas, namespaces = clients.hub.find(of(ModelReplica)), {key_of(item).namespace for item in deployments}
    namespaces |= {question.namespace, *(key.namespace for key in question.keys)}
    return Stored(
        clients.now(),
        fleet.model.copy(),
        tuple(fleet.clusters.values()),
        [
            item
            for deployment in deployments
            for item in (replicas.children_of(deployment["metadata"]["uid"]) if replicas else ())
        ],
        deployments,
        [item for key, item in _iterate_kind(ModelCache, clients) if key.namespace in namespaces],
        [item for key, item in _iterate_kind(ModelService, clients) if key.namespace == question.namespace],
    )


def _iterate_kind(kind: Kind, clients: Clients) -> Iterable[tuple[Key, Manifest]]:
    """Return the objects of a kind in the hub's informer, with their keys."""
    return ((key_of(manifest), manifest) for manifest in clients.hub.find(of(kind)) or ())


def _needs_capacity(deployment: Manifest, fleet: FleetView) -> bool:
    """True if a deployment has fewer replicas than requested."""
    key, desired = key_of(deployment), section(deployment, "spec").get("replicas")
    return not isinstance(desired, int) or len(fleet.model.replicas(key.namespace, key.name)) < desired


def answer_from_store(question: Question, stored: Stored, allowed_namespaces: AllowedNamespaces) -> QuestionAnswer:
    """Return the answer from objects of one moment."""
    snapshot = Snapshot(
        stored.clusters,
        _parse_all(ModelReplica, stored.replicas),
        _parse_all(ModelDeployment, stored.deployments),
        _parse_all(ModelCache, stored.caches),
        stored.now,
        stored.model,
    )
    return answer(question, _parse_all(ModelService, stored.services), snapshot, allowed_namespaces)


def _parse_all(kind: Any, manifests: Iterable[Manifest]) -> tuple[Any, ...]:
    """Return the parsed objects. Unreadable ones are left out, because their reconcile reports them."""
    parsed = list[Any]()
    for manifest in manifests:
        try:
            parsed.append(kind.parse(manifest))
        except ValidationError:  # the reconcile reports unreadable objects
            continue
    return tuple(parsed)
