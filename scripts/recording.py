"""Record the demo in a terminal: docs/images/demo.cast, which asciinema plays, and demo.svg, drawn from it.

    python -m scripts.recording            run `make demo` and some of what it offers, and write both files
    python -m scripts.recording --draw     draw the SVG again from the cast

A shell runs in a pseudo terminal and gets the commands of `commands`, letter by letter. Waiting is shortened: what a
command prints is shown in at most `LONGEST` seconds.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import takewhile
from pathlib import Path

from localfleet.fleet import Fleet, default_folder
from scripts import demo, demo_story

ROOT = Path(__file__).resolve().parent.parent
CAST, DRAWING = (ROOT / "docs" / "images" / name for name in ("demo.cast", "demo.svg"))
COLUMNS, ROWS = 100, 30
READY = "\x1b]0;ready\x07"  # in the prompt: sets the title of a window, and shows nothing
PROMPT = "$ "
KEY_SECONDS, PAUSE, LONGEST, END_PAUSE = 0.03, 1.2, 6.0, 5.0
FRAME_SECONDS = 0.25
COMMAND_SECONDS = 900.0


def commands() -> Sequence[str]:
    """Return what is typed: the demo, its first line, and three of its offers."""
    environment = default_folder() / demo.ENVIRONMENT
    first = next(demo_story.commands(demo_story.next_steps(environment, "")))
    _, ask, _, _, lose, ask_too_much = demo_story.OFFERS
    return ["make demo", first, *ask.commands, *lose.commands, *ask_too_much.commands]


# The terminal ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Screen:
    """All lines that a terminal has shown, as programs have left them: characters with their style."""

    columns: int = COLUMNS
    lines: list[list[tuple[str, str]]] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    style: str = ""
    """The parameters of SGR that are in force, joined by `;`."""
    rest: str = ""
    """The beginning of a control sequence whose end has not been written yet."""

    CONTROL = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])|\x1b\][^\x07]*\x07|\x1b[=>]|[\r\n\b\x07]|\x1b.{0,40}$")

    def write(self, text: str) -> None:
        """Show what a program writes."""
        text, self.rest = self.rest + text, ""
        end = 0
        for found in self.CONTROL.finditer(text):
            self._put(text[end : found.start()])
            end = found.end()
            if found[0].startswith("\x1b") and found[2] is None and end == len(text) and found[0][-1] not in "\x07=>":
                self.rest = found[0]
            else:
                self._obey(found[0], found[1] or "", found[2] or "")
        self._put(text[end:])

    def _put(self, text: str) -> None:
        for character in text:
            if self.column == self.columns:
                self._go(self.row + 1, 0)
            line = self.lines[self.row]
            line += [(" ", "")] * (self.column + 1 - len(line))
            line[self.column] = (character, self.style)
            self.column += 1

    def _obey(self, control: str, parameters: str, verb: str) -> None:
        count = int(parameters) if parameters.isdigit() else 1
        match verb or control:
            case "\r":
                self.column = 0
            case "\n":
                self._go(self.row + 1, self.column)
            case "\b" | "D":
                self.column = max(0, self.column - count)
            case "A":
                self._go(max(0, self.row - count), self.column)
            case "B":
                self._go(self.row + count, self.column)
            case "C":
                self.column = min(self.columns - 1, self.column + count)
            case "G":
                self.column = count - 1
            case "K":
                self.lines[self.row] = [] if parameters == "2" else self.lines[self.row][: self.column]
            case "J":
                self.lines[self.row :] = [self.lines[self.row][: self.column]]
            case "m":
                codes = parameters.split(";")
                self.style = "" if codes[-1] in {"", "0"} else ";".join(filter(None, [self.style, parameters]))
            case _:
                pass

    def _go(self, row: int, column: int) -> None:
        self.lines += [[] for _ in range(row + 1 - len(self.lines))]
        self.row, self.column = row, column

    def text(self) -> Sequence[str]:
        """Return the lines, with SGR where the style changes."""
        return [_styled(line) for line in self.lines]


def _styled(line: Iterable[tuple[str, str]]) -> str:
    text, style = "", ""
    for character, own in line:
        if own != style:
            text += "\x1b[0m" * bool(style) + f"\x1b[{own}m" * bool(own)
            style = own
        text += character
    return (text + "\x1b[0m" * bool(style)).rstrip(" ")


# Recording ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frame:
    """What is to be seen from a time on; with `command`, that one has just been typed."""

    at: float
    lines: Sequence[str]
    command: str = ""


@dataclass(slots=True)
class Terminal:
    """A shell in a pseudo terminal, and what it has shown."""

    descriptor: int
    frames: list[Frame] = field(default_factory=list[Frame])
    screen: Screen = field(default_factory=Screen)
    now: float = 0.0
    """Seconds of the recording so far."""

    def type(self, command: str) -> None:
        """Type a command and wait until the shell asks for another."""
        for key in command:
            os.write(self.descriptor, key.encode())
            self._show(self._read(KEY_SECONDS), KEY_SECONDS)
        self.frames.append(Frame(self.now, self.screen.text(), command))
        os.write(self.descriptor, b"\r")
        self.wait()
        self.now += PAUSE

    def wait(self) -> None:
        """Show what comes until the shell is ready; raises TimeoutError when it is not in time."""
        began, written = time.monotonic(), list[tuple[float, str]]()
        while READY not in "".join(text for _, text in written[-2:]):
            if (passed := time.monotonic() - began) > COMMAND_SECONDS:
                raise TimeoutError(f"waited {COMMAND_SECONDS:g} s for the shell, which said {written[-20:]}")
            if text := self._read(1.0):
                written.append((passed, text))
        speed = max(1.0, (time.monotonic() - began) / LONGEST)
        last = 0.0
        for passed, text in written:
            self._show(text, (passed - last) / speed)
            last = passed
        self._show(self._read(0.1), 0.1)  # the prompt, after what says that it is there

    def _show(self, text: str, seconds: float) -> None:
        self.now += seconds
        if text:
            self.screen.write(text)
            self.frames.append(Frame(self.now, self.screen.text()))

    def _read(self, seconds: float) -> str:
        if not select.select([self.descriptor], [], [], seconds)[0]:
            return ""
        return os.read(self.descriptor, 1 << 16).decode(errors="replace")


def record(typed: Iterable[str], environment: Mapping[str, str]) -> Sequence[Frame]:
    """Type commands into a shell in this folder; return what was to be seen."""
    own, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=other,
        stdout=other,
        stderr=other,
        cwd=ROOT,
        env={**environment, "PS1": rf"\[{READY}\]{PROMPT}", "TERM": "xterm-256color", "HISTFILE": ""},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one thread, and job control needs it
    )
    os.close(other)
    terminal = Terminal(own)
    try:
        terminal.wait()
        for command in typed:
            terminal.type(command)
    finally:
        shell.kill()
        shell.wait()
        os.close(own)
    return thinned(terminal.frames)


def thinned(frames: Sequence[Frame]) -> Sequence[Frame]:
    """Return the frames that somebody can see: one in each quarter of a second, and those of commands."""
    kept = list[Frame]()
    for frame, after in zip(frames, [*frames[1:], None], strict=True):
        is_last = after is None or after.at // FRAME_SECONDS > frame.at // FRAME_SECONDS
        if frame.command or (is_last and (not kept or frame.lines != kept[-1].lines)):
            kept.append(frame)
    return kept


# The cast -------------------------------------------------------------------------------------------------------------


def cast(frames: Iterable[Frame]) -> Iterator[str]:
    """Yield the lines of an asciinema cast, version 2: each event rewrites the lines that have changed."""
    yield json.dumps({"version": 2, "width": COLUMNS, "height": ROWS, "title": "make demo"})
    before: Sequence[str] = [""]
    for frame in frames:
        if frame.lines != before:
            pairs = zip(before[:-1], frame.lines[:-1], strict=False)
            same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
            up = f"\x1b[{len(before) - 1 - same}A" if len(before) - 1 > same else ""
            yield json.dumps([round(frame.at, 2), "o", f"\r{up}\x1b[J" + "\r\n".join(frame.lines[same:])])
            before = frame.lines
        if frame.command:
            yield json.dumps([round(frame.at, 2), "m", frame.command])


def read(lines: Iterable[str]) -> Sequence[Frame]:
    """Return the frames of a cast."""
    screen, frames = Screen(), list[Frame]()
    for at, kind, text in map(json.loads, list(lines)[1:]):
        if kind == "m":
            frames.append(Frame(at, screen.text(), text))
        else:
            screen.write(text)
            frames.append(Frame(at, screen.text()))
    return frames


# The drawing ----------------------------------------------------------------------------------------------------------

WIDTH, HEIGHT, MARGIN = 8.4, 19, 16  # of a character and a line, and around all of them, in pixels
COLOURS = {
    "1": "#ffffff",
    "2": "#8b949e",
    "31": "#ff7b72",
    "32": "#7ee787",
    "33": "#e3b341",
    "34": "#79c0ff",
    "35": "#d2a8ff",
    "36": "#56d4dd",
}
FOREGROUND, BACKGROUND = "#d6dde4", "#0d1117"


def drawn(frames: Sequence[Frame]) -> str:
    """Return an SVG that shows the frames one after the other, again and again."""
    pages = [frame.lines[-ROWS:] for frame in frames]
    names = {line: f"l{number}" for number, line in enumerate(dict.fromkeys(line for page in pages for line in page))}
    wide, high = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN
    total = frames[-1].at + END_PAUSE
    steps = "".join(
        f"{100 * frame.at / total if number else 0:.2f}%{{transform:translateX({-number * wide:.0f}px)}}"
        for number, frame in enumerate(frames)
    )
    last = f"transform:translateX({-(len(pages) - 1) * wide:.0f}px)"
    texts = "".join(f'<g id="{names[line]}">{_text(line)}</g>\n' for line in names if line)
    strip = "\n".join(
        "".join(
            f'<use href="#{names[line]}" x="{number * wide + MARGIN:.0f}" y="{MARGIN + (row + 1) * HEIGHT - 5}"/>'
            for row, line in enumerate(page)
            if line
        )
        for number, page in enumerate(pages)
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:.0f} {high}" width="{wide:.0f}" height="{high}" role="img">
<title>make demo, recorded by scripts/recording.py</title>
<style>
text{{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
text{{white-space:pre;fill:{FOREGROUND}}}
#strip{{animation:play {total:.1f}s steps(1,end) infinite}}
@keyframes play{{{steps}100%{{{last}}}}}
@media (prefers-reduced-motion:reduce){{#strip{{animation:none;{last}}}}}
</style>
<defs>
{texts}</defs>
<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>
<g id="strip">
{strip}
</g>
</svg>
"""


def _text(line: str) -> str:
    """Return the elements of a line: one for each style, where its characters stand."""
    drawn, column, colour = "", 0, ""
    for piece in re.split(r"(\x1b\[[\d;]*m)", line):
        if piece.startswith("\x1b["):
            codes = piece[2:-1].split(";")
            colour = next((COLOURS[code] for code in reversed(codes) if code in COLOURS), "")
        elif piece.strip():
            fill = f' style="fill:{colour}"' if colour else ""
            place = f'x="{column * WIDTH:.1f}" textLength="{len(piece) * WIDTH:.1f}"'
            drawn += f'<text {place} xml:space="preserve"{fill}>{escape(piece)}</text>'
        column += 0 if piece.startswith("\x1b[") else len(piece)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw the SVG again from the cast")
    if not parser.parse_args().draw:
        if Fleet(default_folder()).is_up():
            sys.exit("recording: a fleet is up, and would not be as the recording left it: make demo-down ends it")
        CAST.write_text("\n".join(cast(record(commands(), os.environ))) + "\n")
        demo.down()
    DRAWING.write_text(drawn(read(CAST.read_text().splitlines())))


if __name__ == "__main__":
    main()
