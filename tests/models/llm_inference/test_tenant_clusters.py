"""A kubeconfig of a tenant leads outside, and to nobody else's cluster."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from kubeloop.client import channel_process
from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.client.kube import Kube
from kubeloop.errors import Forbidden, KubeconfigError, Unreachable
from kubeloop.objects import Key, Manifest
from modelplane_operator.models.llm_inference import tenant_clusters
from modelplane_operator.models.llm_inference.tenant_clusters import (
    LARGEST,
    MAX_ADDRESSES,
    OF_A_NAMESPACE,
    UNUSED,
    TenantClusters,
    connection_name,
    secret_of,
)
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.endpoint.hub_networks import HubRanges
from tests.support.api_fixtures import protocol  # noqa: F401 - a fixture
from tests.support.waiting import until

DEV = Key("team-a", "dev")


def tenants(*allowed: str, now: list[float] | None = None) -> TenantClusters:
    def no_hub() -> Kube:
        raise Forbidden("the hub shows nobody its networks")

    clock = now or [0.0]
    return TenantClusters(lambda: clock[0], HubRanges(no_hub, lambda: 0.0), Reach(allowed), lambda _: None)


async def test_while_nobody_knows_what_is_inside_the_hub_no_kubeconfig_is_followed() -> None:
    def no_hub() -> Kube:
        raise Unreachable("no hub")

    known = TenantClusters(lambda: 0.0, HubRanges(no_hub, lambda: 0.0), Reach(), lambda _: None)
    with pytest.raises(Unreachable):
        await known.access(DEV, secret())


def secret(server: str = "https://dev.example.com", cluster: str = "", user: str = "token: a") -> Manifest:
    text = f"""
