"""What counts as a key, in a Secret and in a header."""

from __future__ import annotations

import base64

import pytest

from kubeloop.objects import Key
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.routing.gateway import envoy_gateway, traefik
from modelplane_operator.routing.service.api_keys import (
    LARGEST,
    LONGEST,
    MOST,
    SECRETS,
    digest,
    digests,
    find_exceeded_limit,
    has_unsigned,
    is_signed,
    keys_of,
    matches,
    path_of,
    secrets_at,
    signing_key,
    withheld,
)
from tests.support.secrets import signing_secret

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


def test_a_path_is_signed_for_its_own_secrets_alone() -> None:
    signing = signing_key(signing_secret())
    path = path_of("team", ("a", "b"), signing)

    assert is_signed(path, signing)
    assert secrets_at(path, signing) == (Key("team", "a"), Key("team", "b"))
    assert secrets_at(path_of("team", [f"s{number}" for number in range(SECRETS)], signing), signing)[-1].name == "s7"
    forged = (
        path_of("team", ("a", "b")),
        path_of("team", ("a", "b"), signing_key(signing_secret(key="of another hub"))),
        path.replace("/a/", "/c/"),
        path.replace("/a/b/", "/a/"),
        f"{path}/",
        "/keys/team/\udcff",
    )
    assert not [one for one in forged if is_signed(one, signing)]
    assert not is_signed(path_of("team", ("a", "b"), "x").rpartition("/")[0] + "/", "")


def test_a_key_service_of_before_finds_the_same_secrets_at_a_signed_path() -> None:
    """It takes what signs for the name of one more Secret, which there is not."""
    found = secrets_at(path_of("team", ("a",), signing_key(signing_secret())))

    assert (found[0], len(found), len(found[1].name)) == (Key("team", "a"), 2, 64)


@pytest.mark.parametrize("namespace", ["modelplane-system", "kube-system", "kube-public"])
def test_no_path_names_secrets_of_the_operator_or_of_kubernetes(namespace: str) -> None:
    signing = signing_key(signing_secret())

    assert secrets_at(path_of(namespace, ("a",))) == secrets_at(path_of(namespace, ("a",), signing), signing) == ()


def test_guards_of_both_gateways_are_told_by_whether_they_ask_at_a_signed_path() -> None:
    signing = signing_key(signing_secret())

    def guards(path: str) -> list[object]:
        rendered = [
            plane.render_guard(CHAT, path, ["chat"], ("keys.example.com", 8081)) for plane in (traefik, envoy_gateway)
        ]
        return [has_unsigned(of_plane, signing) for of_plane in rendered]

    assert guards(path_of("team", ("a",))) == [True, True]
    assert guards(path_of("team", ("a",), signing)) == [False, False]
    assert not has_unsigned([{"spec": {"stripPrefix": {}}}, {"spec": {"cors": {}}}], signing)


def test_traefik_takes_no_service_of_another_namespace_for_the_guard_of_one() -> None:
    """It joins namespace and name by a dash. A tenant whose namespace begins as another's tries names until the rest is
    alike: what it has to find again is the digest, and 40 bits are found in hours."""
    long = "x" * 52  # so that the last characters of a service's name stand in the digest alone
    guards = {
        key: traefik.render_guard(
            CHAT.model_copy(
                update={"metadata": CHAT.metadata.model_copy(update={"namespace": key[0], "name": key[1]})}
            ),
            "/keys/a",
            ["a"],
            ("keys.example.com", 8081),
        )[0]["metadata"]["name"]
        for key in (("team-b", long), ("team", f"b-{long}"))
    }
    known = {f"{namespace}-{name}" for (namespace, _), name in guards.items()}
    digests_of = {one.rpartition("-")[2] for one in known}

    assert len(known) == len(digests_of) == 2
    assert all(len(one) == 32 and int(one, 16) for one in digests_of)
    assert all(len(name) <= 63 for name in guards.values())


def test_a_secret_that_holds_too_much_holds_no_key_and_is_not_decoded() -> None:
    many = {"data": {str(number): "a2V5" for number in range(MOST)}}
    large = {"data": {"key": "x" * LARGEST}}  # no base64: reading it would fail

    assert (find_exceeded_limit(many), find_exceeded_limit({"data": {"key": "a2V5"}})) == ("", "")
    assert find_exceeded_limit({"data": {**many["data"], "one": "more"}}) == "257 entries, and 256 are allowed"
    assert digests({"data": {**many["data"], "one": "more"}}) == frozenset()
    assert find_exceeded_limit(large) == "64 KiB, and 64 are allowed"
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
