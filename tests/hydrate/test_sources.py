"""The hydrator's process against every source but Hugging Face: stand-ins on loopback, and moto for S3."""

from __future__ import annotations

import base64
import hashlib
import json
import random
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, cast

import boto3
import google_crc32c
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from moto.server import ThreadedMotoServer

from modelplane_operator.hydrate.s3 import S3
from tests.support.hydrating import Ended, run
from tests.support.web_server import WebServer, web_server

pytestmark = pytest.mark.processes

TOKEN = "canary-9a41f0"  # noqa: S105 - of a stand-in
WEIGHTS = random.Random(1).randbytes(3_000_000)  # noqa: S311 - no secret
FILES = {"config.json": b'{"model_type": "toy"}', "model.safetensors": WEIGHTS, "original/model 1.pth": WEIGHTS[:5000]}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


# A manifest on a web server -------------------------------------------------------------------------------------------


def manifest(files: Mapping[str, bytes] = FILES, **more: Any) -> bytes:
    told = [{"path": name, "size": len(content), "sha256": sha256(content)} for name, content in files.items()]
    return json.dumps({"files": [{**one, **more} for one in told]}).encode()


def pages(files: Mapping[str, bytes] = FILES) -> dict[str, bytes]:
    paths = {f"/v2/{name.replace(' ', '%20')}": content for name, content in files.items()}
    return {"/v2/manifest.json": manifest(files), **paths}


def by_manifest(server: WebServer, folder: Path, *more: str, token: str = "") -> Ended:
    secret = {"HTTP_TOKEN": token} if token else {}
    told = ("--source=HTTP", f"--manifest={server.url}/v2/manifest.json", "--any-address")
    return run(folder, *told, *more, secret=secret)


def test_files_of_a_manifest_are_fetched_and_the_marker_names_it(tmp_path: Path) -> None:
    with web_server(pages=pages()) as server:
        ended = by_manifest(server, tmp_path)

    assert (ended.code, ended.files) == (0, FILES), ended.log
    marker = json.loads((ended.volume / ".modelplane" / "complete.json").read_text())
    assert marker["revision"] == f"sha256:{sha256(manifest())}" == json.loads(ended.word)["revision"]


def test_a_transfer_from_a_web_server_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    with web_server(pages=pages({"model.safetensors": WEIGHTS}), broken_after=2_000_000) as server:
        ended = by_manifest(server, tmp_path)

    assert (ended.code, ended.files) == (0, {"model.safetensors": WEIGHTS}), ended.log
    assert server.ranges == ["bytes=2000000-"]


def test_a_slow_web_server_is_waited_for(tmp_path: Path) -> None:
    with web_server(pages=pages(), pause=0.5) as server:
        assert by_manifest(server, tmp_path).files == FILES


def test_a_file_with_another_hash_is_fetched_anew_and_given_up_when_it_stays_so(tmp_path: Path) -> None:
    forged = WEIGHTS[:-1] + b"x"
    with web_server(pages=pages(), wrong={"/v2/model.safetensors": forged}) as server:
        once = by_manifest(server, tmp_path)
    (tmp_path / "other").mkdir()
    with web_server(pages={**pages(), "/v2/config.json": b"{}" * 10 + b"!"}) as server:
        always = by_manifest(server, tmp_path / "other")

    assert (once.code, once.files) == (0, FILES)
    assert (always.code, always.files, always.is_marked) == (1, {}, False)
    assert "config.json arrived with other content" in always.word


def test_a_server_that_is_busy_is_asked_again(tmp_path: Path) -> None:
    with web_server(pages=pages()) as server:
        server.open = frozenset({"/v2/manifest.json"})
        server.answers[:] = [429, 503]
        assert by_manifest(server, tmp_path).files == FILES


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_token_that_is_refused_is_told_and_not_tried_again(tmp_path: Path, token: str) -> None:
    with web_server(pages=pages(), authorization=f"Bearer {TOKEN}") as server:
        ended = by_manifest(server, tmp_path, token=token)

    assert (ended.code, ended.files, len(server.requests)) == (3, {}, 1)
    assert " with 401; the request was " in ended.word
    assert "authSecret" in ended.word


