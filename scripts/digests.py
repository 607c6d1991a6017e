"""Write the digests of what is fetched from registries: images and charts at their default versions, and the base.

    python scripts/digests.py            ask the registries, and write `clusters/stack/digests.py` and the Dockerfile
    python scripts/digests.py --check    say what has no digest; what is published should not lack any

An image's digest is that of the manifest that its tag leads to, for all architectures where it has several. A chart's
is that of its archive: a registry keeps it as a layer, a repository's index has it beside the version.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

import yaml

from modelplane_operator.api.serving_stack import Versions
from modelplane_operator.clusters.stack.charts import STACK
from modelplane_operator.clusters.stack.digests import DIGESTS, chart_reference
from modelplane_operator.images import PICKER, SIDECAR
from modelplane_operator.routing.gateway.render.software import METALLB, METALLB_REPOSITORY, METALLB_VERSION

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "modelplane_operator/clusters/stack/digests.py"
DOCKERFILE = ROOT / "Dockerfile"
BASE = re.compile(r"^ARG BASE_IMAGE=(?P<image>[^@\n]+)(?P<digest>@sha256:[0-9a-f]{64})?$", re.MULTILINE)
MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
ARCHIVE = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
LONGEST = 64 << 20  # a repository's index has every version of every chart
SECONDS = 60

Kind = Literal["image", "chart in a registry", "chart in a repository"]


class Unresolved(SystemExit):
    """A registry does not say what a digest is."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Something that should have a digest."""

    reference: str
    """How the table calls it: `PLACE/NAME:VERSION`."""
    kind: Kind = "image"

    @property
    def parts(self) -> tuple[str, str, str]:
        """The host, the path, and the version."""
        where, _, version = self.reference.rpartition(":")
        host, _, path = where.partition("://")[2].partition("/") if "://" in where else where.partition("/")
        return host, path, version


def wanted() -> tuple[Wanted, ...]:
    """All that the operator has fetched by default. The versions of the hub's gateways are the platform team's."""
    charts = [(one.repository, one.chart, one.version(Versions())) for one in STACK]
    charts.append((METALLB_REPOSITORY, METALLB, METALLB_VERSION))
    return (
        *map(Wanted, (PICKER, SIDECAR)),
        *(Wanted(chart_reference(*chart), _place(chart[0])) for chart in charts),
    )


def _place(repository: str) -> Kind:
    return "chart in a registry" if repository.startswith("oci://") else "chart in a repository"


def base(dockerfile: str) -> tuple[Wanted, str]:
    """The base of the operator's image, by its whole name, and its digest, where that is written down."""
    found = BASE.search(dockerfile)
    if found is None:
        raise SystemExit("digests: the Dockerfile has no ARG BASE_IMAGE")
    image = found["image"]
    host, slash, _ = image.partition("/")
    whole = image if slash and "." in host else f"docker.io/{image}" if slash else f"docker.io/library/{image}"
    return Wanted(whole), (found["digest"] or "").removeprefix("@")


def missing(table: Mapping[str, str], dockerfile: str) -> Iterator[str]:
    """What has no digest."""
    yield from (one.reference for one in wanted() if not DIGEST.fullmatch(table.get(one.reference, "")))
    image, digest = base(dockerfile)
    if not digest:
        yield image.reference


# Asking ---------------------------------------------------------------------------------------------------------------


def served_at(host: str) -> str:
    """The URL at which a registry or a repository answers."""
    return f"https://{'registry-1.docker.io' if host == 'docker.io' else host}"


