"""Make a release: sdist, wheel, chart, bill of materials, provenance, checksums, the image where one can be built, and
the local fleet's programs.

Everything but the last two is made twice, and the release fails when the two differ by a byte. SOURCE_DATE_EPOCH is the
time that archives carry; without it, that of the commit.

There is none while what the operator fetches lacks a digest, unless somebody says that it is to lack them: then the
bill of materials says which.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import yaml

from localfleet import archive, binaries
from localfleet.errors import FleetError
from modelplane_operator import __version__
from modelplane_operator.clusters.stack.digests import DIGESTS
from scripts import digests, image, licences, signing

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts/modelplane-operator"
CHECKSUMS = "SHA256SUMS"


class ReleaseError(Exception):
    """There is no release; the message says why."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "dist", help="where it goes")
    parser.add_argument("--helm", type=Path, required=True, help="the helm that packages the chart")
    parser.add_argument("--go", type=Path, help="the go that reads what is in helm")
    parser.add_argument("--fleet", action="store_true", help="with an archive of the local fleet's programs")
    parser.add_argument("--digests", choices=("written", "none"), default="written", help="none: do without them")
    parser.add_argument("--key", type=Path, help="a private key to sign with: docs/releases.md")
    asked = parser.parse_args()
    try:
        without = asked.digests == "none"
        release(asked.folder, asked.helm, asked.go, key=asked.key, without_digests=without, with_fleet=asked.fleet)
    except (ReleaseError, FleetError, image.ImageError, signing.SigningError) as error:
        sys.exit(f"release: {error}")


def release(
    folder: Path,
    helm: Path,
    go: Path | None,
    *,
    key: Path | None = None,
    without_digests: bool = False,
    with_fleet: bool = False,
) -> None:
    """Put all of it into a folder that is new or empty."""
    if key is not None:
        signing.read_key(key)  # or all of it would be made, and not signed
    same_versions()
    digests_written(without_digests=without_digests)
    os.environ.setdefault("SOURCE_DATE_EPOCH", str(time_of_commit()))
    files = twice(helm, go)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    if saved := image_archive(folder):
        print(f"{saved.name} is no part of the comparison: builders write their own times")
    names = [*files, *([saved.name] if saved else []), *([fleet_archive(folder)] if with_fleet else [])]
    write_checksums(folder, names)
    attested = signing.attest(folder, [*names, CHECKSUMS], ROOT, key)
    print(f"signed, with its provenance in {attested[0]}" if key else f"not signed; its provenance is {attested[0]}")
    for line in (folder / CHECKSUMS).read_text().splitlines():
        print(f"  {line}")