def test_the_token_goes_to_the_server_of_the_manifest_and_nowhere_else(tmp_path: Path) -> None:
    with web_server(pages=pages()) as elsewhere, web_server(authorization=f"Bearer {TOKEN}") as server:
        server.pages["/v2/manifest.json"] = manifest({"config.json": FILES["config.json"]}, url="moved")
        server.redirects["/v2/moved"] = f"{elsewhere.url}/v2/config.json"
        ended = by_manifest(server, tmp_path, token=TOKEN)
        (asked,) = elsewhere.sent("/v2/config.json")

    assert (ended.code, ended.files) == (0, {"config.json": FILES["config.json"]}), ended.log
    assert "authorization" not in asked
    assert TOKEN not in ended.log + ended.word
    assert [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("content", "more", "says"),
    [
        (b"<html>", [], "is no manifest"),
        (b'{"files": [{"path": "a", "size": -1, "sha256": "' + b"0" * 64 + b'"}]}', [], "is no manifest"),
        (b'{"files": [{"path": "a", "size": 1, "sha256": "x"}]}', [], "is no manifest"),
        (b"[" * 100_000, [], "is no manifest"),
        (manifest({"../out": b"x"}), [], "outside of the volume"),
        (manifest(), ["--allow=*.gguf"], "no file matches allowPatterns"),
        (manifest(), [f"--sha256={'0' * 64}"], "which is not the value of sha256"),
    ],
)
def test_a_manifest_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes, more: list[str], says: str) -> None:
    with web_server(pages={**pages(), "/v2/manifest.json": content}) as server:
        ended = by_manifest(server, tmp_path, *more)

    assert (ended.code, ended.files) == (3, {}), ended.log
    assert says in ended.word


@pytest.mark.parametrize(
    "arguments",
    [
        ["--source=HTTP", "--manifest=http://127.0.0.1:1/m.json"],
        ["--source=HTTP", "--manifest=http://[::1]:1/m.json"],
        ["--source=HTTP", "--manifest=http://localhost:1/m.json"],
        ["--source=HTTP", "--manifest=http://169.254.169.254/latest/meta-data"],
        ["--source=HTTP", "--manifest=http://[::ffff:169.254.169.254]/latest"],
        ["--source=HTTP", "--manifest=http://[64:ff9b::169.254.169.254]/latest"],
        ["--source=HTTP", "--manifest=http://[64:ff9b::127.0.0.1]/latest"],
        ["--source=HTTP", "--manifest=http://[2002:a9fe:a9fe::]/latest"],
        ["--source=HTTP", "--manifest=http://[2001:0:4136:e378:8000:63bf:5601:5601]/latest"],
        ["--source=HTTP", "--manifest=http://[::169.254.169.254]/latest"],
        ["--source=HTTP", "--manifest=http://[64:ff9b::100.100.100.200]/latest"],
        ["--source=HTTP", "--manifest=http://no-such-name.invalid/m.json"],
        ["--source=S3", "--bucket=models", "--endpoint=http://169.254.170.2"],
        ["--source=OCI", "--reference=localhost:5000/org/model:v1", "--insecure"],
    ],
)
def test_nothing_is_asked_of_the_pods_own_node_or_a_clouds_metadata(tmp_path: Path, arguments: list[str]) -> None:
    ended = run(tmp_path, *arguments)

    assert (ended.code, ended.files) == (3, {}), ended.log
    assert "does not exist, or is not allowed" in ended.word


def test_a_redirect_does_not_lead_inside_either(tmp_path: Path) -> None:
    """As seen by a client that may ask this stand-in, and nobody else on this machine."""
    with web_server(redirects={"/v2/manifest.json": "http://169.254.169.254/latest"}) as server:
        told = ("--source=HTTP", f"--manifest={server.url.replace('127.0.0.1', 'localhost')}/v2/manifest.json")
        ended = run(tmp_path, *told)

    assert ended.code == 3
    assert "does not exist, or is not allowed" in ended.word


