"""The commands that pages tell their reader to type, found and run as they stand there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.console import Command, Shell, commands, saying
from tests.support.pages import INSTALL, RUN

PAGE = """
## One
```console
$ A=1 && echo begun
begun
$ echo $A \\
    two
```
<!-- not run: it takes a cloud -->
```console
$ cloud login
```
```console
$ cat <<END
$ no command
END
```
## Two
<!-- ends with 3: the answer is no -->
```console
$ (exit 3)
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    return page


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell((), tmp_path, os.environ)


def test_commands_are_found_with_what_their_page_says_of_them(page: Path) -> None:
    found = [(one.line, one.section, one.text, one.why_not, one.code) for one in commands(page)]

    assert found == [
        (4, "One", "A=1 && echo begun", "", 0),
        (6, "One", "echo $A \\\n    two", "", 0),
        (11, "One", "cloud login", "it takes a cloud", 0),
        (14, "One", "cat <<END\n$ no command\nEND", "", 0),
        (21, "Two", "(exit 3)", "", 3),
    ]


def test_they_run_in_one_shell_one_after_the_other(page: Path, shell: Shell) -> None:
    ran = list(shell.run([one for one in commands(page) if not one.why_not]))

    assert [printed for _, printed in ran] == ["begun\n\n", "1 two\n\n", "$ no command\n\n", "\n"]


@pytest.mark.parametrize(("text", "code"), [("false", 0), ("echo well", 3), ("false | cat", 0), ("exit 0", 0)])
def test_one_that_ends_otherwise_than_its_page_says_is_told_with_its_line(shell: Shell, text: str, code: int) -> None:
    asked = [Command(Path("page.md"), 7, text, code=code), Command(Path("page.md"), 8, "echo never")]

    with pytest.raises(AssertionError, match=r"page.md:7: \$|the shell ended after 0 commands"):
        list(shell.run(asked))


def test_what_has_another_name_here_is_typed_by_that(page: Path) -> None:
    first = next(commands(page)).renamed({"begun": "over", "A=1": "A=2"})

    assert (first.text, first.line) == ("A=2 && echo over", 4)


def test_what_a_command_says_has_to_be_in_what_it_printed() -> None:
    ran = [(Command(Path("page.md"), 7, "kubectl get ic"), "berlin\n")]

    assert saying(ran, {"get ic": "berlin", "get md": "qwen"}) == {"get ic"}
    with pytest.raises(AssertionError, match=r"page.md:7: \$ kubectl get ic\nberlin"):
        saying(ran, {"get ic": "paris"})


@pytest.mark.parametrize("page", (*RUN, INSTALL), ids=lambda page: page.name)
def test_a_page_that_is_run_has_something_to_run(page: Path) -> None:
    assert len([one for one in commands(page) if not one.why_not]) >= 2
