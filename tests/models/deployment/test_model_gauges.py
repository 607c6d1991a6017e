"""What the operator tells Prometheus of each ModelDeployment, and which of its pods does."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kubeloop.gauges import Gauges
from modelplane_operator.api import ModelDeployment
from modelplane_operator.models.deployment.gauges import GAUGES
from tests.api.contract import rich
from tests.support.api import Api
from tests.support.processes import REAL, Process, eventually, operating

Manifest = dict[str, Any]
ALL, LABELS = "modelplane_modeldeployment_", ("namespace", "name", "reason")


def deployment(name: str = "llama", replicas: int = 4, reason: str = "", **more: Any) -> Manifest:
    """One whose status has these counts; `reason`: of its condition ReplicasScheduled."""
    conditions = [{"type": "ReplicasScheduled", "status": "False", "reason": reason}] if reason else []
    return {
        "metadata": {"namespace": "team", "name": name, **more.pop("metadata", {})},
        "spec": {"replicas": replicas},
        "status": {"replicas": more, "conditions": conditions},
    }


def told(deployments: Iterable[Manifest]) -> dict[tuple[str, ...], float]:
    """What a scrape reads: by what is counted and by its labels' values."""
    registry = CollectorRegistry()
    registry.register(Gauges(lambda: [(gauge, deployments) for gauge in GAUGES]))
    return read(generate_latest(registry).decode())


def read(text: str) -> dict[tuple[str, ...], float]:
    return {
        (
            sample.name.removeprefix(ALL),
            *(sample.labels[label] for label in LABELS if label in sample.labels),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith(ALL)
    }


def test_what_is_asked_for_has_a_cluster_answers_and_is_missing_is_told_of_each() -> None:
    full = deployment("full", 2, total=3, ready=2)
    short = deployment("short", 4, "InsufficientCapacity", total=1, ready=0)

    assert told([full, short]) == {
        ("spec_replicas", "team", "full"): 2,
        ("spec_replicas", "team", "short"): 4,
        ("status_replicas", "team", "full"): 3,
        ("status_replicas", "team", "short"): 1,
        ("status_replicas_ready", "team", "full"): 2,
        ("status_replicas_ready", "team", "short"): 0,
        ("status_replicas_unplaced", "team", "short", "InsufficientCapacity"): 3,
    }


@pytest.mark.parametrize("reason", ["", "ReplicasCreated", "Made by a tenant", 'x"} 1\nevil{a="'])
def test_a_reason_is_one_of_ours_whatever_a_status_says(reason: str) -> None:
    assert told([deployment(reason=reason)])["status_replicas_unplaced", "team", "llama", "Scheduling"] == 4


def test_what_is_being_deleted_lacks_nothing() -> None:
    found = told([deployment(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})])

    assert found["spec_replicas", "team", "llama"] == 4
    assert not [one for one in found if one[0] == "status_replicas_unplaced"]


@pytest.mark.parametrize("status", [{}, {"replicas": None}, {"replicas": {"total": "many", "ready": None}}])
def test_what_cannot_be_counted_is_none(status: Manifest) -> None:
    found = told([{**deployment(), "status": status}])

    assert found["status_replicas", "team", "llama"] == found["status_replicas_ready", "team", "llama"] == 0
    assert found["status_replicas_unplaced", "team", "llama", "Scheduling"] == 4


def test_no_name_makes_a_series_of_its_own() -> None:
    """No API server stores such names; what Prometheus reads does not rest on that."""
    name = 'a"} 1\n# TYPE evil gauge\nevil{b="\\'

    found = told([deployment(name)])

    assert {one[2] for one in found} == {name}
    assert len(found) == 4


@pytest.mark.fleet
async def test_the_pod_that_leads_tells_it_and_no_other_and_nobody_when_the_deployment_is_gone(
    clean_api: Api, tmp_path: Path
) -> None:
    made = {**rich()[ModelDeployment.__name__], "metadata": {"name": "subject", "namespace": "default"}}
    made = {**made, "spec": {**made["spec"], "replicas": 3}}
    names = ("default", "subject")
    flags = ("--lease-namespace=default", "--lease-duration=8", "--helm=")

    async def models(process: Process) -> dict[tuple[str, ...], float]:
        return read((await process.page("/metrics"))[1])

    with operating(clean_api.server.kubeconfig, tmp_path, *flags, module=REAL) as leader:
        await leader.leads()
        assert await models(leader) == {}
        await clean_api.create({part: value for part, value in made.items() if part != "status"})
        unplaced = ("status_replicas_unplaced", *names, "NoClusters")
        found = await eventually(lambda: models(leader), lambda found: unplaced in found, "the reason to be told")
        assert found == {
            ("spec_replicas", *names): 3,
            ("status_replicas", *names): 0,
            ("status_replicas_ready", *names): 0,
            unplaced: 3,
        }
        with operating(clean_api.server.kubeconfig, tmp_path, *flags, module=REAL) as standby:
            await eventually(lambda: standby.page("/readyz"), lambda page: page[0] == 200, "the standby to be ready")
            assert await models(standby) == {}

            leader.signal(signal.SIGTERM)
            await standby.leads()
            assert await models(standby) == found
            await clean_api.delete(made)
            await eventually(lambda: models(standby), lambda found: not found, "the series to go with the deployment")
