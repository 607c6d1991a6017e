"""The clouds' own objects of InferenceClusters, and the tokens by which their API servers are reached."""

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
from kubeloop.reading import Cluster, applied
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import InferenceCluster, labels, names
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.api.clusters.gke import GKECluster
from modelplane_operator.clouds.accounts import Accounts
from modelplane_operator.clouds.eks import plan as eks_cluster
from modelplane_operator.clouds.gke import plan as gke_cluster
from modelplane_operator.clouds.render import INFRASTRUCTURE
from modelplane_operator.clouds.resources import Account
from modelplane_operator.clusters.cluster.connections import Connections

EKS: Final = of(EKSCluster)
GKE: Final = of(GKECluster)
CLUSTERS: Final = of(InferenceCluster)
ACCOUNTS: Final[Mapping[ResourceType, Callable[[Manifest], Account]]] = {
    EKS: lambda manifest: eks_cluster.account_of(EKSCluster.parse(manifest)),
    GKE: lambda manifest: gke_cluster.account_of(GKECluster.parse(manifest)),
}
"""The clouds' own kinds, and which account an object of each is in."""
CLOUDS: Final = tuple(ACCOUNTS)
_OWN = "default"  # the account where none is named
LASTS = 600.0  # seconds until another token is made: clouds give them for fifteen minutes and more
REST = 2.0  # seconds between two looks at what is due
RETRY_AFTER = 15.0  # seconds after a failure
REFUSED: Final = Backoff(first=2.0, longest=300.0)
"""After a second refusal in a row: a cluster that does not know who we are refuses each token."""


def infrastructure(cluster: InferenceCluster, hub: Cluster) -> Manifest | None:
    """The cloud's object that is ours; labels alone tell nothing, since others write such objects, too."""
    wanted = Key(names.SYSTEM_NAMESPACE, cluster.metadata.name)
    found = applied(hub, CLOUDS, cluster.metadata.uid or "", (wanted.namespace,))
    return next((one for one in found if key_of(one) == wanted), None)


def named_on_cloud(cluster: Manifest) -> tuple[Account, str] | None:
    """The account and the name on its cloud of an InferenceCluster that is brought by that."""
    origin = section(cluster, "spec", "cluster")
    if origin.get("source") != "Existing":
        return None
    gke, eks = (section(origin, "existing", "cloud", one) for one in ("gke", "eks"))
    if gke:
        place, project = gke["location"], gke.get("project", "")
        return Account("GKE", place, section(gke, "credentials").get("name", _OWN), project), gke["cluster"]
    if eks:
        return Account("EKS", eks["region"], section(eks, "credentials").get("name", _OWN)), eks["cluster"]
    return None


@dataclass(slots=True)
class TokenKubeconfig:
    """Where an API server is, as a cloud says, and a token that is made in memory and written nowhere."""

    of: str
    """The object that has it, as messages name it."""
    name: str
    """Of the connection."""
    endpoint: Mapping[str, str]
    named: tuple[Account, str] | None = None
    """In which account it is asked for anew with each token, and by which name."""
    token: str = field(default="", repr=False)
    made: float = 0.0
    """When, by the loop's clock."""
    is_refused: bool = False
    """Whether the cluster does not take it."""
    refusals: int = 0
    """How many before it were refused in a row."""

    def __str__(self) -> str:
        return self.of

    def read(self) -> Access:
        if not self.token:
            raise KubeconfigError(f"{self}: its first token is being made")
        try:
            authority = base64.b64decode(self.endpoint["authority"]).decode()
        except ValueError:  # of what is no base64, no ASCII, or no text within
            raise KubeconfigError(f"{self}: the certificate in its status is no text in base64") from None
        return Access(self.endpoint["server"], authority=authority, token=self.token)

    def refused(self) -> None:
        self.is_refused = True

    def renewed(self, token: str, now: float) -> None:
        self.refusals = self.refusals + 1 if self.is_refused else 0
        self.token, self.made, self.is_refused = token, now, False

    @property
    def lasts(self) -> float:
        """The seconds from when it was made until another is."""
        return REFUSED.delay(self.refusals, 1.0) if self.is_refused else LASTS


_Which = tuple[ResourceType, str]
"""The cloud's object of an InferenceCluster, or one that is named on a cloud: its kind, and its name."""


