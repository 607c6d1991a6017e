"""One HTTP server for all services, on loopback: it counts what changes something, and can fail it on either side."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from threading import Lock, Thread
from typing import Any, Literal
from urllib.parse import parse_qs

import orjson
from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.efs.models import efs_backends
from moto.iam.models import AWSManagedPolicy, iam_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from modelplane_operator.clouds.eks.render.identity import POLICIES_OF
from tests.support.aws.eks import ACCOUNT, TAKES, Eks
from tests.support.aws.model import Json, RestJson, ec2_xml
from tests.support.aws.quotas import Quotas
from tests.support.aws.tokens import reviewed, signer
from tests.support.builders import EPOCH
from tests.support.clouds import GivenOut

REGION = "us-west-2"
SECRETS = {"AKIAEXAMPLE": "secret"}
"""The keys that tokens may be signed by."""
REVIEWS = "/token-reviews/"
"""Where API servers of a local fleet ask whose a token is; behind it is which of them asks."""
_SERVICE = re.compile(r"/\d{8}/[^/]+/([^/]+)/aws4_request")
RESERVATIONS = "DescribeCapacityReservations"
_READS = ("Describe", "Get", "List")
# Else moto reads hundreds of images at every reset, which nobody here asks for.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
Fault = Literal["before", "after", "throttled"]
"""503 without effect; the effect, and a connection that ends without an answer; too many requests."""


@dataclass
class AwsServer:
    """AWS as a test sees it."""

    now: datetime = EPOCH
    ticks: bool = False
    """Whether time is that of the machine, and not what a test says."""
    takes: Mapping[str, float] = field(default_factory=lambda: TAKES)
    """The seconds that EKS takes."""
    given_out: GivenOut = field(default_factory=GivenOut)
    """The clusters of a local fleet that clusters on EKS are."""
    whose_else: Callable[[str, str], str] = lambda _, __: ""
    """Who a token of another cloud is of on a cluster of that fleet; empty for nobody."""
    faults: dict[int, Fault] = field(default_factory=dict[int, Fault])
    """What befalls a call that changes something, by its number."""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Every request: service and operation."""
    changes: int = 0
    denied: str = ""
    """The service that these credentials may not call."""
    url: str = ""
    eks: Eks = field(init=False)
    quotas: Quotas = field(init=False)

    def __post_init__(self) -> None:
        self.eks = Eks(REGION, lambda: self.time, self.takes, self.given_out.api_server)
        self.quotas = Quotas()
        self._eks, self._efs = RestJson("eks", self.eks), RestJson("efs", None)
        self._quotas = Json("service-quotas", self.quotas)
        self._moto = _moto()
        self._lock = Lock()

    @property
    def time(self) -> datetime:
        return datetime.now(UTC) if self.ticks else self.now

    @property
    def left(self) -> list[str]:
        """All that the account has, but for what every account has."""
        with self._lock:
            ec2, iam = ec2_backends[ACCOUNT][REGION], iam_backends[ACCOUNT]["aws"]
            mine = [vpc.id for vpc in ec2.vpcs.values() if not vpc.is_default]
            return [
                *mine,
                *(one.id for one in ec2.describe_subnets() if one.vpc_id in mine),
                *ec2.internet_gateways,
                *(one.allocation_id for one in ec2.describe_addresses()),
                *(one.id for one in ec2.nat_gateways.values() if one.state != "deleted"),
                *ec2.launch_templates,
                *(group for groups in ec2.groups.values() for group, one in groups.items() if one.name != "default"),
                *(role.name for role in iam.roles.values()),
                *efs_backends[ACCOUNT][REGION].file_systems_by_id,
                *self.eks.left,
            ]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        _, whose, local = environ["PATH_INFO"].rpartition(REVIEWS)
        if whose:
            with self._lock:
                answer = orjson.dumps(reviewed(orjson.loads(body), lambda token: self._whose(token, local)))
            start_response("200 OK", [("Content-Type", "application/json")])
            return [answer]
        environ["wsgi.input"] = BytesIO(body)
        match = _SERVICE.search(environ.get("HTTP_AUTHORIZATION", ""))
        service = {"elasticloadbalancing": "elb", "elasticfilesystem": "efs"}.get(
            name := match[1] if match else "", name
        )
        with self._lock:  # moto's models are not made for many at once
            return self._answered(service, environ, body, start_response)

    def _whose(self, token: str, local: str) -> tuple[str, bool]:
        """Who a token is of on a cluster of the local fleet, and whether that may do everything there."""
        for cluster in (name for name, its in self.given_out.to.items() if its == local):
            if key := signer(token, cluster, self.time, SECRETS):
                principal: str = get_backend("sts")[DEFAULT_ACCOUNT_ID]["aws"].get_caller_identity(key, REGION)[1]
                return principal, self.eks.administers(cluster, principal)
        elsewhere = self.whose_else(token, local)
        return elsewhere, bool(elsewhere)

    def _answered(self, service: str, environ: dict[str, Any], body: bytes, start_response: Any) -> Any:
        operation = self._operation(service, environ, body)
        self.calls.append((service, operation))
        fault: Fault | None = None
        if not operation.startswith(_READS):
            self.changes += 1
            fault = self.faults.get(self.changes)
        if fault in ("before", "throttled") or service == self.denied:
            codes = {"throttled": "Throttling", "before": "ServiceUnavailable"}
            code = codes.get(fault or "", "UnauthorizedOperation")
            status = "503 Service Unavailable" if fault == "before" else "400 Bad Request"
            start_response(status, [("x-amzn-ErrorType", code)])
            return [_error(service, code)]
        answer = self._serve(service, environ, body, start_response)
        if fault == "after":
            environ["werkzeug.socket"].close()
        return answer

    def _serve(self, service: str, environ: dict[str, Any], body: bytes, start_response: Any) -> Any:
        if service == "servicequotas":
            code, said = self._quotas.answer(self._operation(service, environ, body), body)
            start_response(f"{code} -", [("Content-Type", "application/x-amz-json-1.1")])
            return [said]
        if self._operation(service, environ, body) == RESERVATIONS:
            return self._reservations(parse_qs(body.decode())["CapacityReservationId.1"][0], start_response)
        if service != "eks":
            return list(self._moto(environ, start_response))
        path = environ.get("RAW_URI", environ["PATH_INFO"]).partition("?")[0]
        status, headers, answer = self._eks.answer(
            environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), body
        )
        start_response(f"{status} -", [("Content-Type", "application/json"), *headers.items()])
        return [answer]

    def _reservations(self, name: str, start_response: Any) -> Any:
        block = self.quotas.blocks.get(name)
        start_response("200 OK" if block else "400 Bad Request", [("Content-Type", "text/xml")])
        if block is None:
            return [_error("ec2", "InvalidCapacityReservationId.NotFound")]
        return [ec2_xml(RESERVATIONS, "CapacityReservations", [{"CapacityReservationId": name, **block}])]

    def _operation(self, service: str, environ: dict[str, Any], body: bytes) -> str:
        path = environ.get("RAW_URI", environ["PATH_INFO"]).partition("?")[0]
        if service == "eks":
            return self._eks.operation(environ["REQUEST_METHOD"], path)
        if service == "servicequotas":
            return str(environ["HTTP_X_AMZ_TARGET"]).rpartition(".")[2]
        if service == "efs":
            return self._efs.operation(environ["REQUEST_METHOD"], path)
        return parse_qs(body.decode(errors="replace")).get("Action", [""])[0]


