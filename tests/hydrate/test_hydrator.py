"""The hydrator as the process that a Job runs, against a hub on loopback."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
from pathlib import Path

import pytest

from tests.support.hydrating import CONTENT, Ended, run
from tests.support.model_hub import COMMIT, ModelHub, model_hub

pytestmark = pytest.mark.processes

TOKEN = "hf_canary7c1e"  # noqa: S105 - of a stand-in
WEIGHTS = random.Random(1).randbytes(3_000_000)  # noqa: S311 - no secret
FILES = {
    "config.json": b'{"model_type": "toy"}',
    "model.safetensors": WEIGHTS,
    "original/model.pth": WEIGHTS[:5000],
    "tokenizer/vocab.txt": b"a\nb\n",
}


def hydrate(
    hub: ModelHub, folder: Path, *more: str, token: str = "", repo: str = "org/model", mounted: str = ""
) -> Ended:
    secret = {"HF_TOKEN": token} if token else {}
    return run(folder, f"--repo={repo}", f"--endpoint={hub.url}", *more, secret=secret, mounted=mounted)


def test_a_volume_holds_all_files_and_a_marker_that_names_the_commit(tmp_path: Path) -> None:
    with model_hub(FILES) as hub:
        ended = hydrate(hub, tmp_path, "--revision=main")

    assert (ended.code, ended.files) == (0, FILES), ended.log
    marker = json.loads((ended.volume / ".modelplane" / "complete.json").read_text())
    assert (marker["content"], marker["revision"]) == (CONTENT, COMMIT)
    told = json.loads(ended.word)
    assert (told["revision"], told["files"], told["bytes"]) == (COMMIT, 4, sum(map(len, FILES.values())))


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    with model_hub(FILES) as hub:
        hydrate(hub, tmp_path)
        hub.calls.clear()
        ended = hydrate(hub, tmp_path)

    assert (ended.code, dict(hub.calls), json.loads(ended.word)["revision"]) == (0, {}, COMMIT)


def test_patterns_leave_out_other_formats_of_the_same(tmp_path: Path) -> None:
    with model_hub(FILES) as hub:
        ended = hydrate(
            hub, tmp_path, "--allow=*.json", "--allow=*.safetensors", "--allow=original/*", "--ignore=*.pth"
        )

    assert (ended.code, sorted(ended.files)) == (0, ["config.json", "model.safetensors"]), ended.log


def test_a_transfer_that_breaks_off_goes_on_where_it_was(tmp_path: Path) -> None:
    large = {"model.safetensors": WEIGHTS * 4}
    with model_hub(large, broken_after=11 << 20) as hub:
        ended = hydrate(hub, tmp_path)

    assert (ended.code, ended.files) == (0, large), ended.log
    assert hub.ranges == [f"bytes={11 << 20}-"]


def test_a_file_with_another_content_is_fetched_anew(tmp_path: Path) -> None:
    forged = {"model.safetensors": WEIGHTS[:-1] + b"x", "config.json": b'{"model_type": "bad"}'}
    with model_hub(FILES, wrong=forged) as hub:
        ended = hydrate(hub, tmp_path)

    assert (ended.code, ended.files) == (0, FILES), ended.log
    assert (hub.calls["model.safetensors"], hub.calls["config.json"]) == (2, 2)


def test_a_hub_that_asks_for_patience_is_asked_again(tmp_path: Path) -> None:
    with model_hub(FILES, answers=[429, 503]) as hub:
        ended = hydrate(hub, tmp_path)

    assert (ended.code, ended.files) == (0, FILES), ended.log


@pytest.mark.parametrize("token", ["", "hf_wrong"])
def test_a_gated_repository_is_not_tried_again_and_the_remedy_is_told(tmp_path: Path, token: str) -> None:
    with model_hub(FILES, token=TOKEN) as hub:
        ended = hydrate(hub, tmp_path, token=token)

    assert (ended.code, ended.files, ended.is_marked) == (3, {}, False)
    assert "is gated" in ended.word
    assert "authSecret" in ended.word


def test_files_may_be_gated_whose_names_are_not(tmp_path: Path) -> None:
    with model_hub(FILES, token=TOKEN, listed=True) as hub:
        ended = hydrate(hub, tmp_path)

    assert (ended.code, ended.files, ended.is_marked) == (3, {}, False)
    assert "is gated" in ended.word


def test_a_hub_that_keeps_its_files_elsewhere_does_not_have_the_token_told_there(tmp_path: Path) -> None:
    with model_hub(FILES) as other, model_hub(FILES, token=TOKEN, elsewhere=other.url) as hub:
        ended = hydrate(hub, tmp_path, token=TOKEN)

    assert (ended.code, ended.files) == (0, FILES), ended.log
    assert (hub.tokens, other.tokens) == ({f"Bearer {TOKEN}"}, {""})


def test_the_token_is_nowhere_but_in_requests(tmp_path: Path) -> None:
    with model_hub(FILES, token=TOKEN) as hub:
        ended = hydrate(hub, tmp_path, token=f"{TOKEN}\n")  # as what comes of a file ends

    assert (ended.code, ended.files) == (0, FILES)
    assert TOKEN not in ended.log + ended.word
    written = [path for path in tmp_path.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]
    assert written == []


@pytest.mark.parametrize(
    ("more", "repo", "says"),
    [
        (["--revision=other"], "org/model", "at other does not exist"),
        ([], "org/none", "repository org/none does not exist or is private"),
        (["--allow=*.gguf"], "org/model", "no file matches allowPatterns"),
    ],
)
def test_what_does_not_exist_is_not_tried_again(tmp_path: Path, more: list[str], repo: str, says: str) -> None:
    with model_hub(FILES) as hub:
        ended = hydrate(hub, tmp_path, *more, repo=repo)

    assert ended.code == 3
    assert says in ended.word


def test_a_volume_that_is_too_small_is_told_before_anything_is_fetched(tmp_path: Path) -> None:
    class Huge(bytes):
        def __len__(self) -> int:
            return 1 << 60

    with model_hub({**FILES, "huge.safetensors": Huge(b"x")}) as hub:
        ended = hydrate(hub, tmp_path)

    assert (ended.code, dict(hub.calls)) == (3, {})
    assert "raise sizeGiB" in ended.word


@pytest.mark.fleet  # it needs a file system of its own
def test_a_volume_that_is_full_before_all_of_it_is_there_is_told_with_the_remedy(tmp_path: Path) -> None:
    """Its file system had said that there was room: it has no inodes left, or a quota that it does not tell."""
    with model_hub(FILES) as hub:
        ended = hydrate(hub, tmp_path, mounted="size=256m,nr_inodes=7")

    assert (ended.code, ended.is_marked) == (3, False), ended.log
    assert "is full" in ended.word
    assert "raise sizeGiB" in ended.word


def test_a_hub_cannot_lead_out_of_the_volume(tmp_path: Path) -> None:
    with model_hub(FILES, paths={"config.json": "../../out"}) as hub:
        ended = hydrate(hub, tmp_path)

    assert (ended.code, ended.files) == (3, {})
    assert "outside of the volume" in ended.word


@pytest.mark.parametrize("where", [".modelplane", "tokenizer", "config.json", ".modelplane/complete.json"])
def test_a_link_that_others_have_put_into_the_volume_is_not_followed(tmp_path: Path, where: str) -> None:
    """Whoever has the volume writable, as engines of before, would have the hydrator write somewhere else."""
    with model_hub(FILES) as hub:
        volume = hydrate(hub, tmp_path, repo="org/none").volume
        outside = tmp_path / "outside"
        outside.mkdir()
        (outside / "file").write_text("as it was")
        link = volume / where
        link.parent.mkdir(exist_ok=True)
        if link.is_dir():
            shutil.rmtree(link)
        link.unlink(missing_ok=True)
        link.symlink_to(outside if where in {".modelplane", "tokenizer"} else outside / "file")
        ended = hydrate(hub, tmp_path)

    assert (ended.code, [one.name for one in outside.iterdir()]) == (3, ["file"]), ended.log
    assert f"the volume has a link '{where}': delete it" in ended.word
    assert (outside / "file").read_text() == "as it was"


def test_a_hub_that_is_silent_is_tried_again_later(tmp_path: Path) -> None:
    with model_hub(FILES) as hub:
        pass
    ended = hydrate(hub, tmp_path)

    assert (ended.code, ended.is_marked) == (1, False)
    assert "does not answer" in ended.word


def digest_in(ended: Ended) -> str:
    return str(json.loads(ended.word)["digest"])


def test_what_was_verified_is_held_against_its_list_without_asking_the_source(tmp_path: Path) -> None:
    with model_hub(FILES) as hub:
        digest = digest_in(hydrate(hub, tmp_path))
    ended = hydrate(hub, tmp_path, f"--verified={digest}")  # the hub is gone

    assert (ended.code, ended.files, digest_in(ended)) == (0, FILES, digest), ended.log
    assert [json.loads(ended.word)[name] for name in ("changed", "unlisted", "revision")] == [0, 0, COMMIT]


@pytest.mark.parametrize("known", [True, False], ids=["with-its-digest", "without"])
def test_a_file_that_somebody_has_changed_is_found_by_its_content_and_fetched_again(
    tmp_path: Path,
    known: bool,  # noqa: FBT001
) -> None:
    """Of the same size and time, and with a list of files on the volume that says so."""
    with model_hub(FILES) as hub:
        first = hydrate(hub, tmp_path)
        digest, path = digest_in(first), first.volume / "model.safetensors"
        before = path.stat()
        path.write_bytes(WEIGHTS[:-1] + b"x")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        (first.volume / "chat_template.jinja").write_text("evil")
        if not known:
            marker = first.volume / ".modelplane" / "complete.json"
            forged = hashlib.sha256(path.read_bytes()).hexdigest()
            marker.write_text(marker.read_text().replace(hashlib.sha256(WEIGHTS).hexdigest(), forged))
        hub.calls.clear()
        ended = hydrate(hub, tmp_path, f"--verified={digest}")

    assert (ended.code, dict(hub.calls)) == (0, {"model.safetensors": 1}), ended.log
    assert ended.files == {**FILES, "chat_template.jinja": b"evil"}
    said = json.loads(ended.word)
    assert [said[name] for name in ("changed", "unlisted", "digest")] == [1, 1, digest]