def same_versions() -> None:
    """The package, the chart and the image are one version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    found = {
        "modelplane_operator/__init__.py": __version__,
        "pyproject.toml": project[1] if project else "",
        "Chart.yaml, version": chart["version"],
        "Chart.yaml, appVersion": chart["appVersion"],
    }
    if len(set(found.values())) > 1:
        raise ReleaseError(f"versions differ: {', '.join(f'{where} has {what}' for where, what in found.items())}")


def lacking() -> tuple[str, ...]:
    """What the operator or its image fetches by a tag or version alone, which may be another thing tomorrow."""
    return tuple(digests.missing(DIGESTS, digests.DOCKERFILE.read_text()))


def digests_written(*, without_digests: bool) -> None:
    """Whoever installs a release is to get what was tested, or to know that nobody can say so."""
    if not (names := lacking()):
        return
    told = "\n".join((f"{len(names)} of what is fetched have no digest:", *(f"  {name}" for name in names)))
    if not without_digests:
        raise ReleaseError(
            f"{told}\nrun `make digests` where registries can be asked, and commit what it writes; or say "
            "`make release DIGESTS=none` for a release that fetches them by version alone"
        )
    print(f"DIGESTS=none: {told}\nthe bill of materials says so, too")


def time_of_commit() -> int:
    said = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False)
    if not said.stdout.strip():
        raise ReleaseError("this is no checkout of git: say SOURCE_DATE_EPOCH, in seconds")
    return int(said.stdout)


def twice(helm: Path, go: Path | None) -> dict[str, bytes]:
    """All files, by their names, made two times over."""
    first, second = dict(files(helm, go)), dict(files(helm, go))
    if different := [name for name in first.keys() | second.keys() if first.get(name) != second.get(name)]:
        raise ReleaseError(f"made twice, these differ: {', '.join(sorted(different))}")
    return first


def files(helm: Path, go: Path | None) -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as temporary:
        for name in ("sdist", "wheel"):
            yield built(name, Path(temporary))
    yield f"modelplane-operator-chart-{__version__}.tgz", chart_archive(helm)
    yield f"modelplane-operator-{__version__}.cdx.json", bill_of_materials(helm, go)
    definitions = sorted((ROOT / "crds").glob("*.yaml"))
    yield f"modelplane-operator-crds-{__version__}.yaml", b"---\n".join(file.read_bytes() for file in definitions)


def built(kind: str, folder: Path) -> tuple[str, bytes]:
    """The sdist or wheel, by the backend that pyproject.toml names; it heeds SOURCE_DATE_EPOCH."""
    code = f"from hatchling import build; print(build.build_{kind}({str(folder)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"the {kind} cannot be built:\n{done.stderr}")
    name = done.stdout.strip().splitlines()[-1]
    return name, (folder / name).read_bytes()


def chart_archive(helm: Path) -> bytes:
    """What `helm package` makes, packed anew: Helm writes the time of day."""
    with tempfile.TemporaryDirectory() as folder:
        command = [helm, "package", CHART, "--destination", folder]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ReleaseError(f"the chart cannot be packaged:\n{done.stderr}")
        (file,) = Path(folder).glob("*.tgz")
        with tarfile.open(file) as archive:
            entries = sorted(
                archive.getmembers(), key=lambda one: (one.name != "modelplane-operator/Chart.yaml", one.name)
            )
            return archived(
                (entry.name, content.read()) for entry in entries if (content := archive.extractfile(entry))
            )


def archived(entries: Iterator[tuple[str, bytes]]) -> bytes:
    """A tar.gz of files, with one time and no owners."""
    made = io.BytesIO()
    time = int(os.environ["SOURCE_DATE_EPOCH"])
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=made, mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), time, 0o644
            archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def bill_of_materials(helm: Path, go: Path | None) -> bytes:
    """What is in the image, as CycloneDX: Python packages with their hashes, and Helm with the modules in it."""
    parts = [*map(of_package, licences.packages())]
    parts += of_helm(helm, go) if go else []
    main = {"type": "application", "name": "modelplane-operator", "version": __version__}
    main |= {"bom-ref": "modelplane-operator", "licenses": [{"license": {"id": "Apache-2.0"}}]}
    unknown = [{"name": "modelplane:without-digest", "value": name} for name in lacking()]
    body = {"metadata": {"component": main, **({"properties": unknown} if unknown else {})}, "components": parts}
    number = uuid5(NAMESPACE_URL, json.dumps(body, sort_keys=True))
    head = {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": f"urn:uuid:{number}", "version": 1}
    return (json.dumps({**head, **body}, indent=1) + "\n").encode()


def of_package(package: licences.Package) -> dict[str, object]:
    reference = f"pkg:pypi/{package.name}@{package.version}"
    return {
        "type": "library",
        "bom-ref": reference,
        "name": package.name,
        "version": package.version,
        "purl": reference,
        "hashes": [{"alg": "SHA-256", "content": one} for one in package.hashes],
        "licenses": [{"license": {"name": package.licence}}],
    }


def of_helm(helm: Path, go: Path) -> list[dict[str, object]]:
    """Helm, and the Go modules that its binary says it was linked from."""
    said = subprocess.run([go, "version", "-m", helm], capture_output=True, text=True, check=True).stdout
    modules = re.findall(r"^\t(?:mod|dep|=>)\t(\S+)\t(v\S+)", said, re.MULTILINE)
    return [
        {"type": "library", "bom-ref": f"pkg:golang/{name}@{version}", "name": name, "version": version}
        | {"purl": f"pkg:golang/{name}@{version}"}
        for name, version in sorted(set(modules))
    ]


def image_archive(folder: Path) -> Path | None:
    """The image, built and saved; None, with the reason said, where nothing here can build one."""
    try:
        image.tool()
    except image.ImageError as error:
        print(f"no image archive: {error}")
        return None
    name = f"modelplane-operator:{__version__}"
    image.build(name, os.environ.get("BASE_IMAGE", ""))
    file = folder / f"modelplane-operator-image-{__version__}.tar"
    image.save(name, file)
    return file


def fleet_archive(folder: Path) -> str:
    """Pack the local fleet's programs, and return the name of their archive.

    Raises ReleaseError if people with this source would be sent to another archive.
    """
    file, digest = binaries.pack(folder)
    published = archive.released()
    if published and not published.address.endswith(f"#{digest}"):
        raise ReleaseError(
            f"{archive.RELEASED.relative_to(ROOT)} names another archive than {file.name}, whose sha256 is {digest}: "
            "run `make fleet-binaries PUBLISHED=URL`, and commit that file"
        )
    if not published:
        print("no address of the fleet's programs: docs/releases.md says how people get them without a variable")
    return file.name


def write_checksums(folder: Path, names: list[str]) -> None:
    """As `sha256sum --check` reads them."""
    (folder / CHECKSUMS).write_text("".join(f"{licences.sha256(folder / name)}  {name}\n" for name in sorted(names)))


if __name__ == "__main__":
    main()
