"""Names that users write lead to the object of that name, or to none: never to another, whoever answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.access import Access
from kubeloop.client.kube import Kube, connect
from kubeloop.client.wire import Request
from kubeloop.errors import InvalidName, KubeconfigError, ServerFault
from kubeloop.objects import Key
from kubeloop.types import CONFIG_MAP, HTTP_ROUTE, NAMESPACE, NODE, SECRET
from tests.support.api_fixtures import ConfigMap, Manifest

LEADS_ELSEWHERE = (
    "",
    ".",
    "..",
    "../../team-b/secrets/openai",
    "..%2F..%2Fteam-b%2Fsecrets%2Fopenai",
    "%2e%2e",
    "openai/status",
    "/openai",
    "openai?watch=true",
    "openai#",
    "open ai",
    "openai\n",
    "openai\x00",
    "ópenai",
    "a" * 254,
)

# Paths ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LEADS_ELSEWHERE, ids=repr)
def test_what_cannot_be_a_name_is_in_no_path(name: str) -> None:
    with pytest.raises(InvalidName, match="cannot be the name or namespace of a Secret"):
        SECRET.path("team-a", name)
    with pytest.raises(InvalidName):
        NODE.path(name=name)
    if name:  # else it means all namespaces
        with pytest.raises(InvalidName):
            SECRET.path(name)


def test_one_object_of_a_namespace_has_a_namespace() -> None:
    with pytest.raises(InvalidName):
        SECRET.path("", "openai")


@given(namespace=st.text(), name=st.text())
def test_a_path_has_the_segments_that_it_was_made_of(namespace: str, name: str) -> None:
    try:
        path = SECRET.path(namespace, name)
    except InvalidName:
        return
    unquoted = [segment.replace("%3A", ":") for segment in path.split("/")]
    assert unquoted == ["", "api", "v1", "namespaces", namespace, "secrets", name]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (SECRET.path("team-a", "openai"), "/api/v1/namespaces/team-a/secrets/openai"),
        (SECRET.path(), "/api/v1/secrets"),
        (NAMESPACE.path(name="team-a", subresource="finalize"), "/api/v1/namespaces/team-a/finalize"),
        (NODE.path("ignored", "a"), "/api/v1/nodes/a"),
        (HTTP_ROUTE.path("t", "a.b"), "/apis/gateway.networking.k8s.io/v1/namespaces/t/httproutes/a.b"),
        (CONFIG_MAP.path("t", "system:a"), "/api/v1/namespaces/t/configmaps/system%3Aa"),
    ],
)
def test_where_objects_are(path: str, expected: str) -> None:
    assert path == expected


# On the wire ----------------------------------------------------------------------------------------------------------

Liar = tuple[Access, list[str], dict[str, Any]]
"""How it is reached, what was asked of it, and what it answers under `is`."""
KUBECONFIGS: Manifest = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"namespace": "modelplane-system", "name": "east"},
}


@pytest.fixture
async def liar() -> AsyncIterator[Liar]:
    """A server that gives one answer to everything."""
    asked: list[str] = []
    answer: dict[str, Any] = {}

    async def handle(request: web.Request) -> web.Response:
        asked.append(request.raw_path)
        return web.Response(body=orjson.dumps(answer["is"]) + b"\n", content_type="application/json")

    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield Access(f"http://127.0.0.1:{runner.addresses[0][1]}/k8s/"), asked, answer
    await runner.cleanup()


async def test_what_is_asked_is_sent_as_it_is(liar: Liar) -> None:
    access, asked, answer = liar
    answer["is"] = {}
    dots = Request(
        "get", "", "GET", "/api/%2E%2E/./..//a%3Ab", params={"labelSelector": "a=b&limit=1#,c", "continue": "/+="}
    )
    async with connect(access) as kube:
        await kube._wire.ask(dots, operation="")
    assert asked == ["/k8s/api/%2E%2E/./..//a%3Ab?labelSelector=a%3Db%26limit%3D1%23,c&continue=/%2B%3D"]


@pytest.mark.parametrize("server", ["https://[::1", "https://a:b", "https://a:70000"])
async def test_a_server_that_is_no_url_is_the_kubeconfigs_fault(server: str) -> None:
    with pytest.raises(KubeconfigError):
        async with connect(Access(server)) as kube:
            await kube.ping()


async def test_an_answer_about_another_object_is_refused(liar: Liar) -> None:
    access, _, answer = liar
    ours = {**KUBECONFIGS, "metadata": {"namespace": "team-a", "name": "east", "uid": "1", "resourceVersion": "1"}}
    key = Key("team-a", "east")
    others = (
        KUBECONFIGS,
        {**ours, "metadata": {**ours["metadata"], "name": "west"}},
        {**ours, "kind": "ConfigMap"},
        {**ours, "apiVersion": "v2"},
        {"apiVersion": "v1", "kind": "SecretList", "metadata": {}, "items": [ours]},
        {**ours, "metadata": None},
        [ours],
    )
    async with connect(access) as kube:
        for answer["is"] in others:
            for call in (
                kube.get(SECRET, key),
                kube.find(SECRET, key),
                kube.apply(ours),
                kube.create(ours),
                kube.replace(ours),
                kube.replace_status(ours),
                kube.set_finalizers(SECRET, key, (), "1"),
                kube.delete(SECRET, key, uid="1"),
            ):
                with pytest.raises(ServerFault, match="the answer is"):
                    await call
        answer["is"] = ours
        assert await kube.get(SECRET, key) == ours


async def test_a_list_and_a_watch_of_a_namespace_have_no_other_ones_objects(
    liar: Liar,
) -> None:
    access, _, answer = liar
    listing = {"metadata": {"resourceVersion": "7"}, "items": [KUBECONFIGS]}
    async with connect(access) as kube:
        answer["is"] = listing
        with pytest.raises(ServerFault, match="another namespace"):
            await kube.list(SECRET, namespace="team-a")
        assert len((await kube.list(SECRET, namespace="modelplane-system")).items) == 1
        versioned = {**KUBECONFIGS, "metadata": {**KUBECONFIGS["metadata"], "resourceVersion": "8"}}
        answer["is"] = {"type": "ADDED", "object": versioned}
        with pytest.raises(ServerFault, match="another namespace"):
            async for _ in kube.watch(SECRET, "1", seconds=1, namespace="team-a"):
                pass


@pytest.mark.fleet
async def test_a_name_that_leads_elsewhere_finds_nothing(kube: Kube, namespace: str, config_map: ConfigMap) -> None:
    other = await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "other-"}})
    theirs = other["metadata"]["name"]
    await kube.create({**config_map("secret"), "metadata": {"name": "secret", "namespace": theirs}})
    for way in (f"../../{theirs}/configmaps/secret", f"..%2F..%2F{theirs}%2Fconfigmaps%2Fsecret", "..", "", "."):
        assert await kube.find(CONFIG_MAP, Key(namespace, way)) is None
        with pytest.raises(InvalidName):
            await kube.apply({**config_map("a"), "metadata": {"name": way, "namespace": namespace}})
