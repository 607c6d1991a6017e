"""The crash matrix of an LLMInference that goes from place to place: whatever breaks, it is in one of them at the end.

As in `test_crashes.py`, every STRIDE-th mutating call of each API server is struck in each act: the operator is killed
before it or after its effect, or the reply is lost on its way back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from functools import partial
from random import Random
from typing import Any, Literal

import pytest

from localfleet.faultproxy.rules import LoseReply, Match, Rule, When
from localfleet.kubeclient import ApiError
from tests.faults.stage import SEED, Crashes, FaultyStage
from tests.integration.harness import WORKERS, Cluster, condition, until
from tests.integration.kinds import namespace
from tests.support.vllm import DEFINITION

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.usefixtures("let_in")]

Runtime = Literal["VLLMRuntime", "Deployment"]
Fault = When | Literal["lost"]

SPACE, PLACES = "llm-crashes", ("models-1", "models-2")
STRIDE = 4
MORE = 1.5  # than without faults: so many calls an act may take with them
FAULTS: tuple[Fault, ...] = (*When, "lost")
RUNTIMES: tuple[Runtime, ...] = ("VLLMRuntime", "Deployment")
Calls = Mapping[str, Mapping[str, int]]
"""By act, the writes on each cluster."""
Faultless = Callable[[Runtime], Awaitable[Calls]]
MADE: Mapping[Runtime, set[str]] = {"VLLMRuntime": {"VLLMRuntime"}, "Deployment": {"Deployment", "Service"}}
IN_FLEET = {f"hub/{SPACE}/{kind}" for kind in ("ModelDeployment", "ModelService")}

ACTS: Mapping[str, Mapping[str, Any]] = {
    "make": {"providerConfigName": "worker-1", "targetNamespace": "models-1", "ingressHost": "a.example.com"},
    "change_namespace": {"targetNamespace": "models-2", "ingressHost": None},
    "change_cluster": {"providerConfigName": "worker-2", "targetNamespace": "models-1"},
    "join_fleet": {"placement": "Fleet", "providerConfigName": None, "targetNamespace": None, "memory": "9999Gi"},
    "leave_fleet": {"placement": "Cluster", "providerConfigName": "worker-1", "targetNamespace": "models-1"},
    "delete": {},
}


def wanted(act: str, runtime: Runtime) -> set[str]:
    """What there is in the end."""
    spec = ACTS[act]
    if act in {"join_fleet", "delete"}:
        return IN_FLEET if act == "join_fleet" else set()
    cluster = spec.get("providerConfigName", "worker-1")
    kinds = MADE[runtime] | ({"Ingress"} if spec.get("ingressHost") else set())
    return {f"{cluster}/{spec['targetNamespace']}/{kind}" for kind in kinds}


async def perform(stage: FaultyStage, act: str, runtime: Runtime) -> None:
    """Make the change and wait until it has led where it should, and nobody writes any more."""
    match act:
        case "make":
            metadata = {"name": "model", "namespace": SPACE}
            kind = {"apiVersion": "inference.devopstoolkit.ai/v1alpha1", "kind": "LLMInference"}
            await stage.hub.apply(
                {**kind, "metadata": metadata, "spec": {"model": "a/b", "runtime": runtime, **ACTS[act]}}
            )
        case "delete":
            await stage.hub.delete("LLMInference", "model", SPACE)
        case _:
            await stage.hub.patch("LLMInference", "model", SPACE, spec=ACTS[act])
    ends = wanted(act, runtime)

    async def over() -> bool:
        await stage.revived()
        return await is_settled(stage, ends)

    while True:
        await until(f"{act} of {runtime} to lead to {sorted(ends)}", over, 120)
        await stage.quiet(f"after {act}")
        if not await stage.revived() and await is_settled(stage, ends):
            return


async def is_settled(stage: FaultyStage, ends: set[str]) -> bool:
    """Whether that is all there is, and the object knows of it and of nothing else."""
    inference = await stage.hub.get("LLMInference", "model", SPACE)
    clusters = {one.split("/")[0] for one in ends} - {"hub"}
    known = inference.get("status", {}).get("locations", []) if inference else []
    told = condition(inference or {}, "OldCopiesRemoved").get("status", "True")
    settled = (inference is None) == (not ends) and {one["name"] for one in known} == clusters and told == "True"
    return settled and len(known) == len(clusters) and await found(stage) == ends


async def found(stage: FaultyStage) -> set[str]:
    """All that was made of it, anywhere."""
    there = {
        f"{name}/{place}/{kind}"
        for name, worker in stage.workers.items()
        for place in PLACES
        for kind in (*set().union(*MADE.values()), "Ingress")
        for _ in await worker.list(kind, place)
    }
    here = [kind for kind in ("ModelDeployment", "ModelService") for _ in await stage.hub.list(kind, SPACE)]
    return there | {f"hub/{SPACE}/{kind}" for kind in here}


async def serves_runtimes(worker: Cluster) -> bool:
    """Whether the kind that was just defined can be listed: at first its storage is made, and all are told to wait."""
    try:
        await worker.list("VLLMRuntime", PLACES[0])
    except ApiError:
        return False
    return True


@pytest.fixture(scope="module")
async def let_in(stage: FaultyStage) -> AsyncGenerator[None]:
    """Two namespaces on each cluster that take it."""
    await stage.reset()
    await stage.revived()
    await stage.hub.apply(namespace(SPACE))
    grants = [{"namespace": SPACE, "targetNamespaces": list(PLACES), "ingressHosts": ["a.example.com"]}]
    for name in WORKERS:
        stage.fleet.kubectl(name, "apply", "-f-", documents=json.dumps(DEFINITION))
        await stage.workers[name].apply(*map(namespace, PLACES))
        await stage.hub.patch("InferenceCluster", name, spec={"llmInferences": grants})
        await until(f"{name} to serve VLLMRuntimes", partial(serves_runtimes, stage.workers[name]))
    yield
    await stage.reset()
    await stage.revived()
    await stage.hub.delete("LLMInference", "model", SPACE)
    await stage.hub.gone("LLMInference", "model", SPACE)
    for name in WORKERS:
        await stage.hub.patch("InferenceCluster", name, spec={"llmInferences": None})
        for place in PLACES:
            await stage.workers[name].delete("Namespace", place)


@pytest.fixture(scope="module")
async def faultless(stage: FaultyStage, let_in: None) -> Faultless:
    """How many writes each act takes on each cluster when nothing breaks; found out once for each runtime."""
    del let_in  # it comes first
    known = dict[Runtime, Calls]()

    async def counted(runtime: Runtime) -> Calls:
        if runtime not in known:
            calls = dict[str, Mapping[str, int]]()
            for act in ACTS:
                await stage.reset()
                await perform(stage, act, runtime)
                calls[act] = (await stage.writes()).calls
            known[runtime] = calls
        return known[runtime]

    return counted


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("first", range(1, STRIDE + 1))
async def test_a_life_with_faults_leads_to_the_same_places(
    stage: FaultyStage, faultless: Faultless, first: int, fault: Fault, runtime: Runtime
) -> None:
    strikes = Counter[str]()
    for act, calls in (await faultless(runtime)).items():
        at = {name: set(range(first, int(MORE * count) + 1, STRIDE)) for name, count in calls.items()}
        strikes[act] += await struck(stage, act, runtime, at, fault)
    assert strikes.total(), "nothing was struck at all"


@pytest.mark.parametrize(
    "runtime", ["VLLMRuntime", pytest.param("Deployment", marks=(pytest.mark.fleet, pytest.mark.slow))]
)
async def test_a_life_with_a_fault_in_every_act_leads_to_the_same_places(
    stage: FaultyStage, faultless: Faultless, runtime: Runtime
) -> None:
    chance = Random(f"{SEED} {runtime}")  # noqa: S311 - to be replayed
    strikes = 0
    for act, calls in (await faultless(runtime)).items():
        name, number = chance.choice([(name, each + 1) for name, count in calls.items() for each in range(count)])
        strikes += await struck(stage, act, runtime, {name: {number}}, chance.choice(FAULTS))
    assert strikes, "nothing was struck at all"


async def struck(stage: FaultyStage, act: str, runtime: Runtime, at: Crashes, fault: Fault) -> int:
    """Perform an act with such a fault at these calls; answers how often it struck."""
    await stage.reset()
    if fault == "lost":
        for name, numbers in at.items():
            for number in numbers:
                await stage.proxies[name].add(Rule(Match(mutating_call=number), LoseReply(), times=1))
    else:
        await stage.crash(at, fault)
    try:
        await perform(stage, act, runtime)
    except AssertionError as error:
        there = await found(stage)
        raise AssertionError(f"{fault} at {dict(at)} of {act}: {error}; there is {sorted(there)}") from None
    return stage.crashes if fault != "lost" else await stage.struck()
