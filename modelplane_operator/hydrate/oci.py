"""Fetch an artifact from an OCI registry: a manifest whose layers are files, with their names in annotations.

`oci` parses the reference and returns the source. Blobs are addressed by their SHA-256, so the digest of a layer is
also the checksum that `staging` verifies. Archives are rejected: the volume must have the files themselves.
"""

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
    select_files,
)
from modelplane_operator.hydrate.web import Web

INDEX: Final = "application/vnd.oci.image.index.v1+json"
MANIFESTS: Final = ", ".join(
    ("application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json", INDEX)
)
"""Media types that a registry may answer with; without them, some convert to an older format."""
TITLES: Final = ("org.opencontainers.image.title", "org.cncf.model.filepath")
"""Annotations with the name of a layer's file: those of ORAS and of the CNCF's ModelPack."""
UNPACK: Final = "io.deis.oras.content.unpack"  # ORAS's annotation for an archived folder
DOCKER_HUB: Final = ("docker.io", "registry-1.docker.io", "https://index.docker.io/v1/")
"""Names of Docker Hub: in references, of its API, and in Docker's config file."""
_REFERENCE: Final = re.compile(r"(?P<host>[^/]+)/(?P<name>[^:@]+)(:(?P<tag>[^@]+))?(@(?P<digest>sha256:[0-9a-f]{64}))?")
_CHALLENGE: Final = re.compile(r'\b(\w{1,40})="([^"]*)"')
"""Parameter of a WWW-Authenticate header."""
_LONGEST_CHALLENGE: Final = 4096  # maximum characters; a challenge contains an address and a name


@dataclass(slots=True)
class Registry:
    """A repository in a registry, with its authorization."""

    web: Web
    """HTTP client with the description for messages."""
    base: str
    """Base URL: `https://HOST/v2/NAME`."""
    basic: str = field(default="", repr=False)
    """Base64-encoded user and password."""
    _authorization: str = field(default="", init=False, repr=False)
    """Value of the Authorization header; empty until one is needed."""

    def headers(self, accept: str = "*/*") -> Mapping[str, str]:
        """Return the headers of a request, with the authorization if there is one."""
        return {"Accept": accept, **({"Authorization": self._authorization} if self._authorization else {})}

    def read(self, path: str, accept: str) -> bytes:
        """Return a manifest. If the registry requires a token, request one first."""
        for is_first in (True, False):
            with self.web.get(f"{self.base}/{path}", self.headers(accept), (401,) if is_first else ()) as response:
                if response.status_code != 401:
                    return self.web.read(response)
                challenge = response.headers.get("WWW-Authenticate", "")
            self._authorize(challenge)
        raise AssertionError("a second 401 is an error")

    def _authorize(self, challenge: str) -> None:
        """Get an authorization for a challenge. Raise PermanentError if it is not possible."""
        scheme, _, parameters = challenge.partition(" ")
        basic = {"Authorization": f"Basic {self.basic}"} if self.basic else {}
        if scheme.lower() == "basic" and basic:
            self._authorization = basic["Authorization"]
            return
        values = dict(_CHALLENGE.findall(parameters[:_LONGEST_CHALLENGE]))
        realm = values.pop("realm", "")
        secure = self.base.startswith("https://")
        # The password is sent to the realm, so a registry with TLS must not name one without.
        if scheme.lower() != "bearer" or not realm.startswith("https://" if secure else ("https://", "http://")):
            raise PermanentError(
                f"the registry refuses {self.web.description} with 401; the request was {self.web.credentials}"
            )
        # Other parameters of the challenge, such as `error`, are not meant for the token server.
        query = {name: value for name, value in values.items() if name in {"service", "scope"}}
        try:
            url = str(self.web.client.build_request("GET", realm, params=query).url)
        except (httpx.InvalidURL, ValueError) as error:
            raise PermanentError(f"{self.web.description}: its registry names no address for tokens") from error
        with self.web.get(url, basic) as response:
            content = self.web.read(response)
        try:
            response_body = json.loads(content)
            token = response_body.get("token") or response_body["access_token"]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise TransientError(f"{self.web.description}: its registry gives no token: check authSecret") from error
        self._authorization = f"Bearer {token}"

    def renew(self, path: str) -> None:
        """Request a new token if the registry rejects the current one."""
        with self.web.get(f"{self.base}/{path}", self.headers(), (401,)) as response:
            challenge = response.headers.get("WWW-Authenticate", "") if response.status_code == 401 else ""
        if challenge:
            self._authorize(challenge)


