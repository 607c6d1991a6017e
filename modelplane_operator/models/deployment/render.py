"""Render the objects of a ModelDeployment: a ModelReplica per placement, a ModelEndpoint per serving replica.

A ModelReplica has a copy of the template, so that a later change only reaches it by the rollout.
"""

from __future__ import annotations

from collections.abc import Sequence

from kubeloop.objects import Key, Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.engines import Serving
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import DeployedEngine, Member, ModelDeployment
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_replica import ModelReplica, OperatorSettings, PlacedEngine, PlacedMember
from modelplane_operator.api.placement import EnginePlacement, MemberPlacement, Placement
from modelplane_operator.api.shared import ModelCacheRef
from modelplane_operator.models.cache.cache_sources import claim_of, remote_source
from modelplane_operator.models.replica.render import REVISION, replica_prefix
from modelplane_operator.models.replica.render.allowed import (
    Disallowed,
    allow_serving,
    allowed,
    find_disallowed,
    find_disallowed_paths,
    isolation_of,
)
from modelplane_operator.models.replica.render.node_share import node_share
from modelplane_operator.owned import on_hub
from modelplane_operator.routing.gateway.render import url_of


def replica_key(deployment: ModelDeployment, placement: Placement) -> Key:
    """Return the key of the ModelReplica of a placement."""
    namespace, name = deployment.key
    return Key(namespace, names.replica(namespace, name, placement.cluster, placement.index))


def render_replica(
    deployment: ModelDeployment,
    placement: Placement,
    cluster: InferenceCluster | None,
    cache: ModelCache | None = None,
    operator: OperatorSettings | None = None,
    *,
    engines: Sequence[DeployedEngine | PlacedEngine] = (),
) -> Manifest:
    """Render the ModelReplica of a placement, from the current template and what its cluster allows.

    `operator` are the settings that the replica records; None records none. `engines` are those of the replica that it
    replaces, if they stay as they are.
    """
    template = deployment.replica
    engine_by_name = {engine.name: engine for engine in engines or template.engines}
    return {
        "apiVersion": ModelReplica.definition.api_version,
        "kind": ModelReplica.definition.kind,
        "metadata": {**_render_metadata(deployment, placement), "finalizers": [labels.FINALIZER]},
        "spec": {
            "clusterName": placement.cluster,
            **_render_cache_ref(template.model_cache_ref, placement, cache),
            **_render_serving(template.serving, cluster),
            "podRevision": REVISION,
            **({"operator": operator.to_manifest()} if operator else {}),
            "engines": [
                _render_engine(engine_by_name[placed_engine.name], placed_engine, cluster)
                for placed_engine in placement.engines
            ],
        },
    }


def _render_serving(serving: Serving | None, cluster: InferenceCluster | None) -> Manifest:
    """Render how the engines share the work. Defaults are left out, because existing replicas do not have them."""
    if serving is None:
        return {}
    permitted = allow_serving(serving, isolation_of(cluster))
    return {
        "serving": {"mode": permitted.mode, **permitted.model_dump(by_alias=True, mode="json", exclude_defaults=True)}
    }


def _render_cache_ref(ref: ModelCacheRef | None, placement: Placement, cache: ModelCache | None) -> Manifest:
    """Render the reference to the cache: its complete volume if that is not the default, its repository and size."""
    if ref is None:
        return {}
    cached = cache.on(placement.cluster) if cache else None
    claim = claim_of(cache) if cache else ""
    volume = claim or (cached and cached.volume)
    is_other = volume and cache and volume != names.cache_volume(*cache.key)
    return {
        "modelCacheRef": {
            "name": ref.name,
            **({"volume": volume} if is_other else {}),
            **(
                {"repo": cache.spec.hugging_face.repo}
                if cache and cache.spec.source == "HuggingFace" and cache.spec.hugging_face
                else {}
            ),
            **({"sizeGiB": remote_source(cache).size_gib} if cache and not claim else {}),
        }
    }


