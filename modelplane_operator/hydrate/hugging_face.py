"""Hugging Face, and mirrors that speak its protocol."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import quote

import httpx
from huggingface_hub import ModelInfo, hf_hub_url
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import (
    build_hf_headers,  # pyright: ignore[reportUnknownVariableType]
    hf_raise_for_status,  # pyright: ignore[reportUnknownVariableType]
    validate_repo_id,
)

from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.source import File, FileListing, PermanentError, TransientError, selected
from modelplane_operator.hydrate.web import client, read_whole, resumed, wanted, write

# Of a status of 400 and above, those that another try may mend: too early, too many, and the server's own trouble.
_PASSING: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """A repository. A revision is pinned by `listing`: all files are of one commit."""

    endpoint: str
    repo: str
    revision: str | None = None
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    token: str | None = field(default=None, repr=False)
    client: httpx.Client = field(default_factory=partial(client, anywhere=True))

    def listing(self) -> FileListing:
        at = f"/revision/{quote(self.revision, safe='')}" if self.revision else ""
        with self._errors():
            validate_repo_id(self.repo)
            with self._get(f"{self.endpoint}/api/models/{self.repo}{at}?blobs=true") as response:
                content = read_whole(response, self._named)
        found = ModelInfo(**json.loads(content))
        every = (
            File(one.rfilename, one.size or 0, f"sha256:{one.lfs.sha256}" if one.lfs else f"git:{one.blob_id}")
            for one in found.siblings or ()
        )
        files = selected(every, self.allow, self.ignore, self._named)
        if found.sha is None:
            raise TransientError(f"{self.endpoint} does not say which commit {self._named} is")
        return FileListing(found.sha, files)

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        """By the library's addresses and headers, and not by its download: that asks for each file twice, and takes
        twice the processor and four times 10 MB. For the list, it has no bound at all."""
        have = resumed(file, folder)
        if have == file.size:
            return
        url = hf_hub_url(self.repo, file.path, revision=listing.revision, endpoint=self.endpoint)
        with self._errors(), self._get(url, have) as response:
            write(file, folder, have if response.status_code == 206 else 0, response.iter_raw())

    @contextmanager
    def _get(self, url: str, have: int = 0) -> Generator[httpx.Response]:
        headers = build_hf_headers(token=self.token or False) | wanted(have)
        with self.client.stream("GET", url, headers=headers) as response:
            hf_raise_for_status(
                httpx.Response(response.status_code, headers=response.headers, request=response.request)
            )
            yield response

    @property
    def _named(self) -> str:
        return f"repository {self.repo}{f' at {self.revision}' if self.revision else ''}"

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Whatever the library raises, as ours. What servers say is left out: it may be anything."""
        asked = "with the token of authSecret" if self.token else "without a token: name one in authSecret"
        try:
            yield
        except GatedRepoError as error:
            raise PermanentError(
                f"{self._named} is gated, and was asked for {asked}; its licence has to be accepted by that account"
            ) from error
        except RevisionNotFoundError as error:
            raise PermanentError(f"{self._named} does not exist: name a branch, tag or commit of it") from error
        except RepositoryNotFoundError as error:
            raise PermanentError(f"{self._named} does not exist or is private, and was asked for {asked}") from error
        except HFValidationError as error:
            raise PermanentError(f"{self.repo} is no name of a repository") from error
        except HfHubHTTPError as error:
            raise self._answered(error, asked) from error
        except OSError as error:
            if error.errno is not None and not isinstance(error, ConnectionError | TimeoutError):
                raise  # the volume's trouble, and not the hub's
            raise TransientError(f"{self.endpoint} does not answer as it should: {type(error).__name__}") from error
        except httpx.HTTPError as error:
            raise TransientError(f"{self.endpoint} does not answer: {type(error).__name__}") from error

    def _answered(self, error: HfHubHTTPError, asked: str) -> PermanentError | TransientError:
        status = error.response.status_code
        if status in {401, 403}:
            return PermanentError(f"{self._named} is refused with {status}; it was asked for {asked}")
        if status < 500 and status not in _PASSING:
            return PermanentError(f"{self.endpoint} answers {status} to what is asked of {self._named}")
        wait = error.response.headers.get("Retry-After", "")
        return TransientError(
            f"{self.endpoint} answers {status}", retry_after=float(wait) if wait.isascii() and wait.isdigit() else None
        )