@dataclass(frozen=True, slots=True)
class Oci:
    """An artifact. Its tag is resolved once, so that all files are of one manifest."""

    registry: Registry
    """Repository with the artifact."""
    reference: str
    """Tag or digest."""
    allow: tuple[str, ...] = ()
    """Patterns of files to fetch; empty for all."""
    ignore: tuple[str, ...] = ()
    """Patterns of files to leave out."""

    def list_files(self) -> FileListing:
        """List the layers as files. An index is accepted if it contains a single artifact."""
        manifest, digest = self._read_manifest(self.reference)
        try:
            if manifest.get("mediaType") == INDEX or "manifests" in manifest:
                children = manifest.get("manifests") or ()
                if len(children) != 1:
                    count = len(children)
                    raise PermanentError(
                        f"{self._label} is an index of {count} artifacts: name one of them by its digest"
                    )
                manifest, digest = self._read_manifest(str(children[0]["digest"]))
            files = select_files(self._list_files(manifest), self.allow, self.ignore, self._label)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise PermanentError(f"{self._label} is not a manifest of an artifact") from error
        return FileListing(digest, files)

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        """Fetch a layer. If the token has expired, renew it and try again."""
        del listing
        try:
            self.registry.web.fetch(f"{self.registry.base}/blobs/{file.key}", file, folder, self.registry.headers())
        except AccessDeniedError:
            # A token lasts some minutes, and the transfer of a large model longer.
            self.registry.renew(f"blobs/{file.key}")
            self.registry.web.fetch(f"{self.registry.base}/blobs/{file.key}", file, folder, self.registry.headers())

    @property
    def _label(self) -> str:
        """Description of the artifact in messages."""
        return self.registry.web.description

    def _read_manifest(self, reference: str) -> tuple[dict[str, Any], str]:
        """Return a manifest and its digest. Raise TransientError if the digest does not match."""
        content = self.registry.read(f"manifests/{reference}", MANIFESTS)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if reference.startswith("sha256:") and reference != digest:
            raise TransientError(f"{self._label} arrived with other content than its digest says")
        try:
            parsed = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise PermanentError(f"{self._label} is not a manifest of an artifact") from error
        if not isinstance(parsed, dict):
            raise PermanentError(f"{self._label} is not a manifest of an artifact")
        return cast(dict[str, Any], parsed), digest

    def _list_files(self, manifest: Mapping[str, Any]) -> Iterator[File]:
        """Yield the layers as files. Raise PermanentError for a layer without a name, or an archive."""
        for layer in manifest["layers"]:
            layer_annotations = cast(dict[str, Any], layer.get("annotations") or {})
            title = next((layer_annotations[name] for name in TITLES if layer_annotations.get(name)), "")
            media_type = str(layer.get("mediaType"))[:256]
            # ModelPack's media types name the archive after the word "model", as in `model.weight.v1.tar`.
            is_packed = layer_annotations.get(UNPACK) == "true" or ".tar" in media_type.partition("model.")[2]
            digest = str(layer["digest"])
            if not title or is_packed or not digest.startswith("sha256:"):
                raise PermanentError(
                    f"{self._label} has a layer that is no file: push each file as a layer with its name in {TITLES[0]}"
                )
            yield File(str(title), int(layer["size"]), digest, digest)


def oci(reference: str, web: Web, *, insecure: bool, credentials: str, **patterns: Any) -> Oci:
    """Return the source of a reference. `credentials` is a Docker config file, as in a Secret."""
    parts = _REFERENCE.fullmatch(reference)
    if parts is None:
        raise PermanentError(f"{reference[:100]!r} is no reference of an artifact")
    host, name = parts["host"], parts["name"]
    basic = _basic_credentials(host, credentials) if credentials else ""
    if host == DOCKER_HUB[0]:
        host = DOCKER_HUB[1]
    base = f"{'http' if insecure else 'https'}://{host}/v2/{name}"
    return Oci(Registry(web, base, basic), parts["digest"] or parts["tag"] or "latest", **patterns)


def _basic_credentials(host: str, credentials: str) -> str:
    """Return the encoded user and password for a registry. Raise PermanentError, with a message that quotes nothing."""
    hosts = DOCKER_HUB if host == DOCKER_HUB[0] else (host, f"https://{host}", f"https://{host}/v2/")
    try:
        auths = json.loads(credentials)["auths"]
        entry = next((auths[candidate] for candidate in hosts if candidate in auths), None)
        if entry is None:
            raise PermanentError(f"the Secret of authSecret has nothing for registry {host}")
        if entry.get("auth"):
            return str(entry["auth"])
        return base64.b64encode(f"{entry['username']}:{entry['password']}".encode()).decode()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise PermanentError("the Secret of authSecret is not of type kubernetes.io/dockerconfigjson") from None
