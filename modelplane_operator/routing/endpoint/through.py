"""Check that the gateways of clusters answer, each at the paths of the endpoints of its replicas.

The operator has no certificate for these requests: a gateway that requires one answers by refusing the handshake, which
is an answer. So is every HTTP status. What counts is silence, of a gateway that has answered the operator before: one
that the operator cannot reach at all may still answer the hub's gateway.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from kubeloop.cache.informer import Informer
from kubeloop.objects import Key, Manifest
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import InferenceCluster, ModelEndpoint, ModelReplica
from modelplane_operator.models.replica.render import replica_prefix
from modelplane_operator.routing.endpoint.backend_url import DEFAULT_PORTS, Backend, read_url
from modelplane_operator.routing.endpoint.plan import ClusterState, Reached
from modelplane_operator.routing.service.checks import Checks
from modelplane_operator.routing.service.probe import Asker, ServiceAddress
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


def find_path(endpoint: ModelEndpoint, cluster: ClusterState) -> ClusterPath | None:
    """Return the path by which routes reach a replica's endpoint; None while there is none, or somebody changed it."""
    routing = endpoint.status.routing if endpoint.status else None
    backend = read_url(routing.url) if routing and routing.url and routing.leads_to == "Replica" else None
    if routing is None or not isinstance(backend, Backend) or endpoint.metadata.deletion_timestamp:
        return None
    if backend.host != cluster.gateway or backend.port not in {*DEFAULT_PORTS.values(), cluster.port}:
        return None
    return ClusterPath(cluster.name, backend, routing.hostname, replica_prefix(endpoint.key))


class ClusterGateways:
    """The checks of replicas' endpoints, and which gateways of clusters are silent."""

    def __init__(
        self, asker: Asker, wake: Callable[[ResourceType, Key], None], on_checked: OnChecked = ignore_count
    ) -> None:
        self._asker, self._wake = asker, wake
        self._answered: set[tuple[str, Backend]] = set()
        """The gateways that have answered the operator."""
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
        """Send one request to an endpoint; if nothing comes back, another one that the gateway answers itself."""
        answer = await self._asker.get(path.at(path.prefix), PATH)
        if answer.silent:
            answer = await self._asker.get(path.at(UNROUTED), PATH)
        gateway = path[:2]
        if not answer.silent:
            self._answered.add(gateway)
            return Reached("")
        message = f"gateway {path.gateway} of cluster {path.cluster} {answer.lack}: look at its pods on that cluster"
        return Reached(message, certain=gateway in self._answered)
