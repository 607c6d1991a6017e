"""The key service: what it makes of Secrets on a real API server, of one that is gone, and of what it is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import aiohttp
import pytest
import yaml

from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.client.kube import Kube, connect
from kubeloop.objects import Key
from localfleet.network import free_ports
from modelplane_operator.routing.service.api_keys import MOST, path_of, signing_key
from modelplane_operator.routing.service.key_service import (
    FRESH,
    LIMITS,
    OVERDUE,
    Keyring,
    UnknownKeysError,
    serve_keys,
)
from tests.support.api import Api
from tests.support.manifests import Manifest
from tests.support.secrets import secret_of, signing_secret

pytestmark = pytest.mark.fleet

TEAM = "default"
SYSTEM = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "modelplane-system"}}
SIGNS = signing_secret()["metadata"]
NOWHERE = """
current-context: a
contexts: [{name: a, context: {cluster: a, user: a}}]
clusters: [{name: a, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: a, user: {token: a}}]
"""


@pytest.fixture(autouse=True)
async def nothing_signed(api: Api) -> None:
    """Take away what another test has paths signed by."""
    await api.kubectl("delete", "secret", SIGNS["name"], f"--namespace={SIGNS['namespace']}", "--ignore-not-found")


@pytest.fixture
async def gone() -> AsyncIterator[Kube]:
    """An API server that does not answer."""
    async with connect(read_kubeconfig(NOWHERE)) as nobody:
        yield nobody


async def apply(api: Api, *manifests: Manifest) -> None:
    await api.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(manifests))


async def holds(api: Api, name: str, **keys: str) -> Key:
    await api.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(secret_of(TEAM, name, **keys)))
    return Key(TEAM, name)


async def test_a_key_of_any_secret_is_taken_and_no_other(api: Api, access: Access, kube: Kube) -> None:
    keyring = Keyring(kube, lambda: 0.0)
    first, second = await holds(api, "first", a="k"), await holds(api, "second", b="l\n")
    missing, impossible = Key(TEAM, "missing"), Key(TEAM, "..")

    assert [await keyring.allows(key, (first, second)) for key in ("k", "l", "m", "")] == [True, True, False, False]
    assert not await keyring.allows("l", (first,))
    assert await keyring.allows("k", (missing, first))
    assert not await keyring.allows("k", (missing, impossible))
    assert not await keyring.allows("k", ())


async def test_what_was_read_holds_for_a_second_and_no_longer(api: Api, kube: Kube) -> None:
    now = 0.0
    keyring = Keyring(kube, lambda: now)
    changing = await holds(api, "changing", a="old")
    assert await keyring.allows("old", (changing,))
    await api.kubectl("-n", TEAM, "delete", "secret", "changing")

    now = FRESH / 2
    assert await keyring.allows("old", (changing,))
    now = FRESH
    assert not await keyring.allows("old", (changing,))


async def test_while_no_api_server_answers_the_last_word_holds(api: Api, kube: Kube, gone: Kube) -> None:
    now = 0.0
    keyring = Keyring(kube, lambda: now)
    known, never_read = await holds(api, "known", a="k"), await holds(api, "unread", a="l")
    assert await keyring.allows("k", (known,))

    now, keyring.kube = 10.0, gone
    assert await keyring.allows("k", (known, never_read))
    assert not await keyring.allows("m", (known,))
    with pytest.raises(UnknownKeysError):
        await keyring.allows("m", (known, never_read))


async def test_while_the_api_server_answers_others_the_last_word_holds_for_some_seconds(
    api: Api,
    kube: Kube,
    gone: Kube,
) -> None:
    """Whoever keeps the reading of one Secret from coming through must not keep a removed key valid."""
    now = 0.0
    keyring = Keyring(kube, lambda: now)
    slow, other = await holds(api, "slow", a="k"), await holds(api, "other", b="l")
    assert await keyring.allows("k", (slow,))
    now, keyring.kube = 5000.0, gone
    with pytest.raises(UnknownKeysError):  # nobody knows what has become of it in more than an hour
        await keyring.allows("k", (slow,))

    now, keyring.kube = 5001.0, kube
    assert await keyring.allows("k", (slow,))
    now, keyring.kube = 5500.0, gone  # from here on nothing is said of it
    assert await keyring.allows("k", (slow,))
    now, keyring.kube = 5502.0 + OVERDUE, kube
    assert await keyring.allows("l", (other,))
    now, keyring.kube = 5503.0 + OVERDUE, gone
    with pytest.raises(UnknownKeysError):
        await keyring.allows("k", (slow,))


async def test_a_secret_that_may_no_longer_be_read_holds_no_key(api: Api, access: Access, kube: Kube) -> None:
    now = 0.0
    keyring = Keyring(kube, lambda: now)
    known = await holds(api, "withdrawn", a="k")
    assert await keyring.allows("k", (known,))
    await api.kubectl("create", "serviceaccount", "stranger", f"-n{TEAM}")
    token = await kube.request_token(Key(TEAM, "stranger"), 600)
    async with connect(replace(access, token=token, certificate="", key="")) as stranger:
        now, keyring.kube = FRESH, stranger
        assert not await keyring.allows("k", (known,))


async def test_a_tenants_secrets_of_tiny_values_keep_nobody_elses_key_valid(api: Api, kube: Kube) -> None:
    """Nor do they count themselves: they are told by their size, before anything of them is read."""
    async with connect(kube.access, limits=LIMITS) as bounded:
        keyring = Keyring(bounded, time.monotonic)
        many = [Key(TEAM, f"tiny-{number}") for number in range(4)]
        data = {f"k{number}": "aw==" for number in range(20_000)}
        for key in many:
            metadata = {"name": key.name, "namespace": TEAM}
            await kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})
        few = await holds(api, "some-more", **{f"k{number}": "m" for number in range(MOST + 1)})
        assert not await keyring.allows("k", many)
        assert not await keyring.allows("m", (few,))
        neighbour = await holds(api, "neighbour", a="good")

        async def flood() -> None:
            while True:
                assert not await keyring.allows("k", many)
                await asyncio.sleep(0)

        floods = [asyncio.create_task(flood()) for _ in range(16)]
        assert await keyring.allows("good", (neighbour,))
        await api.kubectl("-n", TEAM, "delete", "secret", neighbour.name)
        async with asyncio.timeout(60):
            while await keyring.allows("good", (neighbour,)):  # noqa: ASYNC110 - nothing tells of it
                await asyncio.sleep(0.01)
        for one in floods:
            one.cancel()
        ended = await asyncio.gather(*floods, return_exceptions=True)
        assert {type(one) for one in ended} == {asyncio.CancelledError}
        assert keyring._digests == 0


async def test_an_answer_says_what_is_wrong_as_openais_api_does(api: Api, kube: Kube, gone: Kube) -> None:
    (port,) = free_ports(1)
    asked = await holds(api, "asked", a="k")
    keyring = Keyring(kube, lambda: 0.0)
    path = path_of(TEAM, (asked.name,))
    async with serve_keys(("127.0.0.1", port), keyring), aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:

        async def answer(path: str, **headers: str) -> tuple[int, str]:
            async with session.post(path, headers=headers) as told:
                body = await told.json() if told.content_type == "application/json" else {}
                return told.status, body.get("error", {}).get("code", "")

        right, wrong = {"Authorization": "Bearer k"}, {"Authorization": "Bearer x"}
        assert await answer(path, **right) == (200, "")
        assert await answer(path, **{"x-api-key": "k"}) == (200, "")
        assert await answer(path, **wrong, **{"x-api-key": "k"}) == (200, "")
        assert await answer(path, **wrong) == (401, "invalid_api_key")
        assert await answer(path) == (401, "missing_api_key")
        assert await answer(f"{path}?/{TEAM}", **right) == (200, "")
        assert await answer("/keys/", **right) == (401, "invalid_api_key")
        assert await answer("/", **right) == (403, "not_found")
        keyring.kube = gone
        assert await answer(path_of(TEAM, ("another",)), **right) == (503, "keys_unavailable")


async def test_nobody_asks_about_a_secret_that_the_operator_has_not_named(
    api: Api,
    kube: Kube,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or whoever reaches the port finds out what is in any Secret that the key service may read."""
    monkeypatch.setattr("modelplane_operator.routing.service.key_service.PATIENCE", 30.0)  # on a busy machine, too
    (port,) = free_ports(1)
    now = 0.0
    asked = await holds(api, "not-named", a="k")
    await apply(api, SYSTEM)
    of_the_operator = secret_of("modelplane-system", "kubeconfig", a="k")
    right = {"Authorization": "Bearer k"}
    signed = path_of(TEAM, (asked.name,), signing_key(signing_secret()))

    async def told(*secrets: Manifest) -> None:
        nonlocal now
        await apply(api, *secrets)
        now += FRESH

    async with (
        serve_keys(("127.0.0.1", port), Keyring(kube, lambda: now)),
        aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session,
    ):

        async def answers(*paths: str) -> list[int]:
            return [(await session.post(path, headers=right)).status for path in paths]

        await told(of_the_operator)
        inward = (path_of("modelplane-system", ("kubeconfig",)), path_of("kube-system", ("kubeconfig",)))
        assert await answers(path_of(TEAM, (asked.name,)), signed, *inward) == [200, 200, 401, 401], "as before"

        await told(signing_secret())
        assert await answers(path_of(TEAM, (asked.name,)), signed) == [200, 200], "guards of before are left"
        await told(signing_secret(until="2999-01-01T00:00:00+00:00"))
        assert await answers(path_of(TEAM, (asked.name,)), signed) == [200, 200], "gateways still follow"

        await told(signing_secret(until="2026-01-01T00:00:00+00:00"))
        forged = path_of(TEAM, (asked.name,), signing_key(signing_secret(key="guessed")))
        assert await answers(signed, path_of(TEAM, (asked.name,)), forged, f"{signed}/", *inward) == [200, *[403] * 5]