# An OCI registry ------------------------------------------------------------------------------------------------------


def artifact(files: Mapping[str, bytes] = FILES, **annotations: str) -> dict[str, bytes]:
    """The pages of an artifact in a registry."""
    layers = [
        {
            "mediaType": "application/vnd.oci.image.layer.v1.tar",
            "digest": f"sha256:{sha256(content)}",
            "size": len(content),
            "annotations": {"org.opencontainers.image.title": name, **annotations},
        }
        for name, content in files.items()
    ]
    told = json.dumps({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "layers": layers})
    found = told.encode()
    blobs = {f"/v2/org/model/blobs/sha256:{sha256(content)}": content for content in files.values()}
    return {"/v2/org/model/manifests/v1": found, f"/v2/org/model/manifests/sha256:{sha256(found)}": found, **blobs}


def from_registry(server: WebServer, folder: Path, *more: str, at: str = ":v1", password: str = "") -> Ended:
    host = server.url.removeprefix("http://")
    basic = base64.b64encode(f"me:{password}".encode()).decode()
    secret = {"REGISTRY_CREDENTIALS": json.dumps({"auths": {host: {"auth": basic}}})} if password else {}
    told = ("--source=OCI", f"--reference={host}/org/model{at}", "--insecure", "--any-address")
    return run(folder, *told, *more, secret=secret)


def test_layers_of_an_artifact_are_files_and_a_tag_is_pinned(tmp_path: Path) -> None:
    with web_server(pages=artifact()) as server:
        ended = from_registry(server, tmp_path)

    assert (ended.code, ended.files) == (0, FILES), ended.log
    assert json.loads(ended.word)["revision"] == f"sha256:{sha256(artifact()['/v2/org/model/manifests/v1'])}"


def test_a_registry_gives_a_token_for_a_password(tmp_path: Path) -> None:
    given = {**artifact(), "/token": json.dumps({"token": TOKEN}).encode()}
    with web_server(pages=given, authorization=f"Bearer {TOKEN}", open=frozenset({"/token"})) as server:
        server.challenge = f'Bearer realm="{server.url}/token",service="hub",scope="repository:org/model:pull"'
        ended = from_registry(server, tmp_path, password="canary-pass")  # noqa: S106 - of a stand-in
        (asked,) = server.sent("/token")

    assert (ended.code, ended.files) == (0, FILES), ended.log
    assert base64.b64decode(asked["authorization"].removeprefix("Basic ")) == b"me:canary-pass"
    assert not {TOKEN, "canary-pass"} & {word for word in (TOKEN, "canary-pass") if word in ended.log + ended.word}


def test_a_token_that_ends_on_the_way_is_had_anew(tmp_path: Path) -> None:
    given = {**artifact(), "/token": json.dumps({"token": TOKEN}).encode()}
    manifests = frozenset(path for path in given if "/manifests/" in path) | {"/token"}
    with web_server(pages=given, authorization=f"Bearer {TOKEN}", open=manifests) as server:
        server.challenge = f'Bearer realm="{server.url}/token"'
        ended = from_registry(server, tmp_path)

    assert (ended.code, ended.files) == (0, FILES), ended.log


@pytest.mark.parametrize(
    ("given", "at", "says"),
    [
        ({}, ":v1", "does not exist"),
        ({"/v2/org/model/manifests/v1": b"[]"}, ":v1", "is not a manifest of an artifact"),
        ({"/v2/org/model/manifests/v1": b"{}"}, ":v1", "is not a manifest of an artifact"),
        ({"/v2/org/model/manifests/v1": b'{"manifests": [{}, {}]}'}, ":v1", "an index of 2 artifacts"),
        ({"/v2/org/model/manifests/v1": b'{"manifests": [{}]}'}, ":v1", "is not a manifest of an artifact"),
        ({"/v2/org/model/manifests/v1": b'{"layers": [{"size": "x"}]}'}, ":v1", "is not a manifest of an artifact"),
        (artifact(**{"io.deis.oras.content.unpack": "true"}), ":v1", "a layer that is no file"),
    ],
)
def test_an_artifact_that_is_no_model_is_refused(tmp_path: Path, given: dict[str, bytes], at: str, says: str) -> None:
    with web_server(pages=given) as server:
        ended = from_registry(server, tmp_path, at=at)

    assert (ended.code, ended.files) == (3, {}), ended.log
    assert says in ended.word


