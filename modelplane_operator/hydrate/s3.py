"""Objects in a bucket of Amazon S3, or of a store that speaks its protocol."""

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
    pinned,
    selected,
)
from modelplane_operator.hydrate.web import answered, check_host, resumed, write

HEADS: Final = 8  # at once: an object's checksum is not in the list


@dataclass(frozen=True, slots=True)
class S3:
    """A bucket of S3. Its objects are pinned by their ETags."""

    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    endpoint: str = ""
    allow: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    credentials: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """As boto3 takes them."""
    anywhere: bool = False
    _clients: list[Any] = field(default_factory=list[Any], init=False, repr=False)

    def listing(self) -> FileListing:
        with self._errors():
            files = selected(self._listed(), self.allow, self.ignore, self._named)
            with ThreadPoolExecutor(HEADS) as pool:
                return pinned(list(pool.map(self._with_checksum, files)))

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        del listing
        have = resumed(file, folder)
        if have == file.size:
            return
        part = {"Range": f"bytes={have}-"} if have else {}
        with self._errors():
            body = self._client.get_object(Bucket=self.bucket, Key=file.key, IfMatch=file.version, **part)["Body"]
            write(file, folder, have, body.iter_chunks(1 << 20))

    @property
    def _named(self) -> str:
        return f"s3://{self.bucket}" + (f"/{self.prefix.strip('/')}" if self.prefix else "")

    @property
    def _client(self) -> Any:
        if not self._clients:
            if self.endpoint and not self.anywhere:
                check_host(urlsplit(self.endpoint).hostname or "")
            told = Config(
                connect_timeout=10,
                read_timeout=60,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=HEADS,
                response_checksum_validation="when_required",  # the file as a whole is held against what it should be
                s3={"addressing_style": "path" if self.endpoint else "auto"},
                **({} if self.credentials else {"signature_version": UNSIGNED}),
            )
            self._clients.append(
                cast(Any, boto3).client(
                    "s3", region_name=self.region, endpoint_url=self.endpoint or None, config=told, **self.credentials
                )
            )
        return self._clients[0]

    def _listed(self) -> Iterator[File]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=below(self.prefix))
        for number, page in enumerate(pages):
            if number == PAGES:
                raise PermanentError(f"{self._named} is a list of more than {PAGES} pages")
            for one in page.get("Contents", ()):
                if path := path_of(one["Key"], self.prefix):
                    yield File(path, int(one["Size"]), "", one["Key"], one["ETag"])

    def _with_checksum(self, file: File) -> File:
        head = self._client.head_object(Bucket=self.bucket, Key=file.key, ChecksumMode="ENABLED", IfMatch=file.version)
        return File(file.path, file.size, self._checksum(file, head), file.key, file.version)

    def _checksum(self, file: File, head: Mapping[str, Any]) -> str:
        """What the store knows of the whole object: with keys of others, an ETag is no hash of what comes."""
        if head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
            if known := head.get("ChecksumSHA256"):
                return f"sha256:{base64.b64decode(known).hex()}"
            if known := head.get("ChecksumCRC32C"):
                return f"crc32c:{known}"
        tag = file.version.strip('"')
        if head.get("ServerSideEncryption", "AES256") != "AES256" or head.get("SSECustomerAlgorithm"):
            return ""
        if "-" not in tag:
            return f"md5:{tag}" if len(tag) == 32 else ""
        first = self._client.head_object(Bucket=self.bucket, Key=file.key, PartNumber=1)
        size, pieces = int(first["ContentLength"]), int(tag.partition("-")[2])
        uniform = size and -(-file.size // size) == pieces
        return f"md5/{size}:{tag}" if uniform else ""

    @contextmanager
    def _errors(self) -> Generator[None]:
        asked = "with the keys of authSecret" if self.credentials else "without keys: name some in authSecret"
        try:
            yield
        except ClientError as error:
            told = cast(Mapping[str, Any], error.response).get("ResponseMetadata", {})
            status = int(told.get("HTTPStatusCode") or 500)
            raise answered(status, told.get("HTTPHeaders", {}), self._named, asked) from error
        except BotoCoreError as error:
            raise TransientError(f"{self._named} does not come: {type(error).__name__}") from error
