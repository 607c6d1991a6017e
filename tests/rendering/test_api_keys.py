"""What counts as a key, in a Secret and in a header."""

from __future__ import annotations

import base64

import pytest

from modelplane_operator.api.model_service import ModelService
from modelplane_operator.kube.objects import Key
from modelplane_operator.rendering import envoy_gateway, traefik
from modelplane_operator.rendering.api_keys import (
    LARGEST,
    LONGEST,
    MOST,
    SECRETS,
    beyond,
    digest,
    digests,
    keys_of,
    matches,
    path_of,
    secrets_at,
    withheld,
)

CHAT = ModelService.model_validate(
    {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": "chat", "namespace": "team", "uid": "u"},
        "spec": {"endpoints": [{"selector": {"matchLabels": {"app": "chat"}}}]},
    }
)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer k", "k"),
        ("bearer  k ", "k"),
        ("BEARER a b", "a b"),
        ("", None),
        ("k", None),
        ("Bearer", None),
        ("Bearer ", None),
        ("Bearerk", None),
        ("Basic ays6aw==", None),
    ],
)
def test_a_key_is_what_a_bearer_brings(header: str, key: str | None) -> None:
    assert keys_of({"Authorization": header}) == [key] * (key is not None)


def test_a_key_comes_as_anthropics_clients_send_it_too() -> None:
    assert keys_of({"x-api-key": " k "}) == ["k"]
    assert keys_of({"x-api-key": "k", "Authorization": "Bearer other"}) == ["other", "k"]


def test_no_endpoint_gets_the_clients_key_beside_its_own() -> None:
    assert withheld(None, guarded=False) == []
    assert withheld(None, guarded=True) == ["Authorization", "x-api-key"]
    assert withheld("X-Api-Key", guarded=True) == ["Authorization"]
    assert withheld("authorization", guarded=False) == ["x-api-key"]


def test_a_secret_holds_those_keys_that_a_header_can_carry() -> None:
    held = {
        "good": b"k",
        "of-a-file": b"l\n",
        "empty": b"",
        "blank": b" \n",
        "two-lines": b"a\nb",
        "foreign": "\u00e9".encode(),
    }
    longest = {"longest": b"x" * LONGEST, "too-long": b"x" * (LONGEST + 1)}
    data = {name: base64.b64encode(value).decode() for name, value in {**held, **longest}.items()}

    assert digests({"data": data}) == {digest("k"), digest("l"), digest("x" * LONGEST)}
    assert digests({}) == frozenset()


def test_a_key_matches_itself_alone() -> None:
    known = (digest("a"), digest("b"))

    assert [matches(key, known) for key in ("a", "b", "c", "", "ab")] == [True, True, False, False, False]
    assert not matches("a", ())


def test_a_path_names_the_secrets_that_were_asked_for() -> None:
    assert secrets_at(path_of("team", ("a", "b.c"))) == (Key("team", "a"), Key("team", "b.c"))
    assert secrets_at("/keys/team") == ()


def test_a_secret_that_holds_too_much_holds_no_key_and_is_not_decoded() -> None:
    many = {"data": {str(number): "a2V5" for number in range(MOST)}}
    large = {"data": {"key": "x" * LARGEST}}  # no base64: reading it would fail

    assert (beyond(many), beyond({"data": {"key": "a2V5"}})) == ("", "")
    assert beyond({"data": {**many["data"], "one": "more"}}) == "257 entries, and 256 are allowed"
    assert digests({"data": {**many["data"], "one": "more"}}) == frozenset()
    assert beyond(large) == "64 KiB, and 64 are allowed"
    assert digests(large) == frozenset()


def test_a_path_names_no_more_secrets_than_a_service_may() -> None:
    assert len(secrets_at(path_of("team", [f"s{number}" for number in range(2000)]))) == SECRETS


@pytest.mark.parametrize(
    ("host", "url", "endpoint"),
    [
        ("keys.example.com", "keys.example.com.", {"fqdn": {"hostname": "keys.example.com", "port": 8081}}),
        ("10.90.0.2", "10.90.0.2", {"ip": {"address": "10.90.0.2", "port": 8081}}),
        ("fd00::2", "[fd00::2]", {"ip": {"address": "fd00::2", "port": 8081}}),
    ],
)
def test_gateways_find_a_key_service_that_is_named_and_one_that_has_an_address_alone(
    host: str, url: str, endpoint: dict[str, object]
) -> None:
    [middleware] = traefik.render_guard(CHAT, "/keys/team/keys", ["chat"], (host, 8081))
    assert middleware["spec"]["forwardAuth"]["address"] == f"http://{url}:8081/keys/team/keys"
    backend, _ = envoy_gateway.render_guard(CHAT, "/keys/team/keys", ["chat"], (host, 8081))
    assert backend["spec"]["endpoints"] == [endpoint]
