"""Who we are on AWS: keys, roles, tokens for clusters; and what AWS refuses, as our errors."""

from __future__ import annotations

import asyncio
import base64
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.loaders import Loader
from botocore.model import ServiceModel

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
from modelplane_operator.clouds.eks import session as sessions
from modelplane_operator.clouds.eks.errors import translate_error
from modelplane_operator.clouds.eks.permissions import changes, reads
from modelplane_operator.clouds.eks.session import Credentials, Session, read_credentials
from tests.support.silence import silence


async def test_a_token_for_a_cluster_is_a_signed_question_who_we_are() -> None:
    made = await Session("eu-west-1", Credentials("AKIAEXAMPLE", "secret")).cluster_token("berlin")

    prefix, _, encoded = made.partition(".")
    assert prefix == "k8s-aws-v1"
    url = urlsplit(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
    asked = parse_qs(url.query)
    assert url.hostname == "sts.eu-west-1.amazonaws.com"
    assert asked["Action"] == ["GetCallerIdentity"]
    assert asked["X-Amz-Expires"] == ["60"]
    assert asked["X-Amz-SignedHeaders"] == ["host;x-k8s-aws-id"]
    assert asked["X-Amz-Credential"][0].startswith("AKIAEXAMPLE/")
    assert "secret" not in made


def test_credentials_are_those_of_awss_own_file() -> None:
    keys = "[default]\naws_access_key_id = AKIA\naws_secret_access_key = s%cret\n"

    assert read_credentials(keys) == Credentials("AKIA", "s%cret")
    assumed = read_credentials("[default]\nrole_arn = arn:aws:iam::1:role/a\nexternal_id = x\n")
    assert assumed == Credentials(role="arn:aws:iam::1:role/a", external_id="x")


@pytest.mark.parametrize(
    "text", ["", "[other]\naws_access_key_id=x\n", "no file", "[default]\naws_access_key_id=AKIA\n"]
)
def test_what_is_no_such_file_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(Unauthorized) as refused:
        read_credentials(text)

    assert "AKIA" not in str(refused.value)


def test_credentials_are_not_in_what_is_printed_of_them() -> None:
    assert "hidden" not in repr(Credentials("AKIAhidden", "hidden", "hidden", external_id="hidden"))


def test_without_the_sdk_it_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(part: str) -> Any:
        if part.startswith("boto"):
            raise ImportError(part)
        return import_module(part)

    monkeypatch.setattr(sessions, "import_module", missing)

    with pytest.raises(KubeconfigError, match=r"modelplane-operator\[eks\]"):
        Session("eu-west-1")


def _answer(code: str, message: str = "", status: int = 400) -> dict[str, Any]:
    return {"Error": {"Code": code, "Message": message}, "ResponseMetadata": {"HTTPStatusCode": status}}


@pytest.mark.parametrize(
    ("code", "message", "expected"),
    [
        ("RequestLimitExceeded", "", TooMany),
        ("ThrottlingException", "", TooMany),
        ("ResourceInUseException", "Cluster has nodegroups attached", InUse),
        ("ResourceInUseException", "Cluster already exists with name: a", AlreadyExists),
        ("ResourceInUseException", "Nodegroup is being updated", Conflict),
        ("InvalidRequestException", "cluster a is not ACTIVE", Conflict),
        (
            "InvalidParameterException",
            "Role with arn: a, cannot be assumed",
            NotPropagated,
        ),
        ("InvalidParameterException", "The following supplied instance types do not exist", Invalid),
        ("InvalidGroup.NotFound", "", NotFound),
        ("InvalidVpcID.NotFound", "", NotFound),
        ("DependencyViolation", "", InUse),
        ("DeleteConflict", "", InUse),
        ("VcpuLimitExceeded", "", Exhausted),
        ("UnauthorizedOperation", "", Forbidden),
        ("ExpiredToken", "", Unauthorized),
        ("InvalidParameterValue", "", Invalid),
        ("EntityAlreadyExists", "", AlreadyExists),
    ],
)
def test_what_aws_refuses_is_sorted(code: str, message: str, expected: type[ApiError]) -> None:
    error = translate_error(_answer(code, message), "ec2 create_vpc")

    assert type(error) is expected
    assert str(error).startswith("ec2 create_vpc: ")


def test_whatever_else_a_server_fails_on_may_have_had_its_effect() -> None:
    assert type(translate_error(_answer("SomethingNew", status=503), "x")) is ServerFault
    assert type(translate_error(_answer("SomethingNew"), "x")) is Invalid


PERMANENT = {
    "AvailabilityZonesMismatch",
    "BadRequest",
    "BadRequestException",
    "ClientException",
    "InvalidInput",
    "InvalidInputException",
    "InvalidParameterException",
    "InvalidRequestException",
    "IpAddressInUse",
    "MalformedPolicyDocument",
    "PolicyNotAttachable",
    "UnmodifiableEntity",
    "UnsupportedAvailabilityZone",
}
"""What nothing but another spec mends."""


@pytest.mark.parametrize("service", ["eks", "efs", "iam"])
def test_every_error_that_a_call_of_ours_can_have_has_a_meaning(service: str) -> None:
    """By the service's own model; EC2 has none of its errors."""
    model = ServiceModel(Loader().load_service_model(service, "service-2"), service)
    ours = {part.partition(":")[2] for part in reads() | changes()}
    operations = [model.operation_model(name) for name in model.operation_names if name in ours]
    shapes = [shape for operation in operations for shape in operation.error_shapes]
    errors = [(shape.name, shape.metadata.get("error", {})) for shape in shapes]
    told = {error.get("code") or name: error.get("httpStatusCode", 400) for name, error in errors}

    unsorted = {
        code for code, status in told.items() if type(translate_error(_answer(code, status=status), "x")) is Invalid
    }

    assert unsorted <= PERMANENT


async def test_what_waited_too_long_for_a_thread_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been announced, and others count on its having been made by now, or never."""
    monkeypatch.setattr(sessions, "QUEUED", -1.0)

    with pytest.raises(TooMany, match="nothing was sent"):
        await Session("eu-west-1", Credentials("AKIAEXAMPLE", "secret"), "http://127.0.0.1:9").call(
            "ec2", "create_vpc", {}
        )


async def test_an_account_that_does_not_answer_takes_the_threads_of_no_other() -> None:
    async with silence() as quiet:
        there = Session("eu-west-1", Credentials("AKIAEXAMPLE", "secret"), quiet.url)
        calls = [asyncio.create_task(there.call("sts", "get_caller_identity", {})) for _ in range(2 * sessions.AT_ONCE)]
        await quiet.until(sessions.EACH)

        elsewhere = Session("us-west-2", Credentials("AKIAEXAMPLE", "secret"), "http://127.0.0.1:9")
        with pytest.raises(Unreachable):
            await asyncio.wait_for(elsewhere.call("sts", "get_caller_identity", {}), 15)
        assert quiet.asked == sessions.EACH
    assert {type(error) for error in await asyncio.gather(*calls, return_exceptions=True)} <= {Unreachable, TooMany}
