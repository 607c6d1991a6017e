"""What our client promises, on a real API server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from kubeloop import types as resources
from kubeloop.client import http1
from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.client.http2_frames import settings
from kubeloop.client.kube import Kube, connect
from kubeloop.client.limits import ServerLimits
from kubeloop.client.wire import Call
from kubeloop.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    Misbehaving,
    NotFound,
    ServerFault,
    TooMany,
    Unauthorized,
    Unreachable,
)
from kubeloop.objects import Key, key_of
from kubeloop.types import CONFIG_MAP, DEPLOYMENT, NAMESPACE, SECRET
from localfleet.faultproxy.client import FaultProxy
from localfleet.faultproxy.rules import (
    Answer,
    Drop,
    Hang,
    InjectGone,
    LoseReply,
    Match,
    RequestAction,
    Reset,
    Rule,
    Truncate,
)
from tests.api.contract import rich
from tests.support.api import Api
from tests.support.api_fixtures import BOTH, ConfigMap, Manifest
from tests.support.manifests import change, find
from tests.support.waiting import SECONDS

pytestmark = [pytest.mark.fleet, pytest.mark.server]


async def test_an_object_is_made_changed_read_and_deleted(kube: Kube, config_map: ConfigMap) -> None:
    made = await kube.apply(config_map("plain", {"a": "1", "b": "2"}))
    changed = await kube.apply(config_map("plain", {"a": "3"}))

    assert made["data"] == {"a": "1", "b": "2"}
    assert changed["data"] == {"a": "3"}, "what the manifest no longer says is taken back"
    assert (await kube.get(CONFIG_MAP, key_of(made)))["data"] == {"a": "3"}
    assert await kube.delete(CONFIG_MAP, key_of(made), uid=made["metadata"]["uid"]) is None
    assert await kube.find(CONFIG_MAP, key_of(made)) is None


async def test_applying_the_same_again_changes_nothing(kube: Kube, config_map: ConfigMap) -> None:
    first = await kube.apply(config_map("same", {"a": "1"}))
    second = await kube.apply(config_map("same", {"a": "1"}))

    assert second["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]


async def test_an_apply_of_what_is_to_be_new_leaves_alone_what_is_there(kube: Kube, config_map: ConfigMap) -> None:
    first = await kube.apply(config_map("new", {"a": "1"}), new=True)

    with pytest.raises(Conflict):
        await kube.apply(config_map("new", {"a": "2"}), new=True)

    assert (await kube.get(CONFIG_MAP, key_of(first)))["data"] == {"a": "1"}
    assert "data" not in await kube.apply(config_map("new")), "it owns what it made"


async def test_a_dry_run_stores_nothing(kube: Kube, config_map: ConfigMap) -> None:
    said = await kube.apply(config_map("dry"), dry_run=True)

    assert said["metadata"]["name"] == "dry"
    assert await kube.find(CONFIG_MAP, key_of(said)) is None


async def test_an_apply_without_force_conflicts_with_another_manager_and_with_force_wins(
    api: Api, kube: Kube, config_map: ConfigMap
) -> None:
    mine = config_map("contested", {"a": "mine"})
    await kube.apply(mine)
    where = ("-n", mine["metadata"]["namespace"], "configmap", "contested")
    await api.kubectl("patch", *where, "--patch", '{"data": {"a": "theirs"}}')

    with pytest.raises(Conflict, match="kubectl"):
        await kube.apply(mine, force=False)
    assert (await kube.apply(mine))["data"] == {"a": "mine"}


async def test_an_apply_with_a_uid_is_only_for_that_object(kube: Kube, config_map: ConfigMap) -> None:
    made = await kube.apply(config_map("reborn"))
    uid = made["metadata"]["uid"]
    await kube.delete(CONFIG_MAP, key_of(made), uid=uid)

    with pytest.raises(Conflict):
        await kube.apply(config_map("reborn", uid=uid))


async def test_errors_are_told_apart(api: Api, kube: Kube, config_map: ConfigMap) -> None:
    made = await kube.create(config_map("there"))

    with pytest.raises(AlreadyExists):
        await kube.create(config_map("there"))
    with pytest.raises(NotFound):
        await kube.get(CONFIG_MAP, Key(key_of(made).namespace, "absent"))
    with pytest.raises(NotFound, match="namespaces"):
        await kube.apply(change(made, "metadata", {"name": "a", "namespace": "absent"}))
    with pytest.raises(NotFound):
        await kube.list(resources.LEADER_WORKER_SET)
    with pytest.raises(Invalid, match="name"):
        await kube.apply(config_map("No_Such-Name"))
    with pytest.raises(Conflict):
        await kube.replace(change(made, "metadata.resourceVersion", "1"))
    with pytest.raises(Conflict):
        await kube.delete(CONFIG_MAP, key_of(made), uid="another")
    with pytest.raises(Conflict):
        await kube.delete(CONFIG_MAP, key_of(made), uid=made["metadata"]["uid"], version="1")


async def test_a_field_that_the_schema_lacks_is_invalid_and_not_the_servers_fault(
    kube: Kube, config_map: ConfigMap
) -> None:
    with pytest.raises(Invalid, match="surprise"):
        await kube.apply({**config_map("strange"), "surprise": 1})
    with pytest.raises(Invalid, match="surprise"):
        await kube.create({**config_map("strange"), "surprise": 1})
    with pytest.raises(Invalid):
        await kube.apply(change(rich()["ModelDeployment"], "spec.replicas", 10_000))


async def test_what_the_credentials_may_not_do_is_forbidden(api: Api, config_map: ConfigMap) -> None:
    token = await _token_of_a_nobody(api, config_map("nobody")["metadata"]["namespace"])
    async with connect(replace(_bare(api), token=token)) as nobody:
        with pytest.raises(Forbidden, match="nobody"):
            await nobody.apply(config_map("refused"))
        await nobody.ping()


async def test_credentials_that_are_none_are_unauthorized(api: Api) -> None:
    bogus = "made up"
    async with connect(replace(_bare(api), token=bogus)) as stranger:
        with pytest.raises(Unauthorized):
            await stranger.list(SECRET)
        with pytest.raises(Unauthorized):
            await stranger.ping()


async def test_a_renewed_token_file_is_read_again(api: Api, config_map: ConfigMap, tmp_path: Any) -> None:
    token = await _token_of_a_nobody(api, config_map("x")["metadata"]["namespace"])
    (tmp_path / "token").write_text("expired")
    async with connect(replace(_bare(api), token_file=tmp_path / "token")) as kube:
        with pytest.raises(Unauthorized):
            await kube.list(SECRET)
        (tmp_path / "token").write_text(token)
        with pytest.raises(Forbidden):
            await kube.list(SECRET)


async def test_a_server_that_is_not_there_is_unreachable_and_the_words_do_not_change(access: Access) -> None:
    async with connect(replace(access, server="https://127.0.0.1:9")) as kube:
        said = []
        for _ in range(2):
            with pytest.raises(Unreachable) as caught:
                await kube.ping()
            said.append(str(caught.value))

    assert said[0].startswith("GET /readyz: Connection refused: nothing listens there; check ")
    assert said[0] == said[1]


async def test_a_server_with_another_certificate_is_unreachable(api: Api) -> None:
    async with connect(Access(api.server.url)) as kube:
        with pytest.raises(Unreachable, match="certificate is not trusted"):
            await kube.ping()


async def test_a_status_is_written_alone_and_only_over_what_was_read(kube: Kube, namespace: str) -> None:
    manifest = change(rich()["ModelCache"], "metadata", {"name": "status", "namespace": namespace})
    made = await kube.create({name: value for name, value in manifest.items() if name != "status"})
    condition = {"type": "Ready", "status": "True", "reason": "Available", "lastTransitionTime": "2026-11-21T12:00:00Z"}

    reported = await kube.replace_status(change(made, "status", {"conditions": [condition]}))
    without_spec = {**reported, "spec": {}}
    again = await kube.replace_status(change(without_spec, "status.conditions[].status", "False"))

    assert reported["status"]["conditions"] == [condition]
    assert reported["spec"] == again["spec"] == made["spec"]
    assert again["metadata"]["generation"] == made["metadata"]["generation"]
    with pytest.raises(Conflict):
        await kube.replace_status(made | {"status": {}})


async def test_finalizers_are_set_only_over_what_was_read(kube: Kube, config_map: ConfigMap) -> None:
    made = await kube.create(config_map("held"))
    key, uid, version = key_of(made), made["metadata"]["uid"], made["metadata"]["resourceVersion"]

    held = await kube.set_finalizers(CONFIG_MAP, key, ["modelplane.ai/finalizer"], version)
    with pytest.raises(Conflict):
        await kube.set_finalizers(CONFIG_MAP, key, [], version)
    terminating = await kube.delete(CONFIG_MAP, key, uid=uid)

    assert find(held, "metadata.finalizers") == ["modelplane.ai/finalizer"]
    assert terminating is not None, "a finalizer holds it"
    assert terminating["metadata"]["deletionTimestamp"]
    await kube.set_finalizers(CONFIG_MAP, key, [], terminating["metadata"]["resourceVersion"])
    assert await kube.find(CONFIG_MAP, key) is None


@pytest.mark.parametrize("type_", [CONFIG_MAP, SECRET, resources.SERVICE, resources.SERVICE_ACCOUNT])
async def test_a_delete_without_hindrance_says_that_the_object_is_gone(
    kube: Kube, namespace: str, type_: resources.ResourceType
) -> None:
    spec = {"spec": {"ports": [{"port": 80}]}} if type_ is resources.SERVICE else {}
    metadata = {"name": "brief", "namespace": namespace}
    made = await kube.apply({"apiVersion": "v1", "kind": type_.kind, "metadata": metadata, **spec})

    assert await kube.delete(type_, key_of(made), uid=made["metadata"]["uid"]) is None
    assert await kube.find(type_, key_of(made)) is None


async def test_a_delete_that_waits_says_so(kube: Kube, namespace: str) -> None:
    """No controllers run here: a namespace stays Terminating, and a foreground deletion waits for ever."""
    room = await kube.get(NAMESPACE, Key("", namespace))
    made = await kube.apply(_deployment(namespace))

    waiting = await kube.delete(DEPLOYMENT, key_of(made), uid=made["metadata"]["uid"], propagation="Foreground")
    terminating = await kube.delete(NAMESPACE, key_of(room), uid=room["metadata"]["uid"])

    assert waiting is not None
    assert waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
    assert terminating is not None
    assert terminating["status"]["phase"] == "Terminating"


async def test_a_thousand_objects_are_listed_page_by_page_at_one_version(kube: Kube, config_map: ConfigMap) -> None:
    wanted = [config_map(f"many-{number:04}", labels={"half": str(number % 2)}) for number in range(1000)]
    for start in range(0, 1000, 50):
        await asyncio.gather(*map(kube.create, wanted[start : start + 50]))
    namespace = wanted[0]["metadata"]["namespace"]

    listing = await kube.list(CONFIG_MAP, namespace=namespace, page=300)
    half = await kube.list(CONFIG_MAP, namespace=namespace, selector="half=1")

    assert sorted(item["metadata"]["name"] for item in listing.items) == [one["metadata"]["name"] for one in wanted]
    assert {(item["apiVersion"], item["kind"]) for item in listing.items} == {("v1", "ConfigMap")}
    assert int(listing.version) >= max(int(item["metadata"]["resourceVersion"]) for item in listing.items)
    assert len(half.items) == 500


async def test_a_page_of_large_objects_is_asked_for_again_with_fewer(
    access: Access, kube: Kube, config_map: ConfigMap, namespace: str
) -> None:
    """A tenant's ConfigMaps are copied to clusters, which must not be taken to misbehave for them."""
    for number in range(5):
        await kube.apply(config_map(f"large-{number}", {"key": "x" * 400_000}))

    async with connect(access, limits=ServerLimits(page=2**20)) as bounded:
        listing = await bounded.list(CONFIG_MAP, namespace=namespace)
        assert [len(one["data"]["key"]) for one in listing.items] == [400_000] * 5
    async with connect(access, limits=ServerLimits(page=300_000)) as bounded:
        with pytest.raises(Misbehaving, match="the answer has more than"):
            await bounded.list(CONFIG_MAP, namespace=namespace)


