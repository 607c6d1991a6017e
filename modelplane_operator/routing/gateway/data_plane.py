"""The interface of a data plane, which answers requests at the hub.

The modules `traefik` and `envoy_gateway` implement it. Which one is used is decided in one place
(`render/__init__.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kubeloop.helm.release import Component
from kubeloop.objects import Key, Manifest
from kubeloop.types import ResourceType
from modelplane_operator.api.inference_gateway import InferenceGateway, InferenceGatewaySpec, Software
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.routing.endpoint.backend_url import Backend
from modelplane_operator.routing.endpoint.credentials import Header
from modelplane_operator.routing.service.weights import BackendGroup


@dataclass(frozen=True, slots=True)
class Allowed:
    """The permissions that the hub's settings give the hub gateway's software."""

    traefik_account: str = ""
    """The ServiceAccount with Traefik's permissions, in its namespace; empty if its chart creates one."""
    tenants: tuple[str, ...] = ()
    """The namespaces that Traefik serves; empty means all."""


EVERYTHING: Final = Allowed()


class DataPlane(Protocol):
    """A module that implements a data plane."""

    @property
    def GATEWAY_CLASS(self) -> str: ...  # noqa: N802 - a constant of a module

    @property
    def CONTROLLER(self) -> str: ...  # noqa: N802

    @property
    def PORT(self) -> int:  # noqa: N802
        """The port of the Gateway's http listener."""
        ...

    @property
    def TLS_PORT(self) -> int:  # noqa: N802
        """The port of its https listeners. The load balancer listens on 443."""
        ...

    @property
    def LOAD_BALANCER(self) -> Key:  # noqa: N802
        """The Service of type LoadBalancer that gives the Gateway its address."""
        ...

    @property
    def METRICS(self) -> tuple[int, str]:  # noqa: N802
        """The port and path at which its pods show what they have counted."""
        ...

    @property
    def BALANCER_PORT(self) -> int: ...  # noqa: N802

    @property
    def ENDPOINT(self) -> ResourceType:  # noqa: N802
        """The type of object to which routes refer for an endpoint."""
        ...

    @property
    def PRESENTS_CERTIFICATE(self) -> bool:  # noqa: N802
        """True if it can prove its identity to clusters' gateways."""
        ...

    @property
    def CLASS(self) -> Manifest:  # noqa: N802
        """The fields of its GatewayClass's spec besides the controller."""
        ...

    def software(self, spec: InferenceGatewaySpec) -> Software | None:
        """Return its settings from the spec; None if another owner installs it."""
        ...

    def chart(self, gateway: InferenceGateway, software: Software, allowed: Allowed, /) -> Component: ...

    def render_before(self, gateway: InferenceGateway, /) -> Sequence[Manifest]:
        """Return the objects that the GatewayClass needs."""
        ...

    def render_after(self, gateway: InferenceGateway, /) -> Sequence[Manifest]:
        """Return the objects that need the Gateway."""
        ...

    def render_endpoint(
        self, endpoint: ModelEndpoint, backend: Backend, header: Header | None = None
    ) -> Sequence[Manifest]:
        """Return the objects of an endpoint with this backend and its credentials."""
        ...

    def unprovable(self, name: str | None, backend: Backend) -> str:
        """Return why a backend cannot prove that it has this name; empty if it can, or need not."""
        ...

    def rules(
        self, service: Key, groups: Sequence[BackendGroup], *, relay_port: int, mark: str = "", guarded: bool = False
    ) -> Iterator[Manifest]:
        """Yield the rules of a service's routes, starting with the one that clients use."""
        ...

    def comes_back(self, groups: Sequence[BackendGroup]) -> bool:
        """True if requests pass the gateway more than once."""
        ...

    def render_loopback(self, service: ModelService) -> Sequence[Manifest]:
        """Return the objects that lead back to the gateway, for requests that pass it more than once."""
        ...

    def render_guard(
        self, service: ModelService, path: str, routes: Sequence[str], keys: tuple[str, int]
    ) -> Sequence[Manifest]:
        """Return the objects that make the gateway query the key service at this path before it uses these routes."""
        ...

    def add_guards(self, service: Key, rules: Sequence[Manifest], /) -> list[Manifest]:
        """Return the rules with the guard before each."""
        ...
