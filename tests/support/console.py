"""The commands of a page's console blocks, as somebody would type them: one shell for the page, one command at a time.

A block is what a page has between ```console and ```: lines that begin with `$ `, those that continue them, and what
they print. An HTML comment on the line before the block says of all of it, with the reason, that it cannot be typed
where tests run, or that it answers with no:

    <!-- not run: it takes a cluster on a cloud -->
    <!-- ends with 3: the answer is no -->
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

BLOCK = re.compile(
    r"(?:^<!-- (?:not run: (?P<why>[^\n]+)|ends with (?P<code>\d+): [^\n]+) -->\n)?^```console\n(?P<text>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
HEADING = re.compile(r"^##+ (.+)$", re.MULTILINE)
DONE = "console: exit code"


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a page, by the line it is on."""

    page: Path
    line: int
    text: str
    why_not: str = ""
    """Why it is not run here; empty when it is."""
    code: int = 0
    """What it ends with."""
    section: str = ""
    """The heading under which it stands."""

    def renamed(self, names: Mapping[str, str]) -> Command:
        """The same, with what is called otherwise where it is typed."""
        text = self.text
        for name, here in names.items():
            text = text.replace(name, here)
        return replace(self, text=text)

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}: $ {self.text}"


def commands(page: Path) -> Iterator[Command]:
    """All of a page, in their order."""
    whole = page.read_text()
    for block in BLOCK.finditer(whole):
        line = whole.count("\n", 0, block.start("text")) + 1
        section = (HEADING.findall(whole, 0, block.start()) or [""])[-1]
        for number, text in typed(block["text"]):
            yield Command(page, line + number, text, block["why"] or "", int(block["code"] or 0), section)


def typed(block: str) -> Iterator[tuple[int, str]]:
    """What is typed in a block, by line: a backslash goes on, and so does a document until its end."""
    lines = block.splitlines()
    number = 0
    while number < len(lines):
        begin, line = number, lines[number]
        number += 1
        if not line.startswith("$ "):
            continue
        text = [line.removeprefix("$ ")]
        ends = re.search(r"<<-?'?(\w+)'?", line)
        while number < len(lines) and (text[-1].endswith("\\") or (ends and text[-1] != ends[1])):
            text.append(lines[number])
            number += 1
        yield begin, "\n".join(text)


@dataclass(slots=True)
class Shell:
    """A shell that goes on from one command to the next, so that variables stay."""

    argv: Sequence[str]
    folder: Path
    environment: Mapping[str, str]
    seconds: float = 300.0

    def run(self, asked: Sequence[Command]) -> Iterator[tuple[Command, str]]:
        """Each command with what it printed; raises AssertionError at one that does not end as its page says."""
        script = ["set -o pipefail"]
        for number, command in enumerate(asked):
            script += [
                command.text,
                f'code=$?; echo; echo "{DONE} {number} $code"; [ $code = {command.code} ] || exit 1',
            ]
        done = subprocess.run(
            [*self.argv, "bash", "-c", "\n".join(script)],
            cwd=self.folder,
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=self.seconds,
        )
        parts = re.split(rf"^{DONE} (\d+) (\d+)\n", done.stdout, flags=re.MULTILINE)
        for command, printed, code in zip(asked, parts[::3], parts[2::3], strict=False):
            assert int(code) == command.code, f"{command}\nended with {code}:\n{printed}"
            yield command, printed
        assert len(parts) // 3 == len(asked), f"the shell ended after {len(parts) // 3} commands:\n{parts[-1]}"


def saying(ran: Iterable[tuple[Command, str]], says: Mapping[str, str]) -> set[str]:
    """Which texts stand in commands that ran; raises AssertionError where one did not print what it says."""
    found = [(text, command, printed) for command, printed in ran for text in says if text in command.text]
    for text, command, printed in found:
        assert says[text] in printed, f"{command}\n{printed}"
    return {text for text, _, _ in found}