def _error(service: str, code: str) -> bytes:
    if service in ("eks", "efs", "servicequotas"):
        return f'{{"message": "{code}", "ErrorCode": "{code}"}}'.encode()
    if service == "ec2":
        return f"<Response><Errors><Error><Code>{code}</Code><Message>-</Message></Error></Errors></Response>".encode()
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>-</Message></Error></ErrorResponse>".encode()


@cache
def _moto() -> DomainDispatcherApplication:
    """Moto's answers to requests, for all servers after each other: what it knows of an account is not in there.

    It would look through its own folder to find the service of each request, and through its modules for each server.
    """
    found = DomainDispatcherApplication(create_backend_app)
    found.get_backend_for_host = cache(found.get_backend_for_host)  # type: ignore[method-assign]
    return found


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Nobody reads it."""


@contextmanager
def aws_server(listener: socket.socket | None = None, **given: Any) -> Iterator[AwsServer]:
    """A new, empty AWS. `listener`: where it is to be had, by a socket that listens there."""
    aws = AwsServer(**given)
    reset()
    descriptor = listener.detach() if listener else None
    server = make_server("127.0.0.1", 0, aws, threaded=True, request_handler=_Quiet, fd=descriptor)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    aws.url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
    try:
        yield aws
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def reset() -> None:
    """Forget all that moto has."""
    for service in ("ec2", "iam", "efs", "elb", "elbv2", "sts"):
        get_backend(service).reset()  # type: ignore[arg-type]
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    for name in {one for policies in POLICIES_OF.values() for one in policies}:  # all of AWS's would take seconds
        path, _, last = name.rpartition("/")
        made = AWSManagedPolicy(last, DEFAULT_ACCOUNT_ID, "aws", document="{}", path=f"/{path}/" if path else "/")
        iam.managed_policies[made.arn] = made
