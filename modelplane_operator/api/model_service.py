"""ModelService: one URL over any set of endpoints."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from kubeloop.condition_types import STEP, WARNING, ConditionType, Ready, Synced
from kubeloop.model import ATOMIC, Model, list_map
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api.auth import Auth
from modelplane_operator.api.bounds import GROUPS, LabelsToMatch
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.groups import MODELPLANE


class EndpointSelector(Model):
    """Which ModelEndpoints of the namespace are meant."""

    match_labels: LabelsToMatch
    """Labels that an endpoint must all carry, with exactly these values. `{}` means every endpoint."""


class WeightedEndpoints(Model):
    """A group of endpoints and its share of the requests."""

    weight: Annotated[int, Field(ge=1, le=1000000)] = 1
    """Share of this group, relative to the other groups."""
    selector: EndpointSelector
    """The endpoints of this group. An endpoint that several groups select belongs to the first."""


class ModelServiceSpec(Spec):
    """The endpoints behind the URL."""

    endpoints: Annotated[tuple[WeightedEndpoints, ...], Field(min_length=1, max_length=GROUPS)]
    """Groups of endpoints, each with its share of the requests."""
    auth: Auth | None = None
    """Who may call the service. Without it, `auth` of the InferenceGateway named default applies."""


MAX_ENDPOINTS = 100  # endpoints in the status: enough to look at, small enough to write again with every change


class ResolvedEndpoint(Model):
    """An endpoint that gets requests."""

    name: str
    """Name of the ModelEndpoint."""
    weight: int
    """Its share of the requests, relative to the other endpoints."""


class APIRoute(Model):
    """A route of a model's API."""

    path: Annotated[str, Field(max_length=64)]
    """Path to append to the URL, one of the most used; `/` stands for all others."""
    carried: bool
    """Whether requests to it reach the engines."""
    message: Annotated[str, Field(max_length=512)] | None = None
    """Why they do not, or not by all endpoints."""


class ModelServiceStatus(SummarizedStatus):
    """Observed state of the service."""

    address: str | None = None
    """The URL; append the engine's path, such as `/v1/chat/completions`."""
    endpoints: Annotated[tuple[ResolvedEndpoint, ...], Field(max_length=MAX_ENDPOINTS), ATOMIC] = ()
    """Endpoints that get requests; of more than 100, the first ones. EndpointsResolved counts them all."""
    routes: Annotated[tuple[APIRoute, ...], Field(max_length=48), list_map("path")] = ()
    """Which routes of a model's API reach the engines."""
    endpoint_count: int | None = None
    """Number of all endpoints that get requests."""


class EndpointsResolved(ConditionType):
    """Whether there are endpoints behind the URL."""

    RESOLVED = "Resolved", "True", "At least one endpoint is selected; the message counts them."
    NO_ENDPOINTS = "NoEndpoints", "False", "No endpoint of the namespace carries the selected labels.", WARNING


class RoutingReady(ConditionType):
    """Whether the gateway sends requests to the endpoints."""

    ROUTE_CONFIGURED = "RouteConfigured", "True", "The gateway has accepted the route and an endpoint can answer."
    CONFIGURING = "Configuring", "False", "The gateway has not accepted the route yet, or no endpoint can answer.", STEP
    ROUTE_REFUSED = (
        "RouteRefused",
        "False",
        "The gateway rejects a route or policy; the message has its error.",
        WARNING,
    )
    WAITING_FOR_GATEWAY = (
        "WaitingForGateway",
        "False",
        "There is no InferenceGateway named default with an address.",
        STEP,
    )


class AuthReady(ConditionType):
    """Whether the keys can be read that requests need; only where keys are asked for, or were."""

    KEYS_FOUND = "KeysFound", "True", "Every Secret holds keys; requests without one of them get 401."
    SECRET_NOT_FOUND = (
        "SecretNotFound",
        "False",
        "A Secret is missing; the message names it. Its keys are rejected.",
        WARNING,
    )
    SECRET_FORBIDDEN = "SecretForbidden", "False", "The operator may not read a Secret; the message names it.", WARNING
    SECRET_TOO_LARGE = (
        "SecretTooLarge",
        "False",
        "A Secret holds too many keys or bytes, so none of them is accepted.",
        WARNING,
    )
    NO_KEYS = "NoKeys", "False", "A Secret holds no usable key; the message names it.", WARNING
    KEY_SERVICE_UNAVAILABLE = (
        "KeyServiceUnavailable",
        "False",
        "The Secrets hold keys, but the key service does not answer the gateway: all requests are rejected.",
        WARNING,
    )
    NOT_ENFORCED = (
        "NotEnforced",
        "False",
        "The Secrets hold keys, but the gateway answers requests without one.",
        WARNING,
    )
    NOT_ASKED = "NotAsked", "True", "Requests need no key."


class Answering(ConditionType):
    """Whether a request of the operator's is answered, by the way that clients' requests go: `GET` of the list of
    models, every few seconds; once a minute where there are many services, or where a provider outside may be asked;
    and at once when something changes. Without routes there is no such condition."""

    ANSWERED = "Answered", "True", "A backend behind the gateway answered."
    KEY_ASKED = "KeyAsked", "True", "The gateway required an API key, as it should; no backend was asked."
    NOT_ANSWERED = "NotAnswered", "False", "Requests fail, several in a row; the message says how.", WARNING
    GATEWAY_UNREACHABLE = (
        "GatewayUnreachable",
        "Unknown",
        "The operator cannot connect to the gateway, though clients may: Ready depends on the other conditions.",
        WARNING,
    )
    ASKING = "Asking", "Unknown", "No request was answered yet.", STEP


class ModelService(Resource[ModelServiceSpec, ModelServiceStatus]):
    """One URL over any set of endpoints: a model's replicas, a canary beside them, a provider outside."""

    definition: ClassVar = Definition(
        kind="ModelService",
        group=MODELPLANE,
        short="ms",
        scope="Namespaced",
        columns=(Column("ADDRESS", ".status.address"), Column("ENDPOINTS", ".status.endpointCount", "integer")),
        conditions=(EndpointsResolved, RoutingReady, AuthReady, Answering, Synced, Ready),
    )
