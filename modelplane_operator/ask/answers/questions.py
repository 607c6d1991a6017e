"""What tenants may ask without reading the fleet: a Question, and what the operator says to it.

An answer has the tenant's own objects, names of clusters, and of everybody else's use no more than numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
from modelplane_operator.ask.answers.forecast import drained, edited, forecast, scaled, without
from modelplane_operator.ask.answers.hardware import hardware
from modelplane_operator.ask.answers.schema import document
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.ask.answers.why import why
from modelplane_operator.scheduling import budget

OF_SPEC: Final = 256 * 1024  # characters of what might be applied
AT_ONCE: Final = 32  # deployments of one question
REPLICAS: Final = 1000  # of all of them, as one may have

Verb = Literal["get", "create", "update", "list"]


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
FORBIDDEN: Final = 403
BUSY: Final = 503


class QuestionError(Exception):
    """It is not answered; the message says what to do instead."""

    def __init__(self, message: str, code: int = INVALID) -> None:
        super().__init__(message)
        self.code = code


class Permission(NamedTuple):
    """What somebody has to be allowed; all objects of the kind, where the key names none."""

    verb: Verb
    type: ResourceType
    key: Key


@dataclass(frozen=True, slots=True)
class Question:
    """A question of one namespace."""

    namespace: str
    spec: QuestionSpec
    deployments: tuple[ModelDeployment, ...] = ()
    """Those that might be applied."""
    caches: tuple[ModelCache, ...] = ()

    @property
    def cluster(self) -> str:
        """The one that is to be gone, or drained; empty where the question is about models."""
        return self.spec.without or self.spec.drain or ""

    @property
    def keys(self) -> tuple[Key, ...]:
        """The ModelDeployments that it names."""
        one = self.spec.model_deployment
        return tuple(each.key for each in self.deployments) or ((Key(self.namespace, one),) if one else ())

    @property
    def permissions(self) -> Sequence[Permission]:
        """What whoever asks has to be allowed."""
        verb: Verb = "get" if self.spec.ask == "Why" else "create" if self.deployments else "update"
        if self.spec.ask == "Hardware":
            return ()
        if self.cluster:
            return (Permission("list", of(InferenceCluster), Key("", "")),)
        return [Permission(verb, of(ModelDeployment), key) for key in self.keys]


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """A document for programs, and a sentence for people."""

    document: dict[str, Any]
    words: str


def asked(manifest: Manifest) -> Question:
    """The question that somebody has written; raises QuestionError."""
    namespace = str(section(manifest, "metadata").get("namespace") or "")
    try:
        spec = QuestionSpec.model_validate(manifest.get("spec"))
    except ValidationError as error:
        first = error.errors()[0]
        raise QuestionError(f"spec.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if spec.ask == "Why" and not spec.model_deployment:
        raise QuestionError("say of which ModelDeployment, in spec.modelDeployment")
    if spec.ask != "Plan":
        return Question(namespace, spec)
    given = (spec.manifest, spec.without, spec.drain, spec.replicas if spec.model_deployment else None)
    if sum(one is not None for one in given) != 1:
        raise QuestionError(
            "say one of spec.manifest, spec.modelDeployment with spec.replicas, spec.without and spec.drain"
        )
    deployments, caches = _applied(spec.manifest, namespace) if spec.manifest else ((), ())
    return Question(namespace, spec, deployments, caches)


_TOO_MANY: Final = f"ask for {AT_ONCE} deployments and {REPLICAS} replicas at once, and no more"


def _applied(text: str, namespace: str) -> tuple[tuple[ModelDeployment, ...], tuple[ModelCache, ...]]:
    """What might be applied; raises QuestionError. Several have the bounds of one, so that they take no longer."""
    try:
        said: Any = json.loads(text)  # YAML has references, by which a short text becomes a long object
        if said.get("kind") == "List":
            # Before anything is read: each costs as much as a deployment may, selectors and all.
            if max(Counter(one["kind"] for one in said["items"]).values(), default=0) > AT_ONCE:
                raise QuestionError(_TOO_MANY)
            found = [_read(one, one["metadata"].get("namespace") or namespace) for one in said["items"]]
        else:
            found = [_read({"kind": ModelDeployment.definition.kind, **said}, namespace, ModelDeployment)]
    except (ValueError, AttributeError, TypeError, LookupError, RecursionError):
        raise QuestionError(
            "spec.manifest is no ModelDeployment in JSON, and no List of ModelDeployments and ModelCaches: "
            "modelplane plan -f FILE writes it"
        ) from None
    deployments = tuple(one for one in found if isinstance(one, ModelDeployment))
    caches = tuple(one for one in found if isinstance(one, ModelCache))
    if not deployments or not all(one.metadata.name for one in found):
        raise QuestionError("spec.manifest has no ModelDeployment, or one without a name")
    if len({one.key for one in deployments}) < len(deployments):
        raise QuestionError("spec.manifest has a ModelDeployment twice")
    if len(deployments) > 1 and sum(one.spec.replicas for one in deployments) > REPLICAS:
        raise QuestionError(_TOO_MANY)
    return deployments, caches


def _read(said: dict[str, Any], namespace: str, *kinds: Any) -> ModelDeployment | ModelCache:
    known = {one.definition.kind: one for one in kinds or (ModelDeployment, ModelCache)}
    metadata: dict[str, Any] = {**(said.get("metadata") or {}), "namespace": namespace, "uid": None}
    return cast("Any", known[said["kind"]]).admitted({**said, "metadata": metadata})


def answer(
    question: Question, services: tuple[ModelService, ...], seen: Snapshot, named: Collection[str] | None = None
) -> QuestionAnswer:
    """`seen`: the fleet, and of deployments and caches those that the question concerns. `named`: the namespaces of
    which deployments may be named; all, where it is None. Raises QuestionError."""
    if question.spec.ask == "Hardware":
        found = hardware(seen)
        return QuestionAnswer(document("Hardware", found), f"{len(found)} kinds of devices may be asked for")
    if question.spec.ask == "Why":
        told = why(_live(question, seen), services, seen)
        return QuestionAnswer(document("Why", told), sentence(told.cause, *told.help))
    outcomes = _told(_planned(question, seen), question.keys, named)
    words = [f"{one.namespace}/{one.name}: {one.decision}" for one in outcomes.items]
    words += [str(outcomes.others)] if outcomes.others else []
    return QuestionAnswer(document("Plan", outcomes), sentence(*words) if words else "Nothing would change.")


def _live(question: Question, seen: Snapshot) -> ModelDeployment:
    (key,) = question.keys
    if key not in seen.deployment:
        raise QuestionError(f"there is no ModelDeployment {key}")
    return seen.deployment[key]


def _planned(question: Question, seen: Snapshot) -> Iterable[DeploymentOutcome]:
    if cluster := question.cluster:
        if cluster not in seen.cluster:
            raise QuestionError(f"there is no InferenceCluster {cluster}; there are: {_names(seen.cluster)}")
        after = without(seen, cluster) if question.spec.without else drained(seen, cluster)
        return forecast(seen, after, clusters=frozenset((cluster,)))
    wanted = question.deployments or (scaled(_live(question, seen), question.spec.replicas or 0),)
    if len(wanted) > 1:
        texts = tuple(dict.fromkeys(text for one in wanted for text in budget.texts(one.replica)))
        if budget.overdrawn(texts, seen.fleet().devices):
            words = f"{SELECTORS} different selectors with {SELECTOR_TEXT} characters"
            raise QuestionError(f"their selectors take too long together: ask for {words} at once, and no more")
    return forecast(seen, edited(seen, wanted, question.caches), asked=[one.key for one in wanted])


def _names(clusters: Mapping[str, object]) -> str:
    return ", ".join(sorted(clusters)) or "none"


def _told(outcomes: Iterable[DeploymentOutcome], asked: Collection[Key], named: Collection[str] | None) -> Outcomes:
    """Of deployments that are not asked for and may not be named, no more than how many replicas it is about."""
    shown, rest = list[DeploymentOutcome](), list[DeploymentOutcome]()
    for one in outcomes:
        known = named is None or one.namespace in named or Key(one.namespace, one.name) in asked
        (shown if known else rest).append(one)
    return Outcomes(tuple(shown), _counted(rest) if rest else None)


def _counted(outcomes: Sequence[DeploymentOutcome]) -> Others:
    return Others(
        len(outcomes),
        sum(len(one.added) for one in outcomes),
        sum(len(one.removed) for one in outcomes),
        sum(len(one.stuck) for one in outcomes),
        sum(one.waiting for one in outcomes),
    )
