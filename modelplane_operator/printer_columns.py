"""What a line of `kubectl get` says of an object: made of the rest of it, so that it changes only with that.

Ages and what counts up by itself are left out, and messages, which the conditions have: one word of reason says where
to look.
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
from kubeloop.words import counted, sentence
from modelplane_operator.api import ModelDeployment, ModelReplica
from modelplane_operator.models.replica.render.arguments import model_of
from modelplane_operator.scheduling.placement import charges, read

SHOWN = 128  # characters of a cell


def glance(manifest: Manifest, status: Manifest) -> Manifest:
    """A status with the fields that `kubectl get` prints, for an object as it was observed."""
    if manifest["kind"] not in _FACTS:
        return status
    try:
        return _told(manifest["kind"], manifest, status)
    except (ValidationError, KeyError, TypeError, AttributeError):
        return {**status, "summary": "The object cannot be read: see Synced"}


def _told(kind: str, manifest: Manifest, status: Manifest) -> Manifest:
    cells = {**status, **_CELLS.get(kind, _none)(manifest, status)}
    told = {name: value for name, value in cells.items() if value is not None}
    return {**told, "summary": _sentence(manifest, told)[:SUMMARY_LENGTH]}


def _sentence(manifest: Manifest, status: Manifest) -> str:
    facts = _FACTS[manifest["kind"]](manifest, status)
    conditions = {one["type"]: one for one in status["conditions"]}
    ready, synced = conditions.get(Ready.__name__, {}), conditions.get(Synced.__name__, {})
    troubles = [one["reason"] for one in (synced, ready) if one and one["status"] != "True"]
    if ready.get("reason") == "Degraded":
        troubles.append("Degraded")
    return sentence(f"{facts}: {', '.join(dict.fromkeys(troubles))}" if troubles else facts)


# Cells ----------------------------------------------------------------------------------------------------


def _none(_: Manifest, __: Manifest) -> Mapping[str, Any]:
    return {}


def _of_deployment(manifest: Manifest, _: Manifest) -> Mapping[str, Any]:
    spec = ModelDeployment.parse(manifest).replica
    templates = (member.template.spec for engine in spec.engines for member in engine.members)
    named = (model_of(container) for one in templates if one for container in one.containers)
    cache = f"cache {spec.model_cache_ref.name}" if spec.model_cache_ref else ""
    return {"model": (next(filter(None, named), "") or cache)[:SHOWN] or None}


def _of_replica(manifest: Manifest, _: Manifest) -> Mapping[str, Any]:
    held = charges(read(ModelReplica.parse(manifest)).engines)
    return {"nodes": sum(held.values()), "pool": ",".join(sorted(held))[:SHOWN]}


def _of_cluster(manifest: Manifest, status: Manifest) -> Mapping[str, Any]:
    pools, taints = entries(manifest, "spec", "nodePools"), entries(manifest, "spec", "taints")
    told = ",".join(f"{one['key']}:{one['effect']}" for one in taints)
    return {"pools": len(pools), "nodes": _nodes(status), "taints": told[:SHOWN] or None}


def _nodes(status: Section) -> str | None:
    seen = section(status, "observed")
    pools = entries(seen, "pools")
    return f"{sum(one['usable'] for one in pools)}/{sum(one['nodes'] for one in pools)}" if seen else None


_CELLS: Mapping[str, Callable[[Manifest, Manifest], Mapping[str, Any]]] = {
    "ModelDeployment": _of_deployment,
    "ModelReplica": _of_replica,
    "InferenceCluster": _of_cluster,
}


# Sentences ----------------------------------------------------------------------------------------------------


def _deployment(manifest: Manifest, status: Manifest) -> str:
    ready = section(status, "replicas").get("ready") or 0
    return f"{ready} of {counted(manifest['spec']['replicas'], 'replica')} ready"


def _replica(manifest: Manifest, status: Manifest) -> str:
    return f"{counted(status['nodes'], 'node')} of pool {status['pool']} on cluster {manifest['spec']['clusterName']}"


def _cluster(_: Manifest, status: Manifest) -> str:
    usable, _, there = status.get("nodes", "").partition("/")
    nodes = f"{usable} of {counted(int(there), 'node')} usable" if there else "nodes not seen"
    return f"{nodes}, {counted(status.get('replicas') or 0, 'replica')} placed"


def _class(_: Manifest, status: Manifest) -> str:
    return f"{counted(status.get('nodes') or 0, 'node')} on {counted(status.get('clusters') or 0, 'cluster')}"


def _gateway(_: Manifest, status: Manifest) -> str:
    return f"Models are reached at {status['url']}" if status.get("url") else "No address yet"


def _endpoint(_: Manifest, status: Manifest) -> str:
    leads = section(status, "routing").get("url")
    return f"Requests go to {leads}" if leads else "No requests go there"


def _service(_: Manifest, status: Manifest) -> str:
    count = status.get("endpointCount") or 0
    if condition({"status": status}, Ready.__name__).is_true:
        return f"Requests go to {counted(count, 'endpoint')}"
    return f"{counted(count, 'endpoint') if count else 'No endpoint'} to send requests to"


def _stack(_: Manifest, status: Manifest) -> str:
    states = Counter(one["state"] for one in entries(status, "components"))
    return f"{states['Deployed']} of {counted(states.total(), 'chart')} deployed"


def _inference(manifest: Manifest, status: Manifest) -> str:
    """The model may be as long as the whole summary."""
    return f"{counted(status.get('replicas', 0), 'replica')} of {section(manifest, 'spec')['model'][:SHOWN]} running"


def _cloud(_: Manifest, status: Manifest) -> str:
    states = Counter(one["state"] for one in entries(status, "resources"))
    return f"{states['Ready']} of {counted(states.total(), 'resource')} ready"


_FACTS: Mapping[str, Callable[[Manifest, Manifest], str]] = {
    "ModelDeployment": _deployment,
    "ModelReplica": _replica,
    "InferenceCluster": _cluster,
    "InferenceClass": _class,
    "InferenceGateway": _gateway,
    "ModelEndpoint": _endpoint,
    "ModelService": _service,
    "ServingStack": _stack,
    "LLMInference": _inference,
    "EKSCluster": _cloud,
    "GKECluster": _cloud,
}
