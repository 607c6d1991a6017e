"""What a build says before and while it runs."""

import subprocess
import sys

import pytest

from localfleet import binaries, forecast, progress
from localfleet.progress import Part, Progress


def test_the_forecast_knows_every_module() -> None:
    assert forecast.WORK.keys() == {tool.module for tool in binaries.TOOLS if isinstance(tool, binaries.Program)}


@pytest.mark.parametrize("columns", [40, 80, 300])
def test_the_announcement_fits_the_terminal_and_says_how_long_and_why(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(forecast.os, "sched_getaffinity", lambda _: {0, 1})

    announcement = forecast.announce([600, 600, 101])

    text = " ".join(announcement.split())
    assert "3 parts are fetched and compiled once" in text
    assert "On 2 cores that takes about 11 minutes" in text
    assert "from source whose checksums are pinned" in text
    assert "FLEET_BINARIES=path-or-url#sha256" in text
    assert "docs/tour.md" in text
    assert max(map(len, announcement.splitlines())) <= min(columns, 100)


def test_more_cores_take_less_time_and_seconds_are_not_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast.os, "sched_getaffinity", lambda _: set(range(16)))

    assert "On 16 cores that takes about 2 minutes" in " ".join(forecast.announce([1600]).split())
    assert forecast.announce([600]) == ""


def part(title: str, work: float, spent: float = 0.0, *, ended: bool = False) -> Part:
    made = Part(title, work, started=0.0, spent=spent)
    if ended:
        made.future.set_result(None)
    return made


def test_a_build_that_has_not_begun_takes_as_long_as_expected() -> None:
    assert Progress([part("a", 600), part("b", 600)], cores=2, began=100).describe(now=100) == "0 %, about 10 min left"


def test_the_time_that_is_left_follows_the_speed_so_far() -> None:
    parts = [part("a", 600, 600, ended=True), part("b", 600)]

    # 600 of 1200 seconds of work in ten minutes on two cores: half as fast as expected.
    assert Progress(parts, cores=2, began=100).describe(now=700) == "50 %, about 10 min left"
    assert Progress(parts, cores=2, began=100).describe(now=400) == "50 %, about 5 min left"


def test_a_part_that_runs_counts_by_its_processor_time_and_is_not_done_before_it_ends() -> None:
    half, over = part("a", 100, 50), part("b", 100, 500)

    assert Progress([half], cores=1, began=0).describe(now=50).startswith("50 %")
    assert Progress([over], cores=1, began=0).describe(now=50).startswith("95 %")


def test_a_slow_processor_is_known_by_the_parts_that_have_ended() -> None:
    parts = [part("a", 100, 300, ended=True), part("b", 100, 150)]

    assert Progress(parts, cores=1, began=0).describe(now=450).startswith("75 %")


@pytest.mark.processes
def test_processor_time_of_a_compilers_children_is_counted() -> None:
    child = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.3: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print(); sys.stdin.read()"
    watched = part("a", 100)
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as compiler:
        watched.follow(compiler.pid)
        assert compiler.stdout
        compiler.stdout.readline()
        watched.look()
    assert watched.spent >= 0.3
    before = watched.spent
    watched.look()  # it has ended
    assert watched.spent == before


def test_plain_lines_say_what_is_under_way_and_how_far_it_is() -> None:
    lines: list[str] = []

    progress.print_lines([part("etcd v3", 100, ended=True)], lines.append)

    assert lines[0] == "making 1 of the fleet's programs, once: etcd v3"
    assert lines[1].startswith("made etcd v3 in ")
    assert lines[1].endswith(" s (0 s of a processor); that was all")


def test_plain_lines_come_while_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT", 0.0)
    monkeypatch.setattr(progress, "POLL_INTERVAL", 0.01)
    running, lines = part("etcd v3", 100), list[str]()
    running.note = "building"

    def say(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:
            running.future.set_result(None)

    progress.print_lines([running], say)

    assert lines[1].startswith("0 %, about ")
    assert "left: etcd v3 (building, " in lines[1]