# Google Cloud Storage -------------------------------------------------------------------------------------------------


def crc32c(content: bytes) -> str:
    found = google_crc32c.Checksum()
    found.update(content)
    return base64.b64encode(found.digest()).decode()


def bucket(files: Mapping[str, bytes] = FILES) -> dict[str, bytes]:
    items = [
        {"name": f"qwen/{name}", "size": str(len(content)), "crc32c": crc32c(content), "generation": "17"}
        for name, content in files.items()
    ]
    folder = {"name": "qwen/original/", "size": "0", "crc32c": "AAAAAA==", "generation": "1"}
    objects = {
        f"/storage/v1/b/models/o/qwen%2F{name.replace('/', '%2F').replace(' ', '%20')}": content
        for name, content in files.items()
    }
    return {"/storage/v1/b/models/o": json.dumps({"items": [folder, *items]}).encode(), **objects}


def from_google(server: WebServer, folder: Path, *more: str, key: str = "") -> Ended:
    told = ("--source=GoogleCloudStorage", "--bucket=models", "--prefix=qwen/", f"--endpoint={server.url}")
    return run(folder, *told, "--any-address", *more, secret={"GOOGLE_CREDENTIALS": key} if key else {})


def test_objects_of_google_cloud_storage_are_fetched_and_held_against_their_crc32c(tmp_path: Path) -> None:
    forged = {"/storage/v1/b/models/o/qwen%2Fconfig.json": b"x" * len(FILES["config.json"])}
    with web_server(pages=bucket(), wrong=forged, broken_after=1_000_000) as server:
        ended = from_google(server, tmp_path)

    assert (ended.code, ended.files) == (0, FILES), ended.log
    assert server.ranges == ["bytes=1000000-"]


def test_a_service_account_signs_for_itself(tmp_path: Path) -> None:
    private = rsa.generate_private_key(65537, 2048)
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key = {"client_email": "me@lab", "private_key": private.private_bytes(*encoding).decode()}
    given = {**bucket(), "/token": json.dumps({"access_token": TOKEN}).encode()}
    with web_server(pages=given, authorization=f"Bearer {TOKEN}", open=frozenset({"/token"})) as server:
        ended = from_google(server, tmp_path, key=json.dumps(key))
        (tmp_path / "other").mkdir()
        nobody = from_google(server, tmp_path / "other", key="{}")

    assert (ended.code, ended.files) == (0, FILES), ended.log
    assert "PRIVATE KEY" not in ended.log + ended.word
    assert (nobody.code, nobody.word) == (3, "the Secret of authSecret has no key of a service account")


def test_a_list_without_end_is_refused(tmp_path: Path) -> None:
    page = json.dumps({"items": [{"name": "qwen/folder/"}], "nextPageToken": "again"}).encode()
    with web_server(pages={"/storage/v1/b/models/o": page}) as server:
        ended = from_google(server, tmp_path)

    assert (ended.code, ended.files) == (3, {}), ended.log
    assert "more than 200 pages" in ended.word


