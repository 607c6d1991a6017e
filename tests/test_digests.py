"""Digests are asked of registries, and a release that lacks one is told.

The registry is a stand-in on loopback that speaks the distribution API: it gives its manifests to whoever has fetched a
token first, as public ones do.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar

import pytest
import yaml

from kubeloop.helm.release import Release
from modelplane_operator.api import InferenceGateway, ServingStack
from modelplane_operator.clusters.stack.digests import DIGESTS, chart_reference
from modelplane_operator.clusters.stack.render import parts
from modelplane_operator.routing.gateway.render.software import gateway_parts
from scripts.digests import (
    ARCHIVE,
    DOCKERFILE,
    TABLE,
    Registries,
    Unresolved,
    Wanted,
    base,
    missing,
    wanted,
    with_table,
)
from tests.support.web_server import on_loopback

OF_ARCHIVE = f"sha256:{hashlib.sha256(b'archive').hexdigest()}"
IMAGE = json.dumps({"manifests": [{"platform": {"architecture": "arm64"}}]}).encode()
CHART = json.dumps(
    {
        "config": {"digest": f"sha256:{'1' * 64}"},
        "layers": [
            {"mediaType": "application/vnd.cncf.helm.chart.provenance.v1.prov", "digest": f"sha256:{'2' * 64}"},
            {"mediaType": ARCHIVE, "digest": OF_ARCHIVE},
        ],
    }
).encode()
EMPTY = json.dumps({"layers": []}).encode()
INDEX = yaml.safe_dump(
    {"entries": {"toy": [{"version": "v1.2.3", "digest": OF_ARCHIVE.removeprefix("sha256:")}, {"version": "v1.2.2"}]}}
).encode()


class Registry(BaseHTTPRequestHandler):
    """Answers as a registry and as a repository."""

    manifests: ClassVar = {
        "team/picker/manifests/v1": IMAGE,
        "charts/toy/manifests/v2": CHART,
        "charts/empty/manifests/v2": EMPTY,
    }

    def do_GET(self) -> None:
        port = self.server.server_address[1]
        path = self.path.removeprefix("/v2/")
        if self.path.startswith("/token?"):
            self.answer(json.dumps({"token": "hush"} if "scope=pull" in self.path else {}).encode())
        elif self.path == "/repository/index.yaml":
            self.answer(INDEX)
        elif self.headers.get("Authorization") != "Bearer hush":
            challenge = f'Bearer realm="http://127.0.0.1:{port}/token",service="registry",scope="pull"'
            self.answer(b"", status=401, **{"WWW-Authenticate": challenge})
        elif path.startswith("lying/"):
            self.answer(IMAGE, **{"Docker-Content-Digest": f"sha256:{'3' * 64}"})
        elif found := self.manifests.get(path):
            self.answer(found, **{"Docker-Content-Digest": f"sha256:{hashlib.sha256(found).hexdigest()}"})
        else:
            self.answer(b"", status=404)

    def answer(self, body: bytes, *, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: a test's output is its own."""


@pytest.fixture(scope="module")
def registries() -> Iterator[Registries]:
    with on_loopback(Registry) as url:
        yield Registries(lambda _: url)


@pytest.mark.parametrize(
    ("one", "digest"),
    [
        (Wanted("registry.example/team/picker:v1"), f"sha256:{hashlib.sha256(IMAGE).hexdigest()}"),
        (Wanted("oci://registry.example/charts/toy:v2", "chart in a registry"), OF_ARCHIVE),
        (Wanted("https://charts.example/repository/toy:1.2.3", "chart in a repository"), OF_ARCHIVE),
    ],
)
def test_a_digest_is_what_the_registry_has_under_that_version(registries: Registries, one: Wanted, digest: str) -> None:
    assert registries.digest(one) == digest


@pytest.mark.parametrize(
    ("one", "why"),
    [
        (Wanted("registry.example/team/picker:v9"), "404"),
        (Wanted("registry.example/lying/picker:v1"), "not what its digest says"),
        (Wanted("oci://registry.example/charts/empty:v2", "chart in a registry"), "there is none"),
        (Wanted("https://charts.example/repository/toy:9.9.9", "chart in a repository"), "there is none"),
        (Wanted("https://charts.example/repository/toy:1.2.2", "chart in a repository"), "one digest should be there"),
    ],
)
def test_what_a_registry_does_not_say_is_not_made_up(registries: Registries, one: Wanted, why: str) -> None:
    with pytest.raises(Unresolved, match=why):
        registries.digest(one)


def test_nobody_is_asked_without_tls() -> None:
    with pytest.raises(Unresolved, match="it is no https"):
        Registries(lambda host: f"http://{host}").digest(Wanted("registry.example/team/picker:v1"))


def test_the_table_is_written_with_what_was_found_and_nothing_else_of_the_module_changes() -> None:
    module = TABLE.read_text()

    assert with_table(with_table(module, {"a:1": OF_ARCHIVE}), DIGESTS).split() == module.split()
    assert f'"a:1": (\n        "{OF_ARCHIVE}"\n    ),\n}}\n' in with_table(module, {"a:1": OF_ARCHIVE})


def test_a_release_is_told_what_has_no_digest() -> None:
    whole = {one.reference: OF_ARCHIVE for one in wanted()}
    dockerfile = "ARG BASE_IMAGE=python:3.13-slim\nFROM ${BASE_IMAGE}\n"
    pinned = dockerfile.replace("slim\n", f"slim@{OF_ARCHIVE}\n", 1)

    assert list(missing(whole, pinned)) == []
    assert list(missing(whole, dockerfile)) == ["docker.io/library/python:3.13-slim"]
    first = wanted()[0].reference
    assert list(missing({**whole, first: "sha256:0f"}, pinned)) == [first]
    assert base(DOCKERFILE.read_text())[0].reference.startswith("docker.io/library/python:")


def test_the_table_has_nothing_that_is_not_fetched() -> None:
    assert DIGESTS.keys() <= {one.reference for one in wanted()}


NAMED = [{"name": name} for name in ("cert-manager", "ai-gateway-crds", "ai-gateway")]  # those that no stack has itself


def test_charts_are_looked_up_as_they_are_written_down() -> None:
    metadata = {"name": "any", "namespace": "platform", "uid": "u"}
    secrets = [{"type": "Kubeconfig", "name": "any", "key": "kubeconfig"}]
    balancer = {"version": "40.2.0", "loadBalancer": "MetalLB", "metallb": {"addressPool": "192.0.2.0/28"}}
    stack = ServingStack.parse({"metadata": metadata, "spec": {"secrets": secrets, "components": NAMED}})
    gateway = InferenceGateway.parse({"metadata": metadata, "spec": {"backend": "Traefik", "traefik": balancer}})
    charts = [*parts(stack), *(part for part in gateway_parts(gateway) if part.name != "traefik")]
    asked = {chart_reference(*_asked(part.release)) for part in charts}

    assert asked == {one.reference for one in wanted() if one.kind != "image"}


def _asked(release: Release) -> tuple[str, str, str]:
    return release.repository, release.chart, release.version
