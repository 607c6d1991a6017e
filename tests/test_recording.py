"""The recording of the demo shows what a terminal showed, and is of the demo as it is now."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts import recording
from scripts.recording import CAST, DRAWING, Frame, Screen

HOME = Path("/home/me")


@pytest.mark.parametrize(
    ("written", "lines"),
    [
        ("one\r\ntwo", ["one", "two"]),
        ("one\rtw", ["twe"]),
        ("one\r\ntwo\x1b[1A\rO", ["One", "two"]),
        ("one\r\x1b[2Ktwo", ["two"]),
        ("one\b\b\x1b[K", ["o"]),
        ("one\r\ntwo\r\nthree\x1b[2A\r\x1b[J", [""]),
        ("on\r\ntwo\x1b[1Ax\x1b[1B!", ["on x", "two !"]),
        ("a\x1b[31mb\x1b[1mc\x1b[0md", ["a\x1b[31mb\x1b[0m\x1b[31;1mc\x1b[0md"]),
        ("\x1b]0;title\x07\x1b[?25l\x1b[?2004hplain\x1b[?25h", ["plain"]),
        ("123456789 \r0", ["12345678", "0"]),
    ],
)
def test_a_screen_shows_what_a_terminal_would(written: str, lines: list[str]) -> None:
    screen = Screen(columns=8)

    screen.write(written)
    in_pieces = Screen(columns=8)
    for character in written:
        in_pieces.write(character)

    assert screen.text() == in_pieces.text() == lines


@pytest.mark.processes
def test_commands_are_typed_and_their_answers_recorded() -> None:
    typed = ["echo $((6 * 7))", "printf '\\033[32m%s\\033[0m\\n' green", "sleep 60 &", "kill %1"]

    frames = recording.record(typed, os.environ)

    shown = frames[-1].lines
    assert [frame.command for frame in frames if frame.command] == typed
    assert shown[:4] == ["$ echo $((6 * 7))", "42", f"$ {typed[1]}", "\x1b[32mgreen\x1b[0m"]
    assert shown[-2:] == ["$ kill %1", "$"]
    assert any(frame.lines == ["$ echo"] for frame in frames), "letters come one by one"


@pytest.mark.processes
def test_waiting_is_shortened_and_nothing_else() -> None:
    slow = f"sleep {recording.LONGEST + 2:g}; echo done"

    (typed, *_, last) = recording.record([slow], os.environ)

    assert last.lines[:2] == [f"$ {slow}", "done"]
    assert last.at - typed.at < recording.LONGEST + recording.KEY_SECONDS * len(slow) + 1


FRAMES = [
    Frame(0.5, ["$ ls"]),
    Frame(1.0, ["$ ls"], "ls"),
    Frame(1.5, ["$ ls", "a \x1b[31m<red>\x1b[0m", "b"]),
    Frame(2.5, ["$ ls", "c"]),
]


def test_a_cast_holds_the_frames() -> None:
    written = list(recording.cast(FRAMES))

    assert recording.read(written) == FRAMES


def test_a_drawing_has_each_line_in_its_place_and_colour() -> None:
    drawing = ElementTree.fromstring(recording.drawn(FRAMES))  # noqa: S314 - our own

    texts = {"".join(text.itertext()): text for text in drawing.iter() if text.tag.endswith("}text")}
    assert texts.keys() == {"$ ls", "a ", "<red>", "b", "c"}
    assert texts["<red>"].attrib["style"] == f"fill:{recording.COLOURS['31']}"
    assert float(texts["<red>"].attrib["x"]) == pytest.approx(2 * recording.WIDTH)


def test_the_recording_is_of_the_commands_that_the_demo_prints_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(HOME))
    for name in ("LOCALFLEET_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)

    frames = recording.read(CAST.read_text().splitlines())

    assert [frame.command for frame in frames if frame.command] == list(recording.commands())
    text = "\n".join(re.sub(r"\x1b\[[\d;]*m", "", line) for line in frames[-1].lines)
    assert "I am qwen3-8b, a simulated model" in text
    assert "ml-team/too-big is not Ready" in text


def test_the_drawing_is_of_the_recording() -> None:
    assert DRAWING.read_text() == recording.drawn(recording.read(CAST.read_text().splitlines()))


def test_a_fleet_that_is_up_is_not_ended_for_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["recording"])
    monkeypatch.setattr(recording.Fleet, "is_up", lambda _: True)
    monkeypatch.setattr(recording.demo, "down", lambda: pytest.fail("it is ended"))

    with pytest.raises(SystemExit, match="a fleet is up"):
        recording.main()
