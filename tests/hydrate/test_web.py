"""Which web servers the hydrator dials, and what it takes of their answers."""

from __future__ import annotations

import gzip
import json
import socket
import tracemalloc
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import google_crc32c
import httpx
import pytest

from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.google_cloud_storage import GoogleCloudStorage
from modelplane_operator.hydrate.hugging_face import HuggingFace
from modelplane_operator.hydrate.manifest import Manifest
from modelplane_operator.hydrate.oci import oci
from modelplane_operator.hydrate.source import PermanentError, Source, TransientError
from modelplane_operator.hydrate.web import LARGEST, Web, check_host, client
from tests.support.web_server import web_server

OUTSIDE = "192.0.2.1"  # of documentation: nobody answers there
MANIFEST = json.dumps({"files": [{"path": "a", "size": 1, "sha256": "a" * 64}]}).encode()


@pytest.fixture
def outward() -> Iterator[Web]:
    with client() as own:
        yield Web("it", client=own)


@pytest.fixture
def anywhere() -> Iterator[httpx.Client]:
    with client(anywhere=True) as own:
        yield own


def _resolve(patch: pytest.MonkeyPatch, names: dict[str, list[str]]) -> None:
    """Answer about names as their owner likes: with one address after the other, and the last one for ever."""
    real = socket.getaddrinfo

    def answered(host: Any, port: Any, *told: Any, **more: Any) -> Any:
        asked = host if isinstance(host, str) else host.decode()
        answers = names.get(asked.encode("idna").decode(), [asked])  # as the system's resolver is asked
        return real(answers.pop(0) if len(answers) > 1 else answers[0], port, *told, **more)

    patch.setattr(socket, "getaddrinfo", answered)


def test_the_name_that_is_judged_is_the_one_that_is_dialled(monkeypatch: pytest.MonkeyPatch, outward: Web) -> None:
    """The older rules of IDNA make another name of the letters that this one stands for."""
    _resolve(monkeypatch, {"fass.example.com": [OUTSIDE], "xn--fa-hia.example.com": ["127.0.0.1"]})
    with web_server(pages={"/m.json": MANIFEST}) as server:
        url = server.url.replace("127.0.0.1", "xn--fa-hia.example.com")
        with pytest.raises(PermanentError, match="does not exist, or is not allowed"):
            Manifest(f"{url}/m.json", outward).list_files()

    assert server.requests == []
    with pytest.raises(PermanentError, match="does not exist, or is not allowed"):
        check_host("fa\u00df.example.com")


def test_the_address_that_is_judged_is_the_one_that_is_dialled(monkeypatch: pytest.MonkeyPatch, outward: Web) -> None:
    _resolve(monkeypatch, {"moving.example.com": [OUTSIDE, "127.0.0.1"]})
    outward.client.timeout = 0.2
    with (
        web_server(pages={"/m.json": MANIFEST}) as server,
        pytest.raises(TransientError, match="the download of it failed"),
    ):
        Manifest(f"{server.url.replace('127.0.0.1', 'moving.example.com')}/m.json", outward).list_files()

    assert server.requests == []


def test_the_next_address_of_a_name_is_dialled_when_one_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, outward: Web
) -> None:
    monkeypatch.setattr("modelplane_operator.hydrate.web.check_host", lambda _: ["127.0.0.2", "127.0.0.1"])
    with web_server(pages={"/m.json": MANIFEST}) as server:
        listing = Manifest(f"{server.url.replace('127.0.0.1', 'two.example.com')}/m.json", outward).list_files()

    assert [one.path for one in listing.files] == ["a"]


@pytest.mark.parametrize("address", ["64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:ffff::808:808"])
def test_addresses_that_are_translated_within_a_network_are_refused(address: str) -> None:
    assert ip_address(address)
    with pytest.raises(PermanentError, match="does not exist, or is not allowed"):
        check_host(address)


def _manifest(url: str, own: httpx.Client) -> Source:
    return Manifest(f"{url}/list", Web("it", client=own))


def _registry(url: str, own: httpx.Client) -> Source:
    return oci(f"{url.removeprefix('http://')}/org/model:v1", Web("it", client=own), insecure=True, credentials="")


def _bucket(url: str, own: httpx.Client) -> Source:
    return GoogleCloudStorage("models", Web("it", client=own), endpoint=url)


def _hub(url: str, own: httpx.Client) -> Source:
    return HuggingFace(url, "org/model", client=own)


@pytest.mark.parametrize(
    ("source", "path"),
    [
        (_manifest, "/list"),
        (_registry, "/v2/org/model/manifests/v1"),
        (_bucket, "/storage/v1/b/models/o"),
        (_hub, "/api/models/org/model"),
    ],
)
def test_a_list_that_comes_compressed_is_refused_before_it_is_unpacked(
    source: Callable[[str, httpx.Client], Source], path: str, anywhere: httpx.Client
) -> None:
    bomb = gzip.compress(bytes(2 * LARGEST), 1)
    with web_server(pages={path: bomb}, headers={"Content-Encoding": "gzip"}) as server:
        asked = source(server.url, anywhere)
        tracemalloc.start()
        try:
            with pytest.raises(PermanentError, match="compressed, which it was not asked for"):
                asked.list_files()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()

    assert [headers["accept-encoding"] for _, headers in server.requests] == ["identity"]
    assert peak < LARGEST


def test_a_list_of_hugging_face_has_a_bound(anywhere: httpx.Client) -> None:
    with (
        web_server(pages={"/api/models/org/model": b" " * (LARGEST + 1)}) as server,
        pytest.raises(PermanentError, match="is longer than 16 MiB"),
    ):
        _hub(server.url, anywhere).list_files()


def test_an_object_that_google_stores_packed_comes_as_it_is_stored(tmp_path: Path, anywhere: httpx.Client) -> None:
    plain = b'{"model_type": "toy"}' * 50
    stored = gzip.compress(plain)
    crc = google_crc32c.Checksum()
    crc.update(stored)
    told = {"name": "a", "size": str(len(stored)), "crc32c": crc.digest().hex(), "generation": "17"}
    pages = {"/storage/v1/b/models/o": json.dumps({"items": [told]}).encode(), "/storage/v1/b/models/o/a": plain}
    with web_server(pages=pages, packed={"/storage/v1/b/models/o/a": stored}) as server:
        source = _bucket(server.url, anywhere)
        listing = source.list_files()
        source.fetch(listing, listing.files[0], Folder(tmp_path))

    assert (tmp_path / "a").read_bytes() == stored
