"""What answers requests at the hub, as all that is written for it has to know it.

Traefik and Envoy Gateway are a module each, `traefik` and `envoy_gateway`, with what is here. Which of them it is, is
chosen in one place (`rendering/inference_gateway`).
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
    """What the hub lets the hub gateway's software do."""

    traefik_account: str = ""
    """The account of Traefik's namespace that has its permissions; empty: its chart makes one."""
    tenants: tuple[str, ...] = ()
    """The namespaces that Traefik serves; none: all."""


EVERYTHING: Final = Allowed()


class DataPlane(Protocol):
    """A module for each."""

    @property
    def GATEWAY_CLASS(self) -> str: ...  # noqa: N802 - a constant of a module

    @property
    def CONTROLLER(self) -> str: ...  # noqa: N802

    @property
    def PORT(self) -> int:  # noqa: N802
        """Of the Gateway's listener."""
        ...

    @property
    def TLS_PORT(self) -> int:  # noqa: N802
        """Of its listeners by https. The load balancer listens on 443."""
        ...

    @property
    def LOAD_BALANCER(self) -> Key:  # noqa: N802
        """The Service of type LoadBalancer that gives the Gateway its address."""
        ...

    @property
    def BALANCER_PORT(self) -> int: ...  # noqa: N802

    @property
    def ENDPOINT(self) -> ResourceType:  # noqa: N802
        """What an endpoint is, for routes to lead to."""
        ...

    @property
    def PRESENTS_CERTIFICATE(self) -> bool:  # noqa: N802
        """Whether it can prove to the gateways of clusters that it is the hub's."""
        ...

    @property
    def CLASS(self) -> Manifest:  # noqa: N802
        """What the spec of its GatewayClass says beside the controller."""
        ...

    def software(self, spec: InferenceGatewaySpec) -> Software | None:
        """Its settings."""
        ...

    def chart(self, gateway: InferenceGateway, software: Software, allowed: Allowed, /) -> Component: ...

    def render_before(self, gateway: InferenceGateway, /) -> Sequence[Manifest]:
        """What the GatewayClass needs."""
        ...

    def render_after(self, gateway: InferenceGateway, /) -> Sequence[Manifest]:
        """What needs the Gateway."""
        ...

    def render_endpoint(
        self, endpoint: ModelEndpoint, backend: Backend, header: Header | None = None
    ) -> Sequence[Manifest]:
        """The objects of an endpoint whose URL leads to this backend, with the credentials that it has."""
        ...

    def unprovable(self, name: str | None, backend: Backend) -> str:
        """Why nobody could tell whether a backend is the one that is asked by this name; empty when it proves it."""
        ...

    def rules(
        self, service: Key, groups: Sequence[BackendGroup], *, relay_port: int, mark: str = "", guarded: bool = False
    ) -> Iterator[Manifest]:
        """The rules of a service's routes, the one that clients meet first."""
        ...

    def comes_back(self, groups: Sequence[BackendGroup]) -> bool:
        """Whether requests pass the gateway more than once."""
        ...

    def render_loopback(self, service: ModelService) -> Sequence[Manifest]:
        """What leads to the gateway itself, for those that do."""
        ...

    def render_guard(
        self, service: ModelService, path: str, routes: Sequence[str], keys: tuple[str, int]
    ) -> Sequence[Manifest]:
        """What has the gateway ask the key service, at this path, before these routes lead anywhere."""
        ...

    def guarded(self, service: Key, rules: Sequence[Manifest], /) -> list[Manifest]:
        """The rules, each behind the guard."""
        ...
