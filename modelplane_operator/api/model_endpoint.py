"""ModelEndpoint: one place that answers for a model: a replica of ours, or a provider outside."""

from __future__ import annotations

from typing import ClassVar

from modelplane_operator.api.base import MODELPLANE, Column, Definition, Resource, Status
from modelplane_operator.api.conditions import ConditionType, Ready, Synced
from modelplane_operator.api.model import Model
from modelplane_operator.api.shared import NonEmpty, Spec


class ModelEndpointSpec(Spec):
    """Where requests go."""

    url: NonEmpty
    """URL of the backend; scheme, host and port are used."""
    rewrite_path: str | None = None
    """Path that takes the place of the service's own prefix. Without it the path stays as it is."""


class EndpointRouting(Model):
    """How routes refer to the endpoint."""

    backend_name: str | None = None
    """Service on the hub that stands for the backend."""


class ModelEndpointStatus(Status):
    """What is known of the endpoint."""

    routing: EndpointRouting | None = None
    """How routes refer to it."""


class RoutingReady(ConditionType):
    """Whether requests can be sent to the endpoint."""

    BACKEND_CONFIGURED = "BackendConfigured", "True", "Routes can refer to it."
    WAITING_FOR_BACKEND = "WaitingForBackend", "False", "Its Service is not there yet."
    INVALID_URL = "InvalidURL", "False", "The URL cannot be used; the message says why."


class ModelEndpoint(Resource[ModelEndpointSpec, ModelEndpointStatus]):
    """One place that answers for a model. Replicas get theirs by themselves; write one for a provider outside."""

    definition: ClassVar = Definition(
        kind="ModelEndpoint",
        group=MODELPLANE,
        short="me",
        scope="Namespaced",
        columns=(Column("URL", ".spec.url"),),
        conditions=(RoutingReady, Synced, Ready),
    )
