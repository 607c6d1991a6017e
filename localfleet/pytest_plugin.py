"""Fixtures for tests that need a fleet: one for all of them, a namespace per test, further clusters on demand.

    fleet             a hub, worker-1 and worker-2, ready, until the next test does not ask for them
    fleet_namespace   the name of a namespace that this test has for itself, in every cluster
    hub_namespace     the same on the hub alone
    extra_cluster     a function that starts one more workload cluster; it goes with the test

`LOCALFLEET_KEEP=1` uses the fleet that `python -m localfleet up --audit` starts, and leaves it up: for writing tests.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from localfleet.errors import FleetError
from localfleet.fleet import HUB, Fleet, Options, default_folder
from localfleet.kubeclient import Manifest, once, read_kubeconfig

NAME_LENGTH = 40
NAMESPACES = "/api/v1/namespaces"


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Generator[Fleet]:
    """A hub and two workload clusters."""
    keep = bool(os.environ.get("LOCALFLEET_KEEP"))
    found = Fleet(default_folder() if keep else tmp_path_factory.mktemp("fleet") / "fleet")
    try:
        found.up(Options(workers=2, audit=True))
        yield found
    finally:
        if not keep:
            found.down()


def needs_fleet(item: pytest.Item | None) -> bool:
    return "fleet" in getattr(item, "fixturenames", ())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """End the fleet when the next test needs none: at rest it takes a tenth of a core from the tests of the others."""
    yield
    if needs_fleet(item) and not needs_fleet(nextitem):
        request: Any = vars(item)["_request"]  # pytest has no public way to end a fixture before its scope does
        getattr(request, "_get_active_fixturedef")("fleet").finish(request)  # noqa: B009


@pytest.fixture
def fleet_namespace(fleet: Fleet, request: pytest.FixtureRequest) -> Generator[str]:
    """A namespace in every cluster, named after the test; deleted after it, without waiting."""
    with namespaces(fleet, request, [each["name"] for each in fleet.status()["clusters"]]) as name:
        yield name


@pytest.fixture
def hub_namespace(fleet: Fleet, request: pytest.FixtureRequest) -> Generator[str]:
    """The same on the hub alone: the end of a namespace costs its cluster some tenths of a second of a processor."""
    with namespaces(fleet, request, [HUB]) as name:
        yield name


@contextmanager
def namespaces(fleet: Fleet, request: pytest.FixtureRequest, clusters: Sequence[str]) -> Generator[str]:
    words = re.sub(r"[^a-z0-9]+", "-", str(request.node.name).lower())  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    name = f"{words[:NAME_LENGTH].strip('-')}-{next(NUMBERS)}"
    for cluster in clusters:
        ask(fleet, cluster, "POST", NAMESPACES, {"metadata": {"name": name}})
    yield name
    for cluster in {each["name"] for each in fleet.status()["clusters"]} & set(clusters):
        ask(fleet, cluster, "DELETE", f"{NAMESPACES}/{name}")


def ask(fleet: Fleet, cluster: str, method: str, path: str, body: Manifest | None = None) -> None:
    """Have an API server do something: a kubectl for each of so many would take a tenth of a second of a processor."""
    status, said = once(read_kubeconfig(fleet.kubeconfig(cluster)), method, path, body)
    if status >= 300:
        raise FleetError(f"{method} {path} on {cluster} failed: {status} {said.decode()}")


NUMBERS = itertools.count(os.getpid() * 1000)  # distinct over the runs that share a kept fleet


@pytest.fixture
def extra_cluster(fleet: Fleet, request: pytest.FixtureRequest) -> Callable[[], str]:
    """Starts a workload cluster without data plane, for this test alone, and answers its name."""

    def start() -> str:
        name = f"extra-{next(NUMBERS)}"
        fleet.add_worker(name, Options(data_plane=False))
        request.addfinalizer(lambda: remove(name))
        return name

    def remove(name: str) -> None:
        if name in {each["name"] for each in fleet.status()["clusters"]}:  # the test may have removed it itself
            fleet.remove(name)

    return start