@dataclass(slots=True)
class Tokens:
    """Makes tokens for the clusters of which the cloud has told where they are, and others before those end."""

    accounts: Accounts
    known: Connections
    clock: Callable[[], float]
    _sources: dict[_Which, TokenKubeconfig] = field(default_factory=dict[_Which, TokenKubeconfig], init=False)
    _objects: dict[_Which, Manifest] = field(default_factory=dict[_Which, Manifest], init=False)
    _clusters: Informer | None = field(default=None, init=False)
    _failed: dict[_Which, float] = field(default_factory=dict[_Which, float], init=False)

    def listen(self, informer: Informer) -> None:
        if informer.type in CLOUDS:
            informer.subscribe(partial(self._seen, informer.type))
        elif informer.type == CLUSTERS:
            self._clusters = informer
            informer.subscribe(self._named_seen)

    async def run(self) -> None:
        """While we lead: a standby needs no way to any cluster yet."""
        self._begin_anew()
        while True:
            await self.renew()
            await asyncio.sleep(REST)

    def _begin_anew(self) -> None:
        """Tokens of when we led before may have ended since: what is refused by them says nothing of a cluster."""
        for source in self._sources.values():
            if source.is_refused:
                source.token, source.is_refused = "", False
                self.known.fleet.remove(source.name)

    def awaits(self, cluster: str) -> bool:
        """Whether there is no way to a cluster only because its first token is still being made."""
        each = [(kind, cluster) for kind in (CLUSTERS, *CLOUDS)]
        found = [(which, source) for which in each if (source := self._sources.get(which))]
        coming = any(not source.token and self._is_of_its_cluster(which) for which, source in found)
        return coming and self.known.why(cluster) is None

    async def renew(self) -> None:
        """Make the tokens that are due, side by side: an account that does not answer holds up no other's."""
        due = [which for which, source in self._sources.items() if self._is_due(which, source)]
        async with asyncio.TaskGroup() as group:
            for which in due:
                group.create_task(self._renew(which))

    def _is_due(self, which: _Which, source: TokenKubeconfig) -> bool:
        now = self.clock()
        if now - self._failed.get(which, -RETRY_AFTER) < RETRY_AFTER or not self._is_of_its_cluster(which):
            return False
        return not source.token or now - source.made >= source.lasts

    def _is_of_its_cluster(self, which: _Which) -> bool:
        """Whether it is the cloud's object of the InferenceCluster of that name: labels alone could be anybody's."""
        if which[0] == CLUSTERS:
            return True
        cluster = self._clusters.get(Key("", which[1])) if self._clusters else None
        made = INFRASTRUCTURE.get(section(cluster, "spec", "cluster").get("source", "")) if cluster else None
        if cluster is None or made is None or of(made.kind) != which[0]:
            return False
        return labels_of(self._objects[which]).get(labels.OWNER_UID) == cluster["metadata"]["uid"]

    async def _renew(self, which: _Which) -> None:
        source = self._sources[which]
        try:
            if source.named is not None:
                account, cluster = source.named
                found = await self.accounts.endpoint(account, cluster)
                source.endpoint = {"server": found.server, "authority": found.authority, "cluster": cluster}
            else:
                account, cluster = ACCOUNTS[which[0]](self._objects[which]), source.endpoint["cluster"]
            token = await self.accounts.token(account, cluster)
        except Exception as error:  # noqa: BLE001 - one object that nobody can read holds up no other cluster's token
            refused = isinstance(error, ClientError)
            said = KubeconfigError(f"{source}: no token can be made for it: {error}") if refused else error
            self._failed[which] = self.clock()
            self.known.failed(source.name, source, said)
            return
        self._failed.pop(which, None)
        if self._sources.get(which) is source:  # else it went, or is elsewhere, in the meantime
            source.renewed(token, self.clock())
            self.known.follow(source.name, source)

    def _seen(self, kind: ResourceType, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        owned = new is not None and labels_of(new).get(labels.OWNER_KIND) == "InferenceCluster"
        which = kind, key.name
        if key.namespace != names.SYSTEM_NAMESPACE or (new is not None and not owned):
            return
        if new is None or not (endpoint := section(new, "status", "endpoint")):
            source = self._sources.pop(which, None)
            if source is not None and source.token:  # else the way there is not ours
                self.known.unfollow(key.name)
            return
        self._objects[which] = new
        before = self._sources.get(which)
        if before is None or dict(before.endpoint) != dict(endpoint):
            self._sources[which] = TokenKubeconfig(f"{kind.kind} {key}", key.name, endpoint)

    def _named_seen(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        """Whoever is not named on a cloud any more goes another way, or is gone: the connections tell which."""
        which, named = (CLUSTERS, key.name), named_on_cloud(new) if new is not None else None
        before = self._sources.get(which)
        if named is None:
            self._sources.pop(which, None)
        elif before is None or before.named != named:
            self._sources[which] = TokenKubeconfig(f"InferenceCluster {key.name}", key.name, {}, named)