async def test_a_watch_tells_what_happened_after_a_version(kube: Kube, config_map: ConfigMap) -> None:
    before = await kube.create(config_map("before"))
    namespace = before["metadata"]["namespace"]
    listing = await kube.list(CONFIG_MAP, namespace=namespace)
    made = await kube.create(config_map("x"))
    await kube.apply(config_map("x", {"a": "1"}))
    await kube.delete(CONFIG_MAP, key_of(made), uid=made["metadata"]["uid"])

    seen: list[tuple[str, str]] = []
    async with asyncio.timeout(SECONDS), aclosing(_watch(kube, listing.version, namespace)) as events:
        async for event in events:
            seen.append((event.type, event.manifest["metadata"]["name"]))
            if event.type == "DELETED":
                break

    assert seen == [("ADDED", "x"), ("MODIFIED", "x"), ("DELETED", "x")]


async def test_a_watch_ends_when_its_time_is_over(kube: Kube, namespace: str) -> None:
    version = (await kube.list(CONFIG_MAP, namespace=namespace)).version

    async with asyncio.timeout(SECONDS):
        events = [event async for event in kube.watch(CONFIG_MAP, version, seconds=1, namespace=namespace)]

    assert {event.type for event in events} <= {"BOOKMARK"}


async def test_a_watch_from_too_long_ago_is_gone(through: Kube, proxy: FaultProxy, namespace: str) -> None:
    version = (await through.list(CONFIG_MAP, namespace=namespace)).version
    await proxy.add(Rule(Match(verbs=("watch",)), InjectGone()))

    with pytest.raises(Expired):
        async with asyncio.timeout(SECONDS), aclosing(_watch(through, version, namespace)) as events:
            await anext(events)


