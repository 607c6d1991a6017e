"""What a source says its files are, before anything of them is asked for, and what the volume says."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.source import DEEPEST, File, FileListing, PermanentError
from modelplane_operator.hydrate.staging import Staging
from modelplane_operator.hydrate.web import resume_file, write

OK = File("config.json", 2)


@dataclass(frozen=True)
class Saying:
    """A source that says what files it has, and gives none."""

    files: tuple[File, ...]

    def list_files(self) -> FileListing:
        return FileListing("r", self.files)

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        raise AssertionError(f"{file.path} was asked for in {folder} of {listing.revision}")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "outside of the volume"),
        ("/etc/passwd", "outside of the volume"),
        ("../out", "outside of the volume"),
        ("a/../../out", "outside of the volume"),
        ("a\\..\\out", "outside of the volume"),
        (".modelplane/complete.json", "outside of the volume"),
        ("./.modelplane/complete.json", "outside of the volume"),
        ("a\0b", "with an impossible name"),
        ("a\x1b[2Jb", "with an impossible name"),
        ("a\nb", "with an impossible name"),
        ("\ud800", "with an impossible name"),
        ("a" * 256, "with an impossible name"),
        ("\u00e9" * 128, "with an impossible name"),
        ("config.json", "twice, or another below it"),
        ("./config.json", "twice, or another below it"),
        ("config.json/x", "twice, or another below it"),
    ],
)
def test_a_source_cannot_name_what_is_no_file_of_the_volume(tmp_path: Path, path: str, says: str) -> None:
    for files in ((OK, File(path, 1)), (File(path, 1), OK)):
        with pytest.raises(PermanentError) as error:
            Staging(tmp_path, "content").fill(Saying(files))

        assert says in str(error.value)
        assert str(error.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_not_smaller_than_nothing(tmp_path: Path) -> None:
    for size in (-1, 1 << 63, 10**400):
        with pytest.raises(PermanentError, match="an impossible size"):
            Staging(tmp_path, "content").fill(Saying((OK, File("a", size))))


def test_names_of_many_languages_and_folders_are_taken(tmp_path: Path) -> None:
    files = (OK, File("tokenizer/\u8bcd\u8868.txt", 1), File("tokenizer/\u00e9.json", 1), File("a b/config.json", 1))

    with pytest.raises(AssertionError, match="was asked for"):
        Staging(tmp_path, "content").fill(Saying(files))


@dataclass(frozen=True)
class Swapped:
    """A source of one file, before which somebody who has the volume too puts a link in place of a folder."""

    at: Path
    outside: Path

    def list_files(self) -> FileListing:
        return FileListing("r", (File("sub/weights", 4),))

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        resume_file(file, folder)
        if self.at.is_dir():
            shutil.rmtree(self.at)
        self.at.parent.mkdir(parents=True, exist_ok=True)
        self.at.symlink_to(self.outside)
        write(file, folder, 0, iter([b"evil"]))


@pytest.mark.parametrize("where", [".modelplane/content/sub", ".modelplane/content", ".modelplane", "sub"])
def test_a_folder_that_becomes_a_link_in_the_very_moment_is_not_followed(tmp_path: Path, where: str) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    outside.mkdir()
    volume.mkdir()
    staging = Staging(volume, "content", pause=lambda _: None)

    with pytest.raises(PermanentError, match=f"the volume has a link '{where}"):
        staging.fill(Swapped(volume / where, outside))

    assert list(outside.iterdir()) == []


def _opened(folder: Folder) -> None:
    folder.open("sub/file", os.O_RDWR | os.O_CREAT).close()


@pytest.mark.parametrize(
    "act",
    [
        _opened,
        lambda folder: folder.open("sub/there"),
        lambda folder: folder.size("sub/there"),
        lambda folder: folder.remove("sub/there"),
        lambda folder: folder.move("sub/there", folder, "taken"),
        lambda folder: folder.move("mine", folder, "sub/there"),
        lambda folder: folder.below("sub").bytes(),
        lambda folder: folder.below("sub", "deeper").drop(),
    ],
)
def test_nothing_is_done_behind_a_link(tmp_path: Path, act: Callable[[Folder], object]) -> None:
    volume, outside = tmp_path / "volume", tmp_path / "outside"
    (outside / "deeper").mkdir(parents=True)
    (outside / "there").write_text("as it was")
    volume.mkdir()
    (volume / "mine").write_text("mine")
    (volume / "sub").symlink_to(outside)

    with pytest.raises(PermanentError, match="the volume has a link 'sub': delete it"):
        act(Folder(volume))

    assert sorted(one.name for one in outside.iterdir()) == ["deeper", "there"]
    assert (outside / "there").read_text() == "as it was"


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(PermanentError, match="something else than a file 'pipe'"):
        Folder(tmp_path).open("pipe")
    assert Folder(tmp_path).size("pipe") is None


@dataclass(frozen=True)
class Giving:
    """A source of one file, after whose transfer something is done to the volume."""

    after: Callable[[], object] = lambda: None

    def list_files(self) -> FileListing:
        return FileListing("r", (File("a", 4, f"sha256:{hashlib.sha256(b'good').hexdigest()}"),))

    def fetch(self, listing: FileListing, file: File, folder: Folder) -> None:
        del listing
        start = resume_file(file, folder)
        write(file, folder, start, iter([b"good"[start:]]))
        self.after()


def _deepen(folder: Path, levels: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    here = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)


def _flatten(folder: Path) -> None:
    """Delete folders in folders, which are too many for shutil on Python 3.11."""
    while (deeper := folder / "d").exists():
        deeper.rename(folder.with_name("next"))
        folder.rmdir()
        folder.with_name("next").rename(folder)


def test_folders_in_folders_by_the_thousand_do_not_end_a_hydration(tmp_path: Path) -> None:
    """In the volume, where what is not listed is counted, and in staging, which is deleted."""
    volume = tmp_path / "volume"
    _deepen(volume / "deep", 1_200)
    _deepen(volume / ".modelplane" / "content" / "deep", 1_200)
    staging = Staging(volume, "content")
    try:
        staging.fill(Giving())

        assert ((volume / "a").read_bytes(), staging.done.unlisted) == (b"good", 1)
        assert staging.done.digest
    finally:
        _flatten(volume / "deep")
        _flatten(volume / ".modelplane" / "content" / "deep")


def test_all_that_a_listing_can_name_is_counted_and_deleted(tmp_path: Path) -> None:
    path = "d/" * (DEEPEST - 1) + "weights"
    (tmp_path / "volume" / path).parent.mkdir(parents=True)
    (tmp_path / "volume" / path).write_text("1234")
    (tmp_path / "volume" / ".hidden").write_text("12")
    folder = Folder(tmp_path, ("volume",))

    assert (list(folder.files()), folder.bytes()) == ([path], 6)
    folder.drop()
    assert list(tmp_path.iterdir()) == []


def test_what_is_counted_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelplane_operator.hydrate.folder.MAX_ENTRIES", 10)
    for number in range(20):
        (tmp_path / f"{number}" / "folder").mkdir(parents=True)
        (tmp_path / f"file-{number}").write_text("x")

    assert len(list(Folder(tmp_path).files())) <= 10
    assert Folder(tmp_path).bytes() <= 10


@pytest.mark.parametrize("where", ["a", ".modelplane/content/a", ".modelplane/complete.json"])
def test_a_file_with_another_name_is_refused(tmp_path: Path, where: str) -> None:
    """Who has the other name changes it after it was verified."""
    (tmp_path / ".modelplane" / "content").mkdir(parents=True)
    (tmp_path / "kept").write_bytes(b"good")
    os.link(tmp_path / "kept", tmp_path / where)

    with pytest.raises(PermanentError, match=f"the volume has a hard link '{where}': delete it"):
        Staging(tmp_path, "content").fill(Giving())


def test_a_file_that_is_linked_while_it_comes_gets_into_no_place(tmp_path: Path) -> None:
    staged = tmp_path / ".modelplane" / "content" / "a"

    with pytest.raises(PermanentError, match="the volume has a hard link"):
        Staging(tmp_path, "content").fill(Giving(after=lambda: os.link(staged, tmp_path / "kept")))
    assert not (tmp_path / "a").exists()


def test_a_file_that_somebody_has_opened_before_it_comes_is_another_one_than_comes(tmp_path: Path) -> None:
    staged = tmp_path / ".modelplane" / "content" / "a"
    staged.parent.mkdir(parents=True)
    with staged.open("wb+") as kept:
        Staging(tmp_path, "content").fill(Giving())
        kept.write(b"evil")

    assert (tmp_path / "a").read_bytes() == b"good"


def test_the_list_of_files_is_written_into_a_file_of_its_own(tmp_path: Path) -> None:
    forged = tmp_path / ".modelplane" / "complete.json.new"
    forged.parent.mkdir()
    with forged.open("wb+") as kept:
        staging = Staging(tmp_path, "content")
        staging.fill(Giving())
        kept.write(b"{}")

    written = (tmp_path / ".modelplane" / "complete.json").read_bytes()
    assert staging.done.digest == f"sha256:{hashlib.sha256(written).hexdigest()}"
