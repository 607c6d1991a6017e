"""A release can be made where nothing but this checkout is, twice the same; and says what is missing for the image."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from localfleet import archive, binaries
from modelplane_operator import __version__
from modelplane_operator.clouds.eks import permissions
from scripts import audit, digests, image, image_root, licences, release, signing
from tests.support.manifests import ROOT


def test_all_of_the_project_is_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    release.same_versions()
    monkeypatch.setattr(release, "__version__", "9.9.9")

    with pytest.raises(release.ReleaseError, match=re.escape("modelplane_operator/__init__.py has 9.9.9, pyproject")):
        release.same_versions()


@pytest.mark.processes
@pytest.mark.parametrize("module", ["modelplane_operator", "modelplane_operator.cli"])
def test_programs_say_their_version(module: str) -> None:
    """By what is in the package: in the image no distribution of that name is installed."""
    said = subprocess.run(
        [sys.executable, "-m", module, "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert said.stdout.split()[-1] == __version__


@pytest.mark.fleet
def test_what_is_released_is_made_twice_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real Helm; without an image, which takes a builder."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    monkeypatch.setattr(image, "TOOLS", ("no-such-builder",))
    helm = binaries.ensure("helm")["helm"]
    release.release(tmp_path, helm, binaries.go().path, without_digests=True)

    names = {file.name for file in tmp_path.iterdir()}
    assert names == {
        f"modelplane_operator-{__version__}-py3-none-any.whl",
        f"modelplane_operator-{__version__}.tar.gz",
        f"modelplane-operator-chart-{__version__}.tgz",
        f"modelplane-operator-crds-{__version__}.yaml",
        f"modelplane-operator-{__version__}.cdx.json",
        f"modelplane-operator-{__version__}.provenance.json",
        "SHA256SUMS",
    }
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=tmp_path, capture_output=True, check=True)
    chart = tmp_path / f"modelplane-operator-chart-{__version__}.tgz"
    shown = subprocess.run([helm, "show", "chart", chart], capture_output=True, text=True, check=True).stdout
    assert f"version: {__version__}" in shown
    with tarfile.open(chart) as archive:
        held = {one.name.removeprefix("modelplane-operator/") for one in archive.getmembers()}
    assert {
        "Chart.yaml",
        "README.md",
        "values.schema.json",
        "files/crds/modeldeployments.yaml",
        "files/alerts.yaml",
    } <= held
    bill = json.loads((tmp_path / f"modelplane-operator-{__version__}.cdx.json").read_text())
    told = bill["metadata"].get("properties", [])
    assert {one["value"] for one in told if one["name"] == "modelplane:without-digest"} == {*release.lacking()}
    parts = bill["components"]
    named = {part["name"] for part in parts}
    assert {"kopf", "aiohttp", "helm.sh/helm/v3", "k8s.io/client-go"} <= named
    assert all(part["hashes"] for part in parts if part["purl"].startswith("pkg:pypi/"))


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> str:
    """The digest of an archive of the fleet's programs, for a release that has nothing else."""

    def pack(folder: Path) -> tuple[Path, str]:
        file = folder / "fleet-binaries.tar.gz"
        file.write_bytes(b"programs")
        return file, archive.digest(file)

    monkeypatch.setattr(binaries, "pack", pack)
    monkeypatch.setattr(release, "twice", lambda *_: {})
    monkeypatch.setattr(image, "TOOLS", ("no-such-builder",))
    return hashlib.sha256(b"programs").hexdigest()


def publish(monkeypatch: pytest.MonkeyPatch, digest: str) -> None:
    released = archive.Released(f"https://downloads.test/fleet-binaries.tar.gz#{digest}", "go1.99.9", "content")
    monkeypatch.setattr(archive, "released", lambda: released)


@pytest.mark.processes
def test_a_release_has_the_fleets_programs(tmp_path: Path, packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, packed)
    release.release(tmp_path, Path("helm"), None, without_digests=True, with_fleet=True)

    assert (tmp_path / "SHA256SUMS").read_text() == f"{packed}  fleet-binaries.tar.gz\n"


