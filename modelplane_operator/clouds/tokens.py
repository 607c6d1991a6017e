"""Find the clouds' objects of InferenceClusters, and renew the tokens for their API servers.

`Tokens` runs while the process leads. It watches the clouds' objects and the InferenceClusters, requests a token for
each cluster from its account, and passes the kubeconfig to the connections of the fleet. Tokens are never stored, and
no Secret is written.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from kubeloop.backoff import Backoff
from kubeloop.cache.informer import Informer
from kubeloop.client.access import Access
from kubeloop.errors import ClientError, KubeconfigError
from kubeloop.objects import Key, Manifest, key_of, labels_of, section
from kubeloop.reading import Cluster, list_applied
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import InferenceCluster, labels, names
from modelplane_operator.clouds.accounts import Accounts
from modelplane_operator.clouds.recipe import Recipe
from modelplane_operator.clouds.render import INFRASTRUCTURE
from modelplane_operator.clouds.resources import Account
from modelplane_operator.clusters.cluster.connections import Connections

CLUSTERS: Final = of(InferenceCluster)
RECIPES: Final[Mapping[ResourceType, Recipe]] = {of(recipe.kind): recipe for recipe in INFRASTRUCTURE.values()}
"""The clouds by their kinds."""
CLOUDS: Final = tuple(RECIPES)
LASTS = 600.0  # seconds until a token is renewed; clouds issue them for fifteen minutes or more
CHECK_INTERVAL = 2.0  # seconds between two checks for tokens that are due
RETRY_AFTER = 15.0  # seconds after a failure
REFUSED: Final = Backoff(first=2.0, longest=300.0)
"""Delay from the second consecutive rejection on: a cluster that does not know the operator rejects every token."""


def infrastructure(cluster: InferenceCluster, hub: Cluster) -> Manifest | None:
    """Return the cloud's object of an InferenceCluster, or None.

    The name must match, since anybody can set the labels.
    """
    key = Key(names.SYSTEM_NAMESPACE, cluster.metadata.name)
    objects = list_applied(hub, CLOUDS, cluster.metadata.uid or "", (key.namespace,))
    return next((manifest for manifest in objects if key_of(manifest) == key), None)


def cloud_reference(cluster: Manifest) -> tuple[Account, str] | None:
    """Return the account and the cluster's name if an existing cluster is referenced by its name on a cloud."""
    origin = section(cluster, "spec", "cluster")
    if origin.get("source") != "Existing":
        return None
    for recipe in INFRASTRUCTURE.values():
        if block := section(origin, "existing", "cloud", recipe.source.lower()):
            return recipe.account_of_existing(block), block["cluster"]
    return None


@dataclass(slots=True)
class TokenKubeconfig:
    """A kubeconfig of a cluster on a cloud. Its token is kept in memory only."""

    of: str
    """Object that the kubeconfig belongs to, for messages."""
    name: str
    """Name of the connection."""
    endpoint: Mapping[str, str]
    """Fields `server`, `authority` and `cluster`, as the cloud reports them."""
    reference: tuple[Account, str] | None = None
    """Account and cluster's name, if the endpoint is fetched again with each token."""
    token: str = field(default="", repr=False)
    """Current token; empty until the first one was made."""
    made: float = 0.0
    """Time of the token by the event loop's clock, in seconds."""
    is_refused: bool = False
    """True if the cluster rejects the token."""
    refusals: int = 0
    """Number of consecutive tokens that were rejected before this one."""

    def __str__(self) -> str:
        return self.of

    def read(self) -> Access:
        """Return the access to the API server.

        Raise KubeconfigError until the first token exists, or for a bad certificate.
        """
        if not self.token:
            raise KubeconfigError(f"{self}: starting (waiting for: its first token)")
        try:
            authority = base64.b64decode(self.endpoint["authority"]).decode()
        except ValueError:  # not base64, not ASCII, or not text when decoded
            raise KubeconfigError(f"{self}: the certificate in its status is no text in base64") from None
        return Access(self.endpoint["server"], authority=authority, token=self.token)

    def on_unauthorized(self) -> None:
        """Record that the cluster rejects the token, so that a new one is due earlier."""
        self.is_refused = True

    def store_token(self, token: str, now: float) -> None:
        """Store a new token. It counts as one more rejection in a row if the old one was rejected."""
        self.refusals = self.refusals + 1 if self.is_refused else 0
        self.token, self.made, self.is_refused = token, now, False

    @property
    def lasts(self) -> float:
        """Return the seconds after which the token is renewed."""
        return REFUSED.delay(self.refusals, 1.0) if self.is_refused else LASTS


_SourceKey = tuple[ResourceType, str]
"""Kind and name of the object that describes the cluster: the cloud's object, or an InferenceCluster."""


