"""One HTTP server for all services, on loopback: it counts what changes something, and can fail it on either side."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from io import BytesIO
from threading import Lock, Thread
from typing import Any, Literal
from urllib.parse import parse_qs

from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID
from moto.iam.models import AWSManagedPolicy, iam_backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from modelplane_operator.rendering.clusters.eks.identity import POLICIES_OF
from tests.support.aws.eks import Eks
from tests.support.aws.model import RestJson
from tests.support.builders import EPOCH

REGION = "us-west-2"
_SERVICE = re.compile(r"/\d{8}/[^/]+/([^/]+)/aws4_request")
_READS = ("Describe", "Get", "List")
Fault = Literal["before", "after", "throttled"]
"""503 without effect; the effect, and a connection that ends without an answer; too many requests."""


@dataclass
class AwsServer:
    """AWS as a test sees it."""

    now: datetime = EPOCH
    faults: dict[int, Fault] = field(default_factory=dict[int, Fault])
    """What befalls a call that changes something, by its number."""
    calls: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Every request: service and operation."""
    changes: int = 0
    denied: str = ""
    """The service that these credentials may not call."""
    url: str = ""
    eks: Eks = field(init=False)

    def __post_init__(self) -> None:
        self.eks = Eks(REGION, lambda: self.now)
        self._eks, self._efs = RestJson("eks", self.eks), RestJson("efs", None)
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._lock = Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)
        match = _SERVICE.search(environ.get("HTTP_AUTHORIZATION", ""))
        service = {"elasticloadbalancing": "elb", "elasticfilesystem": "efs"}.get(
            name := match[1] if match else "", name
        )
        with self._lock:  # moto's models are not made for many at once
            return self._answered(service, environ, body, start_response)

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
        if service != "eks":
            return list(self._moto(environ, start_response))
        path = environ.get("RAW_URI", environ["PATH_INFO"]).partition("?")[0]
        status, headers, answer = self._eks.answer(
            environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), body
        )
        start_response(f"{status} -", [("Content-Type", "application/json"), *headers.items()])
        return [answer]

    def _operation(self, service: str, environ: dict[str, Any], body: bytes) -> str:
        path = environ.get("RAW_URI", environ["PATH_INFO"]).partition("?")[0]
        if service == "eks":
            return self._eks.operation(environ["REQUEST_METHOD"], path)
        if service == "efs":
            return self._efs.operation(environ["REQUEST_METHOD"], path)
        return parse_qs(body.decode(errors="replace")).get("Action", [""])[0]


def _error(service: str, code: str) -> bytes:
    if service in ("eks", "efs"):
        return f'{{"message": "{code}", "ErrorCode": "{code}"}}'.encode()
    if service == "ec2":
        return f"<Response><Errors><Error><Code>{code}</Code><Message>-</Message></Error></Errors></Response>".encode()
    return f"<ErrorResponse><Error><Code>{code}</Code><Message>-</Message></Error></ErrorResponse>".encode()


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Nobody reads it."""


@contextmanager
def aws_server() -> Iterator[AwsServer]:
    """A new, empty AWS."""
    aws = AwsServer()
    reset()
    server = make_server("127.0.0.1", 0, aws, threaded=True, request_handler=_Quiet)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    aws.url = f"http://127.0.0.1:{server.server_port}"
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
