"""Objects in a bucket of Google Cloud Storage."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.source import (
    PAGES,
    File,
    FileListing,
    PermanentError,
    TransientError,
    below,
    path_of,
    pinned,
    selected,
)
from modelplane_operator.hydrate.web import Web

GOOGLE: Final = "https://storage.googleapis.com"
TOKENS: Final = "https://oauth2.googleapis.com/token"
LONGEST_PAGE: Final = 4096  # characters of what a next page is called
READ_ONLY: Final = "https://www.googleapis.com/auth/devstorage.read_only"


@dataclass(slots=True)
class GoogleCloudStorage:
    """A bucket of Google Cloud Storage. Its objects are pinned by their generations."""

    bucket: str
    web: Web
    prefix: str = ""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    credentials: str = field(default="", repr=False)
    """The key of a service account, in JSON."""
    endpoint: str = GOOGLE
    _token: tuple[str, float] = field(default=("", 0.0), init=False, repr=False)
    """And until when it holds."""

    def listing(self) -> FileListing:
        return pinned(selected(self._listed(), self.allow, self.ignore, self.web.named))

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        del listing
        url = f"{self.endpoint}/storage/v1/b/{self.bucket}/o/{quote(file.key, safe='')}"
        # Google unpacks an object that is stored packed, unless it is asked for like this: size and sum are as stored.
        headers = {**self._headers(), "Accept-Encoding": "gzip"}
        self.web.fetch(f"{url}?alt=media&generation={file.version}", file, folder, headers)

    def _listed(self) -> Iterator[File]:
        page = ""
        for _ in range(PAGES):
            asked = f"prefix={quote(below(self.prefix), safe='')}&pageToken={quote(page, safe='')}"
            fields = "fields=nextPageToken,items(name,size,crc32c,generation)"
            url = f"{self.endpoint}/storage/v1/b/{self.bucket}/o?{asked}&{fields}"
            with self.web.get(url, self._headers()) as response:
                content = self.web.read(response)
            try:
                told = json.loads(content)
                for one in told.get("items", ()):
                    if path := path_of(one["name"], self.prefix):
                        yield File(
                            path, int(one["size"]), f"crc32c:{one['crc32c']}", one["name"], str(one["generation"])
                        )
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise TransientError(f"{self.web.named} is answered with something else than a list") from error
            page = told.get("nextPageToken") or ""
            if not page:
                return
            if not isinstance(page, str) or len(page) > LONGEST_PAGE:
                raise PermanentError(f"{self.web.named} is a list whose next page has no name")
        raise PermanentError(f"{self.web.named} is a list of more than {PAGES} pages")

    def _headers(self) -> Mapping[str, str]:
        if not self.credentials:
            return {}
        token, until = self._token
        if time.monotonic() >= until:
            token = self._fresh()
            self._token = (token, time.monotonic() + 1800)  # of an hour
        return {"Authorization": f"Bearer {token}"}

    def _fresh(self) -> str:
        """A token for the service account."""
        try:
            told = json.loads(self.credentials)
            key = serialization.load_pem_private_key(str(told["private_key"]).encode(), None)
            email = str(told["client_email"])
        except (ValueError, KeyError, TypeError, UnsupportedAlgorithm):
            raise PermanentError("the Secret of authSecret has no key of a service account") from None
        if not isinstance(key, rsa.RSAPrivateKey):
            raise PermanentError("the Secret of authSecret has no key of a service account")
        now = int(time.time())
        claims = {"iss": email, "scope": READ_ONLY, "aud": TOKENS, "iat": now, "exp": now + 3600}
        signed = f"{_encoded({'alg': 'RS256', 'typ': 'JWT'})}.{_encoded(claims)}"
        signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}",
        }
        with self.web.get(TOKENS if self.endpoint == GOOGLE else f"{self.endpoint}/token", form=form) as response:
            content = self.web.read(response)
        try:
            return str(json.loads(content)["access_token"])
        except (ValueError, KeyError, TypeError) as error:
            raise TransientError("Google Cloud gives no token for the service account") from error


def _encoded(part: Mapping[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