@dataclass(slots=True)
class Tokens:
    """Renews the tokens of the clusters whose endpoint is known, before they expire."""

    accounts: Accounts
    """Clients of the clouds, which issue the tokens."""
    connections: Connections
    """Connections to workload clusters."""
    clock: Callable[[], float]
    """Clock of the event loop, in seconds."""
    _sources: dict[_SourceKey, TokenKubeconfig] = field(default_factory=dict[_SourceKey, TokenKubeconfig], init=False)
    """Kubeconfigs by the object that describes the cluster."""
    _objects: dict[_SourceKey, Manifest] = field(default_factory=dict[_SourceKey, Manifest], init=False)
    """Clouds' objects, for their accounts and owners."""
    _clusters: Informer | None = field(default=None, init=False)
    """Informer of InferenceClusters; None until it is attached."""
    _failed: dict[_SourceKey, float] = field(default_factory=dict[_SourceKey, float], init=False)
    """Times of the last failed renewals."""

    def add_event_handlers(self, informer: Informer) -> None:
        """Subscribe to the clouds' kinds and to InferenceClusters."""
        if informer.type in CLOUDS:
            informer.subscribe(partial(self._on_cloud_object, informer.type))
        elif informer.type == CLUSTERS:
            self._clusters = informer
            informer.subscribe(self._on_inference_cluster)

    async def run(self) -> None:
        """Renew tokens while this process leads. A standby needs no access to clusters."""
        for source in self._sources.values():
            if source.is_refused:  # in an earlier term as leader; the token may just have expired since
                source.token, source.is_refused = "", False
                self.connections.fleet.remove(source.name)
        while True:
            await self.renew()
            await asyncio.sleep(CHECK_INTERVAL)

    def awaits(self, cluster: str) -> bool:
        """True if a cluster has no connection only because its first token is still being made."""
        keys = [(kind, cluster) for kind in (CLUSTERS, *CLOUDS)]
        sources = [(which, source) for which in keys if (source := self._sources.get(which))]
        is_pending = any(not source.token and self._is_of_its_cluster(which) for which, source in sources)
        return is_pending and self.connections.error_of(cluster) is None

    async def renew(self) -> None:
        """Renew all tokens that are due, in parallel, so that a slow account delays no other."""
        due = [key for key, source in self._sources.items() if self._is_due(key, source)]
        async with asyncio.TaskGroup() as group:
            for key in due:
                group.create_task(self._renew(key))

    def _is_due(self, key: _SourceKey, source: TokenKubeconfig) -> bool:
        """True if a token has to be made now."""
        now = self.clock()
        if now - self._failed.get(key, -RETRY_AFTER) < RETRY_AFTER or not self._is_of_its_cluster(key):
            return False
        return not source.token or now - source.made >= source.lasts

    def _is_of_its_cluster(self, key: _SourceKey) -> bool:
        """True if the object is its InferenceCluster's own, by kind and uid. Labels alone could be forged."""
        if key[0] == CLUSTERS:
            return True
        cluster = self._clusters.get(Key("", key[1])) if self._clusters else None
        recipe = INFRASTRUCTURE.get(section(cluster, "spec", "cluster").get("source", "")) if cluster else None
        if cluster is None or recipe is None or of(recipe.kind) != key[0]:
            return False
        return labels_of(self._objects[key]).get(labels.OWNER_UID) == cluster["metadata"]["uid"]

    async def _renew(self, key: _SourceKey) -> None:
        """Make a token and update the connection. A failure is recorded and retried after `RETRY_AFTER`."""
        source = self._sources[key]
        try:
            if source.reference is not None:
                account, cluster = source.reference
                endpoint = await self.accounts.endpoint(account, cluster)
                source.endpoint = {"server": endpoint.server, "authority": endpoint.authority, "cluster": cluster}
            else:
                recipe = RECIPES[key[0]]
                account = recipe.account_of(recipe.kind.parse(self._objects[key]))
                cluster = source.endpoint["cluster"]
            token = await self.accounts.fetch_token(account, cluster)
        except Exception as error:  # noqa: BLE001 - one unreadable object must not block the tokens of other clusters
            is_client_error = isinstance(error, ClientError)
            # The connection must report why it has no credentials; other errors than a client's are bugs.
            failure = KubeconfigError(f"{source}: no token can be made for it: {error}") if is_client_error else error
            self._failed[key] = self.clock()
            self.connections.on_failure(source.name, source, failure)
            return
        self._failed.pop(key, None)
        if self._sources.get(key) is source:  # otherwise it was deleted or replaced in the meantime
            source.store_token(token, self.clock())
            self.connections.follow(source.name, source)

    def _on_cloud_object(self, kind: ResourceType, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        """Update the source of a cluster when the cloud's object appears, changes its endpoint, or is deleted."""
        has_owner = new is not None and labels_of(new).get(labels.OWNER_KIND) == "InferenceCluster"
        which = kind, key.name
        if key.namespace != names.SYSTEM_NAMESPACE or (new is not None and not has_owner):
            return
        if new is None or not (endpoint := section(new, "status", "endpoint")):
            source = self._sources.pop(which, None)
            if source is not None and source.token:  # otherwise the connection is not from here
                self.connections.unfollow(key.name)
            return
        self._objects[which] = new
        previous = self._sources.get(which)
        if previous is None or dict(previous.endpoint) != dict(endpoint):
            self._sources[which] = TokenKubeconfig(f"{kind.kind} {key}", key.name, endpoint)

    def _on_inference_cluster(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        """Update the source of an InferenceCluster that references a cluster on a cloud.

        When it no longer does, the connections decide what becomes of it.
        """
        source_key, reference = (CLUSTERS, key.name), cloud_reference(new) if new is not None else None
        previous = self._sources.get(source_key)
        if reference is None:
            self._sources.pop(source_key, None)
        elif previous is None or previous.reference != reference:
            self._sources[source_key] = TokenKubeconfig(f"InferenceCluster {key.name}", key.name, {}, reference)
