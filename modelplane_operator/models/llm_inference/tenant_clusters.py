"""Connect to clusters by kubeconfigs in tenants' own Secrets, for their LLMInferences only.

A tenant who writes such a Secret decides where the operator connects to and what answers. So it is restricted like
users' endpoints: it must lead outside the hub, checked by the addresses that are dialled, without a proxy, and
without files or commands (`access.py`). Responses are parsed in a process of its own (`channel_process.py`).
Nothing is watched. A connection belongs to the namespace of its Secret: its name includes the Secret's, so no other
namespace can use it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Final

from kubeloop.cache.connection import Connection
from kubeloop.cache.fleet import Fleet
from kubeloop.cache.initial_sync import INITIAL_SYNCS
from kubeloop.cache.prober import Health
from kubeloop.cache.store import Store
from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.client.channel_process import ChannelProcess
from kubeloop.client.limits import KIB, MIB, Bucket, ServerLimits, Share
from kubeloop.errors import KubeconfigError
from kubeloop.objects import Key, Manifest, section
from modelplane_operator.routing.endpoint.backend_url import InvalidUrl, Reach, check_resolved, leads_nowhere, parse_url
from modelplane_operator.routing.endpoint.hub_networks import HubRanges

PREFIX: Final = "llminference:"  # not a valid name of an InferenceCluster or ServingStack
"""Prefix of connection names."""
KEY: Final = "kubeconfig"
"""Key of the Secret."""
LARGEST: Final = 64 * KIB
"""Largest encoded kubeconfig, in bytes."""
MOST_NODES: Final = 500  # one with a single cluster has some forty
"""Largest number of YAML nodes in a kubeconfig."""
REMEMBERED: Final = 256  # an LLMInference is reconciled every few seconds
"""Number of cached parse results."""
OF_A_NAMESPACE: Final = 16
"""Number of connections that a namespace may have."""
UNUSED: Final = 600.0  # LLMInferences use theirs every minute
"""Seconds after which an unused connection is closed."""
ROUND: Final = 60.0
"""Seconds between two searches for unused connections."""
LIMITS: Final = ServerLimits(answer=2 * MIB, page=2 * MIB, listing=2 * MIB, objects=100, cached=MIB)
"""Limits on responses of tenants' API servers."""
EVENTS: Final = 20
"""Events per second that one API server may cause, and their burst."""
MAX_ADDRESSES: Final = 16  # each is compared with all ranges of the hub
"""Number of addresses that a host name may have."""


def connection_name(secret: Key) -> str:
    """Return the name of the connection for a Secret."""
    return f"{PREFIX}{secret}"


def secret_of(connection: str) -> Key | None:
    """Return the Secret of a connection; None for a connection of the fleet."""
    namespace, _, name = connection.removeprefix(PREFIX).partition("/")
    return Key(namespace, name) if connection.startswith(PREFIX) else None