async def test_while_nobody_says_what_signs_paths_the_last_word_holds(
    api: Api,
    kube: Kube,
    gone: Kube,
) -> None:
    now = 0.0
    named = path_of(TEAM, ("a",))
    new, known = Keyring(gone, lambda: now), Keyring(kube, lambda: now)
    await apply(api, SYSTEM, signing_secret(until="2026-01-01T00:00Z"))
    assert await known.secrets_at(named) is None

    now, known.kube = FRESH, gone
    assert await known.secrets_at(named) is None
    with pytest.raises(UnknownKeysError):
        await new.secrets_at(named)


async def test_an_api_server_that_takes_connections_and_says_nothing_holds_up_each_request_once(
    api: Api,
    kube: Kube,
) -> None:
    asked = 0

    async def unreachable(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.read()
        writer.close()

    keyring = Keyring(kube, time.monotonic)
    known, never_read = await holds(api, "of-before", a="k"), Key(TEAM, "unheard-of")
    assert await keyring.allows("k", (known,))
    await asyncio.sleep(FRESH)
    async with await asyncio.start_server(unreachable, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(read_kubeconfig(NOWHERE.replace("127.0.0.1:1", f"127.0.0.1:{port}"))) as hanging:
            keyring.kube = hanging
            assert all(await asyncio.gather(*(keyring.allows("k", (known,)) for _ in range(20))))
            found = await asyncio.gather(
                *(keyring.allows("k", (never_read,)) for _ in range(20)), return_exceptions=True
            )
    assert {type(one) for one in found} == {UnknownKeysError}
    assert asked <= 8, "each of those who wait has waited for an answer of its own"
