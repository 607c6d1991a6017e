"""Objects for tests, by the one thing that a test cares about: `deployment(replicas=2)`, `cluster("a", nodes=4)`.

What is not said is the default of the worked cases in the specification: a deployment `my-model` in `ml-team` with one
engine that asks for one GPU of 141Gi, and Ready clusters with one pool `default` of two nodes with one such GPU.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kubeloop.condition_types import Ready
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReplica, ModelReplicaStatus
from modelplane_operator.api.placement import EnginePlacement, Placement
from modelplane_operator.scheduling.load import load_of
from modelplane_operator.scheduling.placement import Replica, ReplicaOwner, reserved_nodes

Manifest = dict[str, Any]

NAMESPACE = "ml-team"
MODEL = "my-model"
UID = "uid-of-my-model"
OWNER = ReplicaOwner(NAMESPACE, MODEL, UID)
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

GPU = "gpu.nvidia.com"
NIC = "nic.nvidia.com"
TEMPLATE: Manifest = {"spec": {"containers": [{"name": "engine", "image": "vllm"}]}}


def memory(at_least: str) -> str:
    """A selector for GPUs with so much memory."""
    return f'device.capacity["{GPU}"].memory.compareTo(quantity("{at_least}")) >= 0'


def below(limit: str) -> str:
    """A selector for GPUs with less memory."""
    return f'device.capacity["{GPU}"].memory.isLessThan(quantity("{limit}"))'


def link(kind: str) -> str:
    """A selector for network cards of one kind."""
    return f'device.driver == "{NIC}" && device.attributes["{NIC}"].linkType == "{kind}"'


M141, M200 = memory("141Gi"), memory("200Gi")
IB = link("infiniband")


# What clusters publish ------------------------------------------------------------------------------------------------


def gpu(size: str = "141Gi", count: int = 1, *, name: str = "gpu", claim: str = "DRA") -> Manifest:
    return {
        "name": name,
        "claim": claim,
        "driver": GPU,
        "deviceClassName": GPU,
        "count": count,
        "capacity": {"memory": {"value": size}},
    }


def synthetic(size: str, *, name: str = "synthetic") -> Manifest:
    """A GPU that guides placement and that nobody claims."""
    return gpu(size, name=name, claim="Synthetic")


def nic(kind: str) -> Manifest:
    return {
        "name": "nic",
        "claim": "Synthetic",
        "driver": NIC,
        "count": 1,
        "attributes": {"linkType": {"string": kind}},
    }


def pool(
    name: str = "default",
    *devices: Manifest,
    nodes: int | None = 2,
    fabric: tuple[str, int] | None = None,
    shared: bool = False,
    allocatable: Manifest | None = None,
) -> Manifest:
    """`fabric`: the value of its topologyKey that most of the nodes have, and how many. `shared`: by device."""
    largest = {"largestFabric": {"value": fabric[0], "nodes": fabric[1]}} if fabric else {}
    sharing = {"sharing": "Device"} if shared else {}
    amounts = {"allocatable": allocatable} if allocatable else {}
    return {"name": name, "nodes": nodes, "devices": list(devices or [gpu()]), **largest, **sharing, **amounts}


def cluster(
    name: str,
    *pools: Manifest,
    nodes: int = 2,
    ready: bool | None = True,
    since: datetime = EPOCH,
    address: str | None = "",
    taints: Sequence[Manifest] = (),
    terminating: bool = False,
    isolation: Manifest | None = None,
    forced: bool = False,
    storage: bool = True,
    message: str = "",
    unknown: Sequence[tuple[str, str]] = (),
    apis: Sequence[str] = (),
    observed: Sequence[Manifest] = (),
    **labelled: str,
) -> InferenceCluster:
    """A cluster; without pools, with one pool `default` of so many nodes. `ready=None`: it does not say.

    `message`: of its Ready condition; `unknown`: pools of which it publishes nothing, and their classes; `apis`: what
    it is known to serve; `observed`: the nodes of its pools.
    """
    address = f"10.0.0.{ord(name[0]) - 96}" if address == "" else address
    reason = "Available" if ready else "Creating"
    condition = {"type": "Ready", "status": str(ready), "reason": reason, "message": message}
    return InferenceCluster.parse(
        {
            "metadata": {
                "name": name,
                "labels": labelled,
                "annotations": {labels.FORCE_DRAIN: "true"} if forced else {},
                **({"deletionTimestamp": EPOCH.isoformat()} if terminating else {}),
            },
            "spec": {
                "cluster": {"source": "Existing"},
                "taints": list(taints),
                "nodePools": [{"name": name, "className": named} for name, named in unknown],
                **({"isolation": isolation} if isolation else {}),
            },
            "status": {
                "gpuPools": list(pools or [pool(nodes=nodes)]),
                "conditions": [] if ready is None else [{**condition, "lastTransitionTime": since.isoformat()}],
                **({"gateway": {"address": address}} if address else {}),
                **({"cache": {"storageClassName": "fast"}} if storage else {}),
                **({"observed": {"apis": list(apis), "pools": list(observed)}} if apis or observed else {}),
            },
        }
    )


def taint(key: str, value: str | None = None, *, effect: str = "NoSchedule") -> Manifest:
    return {"key": key, "effect": effect, **({"value": value} if value is not None else {})}


# What deployments ask for ---------------------------------------------------------------------------------------------


def request(*selectors: str, name: str = "gpu", count: int = 1) -> Manifest:
    return {"name": name, "count": count, "selectors": [{"cel": text} for text in selectors or (M141,)]}


def member(*requests: Manifest, role: str = "Standalone", nodes: int | None = None) -> Manifest:
    return {
        "role": role,
        "template": TEMPLATE,
        **({"nodeSelector": {"devices": list(requests)}} if requests else {}),
        **({"worker": {"nodes": nodes}} if nodes is not None else {}),
    }


def engine(*requests: Manifest, name: str = "main", copies: int = 1) -> Manifest:
    return {"name": name, "copies": copies, "members": [member(*(requests or [request()]))]}


def with_resources(engine: Manifest, resources: Manifest) -> Manifest:
    """An engine whose containers have these resources."""
    template = {"spec": {"containers": [{**TEMPLATE["spec"]["containers"][0], "resources": resources}]}}
    return {**engine, "members": [{**member, "template": template} for member in engine["members"]]}


def gang(
    leader: Sequence[Manifest] = (),
    worker: Sequence[Manifest] = (),
    *,
    nodes: int = 1,
    name: str = "main",
    copies: int = 1,
) -> Manifest:
    """A leader and so many workers, each with its requests."""
    members = [member(*leader, role="Leader"), member(*worker, role="Worker", nodes=nodes)]
    return {"name": name, "copies": copies, "members": members}


def pipeline(stages: int) -> Manifest:
    """An engine over so many nodes."""
    return engine() if stages == 1 else gang([request()], [request()], nodes=stages - 1)


def toleration(key: str = "", *, value: str | None = None, effect: str | None = None) -> Manifest:
    """Without a value, for any value of the key; without a key, for everything."""
    how: Manifest = {"operator": "Exists"} if value is None else {"operator": "Equal", "value": value}
    return {**how, **({"key": key} if key else {}), **({"effect": effect} if effect else {})}


def deployment(
    *engines: Manifest,
    replicas: int = 1,
    name: str = MODEL,
    namespace: str = NAMESPACE,
    uid: str = UID,
    labels: Mapping[str, str] | None = None,
    tolerations: Sequence[Manifest] = (),
    cache: str | None = None,
    failover: Manifest | None = None,
) -> ModelDeployment:
    spec: Manifest = {"engines": list(engines or [engine()]), "tolerations": list(tolerations)}
    if labels is not None:
        spec["clusterSelector"] = {"matchLabels": dict(labels)}
    if cache is not None:
        spec["modelCacheRef"] = {"name": cache}
    if failover is not None:
        spec["failover"] = failover
    return ModelDeployment.parse(
        {
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "spec": {"replicas": replicas, "template": {"spec": spec}},
        }
    )


def model_cache(name: str = "qwen", **labelled: str) -> ModelCache:
    source = {"source": "HuggingFace", "huggingFace": {"repo": "Qwen/Qwen3-8B", "sizeGiB": 20}}
    return ModelCache.parse(
        {
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {**source, **({"clusterSelector": {"matchLabels": labelled}} if labelled else {})},
        }
    )


# What runs ------------------------------------------------------------------------------------------------------------


def replica(
    on: str,
    *,
    of: str = MODEL,
    index: int | str = 0,
    pool: str = "default",
    stages: int = 1,
    copies: int = 1,
    claims: Sequence[bool] = (True, True),
    engines: Sequence[Manifest] | None = None,
    name: str | None = None,
    namespace: str = NAMESPACE,
    uid: str | None = UID,
    ready: bool | None = None,
    terminating: bool = False,
    held: str = "",
) -> ModelReplica:
    """A replica as we would have written it: one claim for a GPU per member that has claims."""
    roles = ["Standalone"] if stages == 1 else ["Leader", "Worker"]
    members = [
        {
            "role": role,
            "nodePoolName": pool,
            "template": TEMPLATE,
            **({"deviceRequests": [claim()]} if claiming else {}),
            **({"worker": {"nodes": stages - 1}} if role == "Worker" else {}),
        }
        for role, claiming in zip(roles, claims, strict=False)
    ]
    condition = {"type": "Ready", "status": str(ready), "reason": "Available", "lastTransitionTime": EPOCH.isoformat()}
    return ModelReplica.parse(
        {
            "metadata": {
                "name": name or f"{of}-{on}-{index}",
                "namespace": namespace,
                "labels": {
                    labels.DEPLOYMENT: of,
                    labels.CLUSTER: on,
                    labels.REPLICA_INDEX: str(index),
                    **({labels.OWNER_UID: uid} if uid is not None else {}),
                },
                "annotations": {labels.HELD_NODES: held} if held else {},
                **({"deletionTimestamp": EPOCH.isoformat()} if terminating else {}),
            },
            "spec": {
                "clusterName": on,
                "engines": list(engines or [{"name": "main", "copies": copies, "members": members}]),
            },
            "status": {"conditions": [] if ready is None else [condition]},
        }
    )


def claim(*selectors: str, name: str = "gpu", count: int = 1) -> Manifest:
    return {
        "name": name,
        "deviceClassName": GPU,
        "count": count,
        "selectors": [{"cel": text} for text in selectors or (M141,)],
    }


def written(
    deployment: ModelDeployment,
    placement: Placement,
    *,
    before: Replica | None = None,
    ready: bool | None = None,
    shared: Container[str] = (),
) -> ModelReplica:
    """The replica that a placement of the deployment becomes, while its pods of before are not gone.

    `shared`: pools of its cluster that are shared by device.
    """
    asked = {engine.name: engine.to_manifest() for engine in deployment.replica.engines}
    namespace, name = deployment.key
    return replica(
        placement.cluster,
        of=name,
        index=placement.index,
        engines=[_written_engine(asked[engine.name], engine) for engine in placement.engines],
        name=names.replica(namespace, name, placement.cluster, placement.index),
        namespace=namespace,
        uid=deployment.metadata.uid,
        ready=ready,
        held=reserved_nodes(before.load, load_of(placement.engines), shared) if before else "",
    )


def answering(replica: ModelReplica) -> ModelReplica:
    """The replica once it is Ready."""
    return replica.model_copy(update={"status": ModelReplicaStatus(conditions=(Ready.AVAILABLE.condition(EPOCH),))})


def unschedulable(replica: ModelReplica) -> ModelReplica:
    """The replica once one of its pods has found no node."""
    return replica.model_copy(update={"status": ModelReplicaStatus(unschedulable_since=EPOCH)})


def terminating(replica: ModelReplica) -> ModelReplica:
    """The replica once somebody has deleted it, and before it is gone."""
    metadata = replica.metadata.model_copy(update={"deletion_timestamp": EPOCH})
    return replica.model_copy(update={"metadata": metadata})


def _written_engine(asked: Manifest, engine: EnginePlacement) -> Manifest:
    members: list[Manifest] = []
    for member, placed in zip(asked["members"], engine.members, strict=True):
        claims = [claim(*found.selectors, name=found.name, count=found.count) for found in placed.claims]
        members.append(
            {
                "role": placed.role,
                "nodePoolName": placed.pool,
                "template": TEMPLATE,
                **({"deviceRequests": claims} if claims else {}),
                **({"worker": member["worker"]} if "worker" in member else {}),
            }
        )
    return {"name": engine.name, "copies": asked.get("copies", 1), "members": members}
