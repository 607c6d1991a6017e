"""Render the path of requests to a replica on its cluster: a route at the cluster's gateway, and its Service."""

from __future__ import annotations

from typing import Final

from kubeloop.objects import Key, Manifest
from kubeloop.types import HTTP_ROUTE_FILTER
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.replica.render.allowed import open_paths
from modelplane_operator.models.replica.render.endpoint_picker import PICKED_RULE
from modelplane_operator.models.replica.render.part import ports
from modelplane_operator.models.replica.render.pods import PORT_NAME
from modelplane_operator.owned import on_cluster
from modelplane_operator.routing.service.hops import NO_REQUEST

BODILESS: Final = ("GET", "HEAD", "OPTIONS", "DELETE")
"""Methods whose requests bypass the picker, because it would wait for a body."""


def replica_prefix(replica: Key) -> str:
    """Return the path prefix of a replica at its cluster's gateway."""
    return f"/{replica.namespace}/{replica.name}/"


def render_service(replica: ModelReplica) -> Manifest:
    """Render the Service with the pods that serve requests which bypass the picker."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": on_cluster(replica, replica.metadata.name),
        "spec": {
            # Requests that bypass the picker must not reach an engine that only reads prompts.
            "selector": {
                labels.SERVING: replica.metadata.name,
                **({labels.PICKER_ROLE: "decode"} if replica.spec.is_split else {}),
            },
            "ports": [
                {
                    "name": f"{PORT_NAME}-{rank}" if rank else PORT_NAME,
                    "port": port,
                    "targetPort": port,
                    "protocol": "TCP",
                    "appProtocol": "http",
                }
                for rank, port in enumerate(ports(replica))
            ],
        },
    }


def render_path_filter(replica: ModelReplica) -> Manifest:
    """Render a filter that removes the replica's prefix from a path.

    A URLRewrite can do that only for a prefix match.
    """
    rewrite = {"pattern": f"^{_prefix_pattern(replica)}/(.*)$", "substitution": r"/\1"}
    return {
        "apiVersion": HTTP_ROUTE_FILTER.api_version,
        "kind": HTTP_ROUTE_FILTER.kind,
        "metadata": on_cluster(replica, replica.metadata.name),
        "spec": {"urlRewrite": {"path": {"type": "ReplaceRegexMatch", "replaceRegexMatch": rewrite}}},
    }


def render_route(replica: ModelReplica, *, has_picker: bool, picked: bool, filtered: bool) -> Manifest:
    """Render the HTTPRoute of a replica.

    `has_picker`: the replica has an endpoint picker. `picked`: the picker reads requests with a body. Others, such
    as websockets, bypass it, because it would wait for a body. `filtered`: only paths of model APIs are routed,
    which needs a kind of Envoy Gateway that a kubeconfig from before this version may not write.

    The rule for picked requests stays while no picker answers, with a match that no request meets: without it, the
    gateway's listener would change and close connections.
    """
    name = replica.metadata.name
    service: list[Manifest] = [{"group": "", "kind": "Service", "name": name, "port": port} for port in ports(replica)]
    if filtered:
        reference = {"group": HTTP_ROUTE_FILTER.group, "kind": HTTP_ROUTE_FILTER.kind, "name": name}
        rewrite: Manifest = {"type": "ExtensionRef", "extensionRef": reference}
        match: Manifest = {"path": {"type": "RegularExpression", "value": allowed_paths(replica)}}
    else:
        path = {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}
        rewrite = {"type": "URLRewrite", "urlRewrite": {"path": path}}
        match = {"path": {"type": "PathPrefix", "value": replica_prefix(replica.key)}}
    # A body with another method than POST would bypass the picker and reach the engines that read prompts.
    matches = [{**match, "method": method} for method in BODILESS] if picked else [match]
    match_groups = (
        [matches] if filtered else [[each] for each in matches]
    )  # a prefix is replaced only if it is the rule's only match
    never_matches = {} if picked else {"headers": [{"type": "Exact", "name": NO_REQUEST, "value": "1"}]}
    with_body = _render_rule([{**match, "method": "POST", **never_matches}], rewrite, service)
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
                *([{"name": PICKED_RULE, **with_body}] if has_picker else []),
                *(_render_rule(each, rewrite, service) for each in match_groups),
            ],
        },
    }


def allowed_paths(replica: ModelReplica) -> str:
    """Return a regular expression for the paths of model APIs and those that the deployment adds."""
    return f"{_prefix_pattern(replica)}/{open_paths(replica.spec.serving.paths if replica.spec.serving else ())}"


def _prefix_pattern(replica: ModelReplica) -> str:
    """Return the replica's prefix as a regular expression.

    Dots are the only special characters that names may have.
    """
    return replica_prefix(replica.key).rstrip("/").replace(".", r"\.")


def _render_rule(matches: list[Manifest], rewrite: Manifest, backends: list[Manifest]) -> Manifest:
    """Render a rule of the HTTPRoute without a timeout."""
    return {
        "matches": matches,
        "filters": [rewrite],
        "backendRefs": backends,
        "timeouts": {"request": "0s"},  # no timeout: Envoy's default of 15 s would cut off long responses
    }
