"""The life of a model in six acts, each of which ends in a state that is compared with what it is without faults.

An act is a change that a user makes. It is over when the state of all clusters is the one that it should lead to and
nobody has written for a second. Since every act ends in the same state however it got there, a fault in each of the
six can be tried in one life, and one that fails is replayed by the act's name and the call's number.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import unified_diff
from typing import Any, cast

from localfleet.fleet import HUB
from tests.faults.stage import FaultyStage, Writes
from tests.integration.harness import OURS, Cluster, remote, said, until
from tests.integration.kinds import IMAGE, deployment, engine, namespace, pod, secret, service
from tests.support.manifests import Manifest

State = Mapping[str, str]
"""What every object says, by cluster, kind and name, without what two runs may differ in."""

SPACE = "crashes"  # the same in every life, so that names, and the hashes in them, are the same
KEY = "canary-cae1b2f3a94d"
CONVERGED_SECONDS = 180.0  # a deadline, not an expectation
HUB_KINDS = (*(kind for kind in OURS if kind != "InferenceClass"), "HTTPRoute", "Service", "EndpointSlice")
REMOTE_KINDS = ("Deployment", "HTTPRoute", "ResourceClaimTemplate", "Service", "ConfigMap", "Secret")
EXTRA_WRITES = 3  # of one object for each crash: what it is after a restart is told anew
LINES = 60  # of what a failure tells
VOLATILE = frozenset(
    {
        "uid",
        "latencyMs",
        "resourceVersion",
        "creationTimestamp",
        "managedFields",
        "generation",
        "lastTransitionTime",
        "clusterIP",
        "clusterIPs",
        "deployment.kubernetes.io/revision",
        "modelplane.ai/applied",  # a hash of what is written, the owner's uid included
    }
)
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)")
FOREIGN = ("kube-root-ca.crt", "istio-ca-root-cert")  # Kubernetes puts it into every namespace


# What a user does -----------------------------------------------------------------------------------------------------


def model(replicas: int = 1, image: str = IMAGE) -> Manifest:
    """A deployment with a key that its engines need."""
    template = pod()
    template["spec"]["containers"][0] |= {
        "image": image,
        "env": [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "key", "key": "key"}}}],
    }
    return deployment(SPACE, replicas=replicas, engines=[engine(template=template)])


async def deploy(stage: FaultyStage) -> None:
    await stage.hub.apply(secret(SPACE, "key", key=KEY), model(), service(SPACE))


async def scale(stage: FaultyStage) -> None:
    await stage.hub.patch("ModelDeployment", "model", SPACE, spec={"replicas": 2})


async def change_template(stage: FaultyStage) -> None:
    await stage.hub.apply(model(replicas=2, image=f"{IMAGE}-next"))


async def drain(stage: FaultyStage) -> None:
    taint = {"key": "maintenance", "effect": "NoExecute"}
    await stage.hub.patch("InferenceCluster", "worker-1", spec={"taints": [taint]})


async def change_service(stage: FaultyStage) -> None:
    await stage.hub.patch("InferenceCluster", "worker-1", spec={"taints": []})
    index = {"modelplane.ai/replica-index": "0"}
    await stage.hub.apply(service(SPACE, "model", (3, index), (1, {"model": "model"})))


async def delete(stage: FaultyStage) -> None:
    for kind, name in (("ModelService", "model"), ("ModelDeployment", "model"), ("Secret", "key")):
        await stage.hub.delete(kind, name, SPACE)


ACTS: Mapping[str, Callable[[FaultyStage], Awaitable[None]]] = {
    each.__name__: each for each in (deploy, scale, change_template, drain, change_service, delete)
}


# What it leads to -----------------------------------------------------------------------------------------------------


async def ended(stage: FaultyStage, act: str) -> bool:
    """Whether an act has led where it should, as a user would judge; for lives that have nothing to compare with."""
    if act == "delete":
        gone = [not await stage.hub.list(kind, SPACE) for kind in ("ModelReplica", "ModelEndpoint", "HTTPRoute")]
        spaces = [await worker.get("Namespace", remote(SPACE)) for worker in stage.workers.values()]
        return all(gone) and not any(spaces)
    replicas = await stage.hub.list("ModelReplica", SPACE)
    everything = [
        *replicas,
        *[await stage.hub.get(kind, "model", SPACE) or {} for kind in ("ModelDeployment", "ModelService")],
    ]
    places = {one["spec"]["clusterName"] for one in replicas}
    images = {one["spec"]["engines"][0]["members"][0]["template"]["spec"]["containers"][0]["image"] for one in replicas}
    return (
        all(is_ready(one) for one in everything)
        and len(replicas) == (1 if act == "deploy" else 2)
        and (act != "drain" or places == {"worker-2"})
        and images == {IMAGE if act in {"deploy", "scale"} else f"{IMAGE}-next"}
    )


def is_ready(manifest: Manifest) -> bool:
    generation = manifest.get("metadata", {}).get("generation")
    conditions = manifest.get("status", {}).get("conditions", [])
    current = all(one.get("observedGeneration") == generation for one in conditions)
    return current and any((one["type"], one["status"]) == ("Ready", "True") for one in conditions)


async def state(stage: FaultyStage) -> State:
    """All that there is of the model, on the hub and on the workload clusters."""
    async with asyncio.TaskGroup() as group:
        parts = [
            group.create_task(_part(cluster, namespace, list_))
            for cluster, namespace, list_ in (
                (stage.hub, SPACE, HUB_KINDS),
                *((worker, remote(SPACE), REMOTE_KINDS) for worker in stage.workers.values()),
            )
        ]
        pods = group.create_task(_pods(stage))
    found = {name: text for part in parts for name, text in part.result().items()}
    for name, worker in stage.workers.items():
        if await worker.get("Namespace", remote(SPACE)):
            found[f"{name} Namespace"] = "there"
    return {**found, "pods": pods.result()}


async def emptied(stage: FaultyStage) -> bool:
    """Whether no cluster still deletes a namespace: the next act would wait for it, and write of that, or would not."""
    spaces = [await worker.get("Namespace", remote(SPACE)) for worker in stage.workers.values()]
    return not any(space["metadata"].get("deletionTimestamp") for space in spaces if space)


async def _part(cluster: Cluster, namespace: str, of: tuple[str, ...]) -> State:
    """What one cluster has; of the cluster-scoped kinds all."""
    found = dict[str, str]()
    for kind in of:
        for one in await cluster.list(kind, "" if kind.startswith("Inference") else namespace):
            name = one["metadata"]["name"]
            if name not in FOREIGN:
                found[f"{cluster.name} {kind} {name}"] = plain(kind, one)
    return found


async def _pods(stage: FaultyStage) -> str:
    """Where how many pods are ready; their names are made up by their workloads."""
    found = Counter[str]()
    for place, one in (await stage.pods(SPACE)).items():
        ready = any(
            each["type"] == "Ready" and each["status"] == "True" for each in one["status"].get("conditions", [])
        )
        found[f"{place.partition('/')[0]} {'ready' if ready else 'not ready'}"] += 1
    return json.dumps(found, sort_keys=True)


def plain(kind: str, manifest: Manifest) -> str:
    """What an object says, in an order of its own and without what comes by the clock or by chance."""
    if kind == "Deployment":
        manifest = {**manifest, "status": {"ready": manifest.get("status", {}).get("readyReplicas", 0)}}
    generation = manifest["metadata"].get("generation")
    text = json.dumps(_plain(manifest, generation), indent=1, sort_keys=True)
    return TIME.sub("TIME", UID.sub("UID", text))


def _plain(value: Any, generation: int | None) -> Any:
    match value:
        case dict():
            found = {
                key: _plain(one, generation)
                for key, one in cast(dict[str, Any], value).items()
                if key not in VOLATILE and key != "observedGeneration"
            }
            if "observedGeneration" in value and generation is not None:
                found["observed"] = "now" if value["observedGeneration"] == generation else "before"
            return found
        case list():
            made = [_plain(one, generation) for one in cast(list[Any], value)]
            named = all(isinstance(one, dict) and "type" in one for one in made)
            return sorted(made, key=lambda one: one["type"]) if named else made
        case _:
            return value


def difference(wanted: State, found: State) -> str:
    """What is not as it should be, line by line."""
    lines = list(_difference(wanted, found))
    more = [f"... and {len(lines) - LINES} more lines"] if len(lines) > LINES else []
    return "\n".join([*lines[:LINES], *more])


def _difference(wanted: State, found: State) -> Iterator[str]:
    for name in sorted(wanted.keys() | found.keys()):
        before, after = wanted.get(name, ""), found.get(name, "")
        if before != after:
            yield f"{name}: {'changed' if before and after else 'too much' if after else 'missing'}"
            if before and after:
                told = unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
                yield from (line for line in told if not line.startswith(("---", "+++", "@@")))


# Living it ------------------------------------------------------------------------------------------------------------


async def perform(
    stage: FaultyStage, act: str, wanted: State | None = None, *, seconds: float = CONVERGED_SECONDS
) -> State:
    """Make the change and wait until it has led where it should: to `wanted`, or if that is not known, to its end."""
    await ACTS[act](stage)
    last = dict[str, State]()

    async def over() -> bool:
        await stage.revived()
        if wanted is None:
            return await ended(stage, act) and await emptied(stage)
        last["found"] = await state(stage)
        return last["found"] == wanted and await emptied(stage)

    try:
        while True:
            await until(f"{act} to lead to its end", over, seconds)
            await stage.quiet(f"after {act}")
            if not await stage.revived() and (found := await state(stage)) == (wanted or found):
                return found
    except AssertionError as error:
        raise AssertionError(f"{error}\n{await _story(stage, wanted, last)}") from None


async def _story(stage: FaultyStage, wanted: State | None, last: Mapping[str, State]) -> str:
    if wanted is not None:
        return difference(wanted, last.get("found", {}))
    told = [f"{one['kind']} {said(one)}" for kind in OURS for one in await stage.hub.list(kind, SPACE)]
    return "\n".join(told)


async def begin(stage: FaultyStage) -> None:
    """Have nothing of any model anywhere, whatever came before: what still ends on a node has its place."""
    await stage.reset()
    await stage.revived()
    await until("what others have left to be gone", lambda: vacant(stage))
    await stage.hub.apply(namespace(SPACE))
    await stage.hub.patch("InferenceCluster", "worker-1", spec={"taints": []})
    await perform(stage, "delete")


async def vacant(stage: FaultyStage) -> bool:
    """Whether no model has a place on a cluster, nor a pod that still ends, but for the one of a life."""
    replicas = await stage.hub.list("ModelReplica")
    claims = [one for worker in stage.workers.values() for one in await worker.list("ResourceClaim")]
    return {one["metadata"]["namespace"] for one in (*replicas, *claims)} <= {SPACE, remote(SPACE)}


@dataclass(frozen=True, slots=True)
class Act:
    """What an act has led to, and what was written for it."""

    state: State
    writes: Writes


Life = Mapping[str, Act]


async def lived(stage: FaultyStage) -> Life:
    """A life without faults."""
    life = dict[str, Act]()
    for act in ACTS:
        await stage.reset()
        life[act] = Act(await perform(stage, act), await stage.writes())
    return life


def unlike(clean: Writes, found: Writes, crashes: int) -> Iterator[str]:
    """What was made twice, and what was written more often than crashes explain."""
    yield from twice(clean, found)
    for target, count in found.effects.items():
        most = clean.effects[target] + EXTRA_WRITES * (1 + crashes)
        if count > most:
            yield f"{target} was written {count} times, at most {most} times is what {crashes} crashes explain"


IN_ROTATION = ("modelendpoints", "services", "endpointslices")


def twice(clean: Writes, found: Writes, *, lagging: bool = False) -> Iterator[str]:
    """What was made more often than without faults, or than once.

    An endpoint is withdrawn while its replica is changed in place, and is then made again, with the Service and the
    slice that it needs: so it is in a life without faults, too. Nothing else is a reason: no engine of a life ceases to
    answer by itself, and a replica that is to be moved is never taken back into rotation.

    `lagging`: watches lag, each by another time. What they show together may never have been so: a workload that is
    ready, say, with a pod that is ending. An endpoint that follows them is made as often as that changes.
    """
    for target, count in found.creates.items():
        if lagging and target.cluster == HUB and target.resource in IN_ROTATION:
            continue
        if count > max(clean.creates[target], 1):
            yield f"I2: {target} was made {count} times, without faults {clean.creates[target]} times"
