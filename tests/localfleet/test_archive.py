"""The fleet's programs as an archive: what goes in comes out, once, and nothing else happens."""

from __future__ import annotations

import io
import json
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from localfleet import archive, binaries
from localfleet.errors import ArchiveError

GO = "go1.99.9"
ABOUT = json.dumps({"machine": archive.machine(), "go": GO}).encode()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOCALFLEET_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def packed(tmp_path: Path) -> str:
    """An archive of two made-up tools, as FLEET_BINARIES names it."""
    for tool, mode in (("etcd", 0o700), ("crds", 0o600)):
        file = tmp_path / "theirs" / f"{tool}-v1" / "inside" / tool
        file.parent.mkdir(parents=True)
        file.write_text(tool)
        file.chmod(mode)
    file = tmp_path / "some where" / "archive.tar.gz"
    digest = archive.pack((tmp_path / "theirs").iterdir(), GO, file)
    return f"{file}#{digest}"


def test_what_goes_in_comes_out_beside_what_is_there_and_once(cache: Path, packed: str) -> None:
    (cache / "etcd-v1").mkdir(parents=True)

    assert archive.unpack(packed, cache)

    assert (cache / "crds-v1/inside/crds").read_text() == "crds"
    assert not (cache / "crds-v1/inside/crds").stat().st_mode & 0o111
    assert list((cache / "etcd-v1").iterdir()) == []  # was there already
    assert archive.built_by(cache) == GO
    assert not list(cache.glob(".partial-*"))
    assert not archive.unpack(packed, cache)


def test_a_program_can_be_run_where_it_could_be(cache: Path, packed: str) -> None:
    archive.unpack(packed, cache)

    assert (cache / "etcd-v1/inside/etcd").stat().st_mode & 0o777 == 0o755


def test_the_same_files_make_the_same_archive(tmp_path: Path, packed: str) -> None:
    for file in (tmp_path / "theirs").rglob("*"):
        file.touch()
    again = archive.pack(sorted((tmp_path / "theirs").iterdir(), reverse=True), GO, tmp_path / "again.tar.gz")

    assert again == packed.rpartition("#")[2]


@pytest.mark.parametrize("named", ["", "file.tar.gz", "file.tar.gz#", "file.tar.gz#abc", f"#{'0' * 64}", "0" * 64])
def test_an_archive_is_named_with_its_digest(cache: Path, named: str) -> None:
    with pytest.raises(ArchiveError, match="FLEET_BINARIES is PATH-OR-URL#SHA256"):
        archive.unpack(named, cache)


def test_another_file_than_was_named_is_not_looked_at(
    cache: Path, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarfile, "open", None)

    with pytest.raises(ArchiveError, match="is another file than the one that was named: its sha256 is "):
        archive.unpack(f"{packed.rpartition('#')[0]}#{'0' * 64}", cache)
    assert list(cache.iterdir()) == []


def test_what_is_unpacked_is_what_was_hashed(cache: Path, packed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = archive.digest

    def swap(path: Path) -> str:
        found = real(path)
        Path(packed.rpartition("#")[0]).write_text("another file in its place")
        return found

    monkeypatch.setattr(archive, "digest", swap)

    assert archive.unpack(packed, cache)


def test_a_file_that_is_not_there_is_named(cache: Path) -> None:
    with pytest.raises(ArchiveError, match="there is no file /nowhere"):
        archive.unpack(f"/nowhere#{'0' * 64}", cache)


@pytest.fixture
def site(packed: str) -> Iterator[str]:
    """A web server that has the archive."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(Path(packed).parent))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_it_may_be_at_a_url(cache: Path, packed: str, site: str) -> None:
    assert archive.unpack(f"{site}/archive.tar.gz#sha256:{packed.rpartition('#')[2]}", cache)
    with pytest.raises(ArchiveError, match=r"other\.tar\.gz cannot be fetched: HTTP Error 404"):
        archive.unpack(f"{site}/other.tar.gz#{'0' * 64}", cache)


def made(path: Path, *entries: tarfile.TarInfo, about: bytes | None = ABOUT) -> str:
    """An archive of entries as they are, named with its digest: what somebody else may have made."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as file:
        if about is not None:
            file.addfile(entry(archive.ABOUT, len(about)), io.BytesIO(about))
        for one in entries:
            file.addfile(one, io.BytesIO(b"x" * one.size) if one.isfile() else None)
    return f"{path}#{archive.digest(path)}"


def entry(name: str, size: int = 1, kind: bytes = tarfile.REGTYPE, leads: str = "") -> tarfile.TarInfo:
    one = tarfile.TarInfo(name)
    one.size, one.type, one.linkname = size, kind, leads
    return one


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (entry("../outside"), r"\.\./outside leads out"),
        (entry("a/../../outside"), "leads out"),
        (entry("/tmp/outside"), "leads out"),  # noqa: S108 - that is what it is about
        (entry("a\\..\\outside"), "leads out"),
        (entry("."), "leads out"),
        (entry("link", 0, tarfile.SYMTYPE, "/etc"), "neither a file nor a folder"),
        (entry("link", 0, tarfile.LNKTYPE, archive.ABOUT), "neither a file nor a folder"),
        (entry("device", 0, tarfile.CHRTYPE), "neither a file nor a folder"),
        (entry("pipe", 0, tarfile.FIFOTYPE), "neither a file nor a folder"),
        (entry(archive.ABOUT), "File exists"),
    ],
)
def test_nothing_leads_out_of_the_folder(tmp_path: Path, cache: Path, bad: tarfile.TarInfo, told: str) -> None:
    named = made(tmp_path / "in" / "bad.tar.gz", bad)

    with pytest.raises(ArchiveError, match=told):
        archive.unpack(named, cache)
    assert list(cache.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"in", "cache"}


