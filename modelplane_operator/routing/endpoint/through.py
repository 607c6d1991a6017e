"""Check that the gateways of clusters answer, each at the paths of the endpoints of its replicas.

The operator has no certificate for these requests: a gateway that requires one answers by refusing the handshake, which
is an answer. So is every HTTP status. What counts is silence, of a gateway that has answered the operator before: one
that the operator cannot reach at all may still answer the hub's gateway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final, NamedTuple

from kubeloop.cache.informer import Informer
from kubeloop.client.resolver import Refuse
from kubeloop.objects import Key, Manifest
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import InferenceCluster, ModelEndpoint, ModelReplica
from modelplane_operator.models.replica.render import replica_prefix
from modelplane_operator.routing.endpoint.backend_url import (
    DEFAULT_PORTS,
    EVERYWHERE,
    Backend,
    Reach,
    check_resolved,
    parse_url,
)
from modelplane_operator.routing.endpoint.plan import ClusterState, Reached
from modelplane_operator.routing.service.answer import GatewayAnswer
from modelplane_operator.routing.service.checks import Checks
from modelplane_operator.routing.service.probe import UNRESOLVED, Asker, ServiceAddress
from modelplane_operator.world import OnChecked, ignore_count

PATH: Final = "v1/models"
UNROUTED: Final = "/-/modelplane/"
"""A path for which no route exists, so that the gateway answers itself."""


class ClusterPath(NamedTuple):
    """The path of a replica's endpoint at the gateway of its cluster."""

    cluster: str
    """Name of the cluster."""
    gateway: Backend
    """Where its gateway listens."""
    name: str | None
    """The name that the gateway's certificate proves; None by http."""
    prefix: str
    """The path of the replica."""

    def at(self, prefix: str) -> ServiceAddress:
        """Return the address of a path at the gateway."""
        host, port = self.gateway.dialled.rstrip("."), self.gateway.port
        return ServiceAddress(host, self.gateway.scheme, self.name or self.gateway.host, port, prefix)


@dataclass(slots=True)
class _Gateway:
    """What is known of a cluster's gateway at one address, by one name."""

    answered: bool = False
    """True if it has answered the operator."""
    silence: GatewayAnswer | None = None
    """The last result while it is silent."""
    asking: asyncio.Future[GatewayAnswer] | None = field(default=None, repr=False)
    """The last request that finds out whether it answers at all."""


def find_path(endpoint: ModelEndpoint, cluster: ClusterState, reach: Reach = EVERYWHERE) -> ClusterPath | None:
    """Return the path by which routes reach a replica's endpoint; None while there is none, or somebody changed it.

    `reach`: where such endpoints may lead, as a cluster reports any address, and the status may not be the operator's.
    """
    routing = endpoint.status.routing if endpoint.status else None
    backend = parse_url(routing.url, reach) if routing and routing.url and routing.leads_to == "Replica" else None
    if routing is None or not isinstance(backend, Backend) or endpoint.metadata.deletion_timestamp:
        return None
    if backend.host != cluster.gateway or backend.port not in {*DEFAULT_PORTS.values(), cluster.port}:
        return None
    return ClusterPath(cluster.name, backend, routing.hostname, replica_prefix(endpoint.key))


def refuse_inward(reach: Reach) -> Refuse:
    """Return the check of the addresses of gateways' names: who serves a name decides where it leads."""

    async def refuse(name: str, addresses: Sequence[str]) -> str:
        """Return why the addresses of a name may not be dialled; empty if they may."""
        parsed = [ip_address(address.partition("%")[0]) for address in addresses]
        fault = check_resolved(name.rstrip("."), parsed, reach)
        return fault.message if fault else ""

    return refuse