async def test_a_watch_that_falls_silent_is_unreachable(kube: Kube, namespace: str) -> None:
    version = (await kube.list(CONFIG_MAP, namespace=namespace)).version
    watch = kube.watch(CONFIG_MAP, version, seconds=60, namespace=namespace, silence=0.2)

    with pytest.raises(Unreachable, match=r"silent for 0\.2 s"):
        async with asyncio.timeout(SECONDS), aclosing(watch) as events:
            await anext(events)


@BOTH
def test_a_watch_that_is_given_up_leaves_no_socket_open(access: Access) -> None:
    async def gives_up() -> None:
        async with connect(access) as kube, aclosing(_watch(kube, "0", "default")) as events:
            await anext(events)

    open_before = _descriptors()
    asyncio.run(gives_up())

    assert _descriptors() == open_before


@BOTH
def test_a_request_that_is_given_up_leaves_no_socket_open(protocol: str) -> None:
    async def gives_up(access: Access) -> None:
        async with connect(access) as kube:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await kube.list(CONFIG_MAP)

    with silent(protocol) as access:
        open_before = _descriptors()
        asyncio.run(gives_up(access))

        assert _descriptors() == open_before + 1, "the server's own"


@BOTH
def test_what_waits_for_a_client_that_is_closed_fails_and_is_not_cancelled(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has cancelled the tasks that wait, and whoever runs them would never hear of their end."""
    monkeypatch.setattr(http1, "CONNECTIONS", 1)  # so that some wait for a connection, and one for an answer

    async def waits(access: Access) -> list[object]:
        async with connect(access) as kube:
            waiting = [asyncio.create_task(kube.list(CONFIG_MAP)) for _ in range(3)]
            await asyncio.sleep(0.3)
        return await asyncio.gather(*waiting, return_exceptions=True)

    with silent(protocol) as access:
        assert [type(ended) for ended in asyncio.run(waits(access))] == [Unreachable] * 3


@BOTH
@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Answer(429, retry_after=7), TooMany),
        (Answer(500), ServerFault),
        (Answer(503), ServerFault),
        (Answer(504), ServerFault),
        (Drop(), Unreachable),
        (Reset(), Unreachable),
        (LoseReply(), Unreachable),
        (Truncate(20), Unreachable),
    ],
    ids=str,
)
async def test_what_a_server_or_the_way_to_it_does_to_a_call(
    through: Kube, proxy: FaultProxy, config_map: ConfigMap, fault: RequestAction, error: type[ApiError]
) -> None:
    await proxy.add(Rule(Match(resource="configmaps"), fault, times=1))

    with pytest.raises(error) as caught:
        await through.apply(config_map("faulty"))

    assert caught.value.retry
    assert caught.value.retry_after == (7 if error is TooMany else None)
    await through.apply(config_map("faulty"))


async def test_a_server_that_wants_to_be_left_alone_for_a_century_is_for_a_minute(
    through: Kube, proxy: FaultProxy, config_map: ConfigMap
) -> None:
    await proxy.add(Rule(Match(resource="configmaps"), Answer(429, retry_after=3_153_600_000), times=1))

    with pytest.raises(TooMany) as caught:
        await through.apply(config_map("faulty"))

    assert caught.value.retry_after == 60.0


async def test_a_call_without_an_answer_ends_at_its_deadline(through: Kube, proxy: FaultProxy) -> None:
    await proxy.add(Rule(Match(), Hang()))

    with pytest.raises(Unreachable, match="no answer in time"):
        await through.ping(deadline=0.2)


async def test_a_list_whose_continuation_expired_begins_again(
    through: Kube, proxy: FaultProxy, config_map: ConfigMap
) -> None:
    made = [await through.create(config_map(f"page-{number}")) for number in range(5)]
    expired = await proxy.add(Rule(Match(verbs=("list",), nth=2), Answer(410)))

    counted: list[str] = []
    listing = await through.read_list(
        CONFIG_MAP,
        lambda one: counted.append(one["metadata"]["name"]),
        namespace=key_of(made[0]).namespace,
        page=2,
        on_begin=counted.clear,
    )

    assert len(listing.items) == len(counted) == 5, "what was read before counts no more"
    assert await proxy.fired(expired) == 1


async def test_what_a_server_serves(kube: Kube) -> None:
    assert "ModelDeployment" in await kube.serves("modelplane.ai/v1alpha1")
    assert "ConfigMap" in await kube.serves("v1")
    assert await kube.serves("inference.networking.k8s.io/v1") == frozenset()


async def test_every_call_is_counted_with_its_outcome(access: Access, namespace: str, config_map: ConfigMap) -> None:
    calls: list[Call] = []
    async with connect(access, on_call=calls.append) as kube:
        await kube.apply(config_map("counted"))
        await kube.find(CONFIG_MAP, Key(namespace, "absent"))

    assert [(call.verb, call.resource, call.outcome) for call in calls] == [
        ("apply", "configmaps", "OK"),
        ("get", "configmaps", "NotFound"),
    ]


def _watch(kube: Kube, version: str, namespace: str) -> Any:
    return kube.watch(CONFIG_MAP, version, seconds=60, namespace=namespace)


def _bare(api: Api) -> Access:
    """The server, and nobody's credentials."""
    administrator = api.server.kubeconfig.read_text()

    return replace(read_kubeconfig(administrator), certificate="", key="", token="")


async def _token_of_a_nobody(api: Api, namespace: str) -> str:
    await api.kubectl("create", "serviceaccount", "nobody", "-n", namespace)
    return (await api.kubectl("create", "token", "nobody", "-n", namespace)).strip()


def _deployment(namespace: str) -> Manifest:
    labels = {"app": "a"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "a", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}},
        },
    }


@contextmanager
def silent(protocol: str) -> Iterator[Access]:
    """A server that says nothing any more once it is connected, not even farewell."""
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols([protocol])
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        address = f"https://127.0.0.1:{listener.getsockname()[1]}"

        def accept() -> ssl.SSLSocket:
            taken = context.wrap_socket(listener.accept()[0], server_side=True)
            if protocol == "h2":
                taken.sendall(settings({}))
            return taken

        accepted = pool.submit(accept)
        try:
            yield Access(address, authority.cert_pem.bytes().decode())
        finally:
            accepted.result().close()


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