def not_allowed(deployment: ModelDeployment, cluster: InferenceCluster | None) -> Sequence[Disallowed]:
    """Return what the deployment requests for its pods and the cluster does not allow."""
    members = (member for engine in deployment.replica.engines for member in engine.members)
    isolation = isolation_of(cluster)
    of_pods = (item for member in members for item in find_disallowed(member.template, isolation))
    return sorted({*of_pods, *find_disallowed_paths(deployment.replica.serving, isolation)})


def render_endpoint(
    deployment: ModelDeployment, placement: Placement, gateway: str, server_name: str = "", port: int | None = None
) -> Manifest:
    """Render the ModelEndpoint of a serving replica, behind the gateway of its cluster.

    `server_name` is the name in the gateway's certificate, which is then reached by HTTPS. Without it, the gateway
    is reached by HTTP on `port`, or on 80.
    """
    prefix = replica_prefix(replica_key(deployment, placement))
    hostname = {"hostname": server_name} if server_name else {}
    address = url_of(gateway, "https") if server_name else f"{url_of(gateway)}{f':{port}' if port else ''}"
    return {
        "apiVersion": ModelEndpoint.definition.api_version,
        "kind": ModelEndpoint.definition.kind,
        # Created with its finalizer, because a write of its own would be needed otherwise.
        "metadata": {**_render_metadata(deployment, placement), "finalizers": [labels.FINALIZER]},
        "spec": {
            "url": f"{address}{prefix}v1",
            "rewritePath": prefix,
            **hostname,
        },
    }


def _render_metadata(deployment: ModelDeployment, placement: Placement) -> Manifest:
    """Render the metadata of a replica and its endpoint: the user's labels, overridden by the operator's."""
    template = deployment.spec.template
    users = template.metadata.labels if template and template.metadata else {}
    return on_hub(
        deployment,
        replica_key(deployment, placement).name,
        extra={
            **users,
            labels.DEPLOYMENT: deployment.key.name,
            labels.CLUSTER: placement.cluster,
            labels.REPLICA_INDEX: str(placement.index),
        },
    )


def _render_engine(
    engine: DeployedEngine | PlacedEngine, placement: EnginePlacement, cluster: InferenceCluster | None
) -> Manifest:
    """Render an engine of a replica. Fields with their default value are left out."""
    members = {member.role: member for member in engine.members}
    return {
        "name": engine.name,
        "copies": engine.copies,
        **({"phase": engine.phase} if engine.phase else {}),
        **({"type": engine.type} if engine.type else {}),
        **({"startupSeconds": engine.startup_seconds} if engine.startup_seconds else {}),
        **({"health": engine.health.to_manifest()} if engine.health else {}),
        **({"ranks": engine.ranks} if engine.ranks > 1 else {}),
        **({"workersServe": True} if engine.workers_serve else {}),
        "members": [_render_member(members[member.role], member, cluster) for member in placement.members],
    }


def _render_member(
    member: Member | PlacedMember, placement: MemberPlacement, cluster: InferenceCluster | None
) -> Manifest:
    """Render a member of an engine: its node pool, device requests, default requests and pod template."""
    share = node_share(placement.pool, placement.claims, cluster)
    pools = cluster.spec.node_pools if cluster else ()
    published = cluster.status.gpu_pools if cluster and cluster.status else ()
    is_shared = any(pool.name == placement.pool and pool.sharing == "Device" for pool in published)
    key = next((pool.fabric.topology_key for pool in pools if pool.name == placement.pool and pool.fabric), None)
    requests = [
        {
            "name": claim.name,
            "deviceClassName": claim.device_class,
            "count": claim.count,
            **({"selectors": [{"cel": cel} for cel in claim.selectors]} if claim.selectors else {}),
        }
        for claim in placement.claims
    ]
    return {
        "role": member.role,
        "nodePoolName": placement.pool,
        **({"deviceRequests": requests} if requests else {}),
        **({"worker": {"nodes": member.worker.nodes}} if member.worker else {}),
        **({"defaultRequests": share.to_manifest()} if share else {}),
        **({"sharing": "Device"} if is_shared else {}),
        **({"topologyKey": key} if key and member.role != "Standalone" else {}),
        "template": allowed(member.template, isolation_of(cluster)).to_manifest(),
    }