class ClusterGateways:
    """The checks of replicas' endpoints, and which gateways of clusters are silent."""

    def __init__(
        self, asker: Asker, wake: Callable[[ResourceType, Key], None], on_checked: OnChecked = ignore_count
    ) -> None:
        self._asker, self._wake = asker, wake
        self._gateways: dict[tuple[object, ...], _Gateway] = {}
        """The gateways by name of the cluster, address and the name that is asked for, which tenants may edit."""
        self._failing: dict[str, set[Key]] = {}
        """The endpoints behind silent gateways, by cluster."""
        self.checks = Checks[ClusterPath, Reached](
            of(ModelEndpoint),
            self._ask,
            failed=lambda _, reached: reached.certain,
            wake=self._on_result,
            group=lambda path: path[:2],
            is_shared=lambda _, __: True,
            on_checked=on_checked,
        )

    def describe_silence(self, cluster: str) -> str:
        """Return that the gateway of a cluster is silent, as a message; empty if it is not, or that is not known."""
        failing = self._failing.get(cluster, set[Key]())
        messages = (self.describe_failure(endpoint) for endpoint in sorted(failing))
        return next((message for message in messages if message), "")

    def describe_failure(self, endpoint: Key) -> str:
        """Return why no request reaches a replica's endpoint, as a message; empty if that is not known."""
        entry = self.checks.get(endpoint)
        return entry[1].answer.lack if entry and entry[1].failing and entry[1].answer else ""

    def add_event_handlers(self, informer: Informer) -> None:
        """Subscribe to the informer of endpoints, to forget deleted ones."""
        self.checks.add_event_handlers(informer)
        if informer.type == self.checks.kind:
            informer.subscribe(self._on_event)

    def _on_event(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        """Forget that the gateway of a deleted endpoint is silent."""
        for cluster, failing in list(self._failing.items()) if new is None else ():
            if key in failing:
                self._update(cluster, key, failing=False)

    def _on_result(self, kind: ResourceType, key: Key) -> None:
        """Wake an endpoint, and its replica and cluster if its gateway is silent now or answers again."""
        self._wake(kind, key)
        if entry := self.checks.get(key):
            self._update(entry[0].cluster, key, failing=entry[1].failing)

    def _update(self, cluster: str, key: Key, *, failing: bool) -> None:
        """Record whether the gateway of an endpoint is silent, and wake what says so."""
        keys = self._failing.setdefault(cluster, set())
        if (key in keys) != failing:
            (keys.add if failing else keys.discard)(key)
            self._wake(of(ModelReplica), key)
            self._wake(of(InferenceCluster), Key("", cluster))
        if not keys:
            del self._failing[cluster]

    async def _ask(self, path: ClusterPath) -> Reached:
        """Send one request to an endpoint; if nothing comes back, another one that the gateway answers itself.

        Once its gateway is silent, one check at a time waits for it, so that its endpoints do not delay the others.
        """
        if (gateway := self._gateways.get(path[:3])) is None:
            used = {checked[:3] for checked in self.checks.ways()}
            self._gateways = {key: known for key, known in self._gateways.items() if key in used}
            gateway = self._gateways[path[:3]] = _Gateway()
        answer = gateway.silence
        if answer is None:
            answer = await self._asker.get(path.at(path.prefix), PATH)
        elif gateway.asking and not gateway.asking.done():
            return _describe(path, gateway, answer)
        if answer.silent:
            answer = await self._ask_gateway(path, gateway)
        gateway.silence = answer if answer.silent else None
        gateway.answered = gateway.answered or not (answer.silent or answer.lack == UNRESOLVED)
        return _describe(path, gateway, answer)

    async def _ask_gateway(self, path: ClusterPath, gateway: _Gateway) -> GatewayAnswer:
        """Send a request that the gateway answers itself, or await the one that is under way."""
        if gateway.asking is None or gateway.asking.done():
            gateway.asking = asyncio.ensure_future(self._asker.get(path.at(UNROUTED), PATH))
        return await asyncio.shield(gateway.asking)


def _describe(path: ClusterPath, gateway: _Gateway, answer: GatewayAnswer) -> Reached:
    """Return the result for an endpoint behind a gateway with this answer."""
    if not answer.silent:
        return Reached("")
    message = f"gateway {path.gateway} of cluster {path.cluster} {answer.lack}: look at its pods on that cluster"
    return Reached(message, certain=gateway.answered)
