"""An artifact in an OCI registry: a manifest whose layers are files. What carries their names is an annotation."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import httpx

from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.source import (
    AccessDeniedError,
    File,
    FileListing,
    PermanentError,
    TransientError,
    selected,
)
from modelplane_operator.hydrate.web import Web

INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFESTS: Final = ", ".join(
    ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json", INDEX)
)
TITLES: Final = ("org.opencontainers.image.title", "org.cncf.model.filepath")
UNPACK: Final = "io.deis.oras.content.unpack"  # ORAS's word for a folder that it has packed
DOCKER_HUB: Final = ("docker.io", "registry-1.docker.io", "https://index.docker.io/v1/")
_REFERENCE: Final = re.compile(r"(?P<host>[^/]+)/(?P<name>[^:@]+)(:(?P<tag>[^@]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?")
_CHALLENGE: Final = re.compile(r'\b(\w{1,40})="([^"]*)"')
_LONGEST_CHALLENGE: Final = 4096  # characters: what is in one is an address and a name


@dataclass(slots=True)
class Registry:
    """A repository in a registry, and how one may ask it."""

    web: Web
    base: str
    """`https://HOST/v2/NAME`."""
    basic: str = field(default="", repr=False)
    """User and password, encoded."""
    _authorization: str = field(default="", init=False, repr=False)

    def headers(self, accept: str = "*/*") -> Mapping[str, str]:
        return {"Accept": accept, **({"Authorization": self._authorization} if self._authorization else {})}

    def read(self, path: str, accept: str) -> bytes:
        """A manifest; asks for a token first where the registry wants one."""
        for again in (True, False):
            with self.web.get(f"{self.base}/{path}", self.headers(accept), (401,) if again else ()) as response:
                if response.status_code != 401:
                    return self.web.read(response)
                challenge = response.headers.get("WWW-Authenticate", "")
            self._authorize(challenge)
        raise AssertionError("a second 401 is an error")

    def _authorize(self, challenge: str) -> None:
        scheme, _, rest = challenge.partition(" ")
        basic = {"Authorization": f"Basic {self.basic}"} if self.basic else {}
        if scheme.lower() == "basic" and basic:
            self._authorization = basic["Authorization"]
            return
        told = dict(_CHALLENGE.findall(rest[:_LONGEST_CHALLENGE]))
        realm = told.pop("realm", "")
        secure = self.base.startswith("https://")
        if scheme.lower() != "bearer" or not realm.startswith("https://" if secure else ("https://", "http://")):
            raise PermanentError(f"{self.web.named} is refused with 401; it was asked for {self.web.asked}")
        asked = {name: value for name, value in told.items() if name in {"service", "scope"}}
        try:
            url = str(self.web.client.build_request("GET", realm, params=asked).url)
        except (httpx.InvalidURL, ValueError) as error:
            raise PermanentError(f"{self.web.named}: its registry gives tokens at no address") from error
        with self.web.get(url, basic) as response:
            content = self.web.read(response)
        try:
            found = json.loads(content)
            token = found.get("token") or found["access_token"]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise TransientError(f"{self.web.named}: its registry gives no token") from error
        self._authorization = f"Bearer {token}"

    def renew(self, path: str) -> None:
        """Have another token, for one that has ended meanwhile."""
        with self.web.get(f"{self.base}/{path}", self.headers(), (401,)) as response:
            challenge = response.headers.get("WWW-Authenticate", "") if response.status_code == 401 else ""
        if challenge:
            self._authorize(challenge)


@dataclass(frozen=True, slots=True)
class Oci:
    """An artifact. A tag is looked up once: all files are of one manifest."""

    registry: Registry
    wanted: str
    """Tag or digest."""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def listing(self) -> FileListing:
        manifest, digest = self._manifest(self.wanted)
        try:
            if manifest.get("mediaType") == INDEX or "manifests" in manifest:
                children = manifest.get("manifests") or ()
                if len(children) != 1:
                    count = len(children)
                    raise PermanentError(
                        f"{self._named} is an index of {count} artifacts: name one of them by its digest"
                    )
                manifest, digest = self._manifest(str(children[0]["digest"]))
            files = selected(self._files(manifest), self.allow, self.ignore, self._named)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise PermanentError(f"{self._named} is no manifest of an artifact") from error
        return FileListing(digest, files)

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        del listing
        try:
            self.registry.web.fetch(f"{self.registry.base}/blobs/{file.key}", file, folder, self.registry.headers())
        except AccessDeniedError:
            self.registry.renew(f"blobs/{file.key}")  # a token lasts some minutes, and a large model longer
            self.registry.web.fetch(f"{self.registry.base}/blobs/{file.key}", file, folder, self.registry.headers())

    @property
    def _named(self) -> str:
        return self.registry.web.named

    def _manifest(self, wanted: str) -> tuple[dict[str, Any], str]:
        content = self.registry.read(f"manifests/{wanted}", MANIFESTS)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if wanted.startswith("sha256:") and wanted != digest:
            raise TransientError(f"{self._named} has come with another content than its digest")
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise PermanentError(f"{self._named} is no manifest of an artifact") from error
        if not isinstance(found, dict):
            raise PermanentError(f"{self._named} is no manifest of an artifact")
        return cast(dict[str, Any], found), digest

    def _files(self, manifest: Mapping[str, Any]) -> Iterator[File]:
        for layer in manifest["layers"]:
            known = cast(dict[str, Any], layer.get("annotations") or {})
            title = next((known[name] for name in TITLES if known.get(name)), "")
            packed = known.get(UNPACK) == "true" or _is_archive(layer.get("mediaType"))
            digest = str(layer["digest"])
            if not title or packed or not digest.startswith("sha256:"):
                raise PermanentError(
                    f"{self._named} has a layer that is no file: push each file as a layer with its name in {TITLES[0]}"
                )
            yield File(str(title), int(layer["size"]), digest, digest)


def _is_archive(media_type: object) -> bool:
    _, _, after = str(media_type)[:256].partition("model.")
    return ".tar" in after


def oci(reference: str, web: Web, *, insecure: bool, credentials: str, **patterns: Any) -> Oci:
    """`credentials`: a file of Docker's, as a Secret has it."""
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise PermanentError(f"{reference[:100]!r} is no reference of an artifact")
    host, name = parts["host"], parts["name"]
    basic = _basic(host, credentials) if credentials else ""
    if host == DOCKER_HUB[0]:
        host = DOCKER_HUB[1]
    base = f"{'http' if insecure else 'https'}://{host}/v2/{name}"
    return Oci(Registry(web, base, basic), parts["digest"] or parts["tag"] or "latest", **patterns)


def _basic(host: str, credentials: str) -> str:
    """User and password for a registry; raises PermanentError, without what it says."""
    hosts = DOCKER_HUB if host == DOCKER_HUB[0] else (host, f"https://{host}", f"https://{host}/v2/")
    try:
        auths = json.loads(credentials)["auths"]
        found = next((auths[one] for one in hosts if one in auths), None)
        if found is None:
            raise PermanentError(f"the Secret of authSecret has nothing for registry {host}")
        if found.get("auth"):
            return str(found["auth"])
        return base64.b64encode(f"{found['username']}:{found['password']}".encode()).decode()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PermanentError("the Secret of authSecret is no kubernetes.io/dockerconfigjson") from None
