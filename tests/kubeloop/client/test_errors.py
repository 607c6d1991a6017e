"""What is told of a refusal, and how long a server may make us wait: whatever its Retry-After says, or nothing."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client.access import Access
from kubeloop.client.errors import LONGEST_PAUSE, origin, pause, refusal
from kubeloop.client.kube import Kube, connect
from kubeloop.errors import ApiError, Forbidden, Misbehaving, ServerFault
from kubeloop.objects import Key
from kubeloop.repeats import Repeats
from kubeloop.types import SECRET
from modelplane_operator.clouds.eks.errors import translate_error

NOW = datetime(2026, 11, 22, 16, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (None, None),
        ("", None),
        ("7", 7.0),
        (" 7 ", 7.0),
        ("60", 60.0),
        ("3153600000", LONGEST_PAUSE),  # a century
        ("9" * 5000, LONGEST_PAUSE),
        ("0", None),
        ("-5", None),
        ("1.5", None),
        ("1e9", None),
        ("inf", None),
        ("nan", None),
        ("²", None),
        ("٣", None),
        ("Sun, 22 Nov 2026 16:00:09 GMT", 9.0),
        ("Sun, 22 Nov 2126 16:00:09 GMT", LONGEST_PAUSE),
        ("Sun, 22 Nov 2026 15:00:09 GMT", None),
        ("Sun, 22 Nov 2026 16:00:09 -0000", None),
        ("Sun, 99 Nov 99999999 16:00:09 GMT", None),
    ],
)
def test_a_pause_is_a_minute_at_most_and_what_is_no_pause_is_none(said: str | None, seconds: float | None) -> None:
    assert pause(said, now=NOW) == seconds


def test_a_server_that_is_not_ready_is_told_by_its_failing_checks() -> None:
    checks = ["[+]ping ok", *(f"[+]poststarthook/some-{number} ok" for number in range(40)), "readyz check failed"]
    checks[30:30] = ["[-]etcd failed: reason withheld", "[-]poststarthook/rbac/bootstrap-roles failed: not finished"]
    found = refusal(500, "\n".join(checks).encode(), operation="GET /readyz")
    assert isinstance(found, ServerFault)
    assert str(found) == "GET /readyz: 500; failing: etcd, poststarthook/rbac/bootstrap-roles"
    many = "\n".join(f"[-]check-{number} failed" for number in range(9)).encode()
    assert str(refusal(500, many, operation="x")) == "x: 500; failing: check-0, check-1, check-2 and 6 more"


@given(st.text() | st.from_regex(r"\w{3}, \d+ (Jan|Nov) \d+ \d+:\d+:\d+ ([A-Z]{3}|[+-]\d+)"))
def test_nothing_that_a_server_says_is_too_strange(said: str) -> None:
    found = pause(said, now=NOW)

    assert found is None or 0 < found <= LONGEST_PAUSE


@pytest.mark.parametrize("field", ["message", "reason", "details"])
@pytest.mark.parametrize("secret", [False, True])
def test_a_status_of_any_shape_is_an_error_of_the_server(field: str, *, secret: bool) -> None:
    deep = b"[" * 1000 + b"]" * 1000
    error = refusal(500, b'{"kind":"Status","%s":%s}' % (field.encode(), deep), operation="GET x", secret=secret)

    assert type(error) is ServerFault
    assert len(str(error)) < 400


def test_a_defect_is_counted_by_where_it_arises() -> None:
    repeats = Repeats()

    def broken() -> int | None:
        try:
            raise RuntimeError("a defect")
        except RuntimeError as error:
            return repeats.worth(("reconcile failed", type(error), origin(error)))

    assert [broken() for _ in range(4)] == [1, 2, None, 4]


CANARY = "aGZfQ0FOQVJZX1NFQ1JFVA=="
METADATA = {"name": "hf", "namespace": "team", "resourceVersion": "1"}
TOKEN = {"apiVersion": "v1", "kind": "Secret", "metadata": METADATA, "data": {"token": CANARY}}
FILTER = {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-api-key", "value": CANARY}]}}
ROUTE = {
    "apiVersion": "gateway.networking.k8s.io/v1",
    "kind": "HTTPRoute",
    "metadata": METADATA,
    "spec": {"rules": [{"filters": [FILTER]}]},
}
SETTING = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": METADATA, "data": {"setting": CANARY}}


@asynccontextmanager
async def answering(answer: Callable[[web.Request], Awaitable[web.Response]]) -> AsyncIterator[Kube]:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with connect(Access(f"http://127.0.0.1:{runner.addresses[0][1]}")) as kube:
        yield kube
    await runner.cleanup()


async def test_a_kind_whose_name_is_no_text_is_none_that_a_server_has() -> None:
    deep, good = b"[" * 1000 + b"]" * 1000, b'{"kind":"Good","name":"goods"}'

    async def answer(_: web.Request) -> web.Response:
        body = b'{"resources":[{"kind":%s,"name":"a"},{"kind":"A","name":%s},%s]}' % (deep, deep, good)
        return web.Response(body=body, content_type="application/json")

    async with answering(answer) as kube:
        assert await kube.serves("example.com/v1") == {"Good"}


@pytest.fixture
async def chatty() -> AsyncIterator[Kube]:
    """A server with a webhook that refuses all and quotes it."""

    async def answer(request: web.Request) -> web.Response:
        quoted = (await request.read()).decode()
        message = f'admission webhook "policy.example.com" denied the request: rejected: {quoted} {CANARY}'
        details = {"causes": [{"message": quoted}]}
        status = {"kind": "Status", "code": 403, "reason": "Forbidden", "message": message, "details": details}
        return web.json_response(status, status=403)

    async with answering(answer) as kube:
        yield kube


@pytest.mark.parametrize(
    "write",
    [
        lambda kube: kube.apply(TOKEN),
        lambda kube: kube.create(TOKEN),
        lambda kube: kube.replace(TOKEN),
        lambda kube: kube.set_data(SECRET, Key("team", "hf"), {"token": CANARY}, "1"),
        lambda kube: kube.delete(SECRET, Key("team", "hf"), uid="u"),
        lambda kube: kube.apply(ROUTE),
    ],
    ids=["apply", "create", "replace", "set_data", "delete", "credentials in a route"],
)
async def test_a_refusal_that_quotes_a_secret_is_told_without_it(
    chatty: Kube, write: Callable[[Kube], Awaitable[Any]]
) -> None:
    told = re.escape('refuses with 403 Forbidden (admission webhook "policy.example.com")')
    with pytest.raises(Forbidden, match=told) as caught:
        await write(chatty)
    assert CANARY not in f"{caught.value}{caught.value.details}"


async def test_a_refusal_of_what_is_no_secret_is_told_as_it_is(chatty: Kube) -> None:
    with pytest.raises(Forbidden, match=CANARY):
        await chatty.apply(SETTING)


def refused(status: int, message: str, **more: Any) -> ApiError:
    return refusal(status, orjson.dumps({"message": message, **more}), operation="apply secrets hf", secret=True)


@pytest.mark.parametrize(
    ("status", "message", "told"),
    [
        (
            403,
            'secrets "hf" is forbidden: User "system:serviceaccount:modelplane-system:operator" cannot patch resource '
            '"secrets" in API group "" in the namespace "team"',
            'User "system:serviceaccount:modelplane-system:operator" cannot patch resource "secrets" in API group "" '
            'in the namespace "team"',
        ),
        (
            422,
            "secrets \"hf\" is forbidden: ValidatingAdmissionPolicy 'small' with binding 'b' denied request: aGZf",
            "ValidatingAdmissionPolicy 'small'",
        ),
        (403, 'secrets "hf" is forbidden: exceeded quota: few, requested: secrets=1', "exceeded quota: few"),
        (404, 'namespaces "team" not found', 'namespaces "team" not found'),
        (403, "unable to create new content because it is being terminated", "because it is being terminated"),
    ],
    ids=["RBAC", "policy", "quota", "no namespace", "terminating"],
)
def test_what_quotes_nothing_of_a_secret_is_told(status: int, message: str, told: str) -> None:
    error = str(refused(status, message, reason="aGZf aGZf"))

    assert f"refuses with {status} ({told});" in error
    assert "aGZf" not in error


def test_credentials_that_are_refused_are_told_as_such_of_a_secret_too() -> None:
    assert "give the kubeconfig others" in str(refused(401, "Unauthorized"))


def test_what_aws_quotes_of_a_signed_request_is_not_told() -> None:
    message = (
        "The request signature we calculated does not match the signature you provided.\n\n"
        "The Canonical String for this request should have been\n'POST\n/\n\nx-amz-security-token:FwoGZXIvYXdz"
    )
    error = translate_error({"Error": {"Code": "SignatureDoesNotMatch", "Message": message}}, "sts GetCallerIdentity")

    assert "does not match the signature you provided. (SignatureDoesNotMatch)" in str(error)
    assert "FwoG" not in str(error)


async def test_an_answer_about_a_token_that_is_none_is_no_defect_of_ours() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"status": "text"})

    async with answering(answer) as kube:
        with pytest.raises(Misbehaving, match="the status is no object"):
            await kube.request_token(Key("team", "a"), 600)
