"""What is read of a broken situation in `kubectl describe` and in `modelplane why`: the cause, and what mends it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from localfleet.kubeclient import ApiError, entries
from modelplane_operator.cli.__main__ import app
from tests.integration.harness import SYSTEM, Stage, until
from tests.integration.mistakes import MORE, REFUSED
from tests.integration.situations import (
    BREAKS,
    CACHE,
    CLUSTER,
    DEPLOYMENT,
    HOLDS,
    INFERENCE,
    SERVICE,
    SITUATIONS,
    Situation,
)
from tests.support.manifests import Manifest

pytestmark = [pytest.mark.fleet, pytest.mark.long]

LINES = 3  # of `why`: the state, the cause, and what would help
EVERY = {**SITUATIONS, **MORE}
WHY = {DEPLOYMENT: "", SERVICE: "service/", INFERENCE: "llminference/"}
"""Kinds that `modelplane why` explains, as it takes their names."""


async def test_what_cannot_work_says_why_and_what_mends_it(stage: Stage, space: str) -> None:
    await tried(stage, space, {name: one for name, one in EVERY.items() if not one.runs and one.kind != CLUSTER})


@pytest.mark.parametrize("name", [name for name, one in EVERY.items() if one.runs])
async def test_what_runs_badly_says_why_and_what_mends_it(stage: Stage, space: str, name: str) -> None:
    await tried(stage, space, {name: EVERY[name]})


async def test_a_cluster_that_cannot_be_used_says_why_and_what_mends_it(stage: Stage, space: str) -> None:
    await tried(stage, space, {name: one for name, one in EVERY.items() if one.kind == CLUSTER})


@pytest.mark.parametrize("name", BREAKS)
async def test_what_its_platform_does_to_a_model_is_told_with_what_mends_it(
    stage: Stage, space: str, name: str
) -> None:
    broken, situation = BREAKS[name]
    async with broken(stage, space):
        await tried(stage, space, {name: situation})


async def test_what_the_api_server_refuses_is_said_at_once(stage: Stage, space: str) -> None:
    said: dict[str, str] = {}
    for name, (make, _) in REFUSED.items():
        try:
            await stage.hub.apply(*make(space, name))
        except ApiError as error:
            said[name] = str(error)
    wrong = [
        f"{name} does not say {words}: {said.get(name, 'it is stored')}"
        for name, (_, all_) in REFUSED.items()
        for words in all_
        if words not in said.get(name, "")
    ]
    assert not wrong, "\n\n".join(wrong)


def test_there_are_a_hundred_of_them() -> None:
    assert len(EVERY) == len(SITUATIONS) + len(MORE)
    assert len(EVERY) + len(BREAKS) + len(REFUSED) >= 100


async def tried(stage: Stage, space: str, situations: Mapping[str, Situation]) -> None:
    """Bring all of them about at once, and look at each until it says what it should."""
    await stage.hub.apply(*(make(space) for make in HOLDS.values()))
    for name, situation in situations.items():
        await stage.hub.apply(*situation.make(space, name))
    try:
        wrong = await unexplained(stage, space, situations)
    finally:
        for name, situation in situations.items():
            if situation.kind in {CACHE, INFERENCE, CLUSTER}:
                await stage.hub.delete(situation.kind, name, home(situation, space))
                await stage.hub.gone(situation.kind, name, home(situation, space))
            if situation.kind == CLUSTER:
                await stage.hub.delete("Secret", f"{name}-kubeconfig", SYSTEM)
    assert not wrong, "\n\n".join(wrong)


async def unexplained(stage: Stage, space: str, situations: Mapping[str, Situation]) -> list[str]:
    """What each situation does not say that it should, and what it says."""
    wrong: list[str] = []
    for name, situation in situations.items():
        told = ""

        async def says(name: str = name, situation: Situation = situation) -> bool:
            nonlocal told
            told = describe(await stage.hub.get(situation.kind, name, home(situation, space)) or {})
            return not lacking(situation, told) and (
                f"\nReady=False {situation.reason}:" in told or not situation.reason
            )

        try:
            await until(name, says, situation.seconds)
        except AssertionError:
            wrong.append(f"{name} does not say {lacking(situation, told) or situation.reason}:\n{told}")
            continue
        if situation.kind in WHY:
            why = await asyncio.to_thread(asked, stage, WHY[situation.kind] + name, space)
            if missing := [words for words in situation.why or situation.says if words not in why]:
                wrong.append(f"why {name} does not say {missing}:\n{why}")
    return wrong


def home(situation: Situation, space: str) -> str:
    return "" if situation.kind == CLUSTER else space


def describe(manifest: Manifest) -> str:
    """The conditions that `kubectl describe` prints and that are not as they should be; nothing of what is Ready."""
    troubles = [one for one in entries(manifest, "status", "conditions") if one["status"] != "True"]
    if not any(one["type"] == "Ready" for one in troubles):
        return ""
    return "\n".join(f"{one['type']}={one['status']} {one['reason']}: {one.get('message', '')}" for one in troubles)


def asked(stage: Stage, name: str, space: str) -> str:
    """The first lines that `modelplane why` prints."""
    runner = CliRunner(env={"COLUMNS": "1000", "NO_COLOR": "1"})
    said = runner.invoke(app, ["why", name, "-n", space, f"--kubeconfig={stage.fleet.kubeconfig('hub')}"])
    return "\n".join(said.output.splitlines()[:LINES])


def lacking(situation: Situation, told: str) -> list[str]:
    return [words for words in situation.says if words not in told]
