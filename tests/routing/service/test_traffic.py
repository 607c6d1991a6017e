"""What the gateways' own counters say of services, as the pinned versions name and label them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kubeloop.objects import Key
from modelplane_operator.api import names
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.service import counters
from modelplane_operator.routing.service.answer import GatewayAnswer
from modelplane_operator.routing.service.plan import plan
from modelplane_operator.routing.service.traffic import WINDOW, Traffic, parse_counters
from tests.support.plans import told
from tests.support.services import endpoint, seen, service, settled, status

CHAT, OTHER = Key("team", "chat"), Key("team", "other")
POD = "10.0.0.1"
SAYS = "40 of 40 requests in 5 minutes failed with 500: look at the logs of the engines, or of the provider"


def traefik(key: Key, rule: int = 0, method: str = "POST", **codes: int) -> str:
    """What Traefik 3 shows of a route, as the chart's Traefik has it; `c500` is the number of answers with 500."""
    gateway = f"gw-{names.SYSTEM_NAMESPACE}-{names.HUB_GATEWAY}-ep-web"
    router = f"httproute-{key.namespace}-{names.service_route(*key)}-{gateway}-{rule}-1c0cf64bde37d9d0df06"
    labels = (
        f'method="{method}",protocol="http",router="{router}@kubernetesgateway",service="any-wrr@kubernetesgateway"'
    )
    return "\n".join(
        f'traefik_router_requests_total{{code="{code[1:]}",{labels}}} {count}' for code, count in codes.items()
    )


def envoy(key: Key, rule: int = 0, **codes: int) -> str:
    cluster = f"httproute/{key.namespace}/{names.service_route(*key)}/rule/{rule}"
    return "\n".join(
        f'envoy_cluster_upstream_rq{{envoy_response_code="{code[1:]}",envoy_cluster_name="{cluster}"}} {count}'
        for code, count in codes.items()
    )


def looked(traffic: Traffic, now: float, *texts: str, pods: tuple[str, ...] = (POD,)) -> list[Key]:
    for pod, text in zip(pods, texts, strict=True):
        traffic.add(pod, text, now)
    return traffic.decide(pods, [CHAT, OTHER], now)


def test_lines_of_both_gateways_are_read_by_route_rule_and_status() -> None:
    route = f"team-{names.service_route(*CHAT)}"
    for text in (traefik(CHAT, c200=3, c500=40), envoy(CHAT, c200=3, c500=40)):
        assert parse_counters(f"# HELP any thing\nany_other 1\n{text}\n") == {(route, "0"): {200: 3, 500: 40}}
    assert parse_counters(traefik(CHAT, method="GET", c200=9)) == {}, "the operator's own requests are no traffic"


@pytest.mark.parametrize("of", [traefik, envoy])
def test_generation_that_fails_is_said_once_and_until_it_succeeds(of: Callable[..., str]) -> None:
    traffic = Traffic()
    assert looked(traffic, 0, of(OTHER, c200=1)) == [], "nobody has asked yet"
    assert looked(traffic, 30, of(CHAT, c500=40)) == [CHAT]
    assert traffic.describe(CHAT) == SAYS
    for number in range(1, 5):
        assert looked(traffic, 30 + 30 * number, of(CHAT, c500=40 + 7 * number)) == [], "it is the same fact"
    assert traffic.describe(CHAT) == SAYS
    assert looked(traffic, 30 + 2 * WINDOW, of(CHAT, c500=68, c200=30)) == [CHAT]
    assert traffic.describe(CHAT) == ""


def test_what_was_counted_before_the_operator_began_says_nothing() -> None:
    traffic = Traffic()
    assert looked(traffic, 0, traefik(CHAT, c500=4000)) == []
    assert looked(traffic, 30, traefik(CHAT, c500=4000, c200=2)) == []


@pytest.mark.parametrize("codes", [{"c500": 9}, {"c500": 40, "c200": 400}, {"c429": 40}, {"c401": 40}])
def test_few_failures_and_refusals_are_no_outage(codes: dict[str, int]) -> None:
    traffic = Traffic()
    looked(traffic, 0, "")
    assert looked(traffic, 30, traefik(CHAT, **codes)) == []


def test_requests_without_a_key_hide_no_failures() -> None:
    traffic = Traffic()
    looked(traffic, 0, "")
    looked(traffic, 30, "\n".join((traefik(CHAT, c500=40, c401=4000), traefik(CHAT, 1, c404=90_000))))
    assert traffic.describe(CHAT) == SAYS


@pytest.mark.parametrize("of", [traefik, envoy])
@pytest.mark.parametrize("count", ["1.2.3", "e", "1e999", "9" * 5000, "NaN", "-1", ""])
@pytest.mark.parametrize("code", ["500", "5\u00b2", "9" * 5000, "0", "", "\u0665\u0660\u0660"])
def test_lines_of_another_form_are_left_out(of: Callable[..., str], count: str, code: str) -> None:
    line = of(CHAT, c500=7).replace('"500"', f'"{code}"')
    assert parse_counters(line.removesuffix("7") + count) == {}
    assert bool(parse_counters(line)) == (code == "500")


