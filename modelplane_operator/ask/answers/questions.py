"""Questions that tenants may ask without permission to read the fleet, and their answers.

An answer has the tenant's own objects, names of clusters, and only numbers for other tenants' use.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, cast

from pydantic import Field, ValidationError

from kubeloop.model import Model
from kubeloop.objects import Key, Manifest, section
from kubeloop.resource import of
from kubeloop.types import ResourceType
from kubeloop.words import sentence
from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, ModelService
from modelplane_operator.api.bounds import SELECTOR_TEXT, SELECTORS, OurName
from modelplane_operator.ask.answers.documents import DeploymentOutcome, Others, Outcomes
from modelplane_operator.ask.answers.forecast import apply_edits, forecast, scale, with_drained, without
from modelplane_operator.ask.answers.hardware import describe_hardware, hardware
from modelplane_operator.ask.answers.schema import document
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.ask.answers.why import explain
from modelplane_operator.scheduling import budget

OF_SPEC: Final = 256 * 1024
"""Longest manifest of a Question, in characters."""
AT_ONCE: Final = 32
"""Number of deployments in one Question."""
REPLICAS: Final = 1000  # as many as a single deployment may have
"""Number of replicas of all deployments in one Question."""

Verb = Literal["get", "create", "update", "list"]
"""Verb of a permission."""


class QuestionSpec(Model):
    """What is asked."""

    ask: Literal["Why", "Plan", "Hardware"]
    model_deployment: OurName | None = None
    replicas: int | None = Field(default=None, ge=0, le=1000)
    manifest: str | None = Field(default=None, max_length=OF_SPEC)
    """A ModelDeployment to plan for, or a List of them and of ModelCaches, as JSON."""
    without: OurName | None = None
    drain: OurName | None = None


INVALID: Final = 422
"""Code of an invalid Question."""
FORBIDDEN: Final = 403
"""Code of a Question that the user may not ask."""
BUSY: Final = 503
"""Code of a Question that can be asked again later."""


class QuestionError(Exception):
    """A Question that is not answered; the message says what to do instead."""

    def __init__(self, message: str, code: int = INVALID) -> None:
        super().__init__(message)
        self.code = code


class Permission(NamedTuple):
    """A permission that the user needs; for all objects of the type if the key has no name."""

    verb: Verb
    type: ResourceType
    key: Key
    """Namespace and name; an empty name stands for all objects."""


@dataclass(frozen=True, slots=True)
class Question:
    """A Question of one namespace."""

    namespace: str
    spec: QuestionSpec
    """The validated spec."""
    deployments: tuple[ModelDeployment, ...] = ()
    """Deployments that would be applied."""
    caches: tuple[ModelCache, ...] = ()
    """Caches that would be applied."""

    @property
    def cluster(self) -> str:
        """Return the cluster to remove or drain; "" if the Question is about models."""
        return self.spec.without or self.spec.drain or ""

    @property
    def keys(self) -> tuple[Key, ...]:
        """Return the keys of the ModelDeployments that the Question is about."""
        name = self.spec.model_deployment
        return tuple(deployment.key for deployment in self.deployments) or (
            (Key(self.namespace, name),) if name else ()
        )

    @property
    def permissions(self) -> Sequence[Permission]:
        """Return the permissions that the user needs."""
        verb: Verb = "get" if self.spec.ask == "Why" else "create" if self.deployments else "update"
        if self.spec.ask == "Hardware":
            return ()
        if self.cluster:
            return (Permission("list", of(InferenceCluster), Key("", "")),)
        return [Permission(verb, of(ModelDeployment), key) for key in self.keys]


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """A document for programs, and a message for people."""

    document: dict[str, Any]
    """The answer as JSON."""
    words: str
    """The answer as text."""


def parse_question(manifest: Manifest) -> Question:
    """Return the Question in a manifest. Raise QuestionError if it is invalid."""
    namespace = str(section(manifest, "metadata").get("namespace") or "")
    try:
        spec = QuestionSpec.model_validate(manifest.get("spec"))
    except ValidationError as error:
        first = error.errors()[0]
        raise QuestionError(f"Field spec.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if spec.ask == "Why" and not spec.model_deployment:
        raise QuestionError("say of which ModelDeployment, in spec.modelDeployment")
    if spec.ask != "Plan":
        return Question(namespace, spec)
    options = (spec.manifest, spec.without, spec.drain, spec.replicas if spec.model_deployment else None)
    if sum(value is not None for value in options) != 1:
        raise QuestionError(
            "say one of spec.manifest, spec.modelDeployment with spec.replicas, spec.without and spec.drain"
        )
    deployments, caches = _parse_manifest(spec.manifest, namespace) if spec.manifest else ((), ())
    return Question(namespace, spec, deployments, caches)


_TOO_MANY: Final = f"ask for {AT_ONCE} deployments and {REPLICAS} replicas at once, and no more"
"""Message for a Question beyond the limits."""


def _parse_manifest(text: str, namespace: str) -> tuple[tuple[ModelDeployment, ...], tuple[ModelCache, ...]]:
    """Return the objects that would be applied. Raise QuestionError.

    Several deployments have the limits of a single one, so that they take no longer.
    """
    try:
        data: Any = json.loads(text)  # in YAML, references can make a huge object from a short text
        if data.get("kind") == "List":
            # Checked before parsing: each object may be as expensive as the largest deployment.
            if max(Counter(item["kind"] for item in data["items"]).values(), default=0) > AT_ONCE:
                raise QuestionError(_TOO_MANY)
            objects = [_parse_object(item, item["metadata"].get("namespace") or namespace) for item in data["items"]]
        else:
            objects = [_parse_object({"kind": ModelDeployment.definition.kind, **data}, namespace, ModelDeployment)]
    except (ValueError, AttributeError, TypeError, LookupError, RecursionError):
        raise QuestionError(
            "spec.manifest is no ModelDeployment in JSON, and no List of ModelDeployments and ModelCaches: "
            "modelplane plan -f FILE writes it"
        ) from None
    deployments = tuple(item for item in objects if isinstance(item, ModelDeployment))
    caches = tuple(item for item in objects if isinstance(item, ModelCache))
    if not deployments or not all(item.metadata.name for item in objects):
        raise QuestionError("spec.manifest has no ModelDeployment, or one without a name")
    if len({item.key for item in deployments}) < len(deployments):
        raise QuestionError("spec.manifest has a ModelDeployment twice")
    if len(deployments) > 1 and sum(item.spec.replicas for item in deployments) > REPLICAS:
        raise QuestionError(_TOO_MANY)
    return deployments, caches


def _parse_object(data: dict[str, Any], namespace: str, *kinds: Any) -> ModelDeployment | ModelCache:
    """Return a parsed object in the given namespace."""
    kinds_by_name = {kind.definition.kind: kind for kind in kinds or (ModelDeployment, ModelCache)}
    metadata: dict[str, Any] = {**(data.get("metadata") or {}), "namespace": namespace, "uid": None}
    return cast("Any", kinds_by_name[data["kind"]]).parse_bounded({**data, "metadata": metadata})


def answer(
    question: Question,
    services: tuple[ModelService, ...],
    snapshot: Snapshot,
    allowed_namespaces: Collection[str] | None = None,
) -> QuestionAnswer:
    """Return the answer to a Question. Raise QuestionError.

    `snapshot` is the fleet, with the deployments and caches that the Question is about. `allowed_namespaces` are those
    whose deployments may be named; None for all.
    """
    if question.spec.ask == "Hardware":
        devices = hardware(snapshot)
        return QuestionAnswer(document("Hardware", devices), describe_hardware(devices))
    if question.spec.ask == "Why":
        explanation = explain(_find_deployment(question, snapshot), services, snapshot)
        return QuestionAnswer(document("Why", explanation), sentence(explanation.cause, *explanation.help))
    outcomes = _hide_others(_plan(question, snapshot), question.keys, allowed_namespaces)
    messages = [f"ModelDeployment {item.namespace}/{item.name}: {item.decision}" for item in outcomes.items]
    messages += [str(outcomes.others)] if outcomes.others else []
    return QuestionAnswer(document("Plan", outcomes), sentence(*messages) if messages else "Nothing would change.")


def _find_deployment(question: Question, snapshot: Snapshot) -> ModelDeployment:
    """Return the existing deployment of a Question. Raise QuestionError if it does not exist."""
    (key,) = question.keys
    if key not in snapshot.deployment:
        raise QuestionError(f"there is no ModelDeployment {key}")
    return snapshot.deployment[key]


def _plan(question: Question, snapshot: Snapshot) -> Iterable[DeploymentOutcome]:
    """Return the outcomes of a plan."""
    if cluster := question.cluster:
        if cluster not in snapshot.cluster:
            names = ", ".join(sorted(snapshot.cluster)) or "none"
            raise QuestionError(f"there is no InferenceCluster {cluster}; there are: {names}")
        after = without(snapshot, cluster) if question.spec.without else with_drained(snapshot, cluster)
        return forecast(snapshot, after, clusters=frozenset((cluster,)))
    proposed = question.deployments or (scale(_find_deployment(question, snapshot), question.spec.replicas or 0),)
    if len(proposed) > 1:
        texts = tuple(dict.fromkeys(text for deployment in proposed for text in budget.texts(deployment.replica)))
        if budget.overdrawn(texts, snapshot.fleet().devices):
            limits = f"{SELECTORS} different selectors with {SELECTOR_TEXT} characters"
            raise QuestionError(f"their selectors take too long together: ask for {limits} at once, and no more")
    return forecast(
        snapshot, apply_edits(snapshot, proposed, question.caches), changed=[deployment.key for deployment in proposed]
    )


def _hide_others(
    outcomes: Iterable[DeploymentOutcome], requested: Collection[Key], allowed_namespaces: Collection[str] | None
) -> Outcomes:
    """Return the outcomes; deployments that may not be named, unless they were asked for, only as numbers."""
    visible, hidden = list[DeploymentOutcome](), list[DeploymentOutcome]()
    for outcome in outcomes:
        is_visible = (
            allowed_namespaces is None
            or outcome.namespace in allowed_namespaces
            or Key(outcome.namespace, outcome.name) in requested
        )
        (visible if is_visible else hidden).append(outcome)
    if not hidden:
        return Outcomes(tuple(visible), None)
    others = Others(
        len(hidden),
        sum(len(outcome.added) for outcome in hidden),
        sum(len(outcome.removed) for outcome in hidden),
        sum(len(outcome.stuck) for outcome in hidden),
        sum(outcome.waiting for outcome in hidden),
    )
    return Outcomes(tuple(visible), others)
