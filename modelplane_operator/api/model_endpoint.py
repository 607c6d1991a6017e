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
    """Secret with the key. Everyone who may read the HTTPRoutes of the namespace can read it too, unless the hub
    gateway is Envoy Gateway and the Secret holds the full header under the key `credential`."""
    header: HeaderName = AUTHORIZATION
    """Header that carries it. The client's own Authorization and x-api-key never go to an endpoint with credentials."""
    prefix: Annotated[Annotated[str, Field(max_length=64)] | None, must(PRINTABLE)] = None
    """Text before the value. Default: `Bearer ` in the header Authorization, nothing in others."""


class ModelEndpointSpec(Spec):
    """Where requests go."""

    url: Url
    """URL of the backend; scheme, host and port are used."""
    rewrite_path: UrlPath | None = None
    """Path that takes the place of the service's own prefix. Without it the path stays as it is."""
    hostname: ObjectName | None = None
    """Name in the Host header and, with https, in the backend's certificate. Without it, the host of the URL if that is
    a name."""
    credentials: EndpointCredentials | None = None
    """Key for a provider that requires one. Use https, so that nobody reads it on the way."""


class EndpointRouting(Model):
    """How routes refer to the endpoint."""

    backend_name: str | None = None
    """Service on the hub for the backend; with Envoy Gateway, a Backend."""
    url: str | None = None
    """Destination of that Service, as scheme://host:port: the last usable URL of the spec."""
    rewrite_path: str | None = None
    """The path of the spec that routes use now."""
    hostname: str | None = None
    """The name of the spec that routes use now."""
    observed_generation: Annotated[int | None, Field(json_schema_extra={"format": "int64"})] = None
    """Generation of the spec that these values come from."""
    leads_to: Literal["Replica", "Outside"] | None = None
    """`Replica`: the endpoint of one replica. `Outside`: one that a user wrote."""


class ModelEndpointStatus(SummarizedStatus):
    """Observed state of the endpoint."""

    routing: EndpointRouting | None = None
    """How routes reference it."""


class RoutingReady(ConditionType):
    """Whether requests can be sent to the endpoint."""

    BACKEND_CONFIGURED = "BackendConfigured", "True", "Routes can refer to it."
    WAITING_FOR_BACKEND = "WaitingForBackend", "False", "Its Service does not exist yet.", STEP
    INVALID_URL = "InvalidURL", "False", "The URL cannot be used; the message says why.", WARNING
    CREDENTIALS_MISSING = (
        "CredentialsMissing",
        "False",
        "The Secret of its credentials cannot be used; the message says why.",
        WARNING,
    )


class ModelEndpoint(Resource[ModelEndpointSpec, ModelEndpointStatus]):
    """One address that answers for a model. The operator makes one for each replica; write one for an external
    provider."""

    definition: ClassVar = Definition(
        kind="ModelEndpoint",
        group=MODELPLANE,
        short="me",
        scope="Namespaced",
        columns=(Column("URL", ".spec.url"), Column("STATE", ".status.conditions[?(@.type=='Ready')].reason")),
        conditions=(RoutingReady, Synced, Ready),
    )
