"""ModelEndpoint: one place that answers for a model: a replica of ours, or a provider outside."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import STEP, WARNING, ConditionType, Ready, Synced
from kubeloop.model import Model, Rule, must
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api.bounds import DataKey, ObjectName, Url, UrlPath
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.groups import MODELPLANE

AUTHORIZATION = "Authorization"

HeaderName = Annotated[
    str,
    Field(min_length=1, max_length=128),
    must(
        Rule(
            "self.matches('^[A-Za-z0-9-]+$')",
            "A header's name is letters, digits and '-', for example Authorization or x-api-key.",
        ),
        Rule(
            "!(self.lowerAscii() in ['host', 'connection', 'content-length', 'te', 'trailer', 'transfer-encoding', "
            "'upgrade'])",
            "This header belongs to the connection: name the one that the provider reads its key from.",
        ),
    ),
]
PRINTABLE = Rule("self.matches('^[ -~]*$')", "A prefix is printable ASCII, for example 'Bearer '.")


class SecretKey(Model):
    """One key of a Secret in the endpoint's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: DataKey
    """Key within it."""


class EndpointCredentials(Model):
    """The key that the provider knows us by: sent in a header, in the place of whatever the client sent there."""

    secret_ref: SecretKey
    """Where the value is kept. Whoever may read the HTTPRoutes of the namespace can read it too, unless
    Envoy Gateway answers and the Secret holds the whole header under the key `credential`."""
    header: HeaderName = AUTHORIZATION
    """Header that carries it. The client's own Authorization and x-api-key never go to an endpoint with credentials."""
    prefix: Annotated[Annotated[str, Field(max_length=64)] | None, must(PRINTABLE)] = None
    """What stands before the value. Left out, it is `Bearer ` in the header Authorization and nothing in another."""


class ModelEndpointSpec(Spec):
    """Where requests go."""

    url: Url
    """URL of the backend; scheme, host and port are used."""
    rewrite_path: UrlPath | None = None
    """Path that takes the place of the service's own prefix. Without it the path stays as it is."""
    hostname: ObjectName | None = None
    """Name to ask for, in the Host header and, with https, as the name that the backend must prove. Without it, the
    host of the URL when that is a name."""
    credentials: EndpointCredentials | None = None
    """Key for a provider that asks for one. Use https, or it can be read on the way."""


class EndpointRouting(Model):
    """How routes refer to the endpoint."""

    backend_name: str | None = None
    """Service on the hub that stands for the backend, or Backend where Envoy Gateway answers."""
    url: str | None = None
    """Where that Service leads, as scheme://host:port: the last URL of the spec that could be used."""
    rewrite_path: str | None = None
    """The path of the spec, as it was when the operator last looked: routes follow this one."""
    hostname: str | None = None
    """The name of the spec, in the same way."""
    observed_generation: Annotated[int | None, Field(json_schema_extra={"format": "int64"})] = None
    """Of the spec that these are taken from."""
    leads_to: Literal["Replica", "Outside"] | None = None
    """Whether it is the endpoint of a replica, which leads to that replica alone."""


class ModelEndpointStatus(SummarizedStatus):
    """What is known of the endpoint."""

    routing: EndpointRouting | None = None
    """How routes refer to it."""


class RoutingReady(ConditionType):
    """Whether requests can be sent to the endpoint."""

    BACKEND_CONFIGURED = "BackendConfigured", "True", "Routes can refer to it."
    WAITING_FOR_BACKEND = "WaitingForBackend", "False", "Its Service is not there yet.", STEP
    INVALID_URL = "InvalidURL", "False", "The URL cannot be used; the message says why.", WARNING
    CREDENTIALS_MISSING = (
        "CredentialsMissing",
        "False",
        "The Secret of its credentials cannot be used; the message says why.",
        WARNING,
    )


class ModelEndpoint(Resource[ModelEndpointSpec, ModelEndpointStatus]):
    """One place that answers for a model. Replicas get theirs by themselves; write one for a provider outside."""

    definition: ClassVar = Definition(
        kind="ModelEndpoint",
        group=MODELPLANE,
        short="me",
        scope="Namespaced",
        columns=(Column("URL", ".spec.url"), Column("STATE", ".status.conditions[?(@.type=='Ready')].reason")),
        conditions=(RoutingReady, Synced, Ready),
    )
