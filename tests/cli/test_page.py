"""What `modelplane page` serves: rows as they change, to whoever has the token, at the names of loopback."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from modelplane_operator.api import ModelReplica
from modelplane_operator.ask.answers.overview import in_transit
from modelplane_operator.ask.answers.schema import plain
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.ask.answers.why import explain
from modelplane_operator.cli.page import server
from modelplane_operator.cli.page.live import changes, to_json
from tests.support.builders import EPOCH, cluster, deployment
from tests.support.manifests import change
from tests.support.observed import placed
from tests.support.page import TOKEN, Page, page

MODEL = deployment(replicas=2)
BERLIN = cluster("berlin", nodes=1)
REPLICAS = tuple(map(ModelReplica.parse, placed(MODEL, BERLIN)))
OWN = {"Authorization": f"Bearer {TOKEN}"}


async def events(answer: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for line in answer.content:
        if line.startswith(b"data: "):
            yield json.loads(line[6:])


async def asked(found: Page, path: str, **headers: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{found.url}{path}", headers={**OWN, **headers}) as answer,
    ):
        assert answer.headers["Content-Security-Policy"] == server.HEADERS["Content-Security-Policy"]
        return answer.status, await answer.read()


async def test_all_rows_come_first_and_then_those_that_change() -> None:
    async with page([BERLIN, MODEL, *REPLICAS]) as found, asyncio.timeout(30), aiohttp.ClientSession() as session:
        answer = await session.get(f"{found.url}/api/rows", headers=OWN)
        async with answer:
            assert answer.content_type == "text/event-stream"
            told = events(answer)
            first = await anext(told)
            while not first["put"].get("clusters"):  # before the objects were told of
                first = await anext(told)
            row = first["put"]["clusters"]["berlin"]
            assert (row["used"], row["nodes"], row["replicas"], row["ready"]) == (1, 1, 1, True)
            assert first["put"]["models"][str(MODEL.key)]["running"] == 1
            found.put(cluster("oslo"))
            assert (await anext(told))["put"]["clusters"].keys() == {"oslo"}
            found.drop(MODEL)
            assert (await anext(told))["gone"] == {"models": [str(MODEL.key)]}


async def test_the_detail_of_a_model_is_the_answer_of_why() -> None:
    seen = Snapshot((BERLIN,), REPLICAS, (MODEL,), (), EPOCH)
    async with page([BERLIN, MODEL, *REPLICAS]) as found:
        status, said = await asked(found, f"/api/model?namespace={MODEL.key.namespace}&name={MODEL.key.name}")
        assert (status, json.loads(said)) == (200, json.loads(json.dumps(plain(explain(MODEL, (), seen)))))
        status, said = await asked(found, "/api/cluster?name=berlin")
        placed_ = [(one["model"], one["nodes"]) for one in json.loads(said)["replicas"]]
        assert (status, placed_) == (200, [(MODEL.key.name, 1)])
        status, said = await asked(found, "/api/hardware")
        assert (status, [one["free"] for one in json.loads(said)["items"]]) == (200, [0])
        assert (await asked(found, "/api/cluster?name=oslo"))[0] == 404


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {"Authorization": ""}, 200),
        ("/page.js", {"Authorization": ""}, 200),
        ("/api/rows", {"Authorization": ""}, 401),
        ("/api/cluster?name=berlin", {"Authorization": "Bearer t0keN"}, 401),
        ("/api/cluster?name=berlin", {"Authorization": "Bearer tök"}, 401),
        ("/", {"Host": "rebound.example.com"}, 421),
        ("/api/cluster?name=berlin", {"Host": "127.0.0.1:1"}, 421),
        ("/api/cluster?name=berlin", {"Origin": "https://example.com"}, 403),
        ("/api/cluster?name=berlin", {"Origin": "null"}, 403),
        ("/api/cluster?name=berlin", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("/page.js", {"Sec-Fetch-Site": "same-site"}, 403),
        ("/", {"Sec-Fetch-Site": "cross-site"}, 200),  # a link in a mail: the page alone has nothing
        ("/api/cluster?name=berlin", {"Sec-Fetch-Site": "same-origin"}, 200),
        ("/../page/server.py", {}, 404),
    ],
)
async def test_who_is_answered(path: str, headers: dict[str, str], status: int) -> None:
    async with page([BERLIN]) as found:
        assert (await asked(found, path, **headers))[0] == status


async def test_nothing_can_be_sent() -> None:
    async with page() as found, aiohttp.ClientSession() as session:
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            async with session.request(method, f"{found.url}/api/rows", headers=OWN) as answer:
                assert answer.status == 405


async def test_of_one_namespace_there_are_no_clusters() -> None:
    async with page([MODEL, *REPLICAS], namespace=MODEL.key.namespace) as found:
        rows = await found.live.wait_for_change({}, 30)
        while not rows.get("models"):
            rows = await found.live.wait_for_change(rows, 30)
        assert (rows["clusters"], rows["models"].keys()) == ({}, {str(MODEL.key)})
        assert rows["page"]["state"]["namespace"] == MODEL.key.namespace


def test_changes_are_what_makes_one_state_of_another() -> None:
    before = {"models": {"a": 1, "b": 2}, "moves": {"x": 1}}
    after = {"models": {"a": 1, "b": 3, "c": 4}}
    assert changes(before, after) == {"put": {"models": {"b": 3, "c": 4}}, "gone": {"moves": ["x"]}}
    assert changes(after, after) == {"put": {}, "gone": {}}


def test_what_turns_the_direction_of_a_text_is_not_shown() -> None:
    assert "\u202e" not in str(to_json({"says": ["a\u202eb"]}))


def test_replicas_that_come_and_go_are_told_with_their_stage() -> None:
    (live,) = placed(MODEL, BERLIN)
    ending = change(live, "metadata.deletionTimestamp", EPOCH.isoformat())
    draining = change(live, "metadata.annotations", {"modelplane.ai/draining-since": "whenever"})
    (starting,) = placed(MODEL, BERLIN, ready=False)
    for manifest, stage in ((ending, "ending"), (draining, "finishing its answers"), (starting, "starting")):
        (found,) = in_transit(Snapshot((), (ModelReplica.parse(manifest),), (), (), EPOCH))
        assert (found.stage, found.model, found.cluster) == (stage, MODEL.key.name, "berlin")
    assert in_transit(Snapshot((), REPLICAS, (), (), EPOCH)) == ()