current-context: a
contexts: [{{name: a, context: {{cluster: a, user: a}}}}]
clusters: [{{name: a, cluster: {{server: "{server}"{cluster}}}}}]
users: [{{name: a, user: {{{user}}}}}]
"""
    return {"data": {"kubeconfig": base64.b64encode(text.encode()).decode()}}


async def test_an_address_outside_can_be_used() -> None:
    assert (await tenants().access(DEV, secret())).server == "https://dev.example.com"


@pytest.mark.parametrize(
    ("manifest", "because"),
    [
        (secret("https://127.0.0.1:6443"), "the gateway's own machine"),
        (secret("https://169.254.169.254"), "link-local"),
        (secret("https://10.0.0.1:6443"), "a private address"),
        (secret("https://kubernetes.default.svc"), "a name inside the cluster"),
        (secret("https://metadata.google.internal"), "gives out credentials"),
        (secret("http://dev.example.com"), "http://"),
        (secret(cluster=", proxy-url: 'http://10.0.0.1:3128'"), "proxy-url"),
        (secret(user="exec: {command: sh}"), "exec"),
        (secret(user="tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token"), "names a file"),
        (secret(user="token: a, as: admin"), "as"),
        (secret("https://[::ffff:169.254.169.254]"), "stands for an IPv4 address"),
        (secret("https://2852039166"), "four decimal numbers"),
        (secret("https://[fd00::1]"), "a private address"),
        (secret("https://a:b@dev.example.com"), "more than a host, a port and a path"),
        (secret("https://dev.example.com", ", certificate-authority: /etc/ssl/ca.pem"), "names a file"),
        (secret("https://dev.example.com", ", insecure-skip-tls-verify: 'false'"), "insecure-skip-tls-verify"),
        (secret(user="client-certificate: /etc/ssl/a.pem, client-key: /etc/ssl/a.key"), "names a file"),
        (secret(user="auth-provider: {name: gcp}"), "auth-provider"),
        (secret(user="token: a, as-groups: ['system:masters']"), "as-groups"),
        (secret(user="token: &a [b, b], c: [*a, *a]"), "alias"),
        (secret(user="token: 59:59:59"), "token"),
        (secret(user=f"token: a, b: [{'c,' * 500}]"), "more than 500 values"),
        ({"data": {"other": ""}}, "no key kubeconfig"),
        ({"data": {"kubeconfig": "!"}}, "not base64"),
        ({"data": {"kubeconfig": "A" * (LARGEST + 1)}}, "more than 64 KiB"),
        ({}, "no key kubeconfig"),
    ],
)
async def test_what_leads_inside_or_asks_for_what_is_ours_is_refused(manifest: Manifest, because: str) -> None:
    with pytest.raises(KubeconfigError, match=re.escape(because)):
        await tenants().access(DEV, manifest)


@pytest.mark.parametrize("server", ["https://dev.example.com", "ftp://dev.example.com"])
async def test_what_a_kubeconfig_says_is_read_once_and_forgotten_when_others_are_read(
    monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """An LLMInference is looked at every few seconds, and there may be thousands."""
    read = list[bytes | str]()

    def counted(text: bytes | str, **how: Any) -> Access:
        read.append(text)
        return read_kubeconfig(text, **how)

    monkeypatch.setattr(tenant_clusters, "read_kubeconfig", counted)
    monkeypatch.setattr(tenant_clusters, "REMEMBERED", 2)
    known = tenants()

    async def look(manifest: Manifest) -> None:
        with suppress(KubeconfigError):
            await known.access(DEV, manifest)

    for _ in range(3):
        await look(secret(server))
    assert len(read) == 1
    for other in ("b", "c"):
        await look(secret(server, user=f"token: {other}"))
    await look(secret(server))
    assert len(read) == 4


async def test_the_settings_may_allow_a_private_network() -> None:
    assert (await tenants("10.0.0.0/8").access(DEV, secret("https://10.0.0.1:6443"))).server == "https://10.0.0.1:6443"


@asynccontextmanager
async def running(known: TenantClusters) -> AsyncIterator[TenantClusters]:
    task = asyncio.create_task(known.run())
    try:
        yield known
    finally:
        task.cancel()
        await asyncio.wait([task])


async def error_of(known: TenantClusters, access: Access) -> str:
    """Connect to a cluster, and return why that fails."""
    known.connect(DEV, access)
    connection = known.fleet.find(connection_name(DEV))
    assert connection is not None
    await until(lambda: connection.health.error is not None, "it to fail")
    return str(connection.health.error)


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"], indirect=True)
@pytest.mark.parametrize("name", ["localhost", "no-such-name.invalid"])
async def test_a_name_that_comes_to_lead_inside_is_not_dialled(name: str) -> None:
    """By the addresses that are dialled: between a check and a call a name may have got another.

    Which names there are inside, nobody finds out by that.
    """
    connected = asyncio.Event()

    async def listening(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.set()
        writer.close()

    async with await asyncio.start_server(listening, "127.0.0.1", 0) as server, running(tenants()) as known:
        port = server.sockets[0].getsockname()[1]
        error = await error_of(known, Access(f"https://{name}:{port}"))

    assert f"{name} does not lead to 1 to 64 public addresses" in error
    assert not connected.is_set()


def test_of_a_name_with_many_addresses_none_is_judged() -> None:
    """Each is compared with all ranges of the hub, on the loop of the leader."""
    known = tenants()
    outside = [f"8.8.8.{number}" for number in range(MAX_ADDRESSES + 1)]

    assert known._refusal("a.example.com", outside[:MAX_ADDRESSES]) == ""  # pyright: ignore[reportPrivateUsage]
    said = known._refusal("a.example.com", outside)  # pyright: ignore[reportPrivateUsage]
    assert "a.example.com does not lead to 1 to 64 public addresses" in said


async def test_a_name_that_is_allowed_and_does_not_exist_says_so() -> None:
    async with running(tenants(".invalid")) as known:
        assert "not known to DNS" in await error_of(known, Access("https://no-such-name.invalid"))


async def test_what_these_servers_send_is_read_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever costs, as a long chain of certificates does, costs that one: `test_channel_process.py`."""
    monkeypatch.setattr(channel_process, "MODULE", "tests.support.garbled_child")
    async with running(tenants("127.0.0.0/8")) as known:
        error = await error_of(known, Access("https://127.0.0.1:1"))

    assert "the process for clusters of tenants was ended, as it said what it may not" in error


def test_a_connection_belongs_to_one_namespace() -> None:
    known, access = tenants(), Access("https://dev.example.com", server_name="a")

    mine = known.connect(DEV, access)
    theirs = known.connect(Key("team-b", "dev"), Access("https://dev.example.com", server_name="b"))

    assert mine != theirs
    assert [secret_of(one) for one in (mine, theirs)] == [DEV, Key("team-b", "dev")]
    assert secret_of("team-a/dev") is None


def test_a_secret_that_leads_elsewhere_has_a_connection_anew() -> None:
    known = tenants()
    name = known.connect(DEV, Access("https://a.example.com"))
    before = known.fleet.find(name)

    known.connect(DEV, Access("https://b.example.com"))

    assert known.fleet.find(name) is not before


def test_a_namespace_has_so_many_and_other_namespaces_theirs() -> None:
    known = tenants()
    for number in range(OF_A_NAMESPACE):
        known.connect(Key("team-a", f"dev-{number}"), Access("https://dev.example.com"))

    with pytest.raises(KubeconfigError, match="which is the limit"):
        known.connect(DEV, Access("https://dev.example.com"))
    assert known.connect(Key("team-b", "dev"), Access("https://dev.example.com")) == connection_name(
        Key("team-b", "dev")
    )


def test_what_nobody_uses_any_more_is_closed() -> None:
    now = [0.0]
    known = tenants(now=now)
    name = known.connect(DEV, Access("https://dev.example.com"))

    now[0] = UNUSED + 1
    known.let_go()

    assert known.fleet.find(name) is None
