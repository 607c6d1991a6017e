"""Fetch objects from a bucket of Google Cloud Storage."""

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
    pin_files,
    select_files,
)
from modelplane_operator.hydrate.web import Web

GOOGLE: Final = "https://storage.googleapis.com"
TOKENS: Final = "https://oauth2.googleapis.com/token"
"""Address that exchanges a signed claim for an access token."""
LONGEST_PAGE: Final = 4096  # maximum characters of a page token
READ_ONLY: Final = "https://www.googleapis.com/auth/devstorage.read_only"
"""Scope of the token, the smallest that can list and read objects."""


@dataclass(slots=True)
class GoogleCloudStorage:
    """A bucket of Google Cloud Storage. Its objects are pinned by their generations."""

    bucket: str
    web: Web
    """HTTP client with the description for messages."""
    prefix: str = ""
    """Folder in the bucket; empty for the whole bucket."""
    allow: tuple[str, ...] = ()
    """Patterns of files to fetch; empty for all."""
    ignore: tuple[str, ...] = ()
    """Patterns of files to leave out."""
    credentials: str = field(default="", repr=False)
    """JSON key of a service account."""
    endpoint: str = GOOGLE
    """URL of the API; another one only for stores with the same API."""
    _token: tuple[str, float] = field(default=("", 0.0), init=False, repr=False)
    """Access token, and the monotonic time until which it is used."""

    def list_files(self) -> FileListing:
        """List the objects. The revision is a hash of the list, since a bucket has no revisions."""
        return pin_files(select_files(self._list_objects(), self.allow, self.ignore, self.web.description))

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        """Fetch an object in its pinned generation."""
        del listing
        url = f"{self.endpoint}/storage/v1/b/{self.bucket}/o/{quote(file.key, safe='')}"
        # Without this, Google decompresses objects stored with gzip, but size and checksum refer to the stored form.
        headers = {**self._headers(), "Accept-Encoding": "gzip"}
        self.web.fetch(f"{url}?alt=media&generation={file.version}", file, folder, headers)

    def _list_objects(self) -> Iterator[File]:
        """Yield all objects below the prefix."""
        page = ""
        for _ in range(PAGES):
            query = f"prefix={quote(below(self.prefix), safe='')}&pageToken={quote(page, safe='')}"
            fields = "fields=nextPageToken,items(name,size,crc32c,generation)"
            url = f"{self.endpoint}/storage/v1/b/{self.bucket}/o?{query}&{fields}"
            with self.web.get(url, self._headers()) as response:
                content = self.web.read(response)
            try:
                page_content = json.loads(content)
                for item in page_content.get("items", ()):
                    if path := path_of(item["name"], self.prefix):
                        yield File(
                            path, int(item["size"]), f"crc32c:{item['crc32c']}", item["name"], str(item["generation"])
                        )
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise TransientError(
                    f"the server answers {self.web.description} with something other than a list"
                ) from error
            page = page_content.get("nextPageToken") or ""
            if not page:
                return
            if not isinstance(page, str) or len(page) > LONGEST_PAGE:
                raise PermanentError(f"{self.web.description} is a list whose next page has no name")
        raise PermanentError(f"{self.web.description} is a list of more than {PAGES} pages")

    def _headers(self) -> Mapping[str, str]:
        """Return the authorization, with a token that is renewed in time."""
        if not self.credentials:
            return {}
        token, expiry = self._token
        if time.monotonic() >= expiry:
            token = self._request_token()
            self._token = (token, time.monotonic() + 1800)  # half of its validity
        return {"Authorization": f"Bearer {token}"}

    def _request_token(self) -> str:
        """Return a new token for the service account. Raise PermanentError for an invalid key."""
        try:
            key_file = json.loads(self.credentials)
            key = serialization.load_pem_private_key(str(key_file["private_key"]).encode(), None)
            email = str(key_file["client_email"])
        except (ValueError, KeyError, TypeError, UnsupportedAlgorithm):
            raise PermanentError("the Secret of authSecret has no key of a service account") from None
        if not isinstance(key, rsa.RSAPrivateKey):
            raise PermanentError("the Secret of authSecret has no key of a service account")
        now = int(time.time())
        # Google accepts a lifetime of at most one hour.
        claims = {"iss": email, "scope": READ_ONLY, "aud": TOKENS, "iat": now, "exp": now + 3600}
        signing_input = f"{_encode({'alg': 'RS256', 'typ': 'JWT'})}.{_encode(claims)}"
        signature = key.sign(signing_input.encode(), padding.PKCS1v15(), hashes.SHA256())
        form = {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": f"{signing_input}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}",
        }
        # The claim is the credential, so it goes to no address that a response or the key file names.
        with self.web.get(TOKENS if self.endpoint == GOOGLE else f"{self.endpoint}/token", form=form) as response:
            content = self.web.read(response)
        try:
            return str(json.loads(content)["access_token"])
        except (ValueError, KeyError, TypeError) as error:
            raise TransientError("Google Cloud gives no token for the service account") from error


def _encode(part: Mapping[str, Any]) -> str:
    """Return a part of a JSON Web Token: JSON as base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
