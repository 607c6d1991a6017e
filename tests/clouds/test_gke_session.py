"""Who we are on Google Cloud, what its answers may be like, and what it refuses, as our errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import pytest

from kubeloop.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Exhausted,
    Forbidden,
    InUse,
    Invalid,
    KubeconfigError,
    NotFound,
    NotPropagated,
    ServerFault,
    TooMany,
    Unauthorized,
    Unreachable,
)
from modelplane_operator.clouds.gke import session as sessions
from modelplane_operator.clouds.gke.errors import of_http, of_operation, translate_error
from modelplane_operator.clouds.gke.session import Credentials, Session, read_credentials
from tests.support.google.server import PROJECT, GoogleServer
from tests.support.silence import silence
from tests.support.web_server import WebServer, web_server

pytestmark = pytest.mark.processes

LISTED = f"/projects/{PROJECT}/global/firewalls"


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as web:
        web.pages["/token"] = json.dumps({"access_token": "of-a-page", "expires_in": 3600}).encode()
        yield web


def _session(web: WebServer, **given: Any) -> Session:
    credentials = GoogleServer().credentials(web.url)
    return Session("us-central1", credentials=credentials, hosts={"compute": web.url}, **given)


@pytest.mark.parametrize("text", ["", "no file", "[]", '{"type": "executable", "private_key": "hidden"}'])
def test_what_is_no_file_of_googles_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        read_credentials(text)

    assert "hidden" not in str(refused.value)


def test_credentials_are_not_in_what_is_printed_of_them() -> None:
    assert "hidden" not in repr(Credentials('{"type": "service_account", "private_key": "hidden"}'))


async def test_a_key_that_cannot_be_used_is_refused_without_quoting_it() -> None:
    said = {"type": "service_account", "client_email": "a@b", "token_uri": "https://b", "private_key": "hidden"}

    with pytest.raises(Unauthorized) as refused:
        await Session("us-central1", credentials=Credentials(json.dumps(said))).fetch_token()

    assert "hidden" not in str(refused.value)


async def test_the_project_is_the_one_that_is_named_or_that_of_the_credentials(web: WebServer) -> None:
    assert await _session(web).find_project() == PROJECT
    assert await _session(web, project="another-1").find_project() == "another-1"


async def test_where_tokens_come_from_may_be_silent_and_holds_up_nothing_else() -> None:
    """The event loop's own threads are few, and models are placed by them."""
    async with silence() as quiet:
        waiting = [
            asyncio.create_task(Session("us-central1", credentials=GoogleServer().credentials(quiet.url)).fetch_token())
            for _ in range(8)
        ]
        await quiet.until(8)
        for _ in range(8):
            assert await asyncio.wait_for(asyncio.to_thread(int), 5) == 0
    assert {type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)} == {Unreachable}


async def test_a_token_of_the_operator_is_exchanged_by_google_alone() -> None:
    """A Secret could have a file of the operator's pod be sent to whoever wrote it."""
    said = {
        "type": "external_account",
        "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/a/providers/b",
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": "https://sts.googleapis.com.example/v1/token",
        "credential_source": {"file": "/var/run/secrets/kubernetes.io/serviceaccount/token"},
    }
    with pytest.raises(Unauthorized, match="cannot be used"):
        await Session("us-central1", credentials=Credentials(json.dumps(said))).fetch_token()

    assert sessions._load({**said, "token_url": "https://sts.googleapis.com/v1/token"}) is not None


def test_another_account_is_stepped_into_by_its_name() -> None:
    key = json.loads(GoogleServer().credentials("http://127.0.0.1:1").text)
    url = "https://iamcredentials.googleapis.com/v1/projects/-/serviceAccounts/it@lab.example:generateAccessToken"
    said = {"type": "impersonated_service_account", "service_account_impersonation_url": url}

    assert sessions._load({**said, "source_credentials": key}).service_account_email == "it@lab.example"
    with pytest.raises(ValueError, match="no type that is known"):
        sessions._load({**said, "source_credentials": {"type": "executable"}})


def test_without_the_sdk_it_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "find_spec", lambda part: None if part.startswith("google") else find_spec(part))

    with pytest.raises(KubeconfigError, match=r"modelplane-operator\[gke\]"):
        Session("us-central1")


