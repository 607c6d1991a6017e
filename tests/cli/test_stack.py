"""The rollout of charts as `modelplane stack` shows it, and what resume and abort write."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kubeloop.objects import Key
from modelplane_operator.api import labels
from modelplane_operator.api.serving_stack import ChartChange, RolloutPhase, StackRollout
from modelplane_operator.cli.stack import ReportedRollout, describe
from modelplane_operator.clusters.stack.rollout import GATE
from tests.api.contract import rich
from tests.support.api import Api, named
from tests.support.command import NO, USAGE, YES, modelplane
from tests.support.manifests import Manifest, change

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ENVOY = ChartChange(name="envoy-gateway", previous="v1.8.1", version="v1.9.1", revision=1)
VALUES = ChartChange(name="prometheus", previous="72.6.2", version="72.6.2", revision=1)


def reported(
    name: str, phase: RolloutPhase, *changes: ChartChange, canary: bool = False, **more: Any
) -> ReportedRollout:
    since = more.pop("since", NOW)
    rollout = StackRollout(target="t", phase=phase, since=since, changes=changes, **more)
    return ReportedRollout(Key("modelplane-system", name), name, canary, rollout, f"{name} says so")


def test_clusters_that_need_attention_are_first_and_the_first_cluster_is_the_first_wave() -> None:
    rows = describe(
        [
            reported("a", "Waiting", ENVOY),
            reported("b", "Done", ENVOY, since=NOW - timedelta(hours=1)),
            reported("c", "Watching", ENVOY, VALUES, healthy_since=NOW - timedelta(seconds=100)),
            reported("d", "Failed", ENVOY),
            reported("e", "Done"),
        ],
        NOW,
    )
    assert [(row.cluster, row.phase, row.wave) for row in rows] == [
        ("d", "Failed", 2),
        ("c", "Watching", 2),
        ("a", "Waiting", 2),
        ("b", "Done", 1),
        ("e", "Done", None),
    ]
    assert rows[1].changes == ("envoy-gateway v1.8.1 -> v1.9.1", "prometheus values")
    assert [row.remaining for row in rows] == [None, GATE.total_seconds() - 100, None, None, None]
    assert rows[0].message == "d says so"


def test_canaries_are_the_first_wave() -> None:
    rows = describe([reported("a", "Waiting", ENVOY), reported("z", "Waiting", ENVOY, canary=True)], NOW)
    assert {row.cluster: row.wave for row in rows} == {"a": 2, "z": 1}


def stack(name: str, phase: str, **rollout: Any) -> Manifest:
    manifest = named(rich()["ServingStack"], name)
    changed = {**manifest["status"]["rollout"], "phase": phase, **rollout}
    return change(manifest, "status.rollout", {field: value for field, value in changed.items() if value is not None})


@pytest.fixture
async def stacks(api: Api) -> AsyncIterator[None]:
    found = [
        await api.create(stack("failed", "Failed", target="one", message="chart envoy-gateway: no such image")),
        await api.create(stack("waiting", "Waiting", target="two", healthySince=None, message=None)),
        await api.create(stack("settled", "Done", target="three", healthySince=None, message=None)),
    ]
    yield
    for one in found:
        await api.delete(one)


@pytest.mark.fleet
async def test_a_rollout_is_shown_aborted_and_resumed(api: Api, stacks: None) -> None:
    async def typed(*arguments: str) -> tuple[int, str]:
        return await modelplane(api.server.kubeconfig, "stack", *arguments)

    async def annotations(name: str) -> dict[str, str]:
        text = await api.kubectl("get", "servingstack", name, "-ndefault", "-ojson")
        return json.loads(text)["metadata"].get("annotations", {})

    code, said = await typed("status")
    assert (code, [line.split()[:3] for line in said.splitlines()[1:]]) == (
        YES,
        [["default/failed", "1", "Failed"], ["default/waiting", "2", "Waiting"], ["default/settled", "2", "Done"]],
    )
    assert "envoy-gateway v1.8.1 -> v1.9.1" in said
    code, said = await typed("status", "-o", "json")
    assert {one["cluster"]: one["phase"] for one in json.loads(said)["items"]}["default/failed"] == "Failed"

    code, said = await typed("abort", "nowhere")
    assert (code, "cluster nowhere has reported no rollout; those that have: default/failed," in said) == (NO, True)
    code, said = await typed("abort", "default/settled")
    assert (code, "the rollout on default/settled is not waiting or failed" in said) == (NO, True)
    code, said = await typed("abort")
    assert (code, said) == (YES, "default/failed keeps its charts.\ndefault/waiting keeps its charts.\n")
    assert (await annotations("failed"))[labels.KEEP_CHARTS] == "one"
    assert (await annotations("waiting"))[labels.KEEP_CHARTS] == "two"
    assert labels.KEEP_CHARTS not in await annotations("settled")

    code, said = await typed("resume", "default/failed", "-o", "json")
    assert (code, json.loads(said)["clusters"]) == (YES, ["default/failed"])
    resumed = await annotations("failed")
    assert labels.KEEP_CHARTS not in resumed
    assert resumed[labels.RETRY]
    code, said = await typed("resume", "default/settled")
    assert (code, "is not failed or aborted: see modelplane stack status" in said) == (NO, True)
    for command, purpose in (
        ("status", "List the clusters"),
        ("resume", "Let a stopped or aborted rollout go on"),
        ("abort", "Keep the old charts"),
    ):
        code, said = await typed(command, "--help")
        assert (code, purpose in " ".join(said.split())) == (YES, True), said
    code, _ = await typed("resume", "--no-such-option")
    assert code == USAGE