# S3 -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def s3() -> Generator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def models(s3: str) -> Any:
    """A bucket with the model's files, one of them put there in pieces."""
    client = cast(Any, boto3).client(
        "s3",
        region_name="us-east-1",
        endpoint_url=s3,
        aws_access_key_id="a",
        aws_secret_access_key="b",  # noqa: S106
    )
    client.create_bucket(Bucket="models")
    for name, content in FILES.items():
        client.put_object(Bucket="models", Key=f"qwen/{name}", Body=content)
    client.put_object(Bucket="models", Key="qwen/original/", Body=b"")
    client.put_object(Bucket="models", Key="qwen2/config.json", Body=b"of another model")
    large = WEIGHTS * 4
    upload = client.create_multipart_upload(Bucket="models", Key="qwen/large.bin")["UploadId"]
    parts = []
    for number, start in enumerate(range(0, len(large), 5 << 20), 1):
        body = large[start : start + (5 << 20)]
        told = {"Bucket": "models", "Key": "qwen/large.bin", "UploadId": upload, "PartNumber": number}
        parts.append({"PartNumber": number, "ETag": client.upload_part(**told, Body=body)["ETag"]})
    client.complete_multipart_upload(
        Bucket="models", Key="qwen/large.bin", UploadId=upload, MultipartUpload={"Parts": parts}
    )
    yield client
    client.delete_objects(
        Bucket="models",
        Delete={"Objects": [{"Key": one["Key"]} for one in client.list_objects_v2(Bucket="models")["Contents"]]},
    )
    client.delete_bucket(Bucket="models")


EVERY = {**FILES, "large.bin": WEIGHTS * 4}
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "canary-b"}


def from_s3(endpoint: str, folder: Path, *more: str, secret: Mapping[str, str] = KEYS) -> Ended:
    told = ("--source=S3", "--bucket=models", "--prefix=qwen", f"--endpoint={endpoint}", "--any-address")
    return run(folder, *told, *more, secret=secret)


def test_objects_of_s3_are_fetched_and_held_against_their_etags(s3: str, models: Any, tmp_path: Path) -> None:
    ended = from_s3(s3, tmp_path)

    assert (ended.code, ended.files) == (0, EVERY), ended.log
    assert "canary" not in ended.log + ended.word
    marker = json.loads((ended.volume / ".modelplane" / "complete.json").read_text())
    listed = {one["path"]: one["sha256"] for one in marker["files"]}
    assert listed == {path: hashlib.sha256(content).hexdigest() for path, content in EVERY.items()}
    known = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    files = S3("models", "qwen", endpoint=s3, credentials=known, anywhere=True).list_files().files
    kinds = {one.path: one.checksum.partition(":")[0] for one in files}
    assert kinds == {**dict.fromkeys(FILES, "md5"), "large.bin": f"md5/{5 << 20}"}


def test_what_is_there_of_an_object_is_not_fetched_again(s3: str, models: Any, tmp_path: Path) -> None:
    folder = tmp_path / "volume" / ".modelplane" / "0123456789abcdef"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(WEIGHTS[:1_000_000])
    (folder / "large.bin").write_bytes(b"of something else")
    ended = from_s3(s3, tmp_path)

    assert (ended.code, ended.files) == (0, EVERY), ended.log


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--bucket=none"], "s3://none/qwen does not exist"),
        (["--prefix=nothing"], "s3://models/nothing has no files"),
        (["--allow=*.gguf"], "no file matches allowPatterns"),
    ],
)
def test_what_s3_does_not_have_is_not_tried_again(
    s3: str, models: Any, tmp_path: Path, more: list[str], says: str
) -> None:
    ended = from_s3(s3, tmp_path, *more)

    assert (ended.code, ended.files) == (3, {}), ended.log
    assert says in ended.word


@pytest.mark.parametrize(("status", "code"), [(403, 3), (503, 1), (429, 1)])
def test_answers_of_s3_are_told_apart(tmp_path: Path, status: int, code: int) -> None:
    with web_server(answers=[status] * 4) as server:
        ended = from_s3(server.url, tmp_path, secret={})

    assert ended.code == code, ended.log
    assert str(status) in ended.word


def test_a_source_that_is_silent_is_tried_again_later(tmp_path: Path) -> None:
    with web_server() as server:
        pass

    assert (from_s3(server.url, tmp_path).code, by_manifest(server, tmp_path).code) == (1, 1)
