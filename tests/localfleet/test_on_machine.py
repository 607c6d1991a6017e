"""Programs of the machine: which versions fit, and that they are taken instead of being built."""

from pathlib import Path

import pytest

from localfleet import binaries, on_machine
from localfleet.errors import BuildFailedError


@pytest.fixture
def bin_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on PATH, before all others, and a cache that has nothing."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setenv("LOCALFLEET_CACHE", str(tmp_path / "cache"))
    return folder


def install(folder: Path, name: str, output: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{output}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("name", "version", "pinned", "fits"),
    [
        ("kube-apiserver", "v1.36.0", "v1.36.3", True),
        ("kube-apiserver", "v1.35.9", "v1.36.3", False),
        ("kube-apiserver", "v1.37.0", "v1.36.3", False),
        ("kubectl", "v1.36.9", "v1.36.3", True),
        ("kubectl", "v2.36.3", "v1.36.3", False),
        ("etcd", "v3.6.1", "v3.6.5", True),
        ("etcd", "v3.5.20", "v3.6.5", False),
        ("helm", "v3.22.0", "v3.22.0", True),
        ("helm", "v3.30.1", "v3.22.0", True),
        ("helm", "v3.21.9", "v3.22.0", False),
        ("helm", "v4.22.0", "v3.22.0", False),
        ("helm", "", "v3.22.0", False),
    ],
)
def test_which_versions_fit(name: str, version: str, pinned: str, *, fits: bool) -> None:
    assert on_machine.fits(name, version, pinned) is fits


@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "output", "version"),
    [
        ("etcd", "etcd Version: 3.6.5\nGit SHA: a061450\nGo Version: go1.24.7", "v3.6.5"),
        ("kube-apiserver", "Kubernetes v1.36.3", "v1.36.3"),
        ("kubectl", "Client Version: v1.36.3\nKustomize Version: v5.7.1", "v1.36.3"),
        ("helm", "v3.22.0+g3d8990f", "v3.22.0"),
        ("kubectl", "127.0.0.1 is slow\nClient Version: v1.36.3", "v1.36.3"),
        ("helm", "what do you mean?", ""),
        ("etcd", "libc 3.6.8 missing", ""),
        ("kube-apiserver", "Kubernetes v1.36.0-alpha.1", ""),
        ("helm", "v3.22.0-rc.1+g3d8990f", ""),
    ],
)
def test_a_program_is_asked_for_its_version(bin_folder: Path, name: str, output: str, version: str) -> None:
    path = install(bin_folder, name, output)

    assert on_machine.query_version(path, name) == version


@pytest.mark.processes
def test_a_program_that_fits_is_taken_and_named_and_one_that_does_not_is_built(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = binaries.BY_NAME["helm"].version
    helm = install(bin_folder, "helm", pinned)
    install(bin_folder, "etcd", "etcd Version: 2.0.0")
    install(bin_folder, "traefik", binaries.BY_NAME["traefik"].version)  # is never the machine's
    built: list[str] = []
    monkeypatch.setattr(binaries, "build", lambda tools: built.extend(tool.name for tool in tools))

    paths = binaries.ensure("helm", "etcd", "traefik")

    assert paths["helm"] == helm
    assert built == ["etcd", "traefik"]
    assert capsys.readouterr().err == f"taken from this machine: helm {pinned} ({helm})\n"


@pytest.mark.processes
def test_a_program_that_fails_has_no_version(bin_folder: Path) -> None:
    path = install(bin_folder, "helm", "v3.22.0")
    path.write_text(f"{path.read_text()}exit 1\n")

    assert on_machine.query_version(path, "helm") == ""


@pytest.mark.processes
def test_programs_are_named_once_without_a_go(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned = binaries.BY_NAME["helm"].version
    helm = install(bin_folder, "helm", pinned)
    monkeypatch.setattr(binaries, "go", lambda: pytest.fail("a Go is looked for"))

    assert binaries.ensure("helm") == binaries.ensure("helm") == {"helm": helm}
    assert capsys.readouterr().err == f"taken from this machine: helm {pinned} ({helm})\n"


@pytest.mark.processes
def test_programs_that_a_fleet_cannot_reach_or_that_are_refused_are_not_taken(
    bin_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = binaries.BY_NAME["helm"].version
    hidden = bin_folder.parent / "run"
    hidden.mkdir()
    monkeypatch.setattr(on_machine, "HIDDEN", hidden)
    (bin_folder / "helm").symlink_to(install(hidden, "helm", pinned))
    assert on_machine.find("helm", pinned) is None

    (bin_folder / "helm").unlink()
    helm = install(bin_folder, "helm", pinned)
    assert on_machine.find("helm", pinned) == on_machine.Found(helm, pinned)
    monkeypatch.setenv(on_machine.REFUSED, "1")
    assert on_machine.find("helm", pinned) is None


@pytest.mark.processes
def test_what_is_handed_on_is_the_pinned_version(bin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(bin_folder, "helm", binaries.BY_NAME["helm"].version)

    def refuse(tools: object) -> None:
        raise BuildFailedError

    monkeypatch.setattr(binaries, "build", refuse)
    with pytest.raises(BuildFailedError):
        binaries.ensure("helm", of_machine=False)
    with pytest.raises(BuildFailedError):
        binaries.pack(bin_folder)


@pytest.mark.processes
def test_a_program_in_the_cache_goes_first(bin_folder: Path) -> None:
    install(bin_folder, "helm", binaries.BY_NAME["helm"].version)
    cached = binaries.kept(binaries.BY_NAME["helm"])
    cached.parent.mkdir(parents=True)
    cached.touch()

    assert binaries.ensure("helm") == {"helm": cached}
