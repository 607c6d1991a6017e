"""What tenants may ask without reading the fleet: a Question, and what the operator says to it.

An answer has the tenant's own objects, names of clusters, and of everybody else's use no more than numbers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from modelplane_operator.api import ModelDeployment, ModelService
from modelplane_operator.api.bounds import OurName
from modelplane_operator.api.model import Model
from modelplane_operator.kube.objects import Key, Manifest, section
from modelplane_operator.kube.words import sentence
from modelplane_operator.planning.answers.documents import Outcome
from modelplane_operator.planning.answers.forecast import edited, forecast, scaled
from modelplane_operator.planning.answers.hardware import hardware
from modelplane_operator.planning.answers.schema import document
from modelplane_operator.planning.answers.snapshot import Snapshot
from modelplane_operator.planning.answers.why import why

OF_SPEC: Final = 256 * 1024  # characters of a ModelDeployment

Verb = Literal["get", "create", "update"]


class QuestionSpec(Model):
    """What is asked."""

    ask: Literal["Why", "Plan", "Hardware"]
    model_deployment: OurName | None = None
    replicas: int | None = Field(default=None, ge=0, le=1000)
    manifest: str | None = Field(default=None, max_length=OF_SPEC)
    """A ModelDeployment to plan for, as JSON."""


INVALID: Final = 422
FORBIDDEN: Final = 403
BUSY: Final = 503


class QuestionError(Exception):
    """It is not answered; the message says what to do instead."""

    def __init__(self, message: str, code: int = INVALID) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Question:
    """A question of one namespace."""

    namespace: str
    spec: QuestionSpec
    deployment: ModelDeployment | None
    """That of the manifest."""

    @property
    def verb(self) -> Verb | None:
        """What somebody has to be allowed on the ModelDeployment concerned; None where it concerns none."""
        match self.spec.ask:
            case "Why":
                return "get"
            case "Plan":
                return "create" if self.deployment else "update"
            case "Hardware":
                return None

    @property
    def key(self) -> Key:
        """The ModelDeployment concerned."""
        return self.deployment.key if self.deployment else Key(self.namespace, self.spec.model_deployment or "")


@dataclass(frozen=True, slots=True)
class Answer:
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
    deployment = _deployment(spec.manifest, namespace) if spec.manifest else None
    if spec.ask == "Why" and not spec.model_deployment:
        raise QuestionError("say of which ModelDeployment, in spec.modelDeployment")
    if spec.ask == "Plan" and deployment is None and (spec.replicas is None or not spec.model_deployment):
        raise QuestionError("say spec.manifest, or spec.modelDeployment and spec.replicas")
    return Question(namespace, spec, deployment)


def _deployment(text: str, namespace: str) -> ModelDeployment:
    try:
        said: Any = json.loads(text)  # YAML has references, by which a short text becomes a long object
        metadata: dict[str, Any] = {**(said.get("metadata") or {}), "namespace": namespace, "uid": None}
        found = ModelDeployment.admitted({**said, "metadata": metadata})
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise QuestionError("spec.manifest is no ModelDeployment in JSON: modelplane plan -f FILE writes it") from None
    if not found.metadata.name:
        raise QuestionError("the ModelDeployment of spec.manifest has no name")
    return found


def answer(question: Question, services: tuple[ModelService, ...], seen: Snapshot) -> Answer:
    """`seen`: the fleet, and of deployments and caches those of the namespace. Raises QuestionError."""
    if question.spec.ask == "Hardware":
        found = hardware(seen)
        return Answer(document("Hardware", found), f"{len(found)} kinds of devices may be asked for")
    live = seen.deployment.get(question.key)
    if question.spec.ask == "Why" and live:
        told = why(live, services, seen)
        return Answer(document("Why", told), sentence(told.cause, *told.help))
    wanted = question.deployment or (scaled(live, question.spec.replicas or 0) if live else None)
    if wanted is None:
        raise QuestionError(f"there is no ModelDeployment {question.key}")
    outcomes = forecast(seen, edited(seen, [wanted]), asked=[wanted.key])
    return Answer(document("Plan", outcomes), _planned(outcomes))


def _planned(outcomes: tuple[Outcome, ...]) -> str:
    return sentence(*(f"{one.namespace}/{one.name}: {one.decision}" for one in outcomes))
