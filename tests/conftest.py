"""Fixtures for all tests. What needs binaries is marked `fleet` and built on first use."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec

import pytest
import structlog
from hypothesis import HealthCheck, settings

from localfleet.apiserver import api_server
from localfleet.kubeclient import connect
from modelplane_operator.logs import FOR_EYES
from tests.support import groups
from tests.support.api import Api, State
from tests.support.api_fixtures import (  # noqa: F401 - fixtures
    access,
    access_through,
    config_map,
    flooding,
    kube,
    namespace,
    proxy,
    proxy_process,
    through,
)
from tests.support.golden import Golden
from tests.support.manifests import ROOT
from tests.support.well_worded import well_worded  # noqa: F401 - a fixture
from tests.support.world import through_proxy, world  # noqa: F401 - fixtures

# `make check` and `make test` take twenty examples, `make test-fleet` the usual hundred. In CI they are the same ones
# in every run, so that what fails there is the change; elsewhere every run looks at new ones. How long one takes is the
# machine's affair.
IN_CI = bool(os.environ.get("CI"))
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=IN_CI)
settings.register_profile("quick", patient, max_examples=20)
settings.register_profile("usual", patient)
settings.load_profile("usual")

structlog.configure(processors=[*structlog.get_config()["processors"][:-1], FOR_EYES])

# tests/e2e runs on clusters by kind, with clients that are in an environment of its own: make e2e-kind.
collect_ignore = [] if find_spec("kubernetes_asyncio") else ["e2e"]

PROGRAMS = {"fleet", "servers"}
"""Fixtures that start programs."""
MARKS = ("fleet", "faults", "oracle")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--golden-update", action="store_true", help="rewrite expected outputs; no other test runs")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Whoever forgets the mark has `make check` wait for an API server that is still being built."""
    needs_binaries = {"servers", "fleet"} & set(getattr(item, "fixturenames", ()))
    if needs_binaries and not item.get_closest_marker("faults"):
        item.add_marker("fleet")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests come in any order, but those that share what takes long to set up come together.

    One that needs programs and does not say so would have `make check` wait until they are built.
    """
    for item in items:
        if PROGRAMS & {*getattr(item, "fixturenames", ())} and not {*MARKS} & {
            mark.name for mark in item.iter_markers()
        }:
            raise pytest.UsageError(f"{item.nodeid} needs programs: mark it with one of {', '.join(MARKS)}")
    if config.getoption("--golden-update"):
        rewriting = {item: "golden" in getattr(item, "fixturenames", ()) for item in items}
        config.hook.pytest_deselected(items=[item for item in items if not rewriting[item]])
        items[:] = filter(rewriting.get, items)
    groups.sort(items)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The tests are some million objects that stay: looking for what may go among them takes a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def golden(pytestconfig: pytest.Config) -> Golden:
    """The only way to expected outputs in files, so that --golden-update forgets none."""
    return Golden(update=pytestconfig.getoption("--golden-update"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where all that a test needs can be had, a test that is skipped is one that nobody runs."""
    report = yield
    if report.skipped and IN_CI:
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole file."""
    report = yield
    if report.skipped and IN_CI:
        report.outcome = "failed"
        report.longrepr = f"skipped, which is a failure in CI: {report.longrepr}"
    return report


MEASURED = "measured"


@pytest.fixture
def measured(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Takes a line about what a test has measured: shown at the end of the run, and never asserted closely."""
    return partial(record_property, MEASURED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    ran = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    told = [line for report in ran for name, line in report.user_properties if name == MEASURED]
    if told:
        terminalreporter.section(MEASURED)
        terminalreporter.write_line("\n".join(told))


class Servers:
    """API servers with the committed CRDs and the namespace `default`, and nothing else: one after the other."""

    def __init__(self) -> None:
        self.running = AsyncExitStack()
        self.api: Api | None = None
        self.new: State = {}

    async def clean(self) -> Api:
        """The server as if it had just been started, which takes it seconds of work; another where that cannot be."""
        if self.api is None or not await self.api.restore(self.new):
            await self.running.aclose()
            self.api = await self._start()
            self.new = self.api.state()
        return self.api

    async def _start(self) -> Api:
        server = self.running.enter_context(api_server())
        api = Api(server, await self.running.enter_async_context(connect(server.kubeconfig)))
        await api.define(ROOT / "crds")
        return api


@pytest.fixture(scope="session")
async def servers() -> AsyncIterator[Servers]:
    found = Servers()
    async with found.running:
        yield found


@pytest.fixture(scope="module")
async def api(servers: Servers) -> Api:
    """A real API server with the committed CRDs, and the namespace `default`; what one module leaves, no other sees."""
    return await servers.clean()


@pytest.fixture
async def clean_api(servers: Servers) -> Api:
    """The same for one test alone."""
    return await servers.clean()
