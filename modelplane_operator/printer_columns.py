"""Compute the status fields that `kubectl get` prints, from the rest of the object.

Ages and counters are left out, so that the fields only change with the object. Messages stay in the conditions; a
reason points to them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from kubeloop.condition_types import Ready, Synced
from kubeloop.conditions import condition
from kubeloop.objects import Manifest, Section, entries, section
from kubeloop.resource import SUMMARY_LENGTH
from kubeloop.words import count_of, sentence
from modelplane_operator.api import ModelDeployment, ModelReplica
from modelplane_operator.clouds.render import INFRASTRUCTURE
from modelplane_operator.models.replica.render.arguments import model_of
from modelplane_operator.scheduling.placement import charges, read

MAX_CELL = 128  # maximum length of a cell


def add_printer_columns(manifest: Manifest, status: Manifest) -> Manifest:
    """Return the status with the fields that `kubectl get` prints, for an object as it was observed."""
    if manifest["kind"] not in _FACTS:
        return status
    try:
        return _add_cells(manifest["kind"], manifest, status)
    except (ValidationError, KeyError, TypeError, AttributeError):
        return {**status, "summary": "The object cannot be read: see Synced"}


def _add_cells(kind: str, manifest: Manifest, status: Manifest) -> Manifest:
    """Return the status with its cells and its summary. Raise for malformed objects."""
    cells = {**status, **(_CELLS[kind](manifest, status) if kind in _CELLS else {})}
    present = {name: value for name, value in cells.items() if value is not None}
    return {**present, "summary": _summarize(manifest, present)[:SUMMARY_LENGTH]}


def _summarize(manifest: Manifest, status: Manifest) -> str:
    """Return the summary: the facts of the kind, and the reasons of conditions that are not True."""
    facts = _FACTS[manifest["kind"]](manifest, status)
    conditions = {entry["type"]: entry for entry in status["conditions"]}
    ready, synced = conditions.get(Ready.__name__, {}), conditions.get(Synced.__name__, {})
    problems = [entry["reason"] for entry in (synced, ready) if entry and entry["status"] != "True"]
    if ready.get("reason") == "Degraded":
        problems.append("Degraded")
    return sentence(f"{facts}: {', '.join(dict.fromkeys(problems))}" if problems else facts)


# Cells ----------------------------------------------------------------------------------------------------


def _deployment_cells(manifest: Manifest, _: Manifest) -> Mapping[str, Any]:
    """Return the model and, without one, the cache of a deployment."""
    spec = ModelDeployment.parse(manifest).replica
    templates = (member.template.spec for engine in spec.engines for member in engine.members)
    models = (model_of(container) for pod in templates if pod for container in pod.containers)
    cache = f"cache {spec.model_cache_ref.name}" if spec.model_cache_ref else ""
    return {"model": (next(filter(None, models), "") or cache)[:MAX_CELL] or None}


def _replica_cells(manifest: Manifest, _: Manifest) -> Mapping[str, Any]:
    """Return the nodes and the pools of a replica."""
    nodes_by_pool = charges(read(ModelReplica.parse(manifest)).engines)
    return {"nodes": sum(nodes_by_pool.values()), "pool": ",".join(sorted(nodes_by_pool))[:MAX_CELL]}


def _cluster_cells(manifest: Manifest, status: Manifest) -> Mapping[str, Any]:
    """Return the pools, nodes and taints of a cluster."""
    pools, taints = entries(manifest, "spec", "nodePools"), entries(manifest, "spec", "taints")
    taint_list = ",".join(f"{taint['key']}:{taint['effect']}" for taint in taints)
    return {"pools": len(pools), "nodes": _node_counts(manifest, status), "taints": taint_list[:MAX_CELL] or None}


def _node_counts(manifest: Manifest, status: Section) -> str | None:
    """Return the usable nodes and those that the pools should have; None before nodes were observed."""
    observed = section(status, "observed")
    if not observed:
        return None
    pools = {pool["name"]: pool for pool in entries(observed, "pools")}
    usable = desired = 0
    for pool in entries(manifest, "spec", "nodePools"):
        present = pools.get(pool["name"], {"nodes": 0, "usable": 0})
        is_scaled = pool.get("maxNodeCount") is not None
        count = max(pool.get("minNodeCount") or 0, present["nodes"]) if is_scaled else pool.get("nodeCount", 1)
        usable, desired = usable + min(present["usable"], count), desired + count
    return f"{usable}/{desired}"


_CELLS: Mapping[str, Callable[[Manifest, Manifest], Mapping[str, Any]]] = {
    "ModelDeployment": _deployment_cells,
    "ModelReplica": _replica_cells,
    "InferenceCluster": _cluster_cells,
}


# Sentences ----------------------------------------------------------------------------------------------------


def _describe_deployment(manifest: Manifest, status: Manifest) -> str:
    ready = section(status, "replicas").get("ready") or 0
    return f"{ready} of {count_of(manifest['spec']['replicas'], 'replica')} ready"


def _describe_replica(manifest: Manifest, status: Manifest) -> str:
    return f"{count_of(status['nodes'], 'node')} of pool {status['pool']} on cluster {manifest['spec']['clusterName']}"


def _describe_cluster(_: Manifest, status: Manifest) -> str:
    usable, _, total = status.get("nodes", "").partition("/")
    nodes = f"{usable} of {count_of(int(total), 'node')} usable" if total else "nodes not seen"
    return f"{nodes}, {count_of(status.get('replicas') or 0, 'replica')} placed"


def _describe_class(_: Manifest, status: Manifest) -> str:
    return f"{count_of(status.get('nodes') or 0, 'node')} on {count_of(status.get('clusters') or 0, 'cluster')}"


def _describe_gateway(_: Manifest, status: Manifest) -> str:
    return f"Models are reached at {status['url']}" if status.get("url") else "No address yet"


def _describe_endpoint(_: Manifest, status: Manifest) -> str:
    url = section(status, "routing").get("url")
    return f"Requests go to {url}" if url else "No requests go there"


def _describe_service(_: Manifest, status: Manifest) -> str:
    count = status.get("endpointCount") or 0
    if condition({"status": status}, Ready.__name__).is_true:
        return f"Requests go to {count_of(count, 'endpoint')}"
    return f"{count_of(count, 'endpoint') if count else 'No endpoint'} to send requests to"


def _describe_stack(_: Manifest, status: Manifest) -> str:
    states = Counter(component["state"] for component in entries(status, "components"))
    return f"{states['Deployed']} of {count_of(states.total(), 'chart')} deployed"


def _describe_inference(manifest: Manifest, status: Manifest) -> str:
    """Return the sentence for an LLMInference. The model's name is truncated: it could fill the whole summary."""
    return (
        f"{count_of(status.get('replicas', 0), 'replica')} of {section(manifest, 'spec')['model'][:MAX_CELL]} running"
    )


def _describe_cloud(_: Manifest, status: Manifest) -> str:
    states = Counter(resource["state"] for resource in entries(status, "resources"))
    return f"{states['Ready']} of {count_of(states.total(), 'resource')} ready"


_FACTS: Mapping[str, Callable[[Manifest, Manifest], str]] = {
    "ModelDeployment": _describe_deployment,
    "ModelReplica": _describe_replica,
    "InferenceCluster": _describe_cluster,
    "InferenceClass": _describe_class,
    "InferenceGateway": _describe_gateway,
    "ModelEndpoint": _describe_endpoint,
    "ModelService": _describe_service,
    "ServingStack": _describe_stack,
    "LLMInference": _describe_inference,
    **dict.fromkeys((recipe.kind.definition.kind for recipe in INFRASTRUCTURE.values()), _describe_cloud),
}
