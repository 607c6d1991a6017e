"""Fetch repositories from Hugging Face, or from mirrors with the same protocol."""

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
from modelplane_operator.hydrate.source import File, FileListing, PermanentError, TransientError, select_files
from modelplane_operator.hydrate.web import client, read_all, request_range, resume_file, write

# Status codes from 400 on that a retry may resolve: too early, too many requests, timeouts.
_RETRYABLE: Final = frozenset({408, 425, 429})


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """A repository on Hugging Face. `list_files` pins the revision: all files are of one commit."""

    endpoint: str
    """Base URL of the hub or the mirror."""
    repo: str
    """Name of the repository, as OWNER/NAME."""
    revision: str | None = None
    """Branch, tag or commit; None for the default branch."""
    allow: tuple[str, ...] = ()
    """Patterns of files to fetch; empty for all."""
    ignore: tuple[str, ...] = ()
    """Patterns of files to leave out."""
    token: str | None = field(default=None, repr=False)
    """Access token; None for public repositories."""
    client: httpx.Client = field(default_factory=partial(client, anywhere=True))
    """HTTP client. It connects to any address, unlike those of other sources."""

    def list_files(self) -> FileListing:
        """List the files of the repository, pinned to the commit of the revision."""
        revision_path = f"/revision/{quote(self.revision, safe='')}" if self.revision else ""
        with self._errors():
            validate_repo_id(self.repo)
            with self._get(f"{self.endpoint}/api/models/{self.repo}{revision_path}?blobs=true") as response:
                content = read_all(response, self._label)
        info = ModelInfo(**json.loads(content))
        all_files = (
            File(
                sibling.rfilename,
                sibling.size or 0,
                f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"git:{sibling.blob_id}",
            )
            for sibling in info.siblings or ()
        )
        files = select_files(all_files, self.allow, self.ignore, self._label)
        if info.sha is None:
            raise TransientError(f"{self.endpoint} does not say which commit {self._label} is")
        return FileListing(info.sha, files)

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        """Fetch a file with the library's addresses and headers, but without its download function.

        That one requests each file twice, and takes twice the CPU and four times 10 MB. Its list has no limit on the
        size.
        """
        start = resume_file(file, folder)
        if start == file.size:
            return
        url = hf_hub_url(self.repo, file.path, revision=listing.revision, endpoint=self.endpoint)
        with self._errors(), self._get(url, start) as response:
            write(file, folder, start if response.status_code == 206 else 0, response.iter_raw())

    @contextmanager
    def _get(self, url: str, have: int = 0) -> Generator[httpx.Response]:
        """Open a response, from byte `have` on. Raise the library's error for an error status."""
        # False: the library would otherwise use a token that it finds on the machine.
        headers = build_hf_headers(token=self.token or False) | request_range(have)
        with self.client.stream("GET", url, headers=headers) as response:
            # A response without the body: the library would read an error page of any size for its message.
            hf_raise_for_status(
                httpx.Response(response.status_code, headers=response.headers, request=response.request)
            )
            yield response

    @property
    def _label(self) -> str:
        """Description of the repository in messages."""
        return f"repository {self.repo}{f' at {self.revision}' if self.revision else ''}"

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Translate the library's errors. Texts of servers are left out, since they may contain anything."""
        hint = "with the token of authSecret" if self.token else "without a token: name one in authSecret"
        try:
            yield
        except GatedRepoError as error:
            raise PermanentError(
                f"{self._label} is gated, and was requested {hint}: accept its licence with that account"
            ) from error
        except RevisionNotFoundError as error:
            raise PermanentError(f"{self._label} does not exist: name a branch, tag or commit of it") from error
        except RepositoryNotFoundError as error:
            raise PermanentError(f"{self._label} does not exist or is private; the request was {hint}") from error
        except HFValidationError as error:
            raise PermanentError(f"{self.repo} is not the name of a repository: write OWNER/NAME") from error
        except HfHubHTTPError as error:
            raise self._status_error(error, hint) from error
        except OSError as error:
            if error.errno is not None and not isinstance(error, ConnectionError | TimeoutError):
                raise  # an error of the volume, not of the hub
            raise TransientError(f"{self.endpoint} does not answer as it should: {type(error).__name__}") from error
        except httpx.HTTPError as error:
            raise TransientError(f"{self.endpoint} does not answer: {type(error).__name__}") from error

    def _status_error(self, error: HfHubHTTPError, hint: str) -> PermanentError | TransientError:
        """Return the error of an error status."""
        status = error.response.status_code
        if status in {401, 403}:
            return PermanentError(f"{self.endpoint} refuses {self._label} with {status}; the request was {hint}")
        if status < 500 and status not in _RETRYABLE:
            return PermanentError(f"{self.endpoint} answers {status} to a request for {self._label}")
        retry_after = error.response.headers.get("Retry-After", "")
        return TransientError(
            f"{self.endpoint} answers {status}",
            retry_after=float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None,
        )