def test_lines_about_other_things_crowd_out_no_counters_and_no_number_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [traefik(Key("team", f"s{number}"), c500=1234567) for number in range(400)]
    other = 'traefik_router_request_duration_seconds_bucket{code="500"} 1\n' * 40_000
    other += "\n".join(traefik(OTHER, method="PUT", **{f"c{code}": 1}) for code in range(200, 1000))
    other += "\n".join(traefik(OTHER, **{f"c{code}": 1}) for code in (*range(400, 499), *range(600, 1000)))
    monkeypatch.setattr(counters, "LARGEST", 40_000)

    async def serve(_: web.Request) -> web.Response:
        return web.Response(text=f"{other}\n{'x' * 300_000}\n" + "\n".join(lines))

    async def fetch() -> str:
        app = web.Application()
        app.router.add_get("/metrics", serve)
        async with TestServer(app) as server:
            return await counters._fetch(str(server.make_url("/metrics")))

    text = asyncio.run(fetch())
    found = parse_counters(text)
    assert "other" not in text
    assert 100 < len(found) < 400, "there is a limit"
    assert {count for codes in found.values() for count in codes.values()} == {1234567}


def test_clients_that_give_up_waiting_are_failures_where_nothing_succeeds() -> None:
    traffic = Traffic()
    looked(traffic, 0, "")
    looked(traffic, 30, traefik(CHAT, c499=12))
    assert "12 of 12 requests in 5 minutes failed with 499 (clients gave up before an answer)" in traffic.describe(CHAT)
    assert looked(traffic, 60, traefik(CHAT, c499=60, c200=20)) == [CHAT]
    assert traffic.describe(CHAT) == "", "an editor gives up a completion at each key"


def test_streams_that_their_clients_end_are_no_failures_of_traefik() -> None:
    """Traefik 3.7.12 counts them as 502 with its fast proxy; Envoy 1.39 counts the status that it sent, 200."""
    traffic = Traffic()
    looked(traffic, 0, "")
    assert looked(traffic, 30, traefik(CHAT, c200=40, c502=40)) == []
    assert looked(traffic, 60, traefik(CHAT, c200=40, c500=40, c502=40)) == [CHAT]
    assert looked(traffic, 90, envoy(OTHER, c502=40)) == [OTHER], "of Envoy, it is the answer of what is behind"


def test_a_namespace_with_two_dashes_is_found_as_traefik_3_7_12_writes_it() -> None:
    key, traffic = Key("ml--team", "chat"), Traffic()
    for text in ("", traefik(key, c500=40).replace("ml--team", "ml-team")):
        traffic.add(POD, text, 0)
    assert traffic.decide([POD], [key], 0) == [key]
    assert parse_counters(envoy(key, c500=1)).keys() == {(f"ml-team-{names.service_route(*key)}", "0")}


def test_a_pod_that_starts_again_counts_from_nothing_and_pods_are_added_up() -> None:
    traffic, pods = Traffic(), ("a", "b")
    looked(traffic, 0, traefik(CHAT, c500=100), traefik(CHAT, c500=100), pods=pods)
    assert looked(traffic, 30, traefik(CHAT, c500=6), traefik(CHAT, c500=106), pods=pods) == [CHAT]
    assert traffic.describe(CHAT).startswith("12 of 12 requests in 5 minutes failed with 500")


def test_nothing_is_kept_of_services_that_are_gone() -> None:
    traffic = Traffic()
    looked(traffic, 0, "")
    looked(traffic, 30, traefik(CHAT, c500=40))
    traffic.add(POD, traefik(CHAT, c500=80), 60)
    traffic.decide([POD], [OTHER], 60)
    assert not traffic._last and not traffic._added and not traffic.describe(CHAT)
    assert looked(traffic, 90, traefik(CHAT, c500=1)) == [], "another one of its name begins with nothing"


def test_a_request_that_passes_the_gateway_twice_counts_once() -> None:
    traffic = Traffic()
    looked(traffic, 0, "")
    looked(traffic, 30, "\n".join((envoy(CHAT, 0, c500=40), envoy(CHAT, 1, c500=25), envoy(CHAT, 2, c500=15))))
    assert traffic.describe(CHAT) == SAYS


def test_a_service_whose_generation_fails_is_ready_and_degraded() -> None:
    ready = settled(seen(service((1, "a")), endpoint("one")))
    answered = replace(ready, check=Checked(GatewayAnswer(200)))
    known = replace(answered, service=answered.service.model_copy(update={"status": status(answered)}))
    assert told(plan(replace(known, failing=SAYS)))["Ready"] == ("True", "Degraded", SAYS)
    assert told(plan(known))["Ready"][:2] == ("True", "Available")