@pytest.mark.processes
def test_a_release_whose_source_names_another_archive_is_refused(
    tmp_path: Path, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "0" * 64)
    with pytest.raises(release.ReleaseError, match=f"released.json names another archive.* whose sha256 is {packed}"):
        release.release(tmp_path, Path("helm"), None, without_digests=True, with_fleet=True)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A private key as docs/releases.md says that one is made."""
    file = tmp_path / "release.key"
    command = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", file]
    subprocess.run(command, capture_output=True, check=True)
    return file


def verified(public: Path, content: bytes, signature: str, folder: Path) -> bool:
    """Whether OpenSSL takes a signature as cosign makes it: of the SHA-256, in ASN.1, in base 64."""
    (folder / "content").write_bytes(content)
    (folder / "signature").write_bytes(base64.b64decode(signature))
    command = ["openssl", "dgst", "-sha256", "-verify", public, "-signature", "signature", "content"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


@pytest.mark.processes
def test_a_release_is_signed_and_its_provenance_names_every_file(tmp_path: Path, key: Path) -> None:
    dist, public = tmp_path / "dist", tmp_path / "release.pub"
    dist.mkdir()
    files = {"a.whl": b"wheel", "SHA256SUMS": b"sums"}
    for name, content in files.items():
        (dist / name).write_bytes(content)
    subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", public], capture_output=True, check=True)
    provenance, *signatures = signing.attest(dist, [*files], ROOT, key)

    assert set(signatures) == {"a.whl.sig", "SHA256SUMS.sig", f"{provenance}.sig"}
    for name in (*files, provenance):
        content, signature = (dist / name).read_bytes(), (dist / f"{name}.sig").read_text()
        assert verified(public, content, signature, tmp_path)
        assert not verified(public, content + b"x", signature, tmp_path)
    said = json.loads((dist / provenance).read_text())
    payload = base64.b64decode(said["payload"])
    signed = f"DSSEv1 {len(said['payloadType'])} {said['payloadType']} {len(payload)} ".encode() + payload
    assert verified(public, signed, said["signatures"][0]["sig"], tmp_path)
    statement = json.loads(payload)
    assert statement["predicateType"] == "https://slsa.dev/provenance/v1"
    assert {one["name"]: one["digest"]["sha256"] for one in statement["subject"]} == {
        name: hashlib.sha256(content).hexdigest() for name, content in files.items()
    }
    parameters = statement["predicate"]["buildDefinition"]["externalParameters"]
    assert re.fullmatch("[0-9a-f]{40}", parameters["source"]["digest"]["gitCommit"])


@pytest.mark.processes
def test_what_cannot_sign_is_named(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other, locked = tmp_path / "rsa.key", tmp_path / "locked.key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "RSA", "-out", other], capture_output=True, check=True)
    lock = ["openssl", "pkcs8", "-topk8", "-in", key, "-out", locked, "-passout", "pass:hush"]
    subprocess.run(lock, capture_output=True, check=True)
    for file, words in ((tmp_path / "none", "cannot be read: No such"), (other, "curve P-256"), (locked, "password")):
        with pytest.raises(signing.SigningError, match=words):
            signing.attest(tmp_path, [], ROOT, file)
    with pytest.raises(signing.SigningError, match="no checkout of git"):
        signing.attest(tmp_path, [], tmp_path, key)
    monkeypatch.setenv(signing.PASSWORD, "hush")
    assert signing.attest(tmp_path, [], ROOT, locked)


@pytest.mark.parametrize(
    ("version", "fixed"),
    [
        ("1.9.0", None),
        ("2.0.0-rc.1", None),
        ("2.0.0", "2.3.1"),
        ("2.3.0", "2.3.1"),
        ("2.3.1", None),
        ("2.10.0", None),
        ("3.0.0", ""),
        ("3.1.0+build", ""),
    ],
)
def test_versions_between_two_events_are_affected(version: str, fixed: str | None) -> None:
    events = [{"introduced": "3.0.0"}, {"introduced": "2.0.0"}, {"fixed": "2.3.1"}]
    assert audit.mended(events, version) == fixed


def test_known_vulnerabilities_are_listed_by_module(tmp_path: Path) -> None:
    def advisory(number: str, name: str, **more: str) -> None:
        affected = [{"package": {"name": name}, "ranges": [{"events": [{"introduced": "0"}, {"fixed": "1.2.0"}]}]}]
        (tmp_path / f"{number}.json").write_text(json.dumps({"id": number, "affected": affected, **more}))

    advisory("GO-1", "example.com/a", summary="It leaks.")
    advisory("GO-2", "example.com/b")
    advisory("GO-3", "example.com/a", withdrawn="2026-01-01")
    used = [audit.Module("example.com/a", "1.1.9", "Helm"), audit.Module("example.com/a", "1.2.0", "a chart")]

    (found,) = audit.known(used, tmp_path)
    assert (found.number, found.module, found.summary, found.fixed) == ("GO-1", used[0], "It leaks.", "1.2.0")


def test_nothing_is_released_that_lacks_a_digest_unless_somebody_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *_ = references = [one.reference for one in digests.wanted()]
    known = dict.fromkeys(references, f"sha256:{'1' * 64}")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(f"ARG BASE_IMAGE=python:3.13-slim@sha256:{'2' * 64}\n")
    monkeypatch.setattr(digests, "DOCKERFILE", dockerfile)
    monkeypatch.setattr(release, "DIGESTS", known)
    release.digests_written(without_digests=False)
    assert capsys.readouterr().out == ""

    del known[first]
    with pytest.raises(release.ReleaseError, match=re.escape(first)) as refused:
        release.release(tmp_path / "dist", Path("helm"), None)
    assert "make digests" in str(refused.value)
    assert "make release DIGESTS=none" in str(refused.value)
    assert not (tmp_path / "dist").exists()

    release.digests_written(without_digests=True)
    assert first in capsys.readouterr().out


def test_what_differs_between_two_makings_fails_the_release(monkeypatch: pytest.MonkeyPatch) -> None:
    made = iter([[("a", b"1"), ("b", b"1")], [("a", b"1"), ("b", b"2"), ("c", b"")]])
    monkeypatch.setattr(release, "files", lambda *_: next(made))

    with pytest.raises(release.ReleaseError, match="made twice, these differ: b, c"):
        release.twice(Path("helm"), None)


def test_archives_carry_one_time_and_nobodys_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    made = release.archived(iter([("chart/a", b"content")]))

    with tarfile.open(fileobj=io.BytesIO(made)) as archive:
        (entry,) = archive.getmembers()
    assert (entry.mtime, entry.uid, entry.uname, entry.mode) == (1700000000, 0, "", 0o644)


@pytest.mark.parametrize(
    ("there", "told"),
    [((), "none of docker, podman, buildah is on this machine"), (("docker",), "docker is here and cannot be used")],
)
def test_without_a_builder_it_says_what_is_missing(
    there: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in there:
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(image.ImageError, match=told):
        image.tool()


def test_an_image_without_a_registry_is_not_pushed() -> None:
    with pytest.raises(image.ImageError, match=r"modelplane-operator:dev names no registry: IMAGE=registry"):
        image.push("modelplane-operator:dev")


def test_the_image_keeps_what_of_the_sdk_of_aws_is_asked() -> None:
    asked = {
        action.partition(":")[0] for statement in permissions.policy()["Statement"] for action in statement["Action"]
    }
    named = {called: service for service, called in permissions.PREFIXES.items()}

    assert {named.get(one, one) for one in asked} | {"sts", "s3"} <= {*image_root.AWS, "elasticloadbalancing"}
    assert {*permissions.READS} <= {*image_root.AWS}


def test_every_package_of_the_image_says_its_licence() -> None:
    found = licences.packages()

    assert len(found) > 40
    assert {"kopf", "aiohttp", "cryptography"} <= {one.name for one in found}
    assert [one.name for one in found if not one.hashes] == []
    assert [one.name for one in found if one.licence == "see its files"] == []