@dataclass(slots=True)
class TenantClusters:
    """Connections to tenants' clusters."""

    now: Callable[[], float]
    """Monotonic clock, which tests replace."""
    ranges: HubRanges
    """Source of the hub's own address ranges."""
    reach: Reach
    """Addresses that kubeconfigs may lead to."""
    changed: Callable[[str], None]
    """Called with the name of a connection that begins or ceases to answer."""
    plain_http: bool = field(default=False, kw_only=True)
    """True if kubeconfigs may use HTTP."""
    fleet: Fleet = field(init=False)
    """Connections by name."""
    process: ChannelProcess = field(init=False)
    """Process in which responses are parsed."""
    _store: Store = field(init=False)
    """Informers of the connections."""
    _slots: asyncio.Semaphore = field(init=False)
    """Limit on concurrent initial lists."""
    _used: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """Time of the last use of each connection."""
    _read: dict[str, Access | str] = field(default_factory=dict[str, Access | str], init=False)
    """Parsed kubeconfigs, or the reasons why they are invalid, by their encoded text."""

    def __post_init__(self) -> None:
        """Create the fleet of tenants' clusters, apart from the hub's own fleet."""
        self._store = Store(self.now)
        self._slots = asyncio.Semaphore(INITIAL_SYNCS)  # separate from the fleet's, which slow tenants must not delay
        self.process = ChannelProcess("the process for clusters of tenants", self._refusal, random.random)
        self.fleet = Fleet(self._store, self._create_connection)

    async def run(self) -> None:
        """Run the connections and close unused ones, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.process.run(), name="process for tenant clusters")
            group.create_task(self.fleet.run(), name="tenant clusters")
            while True:
                await asyncio.sleep(ROUND)
                self.let_go()

    def let_go(self) -> None:
        """Close connections that were not used for UNUSED seconds."""
        for name in [name for name, used in self._used.items() if self.now() - used > UNUSED]:
            del self._used[name]
            self.fleet.remove(name)

    async def access(self, secret: Key, manifest: Manifest) -> Access:
        """Return how to reach the cluster of a kubeconfig in a Secret.

        Raise KubeconfigError if it is not acceptable.
        """
        hub = await self.ranges.find()
        self.reach = self.reach.of_users(hub.services, hub.pods, hub.nodes)
        encoded = section(manifest, "data").get(KEY)
        if not isinstance(encoded, str):
            raise KubeconfigError(f"Secret {secret} has no key {KEY}")
        if len(encoded) > LARGEST:
            raise KubeconfigError(f"Secret {secret}: its {KEY} has more than {LARGEST // KIB} KiB")
        if (read := self._read.get(encoded)) is None:
            if len(self._read) >= REMEMBERED:
                del self._read[next(iter(self._read))]
            read = self._read[encoded] = self._parse(encoded)
        if isinstance(access := read, str):
            raise KubeconfigError(f"Secret {secret}: {access}")
        if access.proxy:
            raise KubeconfigError(
                f"Secret {secret}: the kubeconfig sets proxy-url, which the operator does not use: remove it"
            )
        if isinstance(url := parse_url(access.server, self.reach), InvalidUrl):
            raise KubeconfigError(f"Secret {secret}: the kubeconfig's server cannot be used: {url.message}")
        return access

    def connect(self, secret: Key, access: Access) -> str:
        """Return the name of the connection for a Secret, opened if necessary.

        Raise KubeconfigError if its namespace has too many connections.
        """
        name = connection_name(secret)
        if name not in self._used:
            in_namespace = [
                used_name for used_name in self._used if used_name.startswith(f"{PREFIX}{secret.namespace}/")
            ]
            if len(in_namespace) >= OF_A_NAMESPACE:
                raise KubeconfigError(
                    f"LLMInferences of namespace {secret.namespace} already use {OF_A_NAMESPACE} kubeconfigs, which is"
                    " the limit: use one of these"
                )
        elif (existing := self.fleet.find(name)) is not None and existing.server != access.server:
            self.fleet.remove(name)  # it is another cluster: nothing of the old connection may be reused
        self._used[name] = self.now()
        self.fleet.set(name, access)
        return name

    def _parse(self, encoded: str) -> Access | str:
        """Parse a base64-encoded kubeconfig. Return the access, or the reason why it is invalid."""
        try:
            text = base64.b64decode(encoded, validate=True)
            return read_kubeconfig(text, plain_http=self.plain_http, most=MOST_NODES)
        except binascii.Error:
            return f"key {KEY} is not base64"
        except KubeconfigError as error:
            return str(error)

    def _refusal(self, name: str, addresses: Sequence[str]) -> str:
        """Return why the addresses of a host name may not be dialled; "" if they may."""
        if len(addresses) > MAX_ADDRESSES:
            return leads_nowhere(name).message
        if not addresses and not self.reach.allows(name):
            return leads_nowhere(name).message
        with suppress(ValueError):
            problem = check_resolved(name, [ip_address(address.partition("%")[0]) for address in addresses], self.reach)
            return problem.message if problem else ""
        return f"{name} resolves to an invalid address"

    def _create_connection(self, name: str, access: Access) -> Connection:
        """Return a connection with the limits for tenants' clusters."""

        def notify(connection: str, _: Health) -> None:
            self.changed(connection)

        return Connection(
            name,
            access,
            (),
            self._store,
            jitter=random.random,
            on_health=notify,
            slots=self._slots,
            limits=LIMITS,
            share=Share(self.now, Bucket(EVENTS, EVENTS)),
            opens=self.process.open,
        )