def test_what_comes_out_has_a_bound(tmp_path: Path) -> None:
    file, _, _ = made(tmp_path / "big.tar.gz", entry("a/zeros", 1 << 20), entry("b/zeros", 1 << 20)).rpartition("#")

    with pytest.raises(ArchiveError, match="is more than"):
        archive.extract(Path(file), tmp_path / "out", most=3 << 19)


def test_a_file_that_is_none_is_refused(tmp_path: Path, cache: Path) -> None:
    file = tmp_path / "text"
    file.write_text("hello")
    empty = made(tmp_path / "empty.tar.gz", about=None)

    with pytest.raises(ArchiveError, match="is no archive of a fleet: not a gzip file"):
        archive.unpack(f"{file}#{archive.digest(file)}", cache)
    with pytest.raises(ArchiveError, match=r"it lacks fleet-binaries\.json"):
        archive.unpack(empty, cache)


def test_programs_of_another_kind_of_machine_are_refused(tmp_path: Path, cache: Path) -> None:
    other = made(tmp_path / "other.tar.gz", about=json.dumps({"machine": "plan9-mips", "go": GO}).encode())

    with pytest.raises(ArchiveError, match="has programs for plan9-mips, and this is linux-"):
        archive.unpack(other, cache)


def test_with_an_archive_of_all_nothing_is_built_and_no_go_is_needed(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        pytest.fail("it is built all the same")

    tools = [tool for tool in binaries.TOOLS if not isinstance(tool, binaries.Wheel)]
    monkeypatch.setattr(binaries, "go", lambda: binaries.Go(GO, Path("/nowhere")))
    paths = {tool.name: binaries.kept(tool).relative_to(cache) for tool in tools}
    for name, path in paths.items():
        file = tmp_path / "theirs" / path / ("crd.yaml" if isinstance(binaries.BY_NAME[name], binaries.Files) else "")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
    file = tmp_path / "all.tar.gz"
    digest = archive.pack((tmp_path / "theirs").iterdir(), GO, file)
    monkeypatch.setattr(binaries, "go", never)
    monkeypatch.setattr(binaries, "build", never)
    monkeypatch.setenv(archive.VARIABLE, f"{file}#{digest}")

    assert binaries.ensure(*paths) == {name: cache / path for name, path in paths.items()}
    assert binaries.toolchain() == GO


@pytest.fixture
def publish(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, packed: str, site: str
) -> Callable[..., list[str]]:
    """Name an archive as a release does, and return what `ensure` then builds of a program that the archive lacks."""
    monkeypatch.setattr(archive, "RELEASED", tmp_path / "released.json")
    monkeypatch.setattr(binaries, "go", lambda: binaries.Go(GO, Path("/nowhere")))
    monkeypatch.delenv(archive.VARIABLE, raising=False)
    built: list[str] = []
    monkeypatch.setattr(binaries, "build", lambda tools: built.extend(tool.name for tool in tools))

    def ensured(name: str = "archive.tar.gz", content: str | None = None) -> list[str]:
        address = f"{site}/{name}#{packed.rpartition('#')[2]}"
        archive.write_released(archive.Released(address, GO, content or binaries.content(GO)))
        binaries.ensure("traefik")
        return built

    return ensured


def test_the_archive_of_a_release_is_fetched_without_a_variable(
    cache: Path, publish: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    publish()

    assert (cache / "crds-v1/inside/crds").exists()
    assert "fetching the fleet's programs: http://127.0.0.1:" in capsys.readouterr().err


def test_the_archive_of_a_release_with_other_pins_is_left_alone(cache: Path, publish: Callable[..., list[str]]) -> None:
    assert publish(content="other") == ["traefik"]
    assert not (cache / "crds-v1").exists()


def test_programs_are_compiled_when_the_release_is_not_reached(
    publish: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert publish("other.tar.gz") == ["traefik"]
    assert "cannot be fetched: HTTP Error 404: File not found; so they are compiled" in capsys.readouterr().err


def test_nothing_is_fetched_when_nothing_is_missing(cache: Path, publish: Callable[..., list[str]]) -> None:
    tool = binaries.BY_NAME["traefik"]
    (cache / f"traefik-{tool.version}-{'0' * 12}").mkdir(parents=True)
    publish()

    assert not (cache / "crds-v1").exists()


def test_what_is_packed_for_a_release_is_what_its_source_asks_for(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "RELEASED", tmp_path / "released.json")
    monkeypatch.setattr(binaries, "go", lambda: binaries.Go(GO, Path("/nowhere")))
    monkeypatch.setattr(binaries, "build", lambda tools: None)
    for tool in binaries.TOOLS:
        binaries.kept(tool).parent.mkdir(parents=True, exist_ok=True)

    file, digest = binaries.pack(tmp_path / "dist", "https://downloads.test/0.1.0/")

    expected = archive.Released(f"https://downloads.test/0.1.0/{file.name}#{digest}", GO, binaries.content(GO))
    assert archive.released() == expected