async def test_a_list_that_never_ends_is_given_up(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.pages[LISTED] = json.dumps({"items": [{"name": "a"}], "nextPageToken": "again"}).encode()
    monkeypatch.setattr(sessions, "PAGES", 3)
    session = _session(web)

    with pytest.raises(ServerFault, match="more than 3 pages"):
        await session.pages("compute", "global/firewalls", "items")

    assert len(web.sent(LISTED)) == 3
    await session.close()


async def test_an_answer_without_an_end_is_given_up(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.pages[LISTED] = b" " * 5000
    monkeypatch.setattr(sessions, "MOST", 4096)
    session = _session(web)

    with pytest.raises(ServerFault, match="an answer of more than"):
        await session.http("GET", "compute", "global/firewalls")

    await session.close()


async def test_a_token_follows_no_redirect(web: WebServer) -> None:
    with web_server() as elsewhere:
        web.redirects[LISTED] = f"{elsewhere.url}/"
        session = _session(web)

        with pytest.raises(ApiError):
            await session.http("GET", "compute", "global/firewalls")

        assert elsewhere.requests == []
        await session.close()


@pytest.mark.parametrize("text", [b"<html>", b"[]"])
async def test_an_answer_that_is_no_object_is_a_servers_fault(web: WebServer, text: bytes) -> None:
    web.pages[LISTED] = text
    session = _session(web)

    with pytest.raises(ServerFault):
        await session.http("GET", "compute", "global/firewalls")

    await session.close()


@pytest.mark.parametrize("body", [{}, {"error": "words"}, {"error": {"errors": None, "details": None}}])
def test_an_error_is_sorted_by_its_code_when_it_says_nothing(body: Mapping[str, Any]) -> None:
    assert type(of_http("a", 502, body)) is ServerFault
    assert type(of_http("a", 404, body)) is NotFound


async def test_nobody_there_is_told_as_that(web: WebServer) -> None:
    session = Session(
        "us-central1",
        credentials=GoogleServer().credentials(web.url),
        hosts={"compute": "http://127.0.0.1:1", "container": "http://127.0.0.1:1"},
    )
    with pytest.raises(Unreachable):
        await session.http("GET", "compute", "global/firewalls")
    with pytest.raises(Unreachable):
        await session.gke("get_cluster", name="a")

    await session.close()


@pytest.mark.parametrize(
    ("message", "given", "expected"),
    [
        ("", {"status": "NOT_FOUND"}, NotFound),
        ("Already exists: projects/p/clusters/a", {"status": "ALREADY_EXISTS"}, AlreadyExists),
        ("Cluster is running incompatible operation", {"status": "FAILED_PRECONDITION"}, Conflict),
        ("", {"status": "ABORTED"}, Conflict),
        ("Quota exceeded: requests per minute", {"status": "RESOURCE_EXHAUSTED"}, TooMany),
        ("Insufficient regional quota to satisfy request: resource CPUS", {"status": "FAILED_PRECONDITION"}, Exhausted),
        ("The zone does not have enough resources available", {"status": "UNKNOWN"}, Exhausted),
        ("Request had insufficient authentication scopes.", {"status": "PERMISSION_DENIED"}, Forbidden),
        ("Google Compute Engine: Insufficient Permission", {"code": 403}, Forbidden),
        ("has not been used", {"status": "PERMISSION_DENIED", "reasons": ["SERVICE_DISABLED"]}, NotPropagated),
        ("The resource is already being used by 'fw'", {"code": 400}, InUse),
        ("Invalid value", {"code": 400}, Invalid),
        ("", {"code": 502}, ServerFault),
        ("", {"status": "UNAUTHENTICATED"}, Unauthorized),
    ],
)
def test_what_google_refuses_is_sorted(message: str, given: Mapping[str, Any], expected: type[ApiError]) -> None:
    error = translate_error("compute POST a", message, **given)

    assert type(error) is expected
    assert str(error).startswith("compute POST a: ")


def test_reasons_are_read_where_each_service_has_them() -> None:
    compute = {"error": {"message": "Quota 'NETWORKS' exceeded", "errors": [{"reason": "quotaExceeded"}]}}
    others = {"error": {"message": "x", "details": [{"@type": "a"}, {"reason": "SERVICE_DISABLED"}]}}

    assert type(of_http("a", 403, compute)) is Exhausted
    assert type(of_http("a", 403, others)) is NotPropagated
    failed = {"errors": [{"code": "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "message": "in use"}]}
    assert type(of_operation("a", failed)) is InUse
