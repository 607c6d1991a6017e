"""Two servers on loopback: gRPC for GKE, HTTP for all else. Calls that change something are counted, and can fail."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from threading import Lock, Thread
from typing import Any, Literal
from urllib.parse import parse_qsl

import grpc
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from werkzeug.serving import WSGIRequestHandler, make_server

from modelplane_operator.clouds.gke.session import Credentials
from tests.support.builders import EPOCH
from tests.support.clouds import GivenOut
from tests.support.google.gke import Gke
from tests.support.google.rest import Rest
from tests.support.google.state import TAKES, Refused, State

PROJECT, REGION = "lab-1234", "us-central1"
MAIL = f"modelplane@{PROJECT}.iam.gserviceaccount.com"
TOKEN = "ya29.of-the-stand-in"  # noqa: S105 - it opens nothing
Fault = Literal["before", "after", "throttled"]
"""503 without effect; the effect, and no answer; too many requests."""


@dataclass
class GoogleServer:
    """Google as a test sees it."""

    now: datetime = EPOCH
    ticks: bool = False
    """Whether time is that of the machine, and not what a test says."""
    takes: Mapping[str, float] = field(default_factory=lambda: TAKES)
    faults: dict[int, Fault] = field(default_factory=dict[int, Fault])
    """What befalls a call that changes something, by its number."""
    calls: list[str] = field(default_factory=list[str])
    """Every request: by the SDK's method, or the verb, service and collection."""
    changes: int = 0
    denied: str = ""
    """What these credentials may not call."""
    given_out: GivenOut = field(default_factory=GivenOut)
    """The clusters of a local fleet that clusters on GKE are."""
    rest_port: int = 0
    grpc_port: int = 0
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = State(lambda: self.time, self.takes)
        self.gke = Gke(self.state, self.given_out.api_server)
        self._rest = Rest(self.state, PROJECT, REGION)
        self._lock = Lock()

    @property
    def time(self) -> datetime:
        return datetime.now(UTC) if self.ticks else self.now

    @property
    def hosts(self) -> Mapping[str, str]:
        return hosts(self.rest_port, self.grpc_port)

    def whose(self, token: str, local: str) -> str:
        """Who a token is of on a cluster of the local fleet: whoever administers the project does its clusters, too."""
        return MAIL if token == TOKEN and self.given_out.is_one(local) else ""

    def credentials(self, url: str = "") -> Credentials:
        """A key of a service account, whose tokens come from here. `url`: where that is, if not on loopback."""
        said = {
            "type": "service_account",
            "project_id": PROJECT,
            "client_email": MAIL,
            "private_key": _key(),
            "token_uri": f"{url or f'http://127.0.0.1:{self.rest_port}'}/token",
        }
        return Credentials(json.dumps(said))

    def serve(self, name: str, *, changes: bool, work: Callable[[], Any]) -> Any:
        """One request; raises Refused, and ConnectionError when the answer is to be lost."""
        with self._lock:
            self.calls.append(name)
            self.state.settle()
            fault: Fault | None = None
            if changes:
                self.changes += 1
                fault = self.faults.get(self.changes)
            if self.denied and name.startswith(self.denied):
                raise Refused("PERMISSION_DENIED", 403, "forbidden", f"Required permission for {name}")
            if fault == "before":
                raise Refused("UNAVAILABLE", 503, "backendError", "The service is unavailable")
            if fault == "throttled":
                raise Refused("RESOURCE_EXHAUSTED", 429, "rateLimitExceeded", "Quota exceeded: requests per minute")
            answer = work()
            if fault == "after":
                raise ConnectionError
            return answer

    def handler(self) -> grpc.GenericRpcHandler:
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                self._call(name, work), request_deserializer=asked.deserialize, response_serializer=said.serialize
            )
            for name, (asked, said, work) in self.gke.calls.items()
        }
        return grpc.method_handlers_generic_handler("google.container.v1.ClusterManager", methods)

    def _call(self, name: str, work: Callable[[Any], Any]) -> Callable[[Any, grpc.ServicerContext], Any]:
        def answer(asked: Any, context: grpc.ServicerContext) -> Any:
            if ("authorization", f"Bearer {TOKEN}") not in {
                (key, value) for key, value in context.invocation_metadata()
            }:
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "no token")
            try:
                reads = name.startswith(("Get", "List"))
                return self.serve(f"container {name}", changes=not reads, work=lambda: work(asked))
            except Refused as error:
                context.abort_with_status(rpc_status.to_status(_status(error)))
            except ConnectionError:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the connection was lost")

        return answer

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if path == "/token":
            start_response("200 OK", [("Content-Type", "application/json")])
            return [json.dumps({"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}).encode()]
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        try:
            if environ.get("HTTP_AUTHORIZATION") != f"Bearer {TOKEN}":
                raise Refused("UNAUTHENTICATED", 401, "authError", "no token")
            name = f"{path.split('/')[1]} {method} {_collection(path)}"
            said = self.serve(name, changes=method != "GET", work=lambda: self._rest.answer(method, path, query, body))
            status = "200 OK"
        except Refused as error:
            details = [{"reason": error.reason}]
            said = {"error": {"code": error.code, "message": error.message, "errors": details}}
            status = f"{error.code} -"
        except ConnectionError:
            environ["werkzeug.socket"].close()
            return []
        start_response(status, [("Content-Type", "application/json")])
        return [json.dumps(said).encode()]


def _status(error: Refused) -> Any:
    """As Google's services refuse over gRPC: the reason is in the details."""
    status = status_pb2.Status(code=getattr(grpc.StatusCode, error.status).value[0], message=error.message)
    if error.reason:
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain="googleapis.com"))
    return status


def hosts(rest: int, grpc: int, host: str = "127.0.0.1") -> Mapping[str, str]:
    """Where each service is, by the ports that there are."""
    services = {one: f"http://{host}:{rest}/{one}/v1" for one in ("compute", "file", "serviceusage")}
    return {"container": f"http://{host}:{grpc}", **services}


def _collection(path: str) -> str:
    """What a path is of, without names."""
    known = "services instances operations networks subnetworks firewalls forwardingRules targetPools backendServices "
    more = "networkEndpointGroups disks machineTypes acceleratorTypes regions projects removePeering"
    parts = [one.partition(":")[0] for one in path.split("/")]
    return next(one for one in reversed(parts) if one in {*known.split(), *more.split()})


@cache
def _key() -> str:
    made = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.PKCS8
    return made.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Nobody reads it."""


@contextmanager
def google_server(listener: socket.socket | None = None, **given: Any) -> Iterator[GoogleServer]:
    """A new, empty project. `listener`: where all but GKE is to be had, by a socket that listens there."""
    google = GoogleServer(**given)
    rpc = grpc.server(ThreadPoolExecutor(8))
    rpc.add_generic_rpc_handlers((google.handler(),))
    google.grpc_port = rpc.add_insecure_port("127.0.0.1:0")
    rpc.start()
    descriptor = listener.detach() if listener else None
    http = make_server("127.0.0.1", 0, google, threaded=True, request_handler=_Quiet, fd=descriptor)
    google.rest_port = http.socket.getsockname()[1]
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield google
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
        rpc.stop(None).wait()
