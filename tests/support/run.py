"""A long run of tests over several workers (`-p tests.support.run`): how far it is, and that it came to its end.

Twice a minute a line says how many tests have ended and which ones run; a failure is told at once. At the end it says
which groups took longest, when each worker had nothing left, and how much of the time the machine was idle. The run
fails when a worker died or a test that was collected did not end, even if all that did end have passed.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from localfleet import binaries
from tests.support.groups import group_of, is_computed

EVERY_SECONDS = 30.0
GROUPS_TOLD = 12
INCOMPLETE = "the run is incomplete: "  # .ci/run looks for it: such a run cannot be mended by a second try
NICE = 10  # a tenth of what the other workers get, where they want it
BEHIND = pytest.StashKey[str]()
"""Which worker is the one behind the others."""
COMES_FORWARD = pytest.StashKey[bool]()
"""Whether that one is another like them once nothing is left to compute: where there is memory for one more, and where
a process may be as important again as it was, which is root's right alone."""
MEMORY_PER_WORKER = 5 << 30  # a fleet of three clusters with its operator, and what a test starts beside it
GO = {"GOGC": "400", "GOMAXPROCS": "1"}
"""What the fleet's programs in Go are told, as they are many, and processors few: a quarter less of their time for half
as much memory again, as measured on an API server that starts and gets our definitions. There is no limit of memory
beside it: a server that comes near one collects all the time."""


@pytest.hookimpl(tryfirst=True)  # xdist is loaded after us, and would be asked before
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Those that fit, and one behind them, which has what nobody else needs of the processors."""
    front = fit()
    config.stash[BEHIND] = f"gw{front}"
    config.stash[COMES_FORWARD] = os.geteuid() == 0 and in_memory() > front
    return front + 1


def fit() -> int:
    """One more than cores, because whoever drives a fleet mostly waits for it; fewer where memory is short."""
    return max(1, min(len(os.sched_getaffinity(0)) + 1, in_memory()))


def in_memory() -> int:
    return binaries.available_memory() // MEMORY_PER_WORKER


class Behind:
    """The worker behind the others, which leaves them their time while it collects and computes."""

    def __init__(self) -> None:
        self.first = os.nice(0)
        self.stand(behind=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        self.stand(behind=is_computed(group_of(item.nodeid)))

    def stand(self, *, behind: bool) -> None:
        os.setpriority(os.PRIO_PROCESS, 0, self.first + NICE * behind)


@pytest.hookimpl
def pytest_configure_node(node: WorkerController) -> None:
    node.workerinput["behind"] = node.gateway.id == node.config.stash.get(BEHIND, None)


class Groups(LoadScopeScheduling):
    """Gives a worker one group after the other; to the one behind first those that compute, from their end."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node.workerinput["behind"]:
            last = next(reversed(self.workqueue), "")
            if is_computed(last):
                self.workqueue.move_to_end(last, last=False)
            elif not self.workqueue or not self.config.stash.get(COMES_FORWARD, False):
                node.shutdown()
                return
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """A worker is gone: the others get what it had left, but for the one that it died of, which is the answer.

        xdist's own would try that test again and again, and a group that was done would keep a worker waiting for ever.
        """
        groups = self.assigned_work.pop(node)
        left = {name: [test for test, done in tests.items() if not done] for name, tests in groups.items()}
        died = next((test for tests in left.values() for test in tests), None)
        for name, tests in left.items():
            if rest := {test: False for test in tests if test != died}:
                self.workqueue[name] = rest
        for other in self.nodes:
            self._reschedule(other)
        return died


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    config.option.loadscopereorder = False  # the groups that take longest come first, not those with most tests
    return Groups(config, log)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if workerinput := getattr(config, "workerinput", None):
        os.environ.update(GO)
        if workerinput["behind"]:
            config.pluginmanager.register(Behind())
    else:
        config.pluginmanager.register(Run(config.pluginmanager.getplugin("terminalreporter")))


def processors() -> tuple[int, int]:
    """For how long all processors together had nothing to do since they began, and for how long there are any."""
    ticks = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


@dataclass(eq=False, slots=True)
class Run:
    """What the process that reports knows of the run."""

    terminal: pytest.TerminalReporter
    began: float = field(default_factory=time.monotonic)
    over: threading.Event = field(default_factory=threading.Event)
    total: int = 0
    running: dict[str, None] = field(default_factory=dict[str, None])
    ended: set[str] = field(default_factory=set[str])
    failures: int = 0
    seconds: Counter[str] = field(default_factory=Counter[str])
    """What each group took."""
    ticks: tuple[int, int] = field(default_factory=processors)
    done: dict[str, str] = field(default_factory=dict[str, str])
    """When each worker ended a test last."""
    wrong: list[str] = field(default_factory=list[str])

    def pytest_sessionstart(self) -> None:
        threading.Thread(target=self.tell, daemon=True).start()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.total = len(session.items)

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self.total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.running[nodeid] = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[group_of(report.nodeid)] += report.duration
        if node := getattr(report, "node", None):
            self.done[node.gateway.id] = self.minutes
        if report.failed:
            self.failures += 1
            self.terminal.write_line(f"{self.minutes} FAILED in {report.when}: {report.nodeid}", red=True)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.running.pop(nodeid, None)
        self.ended.add(nodeid)

    def pytest_handlecrashitem(self, crashitem: str) -> None:
        self.running.pop(crashitem, None)

    def tell(self) -> None:
        """Say how far it is, until it is over; also while nothing ends."""
        while not self.over.wait(EVERY_SECONDS):
            far = f"{len(self.ended)} of {self.total} tests, {self.failures} failed"
            self.terminal.write_line(f"{self.minutes} {far}; now {', '.join(self.running.copy())}")
            self.terminal.flush()

    @property
    def minutes(self) -> str:
        return f"{(time.monotonic() - self.began) / 60:5.1f} min "

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No letter for a test that passed: the lines tell."""
        return ("passed", "", "") if report.when == "call" and report.passed else None

    def pytest_testnodedown(self, node: object, error: object) -> None:
        if error:
            self.wrong.append(f"{INCOMPLETE}a worker died")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self.over.set()
        if len(self.ended) != self.total:
            self.wrong.append(f"{INCOMPLETE}{len(self.ended)} of {self.total} tests have ended")
        if exitstatus == pytest.ExitCode.OK and self.wrong:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(self) -> Generator[None]:
        yield
        if self.done:
            took = (f"{group} {seconds / 60:.1f}" for group, seconds in self.seconds.most_common(GROUPS_TOLD))
            self.terminal.write_line(f"minutes of the longest groups: {', '.join(took)}")
            self.terminal.write_line(f"workers were done after: {', '.join(map(str.strip, self.done.values()))}")
            idle, of_all = (now - before for before, now in zip(self.ticks, processors(), strict=True))
            self.terminal.write_line(f"the machine was idle for {idle / max(of_all, 1):.0%} of the time")
        for line in self.wrong:
            self.terminal.write_line(line, red=True)
