"""Clusters of tenants: those to which the kubeconfigs in their own Secrets lead, for their LLMInferences alone.

Whoever writes such a Secret decides where the operator connects to, and what answers. So it is held to what endpoints
of users are held to: it leads outside, by the addresses that are dialled and not by those of before, through no proxy,
and nothing of it is a file or a command (`access.py`). What answers is read in a process of its own
(`channel_process.py`). Nothing is watched there. A connection belongs to the namespace
of its Secret: the name of the one is part of the other's, and nobody else has a way to ask for it.
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
from modelplane_operator.routing.endpoint.backend_url import InvalidUrl, Reach, leads_nowhere, misled, parse_url
from modelplane_operator.routing.endpoint.hub_networks import HubRanges

PREFIX: Final = "llminference:"  # no InferenceCluster can be called that, and no ServingStack
KEY: Final = "kubeconfig"
LARGEST: Final = 64 * KIB
MOST_NODES: Final = 500  # of a kubeconfig's YAML: one that leads to one cluster has some forty
REMEMBERED: Final = 256  # readings of kubeconfigs: an LLMInference is looked at every few seconds
OF_A_NAMESPACE: Final = 16
UNUSED: Final = 600.0  # seconds; whoever uses one asks every minute
ROUND: Final = 60.0
LIMITS: Final = ServerLimits(answer=2 * MIB, page=2 * MIB, listing=2 * MIB, objects=100, kept=MIB)
EVENTS: Final = 20
JUDGED: Final = 16  # addresses of one name: each is compared with all ranges of the hub, by the leader


def connection_name(secret: Key) -> str:
    return f"{PREFIX}{secret}"


def secret_of(connection: str) -> Key | None:
    """The Secret behind a connection; None for one of the fleet's."""
    namespace, _, name = connection.removeprefix(PREFIX).partition("/")
    return Key(namespace, name) if connection.startswith(PREFIX) else None


@dataclass(slots=True)
class TenantClusters:
    """`changed` is told of a connection that begins or ceases to answer."""

    now: Callable[[], float]
    ranges: HubRanges
    reach: Reach
    changed: Callable[[str], None]
    plain_http: bool = field(default=False, kw_only=True)
    fleet: Fleet = field(init=False)
    process: ChannelProcess = field(init=False)
    """Where these servers are read."""
    _store: Store = field(init=False)
    _slots: asyncio.Semaphore = field(init=False)
    _used: dict[str, float] = field(default_factory=dict[str, float], init=False)
    _read: dict[str, Access | str] = field(default_factory=dict[str, Access | str], init=False)
    """What kubeconfigs say, or why they are refused, by their text."""

    def __post_init__(self) -> None:
        self._store = Store(self.now)
        self._slots = asyncio.Semaphore(INITIAL_SYNCS)  # their own: slow ones keep no cluster of the fleet waiting
        self.process = ChannelProcess("the process for clusters of tenants", self._refusal, random.random)
        self.fleet = Fleet(self._store, self._connected)

    async def run(self) -> None:
        """Stay connected while somebody uses it, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.process.run(), name="process for tenant clusters")
            group.create_task(self.fleet.run(), name="tenant clusters")
            while True:
                await asyncio.sleep(ROUND)
                self.let_go()

    def let_go(self) -> None:
        """Close what nobody has asked for lately."""
        for name in [name for name, used in self._used.items() if self.now() - used > UNUSED]:
            del self._used[name]
            self.fleet.remove(name)

    async def access(self, secret: Key, manifest: Manifest) -> Access:
        """How the kubeconfig in a Secret says that its cluster is reached; raises KubeconfigError."""
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
            read = self._read[encoded] = self._said(encoded)
        if isinstance(access := read, str):
            raise KubeconfigError(f"Secret {secret}: {access}")
        if access.proxy:
            raise KubeconfigError(f"Secret {secret}: the kubeconfig asks for a proxy, which is not used here")
        if isinstance(found := parse_url(access.server, self.reach), InvalidUrl):
            raise KubeconfigError(f"Secret {secret}: the kubeconfig's server cannot be used: {found.message}")
        return access

    def connect(self, secret: Key, access: Access) -> str:
        """The connection of a Secret, leading there; raises KubeconfigError when its namespace has too many."""
        name = connection_name(secret)
        if name not in self._used:
            of_namespace = [one for one in self._used if one.startswith(f"{PREFIX}{secret.namespace}/")]
            if len(of_namespace) >= OF_A_NAMESPACE:
                raise KubeconfigError(
                    f"Namespace {secret.namespace} has LLMInferences with {OF_A_NAMESPACE} kubeconfigs, "
                    "which is as many as a namespace may have"
                )
        elif (known := self.fleet.find(name)) is not None and known.server != access.server:
            self.fleet.remove(name)  # another cluster: nothing of the way to the last one is to be used
        self._used[name] = self.now()
        self.fleet.set(name, access)
        return name

    def _said(self, encoded: str) -> Access | str:
        try:
            text = base64.b64decode(encoded, validate=True)
            return read_kubeconfig(text, plain_http=self.plain_http, most=MOST_NODES)
        except binascii.Error:
            return f"key {KEY} is not base64"
        except KubeconfigError as error:
            return str(error)

    def _refusal(self, name: str, addresses: Sequence[str]) -> str:
        if len(addresses) > JUDGED:
            return leads_nowhere(name).message
        if not addresses and not self.reach.allows(name):
            return leads_nowhere(name).message
        with suppress(ValueError):
            found = misled(name, [ip_address(one.partition("%")[0]) for one in addresses], self.reach)
            return found.message if found else ""
        return f"{name} leads to what is no address"

    def _connected(self, name: str, access: Access) -> Connection:
        def heard(of: str, _: Health) -> None:
            self.changed(of)

        return Connection(
            name,
            access,
            (),
            self._store,
            chance=random.random,
            on_health=heard,
            slots=self._slots,
            limits=LIMITS,
            share=Share(self.now, Bucket(EVENTS, EVENTS)),
            opens=self.process.open,
        )
