"""Fetch objects from a bucket of Amazon S3, or of a compatible store."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import urlsplit

import boto3  # pyright: ignore[reportMissingTypeStubs]
from botocore import UNSIGNED  # pyright: ignore[reportMissingTypeStubs]
from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
from botocore.exceptions import BotoCoreError, ClientError  # pyright: ignore[reportMissingTypeStubs]

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
from modelplane_operator.hydrate.web import check_host, error_of_status, resume_file, write

HEADS: Final = 8  # parallel HEAD requests: the list contains no checksums


@dataclass(frozen=True, slots=True)
class S3:
    """A bucket of S3. Its objects are pinned by their ETags."""

    bucket: str
    prefix: str = ""
    """Folder in the bucket; empty for the whole bucket."""
    region: str = "us-east-1"
    """Region of the bucket, which requests are signed for."""
    endpoint: str = ""
    """URL of a compatible store; empty for AWS."""
    allow: tuple[str, ...] = ()
    """Patterns of files to fetch; empty for all."""
    ignore: tuple[str, ...] = ()
    """Patterns of files to leave out."""
    credentials: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Credentials as boto3 expects them."""
    anywhere: bool = False
    """True if endpoints inside the network are permitted, for tests."""
    _clients: list[Any] = field(default_factory=list[Any], init=False, repr=False)
    """Client, once it was created."""

    def list_files(self) -> FileListing:
        """List the objects, and request their checksums in parallel."""
        with self._errors():
            files = select_files(self._list_objects(), self.allow, self.ignore, self._label)
            with ThreadPoolExecutor(HEADS) as pool:
                return pin_files(list(pool.map(self._with_checksum, files)))

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        """Fetch an object, from where the last transfer ended."""
        del listing
        start = resume_file(file, folder)
        if start == file.size:
            return
        range_ = {"Range": f"bytes={start}-"} if start else {}
        with self._errors():
            body = self._client.get_object(Bucket=self.bucket, Key=file.key, IfMatch=file.version, **range_)["Body"]
            write(file, folder, start, body.iter_chunks(1 << 20))

    @property
    def _label(self) -> str:
        """Description of the bucket and the prefix in messages."""
        return f"s3://{self.bucket}" + (f"/{self.prefix.strip('/')}" if self.prefix else "")

    @property
    def _client(self) -> Any:
        """Return the client, created on first use. Raise PermanentError for an endpoint inside the network."""
        if not self._clients:
            if self.endpoint and not self.anywhere:
                check_host(urlsplit(self.endpoint).hostname or "")
            config = Config(
                connect_timeout=10,
                read_timeout=60,
                # `Staging` retries, and continues the transfer.
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=HEADS,
                response_checksum_validation="when_required",  # the complete file is verified later
                # Compatible stores rarely have a DNS name for each bucket.
                s3={"addressing_style": "path" if self.endpoint else "auto"},
                **({} if self.credentials else {"signature_version": UNSIGNED}),
            )
            self._clients.append(
                cast(Any, boto3).client(
                    "s3", region_name=self.region, endpoint_url=self.endpoint or None, config=config, **self.credentials
                )
            )
        return self._clients[0]

    def _list_objects(self) -> Iterator[File]:
        """Yield all objects below the prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=below(self.prefix))
        for number, page in enumerate(pages):
            if number == PAGES:
                raise PermanentError(f"{self._label} is a list of more than {PAGES} pages")
            for item in page.get("Contents", ()):
                if path := path_of(item["Key"], self.prefix):
                    yield File(path, int(item["Size"]), "", item["Key"], item["ETag"])

    def _with_checksum(self, file: File) -> File:
        """Return the file with the checksum of its version. A changed object is an error (`IfMatch`)."""
        head = self._client.head_object(Bucket=self.bucket, Key=file.key, ChecksumMode="ENABLED", IfMatch=file.version)
        return File(file.path, file.size, self._checksum(file, head), file.key, file.version)

    def _checksum(self, file: File, head: Mapping[str, Any]) -> str:
        """Return the store's checksum of the whole object; empty if there is none.

        With customer-provided or KMS keys, the ETag is no hash of the content.
        """
        if head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
            if value := head.get("ChecksumSHA256"):
                return f"sha256:{base64.b64decode(value).hex()}"
            if value := head.get("ChecksumCRC32C"):
                return f"crc32c:{value}"
        tag = file.version.strip('"')
        if head.get("ServerSideEncryption", "AES256") != "AES256" or head.get("SSECustomerAlgorithm"):
            return ""
        if "-" not in tag:
            return f"md5:{tag}" if len(tag) == 32 else ""
        # The ETag of a multipart upload does not contain the size of the parts, which the first one has.
        first = self._client.head_object(Bucket=self.bucket, Key=file.key, PartNumber=1)
        size, part_count = int(first["ContentLength"]), int(tag.partition("-")[2])
        is_uniform = size and -(-file.size // size) == part_count
        return f"md5/{size}:{tag}" if is_uniform else ""

    @contextmanager
    def _errors(self) -> Generator[None]:
        """Translate boto3's errors."""
        hint = "with the keys of authSecret" if self.credentials else "without keys: name some in authSecret"
        try:
            yield
        except ClientError as error:
            metadata = cast(Mapping[str, Any], error.response).get("ResponseMetadata", {})
            status = int(metadata.get("HTTPStatusCode") or 500)
            raise error_of_status(status, metadata.get("HTTPHeaders", {}), self._label, hint) from error
        except BotoCoreError as error:
            raise TransientError(f"the download of {self._label} failed: {type(error).__name__}") from error