@dataclass(slots=True)
class Registries:
    """Whoever knows digests. `at` says at which URL a host answers."""

    at: Callable[[str], str] = served_at

    def digest(self, one: Wanted) -> str:
        """What the registry says now; raises Unresolved."""
        host, path, version = one.parts
        if one.kind == "chart in a repository":
            found = self._in_index(host, path, version)
        elif one.kind == "chart in a registry":
            manifest = json.loads(self._manifest(host, path, version))
            found = [layer["digest"] for layer in manifest.get("layers", ()) if layer.get("mediaType") == ARCHIVE]
        else:
            found = [f"sha256:{hashlib.sha256(self._manifest(host, path, version)).hexdigest()}"]
        if len(found) != 1 or not DIGEST.fullmatch(found[0]):
            raise Unresolved(f"digests: {one.reference}: one digest should be there, and there is {found or 'none'}")
        return found[0]

    def _in_index(self, host: str, path: str, version: str) -> list[str]:
        folder, _, chart = path.rpartition("/")
        index = yaml.load(self._get("/".join(filter(None, (self.at(host), folder, "index.yaml"))))[0], yaml.CSafeLoader)
        charts: Iterable[Mapping[str, Any]] = (index.get("entries") or {}).get(chart) or ()
        same = {version, f"v{version}", version.removeprefix("v")}
        return [
            f"sha256:{str(one.get('digest', '')).removeprefix('sha256:')}" for one in charts if one["version"] in same
        ]

    def _manifest(self, host: str, path: str, version: str) -> bytes:
        url = f"{self.at(host)}/v2/{path}/manifests/{version}"
        body, said = self._get(url, accept=MANIFESTS)
        told = said.get("Docker-Content-Digest")
        if told and told != f"sha256:{hashlib.sha256(body).hexdigest()}":
            raise Unresolved(f"digests: {url}: the answer is not what its digest says")
        return body

    def _get(self, url: str, *, accept: str = "*/*", token: str = "") -> tuple[bytes, Mapping[str, str]]:
        if urlsplit(url).scheme != "https" and urlsplit(url).hostname != "127.0.0.1":
            raise Unresolved(f"digests: {url} is not asked: it is no https")
        headers = {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}
        try:
            request = urllib.request.Request(url, headers=headers)  # noqa: S310 - https, as was seen above
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:  # noqa: S310 - the same
                body = answer.read(LONGEST + 1)
                if len(body) > LONGEST:
                    raise Unresolved(f"digests: {url}: more than {LONGEST >> 20} MiB")
                return body, dict(answer.headers)
        except urllib.error.HTTPError as error:
            challenge = error.headers.get("WWW-Authenticate", "")
            if error.code == 401 and not token and challenge.lower().startswith("bearer "):
                return self._get(url, accept=accept, token=self._token(challenge))
            raise Unresolved(f"digests: {url}: {error.code} {error.reason}") from None
        except OSError as error:
            raise Unresolved(f"digests: {url}: {error}") from None

    def _token(self, challenge: str) -> str:
        """What a registry gives to anybody who asks for it."""
        asked = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        query = urlencode({name: asked[name] for name in ("service", "scope") if name in asked})
        said = json.loads(self._get(f"{asked.get('realm', '')}?{query}")[0])
        return str(said.get("token") or said.get("access_token") or "")


# Writing --------------------------------------------------------------------------------------------------------------


def with_table(module: str, table: Mapping[str, str]) -> str:
    """The module with this table in it."""
    rows = "".join(f'    "{reference}": (\n        "{table[reference]}"\n    ),\n' for reference in sorted(table))
    begin = "DIGESTS: Final[Mapping[str, str]] = {\n"
    before, found, rest = module.partition(begin)
    if not found:
        raise SystemExit("digests: the module has no table")
    return f"{before}{begin}{rows}}}\n{rest.partition('}' + chr(10))[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="ask nobody: fail when a digest is missing")
    asked = parser.parse_args()
    dockerfile = DOCKERFILE.read_text()
    if asked.check:
        lacking = tuple(missing(DIGESTS, dockerfile))
        if lacking:
            sys.exit("\n".join(("digests: `make digests` must find these before a release:", *lacking)))
        return
    registries = Registries()
    found = {one.reference: registries.digest(one) for one in wanted()}
    image, _ = base(dockerfile)
    digest = registries.digest(image)
    TABLE.write_text(with_table(TABLE.read_text(), found))
    DOCKERFILE.write_text(BASE.sub(rf"ARG BASE_IMAGE=\g<image>@{digest}", dockerfile))
    print(f"{len(found) + 1} digests written")


if __name__ == "__main__":
    main()
