"""A real Traefik, or a real Envoy Gateway with its Envoy, at work for one API server, and what answers behind it."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, SOCK_DGRAM, socket

import pytest
import yaml

from localfleet import binaries, hostgateway
from localfleet.enclosure import Address
from localfleet.network import free_ports
from localfleet.processes import TIED
from modelplane_operator.api import labels
from modelplane_operator.routing.gateway.render import DATA_PLANES
from tests.support.api import Api
from tests.support.manifests import Manifest

NAMESPACE = "traefik-test"  # of this test alone: the API server is everybody's
START_SECONDS = 180
ADDRESS = "192.0.2.1"  # what a Gateway says; nobody dials it
SECRET_HEADERS = ("Authorization", "x-api-key")


@dataclass(frozen=True, slots=True)
class Front:
    """The running gateway."""

    backend: str
    port: int
    secure: int
    """Its port for https."""
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until_routed(self, *services: str) -> None:
        """Wait until it knows the route of every service, and what each leads to."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                if all(self.get(service)[0] == 200 for service in services):
                    return
            except OSError:
                pass
            time.sleep(0.2)
        pytest.fail(f"The gateway does not route:\n{self.log.read_text()[-3000:]}")

    def get(self, service: str, **headers: str) -> tuple[int, str]:
        """Status and body of an answer from a service."""
        url = f"http://127.0.0.1:{self.port}/{NAMESPACE}/{service}/v1/models?all=1"
        request = urllib.request.Request(url, headers={"Host": "front.example.com", **headers})
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # the URL is ours
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            return refusal.code, ""


class Echo(BaseHTTPRequestHandler):
    """Answers with what it was asked."""

    def do_GET(self) -> None:
        keys = [f"{name}={self.headers[name]}" for name in SECRET_HEADERS if self.headers[name]]
        body = " ".join([str(self.server.server_port), self.headers["Host"], self.path, *keys]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
        """Nothing."""


@contextmanager
def echo(port: int, context: ssl.SSLContext | None = None) -> Iterator[None]:
    server = ThreadingHTTPServer(("0.0.0.0", port), Echo)  # noqa: S104
    if context:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def own_address() -> str:
    """An address of this machine that an EndpointSlice may hold, which loopback is not. Nothing is sent."""
    with socket(AF_INET, SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))
        return probe.getsockname()[0]


@asynccontextmanager
async def opened(backend: str, api: Api, folder: Path, reached: Sequence[Address]) -> AsyncIterator[Front]:
    """A gateway at work, for which this process renders: on ports that are free, without a load balancer before it.

    It reaches the API server and these addresses of this machine; Traefik reaches all of them.
    """
    programs = binaries.ensure("gateway-api-crds", "envoy-gateway-crds", "traefik", "traefik-crds")
    kinds = (programs["gateway-api-crds"], programs["envoy-gateway-crds"])
    await api.define(*kinds, programs["traefik-crds"] / "01-traefik-crd.yml")
    await api.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(namespaces()))
    running = traefik(api.server.kubeconfig, programs["traefik"], folder)
    if backend == "EnvoyGateway":
        place = {"gateway": "modelplane", "namespace": "modelplane-system", "address": ADDRESS}
        kubectl = api.server.binaries["kubectl"]
        await asyncio.to_thread(hostgateway.stand_in, kubectl, api.server.kubeconfig, **place)
        running = envoy(api.server.kubeconfig, folder, reached)
    with pytest.MonkeyPatch.context() as patch, running as front:
        for name, port in {"PORT": front.port, "TLS_PORT": front.secure, "BALANCER_PORT": front.port}.items():
            patch.setattr(DATA_PLANES[backend], name, port)
        yield front


@contextmanager
def envoy(kubeconfig: Path, folder: Path, reached: Sequence[Address]) -> Iterator[Front]:
    ports = port, secure = free_ports(2)
    hosts, authorities = (folder / "hosts").read_text(), folder / "authorities.pem"
    trusted = authorities if authorities.exists() else None
    files = {"hosts": hosts, "authorities": trusted}
    with hostgateway.envoy_gateway(kubeconfig, folder / "envoy", ports, reached, **files) as it:
        yield Front("EnvoyGateway", port, secure, it.process, it.command.log)


@contextmanager
def traefik(kubeconfig: Path, program: Path, folder: Path) -> Iterator[Front]:
    port, secure = free_ports(2)
    script = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", script, "sh"]
    arguments = [
        *(f"--entryPoints.web.address=:{port}", f"--entryPoints.websecure.address=:{secure}"),
        *("--entryPoints.websecure.http.tls=true", "--providers.kubernetesgateway=true"),
        *("--providers.kubernetescrd=true", f"--providers.kubernetescrd.labelselector={labels.OWNER_UID}"),
        *("--providers.providersThrottleDuration=100ms", "--global.checknewversion=false"),
        *("--global.sendanonymoususage=false", f"--providers.kubernetesgateway.statusaddress.ip={ADDRESS}"),
    ]
    trust = {"SSL_CERT_FILE": str(folder / "authorities.pem"), "SSL_CERT_DIR": str(folder / "none")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*TIED, *unshare, str(folder / "hosts"), str(program), *arguments],
            env={**os.environ, **trust, "KUBECONFIG": str(kubeconfig)},
            stdout=log,
            stderr=log,
        )
        try:
            yield Front("Traefik", port, secure, process, folder / "log")
        finally:
            process.terminate()
            process.wait(timeout=30)


def namespaces() -> list[Manifest]:
    wanted = (NAMESPACE, "modelplane-system", "envoy-gateway-system")
    return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in wanted]
