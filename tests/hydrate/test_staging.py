"""What a source says its files are, before anything of them is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from modelplane_operator.hydrate.source import File, FileListing, PermanentError
from modelplane_operator.hydrate.staging import Staging

OK = File("config.json", 2)


@dataclass(frozen=True)
class Saying:
    """A source that says what files it has, and gives none."""

    files: tuple[File, ...]

    def listing(self) -> FileListing:
        return FileListing("r", self.files)

    def fetch(self, listing: FileListing, file: File, folder: Path) -> None:
        raise AssertionError(f"{file.path} was asked for in {folder} of {listing.revision}")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("", "leads out of the volume"),
        ("/etc/passwd", "leads out of the volume"),
        ("../out", "leads out of the volume"),
        ("a/../../out", "leads out of the volume"),
        ("a\\..\\out", "leads out of the volume"),
        (".modelplane/complete.json", "leads out of the volume"),
        ("./.modelplane/complete.json", "leads out of the volume"),
        ("a\0b", "as none can be called"),
        ("a\x1b[2Jb", "as none can be called"),
        ("a\nb", "as none can be called"),
        ("\ud800", "as none can be called"),
        ("a" * 256, "as none can be called"),
        ("\u00e9" * 128, "as none can be called"),
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
    with pytest.raises(PermanentError, match="has -1 bytes"):
        Staging(tmp_path, "content").fill(Saying((OK, File("a", -1))))


def test_names_of_many_languages_and_folders_are_taken(tmp_path: Path) -> None:
    files = (OK, File("tokenizer/\u8bcd\u8868.txt", 1), File("tokenizer/\u00e9.json", 1), File("a b/config.json", 1))

    with pytest.raises(AssertionError, match="was asked for"):
        Staging(tmp_path, "content").fill(Saying(files))
