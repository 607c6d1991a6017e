"""How requests reach a replica on its cluster: a route at the cluster's gateway, and what it leads to."""

from __future__ import annotations

from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.kube.objects import Key, Manifest
from modelplane_operator.rendering.model_replica.endpoint_picker import POOL_GROUP
from modelplane_operator.rendering.model_replica.part import SERVING_PORT
from modelplane_operator.rendering.model_replica.pods import PORT_NAME
from modelplane_operator.rendering.owned import on_cluster


def replica_prefix(replica: Key) -> str:
    """The path under which a cluster's gateway knows a replica."""
    return f"/{replica.namespace}/{replica.name}/"


def render_service(replica: ModelReplica) -> Manifest:
    """The pods that answer requests, on clusters without InferencePools."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": on_cluster(replica, replica.metadata.name),
        "spec": {
            "selector": {labels.SERVING: replica.metadata.name},
            "ports": [
                {
                    "name": PORT_NAME,
                    "port": SERVING_PORT,
                    "targetPort": SERVING_PORT,
                    "protocol": "TCP",
                    "appProtocol": "http",
                }
            ],
        },
    }


def render_route(replica: ModelReplica, *, pooled: bool) -> Manifest:
    """The HTTPRoute of a replica, to its InferencePool or to its Service."""
    name = replica.metadata.name
    backend: Manifest = (
        {"group": POOL_GROUP, "kind": "InferencePool", "name": names.inference_pool(name)}
        if pooled
        else {"group": "", "kind": "Service", "name": name, "port": SERVING_PORT}
    )
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": on_cluster(replica, name),
        "spec": {
            "parentRefs": [
                {
                    "group": "gateway.networking.k8s.io",
                    "kind": "Gateway",
                    "name": names.CLUSTER_GATEWAY,
                    "namespace": names.SYSTEM_NAMESPACE,
                }
            ],
            "rules": [
                {
                    "matches": [{"path": {"type": "PathPrefix", "value": replica_prefix(replica.key)}}],
                    "filters": [
                        {
                            "type": "URLRewrite",
                            "urlRewrite": {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}},
                        }
                    ],
                    "backendRefs": [backend],
                    "timeouts": {"request": "0s"},  # none: Envoy's 15 s would cut off long answers
                }
            ],
        },
    }
